"""Errors of calls, one class for each status code that quired uses; docs/api.md lists codes and reasons.

Decide by `reason`, and by the class when a reason is new or empty: statuses that gRPC itself makes have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from ._convert import from_message, seconds_of
from ._proto import generation_pb2, types_pb2
from .types import Usage


class QuireError(Exception):
    """A call failed."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        metadata: Optional[Mapping[str, str]] = None,
        retry_delay: Optional[float] = None,
        usage: Optional[Usage] = None,
    ) -> None:
        super().__init__(code, message)  # these and the attributes are what a pickle holds
        self.code = code
        self.message = message
        self.reason = reason
        # What the reason says more about: names and numbers as text.
        self.metadata: Mapping[str, str] = dict(metadata or {})
        # Seconds after which another try makes sense; None: the server named none.
        self.retry_delay = retry_delay
        # Tokens spent before the failure.
        self.usage = usage

    def __str__(self) -> str:
        return f"{self.code.name}{'/' if self.reason else ''}{self.reason}: {self.message}"

    @property
    def field(self) -> Optional[str]:
        """Path of the field that is wrong, as in the schema."""
        return self.metadata.get("field")

    @property
    def limits(self) -> Mapping[str, int]:
        """The numbers of `metadata`, such as prompt_tokens and max_context_tokens."""
        numbers = {}
        for key, text in self.metadata.items():
            try:
                numbers[key] = int(text)
            except ValueError:
                continue
        return numbers


class InvalidArgument(QuireError):
    """The request is wrong and has to change."""


class NotFound(QuireError):
    """No such model, request or service."""


class RequestIdInUse(QuireError):
    """A live request has that id."""


class Overloaded(QuireError):
    """A queue or a limit is full, or the request waited too long; later it may work."""


class Unavailable(QuireError):
    """No connection, or a server that loads, drains or ends."""


class FailedPrecondition(QuireError):
    """The state of the server or of the model forbids it."""


class Unsupported(QuireError):
    """This version of the server cannot do that."""


class DeadlineExceeded(QuireError):
    """The time is over."""


class Cancelled(QuireError):
    """Ended by this client, by an operator, or because the client read too slowly."""


class Unauthenticated(QuireError):
    """No token or certificate, or one that is not known."""


class PermissionDenied(QuireError):
    """The caller lacks a scope."""


class ServerFault(QuireError):
    """A defect of the server; its log has more under metadata["incident_id"]."""


_CLASSES = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: RequestIdInUse,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.DATA_LOSS: ServerFault,
    grpc.StatusCode.INTERNAL: ServerFault,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _details(status: bytes) -> dict[str, Any]:
    """What google.rpc.Status carries of a refusal; nothing when the bytes are none."""
    found: dict[str, Any] = {}
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(status).details:
            if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == "quire":
                found.update(reason=info.reason, metadata=dict(info.metadata))
            elif detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
                found["retry_delay"] = seconds_of(retry.retry_delay)
    except DecodeError:
        return {}
    return found


def error_of_call(code: grpc.StatusCode, message: Optional[str], trailers: Optional[Iterable[Any]]) -> QuireError:
    """The error of a call that ended with this status and these trailers, pairs of key and value."""
    found: dict[str, Any] = {}
    for key, content in trailers or ():
        if key == "grpc-status-details-bin" and isinstance(content, bytes):
            found.update(_details(content))
        elif key == "quire-usage-bin" and isinstance(content, bytes):
            found["usage"] = from_message(Usage, types_pb2.Usage.FromString(content))
    return _CLASSES.get(code, QuireError)(code, message or "", **found)


def cancelled_here() -> Cancelled:
    return Cancelled(grpc.StatusCode.CANCELLED, "cancelled by this client")


def error_of_item(item: generation_pb2.ItemError) -> QuireError:
    """The error of one item of a batch."""
    code = _CODES.get(item.code, grpc.StatusCode.UNKNOWN)
    return _CLASSES.get(code, QuireError)(
        code,
        item.message,
        reason=item.reason,
        metadata=dict(item.metadata),
        retry_delay=seconds_of(item.retry_delay) if item.HasField("retry_delay") else None,
        usage=from_message(Usage, item.usage) if item.HasField("usage") else None,
    )
