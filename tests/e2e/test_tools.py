"""Tool calls and reasoning with the official openai client and over gRPC, from models that generate scripted answers.
"""

import json
import re
import subprocess

import openai
import pydantic
import pytest
from attack_tools import failure, http_get
from daemon import QUIRE, QUIRED, Daemon, has_structured_output
from scripted_model import write_scripted_model
from waiting import wait_until

pytest_plugins = ["python_package"]

needs_structured_output = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")

# Maps the user's message to the model's answer.
ANSWERS = {
    "What is the weather like in Paris today?":
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris, France"}}\n</tool_call>',
    "Compare Bogotá and Oslo.":
        '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Bogotá, Colombia"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Oslo </tool_call> Norway"}}\n</tool_call>',
    "Erase the disk.": 'Hm: <tool_call>{"name": "erase_disk", "arguments": {}}</tool_call> That was it.',
    "Think first.": "<think>Rain needs clouds, and </thin air has none.</think>It stays dry.",
    "Say no more.": 'I know <tool_call> only as words, and {"name": 1}.',
}
AFTER_TOOL = "It is 14 degrees in Paris."
QUESTIONS = list(ANSWERS)

# Follows Qwen's template: the tools, calls and results of the conversation, then the opener of the answer.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Return <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}
{%- if messages[-1].role == 'tool' %}<|result|>
{%- elif opens is defined %}<|think|><think>
{%- OPENERS %}{%- endif %}
{%- if closes is defined %}<think>

</think>

{% endif %}
{%- endif %}"""

TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get current temperature for a given location.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": "City and country e.g. Bogotá, Colombia"}},
            "required": ["location"],
            "additionalProperties": False,
        },
    },
}]
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]


def started(folder, *settings):
    return Daemon(folder, settings=("openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.dtype=f32", *settings))


def client_of(running):
    return openai.OpenAI(base_url=f"http://{running.openai_address}/v1", api_key="x", max_retries=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    openers = {question: f"<|say {index}|>" for index, question in enumerate(QUESTIONS)}
    branches = (f"{{%- elif messages[-1].content == {json.dumps(question, ensure_ascii=False)} %}}{opener}\n"
                for question, opener in openers.items())
    template = TEMPLATE.replace("{%- OPENERS %}", "".join(branches))
    scripts = {"<|result|>": AFTER_TOOL, **{openers[question]: text for question, text in ANSWERS.items()}}
    return write_scripted_model(tmp_path_factory.mktemp("scripted"), scripts, template=template, plain=["<think>"])


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    with started(tmp_path_factory.mktemp("tools"), f"model.path={model}") as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def client(served):
    with client_of(served) as made:
        yield made


@pytest.fixture
def service(api, served):
    with served.channel() as channel:
        yield api.GenerationServiceStub(channel)


def ask(client, question, **more):
    arguments = {"tools": TOOLS, **more}
    return client.chat.completions.create(model="", messages=[{"role": "user", "content": question}], **arguments)


def joined(chunks):
    """Returns content, reasoning, calls and finish reason of a stream, joined as OpenAI documents it."""
    content, reasoning, calls, word = "", "", {}, None
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            if call.index in calls:
                calls[call.index].function.arguments += call.function.arguments
            else:
                calls[call.index] = call
        word = choice.finish_reason or word
    return content, reasoning, [calls[index] for index in sorted(calls)], word


def test_documented_round_trip(client):
    """OpenAI's function-calling example: a call, its result, the answer."""
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    completion = client.chat.completions.create(model="", messages=messages, tools=TOOLS)
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look.\n"
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.function.name == "get_weather"
    assert call.function.arguments == '{"location": "Paris, France"}'
    assert len(call.id) == 29 and call.id.startswith("call_") and int(call.id[5:], 16) >= 0
    messages.append(choice.message)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "14"})
    second = client.chat.completions.create(model="", messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == AFTER_TOOL and second.choices[0].message.tool_calls is None
    assert second.choices[0].finish_reason == "stop"


def test_round_trip_in_the_older_spelling(client):
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    arguments = {"model": "", "messages": messages, "functions": [tool["function"] for tool in TOOLS]}
    choice = client.chat.completions.create(**arguments).choices[0]
    assert choice.finish_reason == "function_call" and choice.message.content == "Let me look.\n"
    call = choice.message.function_call
    assert (call.name, call.arguments) == ("get_weather", '{"location": "Paris, France"}')
    assert choice.message.tool_calls is None
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**arguments, stream=True)]
    calls = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
    assert [(call.name, call.arguments) for call in calls] == [(call.name, call.arguments)]
    assert chunks[-1].finish_reason == "function_call"
    messages.append(choice.message)
    messages.append({"role": "function", "name": "get_weather", "content": "14"})
    assert client.chat.completions.create(**arguments).choices[0].message.content == AFTER_TOOL
    # The older spelling has one call per answer.
    messages[:] = [{"role": "user", "content": QUESTIONS[1]}]
    call = client.chat.completions.create(**arguments).choices[0].message.function_call
    assert json.loads(call.arguments)["location"] == "Bogotá, Colombia"


@pytest.mark.parametrize("question", QUESTIONS)
def test_stream_equals_the_whole_answer(client, question):
    whole = ask(client, question, n=2)
    assert len({call.id for choice in whole.choices for call in choice.message.tool_calls or []}) == sum(
        len(choice.message.tool_calls or []) for choice in whole.choices)
    for choice in whole.choices:
        content, reasoning, calls, word = joined(ask(client, question, stream=True))
        message = choice.message
        assert content == (message.content or "") and word == choice.finish_reason
        assert reasoning == (getattr(message, "reasoning_content", None) or "")
        assert [(c.function.name, c.function.arguments) for c in calls] == [
            (c.function.name, c.function.arguments) for c in message.tool_calls or []]


def test_answers_have_calls_and_reasoning(client):
    both = ask(client, QUESTIONS[1]).choices[0]
    assert both.message.content is None and both.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments)["location"] for call in both.message.tool_calls] == [
        "Bogotá, Colombia", "Oslo </tool_call> Norway"]
    for question in (QUESTIONS[2], QUESTIONS[4]):
        plain = ask(client, question).choices[0]
        assert plain.message.content == ANSWERS[question] and plain.message.tool_calls is None
        assert plain.finish_reason == "stop"
    thought = ask(client, QUESTIONS[3])
    assert thought.choices[0].message.reasoning_content == "Rain needs clouds, and </thin air has none."
    assert thought.choices[0].message.content == "It stays dry."
    assert 0 < thought.usage.completion_tokens_details.reasoning_tokens < thought.usage.completion_tokens
    without = ask(client, QUESTIONS[0], tools=openai.NOT_GIVEN).choices[0]
    assert without.message.content == ANSWERS[QUESTIONS[0]] and without.finish_reason == "stop"


def test_reasoning_opened_by_the_template(client):
    answer = ask(client, QUESTIONS[0], extra_body={"chat_template_kwargs": {"opens": True}}).choices[0].message
    assert answer.reasoning_content == "Rain needs clouds, and </thin air has none."
    assert answer.content == "It stays dry."


@needs_structured_output
def test_optional_strict_tools(client):
    """Output that fits the format is unchanged. Output that does not fit is never generated."""
    for question in (QUESTIONS[0], QUESTIONS[1], QUESTIONS[3]):
        for more in ({}, {"extra_body": {"chat_template_kwargs": {"opens": True}}}):
            free, held = (ask(client, question, tools=tools, **more).choices[0] for tools in (TOOLS, STRICT))
            assert held.finish_reason == free.finish_reason and held.message.content == free.message.content
            assert getattr(held.message, "reasoning_content", None) == getattr(free.message, "reasoning_content", None)
            calls = [[(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
                     for choice in (free, held)]
            assert calls[0] == calls[1]
    for question in (QUESTIONS[2], QUESTIONS[4]):
        choice = ask(client, question, tools=STRICT, max_tokens=200).choices[0]
        text = choice.message.content or ""
        assert "erase_disk" not in text and text != ANSWERS[question]
        if "<tool_call>" in text:
            assert choice.finish_reason == "length" and re.search(r'<tool_call>\n\{"name": "get_weather", "arguments": \{', text)
        for call in choice.message.tool_calls or []:
            assert list(json.loads(call.function.arguments)) == ["location"]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, QUESTIONS[0], tools=STRICT, response_format={"type": "json_object"})
    assert caught.value.param == "response_format"
    bad = [{"type": "function", "function": {"name": "f", "parameters": {"minimun": 1}, "strict": True}}]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, QUESTIONS[0], tools=[*TOOLS, *bad])
    assert caught.value.param == "tools[1].function.parameters" and "/minimun" in caught.value.message


@needs_structured_output
def test_constraint_starts_after_or_before_the_reasoning(api, service):
    def answer(question, regex, start, **chat):
        request = api.GenerateRequest(output=api.OutputOptions(parse=True))
        request.constraint.MergeFrom(api.Constraint(regex=regex, start=start))
        request.chat.messages.add(role="user", content=question)
        request.chat.template_vars.update(chat)
        return list(service.Generate(request))[-1].completed

    for question, chat in ((QUESTIONS[3], {}), (QUESTIONS[0], {"opens": True})):
        held = answer(question, "It stays (?:dry|wet)\\.", api.CONSTRAINT_START_AFTER_REASONING, **chat)
        assert (held.reasoning_text, held.text) == ("Rain needs clouds, and </thin air has none.", "It stays dry.")
        assert held.finish_reason == api.FINISH_REASON_CONSTRAINT_DONE
    first = answer(QUESTIONS[3], "[0-9]{3}", api.CONSTRAINT_START_AT_START)
    assert re.fullmatch("[0-9]{3}", first.text) and not first.reasoning_text


@needs_structured_output
@pytest.mark.parametrize("stream", [False, True])
def test_response_format_applies_after_the_reasoning(client, stream):
    def answer(question, regex, **chat):
        more = {"extra_body": {"guided_regex": regex, "chat_template_kwargs": chat}, "stream": stream, "max_tokens": 40}
        if stream:
            content, reasoning, _, word = joined(ask(client, question, **more))
            return reasoning, content, word
        choice = ask(client, question, **more).choices[0]
        return getattr(choice.message, "reasoning_content", None) or "", choice.message.content, choice.finish_reason

    thought = "Rain needs clouds, and </thin air has none."
    # The section is opened by the prompt, opened by the model, or closed by the prompt.
    assert answer(QUESTIONS[0], "It stays (?:dry|wet)\\.", opens=True) == (thought, "It stays dry.", "stop")
    assert answer(QUESTIONS[3], "It stays (?:dry|wet)\\.") == (thought, "It stays dry.", "stop")
    reasoning, content, word = answer(QUESTIONS[3], "[0-9<]{3}", closes=True)
    assert (reasoning, word) == ("", "stop") and re.fullmatch("[0-9<]{3}", content)
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "It stays dry."}}}
    opened = {"chat_template_kwargs": {"opens": True}}
    held = ask(client, QUESTIONS[0], response_format=schema, extra_body=opened, max_tokens=40, tools=[])
    # The text after the reasoning is not JSON, so the model continues to reason.
    assert held.choices[0].message.reasoning_content.startswith(thought) and not held.choices[0].message.content


@needs_structured_output
@pytest.mark.parametrize("more", [{"tool_choice": "required"}, {"tools": STRICT}])
def test_forced_calls_have_no_reasoning_after_a_closed_section(client, more):
    first = ask(client, QUESTIONS[3], max_tokens=60, **more).choices[0].message
    assert first.reasoning_content.startswith("Rain needs clouds, and </thin air has none.")
    closed = {"chat_template_kwargs": {"closes": True}}
    behind = ask(client, QUESTIONS[3], max_tokens=60, extra_body=closed, **more).choices[0].message
    assert not getattr(behind, "reasoning_content", None) and (behind.content or behind.tool_calls)


@needs_structured_output
def test_preloaded_formats_are_ready_after_reasoning(model, tmp_path):
    preload = json.dumps([{"regex": "It stays (?:dry|wet)\\."}])
    with started(tmp_path, f"model.path={model}", f"structured.preload={preload}") as running:
        with client_of(running.wait_serving()) as client:
            for question, chat in ((QUESTIONS[3], {}), (QUESTIONS[0], {"opens": True}), (QUESTIONS[0], {"closes": True})):
                more = {"guided_regex": "It stays (?:dry|wet)\\.", "chat_template_kwargs": chat}
                ask(client, question, extra_body=more, max_tokens=40)
        lines = http_get(running.http_address, "/metrics")[1].decode().splitlines()
        found = {result: sum(float(line.split()[-1]) for line in lines
                             if line.startswith("quire_constraint_cache_total") and f'"{result}"' in line)
                 for result in ("hit", "miss")}
        assert found == {"hit": 3, "miss": 3}  # the misses are the formats compiled at start
        compiled = next(json.loads(line) for line in running.lines if '"constraints compiled"' in line)
    command = [QUIRED, "--validate", f"--set=model.path={model}", f"--set=structured.preload={preload}"]
    for part, code, words in ((2, 0, ""), (0.5, 78, "only 1 fit into the cache; increase structured.cache_bytes")):
        size = f"--set=structured.cache_bytes={int(part * compiled['bytes'])}"
        done = subprocess.run([*command, size], capture_output=True, text=True, timeout=60)
        assert done.returncode == code and words in done.stderr, done.stderr


@needs_structured_output
def test_caller_selects_where_the_constraint_starts(client, served):
    more = {"guided_regex": "[0-9]{3}", "constraint_start": "at_start", "chat_template_kwargs": {"opens": True}}
    first = ask(client, QUESTIONS[0], extra_body=more).choices[0].message
    # The prompt has opened the section, so the constraint applies to the reasoning.
    assert re.fullmatch("[0-9]{3}", first.reasoning_content) and not first.content
    more = {"guided_regex": "It stays dry.", "constraint_start": "after_reasoning"}
    assert ask(client, QUESTIONS[3], extra_body=more).choices[0].message.content == "It stays dry."

    def chat(*options, code=0):
        command = [str(QUIRE), "--address", served.grpc_address, "chat", "--quiet", QUESTIONS[3], *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    form = ("--regex", "It stays (?:dry|wet)\\.")
    for option in ((), ("--constraint-start", "after_reasoning")):
        behind = chat(*form, *option)
        assert (behind.stdout, behind.stderr) == ("It stays dry.\n", "Rain needs clouds, and </thin air has none.")
    at_start = chat("--regex", "[0-9]{3}", "--constraint-start", "at_start")
    assert re.fullmatch("[0-9]{3}\n", at_start.stdout) and not at_start.stderr
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="", prompt="a", extra_body={"guided_regex": "a", "constraint_start": "after_reasoning"})
    assert caught.value.param == "constraint_start"


@needs_structured_output  # the tool is strict
def test_openai_stream_helpers(client):
    class GetWeather(pydantic.BaseModel):
        location: str

    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    parsed = client.chat.completions.parse(model="", messages=[{"role": "user", "content": QUESTIONS[0]}], tools=[tool])
    assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == GetWeather(location="Paris, France")
    with client.chat.completions.stream(
        model="", messages=[{"role": "user", "content": QUESTIONS[1]}], tools=[tool]
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments.location for event in done] == ["Bogotá, Colombia", "Oslo </tool_call> Norway"]


def test_parallel_tool_calls_can_be_disabled(client):
    for stream in (False, True):
        answer = ask(client, QUESTIONS[1], parallel_tool_calls=False, stream=stream)
        if stream:
            _, _, calls, word = joined(answer)
        else:
            calls, word = answer.choices[0].message.tool_calls, answer.choices[0].finish_reason
        assert len(calls) == 1 and word == "tool_calls"


def test_answer_ends_in_the_middle_of_a_call(client):
    raw = ANSWERS[QUESTIONS[0]]
    for more, word in (({"max_tokens": 12}, "length"), ({"stop": ["France"]}, "stop")):
        choice = ask(client, QUESTIONS[0], **more).choices[0]
        assert choice.finish_reason == word and choice.message.tool_calls is None
        assert "<tool_call>" in choice.message.content and raw.startswith(choice.message.content)
        assert joined(ask(client, QUESTIONS[0], stream=True, **more))[::3] == (choice.message.content, word)


def test_tool_choice(api, client, service, served):
    none = ask(client, QUESTIONS[0], tool_choice="none")
    assert none.choices[0].message.content == ANSWERS[QUESTIONS[0]]
    assert none.usage.prompt_tokens < ask(client, QUESTIONS[0], tool_choice="auto").usage.prompt_tokens
    for choice in ("some", {"type": "function", "function": {"name": "other"}}, {"type": "function"}):
        with pytest.raises(openai.BadRequestError):
            ask(client, QUESTIONS[0], tool_choice=choice)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, QUESTIONS[0], tools=TOOLS * 2)
    assert caught.value.param == "tools" and "get_weather" in caught.value.message


def test_closed_stream_cancels_its_request(api, client, served):
    stream = ask(client, QUESTIONS[1], stream=True, n=4)
    next(iter(stream))
    stream.close()
    with served.admin_channel() as channel:
        admin = api.AdminServiceStub(channel)
        wait_until(lambda: admin.GetStats(api.GetStatsRequest(), timeout=10).stats.running_count == 0, "nothing runs")


def grpc_request(api, question, **output):
    request = api.GenerateRequest(output=api.OutputOptions(parse=True, **output))
    request.chat.messages.add(role="user", content=question)
    request.chat.tools.add(name="get_weather", parameters_json_schema=json.dumps({"type": "object"}))
    return request


def test_tool_calls_over_grpc(api, service):
    model = service.GetModel(api.GetModelRequest()).model
    assert {"tools", "reasoning"} <= set(model.capabilities)
    whole = list(service.Generate(grpc_request(api, QUESTIONS[1])))[-1].completed
    assert [call.name for call in whole.tool_calls] == ["get_weather"] * 2 and not whole.text.strip()
    assert whole.finish_reason == api.FINISH_REASON_EOS
    events = list(service.Generate(grpc_request(api, QUESTIONS[1], stream=True, text=True, token_ids=True)))
    calls = [call for event in events for call in event.delta.tool_calls]
    assert [call.call_index for call in calls] == [0, 1]
    assert [call.arguments_json for call in calls] == [call.arguments_json for call in whole.tool_calls]
    ids = [token for event in events for token in event.delta.token_ids]
    assert service.Detokenize(api.DetokenizeRequest(token_ids=ids, skip_special_tokens=True)).text == ANSWERS[QUESTIONS[1]]
    failed = list(service.Generate(grpc_request(api, QUESTIONS[2])))[-1].completed
    assert failed.text == ANSWERS[QUESTIONS[2]] and failed.parse_error == "undeclared_tool: erase_disk"
    streamed = list(service.Generate(grpc_request(api, QUESTIONS[2], stream=True)))
    assert [e.delta.parse_error for e in streamed if e.delta.parse_error] == [failed.parse_error]
    one = grpc_request(api, QUESTIONS[1])
    one.chat.parallel_tool_calls = False
    ended = list(service.Generate(one))[-1].completed
    assert ended.finish_reason == api.FINISH_REASON_TOOL_CALL and len(ended.tool_calls) == 1
    one.stopping.min_tokens = one.stopping.max_tokens = 4000  # generation ends with its only call before that limit
    again = list(service.Generate(one))[-1].completed
    assert again.finish_reason == ended.finish_reason and again.usage == ended.usage and len(again.tool_calls) == 1


def test_calls_are_counted(api, served, service):
    def count(outcome):
        lines = http_get(served.http_address, "/metrics")[1].decode().splitlines()
        labels = f'quire_tool_parse_total{{format="hermes",outcome="{outcome}"}} '
        return sum(float(line.removeprefix(labels)) for line in lines if line.startswith(labels))

    calls, failed = count("call"), count("failed")
    for question in (QUESTIONS[1], QUESTIONS[2]):  # two calls, and one of an undeclared tool
        list(service.Generate(grpc_request(api, question)))
    wait_until(lambda: (count("call"), count("failed")) == (calls + 2, failed + 1), "calls are counted")


def test_quire_chat_prints_calls_and_reasoning(served, tmp_path):
    file = tmp_path / "tools.json"

    def chat(*arguments):
        command = [QUIRE, "--address", served.grpc_address, "--timeout", "60", *arguments, "--tools", file]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return done

    own = [{"name": "get_weather", "parametersJsonSchema": '{"type": "object"}'}]
    responses = [{"type": "function", **TOOLS[0]["function"]}]  # the flat form of OpenAI's Responses API
    for tools in (TOOLS, own, responses):
        file.write_text(json.dumps(tools))
        called = chat("chat", "--quiet", QUESTIONS[0])
        assert called.stdout == 'Let me look.\n\nget_weather {"location": "Paris, France"}\n' and called.stderr == ""
        thought = chat("chat", "--quiet", QUESTIONS[3])
        assert (thought.stdout, thought.stderr) == ("It stays dry.\n", "Rain needs clouds, and </thin air has none.")
        # The template gets OpenAI's document unchanged.
        assert (json.dumps(TOOLS[0], ensure_ascii=False) in chat("render", QUESTIONS[0]).stdout) == (tools is not own)


def test_python_client_returns_the_parts(q, served):
    tool = {"name": "get_weather", "parameters_json_schema": '{"type": "object"}'}
    with q.Client(served.grpc_address, timeout=60) as client:
        for question, text, reasoning, count, error in (
            (QUESTIONS[0], "Let me look.\n", "", 1, ""),
            (QUESTIONS[1], "", "", 2, ""),
            (QUESTIONS[2], ANSWERS[QUESTIONS[2]], "", 0, "undeclared_tool: erase_disk"),
            (QUESTIONS[3], "It stays dry.", "Rain needs clouds, and </thin air has none.", 0, ""),
        ):
            chat = {"messages": [{"role": "user", "content": question}], "tools": [tool]}
            request = q.v1.GenerateRequest(chat=chat, output={"parse": True})
            answer = client.complete(request)
            whole = answer.choices[0]
            assert (whole.text.strip("\n"), whole.reasoning_text) == (text.strip("\n"), reasoning)
            assert [call.name for call in whole.tool_calls] == ["get_weather"] * count and whole.parse_error == error
            assert (answer.message.reasoning_content, answer.message.tool_calls) == (reasoning, whole.tool_calls)
            with client.generate(request) as stream:
                streamed = stream.result().choices[0]
            for part in ("text", "reasoning_text", "parse_error"):
                assert getattr(streamed, part) == getattr(whole, part)
            assert [(c.name, c.arguments_json) for c in streamed.tool_calls] == [
                (c.name, c.arguments_json) for c in whole.tool_calls]


def test_requirements_of_parse(api, service):
    plain = api.GenerateRequest(text="x", output=api.OutputOptions(parse=True))
    no_text = grpc_request(api, QUESTIONS[0], token_ids=True)
    no_parse = grpc_request(api, QUESTIONS[0])
    no_parse.output.parse = False
    no_parse.chat.parallel_tool_calls = False
    for request, word in ((plain, "output.parse"), (no_text, "output.parse"), (no_parse, "chat.parallel_tool_calls")):
        refused = failure(lambda request=request: list(service.Generate(request)))
        assert word in str(refused)


MISTRAL = """\
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}[INST]{{ m.content }}[/INST]
{%- for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments }}{% endfor %}
{%- endfor %}<|say|>"""


def test_special_token_markers_are_parsed(tmp_path):
    """The parser reads the markers although they are not part of the text. With chat.tool_format none the whole answer
    is text."""
    text = 'Looking.[TOOL_CALLS]get_weather[ARGS]{"location": "Rome"}'
    model = write_scripted_model(tmp_path / "model", {"<|say|>": text}, template=MISTRAL, special=["[TOOL_CALLS]", "[ARGS]"])
    with started(tmp_path, f"model.path={model}") as running, client_of(running.wait_serving()) as client:
        choice = ask(client, "hi").choices[0]
        assert choice.message.content == "Looking."
        assert choice.message.tool_calls[0].function.arguments == '{"location": "Rome"}'
    with started(tmp_path, f"model.path={model}", "chat.tool_format=none") as running, client_of(running.wait_serving()) as client:
        choice = ask(client, "hi").choices[0]
        assert choice.message.content == 'Looking.get_weather{"location": "Rome"}' and choice.finish_reason == "stop"
    with started(tmp_path, f"model.path={model}", "chat.tool_format=nosuch") as running:
        assert running.wait(30) != 0
        assert 'chat.tool_format is \\"nosuch\\", not one of auto, none, harmony' in running.log
