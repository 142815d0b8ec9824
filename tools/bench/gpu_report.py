#!/usr/bin/env python3
"""Turns the results of a GPU run (scripts/gpu_bundle) into data for docs/benchmarks: `gpu_report.py gpu-results [FOLDER]`.

Writes FOLDER/<date>-<gpu>.json, in docs/benchmarks by default. Results of the emulated device are refused, because its
times are meaningless. report.md in gpu-results shows the same figures as tables.
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "gpu_run"))
import report  # noqa: E402


def document(results):
    """Returns the document in the format of tools/docs/benchmark_data.py."""
    device = results["device"]
    common = {
        "machine": f"{device['name']}, {device['num_sms']} multiprocessors, {device['memory_bytes'] / 1e9:.0f} GB, "
                   f"driver for CUDA {device['driver_version'] // 1000}",
        "date": results["date"],
        "versions": {"quire": results["quire"]},
        "commands": [f"./run --seconds {results['seconds']:g} {' '.join(stage['name'] for stage in results['stages'])}"],
    }
    return {"title": f"CUDA kernels on {device['name']}",
            "measurements": [{"id": identity, "title": title, **common, "method": method, "columns": columns, "rows": rows}
                             for identity, title, method, columns, rows in report.parts(results) if rows]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path, nargs="?", default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    results = json.loads((options.results / "results.json").read_text(encoding="utf-8"))
    if results["dry_run"] or not results["device"]:
        print("gpu_report.py: no results of a GPU, so nothing is written", file=sys.stderr)
        return 1
    gpu = re.sub(r"[^a-z0-9]+", "-", results["device"]["name"].lower()).strip("-")
    target = options.folder / f"{results['date'][:10]}-{gpu}.json"
    target.write_text(json.dumps(document(results), indent=1) + "\n", encoding="utf-8")
    print(f"gpu_report.py: {target}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
