"""bench_kernels_cuda on the emulated device, which has 1 GiB. A shape that does not fit fails alone, not the others."""

import json
import pathlib
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(sys.argv.pop(1))


class BenchTest(unittest.TestCase):
    def test_shape_without_memory_fails_alone(self):
        done = subprocess.run(
            [PROGRAM, "--benchmark_filter=^BM_DeviceCopy/(2147483648|tiny/4096)/",
             "--benchmark_min_time=0.001", "--benchmark_format=json"],
            capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        large, tiny = json.loads(done.stdout)["benchmarks"]
        self.assertEqual(large["name"], "BM_DeviceCopy/2147483648/manual_time")
        self.assertTrue(large["error_message"].startswith(
            "out of device memory: cannot allocate 2147483648 bytes of device memory"), large)
        self.assertEqual(tiny["name"], "BM_DeviceCopy/tiny/4096/manual_time")
        self.assertNotIn("error_message", tiny)
        self.assertGreater(tiny["bytes_per_second"], 0)


if __name__ == "__main__":
    unittest.main()
