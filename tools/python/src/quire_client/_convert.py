"""Values of this package from and to messages of the schema. Fields of a value have the names of the message's."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Optional, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage

from ._proto import chat_pb2, generation_pb2, sampling_pb2
from .types import (
    Chat,
    Completed,
    Completion,
    Delta,
    Event,
    Options,
    Prompt,
    PromptLogprobs,
    Started,
    TokenLogprob,
    ToolCall,
)

T = TypeVar("T")


def seconds_of(duration: Duration) -> float:
    return duration.seconds + 1e-9 * duration.nanos


# --- messages to values ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type without its Optional, and whether it was optional, of each field."""
    hints = get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        is_optional = get_origin(hint) is Union
        found.append((field.name, get_args(hint)[0] if is_optional else hint, is_optional))
    return tuple(found)


def _plain(hint: Any, content: Any) -> Any:
    if get_origin(hint) is tuple:
        return tuple(_plain(get_args(hint)[0], one) for one in content)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_message(hint, content)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(content)
    if hint is float and isinstance(content, Duration):
        return seconds_of(content)
    if hint is datetime.datetime:
        return content.ToDatetime(tzinfo=datetime.timezone.utc)
    return dict(content) if isinstance(content, Mapping) else content


def from_message(kind: type[T], message: ProtoMessage) -> T:
    """The dataclass `kind` with the contents of `message`; an optional field that is not set is None."""
    contents = {}
    for name, hint, is_optional in _fields(cast(Any, kind)):
        is_absent = is_optional and not message.HasField(name)
        contents[name] = None if is_absent else _plain(hint, getattr(message, name))
    return kind(**contents)


_EVENTS: Mapping[str, Any] = {
    "started": Started,
    "prompt_logprobs": PromptLogprobs,
    "delta": Delta,
    "completed": Completed,
}


def to_event(response: generation_pb2.GenerateResponse) -> Optional[Event]:
    """None for an event that this version does not know."""
    name = response.WhichOneof("event")
    if name is None:
        return None
    event: Event = from_message(_EVENTS[name], getattr(response, name))
    return event


class Collector:
    """Puts a whole answer together from its events, streamed or not."""

    def __init__(self) -> None:
        self._started: Optional[Started] = None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._deltas: dict[int, list[Delta]] = {}
        self._choices: dict[int, Completed] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, PromptLogprobs):
            self._prompt_logprobs += event.tokens
        elif isinstance(event, Delta):
            self._deltas.setdefault(event.index, []).append(event)
        else:
            self._choices[event.index] = self._with_output(event)

    @staticmethod
    def _calls(deltas: list[Delta]) -> tuple[ToolCall, ...]:
        calls: dict[int, ToolCall] = {}
        for part in (part for delta in deltas for part in delta.tool_calls):
            call = calls.get(part.call_index, ToolCall("", "", ""))
            arguments = call.arguments_json + part.arguments_json
            calls[part.call_index] = ToolCall(call.id + part.id, call.name + part.name, arguments)
        return tuple(calls[index] for index in sorted(calls))

    def _with_output(self, end: Completed) -> Completed:
        deltas = self._deltas.pop(end.index, [])
        return dataclasses.replace(
            end,
            text="".join(delta.text for delta in deltas) + end.text,
            token_ids=tuple(id for delta in deltas for id in delta.token_ids) + end.token_ids,
            logprobs=tuple(one for delta in deltas for one in delta.logprobs) + end.logprobs,
            reasoning_text="".join(delta.reasoning_text for delta in deltas) + end.reasoning_text,
            tool_calls=self._calls(deltas) + end.tool_calls,
            parse_error=next((delta.parse_error for delta in deltas if delta.parse_error), end.parse_error),
        )

    def result(self, request_id: str) -> Completion:
        """REQUIRES: the stream has ended well."""
        if self._started is None or not self._choices:
            raise ValueError(f"the answer to {request_id or 'the request'} is not whole: it was read from its middle")
        choices = tuple(self._choices[index] for index in sorted(self._choices))
        return Completion(request_id, self._started, tuple(self._prompt_logprobs), choices)


# --- values to messages ---------------------------------------------------------------------------

_REQUEST_OPTIONS = (
    "model",
    "request_id",
    "priority",
    "queue_timeout",
    "timeout",
    "labels",
    "add_special_tokens",
    "parse_special_tokens",
    "truncate_prompt",
)
_CONSTRAINT_OPTIONS: dict[str, dict[str, int]] = {
    "start": {
        "at_start": sampling_pb2.CONSTRAINT_START_AT_START,
        "after_reasoning": sampling_pb2.CONSTRAINT_START_AFTER_REASONING,
    },
    "whitespace": {
        "bounded": sampling_pb2.WHITESPACE_POLICY_BOUNDED,
        "compact": sampling_pb2.WHITESPACE_POLICY_COMPACT,
    },
}


def _places() -> dict[str, tuple[str, str]]:
    """Name of each option to the part of the request and the field that it fills."""
    places = {name: ("", name) for name in _REQUEST_OPTIONS}
    parts: tuple[tuple[str, type[ProtoMessage], str], ...] = (
        ("sampling", sampling_pb2.SamplingParams, ""),
        ("stopping", sampling_pb2.StoppingParams, ""),
        ("output", sampling_pb2.OutputOptions, ""),
        ("cache", sampling_pb2.CacheOptions, "cache_"),
    )
    for part, kind, prefix in parts:
        places.update({prefix + field.name: (part, field.name) for field in kind.DESCRIPTOR.fields})
    kinds = {"json_schema": "json_schema", "regex": "regex", "grammar": "ebnf_grammar", "choices": "choice",
             "structural_tags": "structural_tags"}
    places.update({name: ("constraint", field) for name, field in kinds.items()})
    places.update({f"constraint_{field}": ("constraint", field) for field in _CONSTRAINT_OPTIONS})
    del places["stream"]  # which method is called says it
    return places


OPTION_PLACES: Mapping[str, tuple[str, str]] = _places()


def _assign(message: Any, field: str, content: Any) -> None:
    target = getattr(message, field)
    if isinstance(target, Duration):
        target.FromNanoseconds(round(content * 1e9))
    elif isinstance(content, Mapping):
        target.update(content)
    elif isinstance(target, (bool, int, float, str)):
        setattr(message, field, content)
    else:
        target.extend([content] if isinstance(content, str) else content)


def _strip(content: Any) -> Any:
    """A dataclass as JSON, without what is not set."""
    if dataclasses.is_dataclass(content):
        pairs = ((field.name, getattr(content, field.name)) for field in dataclasses.fields(content))
        return {name: _strip(one) for name, one in pairs if one is not None and one != ()}
    if isinstance(content, enum.Enum):
        return content.value
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_strip(one) for one in content]
    return content


def _constraint_option(field: str, content: Any) -> int:
    """A number of the enumeration, or what the API of OpenAI takes for it."""
    if not isinstance(content, str):
        return int(content)
    words = _CONSTRAINT_OPTIONS[field]
    if content not in words:
        raise ValueError(f"constraint_{field} is {content!r}, must be {' or '.join(words)}")
    return words[content]


def _set_constraint(constraint: sampling_pb2.Constraint, field: str, content: Any) -> None:
    if field in _CONSTRAINT_OPTIONS:
        setattr(constraint, field, _constraint_option(field, content))
        return
    if constraint.WhichOneof("kind") is not None:
        raise TypeError("json_schema, regex, grammar, choices and structural_tags exclude each other")
    if field == "choice":
        if isinstance(content, str):
            raise TypeError("choices is a sequence of texts, not one text")
        constraint.choice.SetInParent()
        constraint.choice.values.extend(content)
        return
    if field == "structural_tags":
        if not isinstance(content, Mapping):
            raise TypeError("structural_tags is a mapping with the fields of quire.v1.StructuralTags")
        constraint.structural_tags.SetInParent()
        json_format.ParseDict(dict(content), constraint.structural_tags)
        return
    if field == "json_schema" and not isinstance(content, str):
        document = content.model_json_schema() if hasattr(content, "model_json_schema") else content
        if not isinstance(document, Mapping):
            raise TypeError("json_schema is a text, a mapping, or something with model_json_schema()")
        content = json.dumps(document)
    setattr(constraint, field, content)


def to_chat(chat: Chat) -> chat_pb2.ChatPrompt:
    return json_format.ParseDict(_strip(chat), chat_pb2.ChatPrompt())


def set_input(message: Any, content: Prompt) -> None:
    """Fills the oneof of a request that takes text, a conversation, or (not Tokenize) ids."""
    if isinstance(content, str):
        message.text = content
    elif isinstance(content, Chat):
        message.chat.CopyFrom(to_chat(content))
    elif isinstance(content, (bytes, bytearray, memoryview)):  # a sequence of numbers too
        raise TypeError("a prompt is text, a conversation or token ids, not bytes")
    else:
        message.token_ids.SetInParent()
        message.token_ids.ids.extend(content)


def to_request(prompt: Prompt, options: Options, *, stream: bool) -> generation_pb2.GenerateRequest:
    """A timeout goes into the request, so those who have a deadline for the call leave it out.

    Raises TypeError for an option that does not exist, and what protobuf raises for one of a wrong type.
    """
    request = generation_pb2.GenerateRequest()
    set_input(request, prompt)
    for name, content in options.items():
        if name not in OPTION_PLACES:
            raise TypeError(f"there is no option {name!r}")
        if content is None:
            continue
        part, field = OPTION_PLACES[name]
        if part == "constraint":
            _set_constraint(request.constraint, field, content)
        else:
            _assign(getattr(request, part) if part else request, field, content)
    request.output.stream = stream
    return request
