"""A real daemon sends its traces to a collector made from OpenTelemetry's published protocol."""

import concurrent.futures

import grpc
import pytest
from daemon import Daemon
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from waiting import wait_until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.spans = []

    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name):
        return [span for span in list(self.spans) if span.name == name]


@pytest.fixture(scope="module")
def collector():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    made = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield made
    server.stop(0).wait()


def attributes(span):
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}


def test_requests_are_spans_of_the_callers_trace(api, collector, tmp_path):
    with Daemon(tmp_path, settings=[f"tracing.otlp_endpoint=http://{collector.address}"]) as running:
        running.wait_serving()
        with running.channel() as channel:
            request = api.GenerateRequest(text="Once", request_id="traced")
            request.stopping.max_tokens = 5
            request.stopping.ignore_eos = True
            service = api.GenerationServiceStub(channel)
            list(service.Generate(request, metadata=[("traceparent", TRACEPARENT)]))
            with pytest.raises(grpc.RpcError):
                list(service.Generate(api.GenerateRequest(text="Once", model="other")))
        wait_until(lambda: len(collector.named("Generate")) == 2, "both spans have arrived", 20)
    traced, refused = sorted(collector.named("Generate"), key=lambda span: span.trace_id.hex() != TRACE)
    assert traced.trace_id.hex() == TRACE and traced.parent_span_id.hex() == "00f067aa0ba902b7"
    facts = attributes(traced)
    assert facts["quire.request_id"] == "traced" and facts["gen_ai.usage.output_tokens"] == 5
    assert facts["gen_ai.request.model"] == "story" and facts["rpc.grpc.status_code"] == "OK"
    stages = [span for span in collector.spans if span.parent_span_id == traced.span_id]
    assert [span.name for span in sorted(stages, key=lambda span: span.start_time_unix_nano)] == ["queue", "prefill", "decode"]
    assert traced.start_time_unix_nano <= stages[0].start_time_unix_nano
    assert max(span.end_time_unix_nano for span in stages) <= traced.end_time_unix_nano + 1
    assert refused.trace_id.hex() != TRACE and not refused.parent_span_id
    assert refused.status.code == 2 and refused.status.message == "MODEL_NOT_FOUND"


def test_a_dead_collector_disturbs_no_request(api, tmp_path):
    with Daemon(tmp_path, settings=["tracing.otlp_endpoint=127.0.0.1:1"]) as running:
        running.wait_serving()
        with running.channel() as channel:
            request = api.GenerateRequest(text="Once")
            request.stopping.max_tokens = 5
            assert list(api.GenerationServiceStub(channel).Generate(request, timeout=20))[-1].HasField("completed")
        wait_until(lambda: any("cannot send spans" in line for line in running.lines), "the failure is logged", 20)
        running.terminate()
        assert running.wait(20) == 0


def test_a_bad_endpoint_is_refused_at_start(tmp_path):
    with Daemon(tmp_path, settings=["tracing.otlp_endpoint=http://collector:4317/v1/traces"]) as running:
        assert running.wait(20) == 78
        assert "tracing.otlp_endpoint" in running.log and "host:port" in running.log
