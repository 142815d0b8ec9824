"""Attacks on the gRPC port without a token: memory is bounded and freed, and other clients are served.

The guard before gRPC (server/edge/frame_guard.h) closes the attacking connection and reports the reason.
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
# Headers of a call that stays open without a message.
BATCH_HEADERS = GRPC_HEADERS.replace(b"\x24/quire.v1.GenerationService/Generate",
                                     b"\x29/quire.v1.GenerationService/BatchGenerate")


def closed_connections(daemon, cause):
    """Returns how many connections the daemon has closed for this cause."""
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    start = f'quire_grpc_connections_closed_total{{cause="{cause}"}} '
    return next((float(line[len(start):]) for line in metrics.splitlines() if line.startswith(start)), 0)


def connections(daemon):
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("quire_grpc_connections_active "))


def goaway_of(connection, timeout=20):
    """Returns (code, text) of the GOAWAY frame with which the server closes the connection, or None without one."""
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
    """Checks that the memory that the daemon allocates during an attack is bounded and freed."""
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


def test_streams_are_bounded_after_settings_are_acknowledged(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_quietly(connection, frame(SETTINGS, ACK))
        send_streams(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM
        assert "1025 streams at once, server.grpc.max_concurrent_streams is 1024" in text


def test_a_flood_of_headers_closes_the_connection(daemon, neighbour, bounded):
    before = closed_connections(daemon, "frames")
    end = time.monotonic() + 3
    while time.monotonic() < end:
        with begin(daemon.grpc_address) as connection:
            send_large_headers(connection)
    assert closed_connections(daemon, "frames") > before


def test_references_to_one_large_header_close_the_connection(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_references(connection)
        assert is_closed(connection, 20)


def test_header_blocks_without_end_are_rejected(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_endless_headers(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM and "the headers of a call have" in text


def test_rapid_resets_are_bounded(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_resets(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM and "2025 resets of streams in a second, limit 2024" in text


def test_compressed_messages_are_rejected_before_decompression(api, daemon, neighbour, bounded):
    with daemon.channel() as channel:
        call = channel.stream_unary("/quire.v1.GenerationService/Tokenize", lambda data: data, lambda data: data)
        for _ in range(8):
            error = failure(lambda: call(iter([b"x"]), compression=grpc.Compression.Gzip, timeout=20))
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    headers, payload = compressed_call()
    with Http2Client(daemon.grpc_address) as client:
        for stream in range(1, 65, 2):
            assert client.open(stream, headers)
            # The error may arrive before the last byte is sent. Nothing extends the stream's window after that.
            client.send_data(stream, payload, timeout=1)
            assert client.wait_ended(stream), "the call is rejected"
        assert client.goaway is None, "calls were rejected, not the connection"


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
    """A daemon with a low limit of connections, none of which are open."""
    settings = ["server.grpc.max_connections=6", "server.grpc.max_connections_per_address=5"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        wait_until(lambda: connections(daemon) == 0, "the connection that waited is closed")
        yield daemon
        assert daemon.process.poll() is None


def answer(api, daemon):
    with daemon.channel() as channel:
        return generate(api, channel)


def test_oldest_silent_connection_is_evicted_first(api, small):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(small.grpc_address)) for _ in range(5)]
        assert answer(api, small)
        assert is_closed(silent[0], 5)
        assert closed_connections(small, "silent") == 1


def test_oldest_connection_without_calls_is_evicted_first(api, small):
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Http2Client(small.grpc_address)) for _ in range(5)]
        assert all(client.wait_begun() for client in idle)
        assert answer(api, small)
        assert idle[0].wait_closed()
        assert idle[0].goaway == (0, ""), "no error: the client may connect again"
        assert closed_connections(small, "idle") == 1


def test_concurrent_connects_do_not_exceed_the_limit(tmp_path):
    """Many threads connect at the same time."""
    with Daemon(tmp_path, settings=["server.grpc.max_connections=2"]) as daemon:
        daemon.wait_serving()
        for _ in range(6):  # not every round hits that moment
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


def test_connections_in_use_are_kept_and_the_next_is_rejected(api, small):
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(Http2Client(small.grpc_address)) for _ in range(5)]
        for client in busy:
            assert client.open(1, BATCH_HEADERS)
        wait_until(lambda: streams(small) == 5, "a call is open on each")
        with connect(small.grpc_address) as connection:
            code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM
        reason = "5 connections of this address are open, server.grpc.max_connections_per_address is 5"
        assert reason in text
        for _ in range(20):
            error = failure(lambda: answer(api, small))
            assert error.code() == grpc.StatusCode.UNAVAILABLE and reason in error.details(), error
        busy.pop().close()
        wait_until(lambda: connections(small) == 4, "one more may connect")
        assert answer(api, small)
        assert all(client.goaway is None for client in busy)


def test_a_flood_of_connects_loses_no_call(api, tmp_path):
    """Hundreds of silent connections arrive at the limit. A client's calls succeed, with pauses between them."""
    with Daemon(tmp_path, settings=["server.grpc.max_connections_per_address=100"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel, contextlib.ExitStack() as stack:
            for _ in range(40):
                for _ in range(50):
                    stack.enter_context(connect(daemon.grpc_address))
                assert generate(api, channel)
            wait_until(lambda: closed_connections(daemon, "silent") > 1000, "most are closed")


@pytest.mark.parametrize("opened", [connect, begin])
def test_the_port_serves_after_more_connects_than_descriptors(api, tmp_path, opened):
    """Opens more silent connections, or HTTP/2 clients that ignore GOAWAY, than there are descriptors."""
    with Daemon(tmp_path, prefix=["prlimit", "--nofile=600:600"]) as daemon:
        daemon.wait_serving()
        with contextlib.ExitStack() as stack:
            most = 0
            for _ in range(1100):
                stack.callback(opened(daemon.grpc_address).close)
                most = max(most, len(os.listdir(f"/proc/{daemon.process.pid}/fd")))
            assert most < 590, "no descriptor was reserved for other uses"
            with daemon.channel() as channel:
                assert generate(api, channel)
        with daemon.channel() as channel:
            assert generate(api, channel)
        assert http_get(daemon.http_address, "/readyz")[0] == 200
        assert "too few descriptors for server.grpc.max_connections" in daemon.log


def num_descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def test_the_descriptor_table_does_not_grow_while_clients_wait(daemon):
    """Growing the table delays new connections by tens of milliseconds, so it has its full size from the start."""
    process = daemon.process.pid
    size = int(process_status(process)["FDSize"])
    assert size >= min(resource.prlimit(process, resource.RLIMIT_NOFILE)[0], 65536)


def test_a_connection_reaches_grpc_only_after_its_preface(api, daemon):
    assert answer(api, daemon)
    wait_until(lambda: connections(daemon) == 0, "that connection is closed")
    before = num_descriptors(daemon)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(daemon.grpc_address)) for _ in range(20)]
        wait_until(lambda: connections(daemon) == 20, "all are accepted")
        # Up to five more may be open: four of an internal call, and one of the metrics request.
        assert num_descriptors(daemon) <= before + 20 + 5
        for client in clients:
            client.sendall(PREFACE + frame(SETTINGS))
            assert client.recv(9)[3] == SETTINGS
        assert before + 60 - 5 <= num_descriptors(daemon) <= before + 60 + 5


def test_descriptors_bound_the_number_of_connections(api, tmp_path):
    """A new connection evicts an idle one. If all others have calls, the new one is rejected and the calls continue."""
    with Daemon(tmp_path, prefix=["prlimit", f"--nofile={512 + 2 * 256 + 2 * 3 * 21}"]) as daemon:
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
            wait_until(lambda: connections(daemon) == 20, "one more may connect")
            assert answer(api, daemon)


def test_a_connection_is_closed_after_a_goaway_of_the_client(daemon):
    with begin(daemon.grpc_address) as connection:
        connection.sendall(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
        connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection, 20)
    wait_until(lambda: connections(daemon) == 0, "no connection is left")


def threads_of(daemon, name):
    threads = threads_named(daemon.process.pid, name)
    assert threads, name
    return threads


def test_probes_name_the_port_that_does_not_respond(tmp_path):
    """While the threads of two ports are stopped, the probe port reports which port does not respond."""
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
                wait_until(lambda: says("gRPC"), "the first of the two ports is named", 60)
            wait_until(lambda: says("OpenAI"), "the other port is named", 60)
        wait_until(lambda: probe()[0] == 200, "the liveness probe succeeds again", 60)
