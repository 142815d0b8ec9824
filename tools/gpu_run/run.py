#!/usr/bin/env python3
"""Runs the tests and benchmarks of a bundle (scripts/gpu_bundle) on the GPU of this machine within a time limit.

    ./run                                 all stages of STAGES in 600 s; results in the folder gpu-results
    ./run --seconds 120 --out DIR tests   only the named stages, of STAGES or EXTRA_STAGES
    ./run --dry-run                       small shapes on the emulated device

Needs Python 3.9 and the bundle. Each item is a process of its own with a time limit, so that a hang or a crash affects
only that item. A stage that ends early leaves its time to the later ones. DIR/report.md (a table of verdicts and
figures next to their predictions), DIR/results.json (for gpu_report.py) and DIR/logs.tar.gz are replaced before the
first stage and after each stage, so that they are complete whenever the runner is killed.

Exit status: 0 passed, 1 failed, 64 wrong arguments, 65 damaged bundle, 75 stages skipped or out of time, 77 no usable GPU.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zlib

import code_hashes
import report

HERE = pathlib.Path(__file__).resolve().parent
SIGNALS = {signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
RESERVE_SECONDS = 5  # for the last report
PROBE_SECONDS = 15
PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "FAILED", "skipped", "not run"

# `seconds` is the share of the stage in 600 s. `min_bytes` is the free device memory that the stage needs.
Stage = collections.namedtuple("Stage", "name seconds min_bytes")
STAGES = [Stage("facts", 15, 0), Stage("tests", 110, 4e9), Stage("runner", 60, 4e9), Stage("shapes", 120, 8e9),
          Stage("torch", 40, 8e9), Stage("bf16", 38, 24e9), Stage("target", 22, 24e9), Stage("fp8", 40, 16e9),
          Stage("moe", 50, 70e9), Stage("racecheck", 60, 2e9), Stage("rerun", 40, 4e9)]
# Run only by name: other tools of compute-sanitizer, and the shapes that gpu_queue.md does not name.
EXTRA_STAGES = [Stage("memcheck", 60, 2e9), Stage("initcheck", 60, 2e9), Stage("synccheck", 60, 2e9),
                Stage("others", 120, 8e9)]
# Models and configuration of the stages that load a daemon with 512 input and 128 output tokens.
Load = collections.namedtuple("Load", "model streams keys")
LOADS = {"bf16": Load("bf16", (1, 32, 128), ["model.load_mode=dummy", "scheduler.step_time_target=10s"]),
         "target": Load("bf16", (128,), ["model.load_mode=dummy", "scheduler.step_time_target=auto"]),
         "fp8": Load("fp8", (1, 32, 128), ["model.fp8_activations=true"]),
         "moe": Load("moe", (1, 32, 128), ["model.load_mode=dummy"])}
# The emulated device has less memory than device.reserve_bytes.
DRY_KEYS = ["kv_cache.capacity_bytes=16MiB"]

# The suites that run first, in this order: kernels of compute capability 9.0, fp8, MLA, attention rules, one-byte pages.
FIRST_SUITES = ["Sm90|TensorMaps", "Fp8|Rounded", "Latent|HeadLinear", "Rules", "AttentionBits|QkvStore"]
MODEL_SUITES = re.compile("Parity|LlamaCuda|FormatCuda|Converted|BlocksCuda|WindowModel|RecurrentModel|RecurrentGpu")
OVERLAP_MODEL = "llama-theta500k-multieos-bf16"
DEVICE_PROGRAMS = ("quired", "quire_gpu_tests", "bench_kernels_cuda")
PROGRAMS = {"quired": "--version", "quire": "--version", "quire_answers": "--help",
            "quire_gpu_tests": "--gtest_list_tests", "bench_kernels_cuda": "--benchmark_list_tests"}


@dataclasses.dataclass
class Item:
    name: str
    argv: list
    log: str  # name of the log without .log
    limit: float = 60
    optional: bool = False  # the stage passes if the time is up before this item runs
    skipped: str = ""  # why the item does not run
    test: tuple = ()  # suite and tests, of an item that can run again


def log_name(text):
    return re.sub(r"[^\w.]", "-", text)[-70:]


def reason(log):
    """Returns the line of a log that best explains why a process failed."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    marked = [line for line in lines if re.search(r"ERROR|error|: Failure|FAILED  \] |not found", line)]
    return (marked[:1] or lines[-1:] or [""])[0][:200]


def verdict_of_errors(log):
    """Returns the verdict if every error of a benchmark is a lack of memory or of tensor maps, else None."""
    errors = log.count("ERROR OCCURRED")
    memory = log.count("ERROR OCCURRED: 'out of device memory")
    maps = log.count("ERROR OCCURRED: 'no tensor maps on this device")
    if errors == 0 or memory + maps != errors:
        return None
    return NOT_RUN if memory else SKIPPED


def sort_suites(suites):
    """Returns the suites in the order in which they run."""
    return sorted(suites, key=lambda suite: next(
        (i for i, part in enumerate(FIRST_SUITES) if re.search(part, suite)), len(FIRST_SUITES)))


def judge(item, status, log, seconds):
    """Returns verdict and reason of an ended process; a status of None means that it was killed at its limit."""
    if status is None:
        return FAILED, f"killed after {seconds:.0f} s"
    if status == 77:
        return SKIPPED, reason(log)
    if status == 0 and not log and item.name.startswith("BM_"):
        return FAILED, "the log is empty; is the disk full?"
    if status == 0 and verdict_of_errors(log):
        return verdict_of_errors(log), reason(log)
    if status != 0 or "ERROR OCCURRED" in log:  # Google Benchmark exits with 0 even after an error
        return FAILED, (f"ended by signal {-status}: " if status < 0 else "") + reason(log)
    return PASSED, ""


def bundle_fault(folder):
    """Returns version and machine code targets of bundle.txt (gpu_manifest.py), and the first damaged file or ""."""
    path = folder / "bundle.txt"
    lines = [line.split(" ", 1) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    facts = {line[0]: line[-1] for line in lines}
    version, archs = facts.get("quire", ""), facts.get("archs", "")
    if "end" not in facts:
        return version, archs, "the bundle is truncated: bundle.txt has no end"
    for checksum, size, name in (line[1].split(" ", 2) for line in lines if line[0] == "file"):
        content = (folder / name).read_bytes() if (folder / name).exists() else b""
        if len(content) != int(size):
            return version, archs, f"the bundle is truncated: {name} has {len(content)} bytes of {size}"
        if zlib.crc32(content) != int(checksum, 16):
            return version, archs, f"the bundle is damaged: {name} has a wrong checksum"
    return version, archs, ""


def runs_on(archs, capability):
    """Returns true if machine code for `archs` (80+ptx,90a) runs on a device of this compute capability (90 for 9.0)."""
    def fits(arch):
        oldest = int(re.match(r"\d+", arch)[0])
        if arch.endswith("+ptx"):
            return capability >= oldest
        if arch.endswith("a"):
            return capability == oldest
        return capability >= oldest and capability // 10 == oldest // 10
    return any(fits(arch) for arch in archs.split(",") if arch)


def by_op(names):
    """Groups names of benchmarks by the function that measures them."""
    groups = {}
    for name in names:
        groups.setdefault(name.split("/")[0], []).append(name)
    return groups


def find_program(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin:/usr/bin") or ""


class Runner:
    def __init__(self, options):
        self.options, self.dry = options, options.dry_run
        self.start_time = time.monotonic()
        self.end = self.start_time + options.seconds - RESERVE_SECONDS
        self.stage_end = self.end
        self.out = pathlib.Path(options.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.logs = pathlib.Path(tempfile.mkdtemp(prefix="quire-gpu-logs-"))
        self.testdata = os.environ.get("QUIRE_TESTDATA") or str(HERE / "testdata")
        self.env = {**os.environ, "QUIRE_TESTDATA": self.testdata}
        self.jobs = (os.cpu_count() or 1) if self.dry else min(max(os.cpu_count() or 1, 5), 16) - 4
        self.predictions = report.load_predictions(HERE)
        self.version, self.archs, self.fault = bundle_fault(HERE)
        self.device, self.no_device, self.lost, self.interrupted = None, "", "", False
        self.tools, self.failed_tests, self.code = {}, [], {}  # code: hashes of the kernels that the device runs
        # The stage "facts" always runs, because it detects the device.
        self.stages = [stage for stage in STAGES + EXTRA_STAGES
                       if stage.name in ("facts", *options.stages) or (not options.stages and stage in STAGES)]
        self.results = {stage.name: {"name": stage.name, "verdict": NOT_RUN, "skipped": "", "seconds": 0, "items": []}
                        for stage in self.stages}
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    # Processes.

    def log(self, name):
        path = self.logs / f"{name}.log"
        return path.read_text("utf-8", errors="replace") if path.exists() else ""

    def start(self, argv, log):
        with open(self.logs / f"{log}.log", "wb") as out:
            try:
                return subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.env,
                    start_new_session=True,
                    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS))
            except OSError as error:
                out.write(f"error: {error}\n".encode())
                return None

    def wait(self, until):
        """Waits until a process ends, a signal arrives or `until`, but at most one second."""
        arrived = signal.sigtimedwait(SIGNALS, max(0.0, min(until - time.monotonic(), 1.0)))
        self.interrupted |= arrived is not None and arrived.si_signo != signal.SIGCHLD

    def kill(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=5)  # a process that hangs in the driver may not die
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass

    def run(self, argv, log, limit=PROBE_SECONDS):
        """Runs a command to its end. Returns None if it had to be killed, 127 if it cannot be started."""
        process, until = self.start(argv, log), min(time.monotonic() + limit, self.end)
        if process is None:
            return 127
        while process.poll() is None:
            if self.interrupted or time.monotonic() >= until:
                self.kill(process)
                return None
            self.wait(until)
        return process.returncode

    # Items.

    def program(self, name, *arguments):
        return [str(HERE / (f"{name}_emulated" if self.dry and name in DEVICE_PROGRAMS else name)), *arguments]

    def say(self, text):
        self.show(f"[{time.monotonic() - self.start_time:4.0f} s] {text}")

    def show(self, text):
        try:
            print(text, flush=True)
        except BrokenPipeError:  # the reader of the output has ended; the results are in files
            sys.stdout = open(os.devnull, "w", encoding="utf-8")

    def record(self, name, verdict, why="", seconds=0.0, optional=False):
        self.items.append({"name": name, "verdict": verdict, "why": why, "seconds": round(seconds, 3), "optional": optional})
        self.say(f"{self.stage} {name}: {verdict}" + (f", {why}" if why else ""))
        return verdict == PASSED

    def cut_reason(self):
        return "interrupted" if self.interrupted else "the time was up before it ended"

    def may_start(self):
        return not self.interrupted and not self.lost and time.monotonic() + 1 < self.stage_end

    def check_device(self, suspect):
        """Checks whether the device still works after an item that failed."""
        status = self.run(self.program("bench_kernels_cuda", "--device"), "device-after-failure")
        is_cut = status is None and time.monotonic() >= self.end
        if status != 0 and not is_cut and not self.interrupted:
            self.lost = f"the GPU stopped working after {suspect}: {reason(self.log('device-after-failure'))}"
            self.say(self.lost)

    def run_items(self, items, jobs=1):
        """Runs items, up to `jobs` at a time. After a failure, nothing starts until the device has answered."""
        items, running, suspect = collections.deque(items), {}, ""
        while running or suspect or items:
            if not running and suspect:
                self.check_device(suspect)
                suspect = ""
            elif self.may_start() and not suspect and len(running) < jobs and items:
                item = items.popleft()
                if item.skipped:
                    self.record(item.name, SKIPPED, item.skipped)
                    continue
                process, now = self.start(item.argv, item.log), time.monotonic()
                if process is None:
                    self.record(item.name, FAILED, reason(self.log(item.log)))
                else:
                    limit = min(item.limit, self.options.item_seconds)
                    running[process] = (item, now, min(self.stage_end, now + limit))
            elif not running:
                break
            else:
                suspect = self.reap(running) or suspect
        why = "interrupted" if self.interrupted else "the GPU is lost" if self.lost else "the time was up"
        self.items += [{"name": item.name, "verdict": NOT_RUN, "why": why, "seconds": 0, "optional": item.optional}
                       for item in items]

    def reap(self, running):
        """Waits for a process, and records and removes those that ended. Returns the name of one that failed or ""."""
        if all(process.poll() is None for process in running):
            self.wait(min(limit for _, _, limit in running.values()))
        suspect = ""
        for process, (item, start, limit) in list(running.items()):
            status, now = process.poll(), time.monotonic()
            if status is None and now < limit and not self.interrupted:
                continue
            del running[process]
            if status is None:
                self.kill(process)
            verdict, why = judge(item, status, self.log(item.log), now - start)
            if status is None and (self.interrupted or limit >= self.stage_end):
                verdict, why = NOT_RUN, self.cut_reason()
            self.record(item.name, verdict, why, now - start, item.optional)
            if verdict == FAILED and item.test:
                self.failed_tests.append(item)
            if verdict in (FAILED, NOT_RUN) and self.device and not self.interrupted:
                suspect = item.name
        return suspect

    def listing(self, program):
        self.run(self.program(program, PROGRAMS[program]), f"list-{program}", 20)
        return self.log(f"list-{program}").splitlines()

    # Stages.

    def facts(self):
        self.record("bundle", FAILED if self.fault else PASSED, self.fault)
        if self.fault:
            return
        self.tools = {name: find_program(name) for name in ("nvidia-smi", "nvcc", "ncu", "compute-sanitizer", "python3")}
        if self.tools["nvidia-smi"]:
            self.run([self.tools["nvidia-smi"], "-q"], "nvidia-smi", 10)
        # The machine's own C++ runtime is tried first, because the bundle's runtime needs a recent glibc.
        if self.run(self.program("quire", "--version"), "facts-cxx-runtime") != 0:
            self.env["LD_LIBRARY_PATH"] = str(HERE / "lib" / "cxx")
        self.run_items([Item(f"{file} starts", [str(HERE / file), argument], f"facts-{file}", 20)
                        for name, argument in PROGRAMS.items() for file in (name, f"{name}_emulated")
                        if (HERE / file).exists()], 4)
        self.open_device()
        if self.device:
            self.hash_code()
            names = ("BM_DeviceCopy/tiny/4096", "BM_DeviceMatmul/tiny/64") if self.dry else (
                "BM_DeviceCopy/2147483648", "BM_DeviceMatmul/8192")
            self.run_items([self.bench_item("facts", name, [f"{name}/manual_time$"]) for name in names])
            self.run_items(self.self_check())

    def open_device(self):
        status = self.run(self.program("bench_kernels_cuda", "--device"), "facts-device")
        log = self.log("facts-device")
        if status is None and (self.interrupted or time.monotonic() >= self.end):
            self.record("device", NOT_RUN, self.cut_reason())
            return
        verdict, why = judge(Item("device", [], ""), status, log, PROBE_SECONDS)
        if verdict == PASSED:
            try:
                self.device = json.loads(log)
                capability = self.device["compute_capability"]
                if not self.dry and not runs_on(self.archs, capability):
                    why = (f"the bundle has machine code for {self.archs}, but the device needs {capability}: "
                           "see scripts/gpu_bundle --arch")
                    self.device = None
            except (ValueError, KeyError, TypeError):
                why = "bench_kernels_cuda --device prints no JSON"
        self.no_device = "" if self.device else why
        self.record("device", PASSED if self.device else FAILED, why or self.device["name"])

    def hash_code(self):
        """Hashes the machine code of the kernels for this device. The tests and the daemon must have the same."""
        if self.dry:
            return  # emulated programs have none
        try:
            self.code, daemon = (code_hashes.on_device(code_hashes.hashes((HERE / name).read_bytes()),
                                                       self.device["compute_capability"])
                                 for name in ("quire_gpu_tests", "quired"))
        except code_hashes.CodeError as error:
            self.record("machine code", FAILED, str(error))
            return
        differ = sorted(kernel for kernel, value in daemon.items() if self.code.get(kernel) != value)
        if differ:
            self.record("machine code", FAILED, f"quired has other code than quire_gpu_tests: {', '.join(differ)[:150]}")
        elif self.code:
            self.record("machine code", PASSED)
        else:
            self.record("machine code", SKIPPED, "the programs have none for this device, so its driver compiles PTX")

    def self_check(self):
        """Returns the item that runs the daemon's --self-check with the first model of the test data."""
        model = min(pathlib.Path(self.testdata, "models").glob("*/config.json"), default=HERE / "no model").parent
        self.run(self.program("quired", "--help"), "facts-quired-help", 10)
        has_check = "--self-check" in self.log("facts-quired-help")
        keys = [f"model.path={model}", *DRY_KEYS] if self.dry else [f"model.path={model}"]
        return [Item("self-check", self.quired(keys, "--self-check"), "facts-self-check", 15,
                     skipped="" if has_check else "this quired has no --self-check")]

    def test_item(self, stage, suite, tests="*"):
        name = suite + tests[1:] if tests.startswith("*") else f"{suite}.{tests}"
        log = f"{stage}-{log_name(name)}"
        argv = self.program("quire_gpu_tests", f"--gtest_filter={suite}.{tests}", f"--gtest_output=xml:{self.logs}/{log}.xml")
        return Item(name, argv, log, 120, test=(suite, tests))

    def suites(self):
        """Returns {suite: its tests}."""
        suites, suite = {}, ""
        for line in self.listing("quire_gpu_tests"):
            if re.match(r"[\w/]+\.", line):
                suite = line.split(".")[0]
                suites[suite] = []
            elif line.startswith("  ") and suite:
                suites[suite].append(line.split("#")[0].strip())
        return suites

    def tests(self):
        suites = {suite: tests for suite, tests in self.suites().items() if not MODEL_SUITES.search(suite)}
        items = [self.test_item("tests", suite) for suite in sort_suites(suites)]
        if self.dry:  # tests of rejected arguments launch few kernels
            items = [self.test_item("tests", suite, test) for suite in sort_suites(suites)
                     for test in suites[suite] if test.startswith("Rejects")][:4]
        self.run_items(items, self.jobs)

    def fixtures(self):
        """Returns the names of the models in the test data in the spelling of tests: _ instead of -."""
        return {path.name.split(".")[0].replace("-", "_") for below in ("models", "gguf/models", "formats/models")
                for path in pathlib.Path(self.testdata, below).glob("*")}

    def runner(self):
        """Runs the tests of whole models, one item per fixture, and compares answers with and without overlap."""
        fixtures, items = self.fixtures(), []
        for suite, tests in self.suites().items():
            if MODEL_SUITES.search(suite):
                for parameter in dict.fromkeys(test.partition("/")[2] for test in tests):
                    items.append(self.test_item("runner", suite, f"*/{parameter}" if parameter else "*"))
                    if parameter and not any(parameter.startswith(name) for name in fixtures):
                        items[-1].skipped = "the fixture of this test is not in the bundle"
        if not items:
            self.record("list", FAILED, "the program lists nothing to run")
        self.run_items([item for item in items if not item.skipped][:1] if self.dry else items, self.jobs)
        compare = Item("overlap on and off", self.program("quire_answers", "--compare", f"{self.logs}/answers-overlap.txt",
                                                          f"{self.logs}/answers-one-step.txt"), "answers-compare", 20)
        if OVERLAP_MODEL.replace("-", "_") not in fixtures:
            compare.skipped = "the fixture of this test is not in the bundle"
        elif not all(self.answers(*run) for run in (("on", "overlap", "true"), ("off", "one-step", "false"))):
            return
        self.run_items([compare])

    def answers(self, state, name, value):
        """Stores the answers of a daemon with or without overlap scheduling. Returns false if something failed."""
        if not self.may_start():
            self.record("overlap on and off", NOT_RUN, "the time was up")
            return False
        with self.run_folder() as folder:
            item = Item(f"answers-{name}", self.program(
                "quire_answers", "--address", f"unix:{folder}/grpc.sock", "--requests", str(self.options.prompts),
                "--out", f"{self.logs}/answers-{name}.txt"), f"answers-{name}", 90)
            keys = [f"model.path={self.testdata}/models/{OVERLAP_MODEL}", "kv_cache.capacity_bytes=64MiB",
                    f"engine.overlap_scheduling={value}"]
            return self.serve(folder, keys, f"answers-{name}-quired", f"overlap {state} ", [item])

    def bench_item(self, stage, name, shapes, optional=False):
        """Returns an item that measures the benchmarks whose names begin with `shapes`: five times 10 ms each."""
        log = f"{stage}-{log_name(name)}"
        effort = ["--benchmark_repetitions=1", "--benchmark_min_time=0.001"] if self.dry else [
            "--benchmark_repetitions=5", "--benchmark_min_time=0.01"]
        argv = self.program("bench_kernels_cuda", f"--benchmark_filter=^({'|'.join(shapes)})", *effort,
                            "--benchmark_out_format=json", f"--benchmark_out={self.logs}/{log}.json")
        return Item(name, argv, log, 20 * len(shapes), optional)

    def benchmarks(self):
        return [line for line in self.listing("bench_kernels_cuda") if line.startswith("BM_")]

    def queued_benchmarks(self):
        return [prediction.name for prediction in self.predictions if prediction.name.startswith("BM_")]

    def shapes(self):
        """Measures the shapes of gpu_queue.md, one process per op."""
        ops = by_op(self.queued_benchmarks())
        if self.dry:
            tiny = by_op(name for name in self.benchmarks() if "/tiny/" in name)
            ops = {op: [f"{tiny[op][0]}$"] for op in ops}
        self.run_items([self.bench_item("shapes", *op) for op in ops.items()], self.jobs if self.dry else 1)

    def others(self):
        """Measures the other shapes, one process per op, because opening a GPU takes longer than measuring a shape."""
        known = ("BM_Device", *self.queued_benchmarks())
        ops = by_op(f"{name}$" for name in self.benchmarks() if "/tiny/" not in name and not name.startswith(known))
        self.run_items([self.bench_item("others", *op, optional=True) for op in ops.items()])

    def torch(self):
        command = [sys.executable, str(HERE / "gpu_peers.py"), f"{self.logs}/peers.json", *self.queued_benchmarks()]
        self.run_items([Item("peers", command, "peers", 60)])

    def load(self, stage):
        """Serves a model of the shape of Llama 3.1 8B or Qwen3-30B-A3B and loads it with 512 input, 128 output tokens."""
        load = LOADS[stage]
        with self.run_folder() as folder:
            model = f"{folder}/model"
            self.run_items([Item("make-model", [sys.executable, str(HERE / "bench_model.py"), *self.program("quire"), load.model,
                                                "tiny" if self.dry else "llama-3.1-8b", model], f"{stage}-make-model")])
            if self.items[-1]["verdict"] != PASSED:
                return
            keys = [f"model.path={model}", *load.keys, *(DRY_KEYS if self.dry else [])]
            self.serve(folder, keys, f"{stage}-quired", "", [self.load_item(stage, folder, n) for n in load.streams])
        for name, run in report.daemons(self.logs).items():
            if name.startswith(f"daemon-{stage}-") and run["failed"]:
                self.record(name, FAILED, f"{run['failed']} requests failed")

    def load_item(self, stage, folder, streams):
        clients, inputs, outputs = (min(streams, 2), 8, 2) if self.dry else (streams, 512, 128)
        return Item(f"{streams} stream" + "s" * (streams > 1), self.client(
            folder, "bench", "--concurrency", str(clients), "--requests", str(3 * clients), "--warmup", str((clients + 1) // 2),
            "--input-tokens", str(inputs), "--output-tokens", str(outputs),
            "--output-file", f"{self.logs}/daemon-{stage}-{streams}.json"), f"daemon-{stage}-{streams}")

    def sanitizer(self, tool):
        """Runs a tool of compute-sanitizer on the smallest shapes, one process each. Ops of gpu_queue.md run first."""
        queued = by_op(self.queued_benchmarks())
        names = [name for name in self.benchmarks() if "/tiny/" in name]
        names.sort(key=lambda name: name.split("/")[0] not in queued)
        self.run_items([Item(name, [self.tools["compute-sanitizer"], "--tool", tool, "--error-exitcode", "2", *self.program(
            "bench_kernels_cuda", f"--benchmark_filter=^{name}$", "--benchmark_min_time=0.001")], f"{tool}-{log_name(name)}", 45)
            for name in names], self.jobs)

    def rerun(self):
        """Runs each failed test item once more, alone. The first verdict stays."""
        self.run_items([self.test_item("rerun", *item.test) for item in list(self.failed_tests)])

    # Daemons.

    def run_folder(self):
        """Returns a temporary folder whose name is short enough for Unix sockets (107 bytes)."""
        base = tempfile.gettempdir()
        return tempfile.TemporaryDirectory(prefix="quire-gpu-", dir=base if len(base) <= 64 else "/tmp")

    def quired(self, keys, *arguments):
        keys = ["device.type=cuda", *keys]
        return self.program("quired", *arguments, *(word for key in keys for word in ("--set", key)))

    def client(self, folder, *arguments):
        return self.program("quire", "--address", f"unix:{folder}/grpc.sock", "--admin", f"unix:{folder}/admin.sock", *arguments)

    def await_daemon(self, process, folder, log, name):
        """Waits until the daemon serves. Returns false and records why if it does not."""
        start = time.monotonic()
        while self.may_start() and process.poll() is None:
            if self.run(self.client(folder, "--timeout", "2", "health"), "daemon-health") == 0:
                return self.record(name, PASSED, seconds=time.monotonic() - start)
            self.wait(time.monotonic() + 0.2)
        if process.poll() is None and not self.lost:
            return self.record(name, NOT_RUN, self.cut_reason(), time.monotonic() - start)
        what = "is not ready" if process.poll() is None else "has exited"
        return self.record(name, FAILED, f"quired {what}: {reason(self.log(log))}", time.monotonic() - start)

    def serve(self, folder, keys, log, prefix, items):
        """Runs items against a daemon and stops it. Returns true if everything passed."""
        first = len(self.items)
        process = self.start(self.quired([
            *keys, f"server.grpc.listen=[unix:{folder}/grpc.sock]", f"server.admin.listen=[unix:{folder}/admin.sock]",
            "server.http.listen=127.0.0.1:0", "openai.enabled=false", "shutdown.pre_drain_delay=0s"]), log)
        if process is None:
            return self.record(f"{prefix}start", FAILED, reason(self.log(log)))
        try:
            if self.await_daemon(process, folder, log, f"{prefix}start"):
                self.run_items(items)
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                limit = time.monotonic() + 10
                until = min(limit, self.end)
                while process.poll() is None and time.monotonic() < until:
                    self.wait(until)
                status = process.poll()
                verdict = judge(Item(f"{prefix}stop", [], log), status, self.log(log), 10)
                if status is None and until < limit:
                    verdict = NOT_RUN, self.cut_reason()
                self.record(f"{prefix}stop", *verdict)
        finally:
            if process.poll() is None:
                self.kill(process)
        return all(item["verdict"] == PASSED for item in self.items[first:])

    # The whole run.

    def skip_reason(self, stage):
        """Returns why a stage cannot start, or ""."""
        free = self.device["free_bytes"] if self.device else 0
        missing = [name for name in DEVICE_PROGRAMS if self.dry and not os.path.exists(self.program(name)[0])]
        if self.fault:
            return "the bundle is incomplete"
        if self.no_device:
            return f"no device: {self.no_device}"
        if self.lost:
            return self.lost
        if self.interrupted:
            return "interrupted"
        if not self.dry and free < stage.min_bytes:
            return f"{free / 1e9:.1f} GB of device memory are free, but the stage needs {stage.min_bytes / 1e9:.0f}"
        if self.dry and missing and stage.name not in ("facts", "shapes", "others"):
            return f"the bundle has no {missing[0]}_emulated"
        if stage.name in ("racecheck", "memcheck", "initcheck", "synccheck") and not self.tools.get("compute-sanitizer"):
            return "compute-sanitizer is not installed"
        if stage.name == "rerun" and not self.failed_tests:
            return "no test failed"
        return ""

    def run_stage(self, stage, later):
        self.stage, result = stage.name, self.results[stage.name]
        self.items, start = result["items"], time.monotonic()
        # Stages that cannot start leave their time to the others. Until the tests have run, a rerun may be needed.
        may_rerun = stage.name in ("facts", "tests", "runner")
        shares = [other.seconds for other in later
                  if not self.device or not self.skip_reason(other) or (other.name == "rerun" and may_rerun)]
        self.stage_end = start + max(0.0, self.end - start) * stage.seconds / (stage.seconds + sum(shares))
        result["skipped"] = "" if stage.name == "facts" else self.skip_reason(stage)
        if result["skipped"]:
            self.say(f"{stage.name}: skipped, {result['skipped']}")
        else:
            try:
                if stage.name in LOADS:
                    self.load(stage.name)
                elif stage.name.endswith("check"):
                    self.sanitizer(stage.name)
                else:
                    getattr(self, stage.name)()
                if not self.items and not self.interrupted:
                    self.record("list", FAILED, "the program lists nothing to run")
            except Exception:  # an error of the runner ends the stage, not the run
                traceback.print_exc()
                self.record("runner", FAILED, traceback.format_exc().splitlines()[-1])
        result["seconds"] = time.monotonic() - start
        verdicts = [item["verdict"] for item in self.items if item["verdict"] != NOT_RUN or not item["optional"]]
        result["verdict"] = (FAILED if FAILED in verdicts else SKIPPED if result["skipped"] else
                             "incomplete" if NOT_RUN in verdicts or self.interrupted else PASSED)

    def exit_status(self):
        if self.fault:
            return 65
        if self.no_device:
            return 77
        verdicts = [stage["verdict"] for stage in self.results.values() if stage["skipped"] != "no test failed"]
        if FAILED in verdicts or self.lost:
            return 1
        return 0 if set(verdicts) == {PASSED} else 75

    def write(self):
        """Replaces the files of the results. Returns the report, or "" if a file cannot be written."""
        try:
            return self.replace_results()
        except OSError as error:
            self.say(f"cannot write the results, the logs are in {self.logs}: {error}")
            return ""

    def replace_results(self):
        results = {"quire": self.version, "archs": self.archs, "date": time.strftime("%F %H:%M UTC", time.gmtime()),
                   "dry_run": self.dry, "seconds": self.options.seconds, "device": self.device, "tools": self.tools,
                   "lost": self.lost, "exit_status": self.exit_status(), "stages": list(self.results.values()),
                   "code": self.code, "kernels": report.kernels(self.logs), "daemons": report.daemons(self.logs)}
        results["comparison"] = report.comparison(self.predictions, results)
        text = report.text(results)
        report.write(self.out / "report.md", text)
        report.write(self.out / "results.json", json.dumps(results, indent=1) + "\n")
        part = self.out / "logs.tar.gz.part"
        with tarfile.open(part, "w:gz", compresslevel=6) as archive:
            archive.add(self.logs, "logs")
        part.replace(self.out / "logs.tar.gz")
        return text

    def run_all(self):
        """Returns the exit status."""
        text = self.write()
        for i, stage in enumerate(self.stages):
            self.run_stage(stage, self.stages[i + 1:])
            text = self.write()
        if not text:
            return 1
        shutil.rmtree(self.logs, ignore_errors=True)
        self.show(f"{text}\nresults: {self.out}")
        return self.exit_status()


def seconds(text):
    value = float(text)
    if not 1 <= value <= 36000:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 36000 seconds")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=seconds, default=600.0, help="time limit of the whole run")
    parser.add_argument("--item-seconds", type=seconds, default=600.0, help="upper limit of each process")
    parser.add_argument("--prompts", type=int, default=1000, help="prompts of the comparison with and without overlap")
    parser.add_argument("--out", default="gpu-results", help="folder for the results")
    parser.add_argument("--dry-run", action="store_true", help="run small shapes on the emulated device")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="stages to run")
    try:
        options = parser.parse_args()
        unknown = set(options.stages) - {stage.name for stage in STAGES + EXTRA_STAGES}
        if unknown:
            parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    except SystemExit as error:
        return 64 if error.code else 0
    return Runner(options).run_all()


if __name__ == "__main__":
    sys.exit(main())
