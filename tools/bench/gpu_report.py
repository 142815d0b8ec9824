#!/usr/bin/env python3
"""Turns the results of a GPU run (scripts/gpu_bundle) into data and a table.

    gpu_report.py results.tar.gz [FOLDER]   writes FOLDER/<date>-<gpu>.json, docs/benchmarks by
                                            default, and prints the table in Markdown
    gpu_report.py --print results.tar.gz    prints only

Rates are fractions of C and G, the copy bandwidth and the rate of a large matrix product measured in the same run. Times
are ratios to torch's for the same shape. Results of the emulated device are printed but not written, because its times
are meaningless.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys
import tarfile

UNIT = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
KERNELS = ["benchmark", "time_us", "TB_per_s", "share_of_C", "TFLOP_per_s", "share_of_G",
           "torch_us", "time_by_torch"]
STAGES = ["stage", "verdict", "passed", "items", "seconds", "why"]
LOAD = ["streams", "output_tokens_per_s", "median_ttft_ms", "median_itl_ms", "failed"]


def read(path):
    """Returns {file name: content} of the archive."""
    with tarfile.open(path) as archive:
        return {member.name.removeprefix("results/"): archive.extractfile(member).read()
                for member in archive.getmembers() if member.isfile()}


def entries(content):
    """Returns the entries that Google Benchmark wrote. The file of a killed process has complete entries but no end."""
    text = content.decode(errors="replace")
    for candidate in (text, text[:text.rfind("    },")] + "    }\n  ]\n}"):
        try:
            return json.loads(candidate)["benchmarks"]
        except (ValueError, KeyError):
            continue
    return []


def benchmarks(files):
    """Returns {name: (seconds, bytes/s, FLOP/s)}, medians of the repetitions."""
    runs = {}
    for name, content in files.items():
        # Long names are truncated at the start (FileName of tools/gpu_run/stages.cc).
        if not re.match(r"(speed|facts)-.*\.json$", name):
            continue
        for row in entries(content):
            if row.get("run_type", "iteration") == "iteration" and not row.get("error_occurred"):
                runs.setdefault(row["run_name"].removesuffix("/manual_time"), []).append(row)
    return {title: tuple(statistics.median(values) for values in (
                [row["real_time"] * UNIT[row["time_unit"]] for row in of],
                [row.get("bytes_per_second", 0) for row in of],
                [row.get("FLOP/s", 0) for row in of]))
            for title, of in runs.items()}


def product_library(files):
    """Returns the implementation of G: cuBLASLt, or quire's own Linear with the reason."""
    for name, content in files.items():
        if re.match(r"facts-BM_DeviceMatmul.*\.json$", name):
            try:
                return json.loads(content)["benchmarks"][0].get("label", "unknown")
            except (ValueError, KeyError, IndexError):  # the process was killed
                break
    return "unknown"


def kernel_rows(files):
    """Returns C in bytes/s or 0, G in FLOP/s or 0, and the rows of KERNELS."""
    found = benchmarks(files)
    copy = max((rate for name, (_, rate, _) in found.items() if name.startswith("BM_DeviceCopy")),
               default=0)
    product = max((flops for name, (_, _, flops) in found.items() if name.startswith("BM_DeviceMatmul")),
                  default=0)
    peers = json.loads(files.get("peers.json", b"{}"))
    rows = []
    for name, (seconds, rate, flops) in sorted(found.items()):
        peer = peers.get(name, {}).get("seconds")
        rows.append([name, round(seconds * 1e6, 2),
                     round(rate / 1e12, 3) if rate else None,
                     round(rate / copy, 3) if rate and copy else None,
                     round(flops / 1e12, 1) if flops else None,
                     round(flops / product, 3) if flops and product else None,
                     round(peer * 1e6, 2) if peer else None,
                     round(seconds / peer, 3) if peer else None])
    return copy, product, rows


def stage_rows(results):
    rows = []
    for stage in results["stages"]:
        items = stage["items"]
        bad = [f"{item['name']}: {item['why']}" for item in items if item["verdict"] == "FAILED"]
        rows.append([stage["name"], stage["verdict"],
                     sum(item["verdict"] == "passed" for item in items), len(items),
                     round(stage["seconds"], 1), stage["skipped"] or "; ".join(bad)[:400] or None])
    return rows


def load_rows(files):
    rows = []
    for streams in (1, 32, 128):
        content = files.get(f"daemon-{streams}.json")
        if content:
            run = json.loads(content)
            rows.append([streams, round(run["output_throughput"], 1),
                         *(round(run[f"median_{name}_ms"], 2) for name in ("ttft", "itl")),
                         run["failed"]])
    return rows


def document(results, files):
    """Returns the document in the format of tools/docs/benchmark_data.py."""
    device = results["device"] or {"name": "no device"}
    copy, product, kernels = kernel_rows(files)
    gigabytes = device.get("memory_bytes", 0) / 1e9
    common = {
        "machine": f"{device['name']}, {device.get('num_sms', 0)} multiprocessors, "
                   f"{gigabytes:.0f} GB, driver for CUDA {device.get('driver_version', 0) // 1000}",
        "date": results["date"],
        "versions": {"quire": results["quire"]},
        "commands": [f"./run --minutes {results['minutes']:g}"],
    }
    parts = [("stages", "Verdicts of the check", "One process per item.", STAGES,
              stage_rows(results)),
             ("kernels", "Kernels", "Medians of 5 of 10 ms. C, the device's copy bandwidth in this "
              f"run, is {copy / 1e12:.3f} TB/s; G, the rate of a bf16 product, {product / 1e12:.1f} TFLOP/s "
              f"({product_library(files)}).",
              KERNELS, kernels),
             ("daemon", "Shape of Llama 3.1 8B with synthetic weights, 512 input and 128 output tokens",
              "quire bench, four requests per stream after a warm-up.", LOAD, load_rows(files))]
    return {"title": f"CUDA kernels on {device['name']}",
            "measurements": [{"id": identity, "title": title, **common, "method": method,
                              "columns": columns, "rows": rows}
                             for identity, title, method, columns, rows in parts if rows]}


def markdown(data, is_emulated):
    lines = [f"# {data['title']}{': EMULATED, its times are meaningless' if is_emulated else ''}"]
    for part in data["measurements"]:
        lines += ["", f"## {part['title']}", "", f"{part['machine']}; {part['date']}. "
                  f"{part['method']}", "", "| " + " | ".join(part["columns"]) + " |",
                  "|" + "---|" * len(part["columns"])]
        lines += ["| " + " | ".join("" if value is None else str(value) for value in row) + " |"
                  for row in part["rows"]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true")
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path, nargs="?",
                        default=pathlib.Path(__file__).parents[2] / "docs" / "benchmarks")
    options = parser.parse_args()
    files = read(options.results)
    results = json.loads(files["results.json"])
    data = document(results, files)
    print(markdown(data, results["is_emulated"]))
    if options.print:
        return 0
    if results["is_emulated"] or not results["device"]:
        print("gpu_report.py: no results of a GPU, so nothing is written", file=sys.stderr)
        return 1
    gpu = re.sub(r"[^a-z0-9]+", "-", results["device"]["name"].lower()).strip("-")
    target = options.folder / f"{results['date'][:10]}-{gpu}.json"
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"gpu_report.py: {target}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
