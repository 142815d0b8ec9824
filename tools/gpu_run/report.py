"""Compares the figures that a run on a GPU (run.py) measured with those that docs/benchmarks/gpu_queue.md expects."""

import collections
import json
import pathlib
import re
import statistics

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "tokens/s": 1.0}
FIGURE = re.compile(r"`(BM_[^`]+|daemon-[^`]+)`")
EXPECTED = re.compile(r"([\d.]+)(?: to ([\d.]+))? (us|ms|tokens/s)")
DAEMON_FIELDS = ["output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "failed"]

STAGES = ["stage", "verdict", "passed", "items", "seconds", "why"]
COMPARISON = ["what", "measured by", "expected on an H100", "measured", "ratio", "torch"]
DAEMONS = ["run", *DAEMON_FIELDS]
CODE = ["kernel", "compute_capability", "hash", "verdict"]
KERNELS = ["benchmark", "time_us", "TB_per_s", "share_of_C", "TFLOP_per_s", "share_of_G", "torch_us", "time_by_torch"]

# `low` and `high` are in `unit`.
Prediction = collections.namedtuple("Prediction", "what name expected low high unit")


def rows_of(page):
    """Returns (line number, {column: cell}) of the rows of tables with a column "measured by"."""
    columns = None
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if columns is None:
            columns = cells
        elif "measured by" in columns and not set(line) <= set("|-: "):
            yield number, dict(zip(columns, cells))


def prediction(row):
    """Returns the prediction of a row that names a benchmark or a figure of a daemon, else None.

    Raises ValueError if the expectation is not a number or a range in one of the units."""
    name = FIGURE.search(row["measured by"])
    if not name or "expected on an H100" not in row:
        return None
    expected = row["expected on an H100"]
    match = EXPECTED.fullmatch(expected)
    if not match:
        raise ValueError(f"\"{expected}\" is not a number or range in us, ms or tokens/s")
    low, high = float(match[1]), float(match[2] or match[1])
    return Prediction(row["what"], name[1], expected, low, high, match[3])


def predictions(page):
    return [found for _, row in rows_of(page) if (found := prediction(row))]


def entries(content):
    """Returns the entries that Google Benchmark wrote. The file of a killed process has complete entries but no end."""
    for candidate in (content, content[:content.rfind("    },")] + "    }\n  ]\n}"):
        try:
            return json.loads(candidate)["benchmarks"]
        except (ValueError, KeyError):
            continue
    return []


def load(path):
    """Returns the object in a file, or {} if a process was killed before it was complete."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def kernels(folder):
    """Returns {benchmark: {seconds, bytes_per_second, flops, label, torch_seconds}}, medians of the repetitions."""
    runs, peers = {}, load(folder / "peers.json")
    for path in sorted(folder.glob("*.json")):
        if path.name.startswith(("facts-", "shapes-", "others-")):
            for row in entries(path.read_text(encoding="utf-8", errors="replace")):
                if row.get("run_type", "iteration") == "iteration" and not row.get("error_occurred"):
                    runs.setdefault(row["run_name"].replace("/manual_time", ""), []).append(row)
    return {name: {"seconds": statistics.median(row["real_time"] * UNITS[row["time_unit"]] for row in rows),
                   "bytes_per_second": statistics.median(row.get("bytes_per_second", 0) for row in rows),
                   "flops": statistics.median(row.get("FLOP/s", 0) for row in rows),
                   "label": rows[0].get("label", ""),
                   "torch_seconds": peers.get(name, {}).get("seconds")}
            for name, rows in sorted(runs.items())}


def daemons(folder):
    """Returns {"daemon-bf16-32": {field: value}} of the load tests."""
    found = {path.stem: load(path) for path in sorted(folder.glob("daemon-*.json"))}
    return {name: {field: run.get(field) for field in DAEMON_FIELDS} for name, run in found.items() if run}


def find_figures(name, results):
    """Returns the figure in seconds or tokens/s and torch's seconds, or None for each that was not measured."""
    run, _, field = name.partition("/")
    if run.startswith("daemon-"):
        value = results["daemons"].get(run, {}).get(field)
        return (value * UNITS["ms"] if value is not None and field.endswith("_ms") else value), None
    # A run on the emulated device has only the smallest shape of each op, so that shape is used.
    wanted = f"{run}/" if results["dry_run"] else name
    found = [kernel for key, kernel in results["kernels"].items() if f"{key}/".startswith(wanted)]
    return (found[0]["seconds"], found[0]["torch_seconds"]) if found else (None, None)


def comparison(expected, results):
    """Returns the rows of COMPARISON, one per prediction. The ratio is measured / the nearest end of the range."""
    rows = []
    for row in expected:
        value, peer = (figure and figure / UNITS[row.unit] for figure in find_figures(row.name, results))
        nearest = None if value is None else min(max(value, row.low), row.high)
        rows.append([row.what, row.name, row.expected, "not measured" if value is None else f"{value:.4g} {row.unit}",
                     value and float(f"{value / nearest:.3g}"), peer and f"{peer:.4g} {row.unit}"])
    return rows


def stage_rows(results):
    rows = []
    for stage in results["stages"]:
        items = stage["items"]
        bad = [item for item in items if item["verdict"] == "FAILED"]
        bad += [item for item in items if item["verdict"] == "not run" and not item["optional"]]
        skipped = [item for item in items if item["verdict"] == "skipped"]
        why = stage["skipped"] or "; ".join(f"{item['name']}: {item['why']}" for item in bad)[:300]
        if not why and skipped:
            why = f"{len(skipped)} skipped: {skipped[0]['why']}"
        rows.append([stage["name"], stage["verdict"], sum(item["verdict"] == "passed" for item in items),
                     len(items) - len(skipped), round(stage["seconds"], 1), why or None])
    return rows


def daemon_rows(results):
    return [[name.replace("daemon-", "", 1), *(value if value is None else round(value, 2) for value in run.values())]
            for name, run in results["daemons"].items()]


def kernel_rows(results):
    """Returns the copy bandwidth in bytes/s, the GEMM rate in FLOP/s and its library, and the rows of KERNELS."""
    def best(part, field):
        return max(((kernel[field], kernel["label"]) for name, kernel in results["kernels"].items()
                    if name.startswith(part)), default=(0, "unknown"))
    (copy, _), (product, library) = best("BM_DeviceCopy", "bytes_per_second"), best("BM_DeviceMatmul", "flops")
    rows = []
    for name, kernel in results["kernels"].items():
        rate, flops, peer = (kernel[field] or None for field in ("bytes_per_second", "flops", "torch_seconds"))
        rows.append([name, round(kernel["seconds"] * 1e6, 2),
                     rate and round(rate / 1e12, 3), rate and round(rate / copy, 3) if copy else None,
                     flops and round(flops / 1e12, 1), flops and round(flops / product, 3) if product else None,
                     peer and round(peer * 1e6, 2), peer and round(kernel["seconds"] / peer, 3)])
    return copy, product, library, rows


def code_rows(results):
    """Returns the rows of CODE. A kernel has passed if the stages of the tests of kernels and models have passed."""
    verdicts = {stage["name"]: stage["verdict"] for stage in results["stages"]}
    failed = [verdict for verdict in map(verdicts.get, ("tests", "runner")) if verdict != "passed"]
    capability = results["device"]["compute_capability"] if results["device"] else None
    return [[kernel, capability, value, (failed[0] or "not run") if failed else "passed"]
            for kernel, value in sorted(results.get("code", {}).items())]


def parts(results):
    """Returns (id, title, method, columns, rows) of each table."""
    copy, product, library, rows = kernel_rows(results)
    return [("kernels", "Kernels",
             f"Medians of 5 repetitions of 10 ms. C, the device's copy bandwidth in this run, is {copy / 1e12:.3f} TB/s; G, the rate "
             f"of a bf16 product, {product / 1e12:.1f} TFLOP/s ({library}).", KERNELS, rows),
            ("code", "Machine code",
             "Hashes of tools/gpu_run/code_hashes.py. A kernel has passed if the stages tests and runner have.", CODE,
             code_rows(results)),
            ("daemon", "Synthetic weights, 512 input and 128 output tokens",
             "quire bench, three requests per stream after a warm-up.", DAEMONS, daemon_rows(results)),
            ("stages", "Verdicts of the check", "One process per item.", STAGES, stage_rows(results)),
            ("predictions", "Figures and predictions (docs/benchmarks/gpu_queue.md)",
             "The ratio is measured / the nearest end of the expected range.", COMPARISON, results["comparison"])]


def table(columns, rows):
    """Returns the lines of a Markdown table with aligned columns."""
    cells = [columns] + [["" if cell is None else str(cell).replace("|", "/") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    cells.insert(1, ["-" * width for width in widths])
    return ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]


def text(results):
    """Returns the report in Markdown."""
    title = results["device"]["name"] if results["device"] else "no device"
    lines = ["", f"# {title}" + (": EMULATED, its times are meaningless" if results["dry_run"] else ""), "",
             f"quire {results['quire']}, {results['date']}, exit status {results['exit_status']}"]
    for _, title, method, columns, rows in parts(results):
        lines += ["", f"## {title}", "", method, "", *table(columns, rows)]
    return "\n".join([*lines, ""])


def write(path, content):
    """Replaces a file, so that a reader finds the old or the new content."""
    part = path.with_name(path.name + ".part")
    part.write_text(content, encoding="utf-8")
    part.replace(path)


def load_predictions(folder):
    return predictions(pathlib.Path(folder, "gpu_queue.md").read_text(encoding="utf-8"))
