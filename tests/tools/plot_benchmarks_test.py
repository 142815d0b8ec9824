"""The data of docs/benchmarks match their schema, and plots, tables and figures of docs/performance.md match the data.
"""

import copy
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs"))

import benchmark_data  # noqa: E402

GOOD = {"title": "t", "measurements": [{
    "id": "a", "title": "t", "machine": "m", "date": "2026-11-23 10:06 UTC", "versions": {"quire": "v"},
    "commands": ["c"], "method": "m", "columns": ["x", "y"], "rows": [["p", 1], [None, 2.5]]}]}


class SchemaTest(unittest.TestCase):
    def faults(self, **changes):
        document = copy.deepcopy(GOOD)
        for key, value in changes.items():
            document["measurements"][0][key] = value
            if value is None:
                del document["measurements"][0][key]
        return list(benchmark_data.faults("f.json", document))

    def test_good_file_has_no_faults(self):
        self.assertEqual(self.faults(), [])
        self.assertEqual(self.faults(commands=None, program="a loop, not kept"), [])

    def test_each_field_is_required(self):
        for key in ("id", "title", "machine", "date", "method", "versions", "commands", "columns", "rows"):
            self.assertTrue(any(key.rstrip("s") in fault for fault in self.faults(**{key: None})), key)

    def test_each_rule(self):
        for changes, part in (({"date": "yesterday"}, "YYYY-MM-DD"), ({"versions": {"peer": "1"}}, "quire"),
                              ({"commands": []}, "commands"), ({"commands": [" "]}, "commands"),
                              ({"program": "p"}, "exactly one"), ({"notes": "n"}, "notes"),
                              ({"columns": ["x", "x"]}, "distinct"), ({"rows": []}, "no rows"),
                              ({"rows": [["p"]]}, "row 1"), ({"rows": [["p", [1]]]}, "row 1"),
                              ({"rows": [["p", True]]}, "row 1"), ({"speed": 1}, "is not a field")):
            faults = self.faults(**changes)
            self.assertTrue(any("f.json: a: " in fault and part in fault for fault in faults), (changes, faults))

    def test_ids_are_distinct(self):
        document = {"title": "t", "measurements": GOOD["measurements"] * 2}
        self.assertIn("twice", "".join(benchmark_data.faults("f.json", document)))
        self.assertIn("title and measurements", "".join(benchmark_data.faults("f.json", [])))


class PlotTest(unittest.TestCase):
    """Runs the tool on the tree, and on copies with one difference."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "docs" / "benchmarks", self.root / "docs" / "benchmarks")
        shutil.copytree(ROOT / "docs" / "images", self.root / "docs" / "images")
        shutil.copy(ROOT / "docs" / "performance.md", self.root / "docs")

    def run_tool(self, *arguments):
        done = subprocess.run([sys.executable, "-B", ROOT / "tools" / "docs" / "plot_benchmarks.py", "--root",
                               self.root, *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def change(self, identity, what):
        """Adds one to the first row of a measurement of the served load with this text."""
        path = self.root / "docs" / "benchmarks" / "served_load.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = next(m["rows"] for m in document["measurements"] if m["id"] == identity)
        next(row for row in rows if what in row)[4] += 1
        path.write_text(json.dumps(document), encoding="utf-8")

    def test_committed_files_match_the_data(self):
        self.assertEqual(self.run_tool("--check"), (0, ""))

    def test_writing_twice_gives_the_same_bytes(self):
        committed = {path.name: path.read_bytes() for path in (ROOT / "docs" / "images").glob("*.svg")}
        self.assertTrue(committed)
        self.assertEqual(self.run_tool(), (0, ""))
        for name, contents in committed.items():
            self.assertEqual((self.root / "docs" / "images" / name).read_bytes(), contents, name)

    def test_changed_figure_is_detected_in_its_plots(self):
        self.change("zen5-later", "output tokens/s")
        status, output = self.run_tool("--check")
        self.assertEqual(status, 1)
        self.assertIn("served_throughput_light.svg", output)
        self.assertIn("served_throughput_dark.svg", output)
        self.assertNotIn("latency", output)

    def test_figure_without_data_is_detected(self):
        page = self.root / "docs" / "performance.md"
        page.write_text(page.read_text(encoding="utf-8") + "\n98.76 times as fast\n", encoding="utf-8")
        status, output = self.run_tool("--check")
        self.assertEqual(status, 1)
        self.assertIn("98.76", output)

    def test_bad_data_are_neither_drawn_nor_accepted(self):
        (self.root / "docs" / "benchmarks" / "x.json").write_text('{"title": "t"}', encoding="utf-8")
        for arguments in ((), ("--check",)):
            status, output = self.run_tool(*arguments)
            self.assertEqual(status, 1)
            self.assertIn("x.json", output)

    def test_row_used_by_a_plot_is_required(self):
        (self.root / "docs" / "benchmarks" / "served_load.json").unlink()
        status, output = self.run_tool("--check")
        self.assertEqual(status, 1)
        self.assertIn("served_load.json: no measurement", output)

    def test_folder_contains_data_and_the_list_of_predictions(self):
        names = {path.name for path in (ROOT / "docs" / "benchmarks").iterdir()
                 if path.is_file() and path.suffix != ".json"}
        self.assertLessEqual(names, {"gpu_queue.md"})


if __name__ == "__main__":
    unittest.main()
