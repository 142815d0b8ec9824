"""Device selection, its reporting, and the errors without a device. Models without weights."""

import json
import os
import pathlib
import re
import signal
import subprocess

import pytest
from attack_tools import http_get
from daemon import QUIRE, QUIRED, ROOT, Daemon

NO_DRIVER = not pathlib.Path("/proc/driver/nvidia/version").exists()
STORY = ROOT / "assets" / "story"  # the embedded model
without_driver = pytest.mark.skipif(not NO_DRIVER, reason="this machine has an NVIDIA driver")


def has_cuda():
    return b"cudaStreamBeginCapture" in QUIRED.read_bytes()


def quire(*arguments, code=0):
    done = subprocess.run([str(QUIRE), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@without_driver
@pytest.mark.parametrize("type", ["cuda", "auto"])
def test_missing_driver_is_reported(api, tmp_path, type):
    with Daemon(tmp_path, settings=[f"device.type={type}"]) as daemon:
        if type == "cuda":  # the daemon never falls back to the CPU
            assert daemon.wait(60) == 78, daemon.log
            (error,) = [line for line in map(json.loads, daemon.log.splitlines()) if line["level"] == "error"]
            assert ("driver" if has_cuda() else "needs a build with CUDA") in error["error"]
            assert "set device.type: cpu" in error["error"]
            assert '"ready"' not in daemon.log
            return
        daemon.wait_serving()
        assert "computing on the CPU" in daemon.log and "no GPU is usable" in daemon.log
        with daemon.channel() as channel:
            info = api.GenerationServiceStub(channel).GetServerInfo(api.GetServerInfoRequest())
        assert ("cuda" in info.build_type.split()) == has_cuda()
        (device,) = info.devices
        assert device.kind == "cpu" and device.name and device.architecture
        assert 0 < device.memory_free_bytes < device.memory_total_bytes
        assert device.self_check.checks > 10 and not device.self_check.skipped_levels
        shown = quire("--address", daemon.grpc_address, "info")
        assert f"device cpu 0: {device.name} {device.architecture}" in shown


@without_driver
def test_validate_needs_no_gpu(tmp_path):
    for setting, code in (("kv_cache.dtype=int8", 0), ("device.tensor_parallel=2", 78)):
        done = subprocess.run(
            [str(QUIRED), "--validate", "--set", "device.type=cuda", "--set", setting],
            capture_output=True, text=True, timeout=60, cwd=tmp_path,
        )
        assert done.returncode == code, done.stderr


def test_instruction_sets_are_forced_or_rejected(tmp_path):
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii")
    lacking = "neon" if "sse4_2" in flags else "avx2"
    for folder in ("lacking", "scalar"):
        (tmp_path / folder).mkdir()
    with Daemon(tmp_path / "lacking", settings=[f"device.cpu.isa={lacking}", "device.type=cpu"]) as daemon:
        assert daemon.wait(60) == 78, daemon.log
        assert f"device.cpu.isa: instruction set {lacking} is not available" in daemon.log
    with Daemon(tmp_path / "scalar", settings=["device.cpu.isa=scalar", "device.type=cpu"]) as daemon:
        daemon.wait_serving()
        assert '"isa":"scalar"' in daemon.log


# Ends the first QUIRE_TEST_FORKS child processes with the signal QUIRE_TEST_SIGNAL.
BROKEN_FORK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

pid_t fork(void) {
  static int calls;
  pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
  pid_t child = next();
  if (child == 0 && calls < atoi(getenv("QUIRE_TEST_FORKS"))) raise(atoi(getenv("QUIRE_TEST_SIGNAL")));
  ++calls;
  return child;
}
"""


@pytest.fixture(scope="module")
def broken_fork(tmp_path_factory):
    """Returns the environment of a quired whose first check of an instruction set ends with a signal."""
    folder = tmp_path_factory.mktemp("fork")
    source, library = folder / "fork.c", folder / "fork.so"
    source.write_text(BROKEN_FORK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)

    def environment(number, forks=1):
        return dict(os.environ, LD_PRELOAD=str(library), QUIRE_TEST_SIGNAL=str(int(number)), QUIRE_TEST_FORKS=str(forks))

    return environment


def self_check(env=None, code=0):
    """Runs `quired --self-check` and returns the levels, best first, and the output."""
    done = subprocess.run([str(QUIRED), "--self-check"], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return re.findall(r"^(\w+): (?:passed|FAILED), \d+ checks in ", done.stdout, re.M), done.stdout


def test_self_check_prints_every_level(broken_fork):
    levels, shown = self_check()
    assert levels[-1] == "scalar" and "FAILED" not in shown
    heading = r"^kernel +shape +error +limit +bits equal +result$"
    assert len(re.findall(heading, shown, re.M)) == len(levels)
    assert len(re.findall(r"^int8 product +int4 g32, 1 to 34 x 72 x 640 .* passed$", shown, re.M)) == len(levels)
    broken, shown = self_check(broken_fork(signal.SIGILL), code=78)
    assert broken == levels
    assert re.findall(r"^(\w+): FAILED", shown, re.M) == levels[:1]
    assert re.search(r"^selection +" + levels[0] + r" .* FAILED: signal 4 \(Illegal instruction\) ended it$", shown, re.M)


@pytest.mark.parametrize("number", [signal.SIGILL, signal.SIGKILL])
def test_level_that_fails_its_check_is_skipped(api, tmp_path, broken_fork, number):
    levels, _ = self_check()
    with Daemon(tmp_path, settings=["device.type=cpu"], env=broken_fork(number)) as daemon:
        daemon.wait_serving()
        lines = [json.loads(line) for line in daemon.log.splitlines()]
        (warning,) = [line for line in lines if "failed its check and is skipped" in line["msg"]]
        assert warning["level"] == "warn" and warning["isa"] == levels[0] and warning["used"] == levels[1]
        assert (warning["kernel"], warning["shape"]) == ("selection", levels[0])
        assert f"signal {int(number)} " in warning["fault"] and f"device.cpu.isa to {levels[1]}" in warning["remedy"]
        (started,) = [line for line in lines if line["msg"] == "computing on the CPU"]
        assert started["isa"] == levels[1] and started["checks"] > 10 and started["check_seconds"] > 0
        with daemon.channel() as channel:
            info = api.GenerationServiceStub(channel).GetServerInfo(api.GetServerInfoRequest())
        (device,) = info.devices
        assert device.architecture == levels[1]
        assert list(device.self_check.skipped_levels) == levels[:1]
        assert device.self_check.checks == started["checks"] and device.self_check.seconds > 0
        shown = quire("--address", daemon.grpc_address, "info")
        assert f"self-check: {started['checks']} passed in " in shown and f"; failed and not used: {levels[0]}" in shown


def test_configured_level_that_fails_its_check_is_an_error(tmp_path, broken_fork):
    levels, _ = self_check()
    env = broken_fork(signal.SIGILL)
    message = (
        f"device.cpu.isa is {levels[0]}, instruction set {levels[0]} fails its check on this machine: selection, "
        f"{levels[0]}: signal 4 (Illegal instruction) ended it"
    )
    settings = ["device.type=cpu", f"device.cpu.isa={levels[0]}"]
    with Daemon(tmp_path, settings=settings, env=env) as daemon:
        assert daemon.wait(60) == 78, daemon.log
        assert message in daemon.log and "set device.cpu.isa to auto" in daemon.log
    command = [str(QUIRED), "--validate", *(word for setting in settings for word in ("--set", setting))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert done.returncode == 78 and message in done.stderr, done.stderr


def test_no_level_that_passes_is_an_error(tmp_path, broken_fork):
    with Daemon(tmp_path, settings=["device.type=cpu"], env=broken_fork(signal.SIGILL, forks=100)) as daemon:
        assert daemon.wait(60) == 78, daemon.log
        assert "instruction set scalar fails its check on this machine" in daemon.log


def test_activations_of_cpu_products_are_reported_or_rejected(api, tmp_path):
    levels, _ = self_check()
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    has_pairs = levels[0] == "avx512_vnni" and "avx512_bf16" in flags and "amx_tile" not in flags
    of_bf16 = "bf16" if levels[0] == "amx" or has_pairs else "int8"
    of_integers = "bf16" if levels[0] == "amx" else "int8"
    for i, (settings, shown) in enumerate([
        ([], of_bf16),  # the embedded model is bf16
        (["model.quantization=int8_g32"], of_integers),
        (["device.cpu.isa=scalar"], "int8"),
        (["device.cpu.activations=f32"], "f32"),
        *([(["device.cpu.isa=avx2"], "int8")] if "avx2" in levels else []),
        *([(["device.cpu.isa=avx2", "device.cpu.activations=bf16"], "bf16")] if "avx2" in levels else []),
    ]):
        folder = tmp_path / str(i)
        folder.mkdir()
        sets = [word for setting in settings for word in ("--set", setting)]
        assert json.loads(quire("--json", "plan", STORY, *sets))["activations"] == shown
        with Daemon(folder, settings=["device.type=cpu", *settings]) as daemon:
            daemon.wait_serving()
            assert f'"activations":"{shown}"' in daemon.log
            with daemon.channel() as channel:
                info = api.GenerationServiceStub(channel).GetServerInfo(api.GetServerInfoRequest())
            (device,) = info.devices
            assert device.activations == shown
            text = quire("--address", daemon.grpc_address, "info")
            assert f"{device.architecture}, activations {shown}, " in text
    settings = ["device.type=cpu", "device.cpu.isa=scalar", "device.cpu.activations=bf16"]
    with Daemon(tmp_path, settings=settings) as daemon:
        assert daemon.wait(60) == 78, daemon.log
        assert "device.cpu.activations: bf16 is not available with instruction set scalar" in daemon.log


def test_model_without_weights_is_served(api, tmp_path):
    model = tmp_path / "tiny"
    quire("make-model", "--shape", "tiny", "--out", model)
    assert "exists" in quire("make-model", "--shape", "tiny", "--out", model, code=1)
    assert "llama-3.1-8b, tiny" in quire("make-model", "--shape", "large", "--out", tmp_path / "x", code=1)
    with Daemon(tmp_path, str(model)) as daemon:  # requests weights that do not exist
        assert daemon.wait(60) == 78, daemon.log
    with Daemon(tmp_path, str(model), settings=["model.load_mode=dummy"]) as daemon:
        daemon.wait_serving()
        request = api.GenerateRequest(text="any text at all")
        request.stopping.max_tokens = 16
        request.stopping.ignore_eos = True
        request.output.token_ids = True
        request.output.text = True
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            completed = [list(stub.Generate(request, timeout=30))[-1].completed for _ in range(2)]
        assert completed[0].usage.completion_tokens == 16 and len(completed[0].token_ids) == 16
        (planned,) = [line for line in map(json.loads, daemon.log.splitlines()) if line["msg"] == "memory plan"]
        assert planned["prefix_index_bytes"] > planned["pages"] * 2 * 64 * 4
        metrics = http_get(daemon.http_address, "/metrics")[1].decode()
        (value,) = re.findall(r'^quire_device_memory_bytes{device="cpu",kind="prefix_index"} (\S+)$', metrics, re.M)
        assert float(value) == planned["prefix_index_bytes"]
        daemon.terminate()
        assert daemon.wait(60) == 0, daemon.log


def test_cpu_plan_of_llama_8b(tmp_path):
    model = tmp_path / "llama"
    quire("make-model", "--shape", "llama-3.1-8b", "--out", model)
    arguments = ["plan", model, "--set", "model.load_mode=dummy"]
    layers = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    embedding = 128256 * 4096
    vectors = (2 * 32 + 1) * 4096 * 4
    # Weights are integers with one f16 scale per 32. The head is int8_g32, the embedding stays bf16.
    for quantization, of_layers, of_head in (("auto", 2, 2), ("int8_g32", 34 / 32, 34 / 32), ("int4_g32", 18 / 32, 34 / 32)):
        plan = json.loads(quire("--json", *arguments, "--set", f"model.quantization={quantization}"))
        assert plan["weights_bytes"] == layers * of_layers + embedding * (2 + of_head) + vectors
        assert plan["weight_format"] == ("none" if quantization == "auto" else quantization)
    table = quire(*arguments, "--set", "model.quantization=int4_g32", "--set", "kv_cache.capacity_bytes=1GiB")
    assert re.search(rf"^weights +{plan['weights_bytes']} .*mostly int4_g32$", table, re.M)
    assert re.search(r"^kv +\d+ ", table, re.M)
    assert re.search(r"^prefix_index +\d+ ", table, re.M)


def test_plan_of_llama_8b(tmp_path):
    model = tmp_path / "llama"
    quire("make-model", "--shape", "llama-3.1-8b", "--out", model)
    arguments = ["plan", model, "--set", "model.load_mode=dummy"]
    plan = json.loads(quire("--json", *arguments, "--device-memory", "80GiB"))
    uses = ("weights", "kv", "activations", "attention", "sampler", "linear", "graphs")
    assert plan["total_bytes"] == sum(plan[f"{use}_bytes"] for use in uses)
    assert plan["free_bytes"] == 80 << 30 and plan["reserve_bytes"] == 1 << 30
    left = plan["free_bytes"] - plan["reserve_bytes"] - plan["total_bytes"]
    page = 2 * 32 * 64 * 8 * 128 * 2  # K and V, layers, tokens, heads, head size, bf16
    assert plan["page_bytes"] == page and 0 <= left < page
    assert plan["pages"] * page < plan["kv_bytes"] < (plan["pages"] + 3) * page
    # Two slots per page. Each has the page's tokens, a node and its table entry.
    assert 2 * 64 * 4 < plan["prefix_index_bytes"] / plan["pages"] < 2 * 64 * 4 + 600
    matrices = 2 * 128256 * 4096 + 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert 2 * matrices < plan["weights_bytes"] < 1.001 * 2 * matrices
    table = quire(*arguments, "--device-memory", "80GiB")
    assert re.search(rf"^weights +{plan['weights_bytes']} ", table, re.M) and f"{plan['pages']} pages of 64" in table
    assert re.search(rf"^prefix_index +{plan['prefix_index_bytes']} .* of host memory$", table, re.M)

    int8 = json.loads(quire("--json", *arguments, "--device-memory", "80GiB", "--set", "kv_cache.dtype=int8"))
    assert int8["page_bytes"] == page // 2 + 2 * 32 * 64 * 8 * 4  # a scale of 4 bytes per token and head
    small = quire(*arguments, "--device-memory", "8GiB", code=1)
    assert str(plan["weights_bytes"]) in small and str(7 << 30) in small
    assert "device.reserve_bytes" in quire(*arguments, "--device-memory", "1GiB", code=1)
    assert "ambiguous" in quire(*arguments, "--device-memory", "80G", code=1)
    assert "max_runing" in quire(*arguments, "--device-memory", "80GiB", "--set", "scheduler.max_runing=1", code=1)
