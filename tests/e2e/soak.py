"""Runs a real daemon under misbehaving clients for a long time and checks for leaks.

scripts/soak runs it. Half of the calls end normally and their answers are compared. The others cancel, expire,
disconnect, reset their connection, send damaged messages or stop reading. The configuration is changed and SIGHUP is
sent from time to time. The report has resident memory, descriptors and threads over time, their slopes (least squares),
and the remainder after all clients have left. Exit status 1 means that a bound of BOUNDS was exceeded.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

sys.dont_write_bytecode = True  # do not write to the source folder
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testing")]

import grpc  # noqa: E402
from attack_tools import http_get  # noqa: E402
from attacks import connect, reset, send_quietly  # noqa: E402
from daemon import Daemon, reason_of  # noqa: E402
from generated_api import make_api  # noqa: E402
from http2_client import PREFACE  # noqa: E402
from process_figures import process_status, resident_bytes  # noqa: E402
from test_attacks import mutations, random_frames  # noqa: E402
from waiting import comes_true, pace  # noqa: E402

# Bounds that a daemon without leaks stays within. Slopes leave out the first third of the time, in which caches fill
# and the allocator's arenas grow. "more" is idle after minus idle before. The number of polling threads that gRPC keeps
# varies with the cores and by chance.
BOUNDS = {
    "slope of resident memory, MiB/min": 4.0,
    "slope of descriptors, 1/min": 6.0,
    "slope of threads, 1/min": 3.0,
    "resident memory more, MiB": 48.0,
    "descriptors more": 4,
    "threads more": 8,
    "requests waiting at the end": 0,
    "requests running at the end": 0,
    "pages in use at the end": 0,
    "wrong answers": 0,
    "faults that did not happen": 0,
    "clients that failed": 0,
    "reloads that failed": 0,
    "exit status": 0,
}
MIN_SECONDS = 60  # a slope over less time means nothing
PROMPTS = ["Once upon a time", "The little dragon", "Lily and Tom went to the park. They " * 20]
SETTINGS = [
    "kv_cache.page_size=16",
    "kv_cache.capacity_bytes=4MiB",
    "scheduler.admission=overcommit",
    "stream.slow_client_timeout=1s",
    "shutdown.pre_drain_delay=0s",
    "openai.enabled=true",
    "openai.listen=127.0.0.1:0",
]
BODY = b'{"prompt": "Once", "max_tokens": 40, "temperature": 0.5, "n": 4, "logprobs": 5, "seed": 3, "stream": true}'


def generate_request(api, prompt, seed, tokens=40):
    request = api.GenerateRequest(text=prompt)
    request.sampling.temperature = 1
    request.sampling.seed = seed
    request.stopping.max_tokens = tokens
    request.stopping.ignore_eos = True
    request.output.stream = True
    request.output.token_ids = True
    return request


def ids_of(stream):
    return [token for message in stream for token in message.delta.token_ids]


class Soak:
    """The daemon, the clients' view of it, and the counts of what they did."""

    def __init__(self, api, daemon, config):
        self.api, self.daemon, self.config = api, daemon, config
        entry = next(json.loads(line) for line in daemon.lines if '"listening"' in line)
        self.openai_address = entry["openai"]
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.failures = []
        self.expected = {}
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            for prompt in PROMPTS:
                for seed in range(3):
                    self.expected[prompt, seed] = ids_of(stub.Generate(generate_request(api, prompt, seed)))

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def missing_faults(self):
        """Returns the number of fault kinds that no client caused or that the daemon classified differently."""
        made = [self.counts[fault] for fault in Client.FAULTS]
        cancelled = counters(self, "quire_requests_cancelled_total")
        for source in ("client", "deadline", "slow_client"):
            made.append(sum(value for labels, value in cancelled.items() if f'source="{source}"' in labels))
        return made.count(0)

    def stats(self):
        with self.daemon.admin_channel() as channel:
            stub = self.api.AdminServiceStub(channel)
            return stub.GetStats(self.api.GetStatsRequest(), timeout=30).stats


class Client(threading.Thread):
    """Performs randomly chosen actions, one after the other."""

    FAULTS = ["cancel", "cancel_by_id", "expire", "disconnect", "malformed_message", "malformed_frames",
              "malformed_http", "reset_while_streaming", "stop_reading"]

    def __init__(self, soak, seed):
        super().__init__(daemon=True)
        self.soak, self.api, self.random = soak, soak.api, random.Random(seed)

    def run(self):
        try:
            while not self.soak.stopping.is_set():
                what = "whole" if self.random.random() < 0.5 else self.random.choice(self.FAULTS)
                getattr(self, what)()
                self.soak.count(what)
        except Exception:  # listed in the report
            self.soak.failures.append(traceback.format_exc())

    def open(self):
        prompt, seed = self.random.choice(PROMPTS), self.random.randrange(3)
        channel = self.soak.daemon.channel()
        return channel, generate_request(self.api, prompt, seed), self.soak.expected[prompt, seed]

    def whole(self):
        channel, request, expected = self.open()
        with channel:
            if ids_of(self.api.GenerationServiceStub(channel).Generate(request, timeout=120)) != expected:
                self.soak.count("wrong answer")

    def some(self, stream):
        for _ in range(self.random.randrange(4)):
            next(stream)

    def cancel(self):
        channel, request, _ = self.open()
        with channel:
            stream = self.api.GenerationServiceStub(channel).Generate(request)
            self.some(stream)
            stream.cancel()

    def cancel_by_id(self):
        channel, request, _ = self.open()
        request.request_id = f"soak-{self.random.getrandbits(64):x}"
        with channel:
            stub = self.api.GenerationServiceStub(channel)
            stream = stub.Generate(request)
            self.some(stream)
            stub.Cancel(self.api.CancelRequest(request_id=request.request_id))
            self.ends_as(stream, "CANCELLED_BY_CALLER")

    def expire(self):
        channel, request, _ = self.open()
        request.timeout.nanos = self.random.randrange(1, 50) * 1_000_000
        with channel:
            self.ends_as(self.api.GenerationServiceStub(channel).Generate(request), "TIMEOUT")

    def ends_as(self, stream, reason):
        """Reads to the end, or to the error with the expected reason."""
        try:
            ids_of(stream)
        except grpc.RpcError as error:
            if reason_of(error)[0] != reason:
                raise

    def disconnect(self):
        channel, request, _ = self.open()
        stream = self.api.GenerationServiceStub(channel).Generate(request)
        self.some(stream)
        channel.close()

    def malformed_message(self):
        channel, request, _ = self.open()
        with channel:
            for data in mutations(self.random, [request.SerializeToString()], 10):
                try:
                    list(channel.unary_stream("/quire.v1.GenerationService/Generate")(data, timeout=2))
                except grpc.RpcError as error:
                    if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                        raise

    def malformed_frames(self):
        with connect(self.soak.daemon.grpc_address) as connection:
            send_quietly(connection, PREFACE + b"".join(random_frames(self.random)))

    def post(self, body):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def malformed_http(self):
        for data in mutations(self.random, [self.post(BODY), b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"], 10):
            address = self.random.choice([self.soak.daemon.http_address, self.soak.openai_address])
            with connect(address) as connection:
                send_quietly(connection, data)

    def reset_while_streaming(self):
        connection = connect(self.soak.openai_address)
        send_quietly(connection, self.post(BODY))
        if self.random.random() < 0.7:
            connection.recv(1000)
        reset(connection)

    def stop_reading(self):
        """Leaves more output unread than the window holds, for longer or shorter than the daemon waits."""
        # Disables bandwidth probes, so that the window stays at 64 KiB.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        request = generate_request(self.api, PROMPTS[0], seed=1, tokens=400)
        request.sampling.choice_count = 3
        request.output.logprobs = 20
        with grpc.insecure_channel(self.soak.daemon.grpc_address, options) as channel:
            stream = self.api.GenerationServiceStub(channel).Generate(request)
            next(stream)
            pace(self.random.choice([0.5, 4]))


def counters(soak, family):
    """Returns {labels: value} of one metric family of the daemon."""
    lines = http_get(soak.daemon.http_address, "/metrics")[1].decode().splitlines()
    found = (line[len(family) :].rsplit(" ", 1) for line in lines if line.startswith(family + "{"))
    return {labels: float(value) for labels, value in found}


def reloads(soak):
    """Returns the daemon's counts [rejected, others]."""
    counts = [0, 0]
    for labels, value in counters(soak, "quire_config_reloads_total").items():
        counts['result="rejected"' not in labels] += value
    return counts


def reload_now_and_then(soak, seed):
    """Writes another valid configuration, or seldom a broken one that must be rejected, then sends SIGHUP."""
    choose = random.Random(seed)
    while not soak.stopping.wait(choose.uniform(2, 5)):
        is_broken = choose.random() < 0.2
        text = "limits: {max_choices: 0}\n" if is_broken else f"limits: {{max_choices: {choose.randrange(8, 17)}}}\n"
        aside = soak.config.with_suffix(".new")
        aside.write_text(text)
        aside.replace(soak.config)
        wanted = reloads(soak)
        wanted[not is_broken] += 1
        soak.daemon.process.send_signal(signal.SIGHUP)
        is_done = comes_true(lambda wanted=wanted: reloads(soak) == wanted, 20, not_yet=(OSError,))
        soak.count("SIGHUP" if is_done else "SIGHUP that was not obeyed")


def measure(pid):
    """Returns (resident MiB, descriptors, threads) of the process."""
    resident = resident_bytes(pid) / (1 << 20)
    return resident, len(os.listdir(f"/proc/{pid}/fd")), int(process_status(pid)["Threads"])


def settled(soak):
    """Returns the resource use once no request is live and no page is in use, or after 60 seconds."""

    def is_idle():
        stats = soak.stats()
        return stats.used_kv_page_count == stats.running_count == stats.waiting_count == 0

    comes_true(is_idle, 60)
    # gRPC closes the connections of departed peers asynchronously.
    last = [measure(soak.daemon.process.pid)]

    def is_quiet():
        pace(1)
        last.append(measure(soak.daemon.process.pid))
        return last[-1][1:] == last[-2][1:]

    comes_true(is_quiet, 30)
    return last[-1]


def slope(samples, column):
    """Returns the slope per minute, by least squares."""
    times = [sample[0] / 60 for sample in samples]
    values = [sample[column] for sample in samples]
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    above = sum((t - middle) * (v - mean) for t, v in zip(times, values))
    return above / sum((t - middle) ** 2 for t in times)


def run_clients(soak, seconds, clients, seed):
    """Returns the samples [(seconds, MiB, descriptors, threads)] taken under load."""
    soak.stopping.clear()
    threads = [Client(soak, seed * 1000 + number) for number in range(clients)]
    threads.append(threading.Thread(target=reload_now_and_then, args=(soak, seed), daemon=True))
    for thread in threads:
        thread.start()
    start, samples = time.monotonic(), []
    while time.monotonic() - start < seconds and soak.daemon.process.poll() is None:
        pace(min(2, seconds / 60))
        samples.append((time.monotonic() - start, *measure(soak.daemon.process.pid)))
        print("%6.0f s  %8.1f MiB  %4d descriptors  %4d threads" % samples[-1], flush=True)
    soak.stopping.set()
    for thread in threads:
        thread.join(150)
        if thread.is_alive():
            soak.failures.append("a client did not come to its end\n")
    return samples


def judge(soak, before, samples, after):
    """Returns {name: value} for every key of BOUNDS except the last."""
    late = samples[len(samples) // 3 :]
    stats = soak.stats()
    values = [
        *(slope(late, column) for column in (1, 2, 3)),
        *(after[column] - before[column] for column in range(3)),
        stats.waiting_count, stats.running_count, stats.used_kv_page_count,
        soak.counts["wrong answer"], soak.missing_faults(), len(soak.failures),
        soak.counts["SIGHUP that was not obeyed"],
    ]
    return dict(zip(list(BOUNDS)[:-1], values, strict=True))


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=int, default=600, help=f"at least {MIN_SECONDS}; default 600")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--json", type=pathlib.Path, help="also write samples, counts and judgement to this file")
    arguments = parser.parse_args()
    if arguments.seconds < MIN_SECONDS:
        parser.error(f"seconds is {arguments.seconds}, must be at least {MIN_SECONDS}")
    return arguments


def main():
    arguments = parse_arguments()
    print(f"soak of {arguments.seconds} s, {arguments.clients} clients, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="quire-soak-") as folder:
        (pathlib.Path(folder) / "generated").mkdir()
        api = make_api(f"{folder}/generated")
        config = pathlib.Path(folder) / "quired.yaml"
        config.write_text("limits: {max_choices: 16}\n")
        with Daemon(folder, "--config", str(config), settings=SETTINGS) as daemon:
            daemon.wait_serving()
            soak = Soak(api, daemon, config)
            before = settled(soak)
            samples = run_clients(soak, arguments.seconds, arguments.clients, arguments.seed)
            after = settled(soak)
            values = judge(soak, before, samples, after)
            daemon.terminate()
            values["exit status"] = daemon.wait()
    return report(arguments, soak, before, after, samples, values)


def report(arguments, soak, before, after, samples, values):
    print("\nidle before: %.1f MiB, %d descriptors, %d threads" % before)
    print("idle after:  %.1f MiB, %d descriptors, %d threads" % after)
    print("done: " + ", ".join(f"{count} {what}" for what, count in sorted(soak.counts.items())))
    for failure in soak.failures[:3]:
        print(failure, file=sys.stderr)
    exceeded = 0
    for what, bound in BOUNDS.items():
        is_exceeded = values[what] > bound or (what == "exit status" and values[what] != 0)
        exceeded += is_exceeded
        print(f"{'EXCEEDED' if is_exceeded else 'ok':8}  {what}: {values[what]:.2f}, bound {bound}")
    if arguments.json:
        found = {"seed": arguments.seed, "samples": samples, "counts": soak.counts, "values": values, "bounds": BOUNDS}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
