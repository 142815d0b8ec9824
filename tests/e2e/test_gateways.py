"""Published gateways in front of two daemons that are stopped and killed under load: smg and sglang-router, over HTTP."""

import collections
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import openai
import pytest
from daemon import ROOT, Daemon
from waiting import wait_until

PYTHON = ROOT / "build" / "clients" / "bin" / "python"
PROMPTS = ["Once upon a time", "The little dragon", "Lily and Tom went", "One day a cat", "There was a"]

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing; scripts/test makes it")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Backend:
    """A daemon that keeps its port over restarts."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.port = 0
        self.start()
        self.port = self.daemon.openai_address.rpartition(":")[2]

    def start(self):
        self.daemon = Daemon(self.folder, settings=[
            "openai.enabled=true", f"openai.listen=127.0.0.1:{self.port}", "shutdown.pre_drain_delay=2s",
            "model.id=story"])
        self.daemon.wait_serving()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def finished_requests(self):
        """Returns the number of requests that the running daemon has finished."""
        with urllib.request.urlopen(f"http://{self.daemon.http_address}/metrics", timeout=10) as answer:
            values = re.findall(r"^quire_tenant_requests_total\{.*\} (\d+)", answer.read().decode(), re.MULTILINE)
        return sum(map(int, values))


def wait_until_routed(backends):
    """Waits until the gateway sends requests to every backend, so that any of them may end.

    A gateway learns that a daemon is back from its next health check, which is later than the daemon serves.
    """
    before = [backend.finished_requests() for backend in backends]
    wait_until(lambda: all(backend.finished_requests() > count for backend, count in zip(backends, before)),
               "the gateway sends requests to every daemon", 60)


@contextlib.contextmanager
def gateway(kind, folder, urls):
    """Runs a gateway and gives its URL."""
    with contextlib.ExitStack() as stack:
        for attempt in range(2):
            log = folder / f"gateway-{attempt}.log"
            process, url = stack.enter_context(started(kind, log, urls))
            wait_until(lambda: process.poll() is not None or is_port_taken(log) or answers(url), f"{kind} routes requests", 60)
            if not is_port_taken(log):
                break
        assert answers(url), log.read_text()
        yield url


def is_port_taken(log):
    """Returns whether another program took a port after free_port."""
    return "Address already in use" in log.read_text()


@contextlib.contextmanager
def started(kind, log_file, urls):
    """Runs a gateway, which may end at once, and gives its process and URL."""
    port, metrics = free_port(), free_port()
    module = {"smg": "smg.launch_router", "sglang-router": "sglang_router.launch_router"}[kind]
    command = [PYTHON, "-m", module, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics),
               "--worker-urls", *urls, "--policy", "round_robin", "--health-check-interval-secs", "1",
               "--health-failure-threshold", "1", "--health-success-threshold", "1"]
    with log_file.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def answers(url):
    body = json.dumps({"model": "story", "prompt": "Once", "max_tokens": 1}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=5).status == 200
    except (OSError, urllib.error.HTTPError):
        return False


class Load:
    """Clients that send completions, every second one as a stream, until they are stopped."""

    def __init__(self, url, clients=6):
        self.url = url
        self.stopping = threading.Event()
        self.counts = collections.Counter()
        self.failures = []
        self.threads = [threading.Thread(target=self.run, args=(seed,)) for seed in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, seed):
        rng = random.Random(seed)
        with openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
            while not self.stopping.is_set():
                stream = rng.random() < 0.5
                try:
                    self.ask(client, rng.choice(PROMPTS), stream)
                    self.counts["stream" if stream else "whole"] += 1
                except Exception as error:  # of the client, of its HTTP library, or an assertion
                    self.failures.append((stream, repr(error)))

    def ask(self, client, prompt, stream):
        arguments = {"model": "story", "prompt": prompt, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
        if not stream:
            assert client.completions.create(**arguments).usage.completion_tokens == 40
            return
        chunks = list(client.completions.create(**arguments, stream=True))
        assert chunks[-1].choices[0].finish_reason == "length", "the stream ended early without an error"

    def more(self, count):
        """Waits for `count` further answers."""
        target = self.counts.total() + count
        wait_until(lambda: self.counts.total() >= target, f"{count} more answers", 120)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("kind", ["smg", "sglang-router"])
def test_no_request_is_lost(kind, tmp_path):
    backends = [Backend(tmp_path / name) for name in ("a", "b")]
    try:
        with gateway(kind, tmp_path, [backend.url for backend in backends]) as url:
            load = Load(url)
            try:
                load.more(60)
                wait_until_routed(backends)
                backends[0].daemon.terminate()
                assert backends[0].daemon.wait(60) == 0
                load.more(60)
                assert not load.failures, load.failures[:5]
                backends[0].start()
                wait_until_routed(backends)
                backends[1].daemon.process.send_signal(signal.SIGKILL)
                backends[1].daemon.wait(20)
                load.more(60)
            finally:
                load.stop()
            # Only streams that the killed daemon had begun may fail, and with an error.
            assert all(stream for stream, _ in load.failures), load.failures[:5]
            assert len(load.failures) <= len(load.threads), load.failures
            assert not any("ended early" in error for _, error in load.failures), load.failures
            assert load.counts["stream"] > 50 and load.counts["whole"] > 50
    finally:
        for backend in backends:
            backend.daemon.process.kill()
            backend.daemon.wait(20)
