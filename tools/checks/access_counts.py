#!/usr/bin/env python3
"""Compares the costs of loads and stores of each CUDA kernel, counted by the emulator, with kernels/cuda/accesses.json.

    tools/checks/access_counts.py BUILD [--write]

Runs each benchmark of bench_kernels_cuda once with its smallest shape, in the emulator. The table has two ratios per
kernel: the fraction of shared memory passes that are due to bank conflicts, and the device memory bytes transferred in
whole sectors, divided by the bytes that the lanes request. Fails if a kernel differs by more than 0.05.
--write replaces the table.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "kernels" / "cuda" / "accesses.json"
SECTOR_BYTES = 32
TOLERANCE = 0.05  # other compilers eliminate other loads


def count(build):
    """Returns the sums that the emulator writes, by kernel."""
    program = build / "tests" / "tools" / "bench_kernels_cuda_emulated"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "counts.json"
        environment = dict(os.environ, QUIRE_EMULATOR_SEED="1", QUIRE_EMULATOR_CHECK="all",
                           QUIRE_EMULATOR_COUNTS=str(path))
        # Short enough that each benchmark runs once.
        ran = subprocess.run([program, "--benchmark_filter=/tiny", "--benchmark_min_time=0.000001"], env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if ran.returncode != 0 or "ERROR OCCURRED" in ran.stdout or "Failed to match" in ran.stdout:
            raise SystemExit(f"access_counts: {program.name} failed:\n{ran.stdout}")
        return json.loads(path.read_text())


def shares(sums):
    return {kernel: {
        "shared_conflicts": round(of["shared_conflicts"] / max(1, of["shared_passes"]), 2),
        "sector_bytes_per_byte": round(SECTOR_BYTES * of["device_sectors"] / max(1, of["device_bytes"]), 2),
    } for kernel, of in sorted(sums.items())}


def differences(found, table):
    for kernel in sorted(found.keys() | table.keys()):
        if kernel not in table:
            yield f"{kernel}: not in the table, measured {found[kernel]}"
        elif kernel not in found:
            yield f"{kernel}: in the table, but no benchmark runs it"
        elif any(abs(found[kernel][name] - table[kernel][name]) > TOLERANCE for name in table[kernel]):
            yield f"{kernel}: measured {found[kernel]}, the table has {table[kernel]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found = shares(count(arguments.build))
    if arguments.write:
        lines = ",\n".join(f" {json.dumps(kernel)}: {json.dumps(of)}" for kernel, of in found.items())
        TABLE.write_text("{\n" + lines + "\n}\n")
        return 0
    problems = list(differences(found, json.loads(TABLE.read_text())))
    for problem in problems:
        print(problem)
    print(f"access_counts: {len(found)} kernels, {len(problems)} differ")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
