"""Tools with templates that ignore them, text that resembles a call, and arguments that are not JSON, with the official
openai client. Expected texts are those that the model writes. jsonschema validates expected arguments."""

import json

import jsonschema
import openai
import pytest
from daemon import Daemon, has_structured_output
from scripted_model import write_scripted_model

# The last message's text selects the opener of the answer. PRINT_TOOLS is replaced by the markup that prints tools.
TEMPLATE = """\
PRINT_TOOLS{%- for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{{ '<|' + messages[-1].content.split('|')[-1] + '|>' }}"""
PRINT_TOOLS = "{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"

SCHEMAS = {
    "find": {
        "type": "object",
        "properties": {
            "query": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "kind": {"$ref": "#/$defs/Kind"},
            "where": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        },
        "required": ["query"],
        "$defs": {"Kind": {"enum": ["book", "1984", None]}},
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]


def served(folder, scripts, *settings, prints_tools=True):
    """A daemon whose answers are `scripts`, selected by the last word of the question."""
    template = TEMPLATE.replace("PRINT_TOOLS", PRINT_TOOLS if prints_tools else "")
    scripts = {f"<|{name}|>": text for name, text in scripts.items()}
    model = write_scripted_model(folder / "model", scripts, template=template)
    base = ("openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.dtype=f32", f"model.path={model}")
    return Daemon(folder, settings=(*base, *settings))


def client_of(running):
    return openai.OpenAI(base_url=f"http://{running.wait_serving().openai_address}/v1", api_key="x", max_retries=0)


def ask(client, question, **more):
    messages = [{"role": "user", "content": f"|{question}"}]
    return client.chat.completions.create(model="", **{"messages": messages, "tools": TOOLS, **more})


def streamed(client, question):
    content, calls = "", []
    for chunk in ask(client, question, stream=True):
        content += chunk.choices[0].delta.content or ""
        calls += [(call.function.name, call.function.arguments) for call in chunk.choices[0].delta.tool_calls or []]
    return content, calls


CALL = '<tool_call>\n{"name": "find", "arguments": {"query": "rain"}}\n</tool_call>'


def test_tools_ignored_by_the_template(tmp_path):
    with served(tmp_path, {"call": CALL}, prints_tools=False) as running, client_of(running) as client:
        for more in ({}, {"tools": TOOLS[:1]}, {"tool_choice": "auto", "stream": True}):
            with pytest.raises(openai.BadRequestError) as caught:
                ask(client, "call", **more)
            assert caught.value.status_code == 400 and caught.value.param == "tools"
            assert "chat.tool_format: generic" in caught.value.message and "chat.template_file" in caught.value.message
        for more in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
            assert ask(client, "call", **more).choices[0].message.content == CALL


def test_generic_format_calls_tools(tmp_path):
    scripts = {"call": CALL, "text": "No call is needed.", "odd": '<tool_call>{"name": "nope"}</tool_call>\n'}
    settings = ("chat.tool_format=generic",)
    with served(tmp_path, scripts, *settings, prints_tools=False) as running, client_of(running) as client:
        called = ask(client, "call").choices[0]
        assert called.finish_reason == "tool_calls" and called.message.content is None
        made = called.message.tool_calls[0]
        assert (made.function.name, json.loads(made.function.arguments)) == ("find", {"query": "rain"})
        assert streamed(client, "call") == ("", [("find", '{"query": "rain"}')])
        for name in ("text", "odd"):
            assert ask(client, name).choices[0].message.content == scripts[name]
            assert streamed(client, name) == (scripts[name], [])
        # The history contains a call, and the template has no roles for calls.
        messages = [{"role": "user", "content": "|call"}, called.message,
                    {"role": "tool", "tool_call_id": made.id, "content": "none"}, {"role": "user", "content": "|text"}]
        assert ask(client, "", messages=messages).choices[0].message.content == scripts["text"]


@pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")
def test_forced_calls_in_the_generic_format(tmp_path):
    scripts = {"text": "No call is needed."}
    with served(tmp_path, scripts, "chat.tool_format=generic", prints_tools=False) as running, client_of(running) as client:
        num_calls = 0
        for seed in range(4):
            more = {"seed": seed, "temperature": 1.0, "max_tokens": 300}
            named = ask(client, "text", tool_choice={"type": "function", "function": {"name": "now"}}, **more).choices[0]
            assert [call.function.name for call in named.message.tool_calls] == ["now"]
            assert json.loads(named.message.tool_calls[0].function.arguments) == {}
            some = ask(client, "text", tool_choice="required", parallel_tool_calls=False, **more).choices[0]
            num_calls += len(some.message.tool_calls or [])
            for call in some.message.tool_calls or []:
                jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            assert some.message.tool_calls or some.finish_reason == "length"
        assert num_calls > 0


# Maps a format to answers without a call of a declared tool.
TEXTS = {
    "pythonic": ["[1, 2] are two.", "[see(here), there]", " [nope(a=1)]\n"],
    "mistral-list": ["[TOOL_CALLS] [1, 2]", "So [TOOL_CALLS]{\"a\": 1}!", "[TOOL_CALLS] [{\"name\": \"nope\", \"arguments\": {}}]"],
    "granite-list": ["<|tool_call|>[]", "<tool_call>[\"text\"] \n", "<|tool_call|> [ {\"name\": \"now\", \"arg"],
    "deepseek-v3": ["<｜tool▁calls▁begin｜>none<｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜>\n",
                    "A<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜>function"],
    "kimi-k2": ["<|tool_calls_section_begin|> <|tool_calls_section_end|>\n", "x <|tool_calls_section_begin|>y",
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.no:0<|tool_call_end|>"],
    "llama3-json": ["<|python_tag|>print(1)", '{"name": "nope", "parameters": {}}; ', ' {"answer": 42} \n'],
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_without_a_call_is_unchanged(tmp_path, name):
    scripts = {f"q{index}": text for index, text in enumerate(TEXTS[name])}
    # Texts of one model must not share pieces, so each text has its own model.
    for question, text in scripts.items():
        with served(tmp_path / question, {question: text}, f"chat.tool_format={name}") as running, client_of(running) as client:
            choice = ask(client, question).choices[0]
            assert choice.message.content == text and not choice.message.tool_calls and choice.finish_reason == "stop"
            assert streamed(client, question) == (text, [])


def test_arguments_without_json_are_valid_under_the_schema(tmp_path):
    def call(**arguments):
        tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function=find>\n{tags}</function>\n</tool_call>"

    cases = [
        (call(query="1984", limit="5"), {"query": "1984", "limit": 5}),
        (call(query="true", kind="1984", where='["a", "b"]'), {"query": "true", "kind": "1984", "where": ["a", "b"]}),
        (call(query="null", limit="null", kind="null"), {"query": None, "limit": None, "kind": None}),
        (call(query='{"a": 1}', kind='"book"', where="[1]"), {"query": '{"a": 1}', "kind": "book", "where": "[1]"}),
    ]
    for index, (text, expected) in enumerate(cases):
        settings = ("chat.tool_format=qwen3-coder",)
        with served(tmp_path / str(index), {"q": text}, *settings) as running, client_of(running) as client:
            made = ask(client, "q").choices[0].message.tool_calls
            arguments = json.loads(made[0].function.arguments)
            assert arguments == expected
            jsonschema.validate(arguments, SCHEMAS["find"])
            assert streamed(client, "q")[1] == [("find", made[0].function.arguments)]
