"""Requests are parsed only after authentication, and requests that do not parse get an error with a reason."""

import json
import urllib.request

import grpc
import pytest
from attack_tools import Files, bearer, failure, token_line
from daemon import Daemon, reason_of
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from smg_grpc_proto import vllm_engine_pb2
from waiting import wait_until

GARBAGE = b"\xff\xff\xff"  # a tag without an end
UNIMPLEMENTED = {"LoadAdapter", "UnloadAdapter", "StartProfile", "StopProfile",
                 "Embed@VllmEngine", "FlushCache@VllmEngine"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("messages")
    tokens = Files(folder).write("tokens", token_line("all", "acme", "generate,metrics,admin"))
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", "server.admin.listen=[127.0.0.1:0]",
                "server.grpc.vllm_service=true"]
    with Daemon(folder, settings=settings) as running:
        running.wait_serving()
        running.admin = json.loads(next(line for line in running.lines if '"listening"' in line))["admin"]
        yield running
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture
def calls(api, daemon):
    """Yields (method, call) of all methods. A call takes the bytes of a request and metadata."""
    files = [message.DESCRIPTOR.file for message in (api.GenerateRequest, api.DrainRequest)]
    services = [service for file in [*files, vllm_engine_pb2.DESCRIPTOR] for service in file.services_by_name.values()]
    assert {service.name for service in services} == {"GenerationService", "AdminService", "VllmEngine"}
    with daemon.channel() as data, grpc.insecure_channel(daemon.admin) as admin:
        yield [(method, raw_call(admin if service.name == "AdminService" else data, service, method))
               for service in services for method in service.methods]


def raw_call(channel, service, method):
    path = f"/{service.full_name}/{method.name}"

    def call(body, metadata):
        if method.client_streaming:
            return list(channel.stream_stream(path)(iter([body]), metadata=metadata, timeout=10))
        if method.server_streaming:
            return list(channel.unary_stream(path)(body, metadata=metadata, timeout=10))
        return channel.unary_unary(path)(body, metadata=metadata, timeout=10)

    return call


def test_requests_without_a_token_are_not_parsed(calls):
    assert len(calls) >= 34
    for method, call in calls:
        if method.full_name.endswith("VllmEngine.HealthCheck"):
            assert call(GARBAGE, ()), "health checks need no token, and this request has no fields to parse"
            continue
        error = failure(lambda call=call: call(GARBAGE, ()))
        assert (error.code(), reason_of(error)[0]) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_MISSING"), method.full_name


def counted(daemon, method):
    scrape = urllib.request.Request(f"http://{daemon.http_address}/metrics", headers=dict([("authorization", "Bearer all")]))
    with urllib.request.urlopen(scrape, timeout=10) as answer:
        text = answer.read().decode()
    start = f'quire_rpcs_total{{code="INVALID_ARGUMENT",method="{method}"}} '
    return sum(float(line[len(start):]) for line in text.splitlines() if line.startswith(start))


def test_malformed_requests_get_a_reason_and_are_counted(daemon, calls):
    for method, call in calls:
        service = method.containing_service.name
        if method.client_streaming or method.name == "HealthCheck":
            continue
        error = failure(lambda call=call: call(GARBAGE, bearer("all")))
        if {method.name, f"{method.name}@{service}"} & UNIMPLEMENTED or method.name in ("GetTokenizer", "SubscribeKvEvents"):
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, method.full_name
            continue
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, method.full_name
        reason, metadata, _ = reason_of(error)
        assert (reason, metadata["field"]) == ("BAD_PARAMETER", "request"), method.full_name
        name = f"VllmEngine.{method.name}" if service == "VllmEngine" else method.name
        wait_until(lambda name=name: counted(daemon, name) >= 1, f"{name} is counted")


@pytest.mark.parametrize("name,body,field", [
    ("GenerationService.Cancel", b"\x0a\x02a\xff", "request_id"),
    ("GenerationService.GetModel", b"\x0a\x02a\xff", "model"),
    ("GenerationService.Detokenize", b"\x0a\x02a\xff", "model"),
    ("AdminService.SetLogLevel", b"\x0a\x02a\xff", "logger"),
    ("VllmEngine.Abort", b"\x0a\x02a\xff", "request_ids"),
])
def test_invalid_utf8_is_reported_with_its_field(calls, name, body, field):
    call = next(call for method, call in calls if method.full_name.endswith(name))
    reason, metadata, _ = reason_of(failure(lambda: call(body, bearer("all"))))
    assert (reason, metadata["field"], metadata["byte_offset"]) == ("BAD_UTF8", field, "1")


def test_reflection_and_health_need_no_token(api, daemon):
    for channel in (daemon.channel(), grpc.insecure_channel(daemon.admin)):
        with channel:
            assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status == 1
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
            assert {"quire.v1.GenerationService", "quire.v1.AdminService"} & set(services)
