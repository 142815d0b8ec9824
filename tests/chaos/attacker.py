"""One attacker, which test_neighbours.py and measure.py start as a process: attacker.py NAME TARGET.

TARGET is JSON: the addresses, a token, and messages in hexadecimal. It says `begun` after the first round and goes on
until its standard input ends; then it says how many rounds there were. A round is one connection, or one look at many.
"""

import contextlib
import json
import os
import pathlib
import select
import struct
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent / "testing")]

import attacks  # noqa: E402
from attacks import MIB, begin, connect, send_quietly  # noqa: E402
from http2_client import (ACK, INITIAL_WINDOW_SIZE, PREFACE, SETTINGS, Http2Client, frame)  # noqa: E402
from waiting import pace  # noqa: E402

ROUND = 0.02  # seconds between two looks of an attacker whose threads or connections do the work
# What the listener of gRPC takes of one address, server.grpc.max_connections_per_address.
NUM_SILENT = 5000


class Target:
    def __init__(self, text):
        fields = json.loads(text)
        self.grpc, self.http, self.openai = fields["grpc"], fields["http"], fields["openai"]
        self.token = fields["token"]
        self.long_request = bytes.fromhex(fields["long_request"])
        self.logprobs_request = bytes.fromhex(fields["logprobs_request"])
        self.is_over = False

    @property
    def headers(self):
        """Of a call that is let in."""
        return attacks.GRPC_HEADERS + attacks.literal(b"authorization", b"Bearer " + self.token.encode())

    def post(self, path, body):
        return attacks.http_post(path, body, f"Authorization: Bearer {self.token}\r\n")


def hold(opened, count):
    """Opens connections until there are `count`; then each one that comes takes the place of the oldest."""
    held = []
    try:
        while True:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    held.append(opened())
            for old in held[:-count]:
                old.close()
            del held[:-count]
            yield
    finally:
        for connection in held:
            connection.close()


def one_by_one(opened, attack):
    """An attack by one connection, again and again; the server ends each."""
    while True:
        with contextlib.suppress(OSError), opened() as connection:
            attack(connection)
            attacks.is_closed(connection, 1)
        yield


def side_by_side(target, count, work):
    """`count` threads that do the same again and again."""
    def run():
        while not target.is_over:
            with contextlib.suppress(OSError):
                work()

    for _ in range(count):
        threading.Thread(target=run, daemon=True).start()
    while True:
        yield
        pace(ROUND)


def silent_connections(target):
    return hold(lambda: connect(target.grpc), NUM_SILENT)


def idle_connections(target):
    """Connections of HTTP/2 without a call; each takes three descriptors of the daemon."""
    return hold(lambda: begin(target.grpc), 1500)


def disconnects(target):
    """In the middle of an answer, with RST."""
    while True:
        with contextlib.suppress(OSError):
            connection = begin(target.grpc)
            send_quietly(connection, attacks.whole_call(1, target.headers, target.long_request))
            connection.recv(100)
            connection.recv(2000)
            attacks.reset(connection)
        yield


def unacknowledged_streams(target):
    return one_by_one(lambda: begin(target.grpc), attacks.send_streams)


def large_headers(target):
    return one_by_one(lambda: begin(target.grpc), attacks.send_large_headers)


def header_references(target):
    return one_by_one(lambda: begin(target.grpc), attacks.send_references)


def endless_headers(target):
    return one_by_one(lambda: begin(target.grpc), attacks.send_endless_headers)


def rapid_resets(target):
    return one_by_one(lambda: begin(target.grpc), attacks.send_resets)


def unfinished_messages(target):
    """The connection is ended when its messages have 64 MiB."""
    while True:
        with contextlib.suppress(OSError), Http2Client(target.grpc) as client:
            senders = attacks.begin_messages(client, 16, 15 * MIB)
            while not target.is_over and any(sender.is_alive() for sender in senders):
                yield
                pace(ROUND)


def compressed_messages(target):
    """64 MiB that gzip made small, in 32 calls side by side."""
    headers, payload = attacks.compressed_call()
    while True:
        with contextlib.suppress(OSError), Http2Client(target.grpc) as client:
            for stream in range(1, 65, 2):
                client.open(stream, headers)
                client.send_data(stream, payload, timeout=1)
            yield


def chunked_heads(target):
    """To the probe port: bodies of chunks that do not come, and a head of a chunk without end."""
    def opened():
        connection = connect(target.http)
        send_quietly(connection, attacks.CHUNKED_HEAD)
        return connection

    for _ in hold(opened, 300):
        with contextlib.suppress(OSError), opened() as connection:
            send_quietly(connection, b"1;" + b"x" * MIB)
        yield


def large_json(target):
    """Bodies just below the limit of their size that are all nesting, keys or numbers."""
    tools = {"type": "function", "function": {"name": "f", "parameters": {f"k{i}": i for i in range(200_000)}}}
    bodies = [
        target.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [tools]}),
        target.post("/v1/chat/completions", b'{"messages": ' + b"[" * (8 * MIB)),
        target.post("/v1/completions", b'{"prompt": [%s1]}' % (b"1," * (7 * MIB))),
    ]

    def work():
        for body in bodies:
            with connect(target.openai, timeout=30) as connection:
                send_quietly(connection, body)
                connection.recv(65536)

    return side_by_side(target, 4, work)


def unread_answers(target):
    """Calls with more output than a window holds, over connections that open no window and read nothing."""
    def opened():
        connection = begin(target.grpc)
        send_quietly(connection, b"".join(
            attacks.whole_call(stream, target.headers, target.long_request) for stream in range(1, 9, 2)))
        return connection

    held = [opened() for _ in range(8)]
    while held:
        yield
        pace(ROUND)


def unread_short_answers(target):
    """900 on each of three connections without a window: nothing of an answer can be sent, and
    stream.slow_client_timeout (2 s here) ends each. The connections stay open."""
    def opened():
        connection = connect(target.grpc)
        window = struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
        send_quietly(connection, PREFACE + frame(SETTINGS, payload=window) + frame(SETTINGS, ACK))
        for stream in range(1, 1801, 2):
            send_quietly(connection, attacks.whole_call(stream, target.headers, target.logprobs_request))
        return connection

    with contextlib.ExitStack() as held:
        for _ in range(3):
            held.enter_context(opened())
        pace(6)  # three times stream.slow_client_timeout
        while True:
            yield
            pace(ROUND)


def large_prompts(target):
    """24 at once, each as long as the context allows and each another one."""
    numbers = iter(range(1 << 30))

    def work():
        words = f"{next(numbers)} " + "once upon a time there was a dog " * 50
        with connect(target.openai, timeout=30) as connection:
            send_quietly(connection, target.post("/v1/completions", {"prompt": words, "max_tokens": 2}))
            connection.recv(65536)

    return side_by_side(target, 24, work)


def urgent_priorities(target):
    """Twelve callers of one tenant who always ask for the most urgent priority."""
    def work():
        body = {"prompt": "Once", "max_tokens": 40, "ignore_eos": True, "priority": -100}
        with connect(target.openai, timeout=30) as connection:
            send_quietly(connection, target.post("/v1/completions", body))
            connection.recv(65536)

    return side_by_side(target, 12, work)


def overload(target):
    """120 callers, five times what a daemon with 8 running and 16 waiting requests takes."""
    def work():
        body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}
        with connect(target.openai, timeout=60) as connection:
            send_quietly(connection, target.post("/v1/completions", body))
            if b" 200 " not in connection.recv(65536)[:20]:
                pace(0.05)

    return side_by_side(target, 120, work)


ATTACKS = {
    attack.__name__: attack
    for attack in (silent_connections, idle_connections, disconnects, unacknowledged_streams,
                   large_headers, header_references, endless_headers, rapid_resets, unfinished_messages,
                   compressed_messages, chunked_heads, large_json, unread_answers, unread_short_answers,
                   large_prompts, urgent_priorities)
}

LONG = {"overload": overload}


def main():
    os.nice(19)  # an attacker has a machine of its own; here it gets what the daemon and its neighbour leave
    target = Target(sys.argv[2])
    # What an attack meets later is its own affair; that it meets the daemon at all is not.
    for address in (target.grpc, target.http, target.openai):
        connect(address).close()
    rounds = 0
    with contextlib.closing((ATTACKS | LONG)[sys.argv[1]](target)) as attack:
        for _ in attack:
            rounds += 1
            if rounds == 1:
                print("begun", flush=True)
            if select.select([sys.stdin], [], [], 0)[0]:
                break
        target.is_over = True
    print(json.dumps({"rounds": rounds}), flush=True)


if __name__ == "__main__":
    main()
