"""Reload: every hot key of the schema changes the behaviour of a daemon under load, and nothing else happens."""

import importlib.util
import json
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import grpc
import pytest
from daemon import QUIRE, ROOT, Daemon, reason_of

# Values at start. Pages and queues are small, so that limits are reached; deltas are one token each.
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
# Hot keys whose effect is shown elsewhere.
ELSEWHERE = {
    "auth.tokens_file": "tests/e2e/test_security.py",
    "health.engine_stall_timeout": "tests/server/serving_state_test.cc",  # needs an engine that stalls
}
covered = set()


def covers(*keys):
    covered.update(keys)
    return lambda test: test


def hot_keys():
    """The keys that the schema marks as hot."""
    spec = importlib.util.spec_from_file_location("docs", ROOT / "tools" / "write_reference_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    walked = module.walk_config(module.load()[0])
    return {path for kind, path, item in walked if kind == "key" and item.rule.get("hot") == "true"}


def to_yaml(values):
    """{"a.b": "1"} as one flow mapping for each section."""
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
    """Streams the same greedy answer again and again; whatever is admitted must end whole and equal."""

    # A limit or a drain that a test sets may refuse the load like anybody else; it is then not admitted.
    REFUSALS = {"QUEUE_FULL", "QUEUE_TIMEOUT", "TENANT_LIMIT", "SERVER_DRAINING", "SERVER_SHUTDOWN"}

    # Set by a test whose times may be too short for the load as well.
    also_allowed = set()

    def __init__(self, api, daemon, tokens=20):
        super().__init__(daemon=True)
        self.api, self.daemon = api, daemon
        self.stopping = threading.Event()
        self.whole, self.refused, self.failures, self.texts = 0, 0, [], set()
        self.tokens = tokens
        self.start()

    def run(self):
        with self.daemon.channel() as channel:
            stub = self.api.GenerationServiceStub(channel)
            while not self.stopping.is_set():
                ids = []
                try:
                    for message in stub.Generate(greedy(self.api, tokens=self.tokens), timeout=60):
                        ids.extend(message.delta.token_ids)
                    self.whole += 1
                    self.texts.add(tuple(ids))
                except grpc.RpcError as error:
                    reason = reason_of(error)[0]
                    if (not ids and reason in self.REFUSALS) or reason in Load.also_allowed:
                        self.refused += 1
                        time.sleep(0.01)
                    else:
                        self.failures.append(error)

    def finish(self):
        self.stopping.set()
        self.join(60)
        assert not self.failures, self.failures[0]
        assert len(self.texts) == 1, "answers differ"
        assert self.whole > 0


def greedy(api, text="Once upon a time", tokens=20, **output):
    """Leaves nothing to the defaults that reloads change."""
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
    """A daemon with a configuration file that the test writes again."""

    def __init__(self, api, folder, start=START):
        self.api, self.folder, self.start = api, pathlib.Path(folder), start
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


def eventually(check, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return check()


@pytest.fixture(scope="module")
def shared(api, tmp_path_factory):
    live = Live(api, tmp_path_factory.mktemp("reload"))
    load = [Load(api, live.daemon) for _ in range(3)]
    yield live
    for one in load:
        one.finish()
    assert live.daemon.process.poll() is None, live.daemon.log
    live.close()


@pytest.fixture
def live(shared):
    """Under load; the values at start are in effect again afterwards."""
    yield shared
    shared.write({})
    assert not shared.reload().errors


def occupy(live, count=3, tokens=400):
    """Long streams that hold their rows until they are cancelled, or end."""
    calls = [live.generation.Generate(greedy(live.api, f"{i} dragons met", tokens)) for i in range(count)]
    for call in calls:
        next(call)  # started
        next(call)
    return calls


def unread(live):
    """A call with more output than its connection buffers; nobody reads it, so it does not end by itself."""
    request = greedy(live.api, tokens=450, logprobs=20)
    request.sampling.choice_count = 8
    # Without probes the window stays at 64 KiB.
    live.slow_channel = grpc.insecure_channel(live.daemon.grpc_address, [("grpc.http2.bdp_probe", 0)])
    call = live.api.GenerationServiceStub(live.slow_channel).Generate(request)
    next(call)
    return call


def drop(calls):
    for call in calls:
        call.cancel()


def test_every_hot_key_is_covered():
    keys = hot_keys()
    assert len(keys) > 40
    assert keys - covered - set(ELSEWHERE) == set()
    assert (covered | set(ELSEWHERE)) - keys == set(), "not hot"


# --- limits --------------------------------------------------------------------------------------------------


@covers("limits.max_choices", "limits.max_logprobs", "limits.max_stop_sequences", "limits.max_stop_bytes")
@covers("limits.max_logit_bias_entries", "limits.max_tokens_per_request")
@pytest.mark.parametrize(
    "key, value, change",
    [
        ("limits.max_choices", "2", lambda r: setattr(r.sampling, "choice_count", 3)),
        ("limits.max_logprobs", "4", lambda r: setattr(r.output, "logprobs", 5)),
        ("limits.max_stop_sequences", "1", lambda r: r.stopping.stop.extend(["zzz", "yyy"])),
        ("limits.max_stop_bytes", "3", lambda r: r.stopping.stop.append("zzzz")),
        ("limits.max_logit_bias_entries", "1", lambda r: r.sampling.logit_bias.update({5: 0, 6: 0})),
        ("limits.max_tokens_per_request", "1024", lambda r: setattr(r.stopping, "max_tokens", 1025)),
    ],
)
def test_limits_of_a_request(live, key, value, change):
    request = greedy(live.api, tokens=4)
    change(request)
    if key != "limits.max_tokens_per_request":  # without it the context is the limit
        assert len(live.ids(request)) >= 4
        live.set(**{key.replace(".", "__"): value})
        reason, metadata, _ = live.refusal(request)
        assert reason, metadata
    else:
        request.stopping.max_tokens = 40
        live.ids(request)
        live.set(limits__max_tokens_per_request="30", limits__default_max_tokens="30")
        live.refusal(request)
    live.set(**{"limits__max_stop_bytes": "255"})
    assert len(live.ids(request)) >= 4


@covers("limits.default_max_tokens")
def test_default_max_tokens(live):
    request = greedy(live.api)
    request.stopping.ClearField("max_tokens")
    live.set(limits__default_max_tokens="7")
    assert len(live.ids(request)) == 7
    live.set(limits__default_max_tokens="9")
    assert len(live.ids(request)) == 9


@covers("limits.max_queued_requests", "limits.max_queued_tokens", "scheduler.max_running_sequences")
def test_queue_and_running_limits(live):
    live.set(scheduler__max_running_sequences="1")
    # Rows that were running may finish; afterwards one at a time.
    assert eventually(lambda: live.sum("quire_requests_running") <= 1)
    for _ in range(30):
        assert live.sum("quire_requests_running") <= 1
    live.set(scheduler__max_running_sequences="1", limits__max_queued_requests="1")
    calls = [live.generation.Generate(greedy(live.api, tokens=100)) for _ in range(6)]
    reasons = []
    for call in calls:
        try:
            list(call)
        except grpc.RpcError as error:
            reasons.append(reason_of(error)[0])
    assert reasons and set(reasons) == {"QUEUE_FULL"}
    live.set(limits__max_queued_tokens="1")
    assert live.refusal(greedy(live.api))[0] == "QUEUE_FULL"
    live.set(scheduler__max_running_sequences="16")
    assert len(live.ids(greedy(live.api))) == 20


@covers("scheduler.queue_timeout")
def test_queue_timeout(live):
    live.set(scheduler__max_running_sequences="1", scheduler__queue_timeout="1ms")
    calls = [live.generation.Generate(greedy(live.api, tokens=100)) for _ in range(6)]
    reasons = []
    for call in calls:
        try:
            list(call)
        except grpc.RpcError as error:
            reasons.append(reason_of(error)[0])
    assert reasons and set(reasons) == {"QUEUE_TIMEOUT"}


@covers("limits.max_request_duration", "stream.slow_client_timeout")
@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"limits__max_request_duration": "1s"}, "TIMEOUT"),
        ({"stream__slow_client_timeout": "1s"}, "SLOW_CLIENT"),
    ],
)
def test_times_of_a_reader_that_does_not_read(live, changes, reason):
    Load.also_allowed = {"TIMEOUT", "SLOW_CLIENT"}
    live.set(**changes)
    source = {"TIMEOUT": "deadline", "SLOW_CLIENT": "slow_client"}[reason]
    before = live.sum("quire_requests_cancelled_total", source)
    call = unread(live)
    assert eventually(lambda: live.sum("quire_requests_cancelled_total", source) > before, 25)
    with pytest.raises(grpc.RpcError) as error:
        for _ in call:
            pass
    assert reason_of(error.value)[0] == reason
    live.set(limits__max_choices="15")
    time.sleep(0.5)  # requests of the load that began under the short time
    Load.also_allowed = set()


@covers("tokenizer.max_input_bytes")
def test_max_input_bytes(live):
    text = "Once upon a time. " * 80
    assert len(live.ids(greedy(live.api, text, tokens=2))) == 2
    live.set(tokenizer__max_input_bytes="1KiB")
    assert live.refusal(greedy(live.api, text, tokens=2))[0] == "INPUT_TOO_LARGE"
    with pytest.raises(grpc.RpcError) as error:
        live.generation.Tokenize(live.api.TokenizeRequest(text=text))
    assert reason_of(error.value)[0] == "INPUT_TOO_LARGE"


# --- steps ---------------------------------------------------------------------------------------------------


def long_prompt(number, words=60):
    return f"{number} " + "Lily and Tom went to the big park. " * (words // 9)


def steps_above(live, border):
    """Steps of more tokens than a border of quire_engine_step_tokens."""
    found = live.scrape()
    total = sum(value for name, value in found.items() if name.startswith("quire_engine_step_tokens_count"))
    within = sum(
        value
        for name, value in found.items()
        if name.startswith("quire_engine_step_tokens_bucket") and f'le="{border}"' in name
    )
    assert within > 0
    return total - within


@covers("scheduler.prefill_chunk_tokens", "scheduler.max_step_tokens")
def test_step_and_chunk_sizes(live):
    prompts = iter(range(1000))

    def ask(count):
        calls = [
            live.generation.Generate(greedy(live.api, long_prompt(next(prompts), words=300), tokens=2))
            for _ in range(count)
        ]
        for call in calls:
            list(call)

    live.set(scheduler__step_time_target="10s")
    ask(4)
    assert steps_above(live, 128) > 0
    # One prompt at a time: its chunks and the load's few rows.
    live.set(scheduler__prefill_chunk_tokens="64", scheduler__step_time_target="10s")
    before = steps_above(live, 128)
    for _ in range(4):
        ask(1)
    assert steps_above(live, 128) == before
    # Many together: still within the step.
    live.set(scheduler__prefill_chunk_tokens="64", scheduler__max_step_tokens="64", scheduler__step_time_target="10s")
    before = steps_above(live, 64)
    ask(6)
    assert steps_above(live, 64) == before
    live.set(scheduler__step_time_target="10s")
    before = steps_above(live, 128)
    ask(6)
    assert steps_above(live, 128) > before


@covers("scheduler.step_time_target")
def test_step_time_target(live):
    live.set(scheduler__step_time_target="10s")
    prompts = [long_prompt(number, words=300) for number in ("red", "blue", "green", "white")]
    before = steps_above(live, 128)
    for prompt in prompts[:2]:
        live.run(greedy(live.api, prompt, tokens=2))
    assert steps_above(live, 128) > before
    live.set(scheduler__step_time_target="1ms")
    others = [Load(live.api, live.daemon, tokens=300) for _ in range(4)]  # somebody waits for every step
    time.sleep(0.3)
    before = steps_above(live, 128)
    for prompt in prompts[2:]:
        live.run(greedy(live.api, prompt, tokens=2))
    assert steps_above(live, 128) == before
    for other in others:
        other.finish()


@covers("scheduler.priority_aging_interval")
@pytest.mark.parametrize("interval, first", [("1h", "urgent"), ("100ms", "old")])
def test_priority_aging(live, interval, first):
    live.set(scheduler__max_running_sequences="1", scheduler__priority_aging_interval=interval)
    done = []

    def ask(name, priority):
        request = greedy(live.api, f"{name} and the dog", tokens=2)
        request.priority = priority
        live.run(request)
        done.append(name)

    # Greater numbers wait longer; the occupants come before both.
    occupants = []
    for i in range(8):
        request = greedy(live.api, f"{i} cats", tokens=400)
        request.priority = -100
        occupants.append(live.generation.Generate(request))
    threads = [threading.Thread(target=ask, args=("old", 3))]
    threads[0].start()
    time.sleep(0.8)
    threads.append(threading.Thread(target=ask, args=("urgent", 0)))
    threads[1].start()
    time.sleep(0.2)
    assert done == [], "the occupants are too quick"
    drop(occupants)
    assert eventually(lambda: done, 60)
    assert done[0] == first
    live.set(scheduler__priority_aging_interval="200ms")  # the load's are more urgent than `old` otherwise
    for thread in threads:
        thread.join(60)
    assert len(done) == 2


@covers("kv_cache.partial_page_reuse")
def test_partial_page_reuse(live):
    def cached(prefix, tail):
        for text in (prefix, prefix + tail):
            usage = live.run(greedy(live.api, text, tokens=2))[-1].completed.usage
        return usage.cached_tokens

    base = "The {} king had a small grey cat and a very old brown dog that slept by the door"
    assert cached(base.format("first"), ", when it rained") % 16 != 0
    live.set(kv_cache__partial_page_reuse="false")
    assert cached(base.format("second"), ", when it rained") % 16 == 0
    live.set(kv_cache__partial_page_reuse="true", limits__max_choices="15")
    assert cached(base.format("third"), ", when it rained") % 16 != 0


# --- sampling ------------------------------------------------------------------------------------------------


@covers("sampling_defaults.temperature", "sampling_defaults.top_p", "sampling_defaults.top_k")
@covers("sampling_defaults.min_p")
@pytest.mark.parametrize(
    "changes",
    [
        {"sampling_defaults__temperature": "0"},
        {"sampling_defaults__temperature": "1", "sampling_defaults__top_k": "1"},
        {"sampling_defaults__temperature": "1", "sampling_defaults__top_p": "0.000001"},
        {"sampling_defaults__temperature": "1", "sampling_defaults__min_p": "1"},
    ],
)
def test_defaults_that_leave_one_token(live, changes):
    expected = live.ids(greedy(live.api, tokens=24))

    def answers():
        found = set()
        for seed in range(4):
            request = greedy(live.api, tokens=24)
            request.ClearField("sampling")
            request.sampling.seed = seed
            found.add(tuple(live.ids(request)))
        return found

    assert len(answers()) > 1, "the model's own defaults sample"
    live.set(**changes)
    assert answers() == {tuple(expected)}


@covers("sampling_defaults.repetition_penalty", "sampling_defaults.presence_penalty")
@covers("sampling_defaults.frequency_penalty")
@pytest.mark.parametrize("name, value", [("repetition_penalty", "5"), ("presence_penalty", "2"), ("frequency_penalty", "2")])
def test_default_penalties(live, name, value):
    request = greedy(live.api, tokens=40)
    request.sampling.ClearField(name)
    without = live.ids(request)
    live.set(**{f"sampling_defaults__{name}": value})
    changed = live.ids(request)
    assert changed != without
    setattr(request.sampling, name, float(value))
    assert live.ids(request) == changed
    model = live.generation.GetModel(live.api.GetModelRequest()).model
    assert getattr(model.sampling_defaults, name) == float(value)


# --- streams, names and logs ---------------------------------------------------------------------------------


@covers("stream.interval_tokens")
def test_interval_tokens(live):
    def sizes():
        request = greedy(live.api, tokens=32)
        request.output.ClearField("stream_interval_tokens")
        return [len(m.delta.token_ids) for m in live.run(request) if m.HasField("delta")]

    assert len(sizes()) > 3
    live.set(stream__interval_tokens="16")
    assert len(sizes()) <= 3


@covers("model.aliases")
def test_aliases(live):
    request = greedy(live.api)
    request.model = "tale"
    assert live.refusal(request)[0] == "MODEL_NOT_FOUND"
    live.set(model__aliases="[tale, novel]")
    assert len(live.ids(request)) == 20
    assert live.generation.GetModel(live.api.GetModelRequest()).model.aliases == ["tale", "novel"]


@covers("logging.access_log", "logging.rate_limit_per_second", "logging.level")
def test_access_log_level_and_rate(live):
    def lines_of(count):
        """Access log lines of `count` requests with ids of their own."""
        wanted = {f"line-{time.monotonic_ns()}-{i}" for i in range(count)}
        for name in wanted:
            request = greedy(live.api, tokens=1)
            request.request_id = name
            live.run(request)
        time.sleep(0.2)
        return sum(1 for entry in live.log_lines(logger="access") if entry["request_id"] in wanted)

    assert lines_of(3) == 3
    live.set(logging__access_log="false")
    assert lines_of(3) == 0
    live.set(logging__level="error")
    assert lines_of(3) == 0
    live.set(logging__level="info")
    assert lines_of(3) == 3
    suppressed = live.sum("quire_log_lines_suppressed_total")
    live.set(logging__rate_limit_per_second="1")
    assert lines_of(10) < 10
    assert live.sum("quire_log_lines_suppressed_total") > suppressed


@covers("logging.format", "logging.file")
def test_log_format_and_file(live):
    file = live.folder / "quired.log"
    live.set(logging__format="text", logging__file=str(file))
    live.run(greedy(live.api))
    assert eventually(lambda: "info access: request finished" in file.read_text())
    live.set(logging__format="json", logging__file=str(file))
    live.run(greedy(live.api))
    # The last line may be on its way.
    assert json.loads(file.read_text().splitlines()[-2])["level"] == "info"
    # As logrotate does it: renamed, then a reload opens the name again.
    rotated = file.rename(live.folder / "quired.log.1")
    answer = live.reload()
    assert not answer.errors and not answer.changed
    live.run(greedy(live.api))
    assert eventually(lambda: file.exists() and "request finished" in file.read_text())
    size = rotated.stat().st_size
    live.run(greedy(live.api))
    assert rotated.stat().st_size == size
    # A place that cannot be opened refuses the reload, with everything beside it.
    nowhere = f"{live.file}/quired.log"  # below a file
    live.write({"logging.file": nowhere, "limits.max_choices": "1"})
    answer = live.reload()
    assert any(nowhere in error for error in answer.errors)
    request = greedy(live.api)
    request.sampling.choice_count = 2
    live.run(request)


# --- callers -------------------------------------------------------------------------------------------------


@covers("tenants.defaults.max_running_requests", "tenants.defaults.max_queued_requests")
@covers("tenants.defaults.max_queued_tokens", "tenants.entries")
@pytest.mark.parametrize(
    "changes",
    [
        {"tenants.defaults.max_queued_requests": "1"},
        {"tenants.defaults.max_queued_tokens": "1"},
        {"tenants.entries": "[{id: default, max_queued_requests: 1}]"},
    ],
)
def test_limits_of_tenants(live, api, changes):
    live.set(tenants__defaults__max_running_requests="1")
    assert eventually(lambda: live.sum("quire_requests_running") <= 1)
    for _ in range(10):
        assert live.sum("quire_requests_running") <= 1
    live.write({"tenants.defaults.max_running_requests": "1", **changes})
    if "tenants.entries" in changes:
        live.write({"tenants.entries": "[{id: default, max_running_requests: 1, max_queued_requests: 1}]"})
    assert not live.reload().errors
    calls = [live.generation.Generate(greedy(api, tokens=100)) for _ in range(6)]
    reasons = []
    for call in calls:
        try:
            list(call)
        except grpc.RpcError as error:
            reasons.append(reason_of(error)[0])
    assert reasons and set(reasons) == {"TENANT_LIMIT"}


@covers("auth.anonymous_scopes")
def test_anonymous_scopes(api, tmp_path):
    (tmp_path / "tokens").write_text("0" * 64 + " somebody generate\n")
    tokens = {"auth.mode": "token", "auth.tokens_file": str(tmp_path / "tokens")}
    live = Live(api, tmp_path, {**START, **tokens, "auth.anonymous_scopes": "[generate]"})
    try:
        assert len(live.ids(greedy(api))) == 20
        live.set(auth__anonymous_scopes="[metrics]")
        assert live.refusal(greedy(api))[0] in ("SCOPE", "TOKEN_MISSING")
        live.write({})
        assert not live.reload().errors
        assert len(live.ids(greedy(api))) == 20
    finally:
        live.close()


@covers("chat.template_file", "chat.default_template_name", "chat.default_vars", "chat.max_render_bytes")
@covers("chat.max_render_steps", "chat.escape_special_in_content")
def test_chat(api, tmp_path):
    model = pathlib.Path(shutil.copytree(ROOT / "assets" / "story", tmp_path / "model"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    templates = {
        "default": "D{{ who }}: {{ messages[0].content }}",
        "short": "S {{ messages[0].content }}",
        "loop": "{% for i in range(2000) %}{% endfor %}L",
    }
    config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    file = tmp_path / "template.jinja"
    file.write_text("F {{ messages[0].content }}")
    live = Live(api, tmp_path, {**START, "model.path": str(model)})

    def render(content="hi", template_name=""):
        chat = api.ChatPrompt(messages=[api.ChatMessage(role="user", content=content)], template_name=template_name)
        return live.generation.RenderChat(api.RenderChatRequest(chat=chat), timeout=30)

    try:
        assert render().text == "D: hi"
        live.set(chat__default_vars="'{\"who\": \"x\"}'")
        assert render().text == "Dx: hi"
        live.set(chat__default_template_name="short")
        assert render().text == "S hi"
        live.set(chat__template_file=str(file))
        assert render().text == "F hi"
        file.write_text("G {{ messages[0].content }}")  # no key changes, the file does
        assert not live.reload().errors
        assert render().text == "G hi"
        assert len(render("a" * 2000).text) > 2000
        live.set(chat__max_render_bytes="1KiB")
        with pytest.raises(grpc.RpcError):
            render("a" * 2000)
        assert render("", "loop").text == "L"
        live.set(chat__max_render_steps="1000")
        with pytest.raises(grpc.RpcError):
            render("", "loop")
        special = render("<|endoftext|>").token_ids
        live.set(chat__escape_special_in_content="true")
        assert len(render("<|endoftext|>").token_ids) > len(special)
    finally:
        live.close()


@covers("openai.max_body_bytes", "openai.allowed_origins")
def test_openai_listener(live):
    address = live.log_lines(msg="listening")[0]["openai"]

    def post(prompt, origin=""):
        body = json.dumps({"model": "story", "prompt": prompt, "max_tokens": 2, "temperature": 0})
        headers = {"Content-Type": "application/json"}
        if origin:
            headers["Origin"] = origin
        request = urllib.request.Request(f"http://{address}/v1/completions", body.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers.get("Access-Control-Allow-Origin")
        except urllib.error.HTTPError as error:
            return error.code, None

    assert post(long_prompt("Once", words=320)) == (200, None)
    live.set(openai__max_body_bytes="1KiB")
    assert post(long_prompt("Once", words=320))[0] == 413
    assert post("Once", "https://page.example")[1] is None
    live.set(openai__allowed_origins='["https://page.example"]')
    assert post("Once", "https://page.example") == (200, "https://page.example")


# --- what a reload says and refuses --------------------------------------------------------------------------


def test_a_broken_file_changes_nothing(live, api):
    config = live.admin.GetConfig(api.GetConfigRequest())
    rejected = live.sum("quire_config_reloads_total", "rejected")
    live.file.write_text("limits: {max_choices: 3\n")
    answer = live.reload()
    assert any(re.match(rf"{re.escape(str(live.file))}:\d+:\d+: ", error) for error in answer.errors)
    live.file.write_text("limits:\n  max_choices: 3\n  max_chioces: 4\n")
    answer = live.reload()
    assert list(answer.errors) == [
        f'{live.file}:3:3: unknown field "max_chioces" in limits; did you mean "max_choices"?'
    ]
    after = live.admin.GetConfig(api.GetConfigRequest())
    assert after.config_sha256 == config.config_sha256 == answer.config_sha256
    assert after.load_time == config.load_time
    assert live.sum("quire_config_reloads_total", "rejected") == rejected + 2
    request = greedy(api)
    request.sampling.choice_count = 5
    live.run(request)


def test_a_key_that_is_not_hot_refuses_everything(live, api):
    live.write({"server.http.threads": "5", "limits.max_choices": "3", "scheduler.max_running_sequences": "17"})
    answer = live.reload()
    assert {change.path for change in answer.rejected} == {"server.http.threads", "scheduler.max_running_sequences"}
    assert [change.path for change in answer.changed] == ["limits.max_choices"]
    assert len(answer.errors) == 2
    assert "changes by a restart only" in answer.errors[0]
    assert "is larger than its value at start (16)" in answer.errors[1]
    request = greedy(api)
    request.sampling.choice_count = 5
    live.run(request)


def test_dry_run_reports_only(live, api):
    before = live.admin.GetConfig(api.GetConfigRequest()).config_sha256
    counts = live.sum("quire_config_reloads_total")
    live.write({"limits.max_choices": "3"})
    answer = live.reload(dry_run=True)
    assert not answer.errors and not answer.rejected
    (change,) = answer.changed
    assert (change.path, change.old_value, change.new_value) == ("limits.max_choices", "16", "3")
    assert change.location.startswith(f"{live.file}:")
    assert answer.config_sha256 == before
    assert live.admin.GetConfig(api.GetConfigRequest()).config_sha256 == before
    assert live.sum("quire_config_reloads_total") == counts


def test_config_in_effect_is_shown_with_its_origins(live, api):
    answer = live.set(limits__max_choices="3")
    config = live.admin.GetConfig(api.GetConfigRequest())
    assert config.config_sha256 == answer.config_sha256
    assert config.origins["limits.max_choices"].startswith(f"{live.file}:")
    assert "max_choices: 3  # " in config.yaml
    assert "threads: 1  # --set" in config.yaml
    assert live.generation.GetServerInfo(api.GetServerInfoRequest()).config_sha256 == config.config_sha256
    assert abs(live.sum("quire_config_last_reload_success_timestamp_seconds") - time.time()) < 60


def test_the_client_reloads(live):
    def quire(*arguments, code):
        command = [str(QUIRE), "--admin", live.daemon.admin, "reload", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "no key has changed" in quire(code=0)
    live.write({"limits.max_choices": "3"})
    assert "would change limits.max_choices: 16 -> 3" in quire("--dry-run", code=0)
    assert "changed limits.max_choices: 16 -> 3" in quire(code=0)
    live.write({"server.http.threads": "5"})
    text = quire(code=1)
    assert "needs a restart: server.http.threads: 4 -> 5" in text and "nothing was changed" in text


def test_sighup_follows_a_link_that_moves(live):
    """As the kubelet updates a ConfigMap: a link to a folder is renamed over the old one."""
    for name, choices in (("one", 2), ("two", 3)):
        (live.folder / name).mkdir(exist_ok=True)
        (live.folder / name / "quired.yaml").write_text(to_yaml({**START, "limits.max_choices": str(choices)}))
    request = greedy(live.api)
    request.sampling.choice_count = 3

    def point_at(name):
        link = live.folder / "next"
        link.symlink_to(live.folder / name / "quired.yaml")
        link.rename(live.file)
        applied = live.sum("quire_config_reloads_total", "applied")
        live.daemon.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: live.sum("quire_config_reloads_total", "applied") == applied + 1)

    point_at("one")
    assert live.refusal(request)[0] == "BAD_SAMPLING_PARAM"
    point_at("two")
    live.run(request)
    assert live.log_lines(logger="config", msg="changed", key="limits.max_choices", to="3")


def test_fifty_reloads_during_sixteen_streams(live, api):
    streams, failures, texts = [], [], set()

    def read(number):
        ids = []
        try:
            for message in live.generation.Generate(greedy(api, tokens=400), timeout=120):
                ids.extend(message.delta.token_ids)
            texts.add(tuple(ids))
        except grpc.RpcError as error:
            failures.append(error)

    for number in range(16):
        streams.append(threading.Thread(target=read, args=(number,)))
        streams[-1].start()
    for i in range(50):
        live.write(
            {
                "limits.max_choices": str(1 + i % 15),
                "scheduler.max_running_sequences": str(1 + i % 15),
                "scheduler.max_step_tokens": str(64 + 16 * i),
                "scheduler.prefill_chunk_tokens": str(16 + 16 * (i % 3)),
                "kv_cache.partial_page_reuse": ["true", "false"][i % 2],
                "stream.slow_client_timeout": f"{20 + i}s",
                "logging.rate_limit_per_second": str(100 + i),
            }
        )
        answer = live.reload()
        assert not answer.errors and len(answer.changed) > 4
    assert any(stream.is_alive() for stream in streams), "the streams ended before the reloads"
    for stream in streams:
        stream.join(120)
    assert not failures, failures[0]
    assert len(texts) == 1


# --- life of the process -------------------------------------------------------------------------------------


@covers("shutdown.pre_drain_delay", "shutdown.drain_timeout")
def test_times_of_the_drain_are_those_in_effect(api, tmp_path):
    live = Live(api, tmp_path)
    try:
        live.set(shutdown__pre_drain_delay="1s", shutdown__drain_timeout="1s")
        call = unread(live)
        start = time.monotonic()
        live.daemon.terminate()
        time.sleep(0.5)
        assert len(live.ids(greedy(api, tokens=2))) == 2, "still admitting"
        with pytest.raises(grpc.RpcError) as error:
            time.sleep(2.5)
            for _ in call:
                pass
        assert reason_of(error.value)[0] == "SERVER_SHUTDOWN"
        assert live.daemon.wait(30) == 0
        assert 1.9 < time.monotonic() - start < 15
    finally:
        live.close()


@covers("shutdown.force_timeout")
@pytest.mark.parametrize("force", ["0s", "3s"])
def test_time_to_close_is_the_one_in_effect(api, tmp_path, force):
    live = Live(api, tmp_path)
    try:
        live.set(shutdown__force_timeout=force, shutdown__drain_timeout="0s")
        call = unread(live)  # its last write waits for a reader
        time.sleep(1)
        start = time.monotonic()
        live.daemon.terminate()
        assert live.daemon.wait(30) == 0
        took = time.monotonic() - start
        assert took < 2.5 if force == "0s" else 2.9 < took < 10
        call.cancel()
    finally:
        live.close()


def test_reload_during_a_drain(api, tmp_path):
    """It takes effect: the log, the limits after a Resume and the times of the next drain, not of this one."""
    live = Live(api, tmp_path)
    try:
        calls = occupy(live, tokens=300)
        live.admin.Drain(api.DrainRequest())
        live.set(limits__max_choices="3", shutdown__drain_timeout="0s", logging__access_log="false")
        for call in calls:
            assert sum(len(message.delta.token_ids) for message in call) > 250
        live.file.write_text("limits: [\n")
        assert live.reload().errors
        live.admin.Resume(api.ResumeRequest())
        request = greedy(api)
        request.sampling.choice_count = 4
        assert live.refusal(request)[0] == "BAD_SAMPLING_PARAM"
        assert not live.log_lines(logger="access", code="OK")
        live.daemon.terminate()
        live.daemon.process.send_signal(signal.SIGHUP)
        assert live.daemon.wait(30) == 0
    finally:
        live.close()


def test_reload_while_the_model_loads(api, tmp_path):
    """It is in effect when the first request comes."""
    file = tmp_path / "quired.yaml"
    file.write_text(to_yaml({**START, "limits.max_choices": "2"}))
    with Daemon(tmp_path, "--config", str(file)) as daemon:
        daemon.wait_listening()
        file.write_text(to_yaml({**START, "limits.max_choices": "3"}))
        with daemon.admin_channel() as channel:
            answer = api.AdminServiceStub(channel).ReloadConfig(api.ReloadConfigRequest(), timeout=30)
        assert not answer.errors
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            request = greedy(api)
            request.sampling.choice_count = 3
            list(stub.Generate(request))
            request.sampling.choice_count = 4
            with pytest.raises(grpc.RpcError) as error:
                list(stub.Generate(request))
            assert reason_of(error.value)[0] == "BAD_SAMPLING_PARAM"
