"""The GPU manifests start quired on the emulated device, with their own arguments, environment and configuration."""

import os
import re
import shutil

import pytest
from deployment import BUILD, ROOT, Daemon, quire, read_yaml
from test_image import COMPOSE, GPU
from test_kubernetes import container, of_kind

# quired, linked with the emulated device.
PROGRAM = BUILD / "tests" / "gpu" / "quired_emulated"
# The emulated device has 1 GiB of memory and computes slowly.
SMALL = ["kv_cache.capacity_bytes=1MiB", "scheduler.max_running_sequences=4", "scheduler.max_step_tokens=64",
         "scheduler.prefill_chunk_tokens=32", "kv_cache.page_size=16", "device.cpu.threads=1", "shutdown.pre_drain_delay=0s"]


def check_start(folder, arguments, variables):
    """Starts quired with no other variables of quire and sends one request."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE")}
    settings = [f"profile={ROOT}/configs/container.yaml", *SMALL]
    with Daemon(folder, *arguments, program=PROGRAM, settings=settings, env=inherited | variables) as daemon:
        daemon.wait_serving(timeout=300)
        assert "the kernels passed the self-check" in daemon.log
        info = quire(daemon, "info")
        assert re.search(r"^device cuda 0: .* 9\.0, .*\nself-check: [1-9]\d* passed in", info, re.MULTILINE), info
        assert quire(daemon, "generate", "Once upon a time", "--max-tokens", "2").strip()
        daemon.terminate()
        assert daemon.wait(120) == 0, daemon.log


def test_kubernetes_overlay_starts(tmp_path):
    pod = container("overlays/gpu")
    (config_map,) = of_kind("overlays/gpu", "ConfigMap")
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["volumeMounts"]}
    variables = {entry["name"]: entry["value"] for entry in pod["env"]}
    assert variables.pop("QUIRE__MODEL__PATH") == f"{mounts['models']}/model"
    # The mounts are folders of this test.
    for mount in ("config", "models"):
        (tmp_path / mount).mkdir()
    for name, text in config_map["data"].items():
        (tmp_path / "config" / name).write_text(text)
    shutil.copytree(ROOT / "assets" / "story", tmp_path / "models" / "model")
    arguments = [argument.replace(mounts["config"], str(tmp_path / "config")) for argument in pod["args"]]
    check_start(tmp_path, arguments, variables | {"QUIRE__MODEL__PATH": str(tmp_path / "models" / "model")})


def test_compose_service_starts(tmp_path):
    variables = {}
    for name in (COMPOSE, GPU):
        variables |= read_yaml(name)["services"]["quired"]["environment"]
    assert variables["QUIRE__DEVICE__TYPE"] == "cuda"
    # The defaults of ${NAME:-default}.
    variables = {name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value) for name, value in variables.items()}
    check_start(tmp_path, [], variables)
