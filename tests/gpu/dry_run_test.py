"""The whole run of a bundle with real programs on the emulated device, and the comparison of answers."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fake_bundle import ROOT, copy_runner, gpu_manifest  # noqa: E402

QUIRED, TESTS, BENCH, QUIRE, ANSWERS, TESTDATA = map(pathlib.Path, sys.argv[1:7])
del sys.argv[1:7]
PROMPTS = 8
STAGES = ["facts", "tests", "runner", "shapes", "torch", "bf16", "target", "fp8", "moe", "racecheck", "rerun"]


class DryRunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def bundle(self):
        bundle = self.folder / "bundle"
        bundle.mkdir()
        copy_runner(bundle)
        for name, target in (("quired_emulated", QUIRED), ("quire_gpu_tests_emulated", TESTS),
                             ("bench_kernels_cuda_emulated", BENCH), ("quire", QUIRE), ("quire_answers", ANSWERS),
                             ("gpu_peers.py", ROOT / "tools/bench/gpu_peers.py"),
                             ("testdata", TESTDATA),
                             ("gpu_queue.md", ROOT / "docs/benchmarks/gpu_queue.md")):
            (bundle / name).symlink_to(target.resolve())
        gpu_manifest.write(bundle, "0 test", "90a")
        return bundle

    def test_run_ends_with_the_full_table(self):
        bundle, out = self.bundle(), self.folder / "out"
        environment = {name: value for name, value in os.environ.items() if name != "QUIRE_TESTDATA"}
        done = subprocess.run([sys.executable, "-B", bundle / "run", "--dry-run", "--prompts", str(PROMPTS), "--out", out],
                              env=environment, capture_output=True, text=True, timeout=280, check=False)
        results = json.loads((out / "results.json").read_text())
        verdicts = {stage["name"]: stage["verdict"] for stage in results["stages"]}
        self.assertEqual(list(verdicts), STAGES)
        # There is no compute-sanitizer on most machines, and no failed test that could run again.
        self.assertEqual({verdicts.pop("racecheck"), verdicts.pop("rerun")} - {"passed"}, {"skipped"}, done.stdout)
        self.assertEqual(set(verdicts.values()), {"passed"}, done.stdout)
        self.assertIn(done.returncode, (0, 75))
        self.assertGreater(len(results["comparison"]), 50)
        for row in results["comparison"]:
            self.assertGreater(float(row[3].split()[0]), 0, row)
            self.assertGreater(row[4], 0, row)
        report = (out / "report.md").read_text()
        self.assertIn("EMULATED", report)
        self.assertTrue(done.stdout.endswith(f"{report}\nresults: {out}\n"))
        with tarfile.open(out / "logs.tar.gz") as archive:
            self.check_answers(archive.extractfile("logs/answers-overlap.txt").read().decode().splitlines())

    def check_answers(self, lines):
        # A fifth of the requests has three choices, and some choices end at a stop token.
        self.assertEqual(len(lines), PROMPTS + 2 * sum(i % 5 == 2 for i in range(PROMPTS)))
        # Each token has its own log-probability and those of the two best tokens.
        tokens = [token for line in lines for token in line.split()[3:]]
        self.assertGreater(len(tokens), len(lines))
        self.assertEqual({token.count(",") for token in tokens}, {2})
        reasons = {line.split()[2] for line in lines}
        self.assertLessEqual({"FINISH_REASON_LENGTH", "FINISH_REASON_STOP_TOKEN"}, reasons)

    def compare(self, one, other):
        paths = [self.folder / "one", self.folder / "other"]
        for path, text in zip(paths, (one, other)):
            path.write_text(text)
        return subprocess.run([ANSWERS, "--compare", *paths], capture_output=True, text=True, check=False)

    def test_one_bit_of_a_log_probability_is_detected(self):
        line = "0 0 FINISH_REASON_LENGTH 5:bf800000,5:bf800000,6:c0000000\n"
        self.assertEqual(self.compare(line, line).returncode, 0)
        done = self.compare(line, line.replace("c0000000", "c0000001"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: 1 of 1 choices differ", done.stderr)
        self.assertEqual(self.compare(line, "").returncode, 1)
        self.assertEqual(self.compare("", "").returncode, 1)


if __name__ == "__main__":
    unittest.main()
