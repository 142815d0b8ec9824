"""`quire bench` against a real quired and real HTTP servers, `quire make-model`, and scripts/bench_cpu."""

import contextlib
import http.server
import json
import socketserver
import subprocess
import sys
import threading

import pytest
from daemon import BUILD, QUIRE, ROOT, Daemon


def quire(*arguments, code=0):
    done = subprocess.run([str(QUIRE), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stdout + done.stderr


def bench(daemon, *arguments):
    metrics = f"http://{daemon.http_address}/metrics"
    return json.loads(quire("--address", daemon.grpc_address, "--json", "bench", "--metrics", metrics, *arguments))


class Peer(http.server.BaseHTTPRequestHandler):
    """Answers like llama.cpp's server and like an OpenAI-compatible one, every token the letter a."""

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
    server.requests, server.fault = [], fault
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
        daemon, "--requests", 40, "--rate", 100, "--arrival", arrival, "--burstiness", 0.5, "--input-tokens", 16,
        "--output-tokens", 40, "--cancel-ratio", 0.3
    )
    # A request may complete before its cancel arrives.
    assert report["completed"] + report["cancelled"] == 40 and report["failed"] == 0
    assert 1 <= report["cancelled"] <= 24
    assert report["request_rate"] == 100
    assert 0 <= report["late_sends"] <= 40 and report["max_send_delay_ms"] < 5000
    assert report["duration"] > 0.1


def test_trace(daemon, tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,48,10\n2023-11-16 18:17:05.5,11,3\n"
    )
    report = bench(daemon, "--trace", azure, "--speed", 10)
    assert report["completed"] == 2 and report["total_input_tokens"] == 59 and report["total_output_tokens"] == 13
    assert 0.2 <= report["duration"] < 2
    mooncake = tmp_path / "mooncake.jsonl"
    rows = [{"timestamp": 20 * i, "input_length": 400 + i, "output_length": 2, "hash_ids": [7]} for i in range(4)]
    mooncake.write_text("\n".join(map(json.dumps, rows)))
    report = bench(daemon, "--trace", mooncake)
    assert report["completed"] == 4 and report["total_output_tokens"] == 8
    mooncake.write_text("{}\n")
    assert "line 1 is neither" in quire("--address", daemon.grpc_address, "bench", "--trace", mooncake, code=2)


@pytest.mark.parametrize("kind", ["llamacpp", "openai"])
def test_peer_gets_the_same_load_in_turn(daemon, kind):
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
    assert len(prompts) == 18  # a round meets no prompt of another
    assert all(20 <= len(prompt) <= 60 for prompt in prompts)


@pytest.mark.parametrize("fault, text", [("status", "HTTP 503"), ("event", "out of memory"), ("cut", "openai")])
def test_a_failing_peer_is_reported(daemon, fault, text):
    with peer(fault) as (_, url):
        out = quire(
            "--address", daemon.grpc_address, "bench", "--requests", 2, "--input-tokens", 8, "--output-tokens", 4,
            "--peer", f"openai={url}", code=1
        )
    assert "first failure (openai)" in out and text in out


def test_peer_that_is_not_there(daemon):
    arguments = ["--address", daemon.grpc_address, "bench", "--requests", 1]
    assert "Couldn't connect" in quire(*arguments, "--peer", "openai=http://127.0.0.1:1", code=3)
    quire(*arguments, "--peer", "x=http://127.0.0.1:1", code=2)
    quire(*arguments, "--input-tokens", "some", code=2)
    quire(*arguments, "--slo", "ttft", code=2)
    with peer() as (_, url):  # no metrics of ours there
        assert "Couldn't connect" in quire(*arguments, "--metrics", "http://127.0.0.1:1/metrics", code=1)
        assert "do not add up" in quire(*arguments, "--metrics", f"{url}/v1/models", code=1)


def greedy(folder, model):
    """A model's answer; into how many messages the server merges it differs from run to run."""
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
    assert "scaled RoPE" in scaled


def test_bench_cpu_script(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "bench_cpu"), "--smoke", "--build", str(BUILD), "--work",
               str(tmp_path / "models"), "--out", str(tmp_path / "out"), "--set", "kv_cache.capacity_bytes=4MiB"]
    with peer() as (server, url):
        done = subprocess.run([*command, "--peer-url", f"llamacpp={url}"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.requests
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| tiny | int8 / Q8_0 | decode, batch 4 |" in report and "| prefill 64 |" in report
    assert "output tokens/s" in report and "quire --address" in report.replace(str(QUIRE), "quire")
    served = json.loads((tmp_path / "out" / "served-tiny-int8-2.json").read_text())
    assert served["median"]["ours"]["completed"] == served["median"]["peer"]["completed"] == 8
