"""Shared base of the tests of checks: a temporary tree, and running a check on it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "checks"


class CheckCase(unittest.TestCase):
    """Subclasses set `tool`, and `clean`, which maps file names to the content of a tree without violations."""

    tool = ""
    clean = {}

    def run_on(self, changes, *arguments):
        """Runs the check on `clean` with `changes` applied on top (None deletes). Returns (exit status, output)."""
        with tempfile.TemporaryDirectory() as root:
            self.write(pathlib.Path(root), {**self.clean, **changes})
            return self.run_in(root, *arguments)

    def run_in(self, root, *arguments):
        done = subprocess.run([sys.executable, "-B", TOOLS / self.tool, "--root", root, *arguments],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    @staticmethod
    def write(root, files):
        for name, content in files.items():
            if content is not None:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content, encoding="utf-8")

    def accepts(self, changes):
        status, output = self.run_on(changes)
        self.assertEqual(status, 0, output)

    def refuses(self, changes, *parts):
        """Asserts that the check fails and that one line of its output contains every part."""
        status, output = self.run_on(changes)
        self.assertEqual(status, 1, output)
        self.assertTrue(any(all(part in line for part in parts) for line in output.splitlines()),
                        f"no line with {parts} in:\n{output}")
