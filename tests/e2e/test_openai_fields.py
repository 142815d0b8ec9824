"""Errors of the OpenAI-compatible listener name the body's fields. Tools, roles and formats reach the engine unchanged.
"""

import http.client
import json
import urllib.error
import urllib.request

import pytest
from daemon import Daemon, has_structured_output, reason_of

# The template prints every role and the tools.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.thinking }}{{ m.content }}\n{% endfor %}assistant:"
)
USER = {"role": "user", "content": "hi"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields")
    (folder / "template.jinja").write_text(TEMPLATE)
    settings = (
        "openai.enabled=true", "openai.listen=127.0.0.1:0", f"chat.template_file={folder}/template.jinja",
        "chat.tool_format=hermes",
    )
    with Daemon(folder, settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def post(served):
    entries = (json.loads(line) for line in served.lines if line.startswith("{"))
    url = "http://" + next(entry for entry in entries if entry["msg"] == "listening")["openai"]

    def ask(path, body, headers=None):
        if path in (COMPLETIONS, CHAT):
            body = {"max_tokens": 1, **body}
        data = json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                try:
                    text = answer.read().decode()
                except http.client.IncompleteRead as error:  # a stream that fails ends without its last chunk
                    assert body.get("stream")
                    text = error.partial.decode()
                return answer.status, text if body.get("stream") else json.loads(text), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"], error.headers

    return ask


def call(arguments):
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    return {"messages": [USER, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "4"}]}


def schema(**more):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": [], **more}}}}


def tool(**function):
    return {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f", **function}}]}


BIG = {"maximum": 18446744073709551615}
TAGS = {"type": "structural_tag", "triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {"type": []}, "end": ""}]}
CONSTRAINED = [
    (COMPLETIONS, {"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    (COMPLETIONS, {"structured_outputs": {"json": {"type": "nothing"}}}, "structured_outputs.json"),
    (COMPLETIONS, {"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
    (COMPLETIONS, {"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    (COMPLETIONS, {"guided_regex": "["}, "guided_regex"),
    (COMPLETIONS, {"guided_choice": ["a", ""]}, "guided_choice"),
    (COMPLETIONS, {"stream": True, "guided_json": {"$ref": "#/nowhere"}}, "guided_json"),
    (COMPLETIONS, {"response_format": {"type": "json_object", "schema": {"minimum": "a"}}}, "response_format.schema"),
    (COMPLETIONS, {"response_format": TAGS}, "response_format.structures[0]"),
    (CHAT, {"messages": [USER], **schema()}, "response_format.json_schema.schema"),
    (CHAT, {**tool(parameters={"type": []}), "tool_choice": "required"}, "tools[0].function.parameters"),
    (CHAT, {**tool(parameters={"type": "string"}), "tool_choice": "required"}, "tools[0].function.parameters"),
]
PLAIN = [
    (COMPLETIONS, {"model": "nope"}, "model"),
    (COMPLETIONS, {"prompt": [99999999]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", "b " * 5000]}, "prompt[1]"),
    (COMPLETIONS, {"prompt": [[1], [2], [99999999]], "stream": True}, "prompt[2]"),
    (COMPLETIONS, {"stop": ["a", "b" * 300]}, "stop"),
    (COMPLETIONS, {"logit_bias": {"99999999": 1}}, "logit_bias"),
    (COMPLETIONS, {"stop_token_ids": [99999999]}, "stop_token_ids"),
    (COMPLETIONS, {"ignore_eos": True, "guided_choice": ["a"]}, "ignore_eos"),
    (CHAT, {"messages": [{"role": "user", "content": "b " * 5000}]}, "messages"),
    (CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (CHAT, call("{"), "messages[1].tool_calls[0].function.arguments"),
    (CHAT, call('{"a": 1} 2'), "messages[1].tool_calls[0].function.arguments"),
    (CHAT, tool(parameters=BIG), "tools[0].function.parameters"),
    (CHAT, tool(name="a.b"), "tools[0].function.name"),
    (CHAT, {"messages": [USER], "tools": tool()["tools"] * 2}, "tools"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("/v1/embeddings", {"input": ["a", "b " * 5000]}, "input[1]"),
    ("/v1/embeddings", {"input": "b " * 5000}, "input"),
    ("/v1/embeddings", {"input": [[1], []]}, "input[1]"),
    ("/v1/embeddings", {"input": [[1], [2, 99999999]]}, "input[1]"),
    ("/v1/embeddings", {"input": ["a", ""]}, "input[1]"),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
    ("/v1/embeddings", {"input": "a", "model": "nope"}, "model"),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}, "model"),
]
WORDS = ("chat.messages", "chat.tool", "stopping.", "sampling.", "constraint.", "output.", "arguments_json", "inputs")


@pytest.mark.parametrize("path, body, param", PLAIN + CONSTRAINED)
def test_errors_name_the_body_field(post, path, body, param):
    if (path, body, param) in CONSTRAINED and not has_structured_output():
        pytest.skip("the build has no structured output")
    if path == COMPLETIONS:
        body = {"prompt": "x", **body}
    status, error, _ = post(path, body)
    if status == 200 and body.get("stream"):  # another prompt of the list has started its answer
        error = json.loads(error.strip().split("\n")[-1].removeprefix("data: "))["error"]
    else:
        assert status in (400, 404, 501), error
    assert error["param"] == param and param in error["message"], error
    assert not any(word in error["message"] for word in WORDS), error


def prompt_tokens(post, **body):
    status, answer, _ = post(CHAT, body)
    assert status == 200, answer
    return answer["usage"]["prompt_tokens"]


def rendered(post, text):
    status, answer, _ = post(COMPLETIONS, {"prompt": text, "add_special_tokens": False})
    assert status == 200, answer
    return answer["usage"]["prompt_tokens"]


# Expected output of transformers 5.24 for these tools with `t | tojson`: json.dumps with ensure_ascii false.
@pytest.mark.parametrize(
    "given, printed",
    [
        ('{"type": "function", "function": {"name": "f"}}', None),
        ('{"function": {"strict": false, "return": {"z": 1.0, "a": 2}, "name": "g"}, "extra": [1e3]}',
         '{"function": {"strict": false, "return": {"z": 1.0, "a": 2}, "name": "g"}, "extra": [1000.0]}'),
        ('{"type": "function", "function": {"name": "h", "description": "\\u00fc", "parameters": {"b": {}, "a": {}}}}',
         '{"type": "function", "function": {"name": "h", "description": "ü", "parameters": {"b": {}, "a": {}}}}'),
    ],
)
def test_tools_reach_the_template_unchanged(api, served, given, printed):
    with served.channel() as channel:
        chat = api.ChatPrompt(messages=[api.ChatMessage(role="user", content="hi")])
        chat.tools.add(tool_json=given)
        request = api.GenerateRequest(chat=chat)
        request.stopping.max_tokens = 1
        request.output.echo_prompt = request.output.text = True
        answers = list(api.GenerationServiceStub(channel).Generate(request, timeout=60))
    started = next(answer.started for answer in answers if answer.HasField("started"))
    assert started.prompt_text == f"{printed or given}\nuser: hi\nassistant:"


def test_prompt_contains_only_allowed_tools(post):
    names = ("a", "b" * 20, "c" * 50)
    tools = [{"type": "function", "function": {"name": name}} for name in names]

    def tokens(given, *allowed):
        body = {"messages": [USER], "tools": given}
        if allowed:
            named = [{"type": "function", "function": {"name": name}} for name in allowed]
            body["tool_choice"] = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
        return prompt_tokens(post, **body)

    def wanted(*given):
        return rendered(post, "".join(json.dumps(tool) + "\n" for tool in given) + "user: hi\nassistant:")

    a, b, c = names
    assert tokens(tools, b) == wanted(tools[1])
    assert tokens(tools, c, a) == wanted(tools[0], tools[2])
    assert tokens(tools, a, b, c) == wanted(*tools)


@pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")
@pytest.mark.parametrize("allowed", [["b"], ["a", "c"], ["c"]])
def test_required_calls_are_of_allowed_tools(post, allowed):
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": name, "parameters": nothing}} for name in "abc"]
    named = [{"type": "function", "function": {"name": name}} for name in allowed]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    for seed in range(3):
        status, answer, _ = post(
            CHAT,
            {"messages": [USER], "tools": tools, "tool_choice": choice, "max_tokens": 300, "seed": seed,
             "parallel_tool_calls": False},
        )
        assert status == 200, answer
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        assert calls and {entry["function"]["name"] for entry in calls} <= set(allowed), answer


def test_reasoning_and_roles_reach_the_template(post):
    wanted = rendered(post, "user: hi\nassistant: because so\nsystem: be brief\ncritic: no\nassistant:")
    for name in ("reasoning_content", "reasoning", "thinking"):
        messages = [
            USER, {"role": "assistant", "content": " so", name: "because"}, {"role": "developer", "content": "be brief"},
            {"role": "critic", "content": "no"},
        ]
        assert prompt_tokens(post, messages=messages) == wanted


def test_roles_that_the_template_drops_are_rejected(tmp_path):
    (tmp_path / "template.jinja").write_text(
        "{% for m in messages %}{% if m.role in ['user', 'system'] %}{{ m.content }}{% endif %}{% endfor %}"
    )
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", f"chat.template_file={tmp_path}/template.jinja")
    with Daemon(tmp_path, settings=settings) as running:
        running.wait_serving()
        entries = (json.loads(line) for line in running.lines if line.startswith("{"))
        url = "http://" + next(entry for entry in entries if entry["msg"] == "listening")["openai"]
        for role, dropped in (("developer", False), ("critic", True), ("function", True), ("observation", True)):
            body = {"messages": [USER, {"role": role, "content": "hi"}], "max_tokens": 1}
            request = urllib.request.Request(url + CHAT, json.dumps(body).encode(), {"Content-Type": "application/json"})
            if not dropped:
                assert urllib.request.urlopen(request, timeout=60).status == 200
                continue
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=60)
            error = json.load(caught.value)["error"]
            assert caught.value.code == 400 and error["param"] == "messages[1].role", error
            assert error["message"].startswith(f'messages[1].role is "{role}"'), error


def test_invalid_request_ids_are_replaced(api, served, post):
    for odd in ("two words", "a/b?c", "x" * 200, '{"trace": 1}'):
        for path, body in ((COMPLETIONS, {"prompt": ["a", "b"]}), ("/v1/embeddings", {"input": ["a", "b"]})):
            status, _, headers = post(path, body, {"x-request-id": odd})
            assert status == 200 and len(headers["x-request-id"]) == 36
        with served.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            request = api.GenerateRequest(text="a")
            request.stopping.max_tokens = 1
            stream = stub.Generate(request, metadata=(("x-request-id", odd),), timeout=60)
            assert len(dict(stream.initial_metadata())["quire-request-id"]) == 36
            assert list(stream)
            embed = api.EmbedRequest()
            embed.inputs.add(text="a")
            assert len(stub.Embed(embed, metadata=(("x-request-id", odd),), timeout=60).embeddings) == 1
    status, _, headers = post(COMPLETIONS, {"prompt": "a"}, {"x-request-id": "Good_id.1:2-3"})
    assert status == 200 and headers["x-request-id"] == "Good_id.1:2-3"
    for body in ({"prompt": "a", "n": "x"}, {}):
        status, _, headers = post(COMPLETIONS, body, {"x-request-id": "refused"})
        assert status == 400 and headers["x-request-id"] == "refused"
    with served.channel() as channel, pytest.raises(Exception) as caught:
        # Fields of the request body are still validated.
        list(api.GenerationServiceStub(channel).Generate(api.GenerateRequest(text="a", request_id="a b"), timeout=60))
    assert reason_of(caught.value)[0] == "BAD_PARAMETER"


# In vLLM's protocol every chunk has the usage of its own choice. include_usage defaults to true.
@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
def test_every_chunk_has_the_usage(post, options):
    body = {"prompt": ["a", "b c"], "max_tokens": 6, "ignore_eos": True, "stream": True, "n": 2,
            "stream_options": {"continuous_usage_stats": True, **options}, "add_special_tokens": False}
    status, text, _ = post(COMPLETIONS, body)
    assert status == 200
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    sizes = [rendered(post, "a"), rendered(post, "b c")]
    last = {}
    for event in events[:-1]:
        index = event["choices"][0]["index"]
        counts = event["usage"]
        assert counts["completion_tokens"] >= last.get(index, 0)
        assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
        last[index] = counts["completion_tokens"]
    assert last == {0: 6, 1: 6, 2: 6, 3: 6}
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 24
    assert events[-1]["usage"]["prompt_tokens"] == sum(sizes)
    status, text, _ = post(COMPLETIONS, {**body, "stream_options": {"continuous_usage_stats": True, "include_usage": False}})
    assert '"usage"' not in text
