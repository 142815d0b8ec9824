"""vllm.grpc.engine.VllmEngine as a gateway uses it. Compares its published client with quire.v1 on the same engine."""

import itertools
import json
import random
import threading

import grpc
import pytest
from attack_tools import Files, Neighbour, bearer, failure, token_line
from daemon import ROOT, Daemon, reason_of
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_tools import protoc

from test_attacks import mutations
from waiting import wait_until

# The gateway's own package. quire's proto must have the same names, numbers and types.
from smg_grpc_proto import vllm_engine_pb2 as wire
from smg_grpc_proto import vllm_engine_pb2_grpc as wire_grpc
from smg_grpc_proto.generated import common_pb2 as common

PROMPT = "Once upon a time"
SERVICE = "vllm.grpc.engine.VllmEngine"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("worker"), settings=["server.grpc.vllm_service=true"]) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture
def worker(daemon):
    with daemon.channel() as channel:
        yield wire_grpc.VllmEngineStub(channel)


@pytest.fixture(scope="module")
def prompt_ids(api, daemon):
    with daemon.channel() as channel:
        return list(api.GenerationServiceStub(channel).Tokenize(api.TokenizeRequest(text=PROMPT)).token_ids)


def params(**fields):
    """Fills fields as the gateway does for a chat: fields without presence are sent with their neutral value."""
    values = dict(temperature=0, top_p=1, repetition_penalty=1, max_tokens=24, n=1, skip_special_tokens=True,
                  spaces_between_special_tokens=True)
    return wire.SamplingParams(**{**values, **fields})


def request(ids, stream=True, request_id="", **fields):
    tokenized = wire.TokenizedInput(original_text=PROMPT, input_ids=ids)
    return wire.GenerateRequest(request_id=request_id, tokenized=tokenized, sampling_params=params(**fields),
                                stream=stream)


def run(worker, made, **options):
    """Returns ({index: ids}, {index: complete}, chunks) and checks the rules of every answer."""
    ids, completes, chunks = {}, {}, []
    for message in worker.Generate(made, timeout=60, **options):
        kind = message.WhichOneof("response")
        if kind == "chunk":
            chunk = message.chunk
            assert made.stream and chunk.index not in completes
            assert chunk.completion_tokens == len(chunk.token_ids) > 0
            ids.setdefault(chunk.index, []).extend(chunk.token_ids)
            chunks.append(chunk)
        else:
            assert kind == "complete" and message.complete.index not in completes
            complete = message.complete
            completes[complete.index] = complete
            if made.stream:
                assert not complete.output_ids
            else:
                ids[complete.index] = list(complete.output_ids)
            assert complete.completion_tokens == len(ids[complete.index])
    return ids, completes, chunks


def greedy_of_quire_v1(api, daemon, tokens=24, **stopping):
    made = api.GenerateRequest(text=PROMPT)
    made.sampling.temperature = 0
    made.stopping.max_tokens = tokens
    made.stopping.stop.extend(stopping.get("stop", []))
    made.output.token_ids = True
    with daemon.channel() as channel:
        messages = list(api.GenerationServiceStub(channel).Generate(made, timeout=60))
    return messages[-1].completed


# --- the schema ----------------------------------------------------------------------------------


def elements(files):
    """Returns {"message vllm...SamplingParams top_k": (number, label, type, oneof), ...} of file descriptors."""
    found = {}

    def message(scope, one):
        name = f"{scope}.{one.name}"
        found[name] = "message"
        for field in one.field:
            real = field.HasField("oneof_index") and not field.proto3_optional
            oneof = one.oneof_decl[field.oneof_index].name if real else ""
            kind = field.type_name or field.type
            found[f"{name} {field.name}"] = (field.number, field.label, kind, field.proto3_optional, oneof)
        for nested in one.nested_type:
            message(name, nested)
        for nested in one.enum_type:
            enum(name, nested)

    def enum(scope, one):
        for value in one.value:
            found[f"{scope}.{one.name} {value.name}"] = value.number

    for file in files:
        for one in file.message_type:
            message("." + file.package, one)
        for one in file.enum_type:
            enum("." + file.package, one)
        for service in file.service:
            for method in service.method:
                found[f"{service.name}/{method.name}"] = (
                    method.input_type, method.output_type, method.client_streaming, method.server_streaming)
    return found


def test_schema_equals_the_published_one(tmp_path):
    out = tmp_path / "descriptors"
    proto = ROOT / "proto"
    names = ["smg/grpc/common/common.proto", "vllm/grpc/engine/vllm_engine.proto"]
    assert protoc.main(["protoc", f"-I{proto}", f"--descriptor_set_out={out}", *names]) == 0
    ours = elements(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)
    files = []
    for module in (common, wire):
        files.append(descriptor_pb2.FileDescriptorProto())
        module.DESCRIPTOR.CopyToProto(files[-1])
    published = elements(files)
    assert len([name for name in ours if "/" in name]) == 12
    assert {name: published.get(name) for name in ours} == ours
    # Only the messages of SubscribeKvEvents are missing.
    missing = [name for name in published if name not in ours]
    assert not [name for name in missing if not name.startswith(".smg.grpc.common.")]


# --- Generate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_greedy_tokens_equal_quire_v1(api, daemon, worker, prompt_ids, stream):
    expected = list(greedy_of_quire_v1(api, daemon).token_ids)
    ids, completes, chunks = run(worker, request(prompt_ids, stream=stream))
    assert ids == {0: expected}
    assert completes[0].finish_reason == "length" and completes[0].WhichOneof("matched_stop") is None
    assert completes[0].prompt_tokens == len(prompt_ids)
    assert bool(chunks) == stream
    text = wire.GenerateRequest(text=PROMPT, sampling_params=params(), stream=stream)
    assert run(worker, text)[0] == ids


def test_second_call_hits_the_prompt_cache(worker, prompt_ids):
    long = (prompt_ids * 40)[:150]
    made = request(long, max_tokens=2)
    run(worker, made)
    completes, chunks = run(worker, made)[1:]
    assert 0 < completes[0].cached_tokens < len(long)
    assert {chunk.cached_tokens for chunk in chunks} == {completes[0].cached_tokens}
    assert {chunk.prompt_tokens for chunk in chunks} == {len(long)}


def test_choices_interleave_and_differ(worker, prompt_ids):
    made = request(prompt_ids, temperature=1, seed=3, n=3)
    ids, completes, _ = run(worker, made)
    assert sorted(ids) == sorted(completes) == [0, 1, 2]
    assert len({tuple(one) for one in ids.values()}) > 1
    assert all(complete.prompt_tokens == len(prompt_ids) for complete in completes.values())
    made.stream = False
    assert run(worker, made)[0] == ids
    made.sampling_params.seed = 4
    assert run(worker, made)[0] != ids


def test_stop_strings_and_stop_ids(api, daemon, worker, prompt_ids):
    expected = greedy_of_quire_v1(api, daemon, stop=[" was"])
    assert expected.stop_text == " was"
    for stream in (True, False):
        ids, completes, _ = run(worker, request(prompt_ids, stream=stream, stop=["nowhere", " was"]))
        assert completes[0].finish_reason == "stop" and completes[0].matched_stop_str == " was"
        assert ids[0] == list(expected.token_ids)
    whole = run(worker, request(prompt_ids))[0][0]
    stop = whole[5]
    ids, completes, _ = run(worker, request(prompt_ids, stop_token_ids=[stop]))
    assert ids[0] == whole[: whole.index(stop) + 1]
    assert completes[0].finish_reason == "stop" and completes[0].matched_token_id == stop
    # Stop conditions do not apply before min_tokens.
    ids, completes, _ = run(worker, request(prompt_ids, stop_token_ids=[stop], min_tokens=20))
    assert len(ids[0]) >= 20


def test_end_of_sequence_is_a_plain_stop(worker, prompt_ids):
    info = worker.GetModelInfo(wire.GetModelInfoRequest())
    eos = info.eos_token_ids[0]
    ids, completes, _ = run(worker, request(prompt_ids, logit_bias={eos: 100}))
    assert ids == {0: [eos]}
    assert completes[0].finish_reason == "stop" and completes[0].WhichOneof("matched_stop") is None
    ids, completes, _ = run(worker, request(prompt_ids, logit_bias={eos: 100}, ignore_eos=True, max_tokens=3))
    assert ids == {0: [eos] * 3} and completes[0].finish_reason == "length"


def test_logprobs_of_output_and_prompt(worker, prompt_ids):
    made = request(prompt_ids, logprobs=2, prompt_logprobs=1, n=2, temperature=1, seed=5, max_tokens=6)
    ids, completes, chunks = run(worker, made)
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk.index == index]
        told = [token for chunk in own for token in chunk.output_logprobs.token_ids]
        assert told == ids[index]
        for chunk in own:
            output = chunk.output_logprobs
            assert len(output.token_logprobs) == len(output.top_logprobs) == len(chunk.token_ids)
            assert all(list(top.values) == sorted(top.values, reverse=True) and len(top.values) == 2
                       for top in output.top_logprobs)
        first, later = own[0].input_logprobs, own[1:]
        assert list(first.token_ids) == prompt_ids and len(first.top_logprobs) == len(prompt_ids)
        assert not first.token_logprobs[0].HasField("value")
        assert all(one.HasField("value") and one.value < 0 for one in first.token_logprobs[1:])
        assert not any(chunk.HasField("input_logprobs") for chunk in later)
        assert not completes[index].HasField("input_logprobs")
    made.stream = False
    whole = run(worker, made)[1]
    assert list(whole[1].output_logprobs.token_ids) == ids[1]
    assert list(whole[1].input_logprobs.token_ids) == prompt_ids
    assert not run(worker, request(prompt_ids))[1][0].HasField("output_logprobs")


def test_truncation_keeps_the_last_ids(worker, prompt_ids):
    short = run(worker, request(prompt_ids[-3:], stream=False))
    cut = run(worker, request(prompt_ids, stream=False, truncate_prompt_tokens=3))
    assert cut[0] == short[0] and cut[1][0].prompt_tokens == 3


@pytest.mark.parametrize(
    "field, value, fields",
    [
        ("sampling_params.structural_tag.type", "absent", dict(structural_tag="{}")),
        ("sampling_params.grammar_from_first_token", "true", dict(grammar_from_first_token=True)),
        ("sampling_params.temperature", "-1", dict(temperature=-1)),
        ("sampling_params.top_p", "1.5", dict(top_p=1.5)),
        ("sampling_params.top_k", "4294967295", dict(top_k=2**32 - 1)),
        ("sampling_params.min_p", "2", dict(min_p=2)),
        ("sampling_params.frequency_penalty", "3", dict(frequency_penalty=3)),
        ("sampling_params.presence_penalty", "-3", dict(presence_penalty=-3)),
        ("sampling_params.repetition_penalty", "-1", dict(repetition_penalty=-1)),
        ("sampling_params.max_tokens", "0", dict(max_tokens=0)),
        ("sampling_params.min_tokens", "99", dict(min_tokens=99)),
        ("sampling_params.n", "1000", dict(n=1000)),
        ("sampling_params.logprobs", "-1", dict(logprobs=-1)),
        ("sampling_params.prompt_logprobs", "1000", dict(prompt_logprobs=1000)),
        ("sampling_params.truncate_prompt_tokens", "-1", dict(truncate_prompt_tokens=-1)),
        ("sampling_params.logit_bias[5]", "101", dict(logit_bias={5: 101})),
    ],
)
def test_unsupported_fields_are_rejected_by_name(worker, prompt_ids, field, value, fields):
    error = failure(lambda: run(worker, request(prompt_ids, **fields)))
    _, metadata, _ = reason_of(error)
    assert (error.code(), metadata["field"], metadata["value"]) == (INVALID, field, value), error.details()
    assert error.details().startswith(f"{field} is {value}")


def test_media_transfers_and_ranks_are_rejected_by_name(worker, prompt_ids):
    for field, value, change in (
        ("mm_inputs", "set", lambda made: made.mm_inputs.SetInParent()),
        ("extra_mm_inputs", "1 entries long", lambda made: made.extra_mm_inputs.add()),
        ("media_refs", "set", lambda made: made.media_refs.SetInParent()),
        ("kv_transfer_params", "set", lambda made: made.kv_transfer_params.SetInParent()),
        ("kv_transfer_params_json", "{}", lambda made: setattr(made, "kv_transfer_params_json", "{}")),
        ("data_parallel_rank", "1", lambda made: setattr(made, "data_parallel_rank", 1)),
    ):
        made = request(prompt_ids)
        change(made)
        error = failure(lambda made=made: run(worker, made))
        _, metadata, _ = reason_of(error)
        assert (error.code(), metadata["field"], metadata["value"]) == (INVALID, field, value)
    missing = failure(lambda: run(worker, wire.GenerateRequest()))
    assert reason_of(missing)[:2] == ("PROMPT_MISSING", {"field": "input"})
    for ids in ([2**32 - 1], [2**31 - 1]):
        assert reason_of(failure(lambda ids=ids: run(worker, request(ids))))[0] == "BAD_TOKEN_ID"


# --- endings and the rest of the service -----------------------------------------------------------


def endless(prompt_ids, request_id):
    return request(prompt_ids, request_id=request_id, max_tokens=480, ignore_eos=True, n=16)


def live(api, daemon):
    with daemon.admin_channel() as channel:
        return len(api.AdminServiceStub(channel).ListRequests(api.ListRequestsRequest()).requests)


def test_abort_from_another_connection_ends_the_stream(api, daemon, worker, prompt_ids):
    stream = worker.Generate(endless(prompt_ids, "to-abort"))
    next(stream)
    with daemon.channel() as other:
        gateway = wire_grpc.VllmEngineStub(other)
        gateway.Abort(wire.AbortRequest(request_ids=["never-was", "to-abort"]))
        error = failure(lambda: list(stream))
        assert (error.code(), reason_of(error)[0]) == (grpc.StatusCode.CANCELLED, "CANCELLED_BY_CALLER")
        # A gateway that drops a stream aborts it once more after it has ended.
        gateway.Abort(wire.AbortRequest(request_ids=["to-abort"]))
        bad = failure(lambda: gateway.Abort(wire.AbortRequest(request_ids=["ok", "a b"])))
        assert (bad.code(), reason_of(bad)[1]["field"]) == (INVALID, "request_ids[1]")
    wait_until(lambda: live(api, daemon) == 0, "nothing is live")


def test_dropped_stream_cancels_its_request(api, daemon, prompt_ids):
    with daemon.channel() as channel:
        stream = wire_grpc.VllmEngineStub(channel).Generate(endless(prompt_ids, "dropped"))
        next(stream)
        assert live(api, daemon) == 1
    wait_until(lambda: live(api, daemon) == 0, "nothing is live")


def test_many_gateway_streams_at_once(worker, prompt_ids):
    expected = run(worker, request(prompt_ids, stream=False))[0]
    answers = [None] * 12

    def ask(i):
        answers[i] = run(worker, request(prompt_ids, stream=i % 2 == 0))[0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [expected] * len(answers)


def test_deadlines_are_kept(worker, prompt_ids):
    error = failure(lambda: list(worker.Generate(endless(prompt_ids, "late"), timeout=0.05)))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_health_model_and_server(api, daemon, worker, prompt_ids):
    health = worker.HealthCheck(wire.HealthCheckRequest())
    assert health.healthy and health.message == "ready"
    with daemon.channel() as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        model = api.GenerationServiceStub(channel).GetModel(api.GetModelRequest()).model
    info = worker.GetModelInfo(wire.GetModelInfoRequest())
    assert info.served_model_name == model.id and info.is_generation and not info.supports_vision
    assert info.max_context_length == model.max_context_tokens == info.max_req_input_len + 1
    assert info.vocab_size == model.vocab_size and list(info.eos_token_ids) == list(model.eos_token_ids)
    assert list(info.architectures) == [model.architecture]
    defaults = json.loads(info.default_sampling_params_json)
    assert defaults["temperature"] == pytest.approx(model.sampling_defaults.temperature)
    assert set(defaults) == {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    before = worker.GetServerInfo(wire.GetServerInfoRequest())
    assert before.server_type == "quire" and before.data_parallel_size == 1
    wait_until(lambda: worker.GetServerInfo(wire.GetServerInfoRequest()).active_requests == 0,
               "calls of other tests have ended")

    attempts = itertools.count()

    def told_while_one_runs():
        """Returns nothing if a fast machine ends the request before the questions arrive."""
        stream = worker.Generate(endless(prompt_ids, f"active-{next(attempts)}"))
        next(stream)
        active = worker.GetServerInfo(wire.GetServerInfoRequest()).active_requests
        loads = worker.GetLoads(wire.GetLoadsRequest(include=["core"]))
        stream.cancel()
        return loads if active == 1 and loads.loads[0].num_running_reqs == 1 else None

    loads = wait_until(told_while_one_runs, "a generation runs when its figures are asked for")
    assert loads.dp_rank_count == 1 and 0 < loads.loads[0].token_usage < 1
    assert before.uptime_seconds > 0
    wait_until(lambda: worker.GetServerInfo(wire.GetServerInfoRequest()).uptime_seconds > before.uptime_seconds,
               "the time since the start grows")


def test_unsupported_methods_report_it(worker):
    for call, name in (
        (lambda: worker.Embed(wire.EmbedRequest()), "VllmEngine.Embed"),
        (lambda: worker.FlushCache(common.FlushCacheRequest()), "AdminService.FlushCache"),
        (lambda: worker.StartProfile(common.StartProfileRequest()), "VllmEngine.StartProfile"),
        (lambda: worker.StopProfile(common.StopProfileRequest()), "VllmEngine.StopProfile"),
        (lambda: list(worker.GetTokenizer(common.GetTokenizerRequest())), "VllmEngine.GetTokenizer"),
        (lambda: list(worker.SubscribeKvEvents(common.SubscribeKvEventsRequest())), "VllmEngine.SubscribeKvEvents"),
    ):
        error = failure(call)
        assert (error.code(), reason_of(error)[0]) == (UNIMPLEMENTED, "FEATURE_UNSUPPORTED")
        assert name in error.details()


def test_survives_two_thousand_damaged_messages(api, daemon, prompt_ids):
    """Sends them to every method while a client streams over quire.v1. There are answers and errors, but no crash or
    internal error."""
    random_ = random.Random(6)
    full = request(prompt_ids, temperature=0.5, n=2, logprobs=2, prompt_logprobs=1, stop=["dog"], stop_token_ids=[7],
                   logit_bias={5: 1}, max_tokens=2, seed=1)
    text = wire.GenerateRequest(text=PROMPT, sampling_params=wire.SamplingParams(max_tokens=1, regex="a"))
    others = [wire.AbortRequest(request_ids=["a", "b"]), wire.GetLoadsRequest(dp_rank=0, include=["core"])]
    seeds = [made.SerializeToString() for made in (full, text, *others)]
    methods = [method.name for method in wire.DESCRIPTOR.services_by_name["VllmEngine"].methods]
    codes = set()
    with daemon.channel() as channel, daemon.channel() as other:
        neighbour = Neighbour(api, other)
        for data in mutations(random_, seeds, 2000):
            name = random_.choice([*methods, "Generate", "Generate"])
            try:
                list(channel.stream_stream(f"/{SERVICE}/{name}")(iter([data]), timeout=20))
                codes.add(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.add(error.code())
        neighbour.check()
    assert {grpc.StatusCode.OK, INVALID} <= codes
    assert codes <= {grpc.StatusCode.OK, INVALID, UNIMPLEMENTED}, codes
    assert daemon.process.poll() is None
    assert not [line for line in daemon.lines if "incident_id" in line]


def test_service_is_off_by_default(tmp_path):
    with Daemon(tmp_path) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = wire_grpc.VllmEngineStub(channel)
            assert failure(lambda: list(stub.Generate(wire.GenerateRequest(text=PROMPT)))).code() == UNIMPLEMENTED
            assert failure(lambda: stub.HealthCheck(wire.HealthCheckRequest())).code() == UNIMPLEMENTED


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    lines = token_line("gateway", "acme", "generate,metrics") + token_line("plain", "acme", "generate")
    tokens = Files(folder).write("tokens", lines + token_line("scraper", "acme", "metrics"))
    settings = ["server.grpc.vllm_service=true", "auth.mode=token", f"auth.tokens_file={tokens}"]
    with Daemon(folder, settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


def access_lines(daemon, request_id):
    return [line for line in map(json.loads, daemon.lines)
            if line["logger"] == "access" and line["request_id"] == request_id]


def test_requests_are_logged_like_quire_v1(daemon, worker, prompt_ids):
    ids = run(worker, request(prompt_ids, request_id="logged"))[0][0]
    failure(lambda: run(worker, request(prompt_ids, request_id="not-read", structural_tag="{}")))
    failure(lambda: run(worker, request(prompt_ids, request_id="out-of-range", top_p=2)))
    for request_id, code, reason, tokens in (
        ("logged", "OK", "", len(ids)),
        ("not-read", "INVALID_ARGUMENT", "BAD_PARAMETER", 0),
        ("out-of-range", "INVALID_ARGUMENT", "BAD_SAMPLING_PARAM", 0),
    ):
        wait_until(lambda wanted=request_id: access_lines(daemon, wanted), f"a line of {request_id}")
        (line,) = access_lines(daemon, request_id)
        assert (line["method"], line["code"], line["reason"]) == ("VllmEngine.Generate", code, reason)
        assert line["completion_tokens"] == tokens
    assert PROMPT not in daemon.log


def test_every_method_but_health_requires_a_token(guarded):
    methods = wire.DESCRIPTOR.services_by_name["VllmEngine"].methods
    assert len(methods) >= 12
    with guarded.channel() as channel:
        for method in methods:
            call = channel.stream_stream(f"/{SERVICE}/{method.name}")
            if method.name == "HealthCheck":
                assert len(list(call(iter([b""]), timeout=10))) == 1
                continue
            for metadata, reason in (((), "TOKEN_MISSING"), (bearer("wrong"), "TOKEN_INVALID")):
                error = failure(lambda call=call, who=metadata: list(call(iter([b""]), timeout=10, metadata=who)))
                assert error.code() == grpc.StatusCode.UNAUTHENTICATED, method.name
                assert reason_of(error)[0] == reason, method.name


def test_scopes_and_callers_match_quire_v1(guarded):
    made = wire.GenerateRequest(request_id="mine", text=PROMPT, stream=True,
                                sampling_params=params(max_tokens=480, ignore_eos=True))
    with guarded.channel() as channel:
        stub = wire_grpc.VllmEngineStub(channel)
        error = failure(lambda: list(stub.Generate(made, metadata=bearer("scraper"))))
        assert (error.code(), reason_of(error)[0]) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
        loads = wire.GetLoadsRequest()
        assert reason_of(failure(lambda: stub.GetLoads(loads, metadata=bearer("plain"))))[0] == "SCOPE_MISSING"
        assert stub.GetLoads(loads, metadata=bearer("gateway")).dp_rank_count == 1
        stream = stub.Generate(made, metadata=bearer("gateway"))
        next(stream)
        abort = wire.AbortRequest(request_ids=["mine"])
        stub.Abort(abort, metadata=bearer("plain"))  # another caller's request is not visible
        assert stub.GetServerInfo(wire.GetServerInfoRequest(), metadata=bearer("plain")).active_requests == 1
        next(stream)
        stub.Abort(abort, metadata=bearer("gateway"))
        assert failure(lambda: list(stream)).code() == grpc.StatusCode.CANCELLED
