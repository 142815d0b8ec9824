"""Models with recurrent layers in the daemon: hits, choices, conversations and preemptions change no bit."""

import json
import random
import re
import subprocess

import pytest
from attack_tools import http_get
from daemon import QUIRE, QUIRED, TESTDATA, Daemon

MODEL = TESTDATA / "models" / "qwen35-bf16"
OUTPUT = 40
SETTINGS = ["kv_cache.dtype=f32", "kv_cache.page_size=16", "scheduler.max_running_sequences=8", "model.id=fixture",
            "scheduler.admission=overcommit"]


def plan_of(*more):
    sets = [word for setting in [*SETTINGS, *more] for word in ("--set", setting)]
    return json.loads(subprocess.check_output([str(QUIRE), "--json", "inspect", str(MODEL), *sets], timeout=60))["plan"]


def ask(api, prompt, choices=1):
    request = api.GenerateRequest()
    request.token_ids.ids.extend(prompt)
    request.sampling.temperature = 0 if choices == 1 else 1
    request.sampling.seed = 7
    request.sampling.choice_count = choices
    request.stopping.max_tokens = OUTPUT
    request.stopping.ignore_eos = True
    request.output.token_ids = True
    request.output.logprobs = 1
    return request


def read(call):
    """Returns tokens and log-probabilities by choice, and the cached tokens of the prompt."""
    completed = [message.completed for message in call if message.HasField("completed")]
    found = {one.index: (list(one.token_ids), [row.logprob for row in one.logprobs]) for one in completed}
    return found, max(one.usage.cached_tokens for one in completed)


def prompt_of(seed, size):
    chooser = random.Random(seed)
    return [chooser.randrange(5, 250) for _ in range(size)]


def value_of(daemon, series):
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    return float(re.search(rf"^{re.escape(series)} (\S+)$", metrics, re.M)[1])


def test_cached_answers_equal_cold_ones(api, tmp_path):
    plan = plan_of()
    assert plan["state_slot_bytes"] > 0 and plan["state_slot_tokens"] > 0
    head = prompt_of(1, 64)
    prompts = [head + prompt_of(10 + i, 20 + i) for i in range(8)]
    asked = [(prompt, 1) for prompt in prompts] + [(prompts[0], 4)]

    # Each prompt alone, without a cache.
    with Daemon(tmp_path, str(MODEL), settings=[*SETTINGS, "kv_cache.prefix_caching=false"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            cold = [read(generation.Generate(ask(api, *one), timeout=120)) for one in asked]
        assert all(cached == 0 for _, cached in cold)
        turn = prompts[3] + cold[3][0][0][0] + prompt_of(99, 9)
        with daemon.channel() as channel:
            next_turn, _ = read(api.GenerationServiceStub(channel).Generate(ask(api, turn), timeout=120))

    # Together, in a pool for the states and half of their pages, twice.
    rows = 8 * plan["state_slot_bytes"]
    capacity = 2 * rows + 32 * plan["page_bytes"]
    settings = [*SETTINGS, f"kv_cache.capacity_bytes={max(capacity, 65536)}", "kv_cache.state_share=0.3"]
    with Daemon(tmp_path, str(MODEL), settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            for _ in range(2):
                calls = [generation.Generate(ask(api, *one), timeout=120) for one in asked]
                assert [read(call)[0] for call in calls] == [found for found, _ in cold]
            # One after the other, the prompts begin with cached tokens.
            cached = []
            for one, (found, _) in zip(asked, cold):
                got, hit = read(generation.Generate(ask(api, *one), timeout=120))
                assert got == found
                cached.append(hit)
            assert max(cached) >= 64, cached
            read(generation.Generate(ask(api, prompts[3]), timeout=120))
            got, hit = read(generation.Generate(ask(api, turn), timeout=120))
            assert got == next_turn and hit >= len(turn) - 9 - 1, hit
        log = daemon.log
        assert value_of(daemon, 'quire_preemptions_total{mode="recompute",model_name="fixture"}') > 0
        slots = {state: value_of(daemon, f'quire_kv_state_slots{{model_name="fixture",state="{state}"}}')
                 for state in ("live", "snapshot", "free")}
    planned = [line for line in map(json.loads, log.splitlines()) if line["msg"] == "recurrent states"]
    assert len(planned) == 1 and planned[0]["slot_bytes"] == plan["state_slot_bytes"]
    assert slots["live"] == 0 and slots["snapshot"] > 0
    assert sum(slots.values()) == planned[0]["slots"]


def test_states_that_do_not_fit_are_refused(tmp_path):
    slot = plan_of()["state_slot_bytes"]
    rows = 65536 // slot + 8
    capacity = max(65536, rows * slot)
    with Daemon(tmp_path, str(MODEL), settings=[*SETTINGS, f"scheduler.max_running_sequences={rows}",
                                                f"kv_cache.capacity_bytes={capacity}"]) as daemon:
        assert daemon.wait(60) == 78, daemon.log
    assert f"scheduler.max_running_sequences is {rows}" in daemon.log
    assert f"lower scheduler.max_running_sequences to at most {capacity // 2 // slot}" in daemon.log


def test_the_default_runs_as_many_sequences_as_fit(api, tmp_path):
    slot = plan_of()["state_slot_bytes"]
    capacity = max(65536, 40 * slot)
    fits = capacity // 2 // slot
    settings = [setting for setting in SETTINGS if "max_running_sequences" not in setting]
    settings.append(f"kv_cache.capacity_bytes={capacity}")
    sets = [word for setting in settings for word in ("--set", setting)]
    inspected = json.loads(subprocess.check_output([str(QUIRE), "--json", "inspect", str(MODEL), *sets], timeout=60))
    assert inspected["plan"]["max_running_sequences"] == fits < 256
    with Daemon(tmp_path, str(MODEL), settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            generation = api.GenerationServiceStub(channel)
            assert generation.GetServerInfo(api.GetServerInfoRequest(), timeout=60).limits.max_running_sequences == fits
            calls = [generation.Generate(ask(api, prompt_of(i, 20)), timeout=120) for i in range(fits + 4)]
            assert all(len(read(call)[0][0][0]) == OUTPUT for call in calls)
        assert value_of(daemon, 'quire_running_sequences_limit{model_name="fixture"}') == fits
        log = daemon.log
    lines = [line for line in map(json.loads, log.splitlines()) if line["msg"].startswith("fewer sequences run")]
    assert len(lines) == 1 and lines[0]["max_running_sequences"] == fits and lines[0]["requested"] == 256


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_they_are_valid_on(device):
    command = [str(QUIRED), "--validate", "--set", f"model.path={MODEL}", "--set", f"device.type={device}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_plan_of_a_gpu_has_their_slots():
    command = [str(QUIRE), "--json", "plan", str(MODEL), "--device-memory", "4GiB", "--set", "scheduler.max_running_sequences=8"]
    plan = json.loads(subprocess.check_output(command, timeout=60))
    assert plan["states_bytes"] == (plan["state_slots"] + 1) * plan["state_slot_bytes"]
    assert plan["max_running_sequences"] == 8 and plan["state_slots"] == 8 + plan["state_snapshots"]
    uses = ("weights", "kv", "activations", "attention", "sampler", "linear", "graphs", "states")
    assert plan["total_bytes"] == sum(plan[f"{use}_bytes"] for use in uses)
    table = subprocess.check_output(command[:1] + command[2:], text=True, timeout=60)
    assert re.search(rf"^states +{plan['states_bytes']} .*, {plan['state_slots']} slots, 8 of them for sequences, ", table, re.M)
