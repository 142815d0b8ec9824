"""Retries of quire-client, cancellation of its pending calls, and the peers to which it sends its token."""

import asyncio
import contextlib
import pickle
import sys
import threading
import time
from concurrent import futures

import grpc
import pytest
from attack_tools import Files, token_line
from certificates import Authority
from daemon import Daemon
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from waiting import wait_until

pytest_plugins = ["python_package"]

ONCE = "Once upon a time"


def refusal(code, reason, delay=None, domain="quire"):
    status = status_pb2.Status(code=code.value[0], message="refused")
    details = [error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata={"limit": "3"})]
    if delay is not None:
        duration = duration_pb2.Duration()
        duration.FromNanoseconds(int(delay * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=duration))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return rpc_status.to_status(status)


class FakeServer:
    """Rejects the first `refusals` attempts, before or after the first message, then answers."""

    def __init__(self, api):
        self.api = api
        self.refusals, self.first_message, self.times, self.tokens = [], False, [], []
        self.may_answer = threading.Event()
        self.may_answer.set()
        handlers = {
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.generate, api.GenerateRequest.FromString, api.GenerateResponse.SerializeToString
            ),
            "Tokenize": grpc.unary_unary_rpc_method_handler(
                self.tokenize, api.TokenizeRequest.FromString, api.TokenizeResponse.SerializeToString
            ),
            "Cancel": grpc.unary_unary_rpc_method_handler(
                self.cancel, api.CancelRequest.FromString, api.CancelResponse.SerializeToString
            ),
        }
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        service = grpc.method_handlers_generic_handler("quire.v1.GenerationService", handlers)
        self.server.add_generic_rpc_handlers([service])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.server.start()

    def arrive(self, context):
        self.times.append(time.monotonic())
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        self.may_answer.wait(30)
        return self.refusals.pop(0) if self.refusals else None

    def generate(self, request, context):
        refused = self.arrive(context)
        if refused is None or self.first_message:
            yield self.api.GenerateResponse(request_id="1", started=self.api.Started(model="fake"))
            yield self.api.GenerateResponse(request_id="1")  # an event that a later version may send
        if refused is not None:
            context.abort_with_status(refused)
        end = self.api.Completed(text="done", finish_reason=99, usage=self.api.Usage(completion_tokens=1))
        yield self.api.GenerateResponse(request_id="1", completed=end)

    def tokenize(self, request, context):
        refused = self.arrive(context)
        if refused is not None:
            context.abort_with_status(refused)
        return self.api.TokenizeResponse(token_ids=[1, 2])

    def cancel(self, request, context):
        context.abort_with_status(self.arrive(context) or refusal(grpc.StatusCode.INTERNAL, "NONE"))


@pytest.fixture
def fake(api):
    running = FakeServer(api)
    yield running
    running.may_answer.set()
    running.server.stop(0)


QUEUE_FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
LOADING = (grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING")
REQUESTS = {"generate": "GenerateRequest", "complete": "GenerateRequest", "tokenize": "TokenizeRequest"}


def request_of(q, name):
    return getattr(q.v1, REQUESTS[name])(text=ONCE)


def call(q, fake, name, is_async, **options):
    """Returns the outcome of one call by the sync or the asyncio client."""
    if not is_async:
        with q.Client(fake.address, **options) as client:
            return getattr(client, name)(request_of(q, name))

    async def use():
        async with q.AsyncClient(fake.address, **options) as client:
            return await getattr(client, name)(request_of(q, name))

    return asyncio.run(use())


either_client = pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asyncio"])


@either_client
@pytest.mark.parametrize("name", ["complete", "tokenize"])
@pytest.mark.parametrize("why, delays", [(QUEUE_FULL, [0.1, 0.3]), (LOADING, [0.2, 0.1]), (LOADING, [None, None])])
def test_rejected_calls_are_retried_after_the_server_delay(q, fake, is_async, name, why, delays):
    fake.refusals = [refusal(*why, delay=delay) for delay in delays]
    answer = call(q, fake, name, is_async, retry=q.RetryPolicy(first_delay=0.1))
    assert answer.text == "done" if name == "complete" else answer.token_ids == [1, 2]
    if name == "complete":
        assert answer.choices[0].finish_reason == 99  # a finish reason of a later version
    waited = [later - earlier for earlier, later in zip(fake.times, fake.times[1:])]
    wanted = [0.1 * 2**i if delay is None else delay for i, delay in enumerate(delays)]
    assert len(waited) == 2
    assert all(delay <= one < delay + 10 for delay, one in zip(wanted, waited)), waited


@either_client
@pytest.mark.parametrize(
    "why, delay, options",
    [
        ((grpc.StatusCode.INTERNAL, "ENGINE_ERROR"), None, {}),
        ((grpc.StatusCode.INVALID_ARGUMENT, "BAD_PARAMETER"), 0.1, {}),
        ((grpc.StatusCode.RESOURCE_EXHAUSTED, ""), None, {}),  # gRPC's own error for a message that is too large
        (QUEUE_FULL, 30.5, {}),  # exceeds max_delay
        (QUEUE_FULL, 2, {"timeout": 1}),  # exceeds the remaining time
        (QUEUE_FULL, 0.1, {"attempts": 1}),
    ],
)
def test_permanent_errors_are_not_retried(q, fake, is_async, why, delay, options):
    fake.refusals = [refusal(*why, delay=delay)] * 9
    timeout, attempts = options.get("timeout"), options.get("attempts", 4)
    with pytest.raises(q.QuireError) as error:
        call(q, fake, "complete", is_async, retry=q.RetryPolicy(attempts=attempts), timeout=timeout)
    assert len(fake.times) == 1 and error.value.reason == why[1] and error.value.code == why[0]
    assert error.value.retry_delay == delay and error.value.metadata == {"limit": "3"}


@either_client
def test_started_stream_is_not_retried(q, fake, is_async):
    fake.refusals, fake.first_message = [refusal(*LOADING, delay=0.1)], True
    with pytest.raises(q.QuireError, match="^UNAVAILABLE/MODEL_LOADING"):
        call(q, fake, "complete", is_async)
    assert len(fake.times) == 1


def test_attempts_are_limited_and_control_calls_have_one(q, fake):
    fake.refusals = [refusal(*QUEUE_FULL, delay=0.05)] * 9
    with q.Client(fake.address, retry=q.RetryPolicy(attempts=3)) as client:
        with pytest.raises(q.QuireError, match="QUEUE_FULL"):
            client.complete(request_of(q, "complete"))
        assert len(fake.times) == 3
        with pytest.raises(q.QuireError, match="QUEUE_FULL"):
            client.cancel(q.v1.CancelRequest(request_id="1"))
        assert len(fake.times) == 4
    address = f"127.0.0.1:{fake.port}"
    fake.server.stop(0).wait()
    with q.Client(address, retry=q.RetryPolicy(attempts=2, first_delay=0.1)) as client:
        with pytest.raises(q.QuireError) as error:
            client.complete(request_of(q, "complete"))
    assert error.value.code is grpc.StatusCode.UNAVAILABLE and error.value.reason == ""


def test_delays_between_attempts(q):
    from quire_client._connection import Attempts

    def waits(policy, error, count):
        attempts = Attempts(policy, None)
        return [attempts.delay_after(error) for _ in range(count)]

    lost = q.QuireError(grpc.StatusCode.UNAVAILABLE, "lost")
    doubling = waits(q.RetryPolicy(attempts=2000, first_delay=0.1, max_delay=7), lost, 1999)
    for number, wait in enumerate(doubling):
        wanted = min(7, 0.1 * 2 ** min(number, 100))
        assert wanted <= wait <= 1.25 * wanted, number
    assert len(set(doubling[10:])) > 100  # delays are random
    for delay, is_waited_for in ((7, True), (7.01, False)):
        full = q.QuireError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_delay=delay)
        found = waits(q.RetryPolicy(attempts=2000, max_delay=7), full, 100)
        assert all((wait is not None and 7 <= wait <= 8.75) == is_waited_for for wait in found)


def begin(q, client, name):
    """Starts a call. Returns a function that cancels it and one that waits for it."""
    if name == "generate":
        stream = client.generate(request_of(q, name))
        return stream.cancel, stream.result
    return client.close, lambda: getattr(client, name)(request_of(q, name))


def fails_when_ended(q, fake, name, is_waiting):
    """Cancels a call of a Client and one of an AsyncClient, each once is_waiting(number of calls so far) is true."""
    with q.Client(fake.address) as client:
        end, call = begin(q, client, name)
        ended = threading.Thread(target=lambda: (wait_until(lambda: is_waiting(1), "a call"), end()))
        ended.start()
        with pytest.raises(q.QuireError, match="^CANCELLED"):
            call()
        ended.join()

    async def use():
        async with q.AsyncClient(fake.address) as client:
            end, call = begin(q, client, name)
            task = asyncio.ensure_future(call())
            await asyncio.to_thread(wait_until, lambda: is_waiting(2), "a call")
            ended = end()
            if ended is not None:
                await ended
            with pytest.raises(q.QuireError, match="^CANCELLED"):
                await task

    asyncio.run(use())
    assert len(fake.times) == 2


@pytest.mark.parametrize("name", list(REQUESTS))
def test_cancelling_a_call_ends_the_retry_delay(q, fake, name, monkeypatch):
    fake.refusals = [refusal(*QUEUE_FULL, delay=25)] * 9
    attempts, refused = sys.modules["quire_client._connection"].Attempts, []
    delay_after = attempts.delay_after

    def spied(self, error):
        refused.append(error)
        return delay_after(self, error)

    monkeypatch.setattr(attempts, "delay_after", spied)
    start = time.monotonic()
    fails_when_ended(q, fake, name, lambda count: len(refused) == count)
    assert time.monotonic() - start < 25


@pytest.mark.parametrize("name", list(REQUESTS))
def test_cancelling_a_call_ends_the_wait_for_the_server(q, fake, name):
    fake.may_answer.clear()
    fails_when_ended(q, fake, name, lambda count: len(fake.times) == count)


def test_errors_can_be_copied_to_other_processes(q, fake):
    fake.refusals = [refusal(*QUEUE_FULL, delay=60)]
    with q.Client(fake.address) as client, pytest.raises(q.QuireError) as error:
        client.complete(request_of(q, "complete"))
    copied = pickle.loads(pickle.dumps(error.value))
    assert type(copied) is q.QuireError and str(copied) == str(error.value) == "RESOURCE_EXHAUSTED/QUEUE_FULL: refused"
    assert vars(copied) == vars(error.value) and copied.retry_delay == 60 and copied.metadata == {"limit": "3"}


# --- security --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address, is_safe",
    [
        ("127.0.0.1:1", True), ("127.9.9.9:1", True), ("localhost:1", True), ("[::1]:1", True), ("unix:/x.sock", True),
        ("dns:///localhost:1", True), ("ipv4:127.0.0.1:1", True), ("ipv6:[::1]:1", True), ("unix-abstract:x", True),
        ("10.0.0.1:1", False), ("quire.example:1", False), ("0.0.0.0:1", False), ("[fd00::1]:1", False),
        ("localhost.example:1", False), ("127.0.0.1.example:1", False), ("dns:///quire.example:1", False),
        ("dns://10.0.0.1/localhost:1", False), ("ipv4:127.0.0.1:1,10.0.0.1:1", False), ("ipv4:10.0.0.1:1", False),
        ("xds:///localhost", False),
    ],
)
def test_token_is_sent_in_plain_text_to_localhost_only(q, address, is_safe):
    for make in (q.Client, q.AsyncClient):
        with contextlib.nullcontext() if is_safe else pytest.raises(ValueError, match="token"):
            make(address, token="secret")
        make(address, token="secret", allow_plaintext_token=True)
        make(address)


@either_client
def test_token_file_is_read_for_each_call(q, fake, is_async, tmp_path):
    file = tmp_path / "token"
    for token in ("first", "second"):
        file.write_text(token + "\nnot this\n")
        call(q, fake, "complete", is_async, token_file=file)
    assert fake.tokens == ["Bearer first", "Bearer second"]
    with q.Client(fake.address, token_file=file) as client:
        file.write_text("third\n")
        client.tokenize(request_of(q, "tokenize"))
        file.unlink()
        with pytest.raises(FileNotFoundError):
            client.tokenize(request_of(q, "tokenize"))
    assert fake.tokens[-1] == "Bearer third" and len(fake.tokens) == 3
    file.write_text("\n")
    for wrong in ({"token_file": file}, {"token": ""}, {"token": "Klartext\u00e4"}, {"token": "a", "token_file": file}):
        with pytest.raises(ValueError) as error:
            q.Client(fake.address, **wrong)
        assert "Klartext" not in str(error.value)


def test_tls_client_certificates_and_tokens(q, tmp_path):
    authority, files = Authority(), Files(tmp_path)
    settings = files.pair(authority.issue("server"))
    certificate, key = authority.issue("me")
    ca = files.write("ca.pem", authority.pem)
    mine, my_key = files.write("me.pem", certificate), files.write("me.key", key)
    tokens = files.write("tokens", token_line("secret", "acme", "generate"))
    settings += [f"tls.client_ca_file={ca}", "tls.require_client_cert=true", "auth.mode=token"]
    mutual = q.tls_credentials(ca, mine, my_key)
    with Daemon(tmp_path, settings=[*settings, f"auth.tokens_file={tokens}"]) as daemon:
        address = "localhost:" + daemon.wait_listening().grpc_address.rsplit(":", 1)[1]
        few = q.v1.GenerateRequest(text=ONCE, stopping={"max_tokens": 3})
        with q.Client(address, credentials=mutual, token="secret", retry=q.RetryPolicy(attempts=20)) as client:
            assert client.complete(few).text

        async def use():
            async with q.AsyncClient(address, credentials=mutual, token="secret") as client:
                return (await client.complete(few)).text

        assert asyncio.run(use())
        once = q.RetryPolicy(attempts=1)
        other_name = [("grpc.ssl_target_name_override", "elsewhere.example")]
        for options, code, reason in (
            ({"credentials": mutual, "token": "wrong"}, grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID"),
            ({"credentials": mutual}, grpc.StatusCode.UNAUTHENTICATED, "TOKEN_MISSING"),
            ({"credentials": q.tls_credentials(ca), "token": "secret"}, grpc.StatusCode.UNAVAILABLE, ""),
            ({"credentials": mutual, "options": other_name}, grpc.StatusCode.UNAVAILABLE, ""),
            ({"token": "secret"}, grpc.StatusCode.UNAVAILABLE, ""),
        ):
            with q.Client(address, retry=once, **options) as client, pytest.raises(q.QuireError) as error:
                client.complete(few)
            assert error.value.code is code and error.value.reason == reason
    for wrong in ({"cert_file": mine}, {"key_file": my_key}):
        with pytest.raises(ValueError, match="must be set together"):
            q.tls_credentials(**wrong)
    with pytest.raises(ValueError, match="no TLS"):
        q.Client("unix:/x.sock", credentials=mutual)
