"""The start of a daemon: default listeners, addresses that are taken, --port-offset, --validate, log lines on a terminal."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import time
import urllib.request

import pytest
from daemon import QUIRE, QUIRED, ROOT, Daemon
from waiting import wait_until

STORY = ROOT / "assets" / "story"
# Addresses of default.yaml.
GRPC_PORT, OPENAI_PORT, HTTP_PORT = 50051, 8000, 9464


def entries(daemon):
    return [json.loads(line) for line in daemon.lines if line.startswith("{")]


def entry(daemon, message):
    return next((found for found in entries(daemon) if found["msg"] == message), None)


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, **options)


def validate(*settings, folder=None):
    """Returns the exit code and the lines of standard error."""
    done = run(QUIRED, "--validate", *(f"--set={setting}" for setting in settings), cwd=folder)
    return done.returncode, done.stderr.splitlines()


def free_offset(ports):
    """Returns an offset such that every port of `ports` plus it is free."""
    for offset in range(1, 1000):
        try:
            for port in ports:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        return offset
    raise AssertionError("no free port")


# --- listeners -----------------------------------------------------------------------------------------------


def test_the_ready_line_has_the_url(tmp_path):
    with Daemon(tmp_path) as daemon:
        daemon.wait_serving()
        ready = wait_until(lambda: entry(daemon, "ready"), "the line `ready`")
        assert ready["url"] == f"http://{daemon.openai_address}/v1"
        with urllib.request.urlopen(ready["url"] + "/models", timeout=30) as answer:
            assert json.load(answer)["data"][0]["id"] == ready["model"]


def test_the_ready_line_has_a_url_that_clients_can_use(tmp_path):
    with Daemon(tmp_path, settings=["openai.listen=0.0.0.0:0"]) as daemon:
        daemon.wait_serving()
        port = daemon.openai_address.removeprefix("0.0.0.0:")
        assert wait_until(lambda: entry(daemon, "ready"), "the line `ready`")["url"] == f"http://127.0.0.1:{port}/v1"
    with Daemon(tmp_path, settings=["openai.enabled=false"]) as daemon:
        daemon.wait_serving()
        assert wait_until(lambda: entry(daemon, "ready"), "the line `ready`")["url"] == ""


def test_help_names_the_default_addresses():
    text = run(QUIRED, "--help").stdout
    shown = json.loads(run(QUIRED, "--print-effective-config=json").stdout)
    assert shown["openai"] | {"enabled": True, "listen": f"127.0.0.1:{OPENAI_PORT}"} == shown["openai"]
    for address in (f"http://{shown['openai']['listen']}/v1", shown["server"]["grpc"]["listen"][0],
                    f"http://{shown['server']['http']['listen']}"):
        assert address in text


@pytest.mark.parametrize("key", ["server.grpc.listen", "server.admin.listen", "server.http.listen", "openai.listen"])
def test_a_taken_address_names_its_key_and_the_remedy(tmp_path, key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        with Daemon(tmp_path, settings=[f"{key}={address}"]) as daemon:
            assert daemon.wait(30) == 78
            error = entry(daemon, "cannot start")["error"]
    assert error == (f"{key}: address {address} is in use; set another address with --set {key}=ADDRESS, or shift all "
                     "addresses with --port-offset N")


def test_port_offset_moves_every_listener(tmp_path):
    ports = (GRPC_PORT, OPENAI_PORT, HTTP_PORT)
    offset = free_offset(ports)
    settings = [f"server.grpc.listen=127.0.0.1:{GRPC_PORT}", f"openai.listen=127.0.0.1:{OPENAI_PORT}",
                f"server.http.listen=127.0.0.1:{HTTP_PORT}"]
    with Daemon(tmp_path, "--port-offset", str(offset), settings=settings) as daemon:
        daemon.wait_serving()
        listening = entry(daemon, "listening")
        assert [listening[name] for name in ("grpc", "openai", "http")] == [f"127.0.0.1:{port + offset}" for port in ports]
        assert listening["admin"] == f"{daemon.admin}.{offset}"
        # The client finds the daemon by the same flag. --admin is as given, since the socket is in a folder of this test.
        client = [QUIRE, "--port-offset", offset, "--admin", f"{daemon.admin}.{offset}"]
        assert run(*client, "generate", "Once", "--max-tokens", "4", "--quiet").stdout.strip()
        assert run(*client, "health").stdout.strip() == "serving"
        # A reload keeps the offset, so it finds no change.
        daemon.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: entry(daemon, "reload"), "the reload is logged")["result"] == "unchanged"


def test_port_offset_lets_two_daemons_share_a_configuration(tmp_path):
    """Each port is 0, which stays 0. Without the offset the second daemon would find the admin socket in use."""
    with Daemon(tmp_path) as first, Daemon(tmp_path, "--port-offset", "1") as second:
        assert first.wait_serving().grpc_address != second.wait_serving().grpc_address
        with Daemon(tmp_path) as third:
            assert third.wait(30) == 78
            assert f"server.admin.listen: address {first.admin} is in use" in third.log
        for socket_path in (first.admin, f"{first.admin}.1"):
            assert run(QUIRE, "--admin", socket_path, "health").stdout.strip() == "serving"


def test_port_offset_is_checked(tmp_path):
    done = run(QUIRED, "--validate", "--port-offset", "60000", cwd=tmp_path)
    assert done.returncode == 78
    assert done.stderr.splitlines() == [
        f"default: {key}: 127.0.0.1:{port}: port {port} plus --port-offset 60000 is larger than 65535; use a smaller "
        "offset or another port"
        for key, port in (("server.grpc.listen", GRPC_PORT), ("server.http.listen", HTTP_PORT), ("openai.listen", OPENAI_PORT))
    ]
    for wrong in ("-1", "65536", "x"):
        assert run(QUIRED, "--validate", "--port-offset", wrong, cwd=tmp_path).returncode == 64
    shown = run(QUIRED, "--print-effective-config", "--port-offset", "3").stdout
    assert re.search(rf'listen: "127.0.0.1:{OPENAI_PORT + 3}"  # --port-offset$', shown, re.MULTILINE)
    assert re.search(r'listen: \["unix:/run/quire/admin.sock.3"\]  # --port-offset$', shown, re.MULTILINE)


# --- --validate ----------------------------------------------------------------------------------------------


def test_validate_reports_every_error_of_the_configuration(tmp_path):
    """Errors of values, of addresses and of the rules between keys are reported together."""
    config = tmp_path / "quired.yaml"
    config.write_text("limits: {max_choises: 2}\nopenai: {listen: nonsense}\ntls: {cert_file: missing.pem}\n"
                      "server: {http: {listen: '127.0.0.1:99999'}}\n")
    done = run(QUIRED, "--validate", "--config", config, "--set=shutdown.drain_timeout=45",
               "--set=scheduler.prefill_chunk_tokens=9000", cwd=tmp_path)
    assert done.returncode == 78
    for words in (["max_choises", "max_choices"], ["openai.listen", "nonsense"], ["tls.cert_file", "missing.pem"],
                  ["tls.key_file is missing"], ["server.http.listen", "99999"], ["shutdown.drain_timeout", "45s"],
                  ["scheduler.prefill_chunk_tokens (9000)", "scheduler.max_step_tokens (8192, the default)"]):
        assert sum(all(word in line for word in words) for line in done.stderr.splitlines()) == 1, (words, done.stderr)
    assert len(done.stderr.splitlines()) == 7, done.stderr


def test_validate_reports_every_error_of_the_files(tmp_path):
    """Errors that the start finds one by one, in different parts, are reported together."""
    tokens = tmp_path / "tokens"
    tokens.write_text("no token\n")
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    (tmp_path / "log").mkdir()
    code, lines = validate("auth.mode=token", f"auth.tokens_file={tokens}", f"chat.template_file={template}",
                           f"logging.file={tmp_path}/log", "kv_cache.capacity_bytes=64KiB", folder=tmp_path)
    assert code == 78
    for words in (["logging.file", "not a regular file"], [str(tokens)], [str(template)], ["kv_cache.capacity_bytes"]):
        assert sum(all(word in line for word in words) for line in lines) == 1, (words, lines)
    assert len(lines) == 4, lines


def test_validate_reports_a_log_file_that_cannot_be_made(tmp_path):
    code, lines = validate(f"logging.file={tmp_path}/none/quired.log", folder=tmp_path)
    assert code == 78 and len(lines) == 1
    assert "logging.file" in lines[0] and "No such file or directory" in lines[0]
    assert validate(f"logging.file={tmp_path}/quired.log", folder=tmp_path) == (0, [])
    assert list(tmp_path.iterdir()) == [], "--validate leaves no file"


def test_validate_reports_a_model_that_does_not_fit(tmp_path):
    """The model has no weights, but its configuration has the shape of one with 10^12 parameters."""
    config = {**json.loads((STORY / "config.json").read_text()), "hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 256,
              "num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((STORY / name).read_bytes())
    code, lines = validate(f"model.path={tmp_path}", "model.load_mode=dummy", "device.type=cpu", folder=tmp_path)
    assert code == 78 and len(lines) == 1
    assert re.search(r"the weights of the model take \d{13} bytes, but only \d+ bytes of memory are free", lines[0]), lines


def test_validate_opens_no_listener(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        assert validate(f"openai.listen={address}", f"server.admin.listen=unix:{tmp_path}/admin.sock") == (0, [])
    assert list(tmp_path.iterdir()) == []


# --- the terminal --------------------------------------------------------------------------------------------


def read_terminal(end):
    """Returns all that was written to the terminal. The other side must be closed."""
    text = b""
    while True:
        try:
            read = os.read(end, 65536)
        except OSError:  # EIO: no process has the terminal open
            read = b""
        if not read:
            return text.decode()
        text += read


def test_lines_on_a_terminal_are_text(tmp_path):
    end, terminal = pty.openpty()
    try:
        with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=0s"], format_in_file=True, stderr=terminal) as daemon:
            os.close(terminal)
            socket_path = daemon.admin
            wait_until(lambda: run(QUIRE, "--admin", socket_path, "health").returncode == 0, "the daemon serves", 60)
            daemon.terminate()
            assert daemon.wait(30) == 0
        lines = read_terminal(end).splitlines()
    finally:
        os.close(end)
    ready = next(line for line in lines if " ready " in line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z info server: ready url=http://127\.0\.0\.1:\d+/v1 "
                        r"model=story( \w+=\S+)+", ready), ready
    assert not any(line.startswith("{") for line in lines)


def test_lines_elsewhere_are_json(tmp_path):
    with Daemon(tmp_path, format_in_file=True) as daemon:
        daemon.wait_serving()
        assert wait_until(lambda: entry(daemon, "ready"), "the line `ready`")["logger"] == "server"
        assert all(line.startswith("{") for line in daemon.lines), daemon.log


def test_the_default_start_has_no_warning(tmp_path):
    """The keys that the harness sets only move the listeners."""
    with Daemon(tmp_path, env={"PATH": os.environ["PATH"]}) as daemon:
        daemon.wait_serving()
        wait_until(lambda: entry(daemon, "ready"), "the line `ready`")
        assert [found for found in entries(daemon) if found["level"] not in ("info", "debug")] == []


# --- the end -------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_an_idle_daemon_without_the_delay(tmp_path):
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=300s"]) as daemon:
        daemon.wait_serving()
        with urllib.request.urlopen(f"http://{daemon.openai_address}/v1/models", timeout=30):
            daemon.process.send_signal(signal.SIGINT)
            assert daemon.wait(30) == 0, daemon.log
        assert entry(daemon, "draining") and not entry(daemon, "not ready, still admitting requests")


def test_a_second_ctrl_c_ends_a_drain(api, tmp_path):
    settings = ["shutdown.pre_drain_delay=300s", "shutdown.drain_timeout=300s"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        request = api.GenerateRequest(text="Once")
        request.stopping.max_tokens = 480
        request.stopping.ignore_eos = True
        # The output exceeds the buffers of the connection, so the request stays live while nothing is read.
        request.sampling.choice_count, request.output.logprobs, request.output.stream = 8, 20, True
        with daemon.channel() as channel:
            call = api.GenerationServiceStub(channel).Generate(request)
            next(call)
            daemon.process.send_signal(signal.SIGINT)
            wait_until(lambda: entry(daemon, "draining"), "the first interrupt is taken")
            daemon.process.send_signal(signal.SIGINT)
            assert daemon.wait(10) == 1
            call.cancel()
