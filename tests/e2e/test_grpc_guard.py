"""Attacks on the gRPC port without a token: memory stays bounded and comes back, neighbours are served.

The guard before gRPC (server/edge/frame_guard.h) ends the connection that attacks, and says why.
"""

import contextlib
import os
import resource
import socket
import struct
import threading
import time

import grpc
import pytest
from attack_tools import Neighbour, failure, generate, http_get
from attacks import (GRPC_HEADERS, begin, begin_messages, compressed_call, connect, is_closed,
                     send_endless_headers, send_large_headers, send_quietly, send_references, send_resets,
                     send_streams)
from daemon import Daemon
from http2_client import ACK, GOAWAY, PREFACE, SETTINGS, Http2Client, frame
from process_figures import MIB, peak_memory, process_status, resident_bytes, threads_named
from stopped_threads import stopped_threads
from test_attacks import streams
from waiting import wait_until

ENHANCE_YOUR_CALM = 11
# Of a call that stays open without a message.
BATCH_HEADERS = GRPC_HEADERS.replace(b"\x24/quire.v1.GenerationService/Generate",
                                     b"\x29/quire.v1.GenerationService/BatchGenerate")


def closed_connections(daemon, cause):
    """How many connections the daemon has ended for this cause."""
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    start = f'quire_grpc_connections_closed_total{{cause="{cause}"}} '
    return next((float(line[len(start):]) for line in metrics.splitlines() if line.startswith(start)), 0)


def connections(daemon):
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("quire_grpc_connections_active "))


def goaway_of(connection, timeout=20):
    """(code, text) of the GOAWAY frame with which the server ends the connection; None if it says nothing."""
    received = b""
    deadline = time.monotonic() + timeout
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            piece = connection.recv(65536)
            if not piece:
                break
            received += piece
    while len(received) >= 9:
        size, kind = int.from_bytes(received[:3], "big"), received[3]
        payload, received = received[9:9 + size], received[9 + size:]
        if kind == GOAWAY:
            return struct.unpack(">I", payload[4:8])[0], payload[8:].decode()
    return None


@pytest.fixture
def neighbour(api, daemon):
    with daemon.channel() as channel:
        found = Neighbour(api, channel)
        yield found
        found.check()


@pytest.fixture
def bounded(daemon):
    """What an attack makes the daemon hold is bounded, and given back."""
    pid = daemon.process.pid
    before = resident_bytes(pid)
    with peak_memory(pid) as peak:
        yield
    assert peak.bytes < before + 300 * MIB, (before, peak.bytes)
    wait_until(lambda: resident_bytes(pid) < 1.1 * before + 16 * MIB, f"memory is as before: {before}", 30)


def test_streams_are_bounded_before_settings_are_acknowledged(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_streams(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM
        assert "101 streams at once and has not acknowledged SETTINGS, limit 100" in text


def test_streams_are_bounded_afterwards(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_quietly(connection, frame(SETTINGS, ACK))
        send_streams(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM
        assert "1025 streams at once, server.grpc.max_concurrent_streams is 1024" in text


def test_a_flood_of_headers_ends(daemon, neighbour, bounded):
    before = closed_connections(daemon, "frames")
    end = time.monotonic() + 3
    while time.monotonic() < end:
        with begin(daemon.grpc_address) as connection:
            send_large_headers(connection)
    assert closed_connections(daemon, "frames") > before


def test_references_to_one_large_header_end(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_references(connection)
        assert is_closed(connection, 20)


def test_header_blocks_without_end_are_refused(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_endless_headers(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM and "the headers of a call have" in text


def test_rapid_resets_are_bounded(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_resets(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM and "2025 resets of streams in a second, limit 2024" in text


def test_compressed_messages_are_refused_before_they_are_inflated(api, daemon, neighbour, bounded):
    with daemon.channel() as channel:
        call = channel.stream_unary("/quire.v1.GenerationService/Tokenize", lambda data: data, lambda data: data)
        for _ in range(8):
            error = failure(lambda: call(iter([b"x"]), compression=grpc.Compression.Gzip, timeout=20))
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    headers, payload = compressed_call()
    with Http2Client(daemon.grpc_address) as client:
        for stream in range(1, 65, 2):
            assert client.open(stream, headers)
            # The refusal may come before the last byte, and then nothing opens the stream's window any more.
            client.send_data(stream, payload, timeout=1)
            assert client.wait_ended(stream), "the call is refused"
        assert client.goaway is None, "calls were refused, not the connection"


def test_unfinished_messages_of_a_connection_are_bounded(daemon, neighbour, bounded):
    with Http2Client(daemon.grpc_address) as client:
        senders = begin_messages(client, 16, 15 * MIB)
        assert client.wait_closed(60)
        for sender in senders:
            sender.join()
        code, text = client.goaway
        assert code == ENHANCE_YOUR_CALM and f"limit {64 * MIB}" in text


def test_unfinished_messages_of_all_connections_are_bounded(api, tmp_path):
    with Daemon(tmp_path, settings=["server.grpc.memory_bytes=64MiB"]) as daemon:
        daemon.wait_serving()
        before = resident_bytes(daemon.process.pid)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Http2Client(daemon.grpc_address)) for _ in range(4)]
            senders = [sender for client in clients for sender in begin_messages(client, 4, 7 * MIB)]
            wait_until(lambda: closed_connections(daemon, "memory") > 0, "the largest is ended", 60)
            assert resident_bytes(daemon.process.pid) < before + 300 * MIB
            with daemon.channel() as channel:
                assert generate(api, channel)
            for client in clients:
                client.close()
            for sender in senders:
                sender.join()


@pytest.fixture
def small(tmp_path):
    """A daemon for few connections, none of them open."""
    settings = ["server.grpc.max_connections=6", "server.grpc.max_connections_per_address=5"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        wait_until(lambda: connections(daemon) == 0, "the connection that waited is closed")
        yield daemon
        assert daemon.process.poll() is None


def answer(api, daemon):
    with daemon.channel() as channel:
        return generate(api, channel)


def test_silent_connections_are_evicted_the_oldest_first(api, small):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(small.grpc_address)) for _ in range(5)]
        assert answer(api, small)
        assert is_closed(silent[0], 5)
        assert closed_connections(small, "silent") == 1


def test_connections_without_calls_are_evicted_the_oldest_first(api, small):
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Http2Client(small.grpc_address)) for _ in range(5)]
        assert all(client.wait_begun() for client in idle)
        assert answer(api, small)
        assert idle[0].wait_closed()
        assert idle[0].goaway == (0, ""), "no error: the client may connect again"
        assert closed_connections(small, "idle") == 1


def test_connections_that_begin_at_once_are_no_more_than_the_limit(tmp_path):
    """Also while many threads connect at the same time."""
    with Daemon(tmp_path, settings=["server.grpc.max_connections=2"]) as daemon:
        daemon.wait_serving()
        for _ in range(6):  # not every round has one at that moment
            with contextlib.ExitStack() as stack:

                def begin_many():
                    for _ in range(100):
                        with contextlib.suppress(OSError):
                            stack.enter_context(begin(daemon.grpc_address))

                threads = [threading.Thread(target=begin_many) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                wait_until(lambda: connections(daemon) <= 2, "the others are evicted")


def test_connections_in_use_stay_and_the_next_is_refused(api, small):
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(Http2Client(small.grpc_address)) for _ in range(5)]
        for client in busy:
            assert client.open(1, BATCH_HEADERS)
        wait_until(lambda: streams(small) == 5, "a call is open on each")
        with connect(small.grpc_address) as connection:
            code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM
        assert "5 connections of this address are open, server.grpc.max_connections_per_address is 5" in text
        busy.pop().close()
        wait_until(lambda: connections(small) == 4, "one more may connect")
        assert answer(api, small)
        assert all(client.goaway is None for client in busy)


def test_a_flood_of_connects_loses_no_call(api, tmp_path):
    """Silent connections arrive by the hundred at the limit; the calls of a client with pauses between them succeed."""
    with Daemon(tmp_path, settings=["server.grpc.max_connections_per_address=100"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel, contextlib.ExitStack() as stack:
            for _ in range(40):
                for _ in range(50):
                    stack.enter_context(connect(daemon.grpc_address))
                assert generate(api, channel)
            wait_until(lambda: closed_connections(daemon, "silent") > 1000, "most are closed")


@pytest.mark.parametrize("opened", [connect, begin])
def test_more_connects_than_descriptors_leave_the_port_alive(api, tmp_path, opened):
    """More silent connections, or clients of HTTP/2 that ignore GOAWAY, than there are descriptors."""
    with Daemon(tmp_path, prefix=["prlimit", "--nofile=600:600"]) as daemon:
        daemon.wait_serving()
        with contextlib.ExitStack() as stack:
            most = 0
            for _ in range(1100):
                stack.callback(opened(daemon.grpc_address).close)
                most = max(most, len(os.listdir(f"/proc/{daemon.process.pid}/fd")))
            assert most < 590, "no descriptor was kept for anything else"
            with daemon.channel() as channel:
                assert generate(api, channel)
        with daemon.channel() as channel:
            assert generate(api, channel)
        assert http_get(daemon.http_address, "/readyz")[0] == 200
        assert "fewer connections than server.grpc.max_connections" in daemon.log


def num_descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def test_the_table_of_descriptors_does_not_grow_while_clients_wait(daemon):
    """Its growth keeps new connections waiting for tens of milliseconds, so it has its size from the start."""
    process = daemon.process.pid
    size = int(process_status(process)["FDSize"])
    assert size >= min(resource.prlimit(process, resource.RLIMIT_NOFILE)[0], 65536)


def test_a_connection_takes_nothing_of_grpc_before_its_preface(api, daemon):
    assert answer(api, daemon)
    wait_until(lambda: connections(daemon) == 0, "that connection is closed")
    before = num_descriptors(daemon)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(daemon.grpc_address)) for _ in range(20)]
        wait_until(lambda: connections(daemon) == 20, "all are accepted")
        # Besides, at any time: four of a call from inside, one of the figures' own.
        assert num_descriptors(daemon) <= before + 20 + 5
        for client in clients:
            client.sendall(PREFACE + frame(SETTINGS))
            assert client.recv(9)[3] == SETTINGS
        assert before + 60 - 5 <= num_descriptors(daemon) <= before + 60 + 5


def test_there_are_no_more_connections_than_descriptors_for_them(api, tmp_path):
    """An idle connection is evicted for a new one. Where all others have calls the new one is refused; they go on."""
    with Daemon(tmp_path, prefix=["prlimit", f"--nofile={512 + 256 + 2 * 3 * 21}"]) as daemon:
        daemon.wait_serving()
        assert answer(api, daemon)
        wait_until(lambda: connections(daemon) == 0, "that connection is closed")
        with contextlib.ExitStack() as stack:
            idle = []
            for _ in range(30):
                idle.append(stack.enter_context(Http2Client(daemon.grpc_address)))
                assert idle[-1].wait_begun()
            wait_until(lambda: all(client.goaway == (0, "") for client in idle[:9]), "the oldest are evicted")
            busy = idle[9:]
            assert all(client.goaway is None for client in busy)
            for client in busy:
                assert client.open(1, BATCH_HEADERS)
            wait_until(lambda: streams(daemon) == 21, "a call is open on each")
            with connect(daemon.grpc_address) as connection:
                code, text = goaway_of(connection)
            assert code == ENHANCE_YOUR_CALM
            assert "21 connections are open, the limit is 21" in text
            assert streams(daemon) == 21 and all(client.goaway is None for client in busy)
            busy[0].close()
            wait_until(lambda: streams(daemon) == 20, "a call is over")
            assert answer(api, daemon)


def test_a_client_that_says_goodbye_is_closed(daemon):
    with begin(daemon.grpc_address) as connection:
        connection.sendall(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
        connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection, 20)
    wait_until(lambda: connections(daemon) == 0, "no connection is left")


def threads_of(daemon, name):
    threads = threads_named(daemon.process.pid, name)
    assert threads, name
    return threads


def test_probes_say_which_port_does_not_answer(tmp_path):
    """The threads that serve two ports stand still; the probe port lives on and tells, until they go on."""
    def probe(path="/livez"):
        return http_get(daemon.http_address, path)

    def says(port):
        return all(status == 503 and text.endswith(f"\r\n\r\nthe {port} port does not answer\n".encode())
                   for status, text in (probe("/livez"), probe("/readyz")))

    with Daemon(tmp_path, settings=["openai.enabled=true", "openai.listen=127.0.0.1:0"]) as daemon:
        daemon.wait_serving()
        assert probe()[0] == 200
        with stopped_threads(threads_of(daemon, "openai")):
            with stopped_threads(threads_of(daemon, "grpc-edge")):
                wait_until(lambda: says("gRPC"), "the first of both is named", 60)
            wait_until(lambda: says("OpenAI"), "the other one is named", 60)
        wait_until(lambda: probe()[0] == 200, "liveness is back", 60)
