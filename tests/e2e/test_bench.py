"""Tests of `quire bench` with a real quired and real HTTP servers, of `quire make-model`, and of scripts/bench_cpu."""

import contextlib
import http.server
import json
import re
import signal
import socketserver
import subprocess
import sys
import threading
import xml.etree.ElementTree

import pytest
from attack_tools import http_get
from daemon import BUILD, QUIRE, ROOT, Daemon, has_structured_output
from waiting import wait_until

sys.path.insert(0, str(ROOT / "tools" / "docs"))
import benchmark_data  # noqa: E402


def quire(*arguments, code=0):
    done = subprocess.run([str(QUIRE), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stdout + done.stderr


def bench(daemon, *arguments):
    metrics = f"http://{daemon.http_address}/metrics"
    return json.loads(quire("--address", daemon.grpc_address, "--json", "bench", "--metrics", metrics, *arguments))


class Peer(http.server.BaseHTTPRequestHandler):
    """Responds like llama.cpp's server and like an OpenAI-compatible server. Every token is the letter a."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/metrics":  # like a quired that counts tokens that no client received
            self.server.reads += 1
            self.answer(200, b"quire_requests_accepted_total 0\nquire_generation_tokens_total %d\n"
                        % (1000 * self.server.reads))
            return
        assert self.path == "/v1/models"
        self.answer(200, json.dumps({"object": "list", "data": [{"id": "letters"}]}).encode())

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def events(self, request):
        if self.path == "/completion":
            for _ in range(request["n_predict"]):
                yield {"content": "a", "tokens": [97], "stop": False}
            yield {"content": "", "tokens": [], "stop": True, "tokens_predicted": request["n_predict"],
                   "tokens_evaluated": len(request["prompt"])}
            return
        for _ in range(request["max_tokens"]):
            yield {"choices": [{"text": "a"}], "usage": None}
        yield {"choices": [], "usage": {"prompt_tokens": len(request["prompt"]),
                                        "completion_tokens": request["max_tokens"]}}

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request))
        fault = self.server.fault
        if fault == "status":
            self.answer(503, b'{"error": {"message": "no slot"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(self.events(request)):
            if fault == "event" and number == 2:
                event = {"error": {"message": "out of memory"}}
            if fault == "cut" and number == 2:
                self.close_connection = True
                return
            self.chunk(f"data: {json.dumps(event)}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


class PeerServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that cancels closes its connection


@contextlib.contextmanager
def peer(fault=None):
    server = PeerServer(("127.0.0.1", 0), Peer)
    server.requests, server.fault, server.reads = [], fault, 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_closed_loop_with_shared_prefixes(daemon):
    report = bench(
        daemon, "--requests", 24, "--warmup", 2, "--concurrency", 4, "--input-tokens", "uniform:40:80",
        "--output-tokens", "lognormal:8:0.5:20", "--prefix-tokens", 32, "--prefix-share", 0.5, "--slo", "ttft=60s,tpot=60s",
        "--pid", daemon.process.pid
    )
    assert report["completed"] == 24 and report["failed"] == 0
    assert 24 * 40 <= report["total_input_tokens"] <= 24 * 80
    assert report["request_goodput"] == report["request_throughput"] > 0
    assert report["request_rate"] == "inf" and report["max_concurrency"] == 4
    assert report["peak_pss_bytes"] > 10 << 20
    assert 0 < report["p50_itl_per_token_ms"] <= report["p99.9_itl_per_token_ms"] <= report["max_itl_ms"]


@pytest.mark.parametrize("arrival", ["poisson", "gamma", "constant"])
def test_open_loop_sends_on_time_and_cancels(daemon, arrival):
    report = bench(
        daemon, "--requests", 40, "--rate", 100, "--arrival", arrival, *(["--burstiness", 0.5] * (arrival == "gamma")),
        "--input-tokens", 16, "--output-tokens", 40, "--cancel-ratio", 0.3
    )
    # A request may complete before its cancel arrives.
    assert report["completed"] + report["cancelled"] == 40 and report["failed"] == 0
    assert report["cancelled"] <= 24
    assert report["request_rate"] == 100
    assert 0 <= report["late_sends"] <= 40 and report["max_send_delay_ms"] >= 0
    assert report["duration"] > 0.1


@pytest.mark.skipif(not has_structured_output(), reason="a build without structured output")
def test_outputs_satisfy_a_schema_and_end_with_it(daemon, tmp_path):
    schema = tmp_path / "colour.json"
    schema.write_text('{"enum": ["red", "blue"]}')
    arguments = ["--requests", 40, "--concurrency", 4, "--input-tokens", 16, "--output-tokens", 30, "--schema", schema]
    report = bench(daemon, *arguments)
    assert report["completed"] == 40 and report["total_output_tokens"] <= 40 * len('"blue"')
    report = bench(daemon, *arguments, "--schema-share", 0.5)
    assert report["completed"] == 40 and 10 * 30 < report["total_output_tokens"] < 30 * 30 + 40 * len('"blue"')
    for text, reason in (('{"$ref": "#/no"}', "BAD_CONSTRAINT"), ("{", "--schema")):
        schema.write_text(text)
        out = quire("--address", daemon.grpc_address, "bench", "--requests", 1, "--schema", schema,
                    code=1 if text != "{" else 2)
        assert reason in out


def test_every_request_may_be_cancelled(daemon):
    # Each request is cancelled after at most 399 of its 400 tokens. It completes if its last tokens are already in
    # flight. With the fixed seed, not all ten cancels are among the last tokens.
    report = bench(daemon, "--requests", 10, "--concurrency", 5, "--input-tokens", 16, "--output-tokens", 400,
                   "--cancel-ratio", 1, "--seed", 1)
    assert report["completed"] + report["cancelled"] == 10 and report["failed"] == 0
    assert report["cancelled"] >= 1
    assert report["total_output_tokens"] == 400 * report["completed"]


def test_trace_files_are_replayed(daemon, tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,48,10\n2023-11-16 18:17:05.5,11,3\n"
    )
    report = bench(daemon, "--trace", azure, "--speed", 10)
    assert report["completed"] == 2 and report["total_input_tokens"] == 59 and report["total_output_tokens"] == 13
    assert report["duration"] >= 0.2
    mooncake = tmp_path / "mooncake.jsonl"
    rows = [{"timestamp": 20 * i, "input_length": 400 + i, "output_length": 2, "hash_ids": [7]} for i in range(4)]
    mooncake.write_text("\n".join(map(json.dumps, rows)))
    report = bench(daemon, "--trace", mooncake)
    assert report["completed"] == 4 and report["total_output_tokens"] == 8
    mooncake.write_text("{}\n")
    assert "line 1 must be a CSV row" in quire("--address", daemon.grpc_address, "bench", "--trace", mooncake, code=2)


@pytest.mark.parametrize("kind", ["llamacpp", "openai"])
def test_rounds_alternate_between_server_and_peer(daemon, kind):
    with peer() as (server, url):
        report = bench(
            daemon, "--requests", 6, "--concurrency", 2, "--input-tokens", "uniform:20:60", "--output-tokens", 5,
            "--rounds", 3, "--peer", f"{kind}={url}"
        )
    assert report["rounds"] == 3 and len(report["ours"]) == len(report["peer"]) == 3
    for ours, theirs in zip(report["ours"], report["peer"]):
        for key in ("completed", "total_input_tokens", "total_output_tokens"):
            assert ours[key] == theirs[key] > 0
        assert theirs["backend"] == kind and theirs["model_id"] == "letters"
        assert theirs["tokens_per_message"] == 1
    assert report["median"]["ratio"]["output_throughput"] > 0
    path = "/completion" if kind == "llamacpp" else "/v1/completions"
    assert {where for where, _ in server.requests} == {path}
    prompts = {tuple(request["prompt"]) for _, request in server.requests}
    assert len(prompts) == 18  # rounds have different prompts of the same lengths
    rounds = [sorted(len(request["prompt"]) for _, request in server.requests[i:i + 6]) for i in (0, 6, 12)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert all(20 <= len(prompt) <= 60 for prompt in prompts)


@pytest.mark.parametrize("fault, text", [("status", "HTTP 503"), ("event", "out of memory"), ("cut", "openai")])
def test_a_failing_peer_is_reported(daemon, fault, text):
    with peer(fault) as (_, url):
        out = quire(
            "--address", daemon.grpc_address, "bench", "--requests", 2, "--input-tokens", 8, "--output-tokens", 4,
            "--peer", f"openai={url}", code=1
        )
    assert "all of 2 requests failed (openai); the first error: " in out and text in out


def test_unreachable_peers_and_bad_metrics_are_reported(daemon):
    arguments = ["--address", daemon.grpc_address, "bench", "--requests", 1]
    assert "Couldn't connect" in quire(*arguments, "--peer", "openai=http://127.0.0.1:1", code=3)
    quire(*arguments, "--peer", "x=http://127.0.0.1:1", code=2)
    quire(*arguments, "--input-tokens", "some", code=2)
    quire(*arguments, "--slo", "ttft", code=2)
    with peer() as (_, url):  # the peer has no metrics of quired
        assert "Couldn't connect" in quire(*arguments, "--metrics", "http://127.0.0.1:1/metrics", code=1)
        assert "does not serve the metrics of quired" in quire(*arguments, "--metrics", f"{url}/v1/models", code=1)
        out = quire(*arguments, "--metrics", f"{url}/metrics", code=1)
        assert "are inconsistent" in out and "1 completed, 0 failed" in out


SVG = "{http://www.w3.org/2000/svg}"


def test_results_are_drawn(daemon, tmp_path):
    arguments = ["--address", daemon.grpc_address, "bench", "--requests", 6, "--output-tokens", 5, "--svg", tmp_path / "bench.svg"]
    quire(*arguments)
    root = xml.etree.ElementTree.parse(tmp_path / "bench.svg").getroot()
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "quire, model story" in texts and "6 completed, 0 failed" in texts and "no values" not in texts
    assert {"time to first token, ms", "p99.9", "quire: output tokens/s", "requests in flight"} <= set(texts)
    assert len(list(root.iter(f"{SVG}path"))) == 4 + 2  # percentiles; tokens and requests over time
    with peer("status") as (_, url):  # all requests to the peer fail
        quire(*arguments, "--peer", f"openai={url}", "--peer-model", "<a&b>", code=1)
    root = xml.etree.ElementTree.parse(tmp_path / "bench.svg").getroot()
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "openai, model <a&b>" in texts and "0 completed, 6 failed" in texts and "openai: output tokens/s" in texts
    assert len([line for line in root.iter(f"{SVG}line") if line.get("stroke") == "#dc2626"]) == 6


def test_a_run_without_a_completed_request_says_so(daemon):
    out = quire("--address", daemon.grpc_address, "bench", "--requests", 3, "--input-tokens", 5000, code=1)
    assert "all of 3 requests failed (quire); the first error: PROMPT_TOO_LONG" in out
    assert "no request completed, so there are no latencies" in out and "p99" not in out


def test_output_file_is_opened_before_the_load(daemon, tmp_path):
    arguments = ["--address", daemon.grpc_address, "bench", "--requests", 1]
    out = quire(*arguments, "--output-file", tmp_path / "absent" / "report.json", code=1)
    assert "cannot write" in out and "completed" not in out
    out = quire(*arguments, "--output-file", "/dev/full", code=1)
    assert "cannot write /dev/full" in out and "1 completed" in out
    quire(*arguments, "--output-file", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["completed"] == 1
    assert "cannot write /dev/full" in quire(*arguments, "--svg", "/dev/full", code=1)


@pytest.mark.parametrize("options", [
    "--arrival gamma", "--burstiness 0.5", "--rate 5 --burstiness 0.5", "--speed 2", "--peer-model m", "--peer-pid 1",
    "--prefix-share 0.5", "--prefix-count 2", "--schema-share 0.5", "--trace t --rate 5", "--trace t --input-tokens 5",
    "--trace t --output-tokens 5", "--trace t --prefix-tokens 5", "--rate 1e-11", "--rate 1e7",
])
def test_options_without_effect_are_rejected(options):
    # The option is rejected, not the trace, which does not exist.
    assert "cannot read" not in quire("bench", *options.split(), code=2)


def accepted(daemon):
    """Returns the number of accepted requests."""
    _, metrics = http_get(daemon.http_address, "/metrics")
    return float(re.search(rb"^quire_requests_accepted_total\S* (\S+)$", metrics, re.MULTILINE).group(1))


@pytest.mark.parametrize("compares", [False, True])
def test_an_interrupted_round_is_not_in_the_medians(daemon, compares, tmp_path):
    with peer() as (server, url):
        file = tmp_path / "report"
        command = [str(QUIRE), "--address", daemon.grpc_address, "--json", "bench", "--requests", "40", "--rate", "40",
                   "--output-tokens", "2", "--rounds", "1000", "--output-file", str(file)]
        before = accepted(daemon)
        process = subprocess.Popen(command + ["--peer", f"openai={url}"] * compares, stdout=subprocess.PIPE, text=True)
        if compares:  # at least in the second round
            wait_until(lambda: len(server.requests) >= 50, "requests of the second round", 60)
        else:
            wait_until(lambda: accepted(daemon) > before, "a request")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    if compares:
        report = json.loads(out)
        assert report["interrupted"] and 1 <= report["rounds"] < 1000
        assert {run["completed"] for run in report["ours"] + report["peer"]} == {40}
    else:
        report = json.loads(out.splitlines()[-1])
        assert report["interrupted"] and report["num_prompts"] < 40
    assert file.read_text() == out


def greedy(folder, model):
    """Returns a model's output, joined, since the number of messages differs from run to run."""
    with Daemon(folder, str(model), settings=["model.quantization=none"]) as daemon:
        daemon.wait_serving()
        lines = quire("--address", daemon.grpc_address, "--json", "generate", "abc", "--max-tokens", 12, "--temperature", 0)
    return "".join(json.loads(line).get("delta", {}).get("text", "") for line in lines.splitlines())


def test_random_weights_are_the_same_in_both_formats(tmp_path):
    folder, gguf = tmp_path / "tiny", tmp_path / "tiny.gguf"
    quire("make-model", "--shape", "tiny", "--out", folder, "--weights", "--gguf", gguf)
    ours = greedy(tmp_path, folder)
    assert len(ours) > 3
    assert greedy(tmp_path, gguf) == ours
    quire("make-model", "--shape", "tiny", "--out", tmp_path / "other", "--weights", "--seed", 2)
    assert (tmp_path / "other/model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()
    assert "exists" in quire("make-model", "--shape", "tiny", "--out", folder, "--weights", code=1)
    scaled = quire("make-model", "--shape", "llama-3.1-8b", "--out", tmp_path / "x", "--gguf", tmp_path / "x.gguf", code=1)
    assert "scaled RoPE" in scaled and not (tmp_path / "x").exists()
    assert "exists" in quire("make-model", "--shape", "tiny", "--out", tmp_path / "y", "--gguf", gguf, code=1)
    assert not (tmp_path / "y").exists()


def test_accuracy_reads_a_gguf_file(tmp_path):
    gguf, text = tmp_path / "tiny.gguf", tmp_path / "text.txt"
    quire("make-model", "--shape", "tiny", "--out", tmp_path / "tiny", "--gguf", gguf)
    text.write_text("x\u20ac" * 40)

    def accuracy(*arguments):
        command = [BUILD / "tools" / "accuracy", "--model", gguf, "--formats", "int8", "--context", 32, *arguments]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)

    done = accuracy("--text", text)
    assert done.returncode == 0 and "| int8 |" in done.stdout, done.stderr
    # Bytes 2 and 3 are the remainder of a character.
    assert accuracy("--text", text, "--skip-bytes", 2).stdout == accuracy("--text", text, "--skip-bytes", 4).stdout
    assert accuracy("--text", text, "--skip-bytes", 1, "--tokens", 2).returncode == 0
    text.write_text("")
    done = accuracy("--text", text)
    assert done.returncode == 1 and "nothing to predict" in done.stderr


def test_bench_cpu_compares_with_an_openai_server(tmp_path):
    model = tmp_path / "models" / "tiny"  # where the script looks for it
    quire("make-model", "--shape", "tiny", "--out", model, "--weights")
    settings = ["openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.capacity_bytes=4MiB",
                "kv_cache.page_size=16", "kv_cache.partial_page_reuse=false"]
    with Daemon(tmp_path, str(model), settings=settings) as server:
        url = f"openai=http://{server.wait_serving().openai_address}"
        command = [sys.executable, str(ROOT / "scripts" / "bench_cpu"), "--smoke", "--build", str(BUILD), "--tables",
                   "served", "--work", str(model.parent), "--peer-url", url]
        for run in ("first", "second"):
            done = subprocess.run([*command, "--out", str(tmp_path / run)], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr
        _, metrics = http_get(server.http_address, "/metrics")
    # Shared prefixes of 8 tokens fill no page. So there are hits only if the second run repeats prompts of the first.
    assert re.search(rb"^quire_prefix_cache_queries_tokens_total\S* [1-9]", metrics, re.MULTILINE)
    assert re.search(rb"^quire_prefix_cache_hits_tokens_total\S* 0$", metrics, re.MULTILINE)
    report = (tmp_path / "second" / "report.md").read_text()
    assert f"- peer: {url}, model tiny" in report and "| tiny | none / bf16 | 2 | TTFT p50, ms |" in report
    served = json.loads((tmp_path / "second" / "served-tiny-none-2.json").read_text())
    ours, peer = served["median"]["ours"], served["median"]["peer"]
    assert ours["completed"] == peer["completed"] == 8
    assert ours["total_input_tokens"] == peer["total_input_tokens"]
    assert ours["total_output_tokens"] == peer["total_output_tokens"] == 8 * 8


def test_bench_cpu_writes_its_measurements(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "bench_cpu"), "--smoke", "--build", str(BUILD), "--work",
               str(tmp_path / "models"), "--out", str(tmp_path / "out"), "--set", "kv_cache.capacity_bytes=4MiB"]
    with peer() as (server, url):
        done = subprocess.run([*command, "--peer-url", f"llamacpp={url}"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.requests
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| tiny | int8 / Q8_0 | decode, batch 4 |" in report and "| prefill 64 |" in report
    assert "device.cpu.threads=" in report
    assert "output tokens/s" in report and "quire --address" in report.replace(str(QUIRE), "quire")
    kept = json.loads((tmp_path / "out" / "measurements.json").read_text())
    assert list(benchmark_data.faults("measurements.json", kept)) == []
    kernels, load = kept["measurements"]
    assert ["tiny", "int8", "Q8_0", "prefill 64"] in [row[:4] for row in kernels["rows"]]
    tokens = next(row for row in load["rows"] if row[4] == "output tokens/s")
    assert tokens[:4] == ["tiny", "int8", "Q8_0", 2] and tokens[7] == pytest.approx(tokens[5] / tokens[6], rel=0.01, abs=0.001)
    assert any("quire" in command and " bench " in command for command in load["commands"])
    served = json.loads((tmp_path / "out" / "served-tiny-int8-2.json").read_text())
    assert served["median"]["ours"]["completed"] == served["median"]["peer"]["completed"] == 8
