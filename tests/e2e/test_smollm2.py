"""SmolLM2-135M-Instruct, a real model: greedy chat answers equal those of transformers, tool calls, JSON of a schema.
"""

import json
import re

import jsonschema
import openai
import pytest
from daemon import ROOT, TESTDATA, Daemon, has_structured_output

VERSION = re.search(r"^version=(\S+)$", (ROOT / "scripts" / "fetch_smollm2").read_text(), re.MULTILINE)[1]
MODEL = ROOT / "build" / f"smollm2-{VERSION}" / "SmolLM2-135M-Instruct.Q4_1.gguf"
RECORDED = json.loads((TESTDATA / "smollm2" / "answers.json").read_text())

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is missing; scripts/fetch_smollm2 gets it")
constrained = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    settings = ("model.quantization=none", "kv_cache.dtype=f32", "device.cpu.activations=f32", "openai.enabled=true", "openai.listen=127.0.0.1:0",
                "chat.tool_format=generic")
    with Daemon(tmp_path_factory.mktemp("quired"), str(MODEL), settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"http://{served.openai_address}/v1", api_key="not checked", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ask(client):
    model = client.models.list().data[0].id

    def create(messages, **more):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return client.chat.completions.create(model=model, messages=messages, **{"temperature": 0, **more})

    return create


def test_greedy_answers_equal_those_of_transformers(api, served):
    assert len(RECORDED["answers"]) >= 12
    with served.channel() as channel:
        generation = api.GenerationServiceStub(channel)
        calls = []
        for case in RECORDED["answers"]:
            request = api.GenerateRequest()
            for message in case["messages"]:
                request.chat.messages.add(**message)
            rendered = generation.RenderChat(api.RenderChatRequest(chat=request.chat), timeout=60)
            assert list(rendered.token_ids) == case["prompt_token_ids"], case["id"]
            request.sampling.temperature = 0
            request.stopping.max_tokens = RECORDED["max_tokens"]
            request.output.text = request.output.token_ids = True
            calls.append(generation.Generate(request, timeout=120))
        for case, call in zip(RECORDED["answers"], calls):
            answer = [event.completed for event in call if event.HasField("completed")][0]
            assert answer.text == case["text"], case["id"]
            ids = list(answer.token_ids)
            assert ids[: len(case["token_ids"])] == case["token_ids"], case["id"]
            wanted = api.FINISH_REASON_EOS if case["is_whole"] else api.FINISH_REASON_LENGTH
            assert answer.finish_reason == wanted, case["id"]


@pytest.mark.parametrize("name", ["greeting", "fruit"])
def test_openai_answers_equal_the_recorded_ones(ask, name):
    case = next(case for case in RECORDED["answers"] if case["id"] == name)
    whole = ask(case["messages"], max_tokens=RECORDED["max_tokens"]).choices[0]
    assert (whole.message.content, whole.finish_reason) == (case["text"], "stop")
    pieces = ask(case["messages"], max_tokens=RECORDED["max_tokens"], stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == case["text"]


SCHEMAS = {
    "person": {"type": "object", "required": ["name", "age", "is_student"], "additionalProperties": False,
               "properties": {"name": {"type": "string", "maxLength": 30}, "is_student": {"type": "boolean"},
                              "age": {"type": "integer", "minimum": 0, "maximum": 130}}},
    "colors": {"type": "array", "minItems": 2, "maxItems": 4, "items": {"enum": ["red", "green", "blue", "black"]}},
    "place": {"type": "object", "required": ["city", "position"], "additionalProperties": False,
              "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{1,20}$"},
                             "position": {"type": "array", "minItems": 2, "maxItems": 2,
                                          "items": {"type": "integer", "minimum": -180, "maximum": 180}}}},
}


@constrained
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("temperature", [0, 1])
def test_json_satisfies_its_schema(ask, name, temperature):
    schema = SCHEMAS[name]
    wanted = {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}
    answer = ask("Describe Alice, a student from Paris who likes red and blue, as JSON.", temperature=temperature,
                 seed=3, max_tokens=120, response_format=wanted).choices[0]
    assert answer.finish_reason == "stop", answer
    jsonschema.Draft202012Validator(schema).validate(json.loads(answer.message.content))


def tool(name, description, **properties):
    required = [key for key, value in properties.items() if "enum" not in value]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("get_weather", "Returns the weather of a city.", city={"type": "string", "maxLength": 40},
         unit={"enum": ["celsius", "fahrenheit"]}),
    tool("add", "Adds two numbers.", a={"type": "integer"}, b={"type": "integer"}),
]


@constrained
@pytest.mark.parametrize("question,name,expected,result", [
    ("What is the weather in Paris?", "get_weather", {"city": "Paris"}, '{"temperature": 21, "sky": "clear"}'),
    ("What is 2 + 3?", "add", {"a": 2, "b": 3}, "5"),
])
def test_tool_call_and_its_result_continue_the_chat(ask, question, name, expected, result):
    messages = [{"role": "user", "content": question}]
    called = ask(messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=80).choices[0]
    assert called.finish_reason == "tool_calls", called
    (call,) = called.message.tool_calls
    parameters = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == call.function.name)
    arguments = json.loads(call.function.arguments)
    jsonschema.Draft202012Validator(parameters).validate(arguments)
    assert (call.function.name, {**arguments, **expected}) == (name, arguments)
    messages += [called.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    answer = ask(messages, tools=TOOLS, tool_choice="none", max_tokens=24).choices[0]
    assert not answer.message.tool_calls
    assert answer.message.content.strip()
