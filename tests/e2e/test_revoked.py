"""Removing a token from the file ends all calls of its owner and no others."""

import json
import signal
import socket
import threading
import time

import grpc
from attack_tools import (
    ENDLESS,
    PROMPT,
    Files,
    bearer,
    endless,  # noqa: F401 - a fixture
    failure,
    generate,
    request_of,
    token_line,
    waiting_count,
)
from daemon import Daemon, reason_of
from waiting import wait_until

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def test_revoked_token_ends_its_streams(api, tmp_path, endless):
    files = Files(tmp_path)
    keep = token_line("keep", "k", "generate")
    tokens = files.write("tokens", keep + token_line("revoke", "r", "generate"))
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", "scheduler.max_running_sequences=2", *endless]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            keeps = stub.Generate(request_of(api, tokens=3000), metadata=bearer("keep"))
            runs = stub.Generate(request_of(api, tokens=ENDLESS // 3), metadata=bearer("revoke"))
            next(keeps)
            next(runs)
            waits = stub.Generate(request_of(api, tokens=ENDLESS // 3), metadata=bearer("revoke"))
            is_revoked, is_over = threading.Event(), threading.Event()
            commands = batch_commands(api, is_revoked, is_over)
            items = stub.BatchGenerate(commands, metadata=bearer("revoke"), timeout=60)
            wait_until(lambda: waiting_count(api, daemon) == 2, "a call and an item wait")
            files.write("tokens", keep)
            daemon.process.send_signal(signal.SIGHUP)
            for stream in (runs, waits):
                error = failure(lambda stream=stream: list(stream))
                assert (error.code(), reason_of(error)[0]) == (UNAUTHENTICATED, "TOKEN_INVALID")
            is_revoked.set()
            reasons = []

            def read_items():
                for item in items:
                    if item.HasField("error"):
                        reasons.append(item.error.reason)

            # Only its item, one item that may still arrive in time, and the stream itself can end.
            error = failure(read_items)
            assert (error.code(), reason_of(error)[0]) == (UNAUTHENTICATED, "TOKEN_INVALID")
            assert set(reasons) == {"TOKEN_INVALID"}
            is_over.set()
            assert reason_of(failure(lambda: generate(api, channel, bearer("revoke"))))[0] == "TOKEN_INVALID"
            assert list(keeps)[-1].completed.usage.completion_tokens == 3000  # not disturbed
            # A file that does not parse changes nothing, and its content is not reported.
            files.write("tokens", "keep k generate\n")
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "auth.tokens_file" in daemon.log, "the log names the file")
            assert generate(api, channel, bearer("keep"))
            assert "keep k" not in daemon.log


def test_revoked_token_ends_silent_and_http_streams(api, tmp_path, endless):
    """A batch stream without items, WatchStats, and a stream over the OpenAI-compatible API."""
    files = Files(tmp_path)
    keep = token_line("keep", "k", "generate,admin")
    tokens = files.write("tokens", keep + token_line("revoke", "r", "generate,admin"))
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", "openai.enabled=true", "openai.listen=127.0.0.1:0",
                f"server.admin.listen=[unix:{tmp_path}/admin.sock, 127.0.0.1:0]", *endless]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        listening = json.loads(next(line for line in daemon.lines if '"listening"' in line))
        admin_address = listening["admin"].split(",")[1]
        with daemon.channel() as channel, grpc.insecure_channel(admin_address) as admin_channel:
            is_over = threading.Event()

            def silence():
                is_over.wait(60)
                yield from ()

            def batch(token):
                return api.GenerationServiceStub(channel).BatchGenerate(silence(), metadata=bearer(token), timeout=60)

            def watch(token):
                admin = api.AdminServiceStub(admin_channel)
                return admin.WatchStats(api.WatchStatsRequest(), metadata=bearer(token), timeout=60)

            kept, revoked = [batch("keep"), watch("keep")], [batch("revoke"), watch("revoke")]
            next(kept[1]), next(revoked[1])
            posts = {token: post_stream(listening["openai"], token) for token in ("keep", "revoke")}
            for connection in posts.values():
                read_until(connection, b"data: ")
            files.write("tokens", keep)
            daemon.process.send_signal(signal.SIGHUP)
            start = time.monotonic()
            for stream in revoked:
                error = failure(lambda stream=stream: list(stream))
                assert (error.code(), reason_of(error)[0]) == (UNAUTHENTICATED, "TOKEN_INVALID")
            rest = read_until(posts["revoke"], None)
            assert time.monotonic() - start < 5
            assert b'"code":"invalid_api_key"' in rest and b"[DONE]" not in rest
            assert not rest.endswith(b"0\r\n\r\n"), "the body was terminated like a complete one"
            # Streams of the other token continue.
            assert next(kept[1]).stats.total_kv_page_count > 0
            read_until(posts["keep"], b"data: ")
            is_over.set()
            assert list(kept[0]) == []
            kept[1].cancel()
            for connection in posts.values():
                connection.close()


def post_stream(address, token):
    body = json.dumps({"prompt": PROMPT, "max_tokens": ENDLESS // 3, "ignore_eos": True, "stream": True}).encode()
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (token.encode(), len(body), body))
    return connection


def read_until(connection, text):
    """Reads until `text` or the end of the stream. Returns what was read."""
    data = b""
    while text is None or text not in data:
        chunk = connection.recv(65536)
        if not chunk:
            assert text is None, data[-2000:]
            return data
        data += chunk
    return data


def batch_commands(api, is_revoked, is_over):
    """Sends one item before the token is revoked and one after. The client does not end the stream."""
    yield api.BatchGenerateRequest(generate=request_of(api, tokens=ENDLESS // 3, request_id="before"))
    is_revoked.wait(60)
    yield api.BatchGenerateRequest(generate=request_of(api, tokens=2, request_id="after"))
    is_over.wait(60)
