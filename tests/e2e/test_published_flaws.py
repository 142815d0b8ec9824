"""Reproduces published vulnerabilities of the library versions in use (docs/security.md) against a daemon."""

import contextlib

import pytest
from attack_tools import generate
from attacks import GRPC_HEADERS, connect, is_closed, literal, send_quietly
from http2_client import CONTINUATION, END_HEADERS, HEADERS, PREFACE, SETTINGS, frame

MAX_FRAME = 16384  # payload bytes, before a peer allows more


def number(value, prefix_bits, first=0):
    """An HPACK integer (RFC 7541, 5.1)."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([first | value])
    out, value = bytearray([first | limit]), value - limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def long_literal(name, value):
    return b"\x00" + number(len(name), 7) + name + number(len(value), 7) + value


def request(block, stream=1):
    """The frames of one header block, split into CONTINUATION frames if it is long."""
    parts = [block[at:at + MAX_FRAME] for at in range(0, len(block), MAX_FRAME)]
    frames = b""
    for index, part in enumerate(parts):
        flags = END_HEADERS if index == len(parts) - 1 else 0
        frames += frame(CONTINUATION if index else HEADERS, flags, stream, part)
    return frames


@pytest.fixture
def serving(api, daemon):
    yield daemon
    with daemon.channel() as channel:
        assert generate(api, channel)
    assert daemon.process.poll() is None, daemon.log


@pytest.mark.parametrize("name, value", [(b"te", b"x"), (b":scheme", b"x"), (b"grpclb_client_stats", b"x")])
@pytest.mark.parametrize("kibibytes", [9, 40])
def test_headers_with_unknown_size_do_not_abort(serving, name, value, kibibytes):
    """CVE-2023-1428: sends one of these headers, then enough headers to exceed the size limit."""
    others = GRPC_HEADERS.replace(literal(b"te", b"trailers"), b"")
    if name == b":scheme":
        others = others.replace(literal(b":scheme", b"http"), b"")
    block = literal(name, value) + others + b"".join(long_literal(b"x-%d" % i, b"v" * 1000) for i in range(kibibytes))
    with contextlib.closing(connect(serving.grpc_address)) as connection:
        send_quietly(connection, PREFACE + frame(SETTINGS) + request(block))
        is_closed(connection, 0.3)
