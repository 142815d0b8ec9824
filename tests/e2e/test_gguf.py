"""GGUF files as model.path. Tokens, text and greedy answers over gRPC are compared with the recorded reference."""

import json

import pytest
from daemon import TESTDATA, Daemon

MODELS = TESTDATA / "gguf" / "models"
# One file per kind: unquantized, quantized, mixed types, rope factors, a SentencePiece vocabulary.
FOLDERS = ["llama-f16", "llama-q8_0", "llama-q4_k_m", "llama-rope-llama3", "llama-spm"]


def serve(tmp_path, folder, *settings):
    path = MODELS / folder / "model.gguf"
    return Daemon(tmp_path, str(path), settings=["kv_cache.dtype=f32", "kv_cache.page_size=16", *settings])


def ask(api, generation, prompt, count):
    request = api.GenerateRequest()
    request.token_ids.ids.extend(prompt["token_ids"])
    request.sampling.temperature = 0
    request.stopping.max_tokens = count
    request.stopping.ignore_eos = True
    request.output.token_ids = True
    return generation.Generate(request, timeout=120)


def completed(call):
    return [message.completed for message in call if message.HasField("completed")][0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_unquantized_answers_and_tokens_equal_the_reference(api, tmp_path, folder):
    reference = json.loads((MODELS / folder / "reference.json").read_text())
    with serve(tmp_path, folder, "model.quantization=none", "device.cpu.activations=f32") as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            calls = [ask(api, generation, prompt, 48) for prompt in reference["prompts"]]
            for prompt, call in zip(reference["prompts"], calls):
                assert list(completed(call).token_ids) == prompt["greedy_token_ids"], prompt["id"]
            for case in reference["tokenizer_cases"]:
                if not case["text"]:
                    continue
                got = generation.Tokenize(api.TokenizeRequest(text=case["text"]))
                assert list(got.token_ids) == case["ids_with_special"], case["text"]


def test_integer_weights_are_the_default_and_the_file_names_the_model(api, tmp_path):
    reference = json.loads((MODELS / "llama-q8_0" / "reference.json").read_text())
    with serve(tmp_path, "llama-q8_0") as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            assert generation.GetModel(api.GetModelRequest()).model.id == "model"
            prompt = reference["prompts"][4]
            first = list(completed(ask(api, generation, prompt, 48)).token_ids)
            assert len(first) == 48
            # Rounding of activations keeps the first choice where its margin is clear.
            assert prompt["margins"][0] > 1
            assert first[0] == prompt["greedy_token_ids"][0]
            assert list(completed(ask(api, generation, prompt, 48)).token_ids) == first


def test_broken_file_is_rejected_with_its_field(tmp_path):
    broken = MODELS.parent / "malformed" / "head-count-zero.gguf"
    with Daemon(tmp_path, str(broken)) as daemon:
        assert daemon.wait(30) != 0
        assert "llama.attention.head_count is 0, it must be 1 to" in daemon.log
