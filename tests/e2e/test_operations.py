"""Health, reflection, metrics with promtool and a real Prometheus, admin calls and the `quire` client."""

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import grpc
import pytest
from attack_tools import bearer, token_line
from daemon import QUIRE, QUIRED, ROOT, Daemon, has_structured_output
from google.protobuf import duration_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from waiting import wait_until


def get(daemon, path):
    with urllib.request.urlopen(f"http://{daemon.http_address}{path}", timeout=10) as answer:
        return answer.status, answer.read().decode()


def quire(daemon, *arguments, code=0):
    command = [str(QUIRE), "--address", daemon.grpc_address, "--admin", daemon.admin, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def samples(text):
    """Returns {(name, labels): value} of a scrape."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            found[key] = float(value)
    return found


def test_reflection_lists_the_services(daemon):
    for channel in (daemon.channel(), daemon.admin_channel()):
        with channel:
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= set(services)
    with daemon.channel() as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "quire.v1.GenerationService" in database.get_services()
        assert database.FindFileContainingSymbol("quire.v1.GenerateRequest").package == "quire.v1"


@pytest.mark.parametrize("service", ["", "readiness", "liveness", "startup", "quire.v1.GenerationService"])
def test_health_is_serving(daemon, service):
    for channel in (daemon.channel(), daemon.admin_channel()):
        with channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_unknown_health_service_is_not_found(daemon):
    with daemon.channel() as channel, pytest.raises(grpc.RpcError) as error:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nonsense"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz"])
def test_http_probes(daemon, path):
    status, text = get(daemon, path)
    assert status == 200 and text.strip()


def test_unknown_http_path_is_404(daemon):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(daemon, "/nothing-here")
    assert error.value.code == 404


def test_promtool_accepts_a_live_scrape(daemon):
    quire(daemon, "generate", "Once upon a time", "--max-tokens", "8", "--quiet")
    _, text = get(daemon, "/metrics")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quire_generation_tokens_total" in text


def test_counters_match_the_requests_sent(daemon):
    before = samples(get(daemon, "/metrics")[1])
    quire(daemon, "generate", "The little dragon", "--max-tokens", "16", "--ignore-eos", "--quiet")
    after = samples(get(daemon, "/metrics")[1])

    def grown(name):
        def total(scrape):
            return sum(value for key, value in scrape.items() if re.match(rf"{name}(\{{|$)", key))

        return total(after) - total(before)

    assert grown("quire_requests_accepted_total") == 1
    assert grown("quire_requests_completed_total") == 1
    assert grown("quire_choices_finished_total") == 1
    assert grown("quire_generation_tokens_total") == 16
    assert grown("quire_request_ttft_seconds_count") == 1


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_prometheus_scrapes_the_daemon(daemon, tmp_path):
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: quire, static_configs: [{{targets: ['{daemon.http_address}']}}]}}]\n"
    )
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as prometheus:
        try:
            assert query(port, 'up{job="quire"}') == 1
            assert query(port, "sum(quire_kv_cache_pages)") > 0
            assert query(port, 'quire_health_state{state="ready"}') == 1
        finally:
            prometheus.send_signal(signal.SIGTERM)


def query(port, expression):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})

    def values():
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["data"]["result"]

    found = wait_until(values, f"Prometheus has a value for {expression}", 30, not_yet=(OSError, ValueError))
    return float(found[0]["value"][1])


def test_admin_calls_list_and_abort_requests(api, daemon, admin):
    request = api.GenerateRequest(text="Once upon a time", request_id="listed")
    request.stopping.max_tokens = 450
    request.stopping.ignore_eos = True
    request.output.stream = True
    # The output exceeds the buffers of a connection whose window stays at 64 KiB, so the call does not end while the
    # client does not read.
    request.sampling.choice_count, request.output.logprobs = 8, 20
    channel = grpc.insecure_channel(daemon.grpc_address, [("grpc.http2.bdp_probe", 0)])
    stream = api.GenerationServiceStub(channel).Generate(request)
    next(stream)
    listed = {info.request_id: info for info in admin.ListRequests(api.ListRequestsRequest()).requests}
    assert listed["listed"].prompt_tokens > 0 and listed["listed"].kv_page_count > 0
    first, second = list(zip(range(2), admin.WatchStats(watch(api))))
    assert second[1].stats.step_count >= first[1].stats.step_count
    assert admin.AbortRequests(api.AbortRequestsRequest(request_ids=["listed", "unknown"])).unknown_ids == ["unknown"]
    with pytest.raises(grpc.RpcError):
        list(stream)
    channel.close()
    config = admin.GetConfig(api.GetConfigRequest(include_defaults=True))
    assert "max_running_sequences" in config.yaml and len(config.config_sha256) == 64
    assert admin.SetLogLevel(api.SetLogLevelRequest(level="debug")).previous_level == "info"
    assert admin.SetLogLevel(api.SetLogLevelRequest(level="info")).previous_level == "debug"
    flushed = admin.FlushCache(api.FlushCacheRequest())
    stats = admin.GetStats(api.GetStatsRequest()).stats
    assert flushed.freed_page_count >= 0 and stats.cached_kv_page_count == 0
    checked = admin.CheckIntegrity(api.CheckIntegrityRequest())
    assert checked.check_count >= 4 and not checked.failures


def watch(api):
    request = api.WatchStatsRequest()
    request.interval.nanos = 100_000_000
    return request


def test_drain_and_resume(api, admin, generation):
    drained = admin.Drain(api.DrainRequest(wait=True, pre_drain_delay=duration_pb2.Duration()))
    assert drained.drained and drained.running_count == 0
    with pytest.raises(grpc.RpcError) as error:
        list(generation.Generate(api.GenerateRequest(text="Once")))
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert admin.Resume(api.ResumeRequest()).state == api.SERVER_STATE_READY
    request = api.GenerateRequest(text="Once")
    request.stopping.max_tokens = 2
    assert list(generation.Generate(request))[-1].HasField("completed")


def readiness(daemon):
    with daemon.channel() as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="readiness")).status


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_drain_admits_requests_for_the_delay(tmp_path):
    """As after SIGTERM, readiness turns first. Resume ends the delay, and --now ends it with the drain."""
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=300s"]) as daemon:
        daemon.wait_serving()
        for _ in range(2):
            assert quire(daemon, "drain") == "draining: 0 running, 0 waiting\n"
            wait_until(lambda: readiness(daemon) == NOT_SERVING, "the daemon is not ready")
            assert quire(daemon, "generate", "Once", "--max-tokens", "2", "--quiet").strip()
            assert quire(daemon, "resume") == "ready\n"
            wait_until(lambda: readiness(daemon) == SERVING, "the daemon is ready again")
        quire(daemon, "drain")
        assert quire(daemon, "drain", "--now") == "drained: 0 running, 0 waiting\n"
        quire(daemon, "generate", "Once", "--max-tokens", "2", code=1)
        assert quire(daemon, "resume") == "ready\n"
        assert quire(daemon, "generate", "Once", "--max-tokens", "2", "--quiet").strip()


def test_drain_begins_after_the_delay(tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=1s"]) as daemon:
        daemon.wait_serving()
        quire(daemon, "drain")  # a call that does not wait; the daemon itself ends the delay
        wait_until(lambda: '"msg":"draining"' in daemon.log, "the delay is over")
        quire(daemon, "generate", "Once", "--max-tokens", "2", code=1)
        quire(daemon, "resume")
        start = time.monotonic()
        assert quire(daemon, "drain", "--wait") == "drained: 0 running, 0 waiting\n"
        assert time.monotonic() - start >= 1
        quire(daemon, "resume")
        quire(daemon, "drain", "--exit")
        quire(daemon, "resume", code=1)  # the process is exiting
        assert daemon.wait(30) == 0


def test_sigterm_during_the_delay_of_a_drain_keeps_its_end(tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=2s"]) as daemon:
        daemon.wait_serving()
        quire(daemon, "drain")
        daemon.terminate()
        assert daemon.wait(30) == 0
        delays = [json.loads(line)["for"] for line in daemon.lines if "still admitting" in line]
        assert len(delays) == 2 and 1.9 < delays[0] <= 2 and delays[1] <= delays[0]


def test_sigint_skips_the_delay_of_a_drain_that_exits(tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=300s"]) as daemon:
        daemon.wait_serving()
        quire(daemon, "drain", "--exit")
        wait_until(lambda: "still admitting" in daemon.log, "the delay runs")
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.wait(30) == 0


def test_tenants_without_an_entry_share_a_label(api, tmp_path):
    tokens = tmp_path / "tokens"
    tenants = ["acme", *(f"tenant-{number}" for number in range(20))]
    tokens.write_text("".join(token_line(tenant, tenant, "generate") for tenant in tenants))
    settings = ["auth.mode=token", f"auth.tokens_file={tokens}", "auth.anonymous_scopes=[metrics]",
                "tenants.entries=[{id: acme}, {id: idle}]"]
    with Daemon(tmp_path, settings=settings) as daemon, daemon.wait_serving().channel() as channel:
        stub = api.GenerationServiceStub(channel)
        request = api.GenerateRequest(text="Once")
        request.stopping.max_tokens, request.stopping.ignore_eos = 3, True
        for tenant in tenants:
            usage = list(stub.Generate(request, metadata=bearer(tenant)))[-1].completed.usage
        request.sampling.top_p = 7
        with pytest.raises(grpc.RpcError):
            list(stub.Generate(request, metadata=bearer("acme")))
        seen = {key: value for key, value in samples(get(daemon, "/metrics")[1]).items() if key.startswith("quire_tenant_")}
    computed = {"acme": usage.prompt_tokens, "other": 20 * usage.prompt_tokens}
    assert seen == {
        'quire_tenant_requests_total{code="OK",tenant="acme"}': 1,
        'quire_tenant_requests_total{code="INVALID_ARGUMENT",tenant="acme"}': 1,
        'quire_tenant_requests_total{code="OK",tenant="other"}': 20,
        **{f'quire_tenant_tokens_total{{kind="{kind}",tenant="{tenant}"}}': count for tenant, count in computed.items()
           for kind, count in (("prompt_uncached", count), ("prompt_cached", 0),
                               ("generated", 3 if tenant == "acme" else 60))},
    }


def test_time_to_first_token_is_the_engines(api, tmp_path):
    """The line of an answer that is not streamed has the engine's time, not that of the whole answer."""
    with Daemon(tmp_path) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            request = api.GenerateRequest(text="Once")
            request.stopping.max_tokens, request.stopping.ignore_eos = 400, True
            request.output.timings = True
            measured = list(stub.Generate(request))[-1].completed.timings.time_to_first_token
        line = wait_until(lambda: next((json.loads(line) for line in daemon.lines if '"access"' in line), None), "the request is logged")
        assert line["time_to_first_token"] == pytest.approx(measured.seconds + 1e-9 * measured.nanos, abs=1e-6)
        assert 0 < line["time_to_first_token"] < line["duration"]


def test_command_line_client(daemon):
    text = quire(daemon, "generate", "Once upon a time", "--max-tokens", "16", "--temperature", "0", "--quiet")
    assert len(text.split()) > 4
    vectors = quire(daemon, "embed", "--dimensions", "4", "--normalize", "Once upon a time", "the end").splitlines()
    assert [len(line.split()) for line in vectors] == [4, 4]
    assert abs(sum(float(value) ** 2 for value in vectors[0].split()) - 1) < 1e-6
    scores = quire(daemon, "score", "--tokens", "--context", "Once upon a", " time").splitlines()
    assert len(scores) == 2 and "greedy" in scores[0] and "rank 1" in scores[1]
    ids = quire(daemon, "tokenize", "Once upon a time").split()
    assert "Once upon a time" in quire(daemon, "detokenize", ",".join(ids))
    assert "LlamaForCausalLM" in quire(daemon, "models")
    assert "state ready" in quire(daemon, "info")
    assert quire(daemon, "health").strip() == "serving"
    assert json.loads(quire(daemon, "--json", "health")) == {"status": "SERVING"}
    assert "pages" in quire(daemon, "stats")
    assert quire(daemon, "requests") == "no requests\n" and quire(daemon, "--json", "requests") == ""
    assert "scheduler" in quire(daemon, "config", "--all")
    assert "pages freed" in quire(daemon, "flush")
    assert quire(daemon, "cancel", "nobody", code=1) == ""
    assert quire(daemon, "abort", "nobody", code=1) == "0 aborted\n"
    quire(daemon, "abort", code=1)
    quire(daemon, "abort", "--tenant", "x", code=1)
    assert quire(daemon, "abort", "--all", "--tenant", "nobody").strip() == "0 aborted"
    quire(daemon, "abort", "--all", "--older-than=-1", code=1)
    quire(daemon, "abort", "--all", "--tenant", "", code=2)
    quire(daemon, "generate", "x", "--temperature", "1000", code=1)
    quire(daemon, "no-such-command", code=2)
    quire(daemon, "--address", "127.0.0.1:1", "models", code=3)
    for line in quire(daemon, "--json", "generate", "Once", "--max-tokens", "3").splitlines():
        assert json.loads(line)["requestId"]
    for address in (f"http://{daemon.grpc_address}", f"grpc://{daemon.grpc_address}/", f"ipv4:{daemon.grpc_address}"):
        assert "LlamaForCausalLM" in quire(daemon, "--address", address, "models")


def test_json_of_the_client_has_zeros_and_numbers(daemon):
    stats = json.loads(quire(daemon, "--json", "stats"))["stats"]
    assert stats["waitingUncachedTokens"] == 0 and stats["preemptionCount"] == 0 and stats["loadedAdapters"] == []
    assert isinstance(stats["stepCount"], int) and isinstance(stats["memoryBytes"]["weights"], int)
    (model,) = map(json.loads, quire(daemon, "--json", "models").splitlines())
    assert model["parameterCount"] > 1_000_000 and model["samplingDefaults"]["temperature"] == 0.7
    assert "seed" not in model["samplingDefaults"], "an optional field that is unset stays absent"


def test_client_reads_pipes(daemon, tmp_path):
    def pipe(command, text):
        done = subprocess.run(["bash", "-c", command.replace("QUIRE", f"{QUIRE} --address {daemon.grpc_address}")], input=text,
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    greedy = "--max-tokens 8 --temperature 0 --quiet"
    wanted = quire(daemon, "generate", "Once upon a time", *greedy.split())
    for command in (f"QUIRE generate - {greedy}", f"QUIRE generate --prompt-file - {greedy}",
                    f"QUIRE generate --prompt-file /dev/stdin {greedy}", f"QUIRE generate --prompt-file <(cat) {greedy}"):
        assert pipe(command, "Once upon a time") == wanted, command
    if has_structured_output():
        schema = '{"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false}'
        for file in ("/dev/stdin", "-", "<(cat)"):
            assert pipe(f"QUIRE generate Once --quiet --schema {file}", schema) == '{"a": 1}\n', file


def test_bench_reports_standard_field_names(daemon):
    report = json.loads(
        quire(
            daemon, "--json", "bench", "--requests", "12", "--concurrency", "4", "--input-tokens", "32", "--output-tokens", "8"
        )
    )
    assert report["completed"] == 12 and report["failed"] == 0
    assert report["total_input_tokens"] == 12 * 32 and report["total_output_tokens"] == 12 * 8
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert 0 < report[f"p50_{name}_ms"] <= report[f"p99_{name}_ms"]


def test_validate_and_effective_config(tmp_path):
    done = subprocess.run([str(QUIRED), "--validate"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [str(QUIRED), "--print-effective-config", "--set", "kv_cache.page_size=32"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )
    assert shown.returncode == 0 and "page_size: 32" in shown.stdout
    again = tmp_path / "effective.yaml"
    again.write_text(shown.stdout)
    done = subprocess.run(
        [str(QUIRED), "--validate", "--config", str(again)], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


PROFILES = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))


def test_profiles_are_shipped():
    assert "default.yaml" in PROFILES


@pytest.mark.parametrize("profile", PROFILES)
def test_every_shipped_profile_is_valid(tmp_path, profile):
    command = [str(QUIRED), "--validate", "--config", str(ROOT / "configs" / profile)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_sighup_reopens_the_log(tmp_path):
    log = tmp_path / "quired.log"
    # The ports are fixed here, because the log goes to a file.
    grpc_port, http_port = free_port(), free_port()
    settings = [f"server.grpc.listen=[127.0.0.1:{grpc_port}]", f"server.http.listen=127.0.0.1:{http_port}", f"logging.file={log}"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.grpc_address, daemon.http_address = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
        wait_until(lambda: log.exists() and "listening" in log.read_text(), "the log tells the start")
        log.rename(tmp_path / "quired.log.1")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.exists() and "reload" in log.read_text(), "the new log tells the reload")
        assert daemon.process.poll() is None
