"""The clients, and the types that they return besides messages."""

from __future__ import annotations

import inspect
import threading
import uuid
import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from . import v1
from ._calls import EOF, Asyncio, Blocking, Call, both, iterate, run
from ._connection import VERSION, Attempts, PathLike, RetryPolicy, Token, is_loopback, is_unix
from .errors import QuireError, error_of_item
from .v1 import generation_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Self

_ONCE = RetryPolicy(attempts=1)


@dataclass
class Completion:
    """A whole answer, joined from the events of its stream. `choices` are in the order of their index."""

    request_id: str = ""
    started: v1.Started = field(default_factory=v1.Started)
    prompt_logprobs: list[v1.TokenLogprob] = field(default_factory=list)
    choices: list[v1.Completed] = field(default_factory=list)
    _deltas: defaultdict[int, list[v1.Delta]] = field(
        default_factory=lambda: defaultdict(list), init=False, repr=False, compare=False
    )

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def message(self) -> v1.ChatMessage:
        """The first choice as a turn of the assistant, which continues ChatPrompt.messages."""
        choice = self.choices[0]
        return v1.ChatMessage(
            role="assistant",
            content=choice.text,
            tool_calls=choice.tool_calls,
            reasoning_content=choice.reasoning_text,
        )

    def add(self, response: v1.GenerateResponse) -> None:
        """Adds the next event."""
        self.request_id = response.request_id
        event = response.WhichOneof("event")
        if event == "started":
            self.started = response.started
        elif event == "prompt_logprobs":
            self.prompt_logprobs.extend(response.prompt_logprobs.tokens)
        elif event == "delta":
            self._deltas[response.delta.index].append(response.delta)
        elif event == "completed":
            self.choices.append(_join(self._deltas.pop(response.completed.index, []), response.completed))
            self.choices.sort(key=lambda choice: choice.index)


def _join(deltas: Sequence[v1.Delta], end: v1.Completed) -> v1.Completed:
    """Returns the completed choice, with the output of its deltas added."""
    if not deltas:
        return end
    whole = v1.Completed()
    whole.CopyFrom(end)
    whole.text = "".join(delta.text for delta in deltas)
    whole.reasoning_text = "".join(delta.reasoning_text for delta in deltas)
    whole.parse_error = next((delta.parse_error for delta in deltas if delta.parse_error), "")
    for delta in deltas:
        whole.token_ids.extend(delta.token_ids)
        whole.logprobs.extend(delta.logprobs)
        for call in delta.tool_calls:
            whole.tool_calls.add(id=call.id, name=call.name, arguments_json=call.arguments_json)
    return whole


@dataclass(frozen=True)
class BatchItem:
    """The outcome of the request at position `index` of a batch."""

    index: int
    outcome: Completion | QuireError

    def result(self) -> Completion:
        """Returns the completion, or raises the error."""
        if isinstance(self.outcome, QuireError):
            raise self.outcome
        return self.outcome


class _Stream:
    """The common part of both streams."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._completion = Completion()

    async def _read(self) -> Any:
        response = await self._call.read()
        if response is not EOF:
            self._completion.add(response)
        return response

    async def _text(self) -> AsyncGenerator[str, None]:
        while (response := await self._read()) is not EOF:
            for part in (response.delta, response.completed):  # the one that is not set is empty
                if part.index == 0 and part.text:
                    yield part.text

    @both
    async def result(self) -> Completion:
        """Reads to the end, and returns the whole answer, including what was read before."""
        while await self._read() is not EOF:
            pass
        return self._completion

    def cancel(self) -> None:
        """Cancels the generation, and makes its reader fail with CANCELLED. Has no effect after the end."""
        self._call.cancel()


class GenerationStream(_Stream, Blocking, Iterator[v1.GenerateResponse]):
    """The responses of one generation as they arrive. Leaving its `with` block cancels the generation.

    One thread may read it, and any thread may cancel it.
    """

    def __next__(self) -> v1.GenerateResponse:
        response = run(self._read())
        if response is EOF:
            raise StopIteration
        return response

    def text(self) -> Iterator[str]:
        """Iterates over the pieces of the first choice's text."""
        return iterate(self._text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class AsyncGenerationStream(_Stream, Asyncio, AsyncIterator[v1.GenerateResponse]):
    """The responses of one generation as they arrive. Leaving its `async with` block cancels the generation."""

    async def __anext__(self) -> v1.GenerateResponse:
        response = await self._read()
        if response is EOF:
            raise StopAsyncIteration
        return response

    def text(self) -> AsyncIterator[str]:
        """Iterates over the pieces of the first choice's text."""
        return self._text()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


class _Client:
    """The common part of both clients."""

    _grpc: ClassVar[Any]
    _call_type: ClassVar[type[Call]]

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        token_file: PathLike | None = None,
        allow_plaintext_token: bool = False,
        timeout: float | None = None,
        retry: RetryPolicy = RetryPolicy(),
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._token = Token(token, token_file)
        if credentials is not None and is_unix(address):
            raise ValueError(f"{address}: quired has no TLS on Unix sockets; leave out credentials")
        has_token = token is not None or token_file is not None
        if has_token and credentials is None and not allow_plaintext_token and not is_loopback(address):
            raise ValueError(f"{address}: the token would cross the network in plain text; pass credentials")
        self._address = address
        self._credentials = credentials
        self._timeout = timeout
        self._retry = retry
        # The daemon sends messages of up to server.grpc.max_send_message_bytes, 64 MiB by default.
        self._options: list[tuple[str, Any]] = [("grpc.primary_user_agent", f"quire-client/{VERSION}")]
        self._options += [("grpc.max_receive_message_length", 64 << 20), ("grpc.keepalive_time_ms", 30_000)]
        if is_loopback(address):
            self._options.append(("grpc.enable_http_proxy", 0))  # a proxy would see the token
        self._options += options
        self._lock = threading.Lock()
        self._channel: Any = None  # guarded by _lock, as are the next three
        self._stubs: dict[Any, Any] = {}
        self._calls: weakref.WeakSet[Call] = weakref.WeakSet()
        self._is_closed = False

    @both
    async def complete(self, request: v1.GenerateRequest, timeout: float | None = None) -> Completion:
        """Generates a whole answer. Sets output.stream to false."""
        call, completion = self._generate(request, timeout, stream=False), Completion()
        try:
            while (response := await call.read()) is not EOF:
                completion.add(response)
        finally:
            call.cancel()
        return completion

    @both
    async def tokenize(self, request: v1.TokenizeRequest, timeout: float | None = None) -> v1.TokenizeResponse:
        return await self._unary(self._stub().Tokenize, request, timeout)

    @both
    async def detokenize(self, request: v1.DetokenizeRequest, timeout: float | None = None) -> v1.DetokenizeResponse:
        return await self._unary(self._stub().Detokenize, request, timeout)

    @both
    async def render_chat(self, request: v1.RenderChatRequest, timeout: float | None = None) -> v1.RenderChatResponse:
        return await self._unary(self._stub().RenderChat, request, timeout)

    @both
    async def embed(self, request: v1.EmbedRequest, timeout: float | None = None) -> v1.EmbedResponse:
        return await self._unary(self._stub().Embed, request, timeout)

    @both
    async def score(self, request: v1.ScoreRequest, timeout: float | None = None) -> v1.ScoreResponse:
        return await self._unary(self._stub().Score, request, timeout)

    @both
    async def get_model(self, request: v1.GetModelRequest, timeout: float | None = None) -> v1.GetModelResponse:
        return await self._unary(self._stub().GetModel, request, timeout)

    @both
    async def list_models(self, request: v1.ListModelsRequest, timeout: float | None = None) -> v1.ListModelsResponse:
        return await self._unary(self._stub().ListModels, request, timeout)

    @both
    async def get_server_info(
        self, request: v1.GetServerInfoRequest, timeout: float | None = None
    ) -> v1.GetServerInfoResponse:
        return await self._unary(self._stub().GetServerInfo, request, timeout)

    @both
    async def cancel(self, request: v1.CancelRequest, timeout: float | None = None) -> v1.CancelResponse:
        """Cancels a request by its id, for callers that lost the stream. The call is never repeated."""
        return await self._unary(self._stub().Cancel, request, timeout, _ONCE)

    @both
    async def health(self, service: str = "readiness", timeout: float | None = None) -> bool:
        """Returns whether `readiness`, `liveness` or `startup` is SERVING. The call is never repeated."""
        request = health_pb2.HealthCheckRequest(service=service)
        response = await self._unary(self._stub(health_pb2_grpc.HealthStub).Check, request, timeout, _ONCE)
        return response.status == health_pb2.HealthCheckResponse.SERVING

    @both
    async def close(self) -> None:
        """Cancels all running calls and closes the connection."""
        with self._lock:
            self._is_closed = True
            calls, channel = list(self._calls), self._channel
        for call in calls:
            call.cancel()
        closing = None if channel is None else channel.close()
        if inspect.isawaitable(closing):  # a channel of asyncio
            await closing

    def _stub(self, kind: Any = generation_pb2_grpc.GenerationServiceStub) -> Any:
        """Returns a stub. Makes the channel at first use, because a channel of asyncio belongs to the running loop."""
        with self._lock:
            if self._is_closed:
                raise ValueError("the client is closed")
            if self._channel is None and self._credentials is None:
                self._channel = self._grpc.insecure_channel(self._address, self._options)
            elif self._channel is None:
                self._channel = self._grpc.secure_channel(self._address, self._credentials, self._options)
            if kind not in self._stubs:
                self._stubs[kind] = kind(self._channel)
            return self._stubs[kind]

    def _open(self, method: Any, request: Any, timeout: float | None, retry: RetryPolicy, is_stream: bool) -> Call:
        begin = getattr(method, "future", method)  # the form of a blocking unary call that can be cancelled

        def start(remaining: float | None) -> Any:
            return begin(request, timeout=remaining, metadata=self._token.metadata())

        call = self._call_type(start, is_stream, Attempts(retry, self._timeout if timeout is None else timeout))
        with self._lock:
            self._calls.add(call)
            if self._is_closed:
                call.cancel()
        return call

    async def _unary(self, method: Any, request: Any, timeout: float | None, retry: RetryPolicy | None = None) -> Any:
        return await self._open(method, request, timeout, retry or self._retry, is_stream=False).read()

    def _generate(self, request: v1.GenerateRequest, timeout: float | None, stream: bool) -> Call:
        sent = v1.GenerateRequest()
        sent.CopyFrom(request)
        sent.output.stream = stream
        return self._open(self._stub().Generate, sent, timeout, self._retry, is_stream=True)

    def _batch(
        self, requests: Iterable[v1.GenerateRequest], timeout: float | None
    ) -> AsyncGenerator[BatchItem, None]:
        prefix, commands, answers = uuid.uuid4().hex, [], {}
        for index, request in enumerate(requests):
            command = v1.BatchGenerateRequest(generate=request)
            command.generate.output.stream = False
            command.generate.request_id = request_id = request.request_id or f"{prefix}-{index}"
            if request_id in answers:
                raise ValueError(f"request_id {request_id} occurs twice in the batch")
            commands.append(command)
            answers[request_id] = index, Completion()
        call = self._open(self._stub().BatchGenerate, iter(commands), timeout, _ONCE, is_stream=True)
        return _read_batch(call, answers)


async def _read_batch(call: Call, answers: dict[str, tuple[int, Completion]]) -> AsyncGenerator[BatchItem, None]:
    try:
        while (message := await call.read()) is not EOF:
            index, completion = answers[message.request_id]
            result = message.WhichOneof("result")
            if result == "response":
                completion.add(message.response)
            elif result is not None:
                del answers[message.request_id]
                yield BatchItem(index, error_of_item(message.error) if result == "error" else completion)
    finally:
        call.cancel()


class Client(_Client, Blocking):
    """A connection to the data listener of quired. Leaving its `with` block cancels all running calls.

    Methods take and return messages of quire_client.v1, and raise QuireError. `timeout` is in seconds and covers all
    attempts of a call. Its default is the timeout of the client. Many threads may use one client.

    address: HOST:PORT, or unix:PATH.
    credentials: the result of tls_credentials() or credentials of gRPC itself; None means plain text.
    token, token_file: a bearer token, or a file whose first line is the token. The file is read for each call. A token is
        sent without credentials only to Unix sockets and loopback addresses, unless allow_plaintext_token is true.
    options: channel options of gRPC, such as ("grpc.ssl_target_name_override", NAME).
    """

    def generate(self, request: v1.GenerateRequest, timeout: float | None = None) -> GenerationStream:
        """Starts a generation and returns its stream. Sets output.stream to true."""
        return GenerationStream(self._generate(request, timeout, stream=True))

    def batch(self, requests: Iterable[v1.GenerateRequest], timeout: float | None = None) -> Iterator[BatchItem]:
        """Sends many requests over one call, and iterates over their outcomes in the order in which they end.

        `timeout` covers the whole call. Nothing is repeated. Closing the iterator cancels running requests.
        """
        return iterate(self._batch(requests, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Client, Asyncio):
    """Like Client, for use in one event loop. Cancelling a task cancels the call that it waits for."""

    def generate(self, request: v1.GenerateRequest, timeout: float | None = None) -> AsyncGenerationStream:
        """Starts a generation and returns its stream. Sets output.stream to true."""
        return AsyncGenerationStream(self._generate(request, timeout, stream=True))

    def batch(self, requests: Iterable[v1.GenerateRequest], timeout: float | None = None) -> AsyncIterator[BatchItem]:
        """Like Client.batch."""
        return self._batch(requests, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
