"""Greedy tokens and log-probabilities of a Hugging Face model over gRPC, compared with the recorded reference."""

import json
import re

import pytest
from attack_tools import http_get
from daemon import TESTDATA, Daemon

MODELS = TESTDATA / "models"
ANSWERED = 40  # number of answer tokens that the second prompt contains
PAGE = 16  # tokens
FOLDERS = sorted(path.name for path in MODELS.iterdir() if (path / "reference.json").exists()) if MODELS.exists() else []


def test_models_are_found():
    assert len(FOLDERS) >= 35, FOLDERS


def replays(folder, prompts):
    """Returns the settings and prompts of each daemon. The reference of a longrope model selects the factors by the
    length of each sequence, quire by model.max_context_tokens."""
    config = json.loads((MODELS / folder / "config.json").read_text())
    # By default mxfp4 weights are multiplied as integers. These settings multiply them as numbers.
    settings = ["model.quantization=none"] if "quantization_config" in config else []
    if "long_factor" not in (config.get("rope_scaling") or {}):
        return [(settings, prompts)]
    border = config["original_max_position_embeddings"]
    short = [p for p in prompts if p["num_tokens"] + len(p["greedy_token_ids"]) <= border]
    return [([*settings, f"model.max_context_tokens={border}"], short),
            (settings, [p for p in prompts if p not in short])]


@pytest.mark.parametrize("folder", FOLDERS)
def test_greedy_tokens_and_logprobs_equal_the_reference(api, tmp_path, folder):
    """Also checks that answers from cached pages, some of them written by generated tokens, are bitwise equal."""
    reference = json.loads((MODELS / folder / "reference.json").read_text())
    for more, prompts in replays(folder, reference["prompts"]):
        settings = ["kv_cache.dtype=f32", "device.cpu.activations=f32", f"kv_cache.page_size={PAGE}", "model.id=fixture",
                    *more]
        with Daemon(tmp_path, str(MODELS / folder), settings=settings) as daemon:
            daemon.wait_serving()
            with daemon.channel() as channel:
                generation = api.GenerationServiceStub(channel)
                answers = ask_all(api, generation, prompts)
                for prompt, answer in zip(prompts, answers):
                    check(prompt, answer[-1].completed)
                for prompt, cold, warm in zip(prompts, answers, ask_all(api, generation, prompts, ANSWERED)):
                    assert warm[0].started.cached_tokens >= reusable(daemon, prompt), prompt["id"]
                    same_bits(prompt, cold[-1].completed, warm[-1].completed)


def reusable(daemon, prompt):
    """Number of tokens that the second prompt finds in the cache at least. A prefix of a model with recurrent layers
    needs a snapshot of the states. The first prompt left one at its last page border before its last 17 tokens."""
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    if not re.search(r"^quire_kv_state_slots\{.*\} [1-9]", metrics, re.MULTILINE):
        return PAGE
    return max(0, (prompt["num_tokens"] - 17) // PAGE * PAGE)


def ask_all(api, generation, prompts, answered=0):
    calls = [generation.Generate(ask(api, prompt, answered), timeout=120) for prompt in prompts]
    return [list(call) for call in calls]


def check(prompt, completed):
    assert list(completed.token_ids) == prompt["greedy_token_ids"], prompt["id"]
    got = [row.logprob for row in completed.logprobs]
    assert got == pytest.approx(prompt["greedy_logprobs"], abs=2e-3, rel=1e-3), prompt["id"]
    for row, ids in zip(completed.logprobs, prompt["top5_ids"]):
        assert row.top[0].token_id == ids[0]


def same_bits(prompt, cold, warm):
    assert list(warm.token_ids) == list(cold.token_ids)[ANSWERED:], prompt["id"]
    assert [row.logprob for row in warm.logprobs] == [row.logprob for row in cold.logprobs][ANSWERED:], prompt["id"]


def ask(api, prompt, answered=0):
    """A request whose prompt includes the first `answered` tokens of the answer."""
    request = api.GenerateRequest()
    request.token_ids.ids.extend(prompt["token_ids"] + prompt["greedy_token_ids"][:answered])
    request.sampling.temperature = 0
    request.stopping.max_tokens = len(prompt["greedy_token_ids"]) - answered
    request.stopping.ignore_eos = True
    request.output.token_ids = True
    request.output.logprobs = 5
    return request
