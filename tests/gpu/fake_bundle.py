"""A folder of shell scripts in the form of a bundle of scripts/gpu_bundle, for tests of its runner."""

import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import gpu_manifest  # noqa: E402

RUNNER = ROOT / "tools" / "gpu_run"
PROGRAMS = ("quired", "quire", "quire_answers", "quire_gpu_tests", "bench_kernels_cuda", "gpu_peers.py")
DEVICE = {"name": "Fake 90", "compute_capability": 90, "num_sms": 132, "memory_bytes": 8e10,
          "free_bytes": 7e10, "driver_version": 13000}
PAGE = """
| what | measured by | formula | expected on an H100 |
|---|---|---|---|
| a product | `BM_C/n:1/` | B / R | 2 to 4 us |
| a rate | `daemon-bf16-32/output_throughput` | B / R | 100 tokens/s |
| a gap | `daemon-bf16-32/p99_itl_ms` | B / R | 5 ms |
"""
# Google Benchmark's file for BM_C/n:1, in the file of --benchmark_out.
MEASURE = """for word in "$@"; do case $word in --benchmark_out=*)
cat >"${word#*=}" <<'END'
{"benchmarks": [{"run_name": "BM_C/n:1/manual_time", "run_type": "iteration", "real_time": 8, "time_unit": "us"}]}
END
esac; done"""


def copy_runner(folder):
    shutil.copy(RUNNER / "run.py", folder / "run")
    (folder / "run").chmod(0o755)
    for name in ("report.py", "code_hashes.py", "bench_model.py"):
        shutil.copy(RUNNER / name, folder)


class Bundle:
    def __init__(self, folder, archs="80+ptx,90a"):
        self.folder, self.archs, self.out = folder, archs, folder.parent / "out"
        copy_runner(folder)
        (folder / "gpu_queue.md").write_text(PAGE)
        for name in PROGRAMS:
            self.program(name, "exit 0")
        self.device(f"echo '{json.dumps(DEVICE)}'")

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def device(self, answer, measure="echo \"$1 1 ns\""):
        """`answer` prints the device, `measure` measures BM_C/n:1."""
        self.program("bench_kernels_cuda", f"""case $1 in
            --device) {answer} ;;
            --benchmark_list_tests) echo BM_A/tiny/1; echo BM_B/tiny/2; echo BM_C/n:1/manual_time; echo BM_D/n:1 ;;
            *BM_C/n:1*) {measure} ;;
            --benchmark_filter*) echo "$1 1 ns" ;;
            esac""")

    def tests(self, suites):
        """Maps each suite to the shell command of its process."""
        listing = "\n".join(f"echo {name}.; echo '  Test'" for name in suites)
        cases = "\n".join(f"--gtest_filter={name}.*) {text} ;;" for name, text in suites.items())
        self.program("quire_gpu_tests",
                     f"case $1 in\n--gtest_list_tests) {listing} ;;\n{cases}\nesac")

    def daemon(self, bench="{}"):
        """A daemon that serves until SIGTERM, and a client whose load test writes `bench`."""
        ready = self.folder.parent / "ready"
        self.program("quired", 'test "$1" != --set && exit 0\ntail -f /dev/null &\n'
                     f"trap 'kill $!; rm {ready}; exit 0' TERM\ntouch {ready}\nwait")
        self.program("quire", f"""case "$1 $7 $5" in
            "make-model "*) mkdir "$5" && echo '{{}}' >"$5/config.json" ;;
            *" health "*) test -e {ready} ;;
            *" bench") for word in "$@"; do last=$word; done; echo '{bench}' >"$last" ;;
            esac""")

    def seal(self):
        gpu_manifest.write(self.folder, "0 test", self.archs)

    def command(self, *arguments):
        return [sys.executable, "-B", self.folder / "run", "--out", self.out, *arguments]

    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def run(self, *arguments, seal=True, timeout=60):
        if seal:
            self.seal()
        done = subprocess.run(self.command(*arguments), text=True, capture_output=True, timeout=timeout, check=False)
        return done.returncode, done.stdout + done.stderr, self.results()

    def logs(self):
        with tarfile.open(self.out / "logs.tar.gz") as archive:
            return {member.name.replace("logs/", ""): archive.extractfile(member).read().decode()
                    for member in archive.getmembers() if member.isfile()}
