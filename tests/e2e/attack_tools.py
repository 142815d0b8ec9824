"""Helpers of the security and attack tests: calls, files, channels, and a concurrent stream that must not be disturbed.
"""

import hashlib
import json
import os
import socket
import subprocess
import threading

import grpc
import pytest
from daemon import QUIRE
from waiting import wait_until

PROMPT = "Once upon a time there was a dog that nobody else may read about"
ENDLESS = 50000  # tokens


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """Settings of a model whose answers take many seconds: random weights and a long context."""
    model = tmp_path_factory.mktemp("model") / "endless"
    subprocess.run([str(QUIRE), "make-model", "--shape", "tiny", "--out", str(model)], check=True, timeout=60)
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = ENDLESS + 1000
    (model / "config.json").write_text(json.dumps(config))
    return [f"model.path={model}", "model.load_mode=dummy", "kv_cache.capacity_bytes=512MiB"]


def token_line(token, tenant, scopes):
    return f"{hashlib.sha256(token.encode()).hexdigest()} {tenant} {scopes}\n"


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


def request_of(api, tokens=4, text=PROMPT, **fields):
    request = api.GenerateRequest(text=text, **fields)
    request.stopping.max_tokens = tokens
    request.stopping.ignore_eos = True
    request.sampling.temperature = 0
    request.output.stream = True
    return request


def generate(api, channel, metadata=(), **fields):
    """Returns the messages of a whole answer."""
    stub = api.GenerationServiceStub(channel)
    return list(stub.Generate(request_of(api, **fields), metadata=metadata, timeout=30))


def failure(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value


def cached_tokens(messages):
    return messages[0].started.cached_tokens


class Files:
    """The files of one daemon. write() replaces a file atomically, as an operator would."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, name, content):
        path = self.folder / name
        aside = self.folder / (name + ".new")
        aside.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(aside, path)
        return path

    def pair(self, certificate_and_key):
        certificate, key = certificate_and_key
        return [f"tls.cert_file={self.write('cert.pem', certificate)}", f"tls.key_file={self.write('key.pem', key)}"]


class Neighbour:
    """A stream that runs during an attack and must finish normally."""

    def __init__(self, api, channel, tokens=120):
        self.expected = self._text(generate(api, channel, tokens=tokens))
        self.answers = 0
        self._stop = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(api, channel, tokens))
        self._thread.start()

    @staticmethod
    def _text(messages):
        return "".join(m.delta.text for m in messages if m.HasField("delta"))

    def _run(self, api, channel, tokens):
        try:
            while not self._stop.is_set():
                assert self._text(generate(api, channel, tokens=tokens)) == self.expected
                self.answers += 1
        except BaseException as error:  # check() raises it in the test
            self._error = error

    def check(self):
        before = self.answers
        wait_until(lambda: self.answers > before or self._error, "an answer after the attack")
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


def tls_channel(daemon, authority, client=(None, None), host="localhost"):
    credentials = grpc.ssl_channel_credentials(authority.pem, client[1], client[0])
    port = daemon.grpc_address.rsplit(":", 1)[1]
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    return grpc.secure_channel(f"{host}:{port}", credentials, options=options)


def http_get(address, path, headers=""):
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n".encode())
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return int(answer.split(b" ", 2)[1]), answer


def waiting_count(api, daemon):
    with daemon.admin_channel() as channel:
        return api.AdminServiceStub(channel).GetStats(api.GetStatsRequest()).stats.waiting_count
