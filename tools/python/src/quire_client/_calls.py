"""What each call sends and how its answer is read, for both clients. Nothing here knows a channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Generic, Optional, TypeVar, Union, cast

from google.protobuf.message import Message as ProtoMessage
from grpc_health.v1 import health_pb2

from ._convert import Collector, from_message, set_input, to_chat, to_event, to_request
from ._proto import generation_pb2, model_pb2, text_pb2
from .errors import QuireError, error_of_item
from .types import (
    Chat,
    Completion,
    Detokenized,
    Embeddings,
    Model,
    Options,
    Prompt,
    Rendered,
    Request,
    Scores,
    ServerInfo,
    Tokenized,
)

T = TypeVar("T")

_SERVICE = "/quire.v1.GenerationService/"
GENERATE = _SERVICE + "Generate"
BATCH_GENERATE = _SERVICE + "BatchGenerate"


def serialize(message: ProtoMessage) -> bytes:
    return message.SerializeToString()


@dataclass(frozen=True)
class Unary(Generic[T]):
    """A call with one answer."""

    path: str
    request: ProtoMessage
    response: type[ProtoMessage]
    convert: Callable[[Any], T]
    is_retried: bool = True


def _unary(name: str, request: ProtoMessage, response: type[ProtoMessage], result: type[T]) -> Unary[T]:
    """A call of the service whose whole answer is a `result`."""
    return Unary(_SERVICE + name, request, response, lambda answer: from_message(result, answer))


def tokenize(
    text: Union[str, Chat],
    model: str,
    add_special_tokens: Optional[bool],
    parse_special_tokens: Optional[bool],
    with_pieces: bool,
) -> Unary[Tokenized]:
    request = text_pb2.TokenizeRequest(
        model=model,
        add_special_tokens=add_special_tokens,
        parse_special_tokens=parse_special_tokens,
        with_pieces=with_pieces,
    )
    set_input(request, text)
    return _unary("Tokenize", request, text_pb2.TokenizeResponse, Tokenized)


def embed(
    inputs: Sequence[Union[str, Sequence[int]]],
    model: str,
    pooling: Optional[str],
    normalize: Optional[bool],
    dimensions: Optional[int],
    truncate: bool,
) -> Unary[Embeddings]:
    if isinstance(inputs, str):
        raise TypeError("inputs are a sequence of texts or of lists of token ids, not one text")
    request = text_pb2.EmbedRequest(
        model=model,
        pooling="POOLING_" + (pooling or "unspecified").upper(),
        normalize=normalize,
        dimensions=dimensions,
        truncate=truncate,
    )
    for one in inputs:
        if isinstance(one, str):
            request.inputs.add(text=one)
        else:
            request.inputs.add().token_ids.ids.extend(one)
    return _unary("Embed", request, text_pb2.EmbedResponse, Embeddings)


def score(
    items: Sequence[tuple[Union[str, Sequence[int]], Union[str, Sequence[int]]]],
    model: str,
    return_token_logprobs: bool,
) -> Unary[Scores]:
    request = text_pb2.ScoreRequest(model=model, return_token_logprobs=return_token_logprobs)
    for context, continuation in items:
        item = request.items.add()
        if isinstance(context, str):
            item.context_text = context
        else:
            item.context_ids.ids.extend(context)
        if isinstance(continuation, str):
            item.text = continuation
        else:
            item.token_ids.ids.extend(continuation)
    return _unary("Score", request, text_pb2.ScoreResponse, Scores)


def detokenize(token_ids: Sequence[int], model: str, skip_special_tokens: Optional[bool]) -> Unary[Detokenized]:
    request = text_pb2.DetokenizeRequest(model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens)
    return _unary("Detokenize", request, text_pb2.DetokenizeResponse, Detokenized)


def render_chat(chat: Chat, model: str) -> Unary[Rendered]:
    request = text_pb2.RenderChatRequest(model=model, chat=to_chat(chat))
    return _unary("RenderChat", request, text_pb2.RenderChatResponse, Rendered)


def get_model(name: str) -> Unary[Model]:
    request = model_pb2.GetModelRequest(model=name)
    return Unary(
        _SERVICE + "GetModel", request, model_pb2.GetModelResponse, lambda answer: from_message(Model, answer.model)
    )


def list_models(page_token: str) -> Unary[tuple[list[Model], str]]:
    """One page, and the token of the next; empty after the last."""
    request = model_pb2.ListModelsRequest(page_token=page_token)
    return Unary(
        _SERVICE + "ListModels",
        request,
        model_pb2.ListModelsResponse,
        lambda answer: ([from_message(Model, one) for one in answer.models], answer.next_page_token),
    )


def server_info() -> Unary[ServerInfo]:
    request = model_pb2.GetServerInfoRequest()
    return _unary("GetServerInfo", request, model_pb2.GetServerInfoResponse, ServerInfo)


def cancel(request_id: str) -> Unary[bool]:
    request = generation_pb2.CancelRequest(request_id=request_id)
    return Unary(
        _SERVICE + "Cancel", request, generation_pb2.CancelResponse, lambda answer: bool(answer.found), is_retried=False
    )


def health(service: str) -> Unary[bool]:
    return Unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest(service=service),
        health_pb2.HealthCheckResponse,
        lambda answer: bool(answer.status == health_pb2.HealthCheckResponse.SERVING),
        is_retried=False,
    )


@dataclass(frozen=True)
class BatchItem:
    """The end of one request of a batch: `index` is its place in the list; one of completion and error is there."""

    index: int
    request_id: str
    completion: Optional[Completion]
    error: Optional[QuireError]

    def result(self) -> Completion:
        """The completion, or raises the error."""
        if self.error is not None:
            raise self.error
        return cast(Completion, self.completion)


class Batch:
    """The commands of a batch, and what has come of each item."""

    def __init__(self, requests: Sequence[Union[Request, Prompt]], prefix: str) -> None:
        """Requests without an id get one that begins with `prefix`."""
        if isinstance(requests, str):
            raise TypeError("a batch takes a sequence of requests, not one text")
        self.commands: list[generation_pb2.BatchGenerateRequest] = []
        self._indices: dict[str, int] = {}
        self._collectors: list[Collector] = []
        for index, item in enumerate(requests):
            one = item if isinstance(item, Request) else Request(item)
            options: Options = {**one.options}
            options["request_id"] = options.get("request_id") or f"{prefix}-{index}"
            request = to_request(one.prompt, options, stream=False)
            if request.request_id in self._indices:
                raise ValueError(f"request id {request.request_id} is twice in the batch")
            self._indices[request.request_id] = index
            self._collectors.append(Collector())
            self.commands.append(generation_pb2.BatchGenerateRequest(generate=request))

    def take(self, response: generation_pb2.BatchGenerateResponse) -> Optional[BatchItem]:
        """The item that has ended with this message, if one has."""
        request_id = response.request_id
        index = self._indices[request_id]
        result = response.WhichOneof("result")
        if result == "error":
            return BatchItem(index, request_id, None, error_of_item(response.error))
        if result == "done":
            return BatchItem(index, request_id, self._collectors[index].result(request_id), None)
        event = to_event(response.response)
        if event is not None:
            self._collectors[index].add(event)
        return None
