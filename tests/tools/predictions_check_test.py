"""The check of the predictions page detects names that do not exist and incomplete rows."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import predictions_check  # noqa: E402

ROW = "| a rate | `BM_Linear/n:1/` | B / C | 3 us |"
PAGE = """# Predictions

| symbol | what |
|---|---|
| C | `BM_Gone` is looked up in no table without the column |

| what | measured by | formula | {expected} |
|---|---|---|---|
{row}
"""


class PredictionsCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bench = self.program("bench", "BM_Linear/n:1/m:1/manual_time")
        self.tests = self.program("tests", "Shapes/ATest.\n  Works/0  # GetParam() = 1\n  Works/1\nBTest.\n  Fails")

    def program(self, name, output):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
        path.chmod(0o755)
        return str(path)

    def check(self, row, expected="expected"):
        page = self.folder / "gpu_queue.md"
        page.write_text(PAGE.format(row=row, expected=expected))
        output = io.StringIO()
        arguments = ["check", "--bench", self.bench, "--tests", self.tests]
        resources = self.folder / "resources.json"
        resources.write_text('{"x.cu": {"loops": {"K": {"instructions_per_tile": {"sm_90": {"all": 455}}}}}, "y.cu": {}}')
        with mock.patch.object(predictions_check, "PAGE", page), mock.patch.object(sys, "argv", arguments), \
                mock.patch.object(predictions_check, "RESOURCES", resources), contextlib.redirect_stdout(output):
            return predictions_check.main(), output.getvalue()

    def test_names_that_exist_pass(self):
        for name in ("BM_Linear/n:1/", "BM_Linear", "Shapes/ATest.Works/1", "Shapes/ATest.*", "BTest.Fails", "run facts",
                     "daemon-bf16-32/p99_itl_ms"):
            status, output = self.check(ROW.replace("BM_Linear/n:1/", name))
            self.assertEqual((status, output), (0, "predictions_check: 1 rows, 0 violations\n"), name)

    def test_counts_match_the_table(self):
        self.assertEqual(self.check(ROW.replace("B / C", "8 n / f, n = 455"))[0], 0)
        for formula in ("8 n / f, n = 456", "6 instructions beside 45"):
            status, output = self.check(ROW.replace("B / C", formula))
            self.assertEqual(status, 1)
            self.assertIn("no loop in resources.json has", output)

    def test_names_that_do_not_exist_fail(self):
        for name, fault in (("BM_Linear/n:2/", "no such benchmark"), ("BM_Gone", "no such benchmark"),
                            ("ATest.Works", "no such test"), ("CTest.*", "no such test"),
                            ("run speedy", "the runner has no such stage"),
                            ("daemon-bf16-33/p99_itl_ms", "the runner measures no such figure")):
            status, output = self.check(ROW.replace("BM_Linear/n:1/", name))
            self.assertEqual(status, 1, name)
            self.assertIn(f"gpu_queue.md:9: {name}: {fault}\n", output)
        status, output = self.check(ROW.replace("`BM_Linear/n:1/`", "`BM_Linear/n:1/`, `BM_Linear/n:2/`"))
        self.assertEqual(status, 1, output)

    def test_row_requires_measurement_formula_and_expectation(self):
        for text, fault in (("| a rate | by hand | B / C | 3 us |", 'names no measurement in "measured by"'),
                            ("| a rate | `free memory` | B / C | 3 us |", 'names no measurement in "measured by"'),
                            ("| a rate | `BM_Linear` |  | 3 us |", "has no formula"),
                            ("| a rate | `BM_Linear` | B / C |  |", "has no expectation")):
            status, output = self.check(text)
            self.assertEqual(status, 1, text)
            self.assertIn(f"gpu_queue.md:9: {fault}\n", output)

    def test_expectation_of_a_compared_figure_has_a_unit(self):
        column = "expected on an H100"
        for expected in ("3 us", "1.5 to 2 ms", "900 tokens/s"):
            self.assertEqual(self.check(ROW.replace("3 us", expected), column)[0], 0, expected)
        for expected in ("3", "about 3 us", "3 hours"):
            status, output = self.check(ROW.replace("3 us", expected), column)
            self.assertEqual(status, 1, expected)
            self.assertIn(f'gpu_queue.md:9: "{expected}" is not a number or range in us, ms or tokens/s', output)

    def test_page_without_rows_fails(self):
        self.assertEqual(self.check("")[0], 1)


if __name__ == "__main__":
    unittest.main()
