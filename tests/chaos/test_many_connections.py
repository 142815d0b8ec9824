"""A thousand connections without calls stay open, neighbours are served, and the memory is returned afterwards."""

import contextlib
import json
import os
import resource
import select
import types

import attacks
import pytest
from http2_client import Http2Client
from neighbours import SECONDS_TO_CALM_DOWN, Scene, memory_bound
from process_figures import MIB, peak_memory, resident_bytes
from waiting import comes_true, wait_until

WANTED = 1200  # gRPC takes about 22 KiB for each, and keeps a page of each for the next flood
# The limit for the daemon and for this process. Many machines allow more.
DESCRIPTORS = 20_000
# Descriptors of the daemon for all but the connections of its two gRPC listeners: server/descriptor_limit.cc.
OTHERS_OF_DAEMON = 512 + 256 + 256
OTHERS_OF_TEST = 1000
PER_CONNECTION = 3  # descriptors of the daemon
CALLERS = 20  # connections that make a call
ADDRESSES = ("127.0.0.2", "127.0.0.3")  # each may have 5000 connections


@pytest.fixture
def limits():
    """`descriptors` of each process, and `count` connections: WANTED, or fewer for want of descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if before[1] == resource.RLIM_INFINITY else min(before[1], DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    count = min(WANTED, (most - OTHERS_OF_DAEMON) // 2 // PER_CONNECTION, most - OTHERS_OF_TEST)
    if count < WANTED:
        print(f"a process may have {most} descriptors: {count} connections instead of {WANTED}")
    assert count >= 10 * CALLERS, most
    yield types.SimpleNamespace(descriptors=most, count=count)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def num_ended(sockets):
    """Returns how many of them the daemon has closed, at least in its direction."""
    poll = select.poll()
    for socket in sockets:
        poll.register(socket, select.POLLRDHUP)
    return len(poll.poll(0))


def test_all_stay_open_and_their_memory_is_returned(api, tmp_path, limits):
    scene = Scene(api, tmp_path, "many connections", prefix=["prlimit", f"--nofile={limits.descriptors}"])
    with scene.running():
        scene.calls(20)
        wait_until(lambda: scene.metric("quire_grpc_connections_active") == 0, "those calls' connection is closed")
        before, descriptors = resident_bytes(scene.pid), len(os.listdir(f"/proc/{scene.pid}/fd"))
        target = json.loads(scene.target())
        call = attacks.whole_call(1, attacks.GRPC_HEADERS + attacks.literal(b"authorization", b"Bearer a"),
                                  bytes.fromhex(target["short_request"]))
        with peak_memory(scene.pid) as peak, contextlib.ExitStack() as stack:
            callers = [stack.enter_context(Http2Client(target["grpc"])) for _ in range(CALLERS)]
            held = []
            for number in range(limits.count - CALLERS):
                source = ADDRESSES[number % len(ADDRESSES)]
                held.append(stack.enter_context(attacks.begin(target["grpc"], source=source)))
            wait_until(lambda: scene.metric("quire_grpc_connections_active") >= limits.count, "all are open")
            # 20 more for connections of the neighbour, of a probe and of the daemon to itself.
            assert len(os.listdir(f"/proc/{scene.pid}/fd")) < descriptors + PER_CONNECTION * limits.count + 20
            scene.calls(20)
            for client in callers:
                assert client.send(call)
            assert all(client.wait_ended(1) for client in callers), "their calls are served after idling"
            assert num_ended(held) == 0
            assert all(client.goaway is None for client in callers)
        assert peak.bytes < before + 64 * MIB, (before, peak.bytes)
        assert comes_true(lambda: resident_bytes(scene.pid) <= memory_bound(before), SECONDS_TO_CALM_DOWN), (
            before, peak.bytes, resident_bytes(scene.pid))
