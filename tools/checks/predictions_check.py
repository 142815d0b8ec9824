#!/usr/bin/env python3
"""Checks the predictions in docs/benchmarks/gpu_queue.md.

Every row of a table with a column "measured by" names a measurement in backticks: the beginning of the name of a
benchmark of bench_kernels_cuda, a filter for GPU tests, a stage of the runner as `run STAGE`, or a figure of the
runner's daemons. The measurement must exist. The row must have an expectation, and a formula if the table has a
column for it. The runner must be able to parse the expectation if it compares the figure. A count of instructions in a
formula ("n = 455", "beside 421") must be in kernels/cuda/resources.json. The existing names come from tools/gpu_run and
from the programs:

    tools/checks/predictions_check.py --bench bench_kernels_cuda_emulated --tests X_gpu Y_gpu ...

Exit status 1 with one line per violation.
"""

import argparse
import fnmatch
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "gpu_run"))
import report  # noqa: E402
import run  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks" / "gpu_queue.md"
NAME = re.compile(r"`([^`]+)`")
RESOURCES = ROOT / "kernels" / "cuda" / "resources.json"
COUNT = re.compile(r"\b(?:n =|beside) (\d+)")
STAGES = {stage.name for stage in run.STAGES + run.EXTRA_STAGES}
FIGURES = {f"daemon-{name}-{streams}/{field}" for name, load in run.LOADS.items() for streams in load.streams
           for field in report.DAEMON_FIELDS}


def ask(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def tests_of(listing):
    """Returns `Suite.Test` of every test in the output of --gtest_list_tests."""
    suite, names = "", []
    for line in listing.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif "." in line:
            suite = line.split("#")[0].strip()
    return names


class Programs:
    def __init__(self, benchmarks, tests):
        self.benchmarks, self.tests = benchmarks, tests

    def fault(self, name):
        """Returns "" if the measurement `name` exists, and an error if not. Returns None for text of another form."""
        if name.startswith("BM_"):
            return "" if any(known.startswith(name) for known in self.benchmarks) else "no such benchmark"
        if name.startswith("run "):
            return "" if name[4:] in STAGES else "the runner has no such stage"
        if name.startswith("daemon-"):
            return "" if name in FIGURES else "the runner measures no such figure"
        if re.fullmatch(r"[A-Z][\w/]*\.[\w*/]+", name):
            return "" if any(fnmatch.fnmatchcase(known, name) for known in self.tests) else "no such test"
        return None


def counts_of(resources):
    """Returns the instruction counts per tile of all loops in the table."""
    return {counts["all"] for unit in resources.values() for loop in unit.get("loops", {}).values()
            for counts in loop.get("instructions_per_tile", {}).values()}


def check(page, programs, counts):
    errors, rows = [], 0
    for number, row in report.rows_of(page):
        errors += [f"{PAGE.name}:{number}: no loop in {RESOURCES.name} has {count} instructions"
                   for count in COUNT.findall(row.get("formula", "")) if int(count) not in counts]
        rows += 1
        found = [(name, programs.fault(name)) for name in NAME.findall(row["measured by"])]
        errors += [f"{PAGE.name}:{number}: {name}: {fault}" for name, fault in found if fault]
        if not any(fault is not None for _, fault in found):
            errors.append(f"{PAGE.name}:{number}: names no measurement in \"measured by\"")
        if not row.get("expected", "") and not row.get("expected on an H100", ""):
            errors.append(f"{PAGE.name}:{number}: has no expectation")
        else:
            try:
                report.prediction(row)
            except ValueError as error:
                errors.append(f"{PAGE.name}:{number}: {error}")
        if "formula" in row and not row["formula"]:
            errors.append(f"{PAGE.name}:{number}: has no formula")
    return errors, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--tests", required=True, nargs="+")
    arguments = parser.parse_args()
    tests = [name for program in arguments.tests for name in tests_of(ask(program, "--gtest_list_tests"))]
    programs = Programs(ask(arguments.bench, "--benchmark_list_tests").split(), tests)
    errors, rows = check(PAGE.read_text(encoding="utf-8"), programs, counts_of(json.loads(RESOURCES.read_text())))
    for error in errors:
        print(error)
    print(f"predictions_check: {rows} rows, {len(errors)} violations")
    return 1 if errors or rows == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
