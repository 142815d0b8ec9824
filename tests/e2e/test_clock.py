"""Setting the machine's wall clock while requests run expires no request and blocks none.

libfaketime shifts the wall time that the daemon reads, as an operator or a time server would. The monotonic clock is
not changed.
"""

import contextlib
import datetime
import os
import pathlib
import re
import threading
import time

import grpc
import pytest
from attack_tools import ENDLESS, endless, http_get, request_of, waiting_count  # noqa: F401
from daemon import Daemon, reason_of
from waiting import wait_until

LIBRARIES = sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
DAY = 86400


@pytest.fixture
def set_clock(tmp_path):
    """set_clock(seconds) shifts the daemon's wall clock by `seconds` from the machine's."""
    file = tmp_path / "clock"

    def set_to(seconds):
        aside = tmp_path / "clock.new"
        aside.write_text(f"{seconds:+d}\n")
        os.replace(aside, file)

    set_to(0)
    set_to.file = file
    return set_to


@pytest.fixture
def clocked(tmp_path, endless, set_clock):  # noqa: F811
    """Starts a daemon whose wall clock can be set, with additional settings of the test."""
    assert LIBRARIES, "no libfaketime (scripts/packages.txt)"
    folder = tmp_path / "quired"
    folder.mkdir()
    template = folder / "today.jinja"
    template.write_text("{{ strftime_now('%Y-%m-%d') }}")
    env = dict(
        os.environ,
        LD_PRELOAD=str(LIBRARIES[0]),
        FAKETIME_TIMESTAMP_FILE=str(set_clock.file),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    settings = [
        *endless,
        f"chat.template_file={template}",
        "scheduler.max_running_sequences=1",
        "scheduler.queue_timeout=300s",
        "limits.max_request_duration=600s",
        "stream.slow_client_timeout=60s",
    ]

    @contextlib.contextmanager
    def start(*more):
        with Daemon(folder, settings=[*settings, *more], env=env) as running:
            yield running.wait_serving()

    return start


@pytest.fixture
def daemon(clocked):
    with clocked() as running:
        yield running
        assert running.process.poll() is None, "quired died:\n" + running.log


class Reader(threading.Thread):
    """Reads a call to its end, so that a full stream does not stall it."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.messages, self.error = call, 0, None
        self.start()

    def run(self):
        try:
            for _ in self.call:
                self.messages += 1
        except grpc.RpcError as error:
            self.error = error


@pytest.mark.parametrize("jump", [2 * DAY, -2 * DAY])
def test_clock_change_moves_no_deadline(api, daemon, set_clock, jump):
    with daemon.channel() as channel, daemon.admin_channel() as admin_channel:
        stub = api.GenerationServiceStub(channel)
        admin = api.AdminServiceStub(admin_channel)

        def statistics():
            return admin.GetStats(api.GetStatsRequest()).stats

        def shown_times():
            return {r.request_id: r.accept_time.seconds for r in admin.ListRequests(api.ListRequestsRequest()).requests}

        running = stub.Generate(request_of(api, tokens=ENDLESS, request_id="runs"), timeout=500)
        next(running)
        reader = Reader(running)
        queued = stub.Generate(request_of(api, tokens=3, request_id="queued"), timeout=500)
        wait_until(lambda: waiting_count(api, daemon) == 1, "a queued request")
        before = shown_times()
        set_clock(jump)
        wait_until(lambda: abs(statistics().sample_time.seconds - time.time() - jump) < 60, "the new wall time")
        # Everything that compares times (deadlines, the queue's timeout, liveness) is checked at least twice.
        for _ in range(2):
            steps, messages = statistics().step_count, reader.messages
            wait_until(lambda: statistics().step_count > steps + 20, "twenty more steps")
            wait_until(lambda: reader.messages > messages, "more tokens")
            assert http_get(daemon.http_address, "/livez")[0] == 200
        assert waiting_count(api, daemon) == 1
        # Displayed times follow the wall clock.
        def last_step():
            metrics = http_get(daemon.http_address, "/metrics")[1].decode()
            (shown,) = re.findall(r"^quire_engine_last_step_timestamp_seconds\S* (\S+)$", metrics, re.MULTILINE)
            return float(shown)

        wait_until(lambda: abs(last_step() - time.time() - jump) < 60, "the last step is shown in the new time")
        for request_id, shown in shown_times().items():
            assert abs(shown - before[request_id] - jump) <= 2
        running.cancel()
        messages = list(queued)
        assert messages[-1].HasField("completed")
        assert abs(messages[0].started.schedule_time.seconds - time.time() - jump) < 60
        reader.join(60)
        assert reader.error.code() == grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("jump", [2 * DAY, -2 * DAY])
def test_start_time_follows_the_wall_clock(api, daemon, set_clock, jump):
    with daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)

        def start_time():
            return stub.GetServerInfo(api.GetServerInfoRequest()).start_time.seconds

        before = start_time()
        assert abs(before - time.time()) < 60
        set_clock(jump)
        # absl::Now() counts cycles for about two seconds before it reads the wall clock again.
        wait_until(lambda: abs(start_time() - before - jump) <= 2, "the start time follows the wall clock")


@pytest.mark.parametrize("jump", [2 * DAY, -2 * DAY])
def test_templates_print_the_wall_clock_date(api, daemon, set_clock, jump):
    set_clock(jump)
    with daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        chat = api.ChatPrompt(messages=[api.ChatMessage(role="user", content="Which day is it?")])

        def days_off(text):
            return abs(datetime.date.fromisoformat(text) - datetime.date.fromtimestamp(time.time() + jump)).days

        # One day more or less may be due to the time zone or to midnight.
        wait_until(lambda: days_off(stub.RenderChat(api.RenderChatRequest(chat=chat)).text) <= 1, "the date follows")
        pieces = stub.Tokenize(api.TokenizeRequest(chat=chat, with_pieces=True)).pieces
        assert days_off(b"".join(piece.piece for piece in pieces).decode().strip()) <= 1


def test_deadline_is_kept_after_the_clock_is_set_back(api, daemon, set_clock):
    with daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        request = request_of(api, tokens=ENDLESS)
        request.timeout.FromMilliseconds(2000)
        call = stub.Generate(request, timeout=500)
        next(call)
        set_clock(-2 * DAY)
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as error:
            for _ in call:
                pass
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - began < 60


@pytest.mark.parametrize("jump", [2 * DAY, -2 * DAY])
def test_drain_duration_is_independent_of_the_wall_clock(api, clocked, set_clock, jump):
    """Setting the clock neither shortens a drain nor makes it endless."""
    with clocked("shutdown.pre_drain_delay=0s", "shutdown.drain_timeout=4s") as daemon, daemon.channel() as channel:
        call = api.GenerationServiceStub(channel).Generate(request_of(api, tokens=ENDLESS), timeout=500)
        next(call)
        reader = Reader(call)
        start = time.monotonic()
        daemon.terminate()
        set_clock(jump)
        assert daemon.wait(60) == 0, daemon.log
        assert time.monotonic() - start > 3.5
        reader.join(30)
        assert reason_of(reader.error)[0] == "SERVER_SHUTDOWN"
