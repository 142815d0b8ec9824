"""Real clients of OpenAI's API that have environments of their own: litellm, langchain-openai, instructor, lm-eval."""

import json
import os
import pathlib
import subprocess

import pytest
from daemon import ROOT, TESTDATA, Daemon, has_structured_output
from test_openai import listening
from test_smollm2 import MODEL

CLIENTS = pathlib.Path(__file__).parent / "clients"
PYTHON = ROOT / "build" / "clients" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing; scripts/test makes it")


def start(folder, *settings):
    folder.mkdir()
    return Daemon(folder, settings=settings)


def base_url(running):
    running.wait_serving()
    return f"http://{listening(running)['openai']}/v1"


def run(script, *urls):
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # without it litellm downloads a file
    done = subprocess.run([PYTHON, CLIENTS / script, *urls], capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


def test_litellm_raises_its_exceptions_and_falls_back(api, tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text("{{ messages[-1].content }}")
    chat = f"chat.template_file={template}"
    with (
        start(tmp_path / "short", chat, "model.max_context_tokens=128") as short,
        start(tmp_path / "long", chat) as long,
        start(tmp_path / "draining", chat, "shutdown.pre_drain_delay=0s") as draining,
    ):
        urls = [base_url(one) for one in (short, long, draining)]
        with draining.admin_channel() as channel:
            api.AdminServiceStub(channel).Drain(api.DrainRequest(), timeout=10)
        run("litellm_calls.py", *urls)


@pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")
@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is missing; scripts/fetch_smollm2 gets it")
def test_langchain_and_instructor_get_objects_and_tool_calls(tmp_path):
    settings = [f"model.path={MODEL}", "model.id=smollm2", "chat.tool_format=generic"]
    with start(tmp_path / "one", *settings) as running:
        run("structured_calls.py", base_url(running))


@pytest.mark.parametrize(("task", "model"), [("pairs_llama", "llama-mha-f32"), ("pairs_qwen3_moe", "qwen3-moe-bf16")])
def test_lm_eval_reports_the_recorded_log_probabilities(tmp_path, task, model):
    folder = TESTDATA / "models" / model
    settings = [f"model.path={folder}", "model.id=fixture", "kv_cache.dtype=f32", "device.cpu.activations=f32"]
    with start(tmp_path / "one", *settings) as running:
        arguments = {"base_url": f"{base_url(running)}/completions", "model": "fixture",
                     "tokenizer_backend": "huggingface", "tokenizer": folder}
        done = subprocess.run(
            [PYTHON, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", task,
             "--include_path", "tests/testdata/lm_eval", "--batch_size", "4", "--log_samples",
             "--output_path", tmp_path / "results",
             "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())],
            capture_output=True, text=True, timeout=240, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (samples,) = (tmp_path / "results").rglob("samples_*.jsonl")
    recorded = json.loads((TESTDATA / "scoring" / f"{model}.json").read_text())["pairs"]
    seen = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(seen) == len(recorded)
    for sample, pair in zip(sorted(seen, key=lambda one: one["doc_id"]), recorded, strict=True):
        assert sample["doc"]["id"] == pair["id"]
        logprob, is_greedy = sample["filtered_resps"][0]
        assert float(logprob) == pytest.approx(pair["logprob"], rel=1e-5, abs=1e-5), pair["id"]
        assert str(is_greedy) == str(pair["is_greedy"]), pair["id"]
