"""Where a server is, how it is proven, who calls, and when to try again: what both clients share."""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import grpc

from .errors import Overloaded, QuireError, Unavailable

VERSION = importlib.metadata.version("quire-client")
PathLike = Union[str, "os.PathLike[str]"]

# The daemon sends messages up to server.grpc.max_send_message_bytes, 64 MiB by default.
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.primary_user_agent", f"quire-client/{VERSION}"),
    ("grpc.keepalive_time_ms", 30_000),
)


@dataclass(frozen=True)
class TLS:
    """PEM files, read when a client is made.

    ca_file: authorities that the server's certificate is checked against (gRPC's own without).
    cert_file, key_file: the client's certificate and key, for servers that ask for one.
    server_name: name in the server's certificate, if it is not that of the address.
    """

    ca_file: Optional[PathLike] = None
    cert_file: Optional[PathLike] = None
    key_file: Optional[PathLike] = None
    server_name: Optional[str] = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together, and one is missing")
        contents = [None if path is None else Path(path).read_bytes() for path in self._files()]
        return grpc.ssl_channel_credentials(*contents)

    def _files(self) -> tuple[Optional[PathLike], ...]:
        return self.ca_file, self.key_file, self.cert_file


def is_unix(address: str) -> bool:
    return address.startswith(("unix:", "unix-abstract:"))


def is_loopback(address: str) -> bool:
    """Whether no network can see what goes to a gRPC target; false when in doubt."""
    if is_unix(address):
        return True
    scheme, colon, rest = address.partition(":")
    if colon and scheme in ("dns", "ipv4", "ipv6"):
        address = rest[3:] if rest.startswith("///") else rest  # with an authority it stays as it is, and is no host
    return all(_is_loopback_host(one) for one in address.split(","))


def _is_loopback_host(address: str) -> bool:
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    else:  # without a port; more colons than one are those of an IPv6 address
        host = address.rpartition(":")[0] if address.count(":") == 1 else address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class RetryPolicy:
    """When a call that failed is made again.

    Only UNAVAILABLE and RESOURCE_EXHAUSTED are tried again, only while no message has arrived, and only within the
    call's timeout. The wait is the delay that the server names, or one that doubles from first_delay; up to a quarter
    is added by chance, so that refused clients do not come back together. A server that names more than max_delay is
    not waited for. attempts=1 switches all of it off.
    """

    attempts: int = 4
    first_delay: float = 0.2
    max_delay: float = 30.0


class Attempts:
    """Those of one call."""

    def __init__(self, policy: RetryPolicy, timeout: Optional[float]) -> None:
        self._policy = policy
        self._made = 1
        self._end = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> Optional[float]:
        """Seconds until the call's deadline; None without one."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def delay_after(self, error: QuireError) -> Optional[float]:
        """Seconds to wait before the next attempt; None: there is none."""
        if self._made >= self._policy.attempts or not self._may_work_later(error):
            return None
        delay = error.retry_delay
        if delay is None:
            doubled = self._policy.first_delay * 2.0 ** min(self._made - 1, 60)
            delay = min(doubled, self._policy.max_delay)
        elif delay > self._policy.max_delay:
            return None
        delay *= random.uniform(1.0, 1.25)
        remaining = self.remaining()
        if remaining is not None and delay >= remaining:
            return None
        self._made += 1
        return delay

    @staticmethod
    def _may_work_later(error: QuireError) -> bool:
        if isinstance(error, Overloaded):  # gRPC says the same of a message that is too large, without a delay
            return error.retry_delay is not None
        return isinstance(error, Unavailable)


class Connection:
    """What a client was told about its server. Reads the token file again for each call."""

    def __init__(
        self,
        address: str,
        tls: Optional[TLS],
        token: Optional[str],
        token_file: Optional[PathLike],
        allow_plaintext_token: bool,
    ) -> None:
        if token is not None and token_file is not None:
            raise ValueError("token and token_file: only one of them")
        if tls is not None and is_unix(address):
            raise ValueError(f"{address}: Unix sockets of quired have no TLS")
        has_token = token is not None or token_file is not None
        if has_token and tls is None and not allow_plaintext_token and not is_loopback(address):
            raise ValueError(f"{address}: the network could read the token; use tls, or allow_plaintext_token")
        self.address = address
        self.credentials = None if tls is None else tls.credentials()
        self._server_name = None if tls is None else tls.server_name
        self._token = token
        self._token_file = token_file
        self.metadata()  # a token file that cannot be read is told at once

    def options(self) -> list[tuple[str, Any]]:
        options: list[tuple[str, Any]] = list(_CHANNEL_OPTIONS)
        if is_loopback(self.address):
            options.append(("grpc.enable_http_proxy", 0))  # a proxy would see the token
        if self._server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._server_name))
        return options

    def metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._token
        if self._token_file is not None:
            lines = Path(self._token_file).read_text("utf-8").splitlines()
            token = lines[0].strip() if lines else ""
        if token is None:
            return ()
        if not re.fullmatch(r"[\x21-\x7e]+", token):  # gRPC would refuse it, and show it in its error
            raise ValueError(f"{self._token_file or 'token'}: the token is empty, or has other than printable ASCII")
        return (("authorization", f"Bearer {token}"),)
