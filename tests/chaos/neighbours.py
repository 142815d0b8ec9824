"""Runs a daemon under one attack and measures the latency of a neighbour's calls, memory and processor time."""

import collections
import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e"), str(HERE.parent / "testing")]

import attacker  # noqa: E402
from attack_tools import Files, bearer, generate, http_get, request_of, tls_channel, token_line  # noqa: E402
from certificates import Authority  # noqa: E402
from daemon import Daemon, becomes_serving  # noqa: E402
from process_figures import peak_memory, processor_seconds, resident_bytes  # noqa: E402
from waiting import comes_true, pace  # noqa: E402

# Two more cases run an attack against a different daemon: one with TLS, and one whose log nobody reads.
CASES = {name: name for name in attacker.ATTACKS}
CASES |= {"silent_tls_connections": "silent_connections", "unread_log": "silent_connections"}

SETTINGS = {"unread_short_answers": ["stream.slow_client_timeout=2s", "limits.max_queued_requests=4096"]}

# The same with an attack and without one, because calls take longer after the processor has slept.
SECONDS_BETWEEN_CALLS = 0.05
SECONDS_TO_CALM_DOWN = 30
IDLE_SHARE = 0.1  # of a core, over a second


@dataclasses.dataclass
class Figures:
    """Times in seconds, memory in bytes."""

    quiet: list  # of each call
    attacked: list
    before: int  # resident memory: before the attack, at its peak, and once it is as before or time is up
    peak: int
    after: int
    seconds_until_back: float
    processor_share: float  # cores that the daemon uses during the attack
    is_idle: bool  # the daemon uses less than IDLE_SHARE soon after the attack
    rounds: int


def memory_bound(before, slack=0):
    return int(1.1 * before) + slack


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


class Scene:
    """The daemon and the neighbour. The attacker has the same address but belongs to another tenant."""

    def __init__(self, api, folder, case, settings=(), prefix=()):
        self.api, self.folder, self.case = api, folder, case
        self.files = Files(folder)
        self.settings, self.prefix = [*SETTINGS.get(case, ()), *settings], prefix
        self.authority = Authority() if case == "silent_tls_connections" else None

    @contextlib.contextmanager
    def running(self):
        tokens = self.files.write("tokens", token_line("n", "neighbour", "generate,metrics") + token_line("a", "attacker", "generate"))
        settings = ["kv_cache.capacity_bytes=8MiB", "openai.enabled=true", "openai.listen=127.0.0.1:0", "auth.mode=token", f"auth.tokens_file={tokens}",
                    *self.settings]
        if self.authority:
            settings += self.files.pair(self.authority.issue("server"))
        with Daemon(self.folder, settings=settings, prefix=self.prefix) as self.daemon:
            self.daemon.wait_listening()
            self.pid = self.daemon.process.pid
            with self.channel() as channel:
                assert becomes_serving(channel)
            self.fill_pool()
            yield self
            assert self.daemon.process.poll() is None, "quired died:\n" + self.daemon.log[-4000:]

    def metric(self, name, label=""):
        """Returns the sum over all series of `name` that have `label`."""
        lines = http_get(self.daemon.http_address, "/metrics", "Authorization: Bearer n\r\n")[1].decode().splitlines()
        found = [line for line in lines if line.startswith((name + " ", name + "{")) and label in line]
        assert found, name
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def fill_pool(self):
        """Writes each page of the KV pool, so that its memory is resident before the attack too."""
        with self.channel() as channel:
            for number in range(1000):
                if self.metric("quire_kv_cache_pages", 'state="free"') == 0:
                    return
                words = f"{number} " + "once upon a time there was a dog " * 50
                assert generate(self.api, channel, bearer("n"), text=words, truncate_prompt=True)
        raise AssertionError("a thousand prompts did not fill the pool")

    def channel(self):
        return tls_channel(self.daemon, self.authority) if self.authority else self.daemon.channel()

    def calls(self, count, gap=0.0):
        """Returns the seconds that each of `count` short calls took. All calls and probes must succeed."""
        taken = []
        with self.channel() as channel:
            for number in range(count):
                start = time.monotonic()
                assert generate(self.api, channel, bearer("n"))
                taken.append(time.monotonic() - start)
                if number % 5 == 0:
                    status, answer = http_get(self.daemon.http_address, "/livez")
                    assert status == 200, answer
                if gap:
                    pace(gap)
        return taken

    def target(self):
        long_request = request_of(self.api, tokens=400)
        long_request.sampling.choice_count = 4
        long_request.output.logprobs = 20
        logprobs_request = request_of(self.api, text="Once")
        logprobs_request.output.logprobs = 20
        entry = next(json.loads(line) for line in self.daemon.lines if '"listening"' in line)
        return json.dumps({"grpc": self.daemon.grpc_address, "http": self.daemon.http_address, "openai": entry["openai"],
                           "token": "a", "long_request": long_request.SerializeToString().hex(),
                           "logprobs_request": logprobs_request.SerializeToString().hex(),
                           "short_request": request_of(self.api).SerializeToString().hex()})

    @contextlib.contextmanager
    def attack(self):
        """Runs the attack, which has begun when the block does. Sets `rounds` in the yielded dict at its end."""
        command = [sys.executable, str(HERE / "attacker.py"), CASES.get(self.case, self.case), self.target()]
        if self.case == "unread_log":
            self.daemon.may_read_log.clear()
        found = {}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline() == "begun\n"
                yield found
                found |= json.loads(process.communicate("\n", timeout=60)[0])
            finally:
                process.kill()
                self.daemon.may_read_log.set()

    def becomes_idle(self):
        samples = collections.deque()

        def is_idle():
            now, used = time.monotonic(), processor_seconds(self.pid)
            samples.append((now, used))
            while len(samples) > 1 and samples[1][0] <= now - 1:
                samples.popleft()
            start, before = samples[0]
            return start <= now - 1 and used - before < IDLE_SHARE * (now - start)

        return comes_true(is_idle, SECONDS_TO_CALM_DOWN)


def run_case(api, folder, case, num_calls=20, slack=0, settings=()):
    """Memory counts as returned if at most `slack` bytes beyond 10 % stay."""
    with Scene(api, folder, case, settings).running() as scene:
        quiet = scene.calls(num_calls, SECONDS_BETWEEN_CALLS)
        before = resident_bytes(scene.pid)
        with peak_memory(scene.pid) as peak:
            start, used = time.monotonic(), processor_seconds(scene.pid)
            with scene.attack() as attack:
                attacked = scene.calls(num_calls, SECONDS_BETWEEN_CALLS)
                share = (processor_seconds(scene.pid) - used) / (time.monotonic() - start)
        end = time.monotonic()
        samples = [resident_bytes(scene.pid)]

        def is_returned():
            samples.append(resident_bytes(scene.pid))
            return samples[-1] <= memory_bound(before, slack)

        comes_true(is_returned, SECONDS_TO_CALM_DOWN)
        after, seconds = samples[-1], time.monotonic() - end
        is_idle = scene.becomes_idle()
    return Figures(quiet=quiet, attacked=attacked, before=before, peak=peak.bytes, after=after,
                   seconds_until_back=seconds, processor_share=share, is_idle=is_idle, rounds=attack["rounds"])
