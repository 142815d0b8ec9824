"""Requests that are too large for the memory that is left are refused, and the daemon goes on."""

import http.client
import json
import re
import resource

import grpc
import pytest
from attack_tools import failure, generate
from daemon import Daemon, reason_of

MIB = 1 << 20
NO_MEMORY = (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_MEMORY")
LIMITS = ["server.grpc.max_receive_message_bytes=64MiB", "openai.max_body_bytes=64MiB"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", "tokenizer.max_input_bytes=64MiB", *LIMITS]
    with Daemon(tmp_path_factory.mktemp("small"), settings=settings) as running:
        running.wait_serving()
        listening = next(line for line in running.lines if '"listening"' in line)
        running.openai_address = json.loads(listening)["openai"]
        yield running


class Scarcity:
    """While it lasts, the daemon gets `room` bytes of addresses beyond what it has."""

    def __init__(self, daemon, room):
        self.pid = daemon.process.pid
        self.room = room

    def __enter__(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            taken = int(re.search(r"^VmSize:\s+(\d+) kB", status.read(), re.MULTILINE).group(1)) * 1024
        self.before = resource.prlimit(self.pid, resource.RLIMIT_AS)
        resource.prlimit(self.pid, resource.RLIMIT_AS, (taken + self.room, self.before[1]))

    def __exit__(self, *_):
        resource.prlimit(self.pid, resource.RLIMIT_AS, self.before)


def post(daemon, body):
    connection = http.client.HTTPConnection(daemon.openai_address, timeout=60)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content.get("error", {}).get("code", "")


def serves(api, daemon):
    with daemon.channel() as channel:
        assert generate(api, channel)
    assert post(daemon, json.dumps({"prompt": "Once", "max_tokens": 2})) == (200, "")
    assert daemon.process.poll() is None, daemon.log[-4000:]


def refusal(call):
    error = failure(call)
    return error.code(), reason_of(error)[0]


def test_large_json_bodies(api, daemon):
    """A list of numbers takes eight times its text, and its reader as much again when it ends."""
    serves(api, daemon)
    with Scarcity(daemon, 160 * MIB):
        assert post(daemon, b'{"prompt": [%s1]}' % (b"1," * (24 * MIB))) == (503, "NO_MEMORY")
        # A text that no tokens make short enough; there may be memory to see that.
        answer = post(daemon, b'{"prompt": "%s"}' % (b"x" * (60 * MIB)))
        assert answer in ((400, "PROMPT_TOO_LONG"), (503, "NO_MEMORY")), answer
        serves(api, daemon)
    serves(api, daemon)


def test_large_messages(api, daemon):
    serves(api, daemon)
    ids = api.GenerateRequest()
    ids.token_ids.ids.extend([1] * (60 * MIB))
    with daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        assert list(stub.ListModels(api.ListModelsRequest()).models)
        with Scarcity(daemon, 160 * MIB):
            assert refusal(lambda: list(stub.Generate(ids))) == NO_MEMORY
            serves(api, daemon)
        with Scarcity(daemon, 100 * MIB):
            assert refusal(lambda: stub.Cancel(api.CancelRequest(request_id="a" * (60 * MIB)))) == NO_MEMORY
            serves(api, daemon)
    serves(api, daemon)
