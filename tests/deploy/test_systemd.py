"""deploy/systemd/quired.service, and quired under a supervisor that implements systemd's notify protocol."""

import configparser
import re
import signal
import socket
import subprocess
import time

import pytest
from deployment import QUIRED, ROOT, Daemon, effective, needs, quire, seconds, stop_seconds

UNIT = ROOT / "deploy" / "systemd" / "quired.service"


def service():
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


def test_times_match_the_configuration():
    unit, config = service(), effective()
    assert seconds(unit["TimeoutStopSec"]) > stop_seconds(config)
    # The daemon reports itself as failed before the supervisor would.
    assert seconds(unit["WatchdogSec"]) > seconds(config["health"]["engine_stall_timeout"])
    assert unit["Type"] == "notify" and unit["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_exit_codes_that_prevent_a_restart():
    codes = dict(re.findall(r"constexpr int kExit(\w+) = (\d+);", (ROOT / "server" / "daemon.h").read_text()))
    assert service()["RestartPreventExitStatus"].split() == [codes["Usage"], codes["Config"]]


def test_admin_socket_is_in_the_runtime_directory():
    (socket_path,) = effective()["server"]["admin"]["listen"]
    assert socket_path.startswith(f"unix:/run/{service()['RuntimeDirectory']}/")


def test_systemd_accepts_the_unit(tmp_path):
    needs("systemd-analyze")
    text = UNIT.read_text()
    assert "/usr/bin/quired " in text
    copy = tmp_path / "quired.service"
    copy.write_text(text.replace("/usr/bin/quired ", f"{QUIRED} "))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "quired.service" in line]
    assert done.returncode == 0 and not said, done.stderr


def syscalls(group):
    """Returns the system calls of a group such as `@system-service`, as systemd lists them."""
    done = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    names = [line.strip() for line in done.stdout.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return {found for name in names for found in (syscalls(name) if name.startswith("@") else [name])}


def test_exposure_is_low():
    """The score of systemd goes from 0, no access, to 10. The unit gives a reason for every check that stays open."""
    needs("systemd-analyze")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    (score,) = re.findall(r"Overall exposure level for quired.service: ([0-9.]+) ", done.stdout)
    assert float(score) < 2, done.stdout
    comments = " ".join(line for line in UNIT.read_text().splitlines() if line.startswith("#"))
    open_checks = re.findall(r"^\u2717 (\w+)=", done.stdout, re.MULTILINE)
    explained = {"SystemCallFilter": "~@resources", "RestrictAddressFamilies": "AF_INET", "DeviceAllow": "DevicePolicy"}
    assert open_checks
    for name in open_checks:
        assert explained.get(name, name) in comments, name


def test_sandbox_admits_what_quired_does(tmp_path):
    """Runs the daemon under strace from start to drain. The sandbox itself needs a running systemd."""
    needs("systemd-analyze")
    needs("strace")
    text = UNIT.read_text()
    admitted, *denied = re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE)
    allowed = syscalls(admitted).difference(*(syscalls(group.removeprefix("~")) for group in denied))
    families = re.findall(r"^RestrictAddressFamilies=(.*)$", text, re.MULTILINE)[0].split()
    trace = tmp_path / "trace"
    with Daemon(tmp_path, settings=["openai.enabled=true", "openai.listen=127.0.0.1:0", "shutdown.pre_drain_delay=0s"],
                prefix=["strace", "-f", "-qq", "-o", str(trace)]) as daemon:
        daemon.wait_serving()
        quire(daemon, "generate", "Once upon a time", "--max-tokens", "4")
        quire(daemon, "drain", "--exit")
        assert daemon.wait(60) == 0
    calls = re.findall(r"^\d+ +(\w+)\((\w*)", trace.read_text(), re.MULTILINE)
    assert {"futex", "socket", "mmap"} <= {name for name, _ in calls} <= allowed
    assert {"AF_INET", "AF_UNIX"} <= {family for name, family in calls if name == "socket"} <= set(families)


@pytest.fixture(params=["path", "abstract"])
def supervisor(request, tmp_path):
    """Returns (socket, value of NOTIFY_SOCKET)."""
    name = f"{tmp_path}/notify" if request.param == "path" else f"@quire-test/{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(name if request.param == "path" else "\0" + name[1:])
        end.settimeout(20)
        yield end, name


def read(end):
    return dict(line.split("=", 1) for line in end.recv(4096).decode().splitlines())


def read_until(end, key):
    """Reads messages up to the first one with `key`."""
    seen = []
    while not seen or key not in seen[-1]:
        seen.append(read(end))
    return seen


def test_quired_reports_its_state_to_the_supervisor(supervisor, tmp_path):
    end, name = supervisor
    # The daemon has the embedded model's address and a watchdog of one second.
    env = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000", "PATH": "/usr/bin:/bin"}
    with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=1s"], env=env) as daemon:
        before = read_until(end, "READY")
        assert before[0] == {"STATUS": "loading the model"}
        assert before[-1] == {"READY": "1", "STATUS": "serving story"}
        daemon.wait_serving()
        signs = [read(end) for _ in range(3)]
        assert signs == [{"WATCHDOG": "1"}] * 3
        daemon.process.send_signal(signal.SIGHUP)
        reloading = read_until(end, "RELOADING")[-1]
        assert int(reloading["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert read_until(end, "READY")[-1] == {"READY": "1", "STATUS": "serving story"}
        daemon.terminate()
        assert read_until(end, "STOPPING")[-1] == {"STOPPING": "1", "STATUS": "draining"}
        # Watchdog pings continue until the end, otherwise the supervisor would kill a draining process.
        assert read(end) == {"WATCHDOG": "1"}
        assert daemon.wait(30) == 0


def test_stalled_process_sends_no_watchdog_pings(tmp_path):
    """A stalled process sends no watchdog pings, so the supervisor would send SIGABRT."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"{tmp_path}/notify")
        end.settimeout(20)
        env = {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "400000", "PATH": "/usr/bin:/bin"}
        with Daemon(tmp_path, settings=["shutdown.pre_drain_delay=0s"], env=env) as daemon:
            read_until(end, "READY")
            read_until(end, "WATCHDOG")
            daemon.process.send_signal(signal.SIGSTOP)
            end.settimeout(0.8)
            with pytest.raises(socket.timeout):
                for _ in range(4):  # messages that were in flight
                    read(end)
            daemon.process.send_signal(signal.SIGCONT)
            end.settimeout(20)
            assert "WATCHDOG" in read(end)
            daemon.terminate()
            assert daemon.wait(30) == 0


def test_rejected_configuration_never_reports_ready(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"{tmp_path}/notify")
        end.settimeout(0.5)
        env = {"NOTIFY_SOCKET": f"{tmp_path}/notify", "PATH": "/usr/bin:/bin"}
        with Daemon(tmp_path, settings=[f"model.path={tmp_path}/no-model"], env=env) as daemon:
            assert daemon.wait(30) == 78
        with pytest.raises(socket.timeout):
            while True:
                assert "READY" not in read(end)
