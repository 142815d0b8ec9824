"""The blocking client. One may be used by many threads; a stream by one, but any thread may cancel it."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

import grpc

from . import _calls
from ._calls import Batch, BatchItem, Unary, serialize
from ._connection import TLS, Attempts, Connection, PathLike, RetryPolicy
from ._convert import Collector, to_event, to_request
from ._proto import generation_pb2
from .errors import cancelled_here, error_of_call
from .types import (
    Chat,
    Completed,
    Completion,
    Delta,
    Detokenized,
    Embeddings,
    Event,
    Model,
    Options,
    Prompt,
    Rendered,
    Request,
    Scores,
    ServerInfo,
    Tokenized,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class _Messages(Iterator[Any]):
    """Messages of one streaming call, which is made again while nothing has arrived and that is safe."""

    def __init__(self, open_call: Callable[[Optional[float]], Any], attempts: Attempts) -> None:
        self._open = open_call
        self._attempts = attempts
        self._is_received = False
        self._is_cancelled = threading.Event()
        self._call = open_call(attempts.remaining())

    def __next__(self) -> Any:
        while True:
            try:
                message = next(self._call)
            except grpc.RpcError as error:
                failure = error_of_call(error.code(), error.details(), error.trailing_metadata())
            except BaseException:  # the end of the stream, or an interrupt
                self._call.cancel()
                raise
            else:
                self._is_received = True
                return message
            delay = None if self._is_received else self._attempts.delay_after(failure)
            if delay is None:
                raise failure
            if self._is_cancelled.wait(delay):
                raise cancelled_here()
            self._call = self._open(self._attempts.remaining())
            if self._is_cancelled.is_set():
                self._call.cancel()

    def cancel(self) -> None:
        self._is_cancelled.set()
        self._call.cancel()


class GenerationStream(Iterator[Event]):
    """Events of one generation as they come. Leaving its `with` block cancels what still runs."""

    def __init__(self, messages: _Messages, request_id: str) -> None:
        self._messages = messages
        self._collector = Collector()
        # The id in effect; empty until the first event if the server chooses it.
        self.request_id = request_id

    def __next__(self) -> Event:
        for response in self._messages:
            self.request_id = response.request_id
            event = to_event(response)
            if event is not None:
                self._collector.add(event)
                return event
        raise StopIteration

    def text(self) -> Iterator[str]:
        """Pieces of the first choice's text."""
        for event in self:
            if isinstance(event, (Delta, Completed)) and event.index == 0 and event.text:
                yield event.text

    def result(self) -> Completion:
        """Reads to the end; the whole answer, what was read before included."""
        for _ in self:
            pass
        return self._collector.result(self.request_id)

    def cancel(self) -> None:
        """Ends the request; its reader gets Cancelled. Nothing happens when it has ended."""
        self._messages.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Client:
    """A connection to the data listener of quired. Leaving its `with` block cancels what still runs.

    address: host:port or unix:PATH. timeout: seconds for calls that do not say. token_file: its first line, read again
    for each call. A token goes over plain TCP to this machine only, unless allow_plaintext_token says more.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        tls: Optional[TLS] = None,
        token: Optional[str] = None,
        token_file: Optional[PathLike] = None,
        allow_plaintext_token: bool = False,
        timeout: Optional[float] = None,
        retry: RetryPolicy = RetryPolicy(),
    ) -> None:
        self._connection = Connection(address, tls, token, token_file, allow_plaintext_token)
        self._timeout = timeout
        self._retry = retry
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[_Messages] = weakref.WeakSet()  # guarded by _lock
        self._is_closed = threading.Event()
        options, credentials = self._connection.options(), self._connection.credentials
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> GenerationStream:
        """Starts a generation and streams its events. Use it in a `with` block."""
        return self._generate(prompt, options, stream=True)

    def complete(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """The whole answer at once."""
        with self._generate(prompt, options, stream=False) as stream:
            return stream.result()

    def batch(self, requests: Sequence[Union[Request, Prompt]]) -> Iterator[BatchItem]:
        """Many requests over one stream; each item when it ends, in any order. Closing the iterator cancels the rest.

        An item has a timeout of its own in its options. Nothing is tried again.
        """
        batch = Batch(requests, uuid.uuid4().hex)
        method = self._channel.stream_stream(
            _calls.BATCH_GENERATE, serialize, generation_pb2.BatchGenerateResponse.FromString
        )
        messages = self._stream(
            lambda timeout: method(iter(batch.commands), timeout=timeout, metadata=self._connection.metadata()),
            Attempts(RetryPolicy(attempts=1), self._timeout),
        )
        return _read_batch(batch, messages)

    def tokenize(
        self,
        text: Union[str, Chat],
        *,
        model: str = "",
        add_special_tokens: Optional[bool] = None,
        parse_special_tokens: Optional[bool] = None,
        with_pieces: bool = False,
    ) -> Tokenized:
        return self._call(_calls.tokenize(text, model, add_special_tokens, parse_special_tokens, with_pieces))

    def embed(
        self,
        inputs: Sequence[Union[str, Sequence[int]]],
        *,
        model: str = "",
        pooling: Optional[str] = None,
        normalize: Optional[bool] = None,
        dimensions: Optional[int] = None,
        truncate: bool = False,
    ) -> Embeddings:
        """Vectors of texts or of lists of token ids. pooling: last, mean or cls; what is not given is the model's."""
        return self._call(_calls.embed(inputs, model, pooling, normalize, dimensions, truncate))

    def score(
        self,
        items: Sequence[tuple[Union[str, Sequence[int]], Union[str, Sequence[int]]]],
        *,
        model: str = "",
        return_token_logprobs: bool = False,
    ) -> Scores:
        """Log-probabilities of continuations: (context, continuation) of texts or token ids."""
        return self._call(_calls.score(items, model, return_token_logprobs))

    def detokenize(
        self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: Optional[bool] = None
    ) -> Detokenized:
        return self._call(_calls.detokenize(token_ids, model, skip_special_tokens))

    def render_chat(self, chat: Chat, *, model: str = "") -> Rendered:
        """What the model would see."""
        return self._call(_calls.render_chat(chat, model))

    def model(self, name: str = "") -> Model:
        """The model of that name; the default one without."""
        return self._call(_calls.get_model(name))

    def models(self) -> list[Model]:
        models, page_token = self._call(_calls.list_models(""))
        while page_token:
            page, page_token = self._call(_calls.list_models(page_token))
            models += page
        return models

    def server_info(self) -> ServerInfo:
        return self._call(_calls.server_info())

    def cancel(self, request_id: str) -> bool:
        """Ends a request of this caller by its id; false when there is none."""
        return self._call(_calls.cancel(request_id))

    def health(self, service: str = "readiness") -> bool:
        """Whether the server says SERVING for readiness, liveness or startup."""
        return self._call(_calls.health(service))

    def close(self) -> None:
        """Cancels what still runs and closes the connection."""
        self._is_closed.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _generate(self, prompt: Prompt, options: Options, *, stream: bool) -> GenerationStream:
        attempts = Attempts(self._retry, options.pop("timeout", self._timeout))
        request = to_request(prompt, options, stream=stream)
        method = self._channel.unary_stream(_calls.GENERATE, serialize, generation_pb2.GenerateResponse.FromString)
        messages = self._stream(
            lambda timeout: method(request, timeout=timeout, metadata=self._connection.metadata()), attempts
        )
        return GenerationStream(messages, request.request_id)

    def _stream(self, open_call: Callable[[Optional[float]], Any], attempts: Attempts) -> _Messages:
        messages = _Messages(open_call, attempts)
        with self._lock:
            self._streams.add(messages)
        return messages

    def _call(self, unary: Unary[T]) -> T:
        attempts = Attempts(self._retry if unary.is_retried else RetryPolicy(attempts=1), self._timeout)
        method = self._channel.unary_unary(unary.path, serialize, unary.response.FromString)
        while True:
            call = method.future(unary.request, timeout=attempts.remaining(), metadata=self._connection.metadata())
            try:
                return unary.convert(call.result())
            except grpc.RpcError as error:
                failure = error_of_call(error.code(), error.details(), error.trailing_metadata())
            except BaseException:
                call.cancel()
                raise
            delay = attempts.delay_after(failure)
            if delay is None:
                raise failure
            if self._is_closed.wait(delay):
                raise cancelled_here()


def _read_batch(batch: Batch, messages: _Messages) -> Iterator[BatchItem]:
    try:
        for response in messages:
            item = batch.take(response)
            if item is not None:
                yield item
    finally:
        messages.cancel()
