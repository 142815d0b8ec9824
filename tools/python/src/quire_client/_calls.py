"""Calls that block and calls for asyncio, behind one interface.

The client's logic is written once, as coroutines that wait only in Call.read_once and Call.wait. In a BlockingCall,
these two methods block the thread and never suspend, so `run` completes such a coroutine without an event loop.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import grpc
import grpc.aio

from ._connection import Attempts
from .errors import cancelled_here, error_of_call

P = ParamSpec("P")
T = TypeVar("T")

EOF = grpc.aio.EOF  # the end of a stream, in both styles


class Call(abc.ABC):
    """One RPC, which is repeated as `attempts` allows while no message has arrived."""

    call: Any = None  # gRPC's object for the current attempt
    cancelled: Any  # threading.Event or asyncio.Event

    def __init__(self, start: Callable[[float | None], Any], is_stream: bool, attempts: Attempts) -> None:
        """Begins the first attempt. `start` takes the timeout of an attempt and returns gRPC's object for it."""
        self._start = start
        self._attempts = attempts
        self._is_received = False
        self.is_stream = is_stream
        self.call = start(attempts.remaining())

    async def read(self) -> Any:
        """Returns the response of a unary call, the next message of a stream, or EOF after the last one."""
        while True:
            try:
                message = await self.read_once()
            except grpc.RpcError as error:
                failure = error_of_call(error)
            except BaseException:  # an interrupt, or a cancelled task
                self.call.cancel()
                raise
            else:
                self._is_received = True
                return message
            delay = None if self._is_received else self._attempts.delay_after(failure)
            if delay is None:
                raise failure
            await self.wait(delay)
            if self.cancelled.is_set():
                raise cancelled_here()
            self.call = self._start(self._attempts.remaining())
            if self.cancelled.is_set():  # another thread cancelled the previous attempt
                self.call.cancel()

    def cancel(self) -> None:
        """Makes the reader fail with CANCELLED. Has no effect on a call that has ended."""
        self.cancelled.set()
        self.call.cancel()

    @abc.abstractmethod
    async def read_once(self) -> Any:
        """Reads from the current attempt, without retries."""

    @abc.abstractmethod
    async def wait(self, seconds: float) -> None:
        """Waits until the time has passed or the call is cancelled."""


class BlockingCall(Call):
    def __init__(self, *arguments: Any) -> None:
        self.cancelled = threading.Event()
        super().__init__(*arguments)

    async def read_once(self) -> Any:
        try:
            return next(self.call, EOF) if self.is_stream else self.call.result()
        except grpc.FutureCancelledError:
            raise cancelled_here() from None

    async def wait(self, seconds: float) -> None:
        self.cancelled.wait(seconds)


class AsyncCall(Call):
    def __init__(self, *arguments: Any) -> None:
        self.cancelled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        super().__init__(*arguments)

    async def read_once(self) -> Any:
        try:
            return await (self.call.read() if self.is_stream else self.call)
        except asyncio.CancelledError:
            # gRPC raises this for a cancelled call and for a cancelled task. Task.cancelling is new in Python 3.11.
            is_task_cancelled = getattr(asyncio.current_task(), "cancelling", bool)()
            if self.cancelled.is_set() and not is_task_cancelled:
                raise cancelled_here() from None
            raise

    async def wait(self, seconds: float) -> None:
        waiter = asyncio.ensure_future(self.cancelled.wait())
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiter.cancel()

    def __del__(self) -> None:
        """Cancels a call that was dropped, because grpc.aio does not. May run in any thread."""
        if self.call is not None and not self.call.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.call.cancel)


class Blocking:
    """Marks the blocking classes."""

    _grpc: Any = grpc  # the module with the functions that make channels
    _call_type: type[Call] = BlockingCall


class Asyncio:
    """Marks the asyncio classes."""

    _grpc: Any = grpc.aio
    _call_type: type[Call] = AsyncCall


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that waits only for blocking calls."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a coroutine over blocking calls was suspended")


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterates over a generator that waits only for blocking calls."""
    try:
        while True:
            yield run(anext(items))
    except StopAsyncIteration:
        return
    finally:
        run(items.aclose())


class both(Generic[P, T]):
    """Decorates a coroutine method: asyncio classes return the coroutine, and blocking classes its result."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        self._blocking = functools.wraps(function)(lambda *args, **kwargs: run(function(*args, **kwargs)))

    @overload
    def __get__(self, owner: Blocking, kind: Any = None) -> Callable[P, T]: ...

    @overload
    def __get__(self, owner: Asyncio, kind: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        function: Any = self._function if issubclass(kind, Asyncio) else self._blocking
        return function.__get__(owner, kind)
