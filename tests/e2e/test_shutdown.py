"""Start and end of the process."""

import threading
import time

import grpc
import pytest
from daemon import Daemon, reason_of


def stream_request(api, tokens=200):
    request = api.GenerateRequest(text="Once upon a time")
    request.sampling.temperature = 0
    request.stopping.max_tokens = tokens
    request.stopping.ignore_eos = True
    request.output.stream = True
    request.output.token_ids = True
    return request


class Stream(threading.Thread):
    def __init__(self, api, channel, tokens):
        super().__init__()
        self.call = api.GenerationServiceStub(channel).Generate(stream_request(api, tokens))
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


def test_sigterm_during_eight_streams_finishes_them_whole(api, tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=0s"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            streams = [Stream(api, channel, 300) for _ in range(8)]
            for stream in streams:
                assert stream.started.wait(30)
            daemon.terminate()
            refused = wait_for_refusal(api, channel)
            for stream in streams:
                stream.join(60)
        assert refused is not None, "a new request was still admitted"
        assert all(stream.completed and stream.error is None for stream in streams)
        assert {len(stream.ids) for stream in streams} == {300}
        assert len({tuple(stream.ids) for stream in streams}) == 1
        assert daemon.wait(60) == 0, daemon.log


def wait_for_refusal(api, channel):
    """The first UNAVAILABLE of a new request; admission may go on for the moment that the signal takes."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            for _ in api.GenerationServiceStub(channel).Generate(stream_request(api, 1)):
                pass
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert reason_of(error)[0] in ("SERVER_DRAINING", "SERVER_SHUTDOWN")
            return error
    return None


def test_second_sigterm_exits_at_once(api, tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=60s"]) as daemon:
        daemon.wait_serving()
        daemon.terminate()
        time.sleep(0.3)
        assert daemon.process.poll() is None
        start = time.monotonic()
        daemon.terminate()
        assert daemon.wait(10) == 1
        assert time.monotonic() - start < 5


def test_pre_drain_delay_still_admits_while_not_ready(api, tmp_path):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=3s"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            daemon.terminate()
            end = time.monotonic() + 2
            while health.Check(health_pb2.HealthCheckRequest(service="readiness")).status != 2:
                assert time.monotonic() < end, "readiness did not turn"
            assert health.Check(health_pb2.HealthCheckRequest(service="liveness")).status == 1
            answer = list(api.GenerationServiceStub(channel).Generate(stream_request(api, 4)))
            assert answer[-1].HasField("completed")
        assert daemon.wait(30) == 0


def test_drain_timeout_ends_what_is_left_with_a_reason(api, tmp_path):
    settings = ["shutdown.pre_drain_delay=0s", "shutdown.drain_timeout=0s", "device.cpu.threads=1"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            streams = [Stream(api, channel, 480) for _ in range(8)]
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

