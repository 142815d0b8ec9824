"""Forced tool calls. The answer parser reads back what random walks write, and jsonschema validates it. Models that
were not trained on tools call them, with the official openai client and over gRPC.

A longer run with another seed:
    QUIRE_TOOL_SETS=100 QUIRE_WALKS=100 QUIRE_SEED=2 build/venv/bin/python -m pytest tests/e2e/test_forced_calls.py -s
"""

import ast
import collections
import decimal
import json
import os
import random
import subprocess

import jsonschema
import openai
import pytest
from daemon import QUIRE, TESTDATA, Daemon, has_structured_output, probe
from scripted_model import write_scripted_model
from test_schemas import DEFS, any_schema, object_schema, read_exactly, readings

pytestmark = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")

# Includes the tokens that end the model's answer, which no mask in the middle of the answer allows.
ENDS = {"<|call|>", "<|return|>"}
FORMATS = ["hermes", "llama3-json", "mistral-list", "mistral-name-args", "deepseek-v3", "deepseek-v31", "phi4-mini",
           "granite-list", "harmony", "kimi-k2", "qwen3-coder", "glm-4.5", "pythonic", "generic"]
MARKERLESS = {"llama3-json", "harmony", "pythonic"}  # no marker starts their calls
TAGGED = {"qwen3-coder", "glm-4.5"}  # strings are written unquoted, in tags
NAMES = ["f", "fa", "get_weather", "now", "a-b_C9"]


@pytest.fixture(scope="module")
def ask():
    with probe("call_probe") as asks:
        yield asks


def tagged_schema(rng):
    """A schema of arguments whose names are words, many of them strings."""
    strings = [{"type": "string"}, {"type": "string", "enum": ["red", "", "a {b}"]}, {"const": 'q"', "type": "string"}]
    names = rng.sample(["city", "a", "b-2", "c.d", "unit"], rng.randint(0, 4))
    made = {"properties": {name: rng.choice([*strings, any_schema(rng, 2), any_schema(rng, 1)]) for name in names}}
    return {**made, "required": rng.sample(names, rng.randint(0, len(names)))}


def pythonic_schema(rng):
    """A schema of arguments whose names Python accepts."""
    names = rng.sample(["city", "a", "b_2", "_", "unit"], rng.randint(0, 4))
    made = {"properties": {name: any_schema(rng, rng.randint(1, 2)) for name in names}}
    return {**made, "required": rng.sample(names, rng.randint(0, len(names)))}


def check_python(text, calls):
    """Python's own parser reads the same calls."""
    written = ast.parse(text, mode="eval").body
    assert isinstance(written, ast.List)
    for call, read in zip(written.elts, calls, strict=True):
        assert call.func.id == read["name"] and not call.args
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        assert json.dumps(arguments) == json.dumps(json.loads(read["arguments"]))


def tool_schemas(rng, name):
    if name == "pythonic":
        tools = rng.sample(NAMES[:-1], rng.randint(1, 3))
        return {tool: {"type": "object", **pythonic_schema(rng), "$defs": DEFS} for tool in tools}
    if name in TAGGED:
        return {tool: {"type": "object", **tagged_schema(rng), "$defs": DEFS} for tool in rng.sample(NAMES, rng.randint(1, 2))}
    names = rng.sample(NAMES, rng.randint(1, 3))
    return {name: {"type": "object", **object_schema(rng, 2), "$defs": DEFS} for name in names}


def repeats_a_name(text):
    """Returns whether a name that the schema leaves free is repeated, which makes a call bad_arguments."""
    for opening in (at for at, letter in enumerate(text) if letter == "{"):
        try:
            found = []
            json.JSONDecoder(object_pairs_hook=lambda pairs: found.append(pairs)).raw_decode(text, opening)
        except json.JSONDecodeError:
            continue
        if any(len(dict(pairs)) < len(pairs) for pairs in found):
            return True
    return False


def check(parts, schemas, one, thinks, optional):
    """Asserts that the answer consists of calls of declared tools with arguments that their schemas allow, reasoning
    before them, and text only where calls are optional."""
    kinds = [part["kind"] for part in parts]
    assert set(kinds) <= {"reasoning", "markup", "call", *(["content"] if optional else [])}, parts
    calls = [part for part in parts if part["kind"] == "call"]
    assert optional or (len(calls) == 1 if one else calls), parts
    if not thinks:
        assert "reasoning" not in kinds
    for call in calls:
        schema = read_exactly(json.dumps(schemas[call["name"]]))
        judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        for reading in readings(call["arguments"]):
            error = jsonschema.exceptions.best_match(judge.iter_errors(reading))
            assert error is None, f"{call}: {error.message}"
    return len(calls)


def take_walks(ask, name, optional):
    """Takes random walks through random sets of tools. Returns the counts."""
    sets, walks = int(os.environ.get("QUIRE_TOOL_SETS", 4)), int(os.environ.get("QUIRE_WALKS", 8))
    seed = int(os.environ.get("QUIRE_SEED", 1))
    rng = random.Random(f"{name} {seed}" + (" optional" if optional else ""))
    # The generic format is written like the Hermes format.
    recorded = json.loads((TESTDATA / "tool_calls" / f"{'hermes' if name == 'generic' else name}.json").read_text())
    markers = [token for token in recorded["special_tokens"] if token not in ENDS]
    counts = collections.Counter()
    with decimal.localcontext(decimal.Context(prec=2000, traps=[decimal.InvalidOperation])):
        while counts["sets"] < sets:
            schemas = tool_schemas(rng, name)
            one, opens = rng.random() < 0.5, bool(recorded["reasoning"]) and name != "harmony" and rng.random() < 0.5
            tools = [{"name": tool, "schema": json.dumps(schema)} for tool, schema in schemas.items()]
            special = markers if rng.random() < 0.5 else []
            answer = ask(format=name, tools=tools, one=one, opens=opens, special=special, optional=optional,
                         plain=[] if special else markers, walks=walks, seed=rng.getrandbits(32))
            if "refused" in answer:
                counts["refused"] += 1
                assert "the schema: " in answer["refused"]
                continue
            counts["sets"] += 1
            counts["unfinished"] += answer["unfinished"]
            for written in answer["answers"]:
                context = f"seed {seed}: {written['text']!r}"
                assert written["whole"] == written["bytes"], context
                counts["answers"] += 1
                if name == "pythonic":  # Python uses the last of two equal names
                    check_python(written["text"], [part for part in written["whole"] if part["kind"] == "call"])
                elif repeats_a_name(written["text"]):
                    counts["repeated names"] += 1
                    assert optional or name in TAGGED or any(part["kind"] == "failed" for part in written["whole"]), context
                    continue
                try:
                    counts["calls"] += check(written["whole"], schemas, one, bool(recorded["reasoning"]), optional)
                except AssertionError as error:
                    raise AssertionError(context) from error
    print(name, dict(counts))
    assert counts["answers"] - counts["repeated names"] > 0.3 * sets * walks, counts
    assert counts["refused"] < 9 * sets, counts
    return counts["calls"]


@pytest.mark.parametrize("name", FORMATS)
def test_random_walks_are_read_back_as_calls(ask, name):
    take_walks(ask, name, optional=False)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in MARKERLESS])
def test_random_walks_with_calls_in_free_text(ask, name):
    assert take_walks(ask, name, optional=True) > 0


# The markers of Hermes, by which the format is detected.
TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool | tojson }} <tool_call> </tool_call>
{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}assistant:{% if thinks is defined %} <think>{% endif %}"""

SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {"unit": {"enum": ["celsius", "kelvin"]}, "city": {"type": "string", "maxLength": 12},
                       "days": {"type": "integer", "minimum": 1, "maximum": 16}},
        "required": ["unit", "city"],
    },
    "now": None,
}
TOOLS = [{"type": "function", "function": {"name": name, **({"parameters": schema} if schema else {})}}
         for name, schema in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def client_of(running):
    return openai.OpenAI(base_url=f"http://{running.openai_address}/v1", api_key="x", max_retries=0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quired")
    (folder / "template.jinja").write_text(TEMPLATE)
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", f"chat.template_file={folder}/template.jinja")
    with Daemon(folder, settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def client(served):
    with client_of(served) as made:
        yield made


def call(client, **more):
    arguments = {"tools": TOOLS, "max_tokens": 400, **more}
    return client.chat.completions.create(model="", messages=[{"role": "user", "content": "Hi"}], **arguments)


def assert_valid(function):
    schema = SCHEMAS[function.name] or {"type": "object", "maxProperties": 0}
    jsonschema.validate(json.loads(function.arguments), {**schema, "additionalProperties": False})
    assert not list(json.loads(function.arguments)) or list(json.loads(function.arguments))[:2] == ["unit", "city"]


@pytest.mark.parametrize("seed", range(6))
def test_model_without_tool_training_calls_tools(client, seed):
    one = call(client, tool_choice="required", parallel_tool_calls=False, seed=seed, temperature=1.5).choices[0]
    assert one.finish_reason == "tool_calls" and one.message.content is None and len(one.message.tool_calls) == 1
    named = call(client, tool_choice=NAMED, seed=seed, temperature=1.5).choices[0]
    assert named.finish_reason == "stop" and named.message.content is None
    assert [made.function.name for made in named.message.tool_calls] == ["get_weather"]
    some = call(client, tool_choice="required", seed=seed, temperature=1.5).choices[0]
    assert some.message.tool_calls and (some.message.content is None or some.finish_reason == "length")
    for made in one.message.tool_calls + named.message.tool_calls + some.message.tool_calls:
        assert_valid(made.function)


def test_forced_call_is_streamed(client):
    whole = call(client, tool_choice=NAMED, seed=5, temperature=1.5).choices[0]
    chunks = [chunk.choices[0] for chunk in call(client, tool_choice=NAMED, seed=5, temperature=1.5, stream=True)]
    assert not any(chunk.delta.content for chunk in chunks) and chunks[-1].finish_reason == "stop"
    made = [made for chunk in chunks for made in chunk.delta.tool_calls or []]
    assert made[0].function.name == "get_weather"
    assert "".join(part.function.arguments or "" for part in made) == whole.message.tool_calls[0].function.arguments


def test_answer_is_reasoning_where_the_prompt_opened_it(client):
    """A story model never closes a section, so all of the answer is reasoning and none of it a call."""
    thought = call(client, tool_choice="required", extra_body={"chat_template_kwargs": {"thinks": True}}).choices[0]
    assert thought.finish_reason == "length" and thought.message.reasoning_content and not thought.message.tool_calls


def test_unsupported_combinations_are_rejected(client):
    deep = {"type": "object", "properties": {"a": {"contains": {}}}}
    bad = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    for more, param, words in (
        ({"tools": [*TOOLS, *bad], "tool_choice": "required"}, "tools[2].function.parameters", "/properties/a/contains"),
        ({"tools": bad, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tools[0].function.parameters",
         "contains"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name", '"g"'),
        ({"tools": TOOLS * 2, "tool_choice": "required"}, "tools", "get_weather"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format", "tool_choice"),
        ({"tool_choice": "required", "extra_body": {"ignore_eos": True}}, "ignore_eos", "ignore_eos"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            call(client, **more)
        assert caught.value.param == param and words in caught.value.message, caught.value


def test_keywords_that_are_not_enforced_are_listed_by_the_tool(client):
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9, "not": {"const": 5}}},
                  "required": ["a"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    annotate = {"constraint_unenforced": "annotate"}
    listed = ["tools[0].function.parameters#/properties/a/not"]
    made = call(client, tools=tools, tool_choice="required", parallel_tool_calls=False, extra_body=annotate)
    assert made.unenforced_keywords == listed
    assert json.loads(made.choices[0].message.tool_calls[0].function.arguments)["a"] in range(1, 10)
    tools[0]["function"]["strict"] = True
    chunks = list(call(client, tools=tools, max_tokens=5, stream=True, extra_body=annotate))
    assert [getattr(chunk, "unenforced_keywords", None) for chunk in chunks] == [listed] + [None] * (len(chunks) - 1)
    with pytest.raises(openai.BadRequestError) as refused:
        call(client, tools=tools)
    assert refused.value.param == "tools[0].function.parameters" and "/properties/a/not" in refused.value.message
    tools[0]["function"]["strict"] = False
    with pytest.raises(openai.BadRequestError) as refused:
        call(client, tools=tools, extra_body=annotate)  # no schema is enforced
    assert refused.value.param == "constraint_unenforced"


def test_forced_calls_over_grpc_and_command_line(api, served, tmp_path):
    request = api.GenerateRequest(output=api.OutputOptions(parse=True))
    request.chat.messages.add(role="user", content="Hi")
    request.chat.tools.add(name="now")
    request.chat.tool_choice = api.TOOL_CHOICE_NAMED
    request.chat.tool_name = "now"
    with served.channel() as channel:
        done = list(api.GenerationServiceStub(channel).Generate(request, timeout=60))[-1].completed
    assert done.finish_reason == api.FINISH_REASON_CONSTRAINT_DONE and not done.text
    assert [(made.name, json.loads(made.arguments_json)) for made in done.tool_calls] == [("now", {})]
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "now"}, {"name": "f", "parametersJsonSchema": '{"properties": {"a": {"const": 1}}}'}]))
    command = [QUIRE, "--address", served.grpc_address, "--timeout", "60", "chat", "Hi", "--quiet", "--tools", tools]
    named = subprocess.run([*command, "--tool-choice", "now"], capture_output=True, text=True, timeout=90)
    name, arguments = named.stdout.split(maxsplit=1)
    assert (named.returncode, name, json.loads(arguments)) == (0, "now", {}), named.stderr


MISTRAL = """\
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}[INST]{{ m.content }}[/INST]{% if m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls | tojson }}{% endif %}
{%- endfor %}<|say|>"""


def test_special_token_markers_are_parsed(tmp_path):
    """The markers are tokens that no other constraint allows."""
    model = write_scripted_model(tmp_path / "model", {"<|say|>": "No calls."}, template=MISTRAL, special=["[TOOL_CALLS]"])
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.dtype=f32", f"model.path={model}")
    with Daemon(tmp_path, settings=settings) as running, client_of(running.wait_serving()) as client:
        made = call(client, tool_choice=NAMED, temperature=1.0, logprobs=True, seed=3).choices[0]
        assert made.message.tool_calls, made.message
        assert [entry.function.name for entry in made.message.tool_calls] == ["get_weather"]
        assert_valid(made.message.tool_calls[0].function)
        tokens = [entry.token for entry in made.logprobs.content]
        assert tokens[0] == "[TOOL_CALLS]" and "[TOOL_CALLS]" not in tokens[1:]
        auto = call(client).choices[0]
        assert auto.message.content == "No calls."
