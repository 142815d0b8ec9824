"""The output of scripts/bench_cpu for measured rows. tests/e2e/test_bench.py tests the measurement itself."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_script():
    path = str(ROOT / "scripts" / "bench_cpu")
    spec = importlib.util.spec_from_loader("bench_cpu", importlib.machinery.SourceFileLoader("bench_cpu", path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench_cpu = load_script()
import benchmark_data  # noqa: E402: found by the script's own path


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        arguments, sys.argv = sys.argv, ["bench_cpu", "--smoke", "--out", folder.name]
        self.addCleanup(setattr, sys, "argv", arguments)
        self.session = bench_cpu.Session(bench_cpu.parse())
        self.session.machine = ["- a processor", "- 24 GiB, Linux", "- quired 1.0, commit abc, 2 threads"]
        self.session.options.shape = "tiny"

    def reports(self):
        """Returns (report.md, measurements.json) of a prefill with a peer, a decode without one, and one load."""
        kernels = list(bench_cpu.kernel_rows(self.session, "int8", "Q8_0", {"prefill": (300.0, 100.0), 1: (50.0, None)},
                                             {"B": 1e9, "V": 1e12}))
        medians = {"ours": {"output_throughput": 10.0, "p99_ttft_ms": 500.0, "peak_pss_bytes": 1 << 20},
                   "peer": {"output_throughput": 4.0}}
        served = list(bench_cpu.served_rows(self.session, "int8", "Q8_0", 8, {"median": medians}))
        with contextlib.redirect_stdout(io.StringIO()):
            bench_cpu.write_reports(self.session, kernels, served, ["a note"])
        return (self.out / "report.md").read_text(), json.loads((self.out / "measurements.json").read_text())

    def test_report_page(self):
        page, _ = self.reports()
        lines = page.splitlines()
        self.assertIn("| model | format, ours / peer | what | quire | peer | ratio | share_of_probe |", lines)
        self.assertTrue(any(line.startswith("| tiny | int8 / Q8_0 | prefill 64 | 300.0 | 100.0 | 3.00 | 0.0")
                            for line in lines), page)
        self.assertTrue(any(line.startswith("| tiny | int8 / Q8_0 | decode, batch 1 | 50.0 | not measured | "
                                            "not measured | 0.0") for line in lines), page)
        self.assertIn("| tiny | int8 / Q8_0 | 8 | output tokens/s | 10.0 | 4.0 | 2.50 |", lines)
        self.assertIn("| tiny | int8 / Q8_0 | 8 | peak memory, MiB | 1.0 | not measured | not measured |", lines)
        self.assertIn("- a note", lines)

    def test_data_match_docs_benchmarks(self):
        _, document = self.reports()
        self.assertEqual(list(benchmark_data.faults("measurements.json", document)), [])
        kernels, served = document["measurements"]
        self.assertEqual(kernels["rows"][0][:7], ["tiny", "int8", "Q8_0", "prefill 64", 300.0, 100.0, 3.0])
        self.assertEqual(kernels["rows"][1][5:7], [None, None])
        self.assertEqual(served["rows"][0], ["tiny", "int8", "Q8_0", 8, "output tokens/s", 10.0, 4.0, 2.5])
        self.assertEqual(served["machine"], "a processor; 24 GiB, Linux")
        self.assertEqual(served["versions"], {"quire": "quired 1.0, commit abc, 2 threads"})
        self.assertIn("bench_cpu --smoke", served["commands"][0])

    def test_machine_names_cpu_features(self):
        epyc = "fpu avx2 fma avx512f avx512bw avx512_bf16 avx512_vnni avx512_bitalg"
        self.assertEqual(bench_cpu.cpu_features(epyc), "avx2 fma avx512f avx512bw avx512_vnni avx512_bf16; no AMX")
        xeon = "avx2 fma avx_vnni avx512_bf16 amx_bf16 avx512_vnni amx_tile amx_int8"
        self.assertEqual(bench_cpu.cpu_features(xeon),
                         "avx2 fma avx_vnni avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16")

    def test_data_without_a_version_are_rejected(self):
        self.session.machine = ["- a processor", "- 24 GiB", ""]
        with self.assertRaisesRegex(SystemExit, "versions does not contain quire"):
            self.reports()


if __name__ == "__main__":
    unittest.main()
