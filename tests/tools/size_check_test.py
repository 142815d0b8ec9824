"""Trees above and below the limit of tools/checks/size_check.py, as git checkouts and as archives."""

import pathlib
import subprocess
import tempfile
import unittest

from check_case import CheckCase

MIB = 2**20


class SizeCheckTest(CheckCase):
    tool = "size_check.py"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def add(self, name, size):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.root, *arguments], check=True, capture_output=True)

    def check(self):
        return self.run_in(self.root)

    def test_archive(self):
        self.add("a", 40 * MIB - 1)
        self.add("build/object", 50 * MIB)
        self.add("tools/__pycache__/x.pyc", 50 * MIB)
        self.assertEqual(self.check()[0], 0)
        self.add("tests/build/b", 2)
        status, output = self.check()
        self.assertEqual(status, 1)
        self.assertIn("2 files, no git checkout: 40.00 MiB", output)
        self.assertIn("  a: 40.00 MiB", output)

    def test_checkout_counts_tracked_files(self):
        self.git("init")
        self.add("a", 40 * MIB)
        self.add("untracked", 50 * MIB)
        self.git("add", "a")
        self.assertEqual(self.check()[0], 0)
        self.add("folder/b", 1)
        self.git("add", "folder/b")
        status, output = self.check()
        self.assertEqual(status, 1)
        self.assertIn("2 tracked files: 40.00 MiB", output)
        (self.root / "a").unlink()
        self.assertEqual(self.check()[0], 0)

    def test_nothing_to_count_is_a_failure(self):
        self.assertEqual(self.check()[0], 1)
        self.git("init")
        self.assertEqual(self.check()[0], 1)

    def test_failing_git_is_a_failure(self):
        self.add("a", 1)
        (self.root / ".git").write_text("gitdir: nowhere\n", encoding="utf-8")
        self.assertNotEqual(self.check()[0], 0)


if __name__ == "__main__":
    unittest.main()
