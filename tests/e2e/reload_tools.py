"""A daemon that is reloaded under load, and the list of the hot keys that tests cover."""

import importlib.util
import json
import pathlib
import threading
import time
import urllib.request

import grpc
import pytest
from daemon import ROOT, Daemon, reason_of
from waiting import pace, wait_until

# Values at start. Pages and queues are small so that the limits are reached. Each delta carries one token.
START = {
    "scheduler.max_running_sequences": "16",
    "scheduler.max_step_tokens": "1024",
    "scheduler.prefill_chunk_tokens": "512",
    "kv_cache.page_size": "16",
    "stream.queue_tokens": "16",
    "shutdown.pre_drain_delay": "0s",
    "logging.rate_limit_per_second": "100000",
    "logging.format": "json",
    "openai.enabled": "true",
    "openai.listen": "127.0.0.1:0",
}
# Hot keys whose effect another test covers.
ELSEWHERE = {
    "auth.tokens_file": "tests/e2e/test_security.py",
    "limits.max_queued_bytes": "tests/engine/text_stage_test.cc",  # needs a stalled text worker
    "health.engine_stall_timeout": "tests/server/serving_state_test.cc",  # needs a stalled engine
}
covered = set()


def covers(*keys):
    covered.update(keys)
    return lambda test: test


def hot_keys():
    """Returns the keys that the schema marks as hot."""
    spec = importlib.util.spec_from_file_location("docs", ROOT / "tools" / "docs" / "write_reference_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    walked = module.walk_config(module.load()[0])
    return {path for kind, path, item in walked if kind == "key" and item.rule.get("hot") == "true"}


def to_yaml(values):
    """Writes {"a.b": "1"} as one flow mapping per section."""
    tree = {}
    for path, value in values.items():
        node = tree
        *sections, name = path.split(".")
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value

    def flow(node):
        if isinstance(node, str):
            return node
        return "{" + ", ".join(f"{name}: {flow(value)}" for name, value in node.items()) + "}"

    return "".join(f"{name}: {flow(value)}\n" for name, value in tree.items())


class Load(threading.Thread):
    """Streams the same greedy answer repeatedly. Every admitted request must finish with the same text."""

    # A limit or a drain that a test sets may also reject the load's requests, which are then not admitted.
    REFUSALS = {"QUEUE_FULL", "QUEUE_TIMEOUT", "TENANT_LIMIT", "SERVER_DRAINING", "SERVER_SHUTDOWN"}

    # Set by a test whose timeouts may be too short for the load.
    also_allowed = set()

    def __init__(self, api, daemon, tokens=20, priority=0):
        super().__init__(daemon=True)
        self.api, self.daemon = api, daemon
        self.stopping = threading.Event()
        self.ended, self.whole, self.refused, self.failures, self.texts = 0, 0, 0, [], set()
        self.request = greedy(api, tokens=tokens)
        self.request.priority = priority
        self.start()

    def run(self):
        with self.daemon.channel() as channel:
            stub = self.api.GenerationServiceStub(channel)
            while not self.stopping.is_set():
                ids = []
                try:
                    for message in stub.Generate(self.request, timeout=60):
                        ids.extend(message.delta.token_ids)
                    self.whole += 1
                    self.texts.add(tuple(ids))
                except grpc.RpcError as error:
                    reason = reason_of(error)[0]
                    if (not ids and reason in self.REFUSALS) or reason in Load.also_allowed:
                        self.refused += 1
                        pace(0.01)
                    else:
                        self.failures.append(error)
                self.ended += 1

    def finish(self):
        self.stopping.set()
        self.join(60)
        assert not self.failures, self.failures[0]
        assert len(self.texts) == 1, "answers differ"
        assert self.whole > 0


def greedy(api, text="Once upon a time", tokens=20, **output):
    """A greedy request that depends on no default that reloads change."""
    request = api.GenerateRequest(text=text)
    sampling = request.sampling
    sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p = 0, 1, 0, 0
    sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty = 1, 0, 0
    sampling.seed = 1
    request.stopping.max_tokens = tokens
    request.stopping.ignore_eos = True
    request.output.stream = True
    request.output.token_ids = True
    request.output.stream_interval_tokens = 1
    for name, value in output.items():
        setattr(request.output, name, value)
    return request


class Live:
    """A daemon whose configuration file the test rewrites."""

    def __init__(self, api, folder, start=START):
        self.api, self.folder, self.start = api, pathlib.Path(folder), start
        self.load = []
        self.file = self.folder / "quired.yaml"
        self.write({})
        self.daemon = Daemon(
            folder, "--config", str(self.file), settings=["device.cpu.threads=1"], format_in_file=True
        )
        self.daemon.wait_serving()
        self.channel = self.daemon.channel()
        self.admin_channel = self.daemon.admin_channel()
        self.generation = api.GenerationServiceStub(self.channel)
        self.admin = api.AdminServiceStub(self.admin_channel)

    def close(self):
        self.channel.close()
        self.admin_channel.close()
        self.daemon.stop()

    def write(self, changes):
        text = to_yaml({**self.start, **changes})
        new = self.folder / "new.yaml"
        new.write_text(text)
        new.rename(self.file)

    def reload(self, dry_run=False):
        return self.admin.ReloadConfig(self.api.ReloadConfigRequest(dry_run=dry_run), timeout=30)

    def set(self, **changes):
        """set(limits__max_choices="2")"""
        changes = {name.replace("__", "."): value for name, value in changes.items()}
        self.write(changes)
        answer = self.reload()
        assert not answer.errors, answer.errors
        assert answer.changed
        return answer

    def request(self, name):
        """Returns the daemon's record of a live request, or None if no live request has this id."""
        listed = self.admin.ListRequests(self.api.ListRequestsRequest(page_size=1000), timeout=30)
        return next((request for request in listed.requests if request.request_id == name), None)

    def state(self, name):
        found = self.request(name)
        return found and found.state

    def run(self, request):
        return list(self.generation.Generate(request, timeout=60))

    def ids(self, request):
        ids = []
        for message in self.run(request):
            ids.extend(message.delta.token_ids)
            ids.extend(message.completed.token_ids)
        return ids

    def refusal(self, request):
        with pytest.raises(grpc.RpcError) as error:
            self.run(request)
        return reason_of(error.value)

    def scrape(self):
        with urllib.request.urlopen(f"http://{self.daemon.http_address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        lines = [line for line in text.splitlines() if line and line[0] != "#"]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def sum(self, family, needle=""):
        found = self.scrape()
        return sum(value for name, value in found.items() if name.split("{")[0] == family and needle in name)

    def log_lines(self, **fields):
        found = []
        for line in list(self.daemon.lines):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if all(entry.get(name) == value for name, value in fields.items()):
                found.append(entry)
        return found


@pytest.fixture(scope="module")
def shared(api, tmp_path_factory):
    live = Live(api, tmp_path_factory.mktemp("reload"))
    live.load = [Load(api, live.daemon) for _ in range(3)]
    yield live
    for one in live.load:
        one.finish()
    assert live.daemon.process.poll() is None, live.daemon.log
    live.close()


@pytest.fixture
def live(shared):
    """The daemon under load. The values at start are restored afterwards."""
    yield shared
    shared.write({})
    assert not shared.reload().errors


def slow_channel(daemon):
    """Disables bandwidth probes, so that the window stays at 64 KiB."""
    return grpc.insecure_channel(daemon.grpc_address, [("grpc.http2.bdp_probe", 0)])


def unread_on(api, channel):
    """A call that does not end by itself: the client does not read, and the output exceeds the connection's buffers."""
    request = greedy(api, tokens=450, logprobs=20)
    request.request_id, request.sampling.choice_count = "unread", 8
    call = api.GenerationServiceStub(channel).Generate(request)
    next(call)
    return call


def unread(live):
    live.slow_channel = slow_channel(live.daemon)
    return unread_on(live.api, live.slow_channel)


def stalled(live):
    """Like `unread`, once the connection is full. Before that a full stream drains again and more steps follow."""
    call = unread(live)
    seen = {}

    def has_stopped():
        request = live.request("unread")
        if not request or request.state != live.api.REQUEST_STATE_STALLED or request.output_tokens != seen.get("tokens"):
            seen.update(tokens=request and request.output_tokens, since=time.monotonic())
        return time.monotonic() - seen["since"] > 1

    wait_until(has_stopped, "the stream is full for a second")
    return call
