"""Keepalive pings detect a client that disappears during a call, and do not close a client that is idle between calls."""

import grpc
import pytest
from attack_tools import generate, request_of
from attacks import GRPC_HEADERS, connect, is_closed
from daemon import Daemon
from http2_client import DATA, END_HEADERS, HEADERS, PING, PREFACE, SETTINGS, Http2Client, frame
from waiting import wait_until

ACK = 1


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    settings = ["server.grpc.keepalive.time=1s", "server.grpc.keepalive.timeout=1s"]
    with Daemon(tmp_path_factory.mktemp("keepalive"), settings=settings) as running:
        running.wait_serving()
        yield running


def test_a_client_that_does_not_read_between_calls_stays_connected(daemon):
    with connect(daemon.grpc_address) as connection:
        connection.sendall(PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK))
        assert not is_closed(connection, 5)


def test_a_client_that_does_not_answer_pings_during_a_call_is_closed(api, daemon):
    request = request_of(api, tokens=2).SerializeToString()
    message = b"\x00" + len(request).to_bytes(4, "big") + request
    with connect(daemon.grpc_address) as connection:
        # The stream stays open on the client's side, because a unary request is incomplete without END_STREAM.
        connection.sendall(PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK)
                           + frame(HEADERS, END_HEADERS, 1, GRPC_HEADERS) + frame(DATA, 0, 1, message[:-1]))
        assert is_closed(connection, 10)


def test_pings_between_calls_are_accepted(api, daemon):
    options = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_permit_without_calls", 1)]
    with grpc.insecure_channel(daemon.grpc_address, options=options) as channel:
        assert generate(api, channel)
    with connect(daemon.grpc_address) as connection:
        connection.sendall(PREFACE + frame(SETTINGS) + frame(SETTINGS, ACK))
        for number in range(50):
            connection.sendall(frame(PING, 0, 0, number.to_bytes(8, "big")))
        assert not is_closed(connection, 2)


PINGS = [frame(PING, 0, 0, number.to_bytes(8, "big")) for number in range(110)]


def test_pings_without_calls_are_bounded(daemon):
    with Http2Client(daemon.grpc_address) as client:
        assert client.wait_begun()
        for ping in PINGS[:100]:
            assert client.send(ping)
        wait_until(lambda: len(client.pongs) == 100, "they are answered")
        client.send(b"".join(PINGS[100:]))
        wait_until(lambda: client.goaway is not None, "there were too many")
        assert client.goaway == (11, "too_many_pings")
