"""Mistakes of new users, and what they are told. mistakes.yaml has one row per mistake.

Each row names the part of the message that says what is wrong and the part that says what to do next.

commands: `run` is a command line and `exit` its exit code. `input` is its standard input.
configurations: `file` is a configuration file, or `set` a list of settings, for quired --validate.
requests: `call` is a method of GenerationService with the fields `request`, which fails with `code`. Or `post` or `get` is a
    path of the OpenAI listener (`port: monitoring` for the other HTTP listener) with a `body`, which fails with `status`. A
    body that is a text is sent as it is. The request has a token, unless `token` is another one or "".

In commands and bodies {grpc}, {openai} and {monitoring} are addresses of the shared daemon, {admin} its control socket, {model}
is a model that it does not serve, {unused} an address where nothing listens, {folder} an empty folder, {token_file} a file
with a token, and {long} a text that is longer than the model's context.
"""

import http.client
import json
import os
import pathlib
import shlex
import socket
import socketserver
import subprocess
import threading

import grpc
import pytest
import yaml
from attack_tools import Files, bearer, failure, token_line
from daemon import QUIRE, QUIRED, TESTDATA, Daemon
from google.protobuf import json_format

ROWS = yaml.safe_load((pathlib.Path(__file__).parent / "mistakes.yaml").read_text())
TOKEN = "the-token-of-these-tests"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    tokens = Files(folder).write("tokens", token_line(TOKEN, "default", "generate,metrics"))
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", "auth.mode=token", f"auth.tokens_file={tokens}"]
    with Daemon(folder, settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def names(served, tmp_path_factory):
    """The values of the placeholders."""
    folder = tmp_path_factory.mktemp("empty")
    token_file = served.folder / "token"
    token_file.write_text(TOKEN + "\n")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # does not listen, so that nothing answers and nobody else takes the port
        yield {
            "grpc": served.grpc_address, "openai": served.openai_address, "monitoring": served.http_address,
            "admin": served.admin, "model": str(TESTDATA / "models" / "llama-gqa-tied-bf16"), "token_file": str(token_file),
            "unused": f"127.0.0.1:{listener.getsockname()[1]}", "folder": str(folder), "long": "once upon a time " * 500,
        }


def filled(value, names):
    """Replaces placeholders in all texts of a JSON value. Other braces stay."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    if isinstance(value, dict):
        return {key: filled(one, names) for key, one in value.items()}
    return value


def title(row):
    keys = ("run", "set", "file", "environment", "call", "post", "get")
    return str(next(row[key] for key in keys if row.get(key)))


def rows_of(kind):
    return pytest.mark.parametrize("row", ROWS[kind], ids=[f"{n}: {title(row)[:60]}" for n, row in enumerate(ROWS[kind])])


def check(row, names, message):
    for part in ("wrong", "remedy"):
        assert filled(row[part], names) in message, f"{part} is not in this message:\n{message}"


def test_there_are_fifty_different_mistakes_of_all_kinds():
    assert set(ROWS) == {"commands", "configurations", "requests"}
    assert all(len(rows) >= 15 for rows in ROWS.values())
    everything = [json.dumps(row, sort_keys=True) for rows in ROWS.values() for row in rows]
    assert len(everything) == len(set(everything)) >= 50
    assert all(len(row["wrong"]) > 3 and len(row["remedy"]) > 3 for rows in ROWS.values() for row in rows)


@rows_of("commands")
def test_commands(row, names):
    program, *words = shlex.split(filled(row["run"], names))
    path = {"quire": QUIRE, "quired": QUIRED}[program]
    done = subprocess.run([str(path), *words], input=row.get("input", ""), capture_output=True, text=True, timeout=60)
    assert done.returncode == row["exit"], done.stdout + done.stderr
    check(row, names, done.stdout + done.stderr)


def test_an_endless_answer_of_another_server_is_not_read():
    sent = []
    part = b"x" * 65536

    class Endless(socketserver.BaseRequestHandler):
        def handle(self):
            try:
                self.request.recv(65536)
                self.request.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")
                while True:
                    self.request.sendall(part)
                    sent.append(len(part))
            except OSError:
                pass  # the client has enough

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        done = subprocess.run([str(QUIRE), "--address", address, "models"], capture_output=True, text=True, timeout=60)
        server.shutdown()
    assert done.returncode == 3 and f"{address} is the HTTP port of another server" in done.stderr, done.stderr
    assert sum(sent) < 64 << 20  # what the buffers of the connections hold


@rows_of("configurations")
def test_configurations(row, names, tmp_path):
    command = [str(QUIRED), "--validate"]
    if "file" in row:
        (tmp_path / "quire.yaml").write_text(filled(row["file"], names))
        command += ["--config", "quire.yaml"]
    for setting in row.get("set", []):
        command += ["--set", filled(setting, names)]
    environment = {**os.environ, **row.get("environment", {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    assert done.returncode == 78, done.stdout + done.stderr
    check(row, names, done.stdout + done.stderr)


def http_answer(row, names, token):
    connection = http.client.HTTPConnection(names[row.get("port", "openai")], timeout=60)
    headers = {"Content-Type": "application/json"} if "post" in row else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    headers.update(row.get("headers", {}))
    body = filled(row.get("body"), names)
    body = body if body is None or isinstance(body, str) else json.dumps(body)
    try:
        method = "POST" if "post" in row else "GET"
        connection.request(method, row.get("post") or row["get"], None if body is None else body.encode(), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def grpc_message(api, served, row, names, token):
    with served.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        request = json_format.ParseDict(filled(row["request"], names), getattr(api, f"{row['call']}Request")())
        metadata = bearer(token) if token else ()
        call = getattr(stub, row["call"])
        answer = failure(lambda: list(call(request, metadata=metadata, timeout=60)) if row["call"] == "Generate"
                         else call(request, metadata=metadata, timeout=60))
        assert answer.code() is grpc.StatusCode[row["code"]], answer.details()
        return answer.details()


@rows_of("requests")
def test_requests(row, api, served, names):
    token = row.get("token", TOKEN)
    if "call" in row:
        check(row, names, grpc_message(api, served, row, names, token))
        return
    status, text = http_answer(row, names, token)
    assert status == row["status"], text
    try:
        error = json.loads(text)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except ValueError:
        pass  # the listener of metrics and health answers with a text
    check(row, names, text)
