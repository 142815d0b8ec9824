"""Greedy tokens and log-probabilities of a Hugging Face model over gRPC, against the recorded reference."""

import json

import pytest
from daemon import ROOT, Daemon

MODELS = ROOT / "tests" / "testdata" / "models"
FOLDERS = sorted(path.name for path in MODELS.iterdir() if (path / "reference.json").exists()) if MODELS.exists() else []


def test_there_are_models():
    assert len(FOLDERS) >= 13, FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_greedy_tokens_and_logprobs_equal_the_reference(api, tmp_path, folder):
    reference = json.loads((MODELS / folder / "reference.json").read_text())
    settings = ["kv_cache.dtype=f32", "kv_cache.page_size=16", "model.id=fixture"]
    with Daemon(tmp_path, str(MODELS / folder), settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            calls = [generation.Generate(ask(api, prompt), timeout=120) for prompt in reference["prompts"]]
            for prompt, call in zip(reference["prompts"], calls):
                completed = [message.completed for message in call if message.HasField("completed")][0]
                assert list(completed.token_ids) == prompt["greedy_token_ids"], prompt["id"]
                got = [row.logprob for row in completed.logprobs]
                assert got == pytest.approx(prompt["greedy_logprobs"], abs=2e-3, rel=1e-3), prompt["id"]
                for row, ids in zip(completed.logprobs, prompt["top5_ids"]):
                    assert row.top[0].token_id == ids[0]


def ask(api, prompt):
    request = api.GenerateRequest()
    request.token_ids.ids.extend(prompt["token_ids"])
    request.sampling.temperature = 0
    request.stopping.max_tokens = len(prompt["greedy_token_ids"])
    request.stopping.ignore_eos = True
    request.output.token_ids = True
    request.output.logprobs = 5
    return request
