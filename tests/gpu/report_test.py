"""tools/bench/gpu_report.py converts an archive of results to data for docs/benchmarks."""

import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "docs"), str(ROOT / "tools" / "bench")]
import benchmark_data  # noqa: E402
import gpu_report  # noqa: E402

RESULTS = {
    "quire": "0.1.0 abc", "archs": "80,90a", "date": "2026-11-26 00:03 UTC", "minutes": 9.0,
    "is_emulated": False, "lost": "", "exit_status": 1,
    "device": {"name": "NVIDIA H100", "num_sms": 132, "memory_bytes": 8e10,
               "driver_version": 13000},
    "stages": [{"name": "tests", "verdict": "FAILED", "skipped": "", "seconds": 2.04, "items": [
        {"name": "ATest", "verdict": "passed", "why": "", "seconds": 1},
        {"name": "BTest", "verdict": "FAILED", "why": "ended by signal 11: ", "seconds": 1}]},
               {"name": "tools", "verdict": "skipped", "skipped": "no compute-sanitizer",
                "seconds": 0, "items": []}],
}


def bench(name, times, rate, flops=0):
    return {"benchmarks": [{"run_name": f"{name}/manual_time", "run_type": "iteration", "real_time": time,
                            "time_unit": "us", "bytes_per_second": rate, "FLOP/s": flops,
                            "label": "cuBLASLt"}
                           for time in times]}


class GpuReportTest(unittest.TestCase):
    def report(self, *arguments, **changes):
        files = {"results.json": {**RESULTS, **changes},
                 "facts-BM_DeviceCopy-1.json": bench("BM_DeviceCopy/1", [1], 3e12),
                 "facts-BM_DeviceMatmul-1.json": bench("BM_DeviceMatmul/1", [1], 0, 8e14),
                 "speed-BM_Linear-n-1.json": bench("BM_Linear/n:1", [30, 10, 20], 1.5e12, 2e14),
                 "speed-ng-and-cut-manual_time.json": bench("BM_NameThatIsLongAndCut", [5], 3e12),
                 "peers.json": {"BM_Linear/n:1": {"peer": "torch", "seconds": 10e-6}},
                 "daemon-32.json": {"output_throughput": 4000.04, "median_ttft_ms": 12,
                                    "median_itl_ms": 8, "failed": 0}}
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            with tarfile.open(folder / "results.tar.gz", "w:gz") as archive:
                for name, content in files.items():
                    text = json.dumps(content).encode()
                    entry = tarfile.TarInfo(f"results/{name}")
                    entry.size = len(text)
                    archive.addfile(entry, io.BytesIO(text))
                # Output of killed processes, before and after a complete entry.
                whole = json.dumps(bench("BM_Whole", [4], 2e12), indent=2)
                for name, text in (("BM_Cut", ""), ("BM_CutLate", whole[:-8] + "    },\n    {\n      \"na")):
                    cut = tarfile.TarInfo(f"results/speed-{name}.json")
                    cut.size = len(text)
                    archive.addfile(cut, io.BytesIO(text.encode()))
            done = subprocess.run(
                [sys.executable, ROOT / "tools/bench/gpu_report.py", *arguments,
                 folder / "results.tar.gz", folder], capture_output=True, text=True, check=False)
            data = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
        return done, data

    def test_data_match_the_schema_and_the_run(self):
        done, data = self.report()
        self.assertEqual(done.returncode, 0, done.stderr)
        document = data["2026-11-26-nvidia-h100.json"]
        self.assertEqual(list(benchmark_data.faults("f.json", document)), [])
        rows = {part["id"]: part["rows"] for part in document["measurements"]}
        self.assertIn(["BM_Linear/n:1", 20.0, 1.5, 0.5, 200.0, 0.25, 10.0, 2.0], rows["kernels"])
        titles = {row[0] for row in rows["kernels"]}
        self.assertLessEqual({"BM_NameThatIsLongAndCut", "BM_Whole"}, titles)
        method = next(part["method"] for part in document["measurements"] if part["id"] == "kernels")
        self.assertIn("is 3.000 TB/s; G, the rate of a bf16 product, 800.0 TFLOP/s (cuBLASLt).", method)
        self.assertEqual(rows["stages"][0],
                         ["tests", "FAILED", 1, 2, 2.0, "BTest: ended by signal 11: "])
        self.assertEqual(rows["daemon"], [[32, 4000.0, 12, 8, 0]])
        self.assertIn("| BM_Linear/n:1 | 20.0 | 1.5 | 0.5 | 200.0 | 0.25 | 10.0 | 2.0 |", done.stdout)

    def test_truncated_probe_leaves_g_unknown(self):
        cut = {"facts-BM_DeviceMatmul-1.json": b""}
        self.assertEqual(gpu_report.product_library(cut), "unknown")
        self.assertEqual(gpu_report.kernel_rows(cut)[:2], (0, 0))

    def test_emulated_times_are_printed_but_not_written(self):
        done, data = self.report(is_emulated=True)
        self.assertEqual((done.returncode, data), (1, {}))
        self.assertIn("EMULATED", done.stdout)
        done, data = self.report("--print", is_emulated=True)
        self.assertEqual((done.returncode, data), (0, {}))

    def test_nothing_is_written_without_a_device(self):
        done, data = self.report(device=None)
        self.assertEqual((done.returncode, data), (1, {}))


if __name__ == "__main__":
    unittest.main()
