"""Start and shutdown of the process."""

import contextlib
import json
import os
import signal
import socket
import threading
import time

import grpc
import pytest
from daemon import Daemon, reason_of
from process_figures import threads_named
from reload_tools import slow_channel, unread_on
from stopped_threads import WALL, stop_thread
from waiting import wait_until


def stream_request(api, tokens=200, choices=1):
    request = api.GenerateRequest(text="Once upon a time")
    request.sampling.temperature = 0
    request.sampling.choice_count = choices
    request.stopping.max_tokens = tokens
    request.stopping.ignore_eos = True
    request.output.stream = True
    request.output.token_ids = True
    return request


class Stream(threading.Thread):
    def __init__(self, api, channel, tokens, choices=1):
        super().__init__()
        self.call = api.GenerationServiceStub(channel).Generate(stream_request(api, tokens, choices))
        self.started = threading.Event()
        self.ids = []
        self.completed = False
        self.error = None
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


def test_sigterm_finishes_eight_running_streams(api, tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=0s"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel, slow_channel(daemon) as slow:
            unread = unread_on(api, slow)  # the drain waits for its reader, so that the rejection is visible
            streams = [Stream(api, channel, 300) for _ in range(8)]
            for stream in streams:
                assert stream.started.wait(30)
            daemon.terminate()
            wait_for_rejection(api, channel)
            assert sum(message.HasField("completed") for message in unread) == 8
            for stream in streams:
                stream.join(60)
        assert all(stream.completed and stream.error is None for stream in streams)
        assert {len(stream.ids) for stream in streams} == {300}
        assert len({tuple(stream.ids) for stream in streams}) == 1
        assert daemon.wait(60) == 0, daemon.log


def wait_for_rejection(api, channel):
    """Returns the first UNAVAILABLE error of a new request. Requests are admitted until the signal is handled."""
    def refusal():
        try:
            for _ in api.GenerationServiceStub(channel).Generate(stream_request(api, 1)):
                pass
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert reason_of(error)[0] in ("SERVER_DRAINING", "SERVER_SHUTDOWN")
            return error
        return None

    return wait_until(refusal, "a new request is refused")


def test_second_sigterm_exits_at_once(api, tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=60s"]) as daemon:
        daemon.wait_serving()
        daemon.terminate()
        wait_until(lambda: "still admitting" in daemon.log, "the first signal is taken")
        assert daemon.process.poll() is None
        start = time.monotonic()
        daemon.terminate()
        assert daemon.wait(10) == 1
        assert time.monotonic() - start < 5


def test_pre_drain_delay_still_admits_while_not_ready(api, tmp_path):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=60s"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            daemon.terminate()
            wait_until(lambda: health.Check(health_pb2.HealthCheckRequest(service="readiness")).status == 2,
                       "readiness has turned")
            assert health.Check(health_pb2.HealthCheckRequest(service="liveness")).status == 1
            answer = list(api.GenerationServiceStub(channel).Generate(stream_request(api, 4)))
            assert answer[-1].HasField("completed")
        daemon.terminate()
        assert daemon.wait(30) == 1


def test_drain_timeout_ends_remaining_requests_with_a_reason(api, tmp_path):
    settings = ["shutdown.pre_drain_delay=0s", "shutdown.drain_timeout=0s", "device.cpu.threads=1"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            streams = [Stream(api, channel, 480, choices=16) for _ in range(8)]
            for stream in streams:
                assert stream.started.wait(30)
            daemon.terminate()
            for stream in streams:
                stream.join(60)
        errors = [stream.error for stream in streams if stream.error is not None]
        assert errors, "every stream ended before the signal; nothing was tested"
        for error in errors:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert reason_of(error)[0] == "SERVER_SHUTDOWN"
        assert daemon.wait(30) == 0


@pytest.mark.parametrize("meaningless", [
    ["SIGUSR2"],
    ["SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT", "SIGPIPE", "SIGXFSZ", "SIGRTMIN", "SIGRTMAX"],
], ids=["SIGUSR2", "others"])
def test_unused_signals_are_ignored(tmp_path, meaningless):
    numbers = {"SIGSTKFLT": 16, **{name: getattr(signal, name) for name in meaningless if hasattr(signal, name)}}
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=0s"]) as daemon:
        daemon.wait_serving()
        for name in 2 * meaningless:
            daemon.process.send_signal(numbers[name])
        daemon.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: '"logger":"dump","msg":"engine"' in daemon.log, "SIGUSR1 is taken")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: '"msg":"reload"' in daemon.log, "SIGHUP is taken")
        daemon.terminate()
        assert daemon.wait(30) == 0, daemon.log


@contextlib.contextmanager
def unread_daemon(folder, *settings):
    """A daemon whose standard error is a pipe that is full before its first line and that no process reads."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, bytes(4096)):
                pass
        os.set_blocking(writing, True)
        address = f"unix:{folder}/data.sock"
        with Daemon(folder, settings=[f"server.grpc.listen=[{address}]", *settings], stderr=writing) as daemon:
            daemon.grpc_address = address
            yield daemon.wait_serving()
    finally:
        os.close(writing)
        os.close(reading)


def test_unread_log_blocks_neither_requests_nor_shutdown(api, tmp_path):
    settings = ["shutdown.pre_drain_delay=0s", "shutdown.drain_timeout=5s", "logging.level=debug"]
    with unread_daemon(tmp_path, *settings) as daemon:
        with daemon.channel() as channel:
            for _ in range(20):
                answer = list(api.GenerationServiceStub(channel).Generate(stream_request(api, 2), timeout=30))
                assert answer[-1].HasField("completed")
        with daemon.admin_channel() as channel:
            stats = api.AdminServiceStub(channel).GetStats(api.GetStatsRequest(), timeout=30).stats
            assert stats.total_kv_page_count > 0
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
            daemon.process.send_signal(number)
        assert daemon.wait(30) == 0


def test_second_sigterm_exits_at_once_with_an_unread_log(tmp_path):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with unread_daemon(tmp_path, "shutdown.pre_drain_delay=60s") as daemon:
        with daemon.channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            daemon.terminate()
            wait_until(lambda: health.Check(health_pb2.HealthCheckRequest(service="readiness")).status == 2,
                       "the first signal is taken")
        daemon.terminate()
        assert daemon.wait(10) == 1


def thread_named(pid, name):
    """Returns the only thread of a process with that name."""
    [tid] = threads_named(pid, name)
    return tid


def reap(daemon, tid, timeout):
    """Returns the exit code of a process with a traced thread. Its end is visible once that thread has been reaped."""
    gone = False

    def has_ended():
        nonlocal gone
        if daemon.process.poll() is not None:
            return True
        gone = gone or os.waitpid(tid, WALL | os.WNOHANG)[0] == tid
        return False

    wait_until(has_ended, "the process ends", timeout)
    return daemon.wait(5)


@pytest.mark.parametrize("over", ["grpc", "openai"])
def test_process_exits_during_a_step_that_never_ends(api, tmp_path, over):
    """Listeners, calls and the engine thread all wait for the step, yet the process exits with 70.

    In the gRPC case no process reads the log either.
    """
    settings = ["shutdown.pre_drain_delay=0s", "shutdown.drain_timeout=0s", "shutdown.force_timeout=1s",
                "device.cpu.threads=1", "openai.enabled=true", "openai.listen=127.0.0.1:0"]
    start_daemon = unread_daemon(tmp_path, *settings) if over == "grpc" else Daemon(tmp_path, settings=settings)
    with start_daemon as daemon:
        daemon.wait_serving()
        with contextlib.ExitStack() as stack:
            if over == "grpc":
                channel = stack.enter_context(daemon.channel())
                for stream in [Stream(api, channel, 480, choices=16) for _ in range(8)]:
                    stack.callback(stream.join, 30)
                    assert stream.started.wait(30)
            else:
                address = json.loads(next(line for line in daemon.lines if '"listening"' in line))["openai"]
                host, port = address.rsplit(":", 1)
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
                body = json.dumps({"prompt": ["Once"] * 8, "max_tokens": 480, "ignore_eos": True, "stream": True, "n": 16}).encode()
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                   b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            # With one compute thread, that thread is the engine's. The 128 choices take seconds, so the work has not
            # ended and nearly all its time is spent in steps.
            tid = thread_named(daemon.process.pid, "engine")
            stop_thread(tid)
            start = time.monotonic()
            daemon.terminate()
            code = reap(daemon, tid, 60)
            took = time.monotonic() - start
        # The sum of the timeouts: one second for connections, two for the last steps, ten more, and one for the log.
        assert code == 70, daemon.log
        assert 10 < took < 40, took
        assert over == "grpc" or "graceful shutdown timed out" in daemon.log
