"""Attacks on a listener through one connection, and their components. They do not use gRPC, so any process can run them.

Tests check the daemon's response. tests/chaos runs each attack in a separate process next to a well-behaved client.
"""

import gzip
import json
import socket
import struct
import threading
import time

from http2_client import (CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS,
                          frame)

MIB = 1 << 20


def literal(name, value):
    """Encodes a header field without adding it to the dynamic table (RFC 7541, 6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _string(text):
    """Encodes a string (RFC 7541, 5.2 and 5.1)."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, size = len(text) - 127, b"\x7f"
    while rest >= 128:
        size += bytes([rest % 128 | 128])
        rest //= 128
    return size + bytes([rest]) + text


GRPC_HEADERS = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/quire.v1.GenerationService/Generate"),
        (b":authority", b"localhost"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    )
)


def connect(address, timeout=10, source=None):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout, source_address=source and (source, 0))


def send_quietly(connection, data):
    """Sends data. Returns False once the server has closed the connection."""
    try:
        connection.sendall(data)
        return True
    except OSError:
        return False


def is_closed(connection, timeout):
    """Returns whether the server closes the connection before the timeout. Reads and discards its data until then."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if not connection.recv(65536):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def reset(connection):
    """Closes the connection with RST, like a crashed machine or a firewall."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def begin(address, **options):
    """Opens a connection as a client that never acknowledges the server's settings."""
    connection = connect(address, **options)
    send_quietly(connection, PREFACE + frame(SETTINGS))
    return connection


def message(size, sent):
    """Returns a gRPC message of which only `sent` bytes are present."""
    return b"\x00" + struct.pack(">I", size) + b"x" * sent


def whole_call(stream, headers, request):
    """Returns the frames of a call with one message."""
    payload = b"\x00" + struct.pack(">I", len(request)) + request
    return frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, payload)


def send_streams(connection, block=GRPC_HEADERS, count=2000):
    """Opens calls and leaves them open until the server closes the connection."""
    for stream in range(1, 2 * count + 1, 2):
        if not send_quietly(connection, frame(HEADERS, END_HEADERS, stream, block)):
            return


def send_large_headers(connection):
    """Sends 6 KB of headers for each of many calls."""
    send_streams(connection, GRPC_HEADERS + b"".join(literal(b"x-%d" % i, b"y" * 100) for i in range(60)))


def send_references(connection):
    """Adds an entry of 4000 bytes to the HPACK table and sends thousands of one-byte references to it."""
    # RFC 7541, 6.2.1 defines a field with a new name. By 6.1 the newest entry of the dynamic table has index 62.
    entry = b"\x40" + _string(b"x") + _string(b"y" * 4000)
    if not send_quietly(connection, frame(HEADERS, END_HEADERS, 1, GRPC_HEADERS + entry)):
        return
    for stream in range(3, 20001, 2):
        block = GRPC_HEADERS + b"\xbe" * 16000
        if not send_quietly(connection, frame(HEADERS, END_HEADERS, stream, block)):
            return


def send_endless_headers(connection):
    """Sends a header block without an end."""
    send_quietly(connection, frame(HEADERS, 0, 1, GRPC_HEADERS))
    for _ in range(1000):
        if not send_quietly(connection, frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 100) * 100)):
            return


def send_resets(connection, count=10000):
    """Opens calls and resets each immediately. Sends all at once, because the limit is one per second."""
    cancel = b"\x00\x00\x00\x08"
    send_quietly(connection, b"".join(frame(HEADERS, END_HEADERS, stream, GRPC_HEADERS) + frame(RST_STREAM, 0, stream, cancel)
                                      for stream in range(1, 2 * count + 1, 2)))


def begin_messages(client, num_streams, size):
    """Sends messages of 16 MiB without their last bytes on parallel streams, until the server closes the connection."""
    def send(stream):
        client.send_data(stream, message(16 * MIB - 1024, size))

    senders = []
    for stream in range(1, 2 * num_streams, 2):
        if client.open(stream, GRPC_HEADERS):
            senders.append(threading.Thread(target=send, args=(stream,)))
            senders[-1].start()
    return senders


def compressed_call():
    """Returns (headers, message) of a call with 64 MiB that gzip has compressed."""
    bomb = gzip.compress(bytes(64 * MIB))
    return GRPC_HEADERS + literal(b"grpc-encoding", b"gzip"), b"\x01" + struct.pack(">I", len(bomb)) + bomb


def http_post(path, body, headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


# The chunked body of this request is never sent.
CHUNKED_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
