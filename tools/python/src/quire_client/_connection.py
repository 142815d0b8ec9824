"""Address, credentials, token and retries of a client."""

from __future__ import annotations

import importlib.metadata
import ipaddress
import os
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from .errors import QuireError

VERSION = importlib.metadata.version("quire-client")
PathLike = str | os.PathLike[str]


def tls_credentials(
    ca_file: PathLike | None = None, cert_file: PathLike | None = None, key_file: PathLike | None = None
) -> grpc.ChannelCredentials:
    """Makes credentials from PEM files.

    ca_file: the certificate authorities that may sign the server's certificate; by default those of gRPC.
    cert_file, key_file: the client's certificate chain and key, for servers that require one.
    """
    if (cert_file is None) != (key_file is None):
        raise ValueError("cert_file and key_file must be set together; one is missing")
    ca, key, cert = (None if path is None else Path(path).read_bytes() for path in (ca_file, key_file, cert_file))
    return grpc.ssl_channel_credentials(ca, key, cert)


def is_unix(address: str) -> bool:
    return address.startswith(("unix:", "unix-abstract:"))


def is_loopback(address: str) -> bool:
    """Returns whether traffic to a gRPC target stays on this machine; false when in doubt."""
    if is_unix(address):
        return True
    scheme, colon, rest = address.partition(":")
    if colon and scheme in ("dns", "ipv4", "ipv6"):
        address = rest.removeprefix("///")  # dns://AUTHORITY/HOST keeps its slashes and is not loopback
    return all(_is_loopback_host(one) for one in address.split(","))


def _is_loopback_host(address: str) -> bool:
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    else:  # an address with several colons is IPv6 without a port
        host = address.rpartition(":")[0] if address.count(":") == 1 else address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Token:
    """The bearer token of a client: a text, or the first line of a file, which is read for each call."""

    text: str | None
    file: PathLike | None

    def __post_init__(self) -> None:
        if self.text is not None and self.file is not None:
            raise ValueError("token and token_file cannot be combined; pass one of them")
        self.metadata()  # an unreadable file or a malformed token is reported at once

    def metadata(self) -> tuple[tuple[str, str], ...]:
        text = self.text
        if self.file is not None:
            text = Path(self.file).read_text("utf-8").partition("\n")[0].strip()
        if text is None:
            return ()
        if not re.fullmatch(r"[\x21-\x7e]+", text):  # gRPC would reject the token too, but print it
            raise ValueError(f"{self.file or 'token'}: the token must be printable ASCII without spaces, and not empty")
        return (("authorization", f"Bearer {text}"),)


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed call is repeated.

    A call is repeated after UNAVAILABLE, or after RESOURCE_EXHAUSTED with a delay from the server. It is repeated only
    while no message has arrived and its timeout has not passed. The wait is the server's delay, or else first_delay,
    doubled for each attempt up to max_delay. Up to a quarter is added at random, so that rejected clients do not retry
    at the same time. If the server asks for more than max_delay, the call fails. attempts=1 disables retries.
    """

    attempts: int = 4
    first_delay: float = 0.2
    max_delay: float = 30.0


class Attempts:
    """The attempts of one call."""

    def __init__(self, policy: RetryPolicy, timeout: float | None) -> None:
        self._policy = policy
        self._made = 1
        self._end = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Returns the seconds until the call's deadline, or None if it has no deadline."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def delay_after(self, error: QuireError) -> float | None:
        """Returns the seconds to wait before the next attempt, or None if the call is not repeated."""
        delay = error.retry_delay
        # gRPC reports a message that is too large as RESOURCE_EXHAUSTED, without a delay.
        is_temporary = error.code is grpc.StatusCode.UNAVAILABLE or (
            error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and delay is not None
        )
        if not is_temporary or self._made >= self._policy.attempts:
            return None
        if delay is None:
            delay = min(self._policy.first_delay * 2.0 ** min(self._made - 1, 60), self._policy.max_delay)
        elif delay > self._policy.max_delay:
            return None
        delay *= random.uniform(1.0, 1.25)
        remaining = self.remaining()
        if remaining is not None and delay >= remaining:
            return None
        self._made += 1
        return delay
