"""Models with sliding windows: memory at long context is bounded by the window, in the daemon and over gRPC."""

import json
import random
import subprocess

import grpc
import pytest
from daemon import QUIRE, QUIRED, TESTDATA, Daemon, reason_of

MODELS = TESTDATA / "models"
PROMPT, OUTPUT = 340, 100
SETTINGS = ["kv_cache.dtype=f32", "kv_cache.page_size=16", "scheduler.prefill_chunk_tokens=16", "model.id=fixture"]


def plan_of(folder, *more):
    sets = [word for setting in [*SETTINGS, *more] for word in ("--set", setting)]
    command = [str(QUIRE), "--json", "inspect", str(MODELS / folder), *sets]
    return json.loads(subprocess.check_output(command, timeout=60))["plan"]


def ask(api, prompt):
    request = api.GenerateRequest()
    request.token_ids.ids.extend(prompt)
    request.sampling.temperature = 0
    request.stopping.max_tokens = OUTPUT
    request.stopping.ignore_eos = True
    request.output.token_ids = True
    request.output.logprobs = 1
    return request


def answers(api, folder, path, pages, page_bytes, prompts):
    """Returns the answers of a daemon whose pool has `pages` pages. The prompts are sent together."""
    settings = [*SETTINGS, f"kv_cache.capacity_bytes={(pages + 1) * page_bytes}"]
    with Daemon(path, str(MODELS / folder), settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            calls = [generation.Generate(ask(api, prompt), timeout=120) for prompt in prompts]
            completed = [[m.completed for m in call if m.HasField("completed")][0] for call in calls]
        log = daemon.log
    return [(list(one.token_ids), [row.logprob for row in one.logprobs]) for one in completed], log


@pytest.mark.parametrize("folder, share", [("mistral-window-bf16", 0.16), ("gpt-oss-bf16", 0.45)])
def test_long_context_fits_the_pages_of_its_windows(api, tmp_path, folder, share):
    plan = plan_of(folder)
    context = plan["max_context_tokens"]
    assert context == 512
    # The bytes that the layers of this model would use without windows.
    whole = len(plan["layer_groups"]) * context // 16
    assert plan["sequence_pages"] <= share * whole
    random.seed(3)
    prompts = [[random.randrange(5, 250) for _ in range(PROMPT)] for _ in range(3)]
    expected, _ = answers(api, folder, tmp_path, 4 * whole, plan["page_bytes"], prompts)
    # The pool fits one sequence. The others wait and then use its pages.
    got, log = answers(api, folder, tmp_path, plan["sequence_pages"], plan["page_bytes"], prompts)
    assert got == expected
    assert all(len(tokens) == OUTPUT for tokens, _ in got)
    assert "layer groups" in log and "with a window of 32 tokens" in log
    assert "context cut" not in log


def test_small_pool_limits_context_of_unwindowed_layers(api, tmp_path):
    plan = plan_of("gpt-oss-bf16")
    pages = plan["sequence_pages"] - 10
    smaller = plan_of("gpt-oss-bf16", f"kv_cache.capacity_bytes={(pages + 1) * plan['page_bytes']}")
    assert smaller["sequence_pages"] <= pages
    assert smaller["max_context_tokens"] == 512 - 10 * 16
    settings = [*SETTINGS, f"kv_cache.capacity_bytes={(pages + 1) * plan['page_bytes']}"]
    with Daemon(tmp_path, str(MODELS / "gpt-oss-bf16"), settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel, pytest.raises(grpc.RpcError) as error:
            list(api.GenerationServiceStub(channel).Generate(ask(api, [7] * 352), timeout=60))
        assert reason_of(error.value)[0] == "PROMPT_TOO_LONG"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_validate_reports_the_groups(device):
    command = [str(QUIRED), "--validate", "--set", f"model.path={MODELS / 'gemma3-text-bf16'}", "--set",
               f"device.type={device}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "1 layer per page; 1 without a window, 6 with a window of 24 tokens in 6 groups" in done.stdout + done.stderr


def test_pool_without_a_page_for_every_group_is_rejected():
    larger = ["kv_cache.page_size=128", "scheduler.prefill_chunk_tokens=128"]  # a capacity has at least 64 KiB
    capacity = 5 * plan_of("gemma3-text-bf16", *larger)["page_bytes"]
    sets = [*SETTINGS, *larger, f"model.path={MODELS / 'gemma3-text-bf16'}", f"kv_cache.capacity_bytes={capacity}"]
    sets += ["device.type=cpu", "server.grpc.listen=[127.0.0.1:0]", "server.http.listen=127.0.0.1:0",
             "openai.listen=127.0.0.1:0"]
    model = str(MODELS / "gemma3-text-bf16")
    starts = [[QUIRED], [QUIRED, "--validate"], [QUIRE, "plan", model], [QUIRE, "inspect", model]]
    for start in starts:
        command = [*map(str, start), *(word for setting in sets for word in ("--set", setting))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        wanted = "the KV pool has 4 usable pages, the shortest sequence needs 7; raise kv_cache.capacity_bytes"
        assert wanted in done.stdout + done.stderr
