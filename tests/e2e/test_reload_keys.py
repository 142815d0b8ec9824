"""Every hot key of the schema changes the behaviour of a daemon under load after a reload."""

import json
import pathlib
import shutil
import threading
import time
import urllib.error
import urllib.request

import grpc
import pytest
from daemon import ROOT, reason_of
from reload_tools import START, Live, Load, covers, greedy, stalled, unread
from reload_tools import live, shared  # noqa: F401 - fixtures
from waiting import comes_true, stays, wait_until


# --- limits --------------------------------------------------------------------------------------------------


@covers("limits.max_choices", "limits.max_logprobs", "limits.max_stop_sequences", "limits.max_stop_bytes")
@covers("limits.max_logit_bias_entries", "limits.max_tokens_per_request")
@pytest.mark.parametrize(
    "changes, change, reason",
    [
        ({"limits__max_choices": "2"}, lambda r: setattr(r.sampling, "choice_count", 3), "BAD_SAMPLING_PARAM"),
        ({"limits__max_logprobs": "4"}, lambda r: setattr(r.output, "logprobs", 5), "BAD_PARAMETER"),
        ({"limits__max_stop_sequences": "1"}, lambda r: r.stopping.stop.extend(["zzz", "yyy"]), "TOO_MANY_STOPS"),
        ({"limits__max_stop_bytes": "3"}, lambda r: r.stopping.stop.append("zzzz"), "TOO_MANY_STOPS"),
        ({"limits__max_logit_bias_entries": "1"}, lambda r: r.sampling.logit_bias.update({5: 0, 6: 0}),
         "BAD_SAMPLING_PARAM"),
        ({"limits__max_tokens_per_request": "30", "limits__default_max_tokens": "30"},
         lambda r: setattr(r.stopping, "max_tokens", 40), "BAD_PARAMETER"),
    ],
)
def test_request_limits(live, changes, change, reason):
    request = greedy(live.api, tokens=4)
    change(request)
    assert len(live.ids(request)) >= 4
    live.set(**changes)
    assert live.refusal(request)[0] == reason
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


def refusals_of_six(live):
    """Sends six calls at once and returns the rejection reasons."""
    calls = [live.generation.Generate(greedy(live.api, tokens=100)) for _ in range(6)]
    reasons = []
    for call in calls:
        try:
            list(call)
        except grpc.RpcError as error:
            reasons.append(reason_of(error)[0])
    return reasons


@covers("limits.max_queued_requests", "limits.max_queued_tokens", "scheduler.max_running_sequences")
def test_queue_and_running_limits(live):
    live.set(scheduler__max_running_sequences="1")
    # Rows that are running may finish. Afterwards one runs at a time.
    wait_until(lambda: live.sum("quire_requests_running") <= 1, "one request runs")
    for _ in range(30):
        assert live.sum("quire_requests_running") <= 1
    tokens = str(live.run(greedy(live.api))[0].started.prompt_tokens)  # tokens of one prompt, not of two
    for key, value in (("limits__max_queued_requests", "1"), ("limits__max_queued_tokens", tokens)):
        live.set(**{"scheduler__max_running_sequences": "1", key: value})
        assert set(refusals_of_six(live)) == {"QUEUE_FULL"}, key
    live.set(scheduler__max_running_sequences="16")
    assert len(live.ids(greedy(live.api))) == 20


@covers("scheduler.queue_timeout")
def test_queue_timeout(live):
    live.set(scheduler__max_running_sequences="1", scheduler__queue_timeout="1ms")
    assert set(refusals_of_six(live)) == {"QUEUE_TIMEOUT"}


@covers("limits.max_request_duration", "stream.slow_client_timeout")
@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"limits__max_request_duration": "1s"}, "TIMEOUT"),
        # The same time limits how long output can be read after the engine has ended the request.
        ({"stream__slow_client_timeout": "4s"}, "SLOW_CLIENT"),
    ],
)
def test_timeouts_of_a_client_that_does_not_read(live, changes, reason):
    Load.also_allowed = {"TIMEOUT", "SLOW_CLIENT"}
    live.set(**changes)
    source = {"TIMEOUT": "deadline", "SLOW_CLIENT": "slow_client"}[reason]
    before = live.sum("quire_requests_cancelled_total", source)
    call = unread(live)
    wait_until(lambda: live.sum("quire_requests_cancelled_total", source) > before, "the cancel", 25)
    with pytest.raises(grpc.RpcError) as error:
        for _ in call:
            pass
    assert reason_of(error.value)[0] == reason
    live.set(limits__max_choices="15")
    ended = [load.ended for load in live.load]
    # Requests that started under the short timeout have ended when the next request ends.
    wait_until(lambda: all(load.ended >= before + 2 for load, before in zip(live.load, ended)), "two requests each", 60)
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


@covers("limits.max_json_bytes", "limits.max_json_depth", "limits.max_json_nodes")
@pytest.mark.parametrize("key, limit", [("bytes", "1KiB"), ("depth", "8"), ("nodes", "1000")])
def test_unstructured_json_limits(live, key, limit):
    nested = {"value": [0] * 2000}
    for _ in range(10):
        nested = {"in": nested}
    request = live.api.RenderChatRequest()
    request.chat.messages.add(role="user", content="Hello")
    request.chat.template_vars.update(nested)

    assert live.generation.RenderChat(request).text
    live.set(**{f"limits__max_json_{key}": limit})
    with pytest.raises(grpc.RpcError) as error:
        live.generation.RenderChat(request)
    assert f"(limits.max_json_{key})" in error.value.details()


# --- steps ---------------------------------------------------------------------------------------------------


def long_prompt(number, words=60):
    return f"{number} " + "Lily and Tom went to the big park. " * (words // 9)


def steps_above(live, border):
    """Returns the number of steps with more tokens than a bucket bound of quire_engine_step_tokens."""
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
    # With one prompt at a time, a step has its chunk and the few rows of the load.
    live.set(scheduler__prefill_chunk_tokens="64", scheduler__step_time_target="10s")
    before = steps_above(live, 128)
    for _ in range(4):
        ask(1)
    assert steps_above(live, 128) == before
    # With many prompts, a step still stays within the limit.
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
    numbers = iter(range(1000))

    def ask():
        """Runs a prompt that is not cached. Returns its number of steps with more than 128 tokens."""
        before = steps_above(live, 128)
        live.run(greedy(live.api, long_prompt(f"Target {next(numbers)}:", words=300), tokens=2))
        return steps_above(live, 128) - before

    def ask_during_a_stream():
        """Like ask(), but returns None if the stream did not wait for every step of the prompt."""
        request = greedy(live.api, tokens=480, stream=False)
        request.request_id = f"beside-{next(numbers)}"
        call = live.generation.Generate(request)

        def decodes():
            return live.state(request.request_id) == live.api.REQUEST_STATE_DECODE

        large_steps = ask() if comes_true(decodes, 1) else None
        waited_for_all = decodes()
        call.cancel()
        return large_steps if waited_for_all else None

    live.set(scheduler__step_time_target="10s")
    assert ask() + ask() > 0
    live.set(scheduler__step_time_target="1ms")
    found = [ask_during_a_stream() for _ in range(20)]
    assert any(steps is not None for steps in found)
    assert not any(found)


@covers("scheduler.priority_aging_interval")
@pytest.mark.parametrize("interval, first", [("1h", "urgent"), ("100ms", "old")])
def test_priority_aging(live, interval, first):
    # The request keeps its rows while its client does not read, so nothing else starts until it is cancelled.
    live.set(stream__slow_client_timeout="1h")
    occupant = stalled(live)
    live.set(stream__slow_client_timeout="1h", scheduler__max_running_sequences="1",
             scheduler__priority_aging_interval=interval)
    scheduled = {}

    def ask(name, priority):
        request = greedy(live.api, f"{name} and the dog", tokens=2)
        request.request_id, request.priority = name, priority
        scheduled[name] = live.run(request)[0].started.schedule_time.ToNanoseconds()

    def begin(name, priority):
        """Returns its thread and the time of its acceptance, once it waits for its first step."""
        thread = threading.Thread(target=ask, args=(name, priority))
        thread.start()
        wait_until(lambda: live.state(name) == live.api.REQUEST_STATE_QUEUED, f"{name} waits")
        return thread, live.request(name).accept_time.ToNanoseconds()

    old, accepted = begin("old", 3)  # greater numbers are less urgent
    # `old` waits eight intervals of 100 ms longer than `urgent`, whenever the two are compared.
    wait_until(lambda: time.time_ns() > accepted + 800_000_000, "`old` has waited")
    urgent, _ = begin("urgent", 0)
    assert not scheduled
    occupant.cancel()
    wait_until(lambda: first in scheduled, f"{first} ends", 60)
    live.set(scheduler__priority_aging_interval="200ms")  # otherwise the load's requests are more urgent than `old`
    for thread in (old, urgent):
        thread.join(60)
    assert min(scheduled, key=scheduled.get) == first and len(scheduled) == 2


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
def test_sampling_defaults_that_leave_one_token(live, changes):
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
@pytest.mark.parametrize(
    "name, value", [("repetition_penalty", "5"), ("presence_penalty", "2"), ("frequency_penalty", "2")]
)
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
def test_stream_interval_tokens(live):
    def sizes():
        """Returns the token counts of all deltas but the last. A server that is late sends more than the minimum."""
        request = greedy(live.api, tokens=40)
        request.output.ClearField("stream_interval_tokens")
        return [len(m.delta.token_ids) for m in live.run(request) if m.HasField("delta")][:-1]

    wait_until(lambda: any(size < 16 for size in sizes()), "a short Delta", 60)
    live.set(stream__interval_tokens="16")
    assert all(size >= 16 for size in sizes())


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
        """Returns the access log lines of `count` requests with unique ids."""
        wanted = {f"line-{time.monotonic_ns()}-{i}" for i in range(count)}
        for name in wanted:
            request = greedy(live.api, tokens=1)
            request.request_id = name
            live.run(request)
        return lambda: sum(1 for entry in live.log_lines(logger="access") if entry["request_id"] in wanted)

    def has_lines():
        lines = lines_of(3)
        wait_until(lambda: lines() == 3, "three lines")

    def has_no_lines():
        lines = lines_of(3)
        stays(lambda: lines() == 0, 0.2, "a request that has ended gets a line yet")

    has_lines()
    live.set(logging__access_log="false")
    has_no_lines()
    live.set(logging__level="error")
    has_no_lines()
    live.set(logging__level="info")
    has_lines()
    suppressed = live.sum("quire_log_lines_suppressed_total")
    live.set(logging__rate_limit_per_second="1")
    lines = lines_of(10)
    wait_until(lambda: live.sum("quire_log_lines_suppressed_total") > suppressed, "lines are left out")
    stays(lambda: lines() < 10, 0.2, "a line that was left out comes later")


@covers("logging.format", "logging.file")
def test_log_format_and_file(live):
    file = live.folder / "quired.log"
    live.set(logging__format="text", logging__file=str(file))
    live.run(greedy(live.api))
    wait_until(lambda: "info access: request finished" in file.read_text(), "a line of text")
    live.set(logging__format="json", logging__file=str(file))
    live.run(greedy(live.api))
    wait_until(lambda: '"msg":"request finished"' in file.read_text(), "a line of JSON")
    assert json.loads(next(line for line in file.read_text().splitlines() if '"msg"' in line))["level"] == "info"
    # Rotates like logrotate: renames the file, then a reload opens the name again.
    rotated = file.rename(live.folder / "quired.log.1")
    answer = live.reload()
    assert not answer.errors and not answer.changed
    live.run(greedy(live.api))
    wait_until(lambda: file.exists() and "request finished" in file.read_text(), "a line in the new file")
    size = rotated.stat().st_size
    live.run(greedy(live.api))
    assert rotated.stat().st_size == size
    # A path that cannot be opened rejects the reload with all its other changes.
    nowhere = f"{live.file}/quired.log"  # a path below a file
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
        {"tenants.defaults.max_queued_tokens": "TOKENS"},  # tokens of one prompt, not of two
        {"tenants.entries": "[{id: default, max_queued_requests: 1}]"},
    ],
)
def test_tenant_limits(live, api, changes):
    tokens = str(live.run(greedy(api))[0].started.prompt_tokens)
    changes = {key: value.replace("TOKENS", tokens) for key, value in changes.items()}
    live.set(tenants__defaults__max_running_requests="1")
    wait_until(lambda: live.sum("quire_requests_running") <= 1, "one request runs")
    for _ in range(10):
        assert live.sum("quire_requests_running") <= 1
    live.write({"tenants.defaults.max_running_requests": "1", **changes})
    if "tenants.entries" in changes:
        live.write({"tenants.entries": "[{id: default, max_running_requests: 1, max_queued_requests: 1}]"})
    assert not live.reload().errors
    assert set(refusals_of_six(live)) == {"TENANT_LIMIT"}


@covers("tenants.defaults.most_urgent_priority")
def test_most_urgent_tenant_priority(live, api):
    request = greedy(api, tokens=2)
    request.priority = -6
    assert len(live.ids(request)) == 2
    live.set(tenants__defaults__most_urgent_priority="-5")
    reason, metadata = live.refusal(request)[:2]
    assert reason == "BAD_PARAMETER" and metadata["field"] == "priority"
    assert metadata["value"] == "-6" and metadata["range"] == "-5 to 100"
    request.priority = -5
    assert len(live.ids(request)) == 2


@covers("auth.anonymous_scopes")
def test_anonymous_scopes(api, tmp_path):
    (tmp_path / "tokens").write_text("0" * 64 + " somebody generate\n")
    tokens = {"auth.mode": "token", "auth.tokens_file": str(tmp_path / "tokens")}
    live = Live(api, tmp_path, {**START, **tokens, "auth.anonymous_scopes": "[generate]"})
    try:
        assert len(live.ids(greedy(api))) == 20
        live.set(auth__anonymous_scopes="[metrics]")
        assert live.refusal(greedy(api))[0] == "TOKEN_MISSING"
        live.write({})
        assert not live.reload().errors
        assert len(live.ids(greedy(api))) == 20
    finally:
        live.close()


@covers("chat.template_file", "chat.default_template_name", "chat.default_vars", "chat.max_render_bytes")
@covers("chat.max_render_steps", "chat.escape_special_in_content", "chat.tool_format")
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

    def capabilities():
        return set(live.generation.GetModel(api.GetModelRequest(), timeout=30).model.capabilities)

    try:
        assert render().text == "D: hi"
        live.set(chat__default_vars="'{\"who\": \"x\"}'")
        assert render().text == "Dx: hi"
        live.set(chat__default_template_name="short")
        assert render().text == "S hi"
        live.set(chat__template_file=str(file))
        assert render().text == "F hi"
        file.write_text("G {{ messages[0].content }}")  # no key changes, but the file does
        assert not live.reload().errors
        assert render().text == "G hi"
        assert len(render("a" * 2000).text) > 2000
        live.set(chat__max_render_bytes="1KiB")
        with pytest.raises(grpc.RpcError) as error:
            render("a" * 2000)
        assert reason_of(error.value)[0] == "INPUT_TOO_LARGE"
        assert render("", "loop").text == "L"
        live.set(chat__max_render_steps="1000")
        with pytest.raises(grpc.RpcError) as error:
            render("", "loop")
        assert reason_of(error.value)[0] == "BAD_CHAT_TEMPLATE_INPUT"
        assert not {"tools", "reasoning"} & capabilities()
        live.set(chat__tool_format="hermes")
        assert {"tools", "reasoning"} & capabilities() == {"tools"}  # the template has no reasoning markers
        file.write_text("G {{ messages[0].content }}{% if false %}<think>{% endif %}")
        live.set(chat__tool_format="hermes", chat__template_file=str(file))
        assert {"tools", "reasoning"} <= capabilities()
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
    assert post("Once", "https://page.example") == (403, None)
    live.set(openai__allowed_origins='["https://page.example"]')
    assert post("Once", "https://page.example") == (200, "https://page.example")


@covers("openai.unknown_fields", "chat.max_request_template_bytes")
def test_request_fields(live):
    url = f"http://{live.log_lines(msg='listening')[0]['openai']}/v1/chat/completions"

    def post(**fields):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **fields}
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    assert [post(temperture=1), post(chat_template="Hello")] == [400, 200]
    live.set(openai__unknown_fields="warn", chat__max_request_template_bytes="0")
    assert [post(temperture=1), post(chat_template="Hello")] == [200, 400]


# --- structured output ---------------------------------------------------------------------------------------


def constrained(api, name):
    """A request whose constraint takes about 100 ms to compile. Each `name` gives a different constraint."""
    request = greedy(api, tokens=2)
    request.stopping.ClearField("ignore_eos")
    properties = {f"{name}{i}": {"type": "string", "format": "date-time"} for i in range(60)}
    request.constraint.json_schema = json.dumps({"type": "object", "properties": properties})
    return request


@covers("structured.max_schema_bytes", "structured.max_compiled_bytes")
@pytest.mark.parametrize(
    "key, value", [("max_schema_bytes", "1KiB"), ("max_compiled_bytes", "64KiB")]
)
def test_constraint_limits(live, key, value):
    before, after = constrained(live.api, f"{key}_a"), constrained(live.api, f"{key}_b")
    assert len(live.ids(before)) == 2
    live.set(**{f"structured__{key}": value})

    with pytest.raises(grpc.RpcError) as error:
        live.run(after)
    assert reason_of(error.value)[0] == "BAD_CONSTRAINT" and f"structured.{key}" in error.value.details()
    live.set(limits__max_choices="15")  # this key does not limit constraints; the tested key has its start value again
    assert len(live.ids(after)) == 2


@covers("structured.cache_bytes")
def test_constraint_cache_size(live):
    request = constrained(live.api, "kept")
    found = lambda: [live.sum("quire_constraint_cache_total", result) for result in ("hit", "miss")]
    live.run(request)
    hits, misses = found()
    live.run(request)
    assert found() == [hits + 1, misses] and live.sum("quire_constraint_cache_bytes") > 0
    live.set(structured__cache_bytes="0")
    assert live.sum("quire_constraint_cache_bytes") == 0
    live.run(request)
    live.run(request)
    assert found() == [hits + 1, misses + 2] and live.sum("quire_constraint_cache_bytes") == 0
