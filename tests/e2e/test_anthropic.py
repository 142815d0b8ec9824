"""Anthropic's /v1/messages with the official anthropic client: the examples of its documentation, from models that
generate scripted answers and from the embedded model."""

import asyncio
import json
import typing

import anthropic
import pydantic
import pytest
from anthropic.types.message_create_params import MessageCreateParamsBase
from attack_tools import token_line
from daemon import has_structured_output
from test_responses import STORY_TEMPLATE
from test_tools import AFTER_TOOL, QUESTIONS, model, started  # noqa: F401 - a fixture

needs_structured_output = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")

WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a given location",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and country, e.g. Bogotá, Colombia"}},
        "required": ["location"],
    },
}


def client_of(running, **more):
    return anthropic.Anthropic(base_url=f"http://{running.openai_address}", max_retries=0, **{"api_key": "x", **more})


@pytest.fixture(scope="module")
def scripted(model, tmp_path_factory):  # noqa: F811
    with started(tmp_path_factory.mktemp("scripted"), f"model.path={model}") as running:
        running.wait_serving()
        with client_of(running) as made:
            yield made
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story")
    (folder / "template.jinja").write_text(STORY_TEMPLATE)
    with started(folder, f"chat.template_file={folder}/template.jinja") as running:
        running.wait_serving()
        with client_of(running) as made:
            yield made
        assert running.process.poll() is None, "quired died:\n" + running.log


def say(client, content, **more):
    return client.messages.create(**{"max_tokens": 200, "messages": [{"role": "user", "content": content}], "model": "",
                                     **more})


def test_documented_message(client):
    message = say(client, "Hello, Claude", max_tokens=12, system="Write a story.", extra_body={"temperature": 0})
    assert message.type == "message" and message.role == "assistant" and message.id.startswith("msg_")
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason == "max_tokens" and message.stop_sequence is None
    assert message.usage.output_tokens == 12 and message.usage.input_tokens > 0
    blocks = say(client, [{"type": "text", "text": "Hello, Claude", "cache_control": {"type": "ephemeral"}}],
                 max_tokens=12, system=[{"type": "text", "text": "Write a story."}], extra_body={"temperature": 0})
    assert blocks.content[0].text == message.content[0].text
    assert blocks.usage.input_tokens + blocks.usage.cache_read_input_tokens == (
        message.usage.input_tokens + message.usage.cache_read_input_tokens)


def test_documented_stream(client):
    arguments = {"max_tokens": 16, "extra_body": {"temperature": 0}}
    whole = say(client, "Once upon a time", **arguments)
    with client.messages.stream(messages=[{"role": "user", "content": "Once upon a time"}], model="",
                                **arguments) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 16
    types = [event.type for event in say(client, "Once upon a time", stream=True, **arguments)]
    assert types[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]

    async def collect():
        async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="x", max_retries=0) as other:
            return [event async for event in await say(other, "Once upon a time", stream=True, **arguments)]

    texts = [event.delta.text for event in asyncio.run(collect()) if event.type == "content_block_delta"]
    assert "".join(texts) == whole.content[0].text


def test_stop_sequence_is_reported(client):
    whole = say(client, "Once upon a time", max_tokens=40, extra_body={"temperature": 0}).content[0].text
    stop = whole.split()[4]
    message = say(client, "Once upon a time", max_tokens=40, stop_sequences=["###", stop], extra_body={"temperature": 0})
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert message.content[0].text == whole[: whole.index(stop)]


def test_last_message_of_the_assistant_is_continued(scripted, client):
    message = client.messages.create(
        max_tokens=8, model="", extra_body={"temperature": 0},
        messages=[{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": "Once upon a time"}])
    assert message.usage.output_tokens == 8


class Dog(pydantic.BaseModel):
    name: typing.Literal["Rex", "Bo"]
    good: bool


@needs_structured_output
def test_structured_output(client):
    schema = {"type": "object", "properties": {"size": {"enum": [1, 2]}, "good": {"type": "boolean"}},
              "required": ["size", "good"], "additionalProperties": False}
    message = say(client, "A dog:", output_config={"format": {"type": "json_schema", "schema": schema}},
                  extra_body={"temperature": 0})
    assert list(json.loads(message.content[0].text)) == ["size", "good"]
    parsed = client.messages.parse(max_tokens=400, messages=[{"role": "user", "content": "A dog:"}], model="",
                                   output_format=Dog, extra_body={"temperature": 0})
    assert isinstance(parsed.parsed_output, Dog)


def test_documented_tool_round_trip(scripted):
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    message = scripted.messages.create(max_tokens=1024, model="", messages=messages, tools=[WEATHER])
    text, call = message.content
    assert message.stop_reason == "tool_use" and text.text == "Let me look.\n"
    assert call.type == "tool_use" and call.name == "get_weather" and call.input == {"location": "Paris, France"}
    messages += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "14"}]},
    ]
    second = scripted.messages.create(max_tokens=1024, model="", messages=messages, tools=[WEATHER])
    assert second.content[0].text == AFTER_TOOL and second.stop_reason == "end_turn"


@pytest.mark.parametrize("question", QUESTIONS)
def test_stream_equals_the_whole_message(scripted, question):
    def content(message):
        # Ids differ from message to message.
        return [block.model_dump(exclude={"id"}) for block in message.content]

    whole = say(scripted, question, tools=[WEATHER])
    with scripted.messages.stream(max_tokens=200, messages=[{"role": "user", "content": question}], model="",
                                  tools=[WEATHER]) as stream:
        final = stream.get_final_message()
    assert content(final) == content(whole) and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_thinking_is_a_block_and_is_sent_back(scripted):
    message = say(scripted, QUESTIONS[3], thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048)
    thinking, text = message.content
    assert thinking.type == "thinking" and thinking.thinking == "Rain needs clouds, and </thin air has none."
    assert text.text == "It stays dry."
    again = scripted.messages.create(
        max_tokens=200, model="",
        messages=[{"role": "user", "content": QUESTIONS[3]}, {"role": "assistant", "content": message.content},
                  {"role": "user", "content": QUESTIONS[4]}])
    assert "I know" in again.content[0].text


@needs_structured_output
def test_forced_calls(scripted):
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
        message = say(scripted, QUESTIONS[0], tools=[WEATHER], tool_choice=choice, max_tokens=400)
        assert [block.type for block in message.content] == ["tool_use"] and message.stop_reason == "tool_use"
    none = say(scripted, QUESTIONS[0], tools=[WEATHER], tool_choice={"type": "none"})
    assert none.stop_reason == "end_turn" and "<tool_call>" in none.content[0].text


def test_errors_are_typed_and_name_the_field(client):
    with pytest.raises(anthropic.NotFoundError) as caught:
        say(client, "Hi", model="none")
    assert caught.value.body["error"]["type"] == "not_found_error" and caught.value.body["type"] == "error"
    assert caught.value.body["request_id"] == caught.value.response.headers["x-request-id"]
    for more, words in (
        ({"extra_body": {"temperture": 1}}, "did you mean temperature?"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 'tools[0].type is "web_search_20250305"'),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/"}}]}]},
         'messages[0].content[0].type is "image"'),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
    ):
        with pytest.raises(anthropic.BadRequestError) as caught:
            say(client, "Hi", **more)
        assert caught.value.body["error"]["type"] == "invalid_request_error"
        assert words in caught.value.body["error"]["message"], caught.value


def test_tokens_are_counted(client):
    messages = [{"role": "user", "content": "Once upon a time"}]
    counted = client.messages.count_tokens(model="", messages=messages, system="Write a story.")
    usage = client.messages.create(model="", messages=messages, system="Write a story.", max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.batches.list()
    assert "/v1/messages/batches is not supported" in caught.value.body["error"]["message"]


def test_no_published_field_is_unknown(client):
    for field in MessageCreateParamsBase.__annotations__:
        try:
            say(client, "Hi", max_tokens=1, extra_body={field: 1})
        except anthropic.BadRequestError as error:
            assert "is not a known field" not in error.message, error


def test_tokens_are_checked(tmp_path):
    (tmp_path / "tokens").write_text(token_line("good", "team", "generate"))
    settings = ("auth.mode=token", f"auth.tokens_file={tmp_path}/tokens")
    with started(tmp_path, *settings) as running:
        running.wait_serving()
        with client_of(running, api_key="wrong") as made, pytest.raises(anthropic.AuthenticationError) as caught:
            say(made, "Hi")
        assert caught.value.body["error"]["type"] == "authentication_error"
        with client_of(running, api_key="good") as made, pytest.raises(anthropic.BadRequestError):
            say(made, "Hi", max_tokens=0)
