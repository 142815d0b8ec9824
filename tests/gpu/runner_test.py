"""The runner of a bundle (tools/gpu_run) with programs that hang, crash or lose the GPU."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fake_bundle import DEVICE, Bundle, gpu_manifest  # noqa: E402

RUNNER = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
HANG = "exec tail -f /dev/null"


class RunnerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "bundle"
        self.folder.mkdir()

    def bundle(self, **options):
        return Bundle(RUNNER, self.folder, **options)

    def stage(self, results, name):
        return next(stage for stage in results["stages"] if stage["name"] == name)

    def test_all_is_well(self):
        bundle = self.bundle()
        bundle.tests({"ATest": "exit 0", "AttentionSm90Test": "exit 0"})
        status, output, results, names = bundle.run("facts", "smoke", "tests")
        self.assertEqual(status, 0, output)
        self.assertIn("Fake 90", output)
        self.assertEqual([stage["verdict"] for stage in results["stages"]], ["passed"] * 3)
        self.assertIn("results/smoke-BM_A-tiny-1.log", names)
        self.assertFalse((self.folder.parent / "results.tar.gz.parts").exists())
        self.assertTrue(output.rstrip().splitlines()[-1].startswith("results: "))

    def test_speed_and_the_daemon(self):
        bundle = self.bundle()
        (self.folder / "gpu_peers.py").write_text("print('torch')\n")
        ready = self.folder.parent / "ready"
        bundle.program("quire", f'test "$7" != health || test -e {ready}')
        bundle.program("quired", "test \"$1\" = --version && exit 0\ntail -f /dev/null &\n"
                       f"trap 'kill $!; exit 0' TERM\ntouch {ready}\nwait")
        status, output, results, names = bundle.run("speed", "daemon")
        self.assertEqual(status, 0, output)
        self.assertEqual([item["name"] for item in self.stage(results, "speed")["items"]],
                         ["peers", "BM_C"])
        self.assertEqual([item["name"] for item in self.stage(results, "daemon")["items"]],
                         ["make-model", "start", "1 stream", "32 streams", "128 streams", "stop"])
        self.assertIn("results/daemon-quired.log", names)

    def test_a_daemon_that_ends_is_told(self):
        bundle = self.bundle()
        bundle.program("quire", 'test "$7" != health')
        bundle.program("quired", "test \"$1\" = --version && exit 0\necho 'error: bad'; exit 71")
        status, output, _, _ = bundle.run("daemon")
        self.assertEqual(status, 1, output)
        self.assertIn("daemon start: FAILED, quired has exited: error: bad", output)

    def test_no_driver_and_an_old_one_are_said_and_nothing_runs(self):
        for message in ("no CUDA driver is installed; this build needs a driver for CUDA 13.0",
                        "the CUDA driver supports CUDA 12.4; this build needs at least 13.0",
                        "CUDA device 0 (Old) has compute capability 7.5; this build needs at least 8.0"):
            bundle = self.bundle()
            bundle.device(f"echo '{message}' >&2; exit 77")
            status, output, results, _ = bundle.run()
            self.assertEqual(status, 77, output)
            self.assertIn(f"device: FAILED, {message}", output)
            self.assertEqual(self.stage(results, "daemon")["skipped"], f"no device: {message}")

    def test_a_bundle_for_another_target_is_refused(self):
        for archs, fits in (("80", False), ("80+ptx", True), ("90a", True), ("100", False)):
            status, output, _, _ = self.bundle(archs=archs).run("smoke")
            self.assertEqual(status, 0 if fits else 77, output)
            if not fits:
                line = f"the bundle has machine code for {archs}, but the device needs 90"
                self.assertIn(line, output)

    def test_too_little_memory_skips_the_stage(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps({**DEVICE, 'free_bytes': 2e9})}'")
        status, output, results, _ = bundle.run("smoke", "tests")
        self.assertEqual(status, 75, output)
        self.assertEqual(self.stage(results, "smoke")["verdict"], "passed")
        self.assertEqual(self.stage(results, "tests")["skipped"],
                         "2.0 GB of device memory are free, but the stage needs 4")

    def test_a_cut_bundle_is_refused(self):
        bundle = self.bundle()
        gpu_manifest.write(self.folder, "0 test", "90a")
        quired = self.folder / "quired"
        quired.write_bytes(quired.read_bytes()[:-3])
        status, output, _, _ = bundle.run(seal=False)
        self.assertEqual(status, 65, output)
        self.assertIn("the bundle is truncated: quired has 14 bytes of 17", output)
        manifest = self.folder / "bundle.txt"
        manifest.write_bytes(manifest.read_bytes()[:40])
        status, output, _, _ = bundle.run(seal=False)
        self.assertEqual(status, 65, output)
        self.assertIn("the bundle is truncated: bundle.txt has no end", output)

    def test_other_bytes_are_found(self):
        bundle = self.bundle()
        gpu_manifest.write(self.folder, "0 test", "90a")
        bundle.program("quired", "exit 1")
        status, output, _, _ = bundle.run(seal=False)
        self.assertEqual(status, 65, output)
        self.assertIn("the bundle is damaged: quired has a wrong checksum", output)

    def test_a_hang_and_a_crash_cost_one_item_each(self):
        bundle = self.bundle()
        bundle.tests({"ATest": HANG, "BTest": "kill -SEGV $$", "CTest": "exit 0"})
        status, output, results, _ = bundle.run("--item-seconds", "1", "tests")
        self.assertEqual(status, 1, output)
        items = {item["name"]: item for item in self.stage(results, "tests")["items"]}
        self.assertEqual([items[name]["verdict"] for name in ("ATest", "BTest", "CTest")],
                         ["FAILED", "FAILED", "passed"])
        self.assertEqual(items["ATest"]["why"], "killed after 1 s")
        self.assertIn("ended by signal 11", items["BTest"]["why"])

    def test_an_error_of_a_benchmark_is_a_failure(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps(DEVICE)}'", tiny="echo \"BM_B ERROR OCCURRED: 'bad'\"")
        status, output, _, _ = bundle.run("smoke")
        self.assertEqual(status, 1, output)
        self.assertIn("smoke BM_B/tiny/2: FAILED, BM_B ERROR OCCURRED: 'bad'", output)

    def test_a_shape_without_memory_is_not_run_and_said(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps(DEVICE)}'",
                      tiny="echo \"BM_B ERROR OCCURRED: 'out of device memory: 9 bytes'\"")
        status, output, results, _ = bundle.run("smoke")
        self.assertEqual(status, 75, output)
        verdicts = {item["name"]: item["verdict"] for item in self.stage(results, "smoke")["items"]}
        self.assertEqual(verdicts, {"BM_A/tiny/1": "passed", "BM_B/tiny/2": "not run"})
        self.assertIn("BM_B/tiny/2: BM_B ERROR OCCURRED: 'out of device memory: 9 bytes'", output)

    def test_a_shape_that_needs_tensor_maps_is_skipped_elsewhere(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps(DEVICE)}'",
                      tiny="echo \"BM_B ERROR OCCURRED: 'no tensor maps on this device'\"")
        status, output, results, _ = bundle.run("smoke")
        self.assertEqual(status, 0, output)
        verdicts = {item["name"]: item["verdict"] for item in self.stage(results, "smoke")["items"]}
        self.assertEqual(verdicts, {"BM_A/tiny/1": "passed", "BM_B/tiny/2": "skipped"})

    def test_a_benchmark_that_says_nothing_has_failed(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps(DEVICE)}'", tiny="true")
        status, output, _, _ = bundle.run("smoke")
        self.assertEqual(status, 1, output)
        self.assertIn("the log is empty; is the disk full?", output)

    def test_a_shape_without_memory_hides_no_error(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps(DEVICE)}'",
                      tiny="echo \"BM_B ERROR OCCURRED: 'out of device memory: 9 bytes'\"\n"
                           "echo \"BM_C ERROR OCCURRED: 'bad'\"")
        status, output, _, _ = bundle.run("smoke")
        self.assertEqual(status, 1, output)

    def test_answers_that_differ_and_a_daemon_that_does_not_answer_fail_the_stage(self):
        bundle = self.bundle()
        bundle.tests({"LlamaCudaTest": "exit 0"})
        (self.folder / "testdata/models/llama-theta500k-multieos-bf16").mkdir(parents=True)
        ready = self.folder.parent / "ready"
        bundle.program("quire", f'test "$7" != health || test -e {ready}')
        bundle.program("quired", 'test "$1" = --version && exit 0\ntail -f /dev/null &\n'
                       f"trap 'kill $!; rm {ready}; exit 0' TERM\ntouch {ready}\nwait")
        bundle.program("quire_answers", 'test "$1" != --compare || { echo "error: 1 of 2"; exit 1; }')
        status, output, results, _ = bundle.run("runner")
        self.assertEqual(status, 1, output)
        self.assertIn("runner overlap on and off: FAILED, error: 1 of 2", output)
        bundle.program("quire_answers", 'test "$1" != --address || { echo "error: no"; exit 1; }')
        status, output, results, _ = bundle.run("runner")
        self.assertEqual(status, 1, output)
        self.assertIn("runner answers-overlap: FAILED, error: no", output)
        self.assertNotIn("overlap on and off", output)

    def test_after_a_lost_gpu_nothing_starts_and_results_stay(self):
        bundle = self.bundle()
        lost = self.folder.parent / "lost"
        bundle.device(f"test -e {lost} && {{ echo 'unspecified launch failure' >&2; exit 1; }};"
                      f" echo '{json.dumps(DEVICE)}'", tiny=f"touch {lost}; exit 1")
        bundle.tests({"ATest": "exit 0"})
        status, output, results, names = bundle.run("smoke", "tests")
        self.assertEqual(status, 1, output)
        line = "the GPU is lost since BM_B/tiny/2: unspecified launch failure"
        self.assertEqual(results["lost"], line)
        self.assertEqual(self.stage(results, "tests")["skipped"], line)
        self.assertIn("results/smoke-BM_A-tiny-1.log", names)

    def test_when_time_is_up_the_rest_is_not_run(self):
        bundle = self.bundle()
        bundle.tests({f"T{i}Test": HANG for i in range(40)})
        status, output, results, _ = bundle.run("--minutes", "0.1", "tests")
        self.assertEqual(status, 75, output)
        first, *_, last = self.stage(results, "tests")["items"]
        self.assertEqual((first["verdict"], first["why"]),
                         ("not run", "the time was up before it ended"))
        self.assertEqual((last["verdict"], last["why"]), ("not run", "the time was up"))
        self.assertLess(results["stages"][-1]["seconds"], 6)

    def test_results_so_far_outlive_an_interruption(self):
        bundle = self.bundle()
        bundle.tests({"ATest": HANG, "BTest": "exit 0"})
        gpu_manifest.write(self.folder, "0 test", "90a")
        with subprocess.Popen([self.folder / "run", "smoke", "tests"], cwd=self.folder.parent,
                              text=True, stdout=subprocess.PIPE) as process:
            for line in process.stdout:
                if "smoke BM_B" in line:
                    break
            process.terminate()
            output = process.stdout.read()
        self.assertEqual(process.returncode, 75, output)
        with tarfile.open(self.folder.parent / "results.tar.gz") as archive:
            results = json.load(archive.extractfile("results/results.json"))
        self.assertEqual(self.stage(results, "smoke")["verdict"], "passed")
        self.assertIn("interrupted", output)

    def test_a_program_that_lists_nothing_is_a_failure(self):
        status, output, _, _ = self.bundle().run("tests")
        self.assertEqual(status, 1, output)
        self.assertIn("tests list: FAILED, the program lists nothing to run", output)

    def test_a_missing_library_is_named(self):
        bundle = self.bundle()
        line = "quire: error while loading shared libraries: libgrpc.so.29: cannot open"
        bundle.program("quire", f"echo '{line}' >&2; exit 127")
        status, output, _, _ = bundle.run("facts")
        self.assertEqual(status, 1, output)
        self.assertIn(line, output)

    def test_a_stage_that_is_none_and_one_without_emulator_are_usage_errors(self):
        self.bundle()
        for arguments in (["nonsense"], ["--emulated", "daemon"], ["--minutes", "0"]):
            done = subprocess.run([self.folder / "run", *arguments], cwd=self.folder.parent,
                                  capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 64, arguments)


if __name__ == "__main__":
    os.environ.pop("QUIRE_TESTDATA", None)
    unittest.main()
