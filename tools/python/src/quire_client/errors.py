"""The error of a failed call. docs/api.md lists the codes and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from . import v1

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class QuireError(Exception):
    """A call failed.

    code: the gRPC status code.
    message: human-readable text.
    reason: a reason of docs/api.md; empty if gRPC itself created the status, for example without a connection.
    metadata: facts that belong to the reason, such as `field` or `max_context_tokens`; numbers are text.
    retry_delay: seconds after which the server suggests another attempt.
    usage: tokens spent before the failure.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay: float | None = None,
        usage: v1.Usage | None = None,
    ) -> None:
        super().__init__(code, message)  # pickle restores these two, then the attributes
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_delay = retry_delay
        self.usage = usage

    def __str__(self) -> str:
        return f"{self.code.name}{'/' if self.reason else ''}{self.reason}: {self.message}"


def _details(status: bytes) -> dict[str, Any]:
    """Reads a serialized google.rpc.Status. Other bytes are ignored."""
    found: dict[str, Any] = {}
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(status).details:
            if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == "quire":
                found.update(reason=info.reason, metadata=info.metadata)
            elif detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
                found["retry_delay"] = retry.retry_delay.ToNanoseconds() / 1e9
    except DecodeError:
        return {}
    return found


def error_of_call(error: Any) -> QuireError:
    """Converts a grpc.RpcError, which is also the call that failed."""
    found: dict[str, Any] = {}
    for key, content in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            found.update(_details(content))
        elif key == "quire-usage-bin":
            found["usage"] = v1.Usage.FromString(content)
    return QuireError(error.code(), error.details() or "", **found)


def error_of_item(item: v1.ItemError) -> QuireError:
    """Converts the error of one request of a batch."""
    return QuireError(
        _CODES.get(item.code, grpc.StatusCode.UNKNOWN),
        item.message,
        reason=item.reason,
        metadata=item.metadata,
        retry_delay=item.retry_delay.ToNanoseconds() / 1e9 if item.HasField("retry_delay") else None,
        usage=item.usage if item.HasField("usage") else None,
    )


def cancelled_here() -> QuireError:
    return QuireError(grpc.StatusCode.CANCELLED, "cancelled by this client")
