"""nvcc compiles a unit from the sources of a bundle alone, and the kernels equal those of the build."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "bench"), str(ROOT / "tools" / "checks")]
import cuda_gate  # noqa: E402
import gpu_sources  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
UNITS = ("rope_cuda.cu", "attention_decode_sm90.cu")  # one of each kind


class SourcesTest(unittest.TestCase):
    def test_units_compile_from_the_pack_alone(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name, "sources")
            self.assertEqual(gpu_sources.pack(BUILD, folder), [])
            files = [path for path in folder.rglob("*") if path.is_file()]
            self.assertLess(sum(path.stat().st_size for path in files), 3 << 20)
            units = {path.name for path in files if path.suffix == ".cu"}
            table = json.loads(cuda_gate.TABLE.read_text())
            self.assertEqual(units, set(table))
            environment = {key: os.environ[key] for key in ("PATH", "NVCC", "HOME") if key in os.environ}
            for unit in UNITS:
                path = next(folder.rglob(unit)).relative_to(folder)
                done = subprocess.run([folder / "rebuild", path], cwd="/", env=environment,
                                      capture_output=True, text=True, timeout=300, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue((folder / f"build/{unit}.o").exists())
                kernels = table[unit]["kernels"]
                self.assertEqual(
                    sorted(map(int, re.findall(r"Used (\d+) registers", done.stdout + done.stderr))),
                    sorted(use[0] for archs in kernels.values() for use in archs.values()))


if __name__ == "__main__":
    unittest.main()
