"""The client for asyncio. To be used in one event loop, from its first call on."""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

import grpc
import grpc.aio

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


def _is_task_cancelled() -> bool:
    """Whether the task that runs is being cancelled; what Python 3.10 and older do not tell is false."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and bool(cancelling())


async def _happens_within(event: asyncio.Event, seconds: float) -> bool:
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([waiter], timeout=seconds)
    finally:
        waiter.cancel()
    return event.is_set()


class _Messages(AsyncIterator[Any]):
    """Messages of one streaming call, which is made again while nothing has arrived and that is safe."""

    def __init__(self, open_call: Callable[[Optional[float]], Any], attempts: Attempts) -> None:
        self._open = open_call
        self._attempts = attempts
        self._is_received = False
        self._is_cancelled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._call = open_call(attempts.remaining())

    async def __anext__(self) -> Any:
        while True:
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError as error:
                failure = error_of_call(error.code(), error.details(), error.trailing_metadata())
            except asyncio.CancelledError:
                # gRPC tells of a cancelled call as if the task were cancelled.
                if self._is_cancelled.is_set() and not _is_task_cancelled():
                    raise cancelled_here() from None
                self._call.cancel()
                raise
            else:
                if message is grpc.aio.EOF:
                    raise StopAsyncIteration
                self._is_received = True
                return message
            delay = None if self._is_received else self._attempts.delay_after(failure)
            if delay is None:
                raise failure
            if await _happens_within(self._is_cancelled, delay):
                raise cancelled_here()
            self._call = self._open(self._attempts.remaining())

    def cancel(self) -> None:
        self._is_cancelled.set()
        self._call.cancel()

    def __del__(self) -> None:
        """Dropped, perhaps by another thread's collector: gRPC would let the call run."""
        call = getattr(self, "_call", None)  # none if it could not be made
        if call is not None and not call.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call.cancel)


class AsyncGenerationStream(AsyncIterator[Event]):
    """Events of one generation as they come. Leaving its `async with` block cancels what still runs."""

    def __init__(self, messages: _Messages, request_id: str) -> None:
        self._messages = messages
        self._collector = Collector()
        # The id in effect; empty until the first event if the server chooses it.
        self.request_id = request_id

    async def __anext__(self) -> Event:
        async for response in self._messages:
            self.request_id = response.request_id
            event = to_event(response)
            if event is not None:
                self._collector.add(event)
                return event
        raise StopAsyncIteration

    async def text(self) -> AsyncIterator[str]:
        """Pieces of the first choice's text."""
        async for event in self:
            if isinstance(event, (Delta, Completed)) and event.index == 0 and event.text:
                yield event.text

    async def result(self) -> Completion:
        """Reads to the end; the whole answer, what was read before included."""
        async for _ in self:
            pass
        return self._collector.result(self.request_id)

    def cancel(self) -> None:
        """Ends the request; its reader gets Cancelled. Nothing happens when it has ended."""
        self._messages.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


class AsyncClient:
    """As Client, with `await`. Cancelling a task cancels the request that it waits for."""

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
        self._streams: weakref.WeakSet[_Messages] = weakref.WeakSet()
        self._unary_calls: weakref.WeakSet[asyncio.Event] = weakref.WeakSet()  # to be set when the client is closed
        self._open_channel: Optional[grpc.aio.Channel] = None
        self._is_closed = False

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncGenerationStream:
        """Starts a generation and streams its events. Use it in an `async with` block."""
        return self._generate(prompt, options, stream=True)

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """The whole answer at once."""
        async with self._generate(prompt, options, stream=False) as stream:
            return await stream.result()

    async def batch(self, requests: Sequence[Union[Request, Prompt]]) -> AsyncIterator[BatchItem]:
        """Many requests over one stream; each item when it ends, in any order. Closing the iterator cancels the rest.

        An item has a timeout of its own in its options. Nothing is tried again.
        """
        batch = Batch(requests, uuid.uuid4().hex)
        method = self._channel().stream_stream(
            _calls.BATCH_GENERATE, serialize, generation_pb2.BatchGenerateResponse.FromString
        )
        messages = self._stream(
            lambda timeout: method(iter(batch.commands), timeout=timeout, metadata=self._connection.metadata()),
            Attempts(RetryPolicy(attempts=1), self._timeout),
        )
        try:
            async for response in messages:
                item = batch.take(response)
                if item is not None:
                    yield item
        finally:
            messages.cancel()

    async def tokenize(
        self,
        text: Union[str, Chat],
        *,
        model: str = "",
        add_special_tokens: Optional[bool] = None,
        parse_special_tokens: Optional[bool] = None,
        with_pieces: bool = False,
    ) -> Tokenized:
        return await self._call(_calls.tokenize(text, model, add_special_tokens, parse_special_tokens, with_pieces))

    async def embed(
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
        return await self._call(_calls.embed(inputs, model, pooling, normalize, dimensions, truncate))

    async def score(
        self,
        items: Sequence[tuple[Union[str, Sequence[int]], Union[str, Sequence[int]]]],
        *,
        model: str = "",
        return_token_logprobs: bool = False,
    ) -> Scores:
        """Log-probabilities of continuations: (context, continuation) of texts or token ids."""
        return await self._call(_calls.score(items, model, return_token_logprobs))

    async def detokenize(
        self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: Optional[bool] = None
    ) -> Detokenized:
        return await self._call(_calls.detokenize(token_ids, model, skip_special_tokens))

    async def render_chat(self, chat: Chat, *, model: str = "") -> Rendered:
        """What the model would see."""
        return await self._call(_calls.render_chat(chat, model))

    async def model(self, name: str = "") -> Model:
        """The model of that name; the default one without."""
        return await self._call(_calls.get_model(name))

    async def models(self) -> list[Model]:
        models, page_token = await self._call(_calls.list_models(""))
        while page_token:
            page, page_token = await self._call(_calls.list_models(page_token))
            models += page
        return models

    async def server_info(self) -> ServerInfo:
        return await self._call(_calls.server_info())

    async def cancel(self, request_id: str) -> bool:
        """Ends a request of this caller by its id; false when there is none."""
        return await self._call(_calls.cancel(request_id))

    async def health(self, service: str = "readiness") -> bool:
        """Whether the server says SERVING for readiness, liveness or startup."""
        return await self._call(_calls.health(service))

    async def close(self) -> None:
        """Cancels what still runs and closes the connection."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.cancel()
        for closing in list(self._unary_calls):
            closing.set()
        if self._open_channel is not None:
            await self._open_channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _channel(self) -> grpc.aio.Channel:
        """Made by the first call, since it belongs to the loop that runs then."""
        if self._is_closed:
            raise ValueError("the client is closed")
        if self._open_channel is None:
            address, options = self._connection.address, self._connection.options()
            credentials = self._connection.credentials
            self._open_channel = (
                grpc.aio.insecure_channel(address, options)
                if credentials is None
                else grpc.aio.secure_channel(address, credentials, options)
            )
        return self._open_channel

    def _generate(self, prompt: Prompt, options: Options, *, stream: bool) -> AsyncGenerationStream:
        attempts = Attempts(self._retry, options.pop("timeout", self._timeout))
        request = to_request(prompt, options, stream=stream)
        method = self._channel().unary_stream(_calls.GENERATE, serialize, generation_pb2.GenerateResponse.FromString)
        messages = self._stream(
            lambda timeout: method(request, timeout=timeout, metadata=self._connection.metadata()), attempts
        )
        return AsyncGenerationStream(messages, request.request_id)

    def _stream(self, open_call: Callable[[Optional[float]], Any], attempts: Attempts) -> _Messages:
        messages = _Messages(open_call, attempts)
        self._streams.add(messages)
        return messages

    async def _call(self, unary: Unary[T]) -> T:
        attempts = Attempts(self._retry if unary.is_retried else RetryPolicy(attempts=1), self._timeout)
        method = self._channel().unary_unary(unary.path, serialize, unary.response.FromString)
        closing = asyncio.Event()
        self._unary_calls.add(closing)
        while True:
            timeout, metadata = attempts.remaining(), self._connection.metadata()
            try:
                return unary.convert(await method(unary.request, timeout=timeout, metadata=metadata))
            except grpc.aio.AioRpcError as error:
                failure = error_of_call(error.code(), error.details(), error.trailing_metadata())
            except asyncio.CancelledError:
                if closing.is_set() and not _is_task_cancelled():
                    raise cancelled_here() from None
                raise
            delay = attempts.delay_after(failure)
            if delay is None:
                raise failure
            if await _happens_within(closing, delay):
                raise cancelled_here()
