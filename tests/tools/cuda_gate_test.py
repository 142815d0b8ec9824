"""The gate over compiled CUDA kernels finds what it is there for, on reports that are written here."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import cuda_gate  # noqa: E402

# _Z1Kv is K().
REPORT = """ptxas info    : Compiling entry function '_Z1Kv' for 'sm_90'
ptxas info    : Function properties for _Z1Kv
    {stack} bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {shared} bytes smem
"""
CLEAN = {"stack": 0, "spills": 0, "registers": 32, "shared": 16}
TABLE = {"x_cuda.cu": {"instructions": ["HMMA"], "kernels": {"K": {"sm_90": [32, 16]}}}}


class CudaGateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.objects = self.build / "kernels/x/CMakeFiles/quire_kernels_x_gpu.dir"
        self.objects.mkdir(parents=True)
        self.table = self.build / "resources.json"

    def gate(self, report, table=None, *arguments):
        (self.objects / "x_cuda.cu.o.ptxas").write_text(report)
        self.table.write_text(json.dumps(TABLE if table is None else table))
        output = io.StringIO()
        with mock.patch.object(cuda_gate, "TABLE", self.table), \
                mock.patch.object(sys, "argv", ["gate", str(self.build), *arguments]), \
                contextlib.redirect_stdout(output):
            status = cuda_gate.main()
        return status, output.getvalue()

    def test_clean_report_passes(self):
        status, output = self.gate(REPORT.format(**CLEAN))
        self.assertEqual((status, output), (0, "1 checks, 0 failed; kernels: 1 for sm_90\n"))

    def test_violations_are_named(self):
        for change, message in (({"stack": 8}, "8 bytes of stack"), ({"spills": 4}, "4 of spills"),
                                ({"registers": 33}, "33 registers"), ({"shared": 17}, "17 bytes")):
            status, output = self.gate(REPORT.format(**CLEAN | change))
            self.assertEqual(status, 1)
            self.assertIn(f"x_cuda.cu: K for sm_90: ", output)
            self.assertIn(message, output)

    def test_table_and_kernels_must_agree(self):
        self.assertIn("not in resources.json", self.gate(REPORT.format(**CLEAN), {})[1])
        gone = {"x_cuda.cu": {"instructions": [], "kernels": {"K": {"sm_90": [32, 16]},
                                                             "L": {"sm_90": [1, 0]}}}}
        status, output = self.gate(REPORT.format(**CLEAN), gone)
        self.assertEqual(status, 1)
        self.assertIn("L for sm_90 is in the table but not compiled", output)

    def test_a_report_without_figures_fails(self):
        status, output = self.gate(REPORT.format(**CLEAN).splitlines()[0])
        self.assertEqual(status, 1)
        self.assertIn("ptxas reported nothing", output)

    def test_too_many_kernels(self):
        report = "".join(REPORT.format(**CLEAN).replace("_Z1Kv", f"_Z4K{i:03}v")
                         for i in range(105))
        status, output = self.gate(report)
        self.assertEqual(status, 1)
        self.assertIn("105 kernels for sm_90, at most 104", output)

    def test_no_reports_is_a_failure(self):
        self.assertEqual(subprocess.run([sys.executable, ROOT / "tools/checks/cuda_gate.py", self.build],
                                        capture_output=True).returncode, 1)

    def test_machine_code(self):
        tool = self.build / "cuobjdump"
        (self.objects / "x_cuda.cu.o").write_text("")
        ptx = ".version 9.0\n mma.sync.aligned\n"
        for code, status in (("Function : K\n HMMA.16816 R1\n" + ptx, 0),
                             ("Function : K\n FFMA\n" + ptx, 1),
                             ("Function : K\n HMMA.1 R1\n.version 9.0\n", 1),
                             ("Function : K\n HMMA.1 R1\n", 1),
                             ("Function : K\n HMMA.1 R1\n STL [R1]\n" + ptx, 1), ("", 1)):
            tool.write_text(f"#!/bin/sh\ncat <<'END'\n{code}\nEND\n")
            tool.chmod(0o755)
            self.assertEqual(
                self.gate(REPORT.format(**CLEAN), None, "--cuobjdump", str(tool))[0], status, code)


class LauncherTest(unittest.TestCase):
    def launch(self, output, status=0):
        with tempfile.TemporaryDirectory() as folder:
            compiler = pathlib.Path(folder, "nvcc")
            compiler.write_text(f"#!/bin/sh\ntouch x.o\ncat <<'END' >&2\n{output}\nEND\nexit {status}\n")
            compiler.chmod(0o755)
            result = subprocess.run([ROOT / "cmake/nvcc_report.sh", compiler, "-c", "-o", "x.o"],
                                    cwd=folder, capture_output=True, text=True)
            return result.returncode, result.stderr, os.path.exists(f"{folder}/x.o")

    def test_information_is_kept_and_not_shown(self):
        self.assertEqual(self.launch("ptxas info    : Used 3 registers"), (0, "", True))

    def test_warnings_and_status_pass_through(self):
        status, shown, _ = self.launch("ptxas warning : bad", 2)
        self.assertEqual((status, shown), (2, "ptxas warning : bad\n"))

    def test_the_two_remarks_fail(self):
        for remark in ("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to "
                       "maintain minimum register requirements.",
                       "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
                       "instructions are serialized due to insufficient register resources"):
            status, shown, kept = self.launch(remark)
            self.assertEqual((status, kept), (1, False))
            self.assertIn(remark, shown)


if __name__ == "__main__":
    unittest.main()
