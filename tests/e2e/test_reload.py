"""Configuration reload: its reports and rejections in every phase of the daemon, and the check that every hot key has a
test."""

import re
import signal
import subprocess
import threading
import time

import grpc
import pytest
from daemon import QUIRE, Daemon, reason_of
import test_reload_keys  # noqa: F401 - what it covers
from reload_tools import ELSEWHERE, START, Live, covered, covers, greedy, hot_keys, stalled, to_yaml
from reload_tools import live, shared  # noqa: F401 - fixtures
from waiting import wait_until


def test_every_hot_key_is_covered():
    keys = hot_keys()
    assert len(keys) > 40
    assert keys - covered - set(ELSEWHERE) == set()
    assert (covered | set(ELSEWHERE)) - keys == set(), "not hot"


# --- reports and rejections of a reload -----------------------------------------------------------------------


def test_broken_file_changes_nothing(live, api):
    config = live.admin.GetConfig(api.GetConfigRequest())
    rejected = live.sum("quire_config_reloads_total", "rejected")
    live.file.write_text("limits: {max_choices: 3\n")
    answer = live.reload()
    assert any(re.match(rf"{re.escape(str(live.file))}:\d+:\d+: ", error) for error in answer.errors)
    live.file.write_text("limits:\n  max_choices: 3\n  max_chioces: 4\n")
    answer = live.reload()
    assert list(answer.errors) == [
        f'{live.file}:3:3: unknown field "max_chioces" in limits; did you mean "max_choices"?'
    ]
    after = live.admin.GetConfig(api.GetConfigRequest())
    assert after.config_sha256 == config.config_sha256 == answer.config_sha256
    assert after.load_time == config.load_time
    assert live.sum("quire_config_reloads_total", "rejected") == rejected + 2
    request = greedy(api)
    request.sampling.choice_count = 5
    live.run(request)


def test_cold_key_rejects_the_whole_reload(live, api):
    live.write({"server.http.threads": "5", "limits.max_choices": "3", "scheduler.max_running_sequences": "17"})
    answer = live.reload()
    assert {change.path for change in answer.rejected} == {"server.http.threads", "scheduler.max_running_sequences"}
    assert [change.path for change in answer.changed] == ["limits.max_choices"]
    assert len(answer.errors) == 2
    assert "can only be changed by a restart" in answer.errors[0]
    assert "is larger than its value at start (16)" in answer.errors[1]
    request = greedy(api)
    request.sampling.choice_count = 5
    live.run(request)


def test_dry_run_reports_only(live, api):
    before = live.admin.GetConfig(api.GetConfigRequest()).config_sha256
    counts = live.sum("quire_config_reloads_total")
    live.write({"limits.max_choices": "3"})
    answer = live.reload(dry_run=True)
    assert not answer.errors and not answer.rejected
    (change,) = answer.changed
    assert (change.path, change.old_value, change.new_value) == ("limits.max_choices", "16", "3")
    assert change.location.startswith(f"{live.file}:")
    assert answer.config_sha256 == before
    assert live.admin.GetConfig(api.GetConfigRequest()).config_sha256 == before
    assert live.sum("quire_config_reloads_total") == counts


def test_effective_config_has_origins(live, api):
    answer = live.set(limits__max_choices="3")
    config = live.admin.GetConfig(api.GetConfigRequest())
    assert config.config_sha256 == answer.config_sha256
    assert config.origins["limits.max_choices"].startswith(f"{live.file}:")
    assert "max_choices: 3  # " in config.yaml
    assert "threads: 1  # --set" in config.yaml
    assert live.generation.GetServerInfo(api.GetServerInfoRequest()).config_sha256 == config.config_sha256
    assert abs(live.sum("quire_config_last_reload_success_timestamp_seconds") - time.time()) < 60


def test_command_line_client_reloads(live):
    def quire(*arguments, code):
        command = [str(QUIRE), "--admin", live.daemon.admin, "reload", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "no key changed" in quire(code=0)
    live.write({"limits.max_choices": "3"})
    assert "would change limits.max_choices: 16 -> 3" in quire("--dry-run", code=0)
    assert "changed limits.max_choices: 16 -> 3" in quire(code=0)
    live.write({"server.http.threads": "5"})
    text = quire(code=1)
    assert "needs a restart: server.http.threads: 4 -> 5" in text and "no change was applied" in text


def test_sighup_follows_a_replaced_link(live):
    """Simulates how the kubelet updates a ConfigMap: a link to a folder is renamed over the old link."""
    for name, choices in (("one", 2), ("two", 3)):
        (live.folder / name).mkdir(exist_ok=True)
        (live.folder / name / "quired.yaml").write_text(to_yaml({**START, "limits.max_choices": str(choices)}))
    request = greedy(live.api)
    request.sampling.choice_count = 3

    def point_at(name):
        link = live.folder / "next"
        link.symlink_to(live.folder / name / "quired.yaml")
        link.rename(live.file)
        applied = live.sum("quire_config_reloads_total", "applied")
        live.daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: live.sum("quire_config_reloads_total", "applied") == applied + 1, "the reload is applied")

    point_at("one")
    assert live.refusal(request)[0] == "BAD_SAMPLING_PARAM"
    point_at("two")
    live.run(request)
    assert live.log_lines(logger="config", msg="changed", key="limits.max_choices", to="3")


def test_fifty_reloads_during_sixteen_streams(live, api):
    """Each reader repeats its request until the last reload is done, so that streams run during all of them."""
    failures, texts, reloaded = [], set(), threading.Event()

    def read():
        try:
            while not reloaded.is_set():
                ids = []
                for message in live.generation.Generate(greedy(api, tokens=400), timeout=120):
                    ids.extend(message.delta.token_ids)
                texts.add(tuple(ids))
        except grpc.RpcError as error:
            failures.append(error)

    streams = [threading.Thread(target=read) for _ in range(16)]
    for stream in streams:
        stream.start()
    try:
        reload_fifty_times(live)
    finally:
        reloaded.set()
        for stream in streams:
            stream.join(120)
    assert not failures, failures[0]
    assert len(texts) == 1


def reload_fifty_times(live):
    for i in range(50):
        live.write(
            {
                "limits.max_choices": str(1 + i % 15),
                "scheduler.max_running_sequences": str(1 + i % 15),
                "scheduler.max_step_tokens": str(64 + 16 * i),
                "scheduler.prefill_chunk_tokens": str(16 + 16 * (i % 3)),
                "kv_cache.partial_page_reuse": ["true", "false"][i % 2],
                "stream.slow_client_timeout": f"{20 + i}s",
                "logging.rate_limit_per_second": str(100 + i),
            }
        )
        answer = live.reload()
        assert not answer.errors and len(answer.changed) > 4


def test_tenants_that_can_fill_the_queue_are_reported(api, tmp_path):
    open_entries = "[{id: acme, max_running_requests: 2}, {id: fine, max_running_requests: 2, max_queued_requests: 4}]"
    live = Live(api, tmp_path, {**START, "tenants.entries": open_entries})
    try:
        def named():
            return [line["tenants"] for line in live.log_lines(level="warn", msg="a tenant can fill the queue that all tenants share")]

        assert named() == ["acme"]
        live.set(tenants__defaults__max_running_requests="1")
        wait_until(lambda: named() == ["acme", "tenants.defaults,acme"], "the tenants are named")
        live.set(tenants__entries="[{id: acme, max_running_requests: 2, max_queued_tokens: 100}]")
        wait_until(lambda: live.log_lines(msg="reload", result="applied")[1:], "the second reload is logged")
        assert named() == ["acme", "tenants.defaults,acme"]
    finally:
        live.close()


# --- phases of the process -----------------------------------------------------------------------------------


@covers("shutdown.pre_drain_delay", "shutdown.drain_timeout")
def test_drain_uses_the_times_in_effect(api, tmp_path):
    live = Live(api, tmp_path)
    try:
        live.set(shutdown__pre_drain_delay="2s", shutdown__drain_timeout="1s")
        call = stalled(live)
        start = time.monotonic()
        live.daemon.terminate()
        wait_until(lambda: live.log_lines(msg="not ready, still admitting requests"), "the signal is taken")
        assert len(live.ids(greedy(api, tokens=2))) == 2, "still admitting"
        wait_until(lambda: live.sum("quire_requests_cancelled_total", "shutdown"), "the drain ends the call")
        with pytest.raises(grpc.RpcError) as error:
            for _ in call:
                pass
        assert reason_of(error.value)[0] == "SERVER_SHUTDOWN"
        assert live.daemon.wait(30) == 0
        assert 2.9 < time.monotonic() - start < 30
    finally:
        live.close()


@covers("shutdown.force_timeout")
@pytest.mark.parametrize("force", ["0s", "3s"])
def test_close_timeout_is_the_one_in_effect(api, tmp_path, force):
    live = Live(api, tmp_path, {**START, "shutdown.force_timeout": "60s"})
    try:
        live.set(shutdown__force_timeout=force, shutdown__drain_timeout="0s")
        call = stalled(live)  # its last write waits for the reader
        start = time.monotonic()
        live.daemon.terminate()
        assert live.daemon.wait(30) == 0
        took = time.monotonic() - start
        assert (2.9 if force == "3s" else 0) < took < 30
        call.cancel()
    finally:
        live.close()


def test_reload_takes_effect_during_a_drain(api, tmp_path):
    """A reload during a drain changes the log, the limits after Resume and the times of the next drain, but not of this
    one."""
    live = Live(api, tmp_path)
    try:
        call = stalled(live)  # the drain waits for the reader
        live.admin.Drain(api.DrainRequest())
        live.set(limits__max_choices="3", shutdown__drain_timeout="0s", logging__access_log="false")
        assert sum(message.HasField("completed") for message in call) == 8
        live.file.write_text("limits: [\n")
        assert live.reload().errors
        live.admin.Resume(api.ResumeRequest())
        request = greedy(api)
        request.sampling.choice_count = 4
        assert live.refusal(request)[0] == "BAD_SAMPLING_PARAM"
        assert not live.log_lines(logger="access", code="OK")
        live.daemon.terminate()
        live.daemon.process.send_signal(signal.SIGHUP)
        assert live.daemon.wait(30) == 0
    finally:
        live.close()


def test_reload_takes_effect_while_the_model_loads(api, tmp_path):
    """The reloaded configuration is in effect for the first request."""
    file = tmp_path / "quired.yaml"
    file.write_text(to_yaml({**START, "limits.max_choices": "2"}))
    with Daemon(tmp_path, "--config", str(file)) as daemon:
        daemon.wait_listening()
        file.write_text(to_yaml({**START, "limits.max_choices": "3"}))
        with daemon.admin_channel() as channel:
            answer = api.AdminServiceStub(channel).ReloadConfig(api.ReloadConfigRequest(), timeout=30)
        assert not answer.errors
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            request = greedy(api)
            request.sampling.choice_count = 3
            list(stub.Generate(request))
            request.sampling.choice_count = 4
            with pytest.raises(grpc.RpcError) as error:
                list(stub.Generate(request))
            assert reason_of(error.value)[0] == "BAD_SAMPLING_PARAM"
