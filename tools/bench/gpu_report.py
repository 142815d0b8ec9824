#!/usr/bin/env python3
"""A Markdown table of one GPU run: `gpu_report.py FOLDER`, with kernels.json of bench_kernels_cuda and, when it is
there, peers.json of gpu_peers.py. Rates are given as shares of the copy bandwidth measured in the same run, times as
ratios to the peer of the same shape.
"""

import json
import pathlib
import sys


def medians(path):
    """{name: (seconds, bytes/s, FLOP/s)} of the median rows of a Google Benchmark report."""
    unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    rows = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]:
        if row.get("aggregate_name") == "median":
            name = row["run_name"].removesuffix("/manual_time")
            rows[name] = (row["real_time"] * unit[row["time_unit"]], row.get("bytes_per_second", 0),
                          row.get("FLOP/s", 0))
    return rows


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = medians(folder / "kernels.json")
    copy = max((rate for name, (_, rate, _) in rows.items() if name.startswith("BM_DeviceCopy")),
               default=0)
    if copy == 0:
        print("gpu_report.py: no BM_DeviceCopy in kernels.json, nothing to compare with",
              file=sys.stderr)
        return 1
    peers_file = folder / "peers.json"
    peers = json.loads(peers_file.read_text(encoding="utf-8")) if peers_file.exists() else {}
    print(f"# {folder.name}\n")
    print((folder / "gpu.csv").read_text(encoding="utf-8").replace("\n", "  \n"))
    print(f"Medians of 5. C, the device's copy bandwidth in this run, is {copy / 1e12:.2f} TB/s.\n")
    print("| benchmark | time, us | TB/s | share of C | TFLOP/s | peer | time / peer |")
    print("|---|---|---|---|---|---|---|")
    for name, (seconds, rate, flops) in rows.items():
        peer, ratio = "", ""
        if name in peers:
            peer = peers[name]["peer"]
            ratio = f"{seconds / peers[name]['seconds']:.2f}"
        print(f"| {name} | {seconds * 1e6:.1f} | {rate / 1e12:.2f} | {rate / copy:.2f} "
              f"| {flops / 1e12:.0f} | {peer} | {ratio} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
