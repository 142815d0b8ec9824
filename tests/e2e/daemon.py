"""Starts a real quired on real ports, and generates its client with protoc."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", ROOT / "build" / "ci"))
QUIRED = BUILD / "server" / "quired"
QUIRE = BUILD / "tools" / "quire"
SCHEMA_PROBE = BUILD / "tests" / "engine" / "constraint" / "schema_probe"
TESTDATA = (BUILD / "tests" / "testdata").resolve()


def has_structured_output():
    """Returns whether the build has the grammar library. Without it constraints are rejected."""
    return subprocess.run([SCHEMA_PROBE], stdin=subprocess.DEVNULL).returncode == 0


@contextlib.contextmanager
def probe(name):
    """Runs a program of tests/engine/constraint and returns a function that sends it one JSON line and reads one."""
    with subprocess.Popen([BUILD / "tests" / "engine" / "constraint" / name], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def ask(**question):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, f"{name} ended at {question}"
            return json.loads(answer)

        yield ask
        process.stdin.close()
        assert process.wait() == 0


def becomes_serving(channel, timeout=60):
    """Returns whether the health stream reports SERVING before it ends. Its errors are raised."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    for answer in health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service="readiness"), timeout=timeout, wait_for_ready=True
    ):
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return True
    return False


class Daemon:
    """Starts quired on its own ports and reads them from its log, unless the test redirects `stderr`."""

    def __init__(self, folder, *arguments, program=QUIRED, settings=(), env=None, prefix=(), format_in_file=False,
                 stderr=subprocess.PIPE):
        self.folder = pathlib.Path(folder)
        self.admin = f"unix:{self.folder}/admin.sock"
        command = [*prefix, str(program), *arguments]
        for setting in (
            "server.grpc.listen=[127.0.0.1:0]",
            f"server.admin.listen=[{self.admin}]",
            "server.http.listen=127.0.0.1:0",
            "openai.listen=127.0.0.1:0",
            *([] if format_in_file else ["logging.format=json"]),
            *settings,
        ):
            command += ["--set", setting]
        self.start_time = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env, cwd=folder
        )
        self.lines = []
        self.grpc_address = None
        self.http_address = None
        self.openai_address = None
        self.may_read_log = threading.Event()
        self.may_read_log.set()
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self):
        for line in self.process.stderr or ():
            self.lines.append(line)
            self.may_read_log.wait()
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("msg") == "listening":
                self.grpc_address = entry["grpc"].split(",")[0]
                self.http_address = entry["http"]
                self.openai_address = entry.get("openai")
                self._listening.set()
        self._listening.set()

    @property
    def log(self):
        return "".join(self.lines)

    def wait_listening(self, timeout=30):
        assert self._listening.wait(timeout), "quired does not listen:\n" + self.log
        assert self.grpc_address, "quired ended before it listened:\n" + self.log
        return self

    def wait_serving(self, timeout=60):
        self.wait_listening(timeout)
        with grpc.insecure_channel(self.grpc_address) as channel:
            assert becomes_serving(channel, timeout), "the health stream ended without SERVING:\n" + self.log
        return self

    def channel(self):
        """Returns a channel with its own connection. By default gRPC shares one connection per process."""
        return grpc.insecure_channel(self.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])

    def admin_channel(self):
        return grpc.insecure_channel(self.admin)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout=60):
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        if code < 0 and code not in (-signal.SIGKILL, -signal.SIGTERM):
            print(self.log)  # shows a crash in the test report
        return code

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.may_read_log.set()
        self.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def reason_of(error):
    """Returns (reason, metadata, retry delay in seconds or None) of a failed call."""
    status = rpc_status.from_call(error)
    reason, metadata, delay = "", {}, None
    if status is not None:
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            retry = error_details_pb2.RetryInfo()
            if detail.Is(info.DESCRIPTOR):
                detail.Unpack(info)
                assert info.domain == "quire"
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Is(retry.DESCRIPTOR):
                detail.Unpack(retry)
                delay = retry.retry_delay.seconds + 1e-9 * retry.retry_delay.nanos
    return reason, metadata, delay
