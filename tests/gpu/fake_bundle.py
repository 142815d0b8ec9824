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

PROGRAMS = ("quired", "quire", "quire_answers", "quire_gpu_tests", "bench_kernels_cuda",
            "bench_kernels_cuda_emulated")
DEVICE = {"name": "Fake 90", "compute_capability": 90, "num_sms": 132, "memory_bytes": 8e10,
          "free_bytes": 7e10, "driver_version": 13000}


class Bundle:
    def __init__(self, runner, folder, archs="80+ptx,90a"):
        self.folder, self.archs = folder, archs
        shutil.copy(runner, folder / "run")
        for name in PROGRAMS:
            self.program(name, "exit 0")
        self.device(f"echo '{json.dumps(DEVICE)}'")

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def device(self, answer, tiny="echo BM_B 1 ns"):
        self.program("bench_kernels_cuda", f"""case $1 in
            --device) {answer} ;;
            --benchmark_list_tests) echo BM_A/tiny/1; echo BM_B/tiny/2; echo BM_C/n:1 ;;
            *BM_B/tiny*) {tiny} ;;
            --benchmark_filter*) echo "$1 1 ns" ;;
            esac""")

    def tests(self, suites):
        """Maps each suite to the shell command of its process."""
        listing = "\n".join(f"echo {name}.; echo '  Test'" for name in suites)
        cases = "\n".join(f"--gtest_filter={name}.*) {text} ;;" for name, text in suites.items())
        self.program("quire_gpu_tests",
                     f"case $1 in\n--gtest_list_tests) {listing} ;;\n{cases}\nesac")

    def run(self, *arguments, seal=True, timeout=60):
        if seal:
            gpu_manifest.write(self.folder, "0 test", self.archs)
        done = subprocess.run([self.folder / "run", *arguments], cwd=self.folder.parent, text=True,
                              capture_output=True, timeout=timeout, check=False)
        with tarfile.open(self.folder.parent / "results.tar.gz") as archive:
            results = json.load(archive.extractfile("results/results.json"))
            names = archive.getnames()
        return done.returncode, done.stdout, results, names

    def result(self, name):
        with tarfile.open(self.folder.parent / "results.tar.gz") as archive:
            return archive.extractfile(f"results/{name}").read().decode()
