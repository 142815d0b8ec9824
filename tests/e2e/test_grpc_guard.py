"""Attacks on the gRPC port without a token. Memory stays bounded and is released, and other clients are served.

The guard before gRPC (server/edge/frame_guard.h) closes an attacking connection and sends the reason.
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
from attacks import (GRPC_HEADERS, begin, begin_known, begin_messages, compressed_call, connect, is_closed,
                     send_endless_headers, send_large_headers, send_quietly, send_references, send_resets,
                     send_streams)
from daemon import Daemon
from http2_client import ACK, GOAWAY, PING, SETTINGS, Http2Client, frame
from process_figures import MIB, peak_memory, process_status, processor_seconds, resident_bytes, thread_seconds, threads_named
from stopped_threads import stopped_threads
from test_attacks import streams
from waiting import wait_until

ENHANCE_YOUR_CALM = 11
# A call that stays open without a message.
BATCH_HEADERS = GRPC_HEADERS.replace(b"\x24/quire.v1.GenerationService/Generate",
                                     b"\x29/quire.v1.GenerationService/BatchGenerate")


def closed_connections(daemon, cause):
    """Returns the number of connections that the daemon has closed for this cause."""
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    start = f'quire_grpc_connections_closed_total{{cause="{cause}"}} '
    return next((float(line[len(start):]) for line in metrics.splitlines() if line.startswith(start)), 0)


def connections(daemon):
    metrics = http_get(daemon.http_address, "/metrics")[1].decode()
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("quire_grpc_connections_active "))


def goaway_of(connection, timeout=20):
    """Returns (code, text) of the GOAWAY frame that closes the connection, or None if there is none."""
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
    """Asserts that the daemon's memory under attack is bounded and is released."""
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


def test_header_flood_is_closed(daemon, neighbour, bounded):
    before = closed_connections(daemon, "frames")
    end = time.monotonic() + 3
    while time.monotonic() < end:
        with begin(daemon.grpc_address) as connection:
            send_large_headers(connection)
    assert closed_connections(daemon, "frames") > before


def test_references_to_one_large_header_are_rejected(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_references(connection)
        assert is_closed(connection, 20)


def test_endless_header_blocks_are_rejected(daemon, neighbour, bounded):
    with begin(daemon.grpc_address) as connection:
        send_endless_headers(connection)
        code, text = goaway_of(connection)
        assert code == ENHANCE_YOUR_CALM and "the headers of a call have" in text


def test_rapid_resets_are_slowed_down(daemon, neighbour, bounded):
    last, answers = b"the last", b""
    with begin(daemon.grpc_address) as connection:
        start = time.monotonic()
        send_resets(connection, 5000)
        send_quietly(connection, frame(PING, 0, 0, last))
        connection.settimeout(30)
        while frame(PING, ACK, 0, last) not in answers:
            piece = connection.recv(65536)
            assert piece, answers[-200:]
            answers += piece
        assert time.monotonic() - start > 2, "2000 a second, and 256 at once"


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
            # The rejection may arrive before the last byte was sent. The stream's window then stays closed.
            client.send_data(stream, payload, timeout=1)
            assert client.wait_ended(stream), "the call is refused"
        assert client.goaway is None, "only the calls are rejected, the connection stays open"


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
    """A daemon for few connections. None is open."""
    settings = ["server.grpc.max_connections=6", "server.grpc.max_connections_per_address=5"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        wait_until(lambda: connections(daemon) == 0, "the connection that waited is closed")
        yield daemon
        assert daemon.process.poll() is None


def answer(api, daemon):
    with daemon.channel() as channel:
        return generate(api, channel)


def test_silent_connections_are_closed_oldest_first(api, small):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(small.grpc_address)) for _ in range(5)]
        assert answer(api, small)
        assert is_closed(silent[0], 5)
        assert closed_connections(small, "silent") == 1


def test_idle_connections_are_closed_oldest_first(api, small):
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Http2Client(small.grpc_address)) for _ in range(5)]
        assert all(client.wait_begun() for client in idle)
        assert answer(api, small)
        assert idle[0].wait_closed()
        assert idle[0].goaway == (0, ""), "a client without fault may reconnect"
        assert closed_connections(small, "idle") == 1


def test_simultaneous_connections_stay_within_the_limit(tmp_path):
    """The limit includes connections that are closed between the accepting thread and the serving threads."""
    with Daemon(tmp_path, settings=["server.grpc.max_connections=2"]) as daemon:
        daemon.wait_serving()
        for _ in range(6):  # not every round closes a connection at that moment
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
                wait_until(lambda: connections(daemon) <= 2, "the others have given way")


def test_busy_connections_stay_and_the_next_is_rejected(api, small):
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
        wait_until(lambda: connections(small) == 4, "a place is free again")
        assert answer(api, small)
        assert all(client.goaway is None for client in busy)


def test_connection_flood_loses_no_call(api, tmp_path):
    """Silent connections arrive by the hundred at the limit. A client that pauses between its calls is not disturbed.
    """
    with Daemon(tmp_path, settings=["server.grpc.max_connections_per_address=100"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel, contextlib.ExitStack() as stack:
            for _ in range(40):
                for _ in range(50):
                    stack.enter_context(connect(daemon.grpc_address))
                assert generate(api, channel)
            wait_until(lambda: closed_connections(daemon, "silent") > 1000, "most are closed")


@pytest.mark.parametrize("opened", [connect, begin, begin_known])
def test_port_survives_more_connections_than_descriptors(api, tmp_path, opened):
    """Opens more connections than there are descriptors: silent ones, or HTTP/2 ones that ignore GOAWAY, recognised by
    gRPC or not."""
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


def test_descriptor_table_has_its_size_from_the_start(daemon):
    """Growing the table blocks new connections for tens of milliseconds, so the daemon sets its size at start."""
    process = daemon.process.pid
    size = int(process_status(process)["FDSize"])
    assert size >= min(resource.prlimit(process, resource.RLIMIT_NOFILE)[0], 65536)


def test_connection_uses_no_grpc_resources_before_its_first_call(api, daemon):
    assert answer(api, daemon)  # the guard has now seen how gRPC starts a connection
    wait_until(lambda: connections(daemon) == 0, "that connection is closed")
    before = num_descriptors(daemon)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Http2Client(daemon.grpc_address)) for _ in range(20)]
        assert all(client.wait_begun() for client in idle)
        for client in idle:
            assert client.send(frame(PING, 0, 0, b"12345678"))
        wait_until(lambda: all(client.pongs == [b"12345678"] for client in idle), "pings are answered")
        # Four more may be open at any time for an internal call, and one for reading the figures.
        assert num_descriptors(daemon) <= before + 20 + 5
        for client in idle:
            assert client.open(1, BATCH_HEADERS)
        wait_until(lambda: streams(daemon) == 20, "a call is open on each")
        assert num_descriptors(daemon) >= before + 60 - 5
        assert all(client.goaway is None for client in idle)


def test_calling_connections_share_the_descriptors(api, tmp_path):
    """Idle connections are closed in favour of those that call. If all have calls, a new one is rejected and the others
    continue."""
    share = 65  # descriptors of the data listener: 21 connections with a call, and two without
    with Daemon(tmp_path, prefix=["prlimit", f"--nofile={512 + 256 + 2 * share}"]) as daemon:
        daemon.wait_serving()
        assert answer(api, daemon)
        wait_until(lambda: connections(daemon) == 0, "that connection is closed")
        with contextlib.ExitStack() as stack:
            idle = []
            for _ in range(50):
                idle.append(stack.enter_context(Http2Client(daemon.grpc_address)))
                assert idle[-1].wait_begun()
            busy = idle[29:]
            for count, client in enumerate(reversed(busy), 1):
                assert client.open(1, BATCH_HEADERS)
                wait_until(lambda count=count: streams(daemon) == count, "the call is open")
                if count == 10:
                    assert answer(api, daemon), "another client is served"
            wait_until(lambda: all(client.goaway == (0, "") for client in idle[:27]), "the oldest are asked to go")
            assert all(client.goaway is None for client in idle[27:])
            assert idle[28].open(1, BATCH_HEADERS)
            wait_until(lambda: idle[28].goaway, "it is told why it has no place")
            code, text = idle[28].goaway
            assert code == ENHANCE_YOUR_CALM
            assert text == f"connections with calls take all {share} descriptors that the listener may have"
            assert streams(daemon) == 21 and all(client.goaway is None for client in (idle[27], *busy))
            busy[0].close()
            wait_until(lambda: streams(daemon) == 20, "a call is over")
            assert answer(api, daemon)


def test_silent_connections_cost_serving_threads_no_time(tmp_path):
    """Thousands of connections arrive, are closed for newer ones and leave. No call waits for that work."""
    with Daemon(tmp_path, settings=["server.grpc.max_connections_per_address=200"]) as daemon:
        daemon.wait_serving()
        wait_until(lambda: connections(daemon) == 0, "the connection of the start is gone")
        pid = daemon.process.pid
        edge, all_before = thread_seconds(pid, "grpc-edge"), processor_seconds(pid)
        held = []
        while processor_seconds(pid) < all_before + 0.5:
            held += [connect(daemon.grpc_address) for _ in range(100)]
            for old in held[:-400]:
                old.close()
            del held[:-400]
        spent = processor_seconds(pid) - all_before
        for connection in held:
            connection.close()
        assert closed_connections(daemon, "silent") > 1000
        assert thread_seconds(pid, "grpc-edge") - edge < 0.1 * spent


def test_client_goaway_closes_the_connection(daemon):
    with begin(daemon.grpc_address) as connection:
        connection.sendall(frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
        connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection, 20)
    wait_until(lambda: connections(daemon) == 0, "no connection is left")


def threads_of(daemon, name):
    threads = threads_named(daemon.process.pid, name)
    assert threads, name
    return threads


def test_probes_report_which_port_does_not_answer(tmp_path):
    """The threads that serve two ports are stopped. The probe port reports that until they continue."""
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
