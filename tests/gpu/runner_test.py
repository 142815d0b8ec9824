"""The runner of a bundle (tools/gpu_run) with programs that hang, crash or lose the GPU."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fat_binary  # noqa: E402
from fake_bundle import DEVICE, MEASURE, RUNNER, Bundle  # noqa: E402

sys.path.insert(0, str(RUNNER))
import run  # noqa: E402

HANG = "exec tail --pid=$PPID -f /dev/null"  # ends after the runner
RUN = {"output_throughput": 80, "median_ttft_ms": 3, "p99_ttft_ms": 4, "median_itl_ms": 2, "p99_itl_ms": 6, "failed": 0}


class RunnerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "bundle"
        self.folder.mkdir()
        os.environ["TMPDIR"] = folder.name  # for the logs of a killed runner

    def bundle(self, **options):
        return Bundle(self.folder, **options)

    def stage(self, results, name):
        return next(stage for stage in results["stages"] if stage["name"] == name)

    def items(self, results, name):
        return {item["name"]: item for item in self.stage(results, name)["items"]}

    def test_passing_programs_pass(self):
        bundle = self.bundle()
        bundle.tests({"ATest": "exit 0", "AttentionRulesTest": "exit 0", "AttentionSm90Test": "exit 0"})
        status, output, results = bundle.run("facts", "tests", "shapes")
        self.assertEqual(status, 0, output)
        self.assertEqual([stage["verdict"] for stage in results["stages"]], ["passed"] * 3)
        self.assertIn("tests-ATest.log", bundle.logs())
        self.assertIn("# Fake 90", output)
        self.assertIn((bundle.out / "report.md").read_text(), output)

    def test_suites_of_new_kernels_run_first(self):
        names = ["ATest", "AttentionBitsTest", "AttentionRulesTest", "Maps/AttentionLatentTest", "LinearFp8Test",
                 "AttentionSm90Test"]
        self.assertEqual(run.sort_suites(names), [*reversed(names[1:]), "ATest"])
        bundle = self.bundle()
        started = self.folder.parent / "started"
        bundle.tests({name: f"echo {name} >>{started}" for name in names})
        bundle.run("tests")
        self.assertCountEqual(started.read_text().split(), names)

    def test_figures_stand_beside_their_predictions(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps(DEVICE)}'", measure=f"{MEASURE}\necho \"$1 1 ns\"")
        bundle.program("gpu_peers.py", "exit 0")
        (self.folder / "gpu_peers.py").write_text(
            "import json, sys\nassert sys.argv[2:] == ['BM_C/n:1/']\n"
            "json.dump({'BM_C/n:1': {'seconds': 4e-6}}, open(sys.argv[1], 'w'))\n")
        bundle.daemon(json.dumps(RUN))
        status, output, results = bundle.run("shapes", "torch", "bf16")
        self.assertEqual(status, 0, output)
        self.assertEqual(results["comparison"], [
            ["a product", "BM_C/n:1/", "2 to 4 us", "8 us", 2.0, "4 us"],
            ["a rate", "daemon-bf16-32/output_throughput", "100 tokens/s", "80 tokens/s", 0.8, None],
            ["a gap", "daemon-bf16-32/p99_itl_ms", "5 ms", "6 ms", 1.2, None]])
        self.assertEqual(list(self.items(results, "bf16")),
                         ["make-model", "start", "1 stream", "32 streams", "128 streams", "stop"])
        self.assertIn("bf16-quired.log", bundle.logs())
        row = [cell.strip() for cell in output.splitlines()[-3].split("|")]
        self.assertEqual(row[1:-1], ["a gap", "daemon-bf16-32/p99_itl_ms", "5 ms", "6 ms", "1.2", ""])

    def test_missing_torch_is_one_line(self):
        bundle = self.bundle()
        (self.folder / "gpu_peers.py").write_text("import sys\nprint('torch is not installed')\nsys.exit(77)\n")
        status, output, results = bundle.run("torch")
        self.assertEqual(status, 0, output)
        self.assertIn("torch peers: skipped, torch is not installed", output)
        self.assertEqual([row[3] for row in results["comparison"]], ["not measured"] * 3)

    def test_requests_that_fail_fail_the_stage(self):
        bundle = self.bundle()
        bundle.daemon(json.dumps({**RUN, "failed": 2}))
        status, output, results = bundle.run("target")
        self.assertEqual(status, 1, output)
        self.assertEqual(self.items(results, "target")["daemon-target-128"]["why"], "2 requests failed")

    def test_end_of_the_daemon_is_reported(self):
        bundle = self.bundle()
        bundle.daemon()
        bundle.program("quired", "test \"$1\" != --set && exit 0\necho 'error: bad'; exit 71")
        status, output, _ = bundle.run("bf16")
        self.assertEqual(status, 1, output)
        self.assertIn("bf16 start: FAILED, quired has exited: error: bad", output)

    def test_self_check_runs_if_the_daemon_has_it(self):
        bundle = self.bundle()
        self.assertEqual(self.items(bundle.run("facts")[2], "facts")["self-check"]["verdict"], "skipped")
        for code, verdict in ((0, "passed"), (78, "FAILED")):
            bundle.program("quired", "case $1 in --help) echo ' --self-check';; "
                           f"--self-check) echo error: kernel; exit {code};; esac")
            _, output, results = bundle.run("facts")
            self.assertEqual(self.items(results, "facts")["self-check"]["verdict"], verdict, output)

    def test_hashes_of_passed_machine_code_are_recorded(self):
        kernels = {"_Z1Av": b"a", "_Z1Bv": b"b"}
        old = fat_binary.of_kernels({"_Z1Av": b"a for 8.0"}, 80)
        for daemon_code, ends, verdicts, item in (
                ({"_Z1Av": b"a"}, 0, {"passed"}, "passed"), ({"_Z1Av": b"a"}, 1, {"FAILED"}, "passed"),
                ({"_Z1Av": b"A"}, 0, {"passed"}, "FAILED"), (None, 0, set(), "skipped")):
            bundle = self.bundle()
            bundle.tests({"ATest": f"exit {ends}"})
            for name, code in (("quire_gpu_tests", kernels), ("quired", daemon_code)):
                with open(self.folder / name, "ab") as program:
                    program.write(b"exit 0\n" + old + (fat_binary.of_kernels(code, 90) if daemon_code else b""))
            _, output, results = bundle.run("tests")
            self.assertEqual(self.items(results, "facts")["machine code"]["verdict"], item, output)
            self.assertEqual(set(results["code"]), set(kernels if daemon_code else ()))
            results["stages"].append({"name": "runner", "verdict": "passed"})
            self.assertEqual({row[3] for row in run.report.code_rows(results)}, verdicts)

    def test_missing_or_old_driver_stops_the_run(self):
        for message in ("no CUDA driver is installed; this build needs a driver for CUDA 13.0",
                        "the CUDA driver supports CUDA 12.4; this build needs at least 13.0",
                        "CUDA device 0 (Old) has compute capability 7.5; this build needs at least 8.0"):
            bundle = self.bundle()
            bundle.device(f"echo '{message}' >&2; exit 77")
            status, output, results = bundle.run()
            self.assertEqual(status, 77, output)
            self.assertIn(f"device: FAILED, {message}", output)
            self.assertEqual(self.stage(results, "moe")["skipped"], f"no device: {message}")

    def test_machine_code_must_fit_the_device(self):
        for archs, fits in (("80", False), ("80+ptx", True), ("90a", True), ("100", False)):
            status, output, _ = self.bundle(archs=archs).run("shapes")
            self.assertEqual(status, 0 if fits else 77, output)
            if not fits:
                self.assertIn(f"the bundle has machine code for {archs}, but the device needs 90", output)

    def test_too_little_memory_skips_the_stage(self):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps({**DEVICE, 'free_bytes': 2e9})}'")
        status, output, results = bundle.run("tests")
        self.assertEqual(status, 75, output)
        self.assertEqual(self.stage(results, "tests")["skipped"],
                         "2.0 GB of device memory are free, but the stage needs 4")

    def test_truncated_bundle_is_refused(self):
        bundle = self.bundle()
        bundle.seal()
        quired = self.folder / "quired"
        quired.write_bytes(quired.read_bytes()[:-3])
        status, output, _ = bundle.run(seal=False)
        self.assertEqual(status, 65, output)
        self.assertIn("the bundle is truncated: quired has 14 bytes of 17", output)
        manifest = self.folder / "bundle.txt"
        manifest.write_bytes(manifest.read_bytes()[:40])
        status, output, _ = bundle.run(seal=False)
        self.assertEqual(status, 65, output)
        self.assertIn("the bundle is truncated: bundle.txt has no end", output)

    def test_changed_bytes_are_detected(self):
        bundle = self.bundle()
        bundle.seal()
        bundle.program("quired", "exit 1")
        status, output, _ = bundle.run(seal=False)
        self.assertEqual(status, 65, output)
        self.assertIn("the bundle is damaged: quired has a wrong checksum", output)

    def test_hang_and_crash_cost_one_item_each(self):
        bundle = self.bundle()
        bundle.tests({"ATest": HANG, "BTest": "kill -SEGV $$", "CTest": "exit 0"})
        status, output, results = bundle.run("--item-seconds", "1", "tests")
        self.assertEqual(status, 1, output)
        items = self.items(results, "tests")
        self.assertEqual([items[name]["verdict"] for name in ("ATest", "BTest", "CTest")],
                         ["FAILED", "FAILED", "passed"])
        self.assertEqual(items["ATest"]["why"], "killed after 1 s")
        self.assertIn("ended by signal 11", items["BTest"]["why"])

    def test_failed_suite_runs_once_more_and_stays_failed(self):
        bundle = self.bundle()
        seen = self.folder.parent / "seen"
        bundle.tests({"ATest": f"test -e {seen} || {{ touch {seen}; exit 1; }}", "BTest": "exit 1", "CTest": "exit 0"})
        status, output, results = bundle.run("tests", "rerun")
        self.assertEqual(status, 1, output)
        self.assertEqual({name: item["verdict"] for name, item in self.items(results, "rerun").items()},
                         {"ATest": "passed", "BTest": "FAILED"})
        bundle.tests({"CTest": "exit 0"})
        status, output, results = bundle.run("tests", "rerun")
        self.assertEqual((status, self.stage(results, "rerun")["skipped"]), (0, "no test failed"), output)

    def test_racecheck_is_split_by_kernel(self):
        bundle = self.bundle()
        tools = self.folder.parent / "tools"
        tools.mkdir()
        sanitizer = tools / "compute-sanitizer"
        sanitizer.write_text("#!/bin/sh\ncase \"$*\" in '--tool racecheck --error-exitcode 2 '*BM_B*) "
                             "echo 'ERROR: race'; exit 2;; *'--tool racecheck'*) echo fine; exit 0;; esac\nexit 3\n")
        sanitizer.chmod(0o755)
        os.environ["PATH"], path = f"{tools}:{os.environ['PATH']}", os.environ["PATH"]
        try:
            status, output, results = bundle.run("racecheck")
        finally:
            os.environ["PATH"] = path
        self.assertEqual(status, 1, output)
        self.assertEqual({name: (item["verdict"], item["why"]) for name, item in self.items(results, "racecheck").items()},
                         {"BM_A/tiny/1": ("passed", ""),
                          "BM_B/tiny/2": ("FAILED", "ERROR: race")})

    def shape(self, command):
        bundle = self.bundle()
        bundle.device(f"echo '{json.dumps(DEVICE)}'", measure=command)
        status, output, results = bundle.run("shapes")
        item = self.items(results, "shapes")["BM_C"]
        return status, item["verdict"], item["why"]

    def test_errors_of_a_benchmark(self):
        memory = "BM_C ERROR OCCURRED: 'out of device memory: 9 bytes'"
        maps = "BM_C ERROR OCCURRED: 'no tensor maps on this device'"
        bad = "BM_C ERROR OCCURRED: 'bad'"
        for lines, expected in (([bad], (1, "FAILED", bad)), ([memory], (75, "not run", memory)),
                                ([maps], (0, "skipped", maps)), ([], (1, "FAILED", "the log is empty; is the disk full?")),
                                ([memory, bad], (1, "FAILED", memory))):
            command = "\n".join(f'echo "{line}"' for line in lines) or "true"
            self.assertEqual(self.shape(command), expected)

    def test_shapes_outside_the_queue_run_by_name_only(self):
        _, output, results = self.bundle().run("shapes", "others")
        self.assertEqual(list(self.items(results, "shapes")), ["BM_C"], output)
        self.assertEqual(list(self.items(results, "others")), ["BM_D"], output)

    def test_differing_answers_and_a_silent_daemon_fail_the_stage(self):
        bundle = self.bundle()
        bundle.tests({"LlamaCudaTest": "exit 0"})
        (self.folder / "testdata/models/llama-theta500k-multieos-bf16").mkdir(parents=True)
        bundle.daemon()
        bundle.program("quire_answers", 'test "$1" != --compare || { echo "error: 1 of 2"; exit 1; }')
        status, output, _ = bundle.run("runner")
        self.assertEqual(status, 1, output)
        self.assertIn("runner overlap on and off: FAILED, error: 1 of 2", output)
        bundle.program("quire_answers", 'test "$1" != --address || { echo "error: no"; exit 1; }')
        status, output, _ = bundle.run("runner")
        self.assertEqual(status, 1, output)
        self.assertIn("runner answers-overlap: FAILED, error: no", output)
        self.assertNotIn("overlap on and off", output)

    def test_nothing_starts_after_a_lost_gpu_and_results_stay(self):
        bundle = self.bundle()
        lost = self.folder.parent / "lost"
        bundle.device(f"test -e {lost} && {{ echo 'unspecified launch failure' >&2; exit 1; }};"
                      f" echo '{json.dumps(DEVICE)}'", measure="exit 1")
        bundle.tests({"ATest": "exit 0", "BTest": f"touch {lost}; exit 1"})
        status, output, results = bundle.run("tests", "shapes")
        self.assertEqual(status, 1, output)
        line = "the GPU stopped working after BTest: unspecified launch failure"
        self.assertEqual(results["lost"], line)
        self.assertEqual(self.stage(results, "shapes")["skipped"], line)
        self.assertIn("tests-ATest.log", bundle.logs())

    def test_rest_is_not_run_when_time_is_up(self):
        bundle = self.bundle()
        bundle.tests({f"T{i}Test": HANG for i in range(40)})
        status, output, results = bundle.run("--seconds", "8", "tests")
        self.assertEqual(status, 75, output)
        first, *_, last = self.stage(results, "tests")["items"]
        self.assertEqual((first["verdict"], first["why"]),
                         ("not run", "the time was up before it ended"))
        self.assertEqual((last["verdict"], last["why"]), ("not run", "the time was up"))
        self.assertLess(results["stages"][-1]["seconds"], 8)

    def test_every_stage_keeps_its_limit_and_leaves_time_to_later_ones(self):
        bundle = self.bundle()
        bundle.tests({"ATest": HANG})
        bundle.device(f"echo '{json.dumps(DEVICE)}'", measure="exit 0")
        # 9 s less 5 for the report: the tests get 110 of the 110 + 120 shares of about 4 s.
        status, output, results = bundle.run("--seconds", "9", "tests", "shapes")
        self.assertEqual(status, 1, output)
        self.assertEqual(self.items(results, "tests")["ATest"]["why"], "the time was up before it ended")
        self.assertLess(self.stage(results, "tests")["seconds"], 2.5)
        self.assertEqual(self.items(results, "shapes")["BM_C"]["verdict"], "FAILED")

    def interrupt(self, signal_of):
        """Ends the runner while it runs tests. Returns its exit status and results."""
        bundle = self.bundle()
        bundle.tests({"BTest": "exit 0", "ATest": HANG})
        bundle.seal()
        with subprocess.Popen(bundle.command("facts", "tests"), text=True, stdout=subprocess.PIPE) as process:
            for line in process.stdout:
                if "tests BTest" in line:
                    break
            signal_of(process)
            output = process.stdout.read()
        return process.returncode, output, bundle

    def test_end_of_the_reader_does_not_end_the_run(self):
        bundle = self.bundle()
        bundle.seal()
        with subprocess.Popen(bundle.command("facts", "shapes"), stdout=subprocess.PIPE) as process:
            process.stdout.close()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.stage(bundle.results(), "shapes")["verdict"], "passed")

    def test_interruption_keeps_the_results(self):
        status, output, bundle = self.interrupt(subprocess.Popen.terminate)
        self.assertEqual(status, 75, output)
        self.assertEqual(self.stage(bundle.results(), "facts")["verdict"], "passed")
        self.assertEqual(self.items(bundle.results(), "tests")["BTest"]["verdict"], "passed")
        self.assertIn("interrupted", output)

    def test_interrupted_start_of_a_daemon_is_no_failure(self):
        bundle = self.bundle()
        bundle.daemon()
        bundle.program("quired", f'test "$1" != --set && exit 0\n{HANG}')  # never serves
        bundle.seal()
        with subprocess.Popen(bundle.command("bf16"), text=True, stdout=subprocess.PIPE) as process:
            for line in process.stdout:
                if "bf16 make-model: passed" in line:
                    break
            process.send_signal(signal.SIGHUP)
            output = process.stdout.read()
        self.assertEqual(process.returncode, 75, output)
        self.assertEqual(self.items(bundle.results(), "bf16")["start"]["why"], "interrupted")

    def test_killed_runner_leaves_a_complete_report(self):
        status, _, bundle = self.interrupt(subprocess.Popen.kill)
        self.assertEqual(status, -9)
        verdicts = {stage["name"]: stage["verdict"] for stage in bundle.results()["stages"]}
        self.assertEqual(verdicts, {"facts": "passed", "tests": "not run"})
        text = (bundle.out / "report.md").read_text()
        for part in ("| facts ", "| tests ", "| a gap "):
            self.assertIn(part, text)
        self.assertIn("facts-device.log", bundle.logs())

    def test_results_that_cannot_be_written_are_a_failure(self):
        bundle = self.bundle()
        (bundle.out / "report.md").mkdir(parents=True)
        bundle.seal()
        done = subprocess.run(bundle.command("facts"), text=True, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        place = re.search(r"cannot write the results, the logs are in (\S*): ", done.stdout)[1]
        self.assertTrue(pathlib.Path(place, "facts-device.log").exists())
        shutil.rmtree(place)

    def test_program_that_lists_nothing_fails(self):
        status, output, _ = self.bundle().run("tests")
        self.assertEqual(status, 1, output)
        self.assertIn("tests list: FAILED, the program lists nothing to run", output)

    def test_missing_library_is_named(self):
        bundle = self.bundle()
        line = "quire: error while loading shared libraries: libgrpc.so.29: cannot open"
        bundle.program("quire", f"echo '{line}' >&2; exit 127")
        status, output, _ = bundle.run("facts")
        self.assertEqual(status, 1, output)
        self.assertIn(line, output)

    def test_usage_errors(self):
        bundle = self.bundle()
        for arguments in (["nonsense"], ["--seconds", "0"], ["--nonsense"]):
            done = subprocess.run(bundle.command(*arguments), capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 64, arguments)


if __name__ == "__main__":
    os.environ.pop("QUIRE_TESTDATA", None)
    unittest.main()
