"""Tests the image built by scripts/test_container on the engine that the script started. Requires its environment."""

import contextlib
import functools
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import grpc
import grpc_tools
import pytest
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "testing"))

from waiting import wait_until  # noqa: E402

DOCKER = os.environ["QUIRE_DOCKER"]
HAS_BRIDGE = os.environ["QUIRE_DOCKER_NETWORK"] == "bridge"
IMAGE = "quire:latest"
LARGEST_BYTES = 150_000_000
GRPC, HTTP = "127.0.0.1:50051", "http://127.0.0.1:9464"


def docker(*arguments, code=0, timeout=120):
    done = subprocess.run([DOCKER, *arguments], capture_output=True, text=True, timeout=timeout)
    assert code is None or done.returncode == code, f"docker {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code is not None else done


def inspect(name):
    return json.loads(docker("inspect", name))[0]


def wait_for(what, question, seconds=30):
    return wait_until(question, what, seconds, not_yet=(OSError, ValueError))


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def container(*options, arguments=()):
    """A container with the restrictions of docs/operations.md. Yields its name as soon as `docker run` has returned."""
    network = ["-p", "127.0.0.1:50051:50051", "-p", "127.0.0.1:9464:9464"] if HAS_BRIDGE else ["--network", "host"]
    docker("run", "--detach", "--name", "quire", *network, "--read-only", "--tmpfs", "/run/quire:uid=10001", "--cap-drop", "ALL",
           "--security-opt", "no-new-privileges", *options, IMAGE, *arguments)
    try:
        yield "quire"
    finally:
        print(docker("logs", "quire", code=None).stderr[-4000:])
        docker("rm", "--force", "--volumes", "quire")


def health(name):
    return docker("exec", name, "quire", "health", code=None).returncode == 0


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """The modules that protoc generates from the published schema in the image."""
    out = tmp_path_factory.mktemp("generated")
    name = docker("create", IMAGE).strip()
    docker("cp", f"{name}:/usr/share/quire/proto", str(out / "proto"))
    docker("rm", name)
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    protos = sorted(str(path) for path in (out / "proto" / "quire" / "v1").glob("*.proto"))
    assert protos, "the image has no schema"
    assert protoc.main(["protoc", f"-I{out / 'proto'}", f"-I{well_known}", f"--python_out={out}", f"--grpc_python_out={out}",
                        *protos]) == 0
    sys.path.insert(0, str(out))
    module = importlib.import_module("quire.v1.generation_pb2")
    stub = importlib.import_module("quire.v1.generation_pb2_grpc").GenerationServiceStub
    return module, stub


class Stream(threading.Thread):
    """One greedy stream of a fixed length."""

    def __init__(self, api, channel, tokens):
        super().__init__()
        module, stub = api
        request = module.GenerateRequest(text="Once upon a time")
        request.sampling.temperature = 0
        request.stopping.max_tokens = tokens
        request.stopping.ignore_eos = True
        request.output.stream = True
        request.output.token_ids = True
        self.call = stub(channel).Generate(request)
        self.ids, self.completed, self.error = [], False, None
        self.started = threading.Event()
        self.start()

    def run(self):
        try:
            for message in self.call:
                if message.HasField("delta"):
                    self.ids.extend(message.delta.token_ids)
                    self.started.set()
                self.completed |= message.HasField("completed")
        except grpc.RpcError as error:
            self.error = error
        self.started.set()


def test_image_size():
    size = inspect(IMAGE)["Size"]
    print(f"image: {size / 1e6:.1f} MB")
    assert size <= LARGEST_BYTES


def test_image_metadata():
    config = inspect(IMAGE)["Config"]
    assert config["User"] == "10001:10001" and config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"] == ["/usr/bin/quired"]
    assert set(config["ExposedPorts"]) == {"50051/tcp", "9464/tcp", "8000/tcp"}
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/quire", "health"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    version = re.search(r"project\(quire VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert labels["version"] == version and labels["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])
    said = docker("run", "--rm", "--network", "none", IMAGE, "--version")
    assert said.strip() == f"quired {version}"


def test_image_contents():
    name = docker("create", IMAGE).strip()
    try:
        with subprocess.Popen([DOCKER, "export", name], stdout=subprocess.PIPE) as export:
            listed = subprocess.run(["tar", "-tv"], stdin=export.stdout, capture_output=True, text=True, check=True).stdout
        bill = json.loads(read_from(name, "/usr/share/quire/sbom.spdx.json"))
    finally:
        docker("rm", name)
    files = {line.split(None, 5)[5]: line.split()[0] for line in listed.splitlines()}
    for wanted in ("usr/bin/quired", "usr/bin/quire", "usr/share/quire/configs/container.yaml",
                   "usr/share/quire/proto/quire/v1/generation.proto", "usr/share/doc/quire/LICENSE",
                   "usr/share/quire/build-packages.txt"):
        assert wanted in files, wanted
    for unwanted in ("usr/bin/g++", "usr/bin/cmake", "usr/bin/curl", "usr/bin/python3"):
        assert unwanted not in files, unwanted
    assert not [path for path in files if path.startswith("var/lib/apt/lists/") and path.endswith("Packages")]
    assert {"quire", "libgrpc++1.51", "libc6"} <= {package["name"] for package in bill["packages"]}


def read_from(name, path):
    """Reads a file of a container, which need not run."""
    with subprocess.Popen([DOCKER, "cp", f"{name}:{path}", "-"], stdout=subprocess.PIPE) as copy:
        return subprocess.run(["tar", "-xO"], stdin=copy.stdout, capture_output=True, text=True, check=True).stdout


def test_serves_soon_and_passes_the_first_probe(api):
    with container() as name:
        start = time.monotonic()
        wait_for("quire health succeeds", lambda: health(name))
        took = time.monotonic() - start
        print(f"docker exec quire health succeeded {took:.2f} s after the start")
        assert took < 2
        wait_for("Docker has probed", lambda: inspect(name)["State"]["Health"]["Log"])
        state = inspect(name)["State"]["Health"]
        assert state["Status"] == "healthy" and [probe["ExitCode"] for probe in state["Log"]] == [0]

        assert len(docker("exec", name, "quire", "generate", "Once upon a time", "--max-tokens", "16").split()) > 4
        with grpc.insecure_channel(GRPC) as channel:
            stream = Stream(api, channel, 20)
            stream.join(30)
        assert stream.completed and len(stream.ids) == 20

        scraped = get(f"{HTTP}/metrics")
        assert re.search(r'^quire_requests_completed_total\{model_name="story"\} 2$', scraped, re.MULTILINE)
        assert subprocess.run(["promtool", "check", "metrics"], input=scraped, text=True, timeout=30).returncode == 0
        for path in ("startupz", "readyz", "livez"):
            assert get(f"{HTTP}/{path}").strip() == "ok"


def test_runs_without_privileges():
    with container() as name:
        wait_for("quire health succeeds", lambda: health(name))
        status = dict(re.findall(r"^(\w+):\s*(.*)$", docker("exec", name, "cat", "/proc/1/status"), re.MULTILINE))
        assert status["Name"] == "quired"
        assert status["Uid"].split() == ["10001"] * 4 and status["Gid"].split() == ["10001"] * 4
        assert all(int(status[field], 16) == 0 for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
        for path in ("/x", "/usr/bin/x", "/tmp/x", "/etc/x"):
            docker("exec", name, "touch", path, code=1)


def test_wrong_key_ends_the_container_with_the_reason():
    with container("--env", "QUIRE__SCHEDULER__MAX_STEP_TOKEN=64") as name:
        wait_for("the container ends", lambda: not inspect(name)["State"]["Running"])
        assert inspect(name)["State"]["ExitCode"] == 78
        assert "QUIRE__SCHEDULER__MAX_STEP_TOKEN" in docker("logs", name, code=None).stderr


def test_sigterm_finishes_the_streams_in_flight(api):
    """At a quarter of a processor the streams outlive the signal. Each finishes completely, and the exit code is 0."""
    with container("--cpus", "0.25", arguments=("--set", "device.cpu.threads=1")) as name:
        wait_for("the daemon is ready", lambda: get(f"{HTTP}/readyz"))
        with grpc.insecure_channel(GRPC) as channel:
            streams = [Stream(api, channel, 480) for _ in range(8)]
            assert all(stream.started.wait(60) for stream in streams)
            stopper = threading.Thread(target=docker, args=("stop", "--time", "75", name))
            before = [len(stream.ids) for stream in streams]
            stopper.start()
            wait_for("readiness turns", lambda: not is_ready())
            in_flight = [stream for stream in streams if not stream.completed]
            print(f"{len(in_flight)} of 8 streams in flight when readiness had turned; {before} tokens at the signal")
            assert in_flight, "every stream ended before the signal was seen; nothing was tested"
            for stream in streams:
                stream.join(60)
            stopper.join(90)
        assert all(stream.completed and stream.error is None for stream in streams)
        assert {tuple(stream.ids) for stream in streams} == {tuple(streams[0].ids)} and len(streams[0].ids) == 480
        state = inspect(name)["State"]
        assert (state["Status"], state["ExitCode"], state["OOMKilled"]) == ("exited", 0, False)


def is_ready():
    try:
        return get(f"{HTTP}/readyz").strip() == "ok"
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


def compose(*arguments, code=0):
    command = ["docker-compose", "--project-name", "quire-test", "--file", str(ROOT / "docker" / "compose.yaml")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=180)
    assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def query(expression):
    url = "http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    return json.loads(get(url))["data"]["result"]


@pytest.mark.skipif(not HAS_BRIDGE, reason="this engine has no bridge network")
def test_compose_starts_quired_and_a_prometheus_that_scrapes_it():
    sys.path.insert(0, str(ROOT / "tests" / "deploy"))
    from test_monitoring import dashboard_queries, metric_names

    try:
        compose("up", "--detach", "--no-build")
        # Waits by `depends_on` until quired is healthy, then sends a request over the containers' network.
        assert len(compose("run", "--rm", "check").split()) > 8
        wait_for("the target of Prometheus is up", lambda: [
            1 for target in json.loads(get("http://127.0.0.1:9090/api/v1/targets"))["data"]["activeTargets"]
            if target["health"] == "up" and target["labels"]["job"] == "quire"])
        wait_for("the request is seen", lambda: query("quire_requests_completed_total > 0"))
        names = sorted(set().union(*(metric_names(expression) for _, expression in dashboard_queries())))
        assert len(names) > 40
        for name in names:
            # A query between two scrapes may come too early for one of them.
            wait_for(f"Prometheus has {name}", functools.partial(query, name), 15)
        wait_for("a rule is recorded", lambda: query("quire:tokens_generated:rate1m"), 60)
        rules = json.loads(get("http://127.0.0.1:9090/api/v1/rules"))["data"]["groups"]
        assert {group["name"] for group in rules} == {"quire-recording", "quire-alerts"}
        grafana = compose("ps", "--quiet", "grafana").strip()
        assert inspect(grafana)["State"]["Running"]
        # A substitute container shows only that the files are where Grafana reads them, not that Grafana accepts them.
        for path, file in (("quire/dashboard.json", "dashboard.json"),
                           ("provisioning/datasources/prometheus.yaml", "provisioning/datasources/prometheus.yaml"),
                           ("provisioning/dashboards/quire.yaml", "provisioning/dashboards/quire.yaml")):
            assert docker("exec", grafana, "cat", f"/etc/grafana/{path}") == (ROOT / "deploy" / "grafana" / file).read_text()
        quired = compose("ps", "--quiet", "quired").strip()
        state = inspect(quired)
        assert state["HostConfig"]["ReadonlyRootfs"] and state["HostConfig"]["CapDrop"] == ["ALL"]
        compose("stop", "quired")
        assert inspect(quired)["State"]["ExitCode"] == 0
    finally:
        print(compose("logs", "--tail", "20", code=None))
        compose("down", "--volumes", "--timeout", "5", code=None)
