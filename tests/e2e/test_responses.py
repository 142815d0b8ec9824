"""OpenAI's /v1/responses with the official openai client: the examples of its documentation, from models that generate
scripted answers and from the embedded model."""

import asyncio
import json

import openai
import pydantic
import pytest
from attack_tools import ENDLESS, endless, token_line  # noqa: F401 - a fixture
from daemon import Daemon, has_structured_output
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from test_tools import AFTER_TOOL, QUESTIONS, model, started  # noqa: F401 - a fixture
from waiting import wait_until

needs_structured_output = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")

STORY_TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get current temperature for a given location.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City and country e.g. Bogotá, Colombia"}},
        "required": ["location"],
        "additionalProperties": False,
    },
    "strict": False,
}


def client_of(running, **more):
    return openai.OpenAI(base_url=f"http://{running.openai_address}/v1", max_retries=0, **{"api_key": "x", **more})


@pytest.fixture(scope="module")
def scripted(model, tmp_path_factory):  # noqa: F811
    with started(tmp_path_factory.mktemp("scripted"), f"model.path={model}") as running:
        running.wait_serving()
        with client_of(running) as made:
            yield made
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story")
    (folder / "template.jinja").write_text(STORY_TEMPLATE)
    with started(folder, f"chat.template_file={folder}/template.jinja") as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def client(story):
    with client_of(story) as made:
        yield made


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


def test_documented_text(client, name):
    response = client.responses.create(
        model=name,
        instructions="Write a story.",
        input="Once upon a time, there was a",
        max_output_tokens=12,
        temperature=0,
        metadata={"topic": "stories"},
    )
    assert response.object == "response" and response.id.startswith("resp_") and response.model == name
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text and response.output[0].role == "assistant"
    assert response.usage.output_tokens == 12 and response.usage.total_tokens == response.usage.input_tokens + 12
    assert response.metadata == {"topic": "stories"} and response.instructions == "Write a story."
    assert response.temperature == 0 and response.max_output_tokens == 12
    assert response.model_extra["store"] is False
    items = client.responses.create(
        model=name,
        instructions="Write a story.",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Once upon a time, there was a"}]}],
        max_output_tokens=12,
        temperature=0,
    )
    assert items.output_text == response.output_text


def test_documented_stream(client, name):
    arguments = {"model": name, "input": "Once upon a time, there was a", "max_output_tokens": 16, "temperature": 0}
    whole = client.responses.create(**arguments)
    events = list(client.responses.create(stream=True, **arguments))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert types[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.incomplete"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens == 16

    async def collect():
        async with openai.AsyncOpenAI(base_url=str(client.base_url), api_key="x", max_retries=0) as other:
            return [event async for event in await other.responses.create(stream=True, **arguments)]

    assert asyncio.run(collect())[-1].response.output_text == whole.output_text


def test_logprobs(client, name):
    response = client.responses.create(model=name, input="Once", max_output_tokens=4, temperature=0, top_logprobs=2,
                                       include=["message.output_text.logprobs"])
    logprobs = response.output[0].content[0].logprobs
    assert len(logprobs) == 4 and all(len(entry.top_logprobs) == 2 for entry in logprobs)
    assert "".join(entry.token for entry in logprobs).strip() == response.output_text.strip()


class Dog(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    size: int = pydantic.Field(ge=1, le=9)
    good: bool


@needs_structured_output
def test_structured_output(client, name):
    response = client.responses.parse(model=name, input="A dog:", text_format=Dog, max_output_tokens=200)
    dog = response.output_parsed
    assert isinstance(dog, Dog) and list(json.loads(response.output_text)) == ["name", "size", "good"]
    with client.responses.stream(model=name, input="A dog:", text_format=Dog, max_output_tokens=200) as stream:
        for event in stream:
            if event.type == "response.output_text.done":
                assert isinstance(event.parsed, Dog)
        assert isinstance(stream.get_final_response().output_parsed, Dog)
    free = client.responses.create(model=name, input="A dog:", text={"format": {"type": "json_object"}},
                                   max_output_tokens=200)
    assert free.output_text.startswith("{")


def test_documented_tool_round_trip(scripted):
    conversation = [{"role": "user", "content": QUESTIONS[0]}]
    response = scripted.responses.create(model="", input=conversation, tools=[WEATHER])
    text, call = response.output
    assert response.status == "completed" and text.content[0].text == "Let me look.\n"
    assert call.type == "function_call" and call.name == "get_weather" and call.status == "completed"
    assert json.loads(call.arguments) == {"location": "Paris, France"}
    assert response.tools[0].name == "get_weather"
    conversation += response.output
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "14"})
    second = scripted.responses.create(model="", input=conversation, tools=[WEATHER])
    assert second.output_text == AFTER_TOOL and len(second.output) == 1


@pytest.mark.parametrize("question", QUESTIONS)
def test_stream_equals_the_whole_response(scripted, question):
    def content(response):
        # Ids differ from response to response, and only the stream's items are parsed.
        exclude = {"id": True, "call_id": True, "parsed_arguments": True, "content": {"__all__": {"parsed"}}}
        return [item.model_dump(exclude=exclude) for item in response.output]

    whole = scripted.responses.create(model="", input=question, tools=[WEATHER])
    with scripted.responses.stream(model="", input=question, tools=[WEATHER]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert content(final) == content(whole) and final.output_text == whole.output_text
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in final.output]
    calls = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert calls == [item.arguments for item in final.output if item.type == "function_call"]


def test_reasoning_is_an_item_and_is_sent_back(scripted):
    response = scripted.responses.create(model="", input=QUESTIONS[3], reasoning={"effort": "low"})
    reasoning, text = response.output
    assert reasoning.type == "reasoning" and reasoning.content[0].text == "Rain needs clouds, and </thin air has none."
    assert text.content[0].text == "It stays dry." and response.usage.output_tokens_details.reasoning_tokens > 0
    again = scripted.responses.create(
        model="", input=[{"role": "user", "content": QUESTIONS[3]}, *response.output,
                         {"role": "user", "content": QUESTIONS[4]}])
    assert "I know" in again.output_text
    events = list(scripted.responses.create(model="", input=QUESTIONS[3], stream=True))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == reasoning.content[0].text


def test_errors_are_typed_and_name_the_field(client, name):
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="none", input="Hi")
    assert caught.value.code == "model_not_found"
    for more, param, words in (
        ({"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation"),
        ({"input": "Hi", "conversation": "conv_1"}, "conversation", "send the whole conversation"),
        ({"input": "Hi", "background": True}, "background", "stream"),
        ({"input": "Hi", "tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
        ({"input": "Hi", "extra_body": {"temperture": 1}}, "temperture", "did you mean temperature?"),
        ({"input": "Hi", "temperature": -1}, "temperature", "temperature"),
        ({"input": "Hi", "max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
        ({"input": []}, "input", "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}]},
         "input[0].content[0].type", "input_image"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=name, **more)
        assert caught.value.param == param and words in caught.value.message, caught.value
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=name, input="word " * 5000)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "input"


def test_no_published_field_is_unknown(client):
    for field in ResponseCreateParamsBase.__annotations__:
        try:
            client.responses.create(model="", input="Hi", extra_body={field: 1})
        except openai.BadRequestError as error:
            assert "is not a known field" not in error.message, error


def test_tokens_are_checked(tmp_path):
    (tmp_path / "tokens").write_text(token_line("good", "team", "generate"))
    settings = ("auth.mode=token", f"auth.tokens_file={tmp_path}/tokens")
    with started(tmp_path, *settings) as running:
        running.wait_serving()
        with client_of(running, api_key="wrong") as made, pytest.raises(openai.AuthenticationError) as caught:
            made.responses.create(model="", input="Hi")
        assert caught.value.code == "invalid_api_key"


def test_failure_ends_the_stream(endless, tmp_path):  # noqa: F811
    (tmp_path / "template.jinja").write_text(STORY_TEMPLATE)
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", f"chat.template_file={tmp_path}/template.jinja",
                "limits.max_request_duration=2s", *endless)
    with Daemon(tmp_path, settings=settings) as running:
        running.wait_serving()
        with client_of(running) as made:
            events = []
            with pytest.raises(openai.APIError):
                for event in made.responses.create(model="", input="Hi", stream=True, temperature=0,
                                                   max_output_tokens=ENDLESS):
                    events.append(event)
            assert [event.type for event in events[-2:]] == ["error", "response.failed"]
            assert events[-1].response.status == "failed" and events[-1].response.error.message == events[-2].message
        wait_until(lambda: running.process.poll() is None, "the daemon still runs", 5)
