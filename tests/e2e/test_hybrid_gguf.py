"""GGUF files of hybrid and sparse models in the programs: plans, reports and answers equal those of safetensors."""

import json
import re
import subprocess

import pytest
from daemon import BUILD, QUIRE, QUIRED, TESTDATA, Daemon

MODELS = TESTDATA / "models"
WRITE_GGUF = BUILD / "tests" / "parity" / "write_gguf"
ARCHITECTURES = {
    "qwen3-next-bf16": "qwen3next",
    "qwen35-bf16": "qwen35",
    "qwen35-moe-bf16": "qwen35moe",
    "granite-hybrid-bf16": "granitehybrid",
    "nemotron-h-bf16": "nemotron_h_moe",
    "lfm2-bf16": "lfm2",
    "kimi-linear-bf16": "kimi-linear",
    "deepseek-v32-bf16": "deepseek32",
    "glm-moe-dsa-bf16": "glm-dsa",
    "gemma4-bf16": "gemma4",
}
SPARSE = {"deepseek-v32-bf16", "glm-moe-dsa-bf16"}
# Files of models with Mamba-2 state another context length than config.json. Routers are F32 in GGUF files, so auto may
# choose other activations than for safetensors.
SETTINGS = ["model.max_context_tokens=256", "kv_cache.page_size=16", "scheduler.max_running_sequences=4",
            "kv_cache.capacity_bytes=64MiB", "device.cpu.activations=f32"]


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request, tmp_path_factory):
    """Paths of the same model as safetensors and as GGUF."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    run(WRITE_GGUF, request.param, ARCHITECTURES[request.param], path)
    return MODELS / request.param, path


def sets(more=()):
    return [word for setting in [*SETTINGS, *more] for word in ("--set", setting)]


def test_reports_equal_those_of_safetensors(pair):
    reports = [json.loads(run(QUIRE, "--json", "inspect", path, *sets())) for path in pair]
    for report in reports:
        assert report["problems"] == [] and report["warnings"] == []
        assert report["tokenizer"]["kind"] in ("BPE (tokenizer.json)", "gpt2 (GGUF)")
        # Routers are F32 in GGUF files.
        del report["plan"]["weights_bytes"]
    assert reports[0]["plan"] == reports[1]["plan"]
    # Towers and blocks for multi-token prediction are not in these GGUF files.
    groups = [{name: group["parameters"] for name, group in report["groups"].items()} for report in reports]
    groups[0].pop("other", None)
    if pair[0].name == "granite-hybrid-bf16":  # its shared MLP belongs to either
        for group in groups:
            group["experts"] += group.pop("mlp", 0)
    assert groups[0] == groups[1]
    assert ("index_layers" in reports[1]["plan"]) == (pair[0].name in SPARSE)
    is_recurrent = pair[0].name not in SPARSE | {"gemma4-bf16"}
    assert ("state_slots" in reports[1]["plan"]) == is_recurrent
    if is_recurrent:
        plan = reports[1]["plan"]
        assert plan["state_slots"] == plan["max_running_sequences"] + plan["state_snapshots"] > 4
        assert plan["states_bytes"] == (plan["state_slots"] + 1) * plan["state_slot_bytes"]
    texts = [run(QUIRE, "inspect", path, *sets()) for path in pair]
    named = r"^ *(layers  |layers? \d|states|state slot|index rows|sequence|page) .*$"
    lines = [[line.group() for line in re.finditer(named, text, re.M)] for text in texts]
    assert lines[0] == lines[1] and len(lines[0]) > 4
    assert any("states" in line for line in lines[1]) == is_recurrent
    assert ("keys chosen by an indexer" in texts[1]) == ("index rows" in texts[1]) == (pair[0].name in SPARSE)


def test_plans_of_gpus_equal_those_of_safetensors(pair):
    plans = [json.loads(run(QUIRE, "--json", "plan", path, "--device-memory", "4GiB", *sets())) for path in pair]
    for plan in plans:
        del plan["weights_bytes"], plan["total_bytes"]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_daemon_accepts_them(pair, device):
    run(QUIRED, "--validate", "--set", f"model.path={pair[1]}", "--set", f"device.type={device}", *sets())


@pytest.mark.parametrize("folder", ["qwen35-bf16", "nemotron-h-bf16", "kimi-linear-bf16"])
def test_answers_equal_the_reference(api, tmp_path, folder):
    path = tmp_path / "model.gguf"
    run(WRITE_GGUF, folder, ARCHITECTURES[folder], path)
    reference = json.loads((MODELS / folder / "reference.json").read_text())
    settings = ["kv_cache.dtype=f32", "kv_cache.page_size=16", "device.cpu.activations=f32"]
    with Daemon(tmp_path, str(path), settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            for is_second in (False, True):
                for prompt in reference["prompts"]:
                    request = api.GenerateRequest()
                    request.token_ids.ids.extend(prompt["token_ids"])
                    request.sampling.temperature = 0
                    request.stopping.max_tokens = 16
                    request.stopping.ignore_eos = True
                    request.output.token_ids = True
                    call = generation.Generate(request, timeout=120)
                    (done,) = [message.completed for message in call if message.HasField("completed")]
                    assert list(done.token_ids) == prompt["greedy_token_ids"][:16], prompt["id"]
                    # States are kept at the last page end at least 17 tokens before the end.
                    if is_second and len(prompt["token_ids"]) >= 16 + 17:
                        assert done.usage.cached_tokens >= 16, prompt["id"]
