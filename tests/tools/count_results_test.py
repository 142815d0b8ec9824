"""How scripts/count_results.py summarizes the files that the test runs write."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "count_results.py"

CTEST = """<testsuite name="(empty)" tests="4" failures="{failures}">
<testcase name="a_test" classname="a_test" time="1" status="{a}"><system-out/></testcase>
<testcase name="lint" classname="lint" time="1" status="run"/>
<testcase name="b_test" classname="b_test" time="0" status="{b}">{b_child}</testcase>
</testsuite>"""
GTEST = """<testsuites tests="3"><testsuite name="A">
<testcase name="One" status="run" result="completed" classname="A"/>
<testcase name="Two" status="run" result="skipped" classname="A"><skipped message="no"/></testcase>
<testcase name="Three" status="run" result="completed" classname="A">{child}</testcase>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest">
<testcase classname="test_x" name="one"/>
<testcase classname="test_x" name="two">{child}</testcase>
</testsuite></testsuites>"""


class CountResultsTest(unittest.TestCase):
    def count(self, files, failed_steps=0):
        """Returns (exit status, last line, whole output)."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (pathlib.Path(folder) / name).write_text(content, encoding="utf-8")
            done = subprocess.run([sys.executable, SCRIPT, str(failed_steps), folder],
                                  capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()[-1], done.stdout + done.stderr

    def ctest(self, a="run", b="run", b_child=""):
        return CTEST.format(failures=0, a=a, b=b, b_child=b_child)

    def test_cases_count_once(self):
        status, last, output = self.count({"ctest.xml": self.ctest(), "a_test.xml":
                                           GTEST.format(child=""), "pytest.xml":
                                           PYTEST.format(child="")})
        self.assertEqual((status, last), (0, "6 passed, 0 failed"))
        self.assertIn("1 skipped", output)

    def test_failed_case_is_named(self):
        status, last, output = self.count({"ctest.xml": self.ctest(a="fail"), "a_test.xml":
                                           GTEST.format(child="<failure/>")})
        self.assertEqual((status, last), (1, "3 passed, 1 failed"))
        self.assertIn("A.Three", output)

    def test_process_failure_after_its_cases_counts(self):
        status, last, output = self.count({"ctest.xml": self.ctest(a="fail"),
                                           "a_test.xml": GTEST.format(child="")})
        self.assertEqual((status, last), (1, "4 passed, 1 failed"))
        self.assertIn("a_test (the process)", output)

    def test_binary_without_results_counts(self):
        status, last, _ = self.count({"ctest.xml": self.ctest(b="fail", b_child="<failure/>")})
        self.assertEqual((status, last), (1, "2 passed, 1 failed"))

    def test_unbuilt_binary_counts(self):
        child = '<skipped message="Unable to find executable"/>'
        status, last, _ = self.count({"ctest.xml": self.ctest(b="notrun", b_child=child)})
        self.assertEqual((status, last), (1, "2 passed, 1 failed"))

    def test_python_failures_and_errors_count(self):
        for child in ("<failure/>", "<error/>"):
            status, last, _ = self.count({"pytest.xml": PYTEST.format(child=child)})
            self.assertEqual((status, last), (1, "1 passed, 1 failed"))

    def test_failed_steps_count(self):
        status, last, _ = self.count({"ctest.xml": self.ctest()}, failed_steps=2)
        self.assertEqual((status, last), (1, "3 passed, 2 failed"))

    def test_no_results_is_a_failure(self):
        self.assertEqual(self.count({})[:2], (1, "0 passed, 0 failed"))


if __name__ == "__main__":
    unittest.main()
