"""One attacker. test_neighbours.py and measure.py start it as a process: attacker.py NAME TARGET.

TARGET is JSON with the addresses, a token, and messages in hexadecimal. The attacker prints `begun` after the first
round and continues until its standard input ends. Then it prints the number of rounds. A round handles one connection,
or polls many.
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

ROUND = 0.02  # seconds between two rounds of an attacker whose threads or connections do the work
NUM_SILENT = 5000  # the default of server.grpc.max_connections_per_address


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
        """The headers of a call that is authorized."""
        return attacks.GRPC_HEADERS + attacks.literal(b"authorization", b"Bearer " + self.token.encode())

    def post(self, path, body):
        return attacks.http_post(path, body, f"Authorization: Bearer {self.token}\r\n")


def hold(opened, count):
    """Opens connections until there are `count`. Then each new one replaces the oldest."""
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
    """Repeats an attack with one connection at a time. The server closes each connection."""
    while True:
        with contextlib.suppress(OSError), opened() as connection:
            attack(connection)
            attacks.is_closed(connection, 1)
        yield


def side_by_side(target, count, work):
    """Runs `count` threads that repeat `work`."""
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
    """HTTP/2 connections without a call. Each takes three descriptors of the daemon."""
    return hold(lambda: begin(target.grpc), 1500)


def disconnects(target):
    """Connections that are reset (RST) in the middle of an answer."""
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
    """The daemon closes the connection when its unfinished messages take 64 MiB."""
    while True:
        with contextlib.suppress(OSError), Http2Client(target.grpc) as client:
            senders = attacks.begin_messages(client, 16, 15 * MIB)
            while not target.is_over and any(sender.is_alive() for sender in senders):
                yield
                pace(ROUND)


def compressed_messages(target):
    """32 concurrent calls, each with a message of 64 MiB that gzip made small."""
    headers, payload = attacks.compressed_call()
    while True:
        with contextlib.suppress(OSError), Http2Client(target.grpc) as client:
            for stream in range(1, 65, 2):
                client.open(stream, headers)
                client.send_data(stream, payload, timeout=1)
            yield


def chunked_heads(target):
    """Sends the probe port chunked bodies without chunks, and a chunk header that does not end."""
    def opened():
        connection = connect(target.http)
        send_quietly(connection, attacks.CHUNKED_HEAD)
        return connection

    for _ in hold(opened, 300):
        with contextlib.suppress(OSError), opened() as connection:
            send_quietly(connection, b"1;" + b"x" * MIB)
        yield


def large_json(target):
    """Bodies just below the size limit that consist of nesting, keys or numbers."""
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
    """Calls with more output than a window holds, on connections that read nothing and send no WINDOW_UPDATE."""
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
    """900 calls on each of three connections with a window of 0. No byte of an answer can be sent, so
    stream.slow_client_timeout (2 s here) cancels each call. The connections stay open."""
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
    """24 concurrent prompts. All differ, and each is as long as the context allows."""
    numbers = iter(range(1 << 30))

    def work():
        words = f"{next(numbers)} " + "once upon a time there was a dog " * 50
        with connect(target.openai, timeout=30) as connection:
            send_quietly(connection, target.post("/v1/completions", {"prompt": words, "max_tokens": 2}))
            connection.recv(65536)

    return side_by_side(target, 24, work)


def urgent_priorities(target):
    """Twelve concurrent callers of one tenant, all with the most urgent priority."""
    def work():
        body = {"prompt": "Once", "max_tokens": 40, "ignore_eos": True, "priority": -100}
        with connect(target.openai, timeout=30) as connection:
            send_quietly(connection, target.post("/v1/completions", body))
            connection.recv(65536)

    return side_by_side(target, 12, work)


def overload(target):
    """120 concurrent callers, five times the capacity of a daemon with 8 running and 16 waiting requests."""
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
    # A real attacker runs on another machine. At this priority it takes only the processor time that the daemon and
    # the neighbour leave.
    os.nice(19)
    target = Target(sys.argv[2])
    # Attacks ignore errors of their connections, so this fails if the daemon cannot be reached at all.
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
