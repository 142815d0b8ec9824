"""The runner's comparison of two daemons, with real ones on the emulated device and with answers that differ."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fake_bundle import Bundle  # noqa: E402

RUNNER, QUIRED, QUIRE, ANSWERS, TESTDATA = map(pathlib.Path, sys.argv[1:6])
del sys.argv[1:6]
FIXTURE = "models/llama-theta500k-multieos-bf16"
PROMPTS = 24


class AnswersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "bundle"
        self.folder.mkdir()
        self.bundle = Bundle(RUNNER, self.folder)
        self.bundle.tests({"LlamaCudaTest": "exit 0"})
        for name, program in (("quired", QUIRED), ("quire", QUIRE), ("quire_answers", ANSWERS)):
            (self.folder / name).unlink()
            (self.folder / name).symlink_to(program)
        (self.folder / "testdata/models").mkdir(parents=True)

    def run_runner(self):
        status, output, results, names = self.bundle.run("--prompts", str(PROMPTS), "runner", timeout=280)
        stage = next(stage for stage in results["stages"] if stage["name"] == "runner")
        return status, output, {item["name"]: item for item in stage["items"]}, names

    def test_overlap_changes_no_answer(self):
        (self.folder / "testdata" / FIXTURE).symlink_to(TESTDATA / FIXTURE)
        status, output, items, names = self.run_runner()
        self.assertEqual(status, 0, output)
        self.assertEqual(list(items), [
            "LlamaCudaTest", "overlap on start", "answers-overlap", "overlap on stop",
            "overlap off start", "answers-one-step", "overlap off stop", "overlap on and off"])
        self.assertIn("results/answers-overlap.txt", names)
        lines = self.bundle.result("answers-overlap.txt").splitlines()
        # A fifth of the requests has three choices, and some choices end at a stop token.
        self.assertEqual(len(lines), PROMPTS + 2 * sum(i % 5 == 2 for i in range(PROMPTS)))
        # Each token has its own log-probability and those of the two best tokens.
        tokens = [token for line in lines for token in line.split()[3:]]
        self.assertGreater(len(tokens), len(lines))
        self.assertEqual({token.count(",") for token in tokens}, {2})
        reasons = {line.split()[2] for line in lines}
        self.assertLessEqual({"FINISH_REASON_LENGTH", "FINISH_REASON_STOP_TOKEN"}, reasons)

    def test_is_skipped_without_its_fixture(self):
        status, output, items, _ = self.run_runner()
        self.assertEqual(items["overlap on and off"]["verdict"], "skipped", output)
        self.assertEqual(status, 0, output)

    def compare(self, one, other):
        paths = [self.folder / "one", self.folder / "other"]
        for path, text in zip(paths, (one, other)):
            path.write_text(text)
        return subprocess.run([ANSWERS, "--compare", *paths], capture_output=True, text=True,
                              check=False)

    def test_detects_one_bit_of_a_log_probability(self):
        line = "0 0 FINISH_REASON_LENGTH 5:bf800000,5:bf800000,6:c0000000\n"
        self.assertEqual(self.compare(line, line).returncode, 0)
        done = self.compare(line, line.replace("c0000000", "c0000001"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: 1 of 1 choices differ", done.stderr)
        self.assertEqual(self.compare(line, "").returncode, 1)
        self.assertEqual(self.compare("", "").returncode, 1)


if __name__ == "__main__":
    unittest.main()
