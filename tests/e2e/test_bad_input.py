"""Each bad field gets one clear error that names it; the next request is served."""

import math
import socket

import grpc
import pytest
from daemon import Daemon, reason_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def bad(api, change):
    request = api.GenerateRequest(text="Once upon a time")
    request.stopping.max_tokens = 2
    change(request)
    return request


def setter(path, value):
    def change(request):
        *parents, leaf = path.split(".")
        target = request
        for parent in parents:
            target = getattr(target, parent)
        if isinstance(value, list):
            getattr(target, leaf).extend(value)
        elif isinstance(value, dict):
            getattr(target, leaf).update(value)
        else:
            setattr(target, leaf, value)

    return change


CASES = [
    ("text", "", INVALID, "PROMPT_MISSING"),
    ("text", "a " * 2000, INVALID, "PROMPT_TOO_LONG"),
    ("sampling.temperature", -0.1, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.temperature", 101, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.temperature", math.nan, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.temperature", math.inf, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.top_p", 0, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.top_p", 1.5, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.top_p", math.nan, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.top_k", -1, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.min_p", -0.5, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.min_p", math.nan, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.dry_multiplier", 101, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.dry_allowed_length", 0, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.dry_sequence_breakers", ["x" * 300], INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.top_n_sigma", -0.5, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.xtc_probability", 1.5, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.xtc_threshold", math.nan, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.repetition_penalty", 0, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.repetition_penalty", 11, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.presence_penalty", 3, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.frequency_penalty", -math.inf, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.choice_count", 0, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.choice_count", 1000, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.logit_bias", {5: 101.0}, INVALID, "BAD_SAMPLING_PARAM"),
    ("sampling.logit_bias", {99999: 1.0}, INVALID, "BAD_TOKEN_ID"),
    ("stopping.max_tokens", 0, INVALID, "BAD_PARAMETER"),
    ("stopping.max_tokens", -5, INVALID, "BAD_PARAMETER"),
    ("stopping.min_tokens", 3, INVALID, "BAD_PARAMETER"),
    ("stopping.stop", [""], INVALID, "TOO_MANY_STOPS"),
    ("stopping.stop", ["x" * 5000], INVALID, "TOO_MANY_STOPS"),
    ("stopping.stop", ["x"] * 100, INVALID, "TOO_MANY_STOPS"),
    ("stopping.stop_token_ids", [-1], INVALID, "BAD_TOKEN_ID"),
    ("stopping.stop_token_ids", [1] * 65, INVALID, "TOO_MANY_STOPS"),
    ("output.logprobs", 1000, INVALID, "BAD_PARAMETER"),
    ("output.prompt_logprobs", -1, INVALID, "BAD_PARAMETER"),
    ("output.stream_interval_tokens", 0, INVALID, "BAD_PARAMETER"),
    ("priority", 101, INVALID, "BAD_PARAMETER"),
    ("cache.salt", "x" * 129, INVALID, "BAD_PARAMETER"),
    ("labels", {"k" * 65: "v"}, INVALID, "BAD_PARAMETER"),
    ("request_id", "with space", INVALID, "BAD_PARAMETER"),
    ("model", "no-such-model", grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
    ("constraint.regex", "a(", INVALID, "BAD_CONSTRAINT"),
]


@pytest.mark.parametrize("path,value,code,reason", CASES, ids=lambda v: str(v)[:24])
def test_bad_field_is_named(api, generation, path, value, code, reason):
    with pytest.raises(grpc.RpcError) as error:
        list(generation.Generate(bad(api, setter(path, value)), timeout=30))
    assert error.value.code() == code, error.value.details()
    got, metadata, _ = reason_of(error.value)
    assert got == reason
    if reason in ("BAD_SAMPLING_PARAM", "BAD_PARAMETER"):
        assert path in metadata["field"], metadata
    assert error.value.details()
    good = bad(api, lambda request: None)
    assert list(generation.Generate(good, timeout=30))[-1].HasField("completed")


@pytest.mark.parametrize("ids", [[], [-1], [4096], [2**31 - 1]])
def test_bad_token_ids_are_rejected(api, generation, ids):
    request = api.GenerateRequest()
    request.token_ids.ids.extend(ids)
    request.token_ids.SetInParent()
    with pytest.raises(grpc.RpcError) as error:
        list(generation.Generate(request, timeout=30))
    assert error.value.code() == INVALID
    assert reason_of(error.value)[0] == ("BAD_TOKEN_ID" if ids else "PROMPT_MISSING")


def test_invalid_utf8_on_the_wire_is_rejected(api, daemon):
    # Python refuses to serialize such a message, so the bytes are written by hand: field 3, two bytes.
    with daemon.channel() as channel:
        call = channel.unary_stream(
            "/quire.v1.GenerationService/Generate",
            request_serializer=lambda raw: raw,
            response_deserializer=api.GenerateResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as error:
            list(call(b"\x1a\x02\xc3\x28", timeout=30))
    assert error.value.code() in (INVALID, grpc.StatusCode.INTERNAL), error.value.details()
    if error.value.code() == INVALID:
        assert reason_of(error.value)[0] == "BAD_UTF8"


def test_id_of_a_live_request_is_rejected(api, generation):
    def long(name):
        request = bad(api, lambda r: None)
        request.request_id = name
        request.sampling.choice_count = 16
        request.stopping.max_tokens = 400
        request.stopping.ignore_eos = True
        request.output.stream = True
        return request

    first = generation.Generate(long("twice"))
    next(first)
    with pytest.raises(grpc.RpcError) as error:
        list(generation.Generate(long("twice")))
    assert error.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert reason_of(error.value)[0] == "REQUEST_ID_IN_USE"
    first.cancel()


def test_unimplemented_rpcs_report_it(api, admin):
    with pytest.raises(grpc.RpcError) as error:
        admin.LoadAdapter(api.LoadAdapterRequest(adapter_id="x"))
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert reason_of(error.value)[0] == "FEATURE_UNSUPPORTED"


def test_second_daemon_on_the_same_port_exits_78(daemon, tmp_path):
    with Daemon(tmp_path, settings=[f"server.grpc.listen=[{daemon.grpc_address}]"]) as second:
        assert second.wait(30) == 78
        assert daemon.grpc_address in second.log and "in use" in second.log


def test_http_port_in_use_exits_78(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        with Daemon(tmp_path, settings=[f"server.http.listen={address}"]) as second:
            assert second.wait(30) == 78
            assert address in second.log


@pytest.mark.parametrize(
    "setting,words",
    [
        ("scheduler.max_runing_sequences=4", ["max_runing_sequences", "max_running_sequences"]),
        ("kv_cache.page_size=48", ["kv_cache.page_size", "48", "16, 32, 64, 128"]),
        ("kv_cache.dtype=fp4", ["kv_cache.dtype", "fp4", "f32, bf16, f16, fp8_e4m3, int8"]),
        ("device.tensor_parallel=2", ["device.tensor_parallel", "2", "one GPU"]),
        ("model.dtype=bf16", ["model.dtype", "bf16", "device.type"]),
        ("model.fp8_activations=true", ["model.fp8_activations", "fp8_e4m3", "no matrix of this model"]),
        ("shutdown.drain_timeout=45", ["shutdown.drain_timeout", "unit"]),
        ("model.path=/no/such/folder", ["/no/such/folder"]),
    ],
)
def test_bad_configuration_exits_78_and_names_the_key(tmp_path, setting, words):
    with Daemon(tmp_path, settings=[setting]) as daemon:
        assert daemon.wait(30) == 78
        for word in words:
            assert word in daemon.log
