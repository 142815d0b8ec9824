"""A real daemon under the official ollama client."""

import json

import ollama
import pytest
from daemon import Daemon, has_structured_output
from scripted_model import write_scripted_model
from waiting import wait_until

needs_structured_output = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")

QUESTION = "What is the weather like in Paris today?"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris, France"}}\n</tool_call>'
THOUGHT = "Rain needs clouds, and thin air has none."
# Renders the tools, the messages and their calls, and ends with the opener of the answer.
TEMPLATE = """\
{%- if tools %}{{ tools | tojson }} <tool_call>{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }} {{ m.name or '' }}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if messages[-1].role == 'tool' %}<|result|>
{%- elif enable_thinking is defined and enable_thinking %}<|think|>
{%- elif tools %}<|call|>
{%- else %}<|hello|>{% endif %}"""


def started(folder, *settings):
    return Daemon(folder, settings=("openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.dtype=f32", *settings))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with started(tmp_path_factory.mktemp("story")) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def client(served):
    return ollama.Client(host=f"http://{served.openai_address}")


@pytest.fixture(scope="module")
def model(client):
    return client.list().models[0].model


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    """A client of a model with a chat template."""
    scripts = {"<|hello|>": "Hello there, friend.", "<|call|>": CALL, "<|result|>": "It is 14 degrees.",
               "<|think|>": f"<think>{THOUGHT}</think>It stays dry."}
    folder = write_scripted_model(tmp_path_factory.mktemp("scripted"), scripts, template=TEMPLATE, plain=["<think>"])
    with started(tmp_path_factory.mktemp("chat"), f"model.path={folder}", "model.id=scripted") as running:
        running.wait_serving()
        yield ollama.Client(host=f"http://{running.openai_address}")
        assert running.process.poll() is None, "quired died:\n" + running.log


def test_models(client, model):
    listed = client.list().models[0]
    assert listed.size > 0 and listed.details.parameter_size and listed.modified_at
    loaded = client.ps().models[0]
    assert loaded.model == model and loaded.size >= listed.size and loaded.context_length > 0
    shown = client.show(model)
    assert shown.details == listed.details and "completion" in shown.capabilities
    assert shown.modelinfo[f"{shown.details.family}.context_length"] == loaded.context_length


def test_generate_and_its_stream(client, model):
    arguments = {"model": f"{model}:latest", "prompt": "Once upon a time", "raw": True,
                 "options": {"temperature": 0, "num_predict": 16, "seed": 1, "num_ctx": 128}}
    whole = client.generate(**arguments)
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 16
    assert whole.prompt_eval_count > 0
    assert whole.total_duration >= whole.prompt_eval_duration + whole.eval_duration > 0
    parts = list(client.generate(**arguments, stream=True))
    assert len(parts) > 1 and [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.response for part in parts) == whole.response
    assert parts[-1].eval_count == 16 and parts[-1].done_reason == "length"


def test_unlimited_generation_ends_with_the_context(client, model):
    context = client.ps().models[0].context_length
    answer = client.generate(model, "Once", raw=True, options={"num_predict": -1, "temperature": 0})
    assert answer.done_reason == "stop" or answer.prompt_eval_count + answer.eval_count == context


def test_logprobs(client, model):
    answer = client.generate(model, "Once upon", raw=True, logprobs=True, top_logprobs=2,
                             options={"temperature": 0, "num_predict": 4})
    assert "".join(token.token for token in answer.logprobs) == answer.response
    for token in answer.logprobs:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2


def test_chat_and_its_stream(chatting):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    whole = chatting.chat("scripted", messages)
    assert whole.message.role == "assistant" and whole.message.content == "Hello there, friend."
    assert whole.done_reason == "stop" and not whole.message.tool_calls
    parts = list(chatting.chat("scripted:latest", messages, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].eval_count == whole.eval_count


def test_generate_renders_the_template(chatting):
    answer = chatting.generate("scripted", "Hi", system="Be kind.")
    assert answer.response == "Hello there, friend."
    assert answer.prompt_eval_count == chatting.chat(
        "scripted", [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]).prompt_eval_count


def test_thinking_is_apart_from_the_content(chatting):
    messages = [{"role": "user", "content": "Think."}]
    whole = chatting.chat("scripted", messages, think=True).message
    assert whole.thinking == THOUGHT and whole.content == "It stays dry."
    parts = list(chatting.chat("scripted", messages, think="high", stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == THOUGHT
    assert "".join(part.message.content for part in parts) == "It stays dry."
    assert chatting.chat("scripted", messages, think=False).message.thinking is None


def get_weather(location: str) -> str:
    """Returns the weather.

    Args:
        location: City and country.
    """
    return f"14 degrees in {location}"


@pytest.mark.parametrize("stream", [False, True])
def test_tool_round_trip(chatting, stream):
    """The example of the client: a Python function as tool, its call, its result, the answer."""
    messages = [{"role": "user", "content": QUESTION}]
    answer = chatting.chat("scripted", messages, tools=[get_weather], stream=stream)
    parts = list(answer) if stream else [answer]
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get_weather", {"location": "Paris, France"})]
    messages.append(ollama.Message(role="assistant", tool_calls=calls))
    messages.append({"role": "tool", "tool_name": "get_weather", "content": get_weather(**calls[0].function.arguments)})
    assert chatting.chat("scripted", messages, tools=[get_weather]).message.content == "It is 14 degrees."


@needs_structured_output
def test_format(client, model):
    schema = {"type": "object", "properties": {"b": {"enum": [1, 2]}, "a": {"type": "boolean"}},
              "required": ["b", "a"], "additionalProperties": False}
    options = {"temperature": 0, "num_predict": 100}
    answer = json.loads(client.generate(model, "Once", raw=True, format=schema, options=options).response)
    assert list(answer) == ["b", "a"] and answer["b"] in (1, 2)
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate(model, "Once", raw=True, format={"type": "no type"})
    assert caught.value.status_code == 400 and "format" in caught.value.error


def test_errors(client, model):
    def error(call, *arguments, **more):
        with pytest.raises(ollama.ResponseError) as caught:
            for _ in call(*arguments, **more):
                pass
        return caught.value.status_code, caught.value.error

    for stream in (False, True):
        status, message = error(client.generate, "other", "x", raw=True, stream=stream)
        assert status == 404 and message.startswith('model "other"')
        status, message = error(client.generate, model, "x", raw=True, stream=stream, options={"top_p": 2})
        assert status == 400 and "options.top_p" in message
    status, message = error(client.chat, model, [{"role": "user", "content": "x", "images": ["aGk="]}])
    assert status == 400 and "messages[0].images is not supported" in message
    status, message = error(client.generate, model, "x", suffix="y")
    assert status == 400 and message.startswith("suffix is not supported")
    status, message = error(client.pull, "llama3")
    assert status == 400 and "quire pull" in message
    status, message = error(client.embed, model, "x")
    assert status == 400 and "/v1/embeddings" in message


def test_closed_stream_cancels_its_request(api, served, client, model):
    stream = client.generate(model, "Once", raw=True, stream=True, options={"num_predict": -1})
    next(stream)
    stream.close()
    with served.admin_channel() as channel:
        admin = api.AdminServiceStub(channel)
        wait_until(lambda: admin.GetStats(api.GetStatsRequest(), timeout=10).stats.running_count == 0,
                   "the request runs after its client left")
