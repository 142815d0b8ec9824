"""tools/gpu_run/report.py collects figures; tools/bench/gpu_report.py converts them to data for docs/benchmarks."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "docs"), str(ROOT / "tools" / "gpu_run")]
import benchmark_data  # noqa: E402
import report  # noqa: E402

RESULTS = {
    "quire": "0.1.0 abc", "archs": "80,90a", "date": "2026-11-26 00:03 UTC", "seconds": 600.0,
    "dry_run": False, "lost": "", "exit_status": 1,
    "device": {"name": "NVIDIA H100", "num_sms": 132, "memory_bytes": 8e10,
               "driver_version": 13000, "compute_capability": 90},
    "code": {"KernelB": "00000000000000bb", "KernelA": "00000000000000aa"},
    "stages": [{"name": "tests", "verdict": "FAILED", "skipped": "", "seconds": 2.04, "items": [
        {"name": "ATest", "verdict": "passed", "why": "", "seconds": 1, "optional": False},
        {"name": "BTest", "verdict": "FAILED", "why": "ended by signal 11: ", "seconds": 1, "optional": False}]},
               {"name": "racecheck", "verdict": "skipped", "skipped": "no compute-sanitizer",
                "seconds": 0, "items": []}],
}
PREDICTIONS = [report.Prediction("a product", "BM_Linear/n:1/", "10 to 16 us", 10, 16, "us"),
               report.Prediction("a gap", "daemon-bf16-32/p99_itl_ms", "9 ms", 9, 9, "ms"),
               report.Prediction("a rate", "daemon-moe-1/output_throughput", "9 tokens/s", 9, 9, "tokens/s")]


def bench(name, times, rate, flops=0):
    return {"benchmarks": [{"run_name": f"{name}/manual_time", "run_type": "iteration", "real_time": time,
                            "time_unit": "us", "bytes_per_second": rate, "FLOP/s": flops,
                            "label": "cuBLASLt"}
                           for time in times]}


class GpuReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        whole = json.dumps(bench("BM_Whole", [4], 2e12), indent=2)
        files = {"facts-BM_DeviceCopy-1.json": json.dumps(bench("BM_DeviceCopy/1", [1], 3e12)),
                 "facts-BM_DeviceMatmul-1.json": json.dumps(bench("BM_DeviceMatmul/1", [1], 0, 8e14)),
                 "shapes-BM_Linear.json": json.dumps(bench("BM_Linear/n:1", [30, 10, 20], 1.5e12, 2e14)),
                 "others-ng-and-cut.json": json.dumps(bench("BM_NameThatIsLongAndCut", [5], 3e12)),
                 # Output of killed processes, before and after a complete entry.
                 "shapes-BM_Cut.json": "",
                 "shapes-BM_CutLate.json": whole[:-8] + "    },\n    {\n      \"na",
                 "peers.json": json.dumps({"BM_Linear/n:1": {"peer": "torch", "seconds": 10e-6}}),
                 "daemon-moe-1.json": "",
                 "daemon-bf16-32.json": json.dumps({
                     "output_throughput": 4000.004, "median_ttft_ms": 12, "p99_ttft_ms": 13, "median_itl_ms": 8,
                     "p99_itl_ms": 9, "failed": 0, "date": "x"})}
        for name, content in files.items():
            (self.folder / name).write_text(content)
        self.results = {**RESULTS, "kernels": report.kernels(self.folder), "daemons": report.daemons(self.folder)}
        self.results["comparison"] = report.comparison(PREDICTIONS, self.results)

    def convert(self, **changes):
        (self.folder / "results.json").write_text(json.dumps({**self.results, **changes}))
        out = self.folder / "out"
        out.mkdir()
        done = subprocess.run([sys.executable, "-B", ROOT / "tools/bench/gpu_report.py", self.folder, out],
                              capture_output=True, text=True, check=False)
        return done, {path.name: json.loads(path.read_text()) for path in out.glob("*.json")}

    def test_data_match_the_schema_and_the_run(self):
        done, data = self.convert()
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
        self.assertEqual(rows["code"], [["KernelA", 90, "00000000000000aa", "FAILED"],
                                        ["KernelB", 90, "00000000000000bb", "FAILED"]])
        self.assertEqual(rows["daemon"], [["bf16-32", 4000.0, 12, 13, 8, 9, 0]])
        self.assertEqual(rows["predictions"], [
            ["a product", "BM_Linear/n:1/", "10 to 16 us", "20 us", 1.25, "10 us"],
            ["a gap", "daemon-bf16-32/p99_itl_ms", "9 ms", "9 ms", 1.0, None],
            ["a rate", "daemon-moe-1/output_throughput", "9 tokens/s", "not measured", None, None]])

    def test_ratio_is_to_the_nearest_end_of_the_range(self):
        for time, ratio in ((5, 0.5), (10, 1), (12, 1), (16, 1), (32, 2)):
            kernel = {"seconds": time * 1e-6, "torch_seconds": None}
            row, = report.comparison(PREDICTIONS[:1], {**RESULTS, "kernels": {"BM_Linear/n:1": kernel}})
            self.assertEqual(row[4], ratio)

    def test_code_has_passed_if_tests_and_runner_have(self):
        def verdicts(**stages):
            listed = [{"name": name, "verdict": verdict} for name, verdict in stages.items()]
            return {row[3] for row in report.code_rows({**RESULTS, "stages": listed})}
        self.assertEqual(verdicts(tests="passed", runner="passed"), {"passed"})
        self.assertEqual(verdicts(tests="passed", runner="incomplete"), {"incomplete"})
        self.assertEqual(verdicts(tests="FAILED", runner="passed"), {"FAILED"})
        self.assertEqual(verdicts(tests="passed"), {"not run"})

    def test_probe_without_output_leaves_c_and_g_unknown(self):
        self.assertEqual(report.kernel_rows({"kernels": {}}), (0, 0, "unknown", []))

    def test_tables_have_one_line_per_row(self):
        lines = report.text(self.results).splitlines()
        self.assertEqual(lines[1], "# NVIDIA H100")
        table = [line for line in lines if line.startswith("| ")][-3:]
        self.assertEqual([line.split("|")[1].strip() for line in table], ["a product", "a gap", "a rate"])
        self.assertEqual(len({len(line) for line in table}), 1)

    def test_emulated_times_are_not_written(self):
        done, data = self.convert(dry_run=True)
        self.assertEqual((done.returncode, data), (1, {}))
        self.assertIn("EMULATED", report.text({**self.results, "dry_run": True}))

    def test_nothing_is_written_without_a_device(self):
        done, data = self.convert(device=None)
        self.assertEqual((done.returncode, data), (1, {}))
        self.assertIn("# no device", report.text({**self.results, "device": None}))


if __name__ == "__main__":
    unittest.main()
