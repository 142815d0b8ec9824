"""driver.cc finds an injected fault, leaves the input that triggers it, and is deterministic for a seed."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv.pop()).resolve()


class DriverTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "corpus").mkdir()
        (self.folder / "corpus" / "small").write_text("5")
        self.input = self.folder / f"{PROGRAM.name}.input"

    def run_driver(self, *arguments):
        return subprocess.run(
            [str(PROGRAM), *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )

    def test_finds_the_fault_and_keeps_its_input(self):
        self.assertLess(self.run_driver("-runs=1000000", "-seed=1", "corpus").returncode, 0)
        found = self.input.read_bytes()
        self.assertGreater(int(found), 1000)
        self.input.rename(self.folder / "found")
        self.assertLess(self.run_driver("found").returncode, 0)
        self.assertLess(self.run_driver("-runs=1000000", "-seed=1", "corpus").returncode, 0)
        self.assertEqual(self.input.read_bytes(), found)

    def test_corpus_without_fault_passes_and_leaves_no_files(self):
        done = self.run_driver("corpus")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 runs in", done.stdout)
        self.assertFalse(self.input.exists())

    def test_bad_arguments_are_errors(self):
        (self.folder / "empty").mkdir()
        for arguments in (["-secnds=1", "corpus"], ["-seconds=x", "corpus"], ["empty"], ["nothing"], []):
            self.assertEqual(self.run_driver(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
