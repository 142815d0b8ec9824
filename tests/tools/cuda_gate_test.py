"""The gate over compiled CUDA kernels detects each violation in reports that this test writes."""

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
sys.path[:0] = [str(ROOT / "tools" / "checks"), str(ROOT / "tests" / "gpu")]
import cuda_gate  # noqa: E402
import fat_binary  # noqa: E402
import machine_code  # noqa: E402

# _Z1Kv is K().
REPORT = """ptxas info    : Compiling entry function '_Z1Kv' for 'sm_90'
ptxas info    : Function properties for _Z1Kv
    {stack} bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {shared} bytes smem
"""
CLEAN = {"stack": 0, "spills": 0, "registers": 32, "shared": 16}
TABLE = {"x_cuda.cu": {"instructions": ["HMMA"], "kernels": {"K": {"sm_90": [32, 16]}}}}
# Launches as g++ compiles them: K(), and L<T> with its own class and a number.
HOST = """
struct cudaLaunchConfig_st;
namespace quire {
struct BF16;
namespace {
template <typename T> struct Args { char bytes[288]; };
template <typename T> void L(Args<T>, unsigned) {}
}
}
namespace quire::kernels::cuda {
template <unsigned long... kBytes, typename... P>
[[gnu::noinline]] int Enqueue(const cudaLaunchConfig_st&, void (*kernel)(P...), const P&... args) {
  return kernel(args...), 0;
}
}
void K();
int Launch(const cudaLaunchConfig_st& config) {
  using namespace quire;
  const Args<BF16> args{};
  return kernels::cuda::Enqueue<>(config, K) + kernels::cuda::Enqueue<sizeof(args), 4>(config, L<BF16>, args, 1u);
}
"""
# Output of cuobjdump -elf for K().
ELF = "Fatbin elf code:\narch = sm_90\n.nv.info\n.nv.info._Z1Kv\n\tAttribute:\tEIATTR_PARAM_CBANK\n"
# The machine code of K().
CODE = fat_binary.of_kernels({"_Z1Kv": b"code"}, 90)


class GateCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "host.o")
            subprocess.run(["g++", "-std=c++20", "-O1", "-c", "-x", "c++", "-", "-o", path],
                           input=HOST, text=True, check=True)
            cls.object = path.read_bytes()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.objects = self.build / "kernels/x/CMakeFiles/quire_kernels_x_gpu.dir"
        self.objects.mkdir(parents=True)
        self.table = self.build / "resources.json"

    def write_object(self, listing, elf=ELF, code=CODE):
        """Writes an object with the fat binary `code`, and a cuobjdump that prints `listing` and `elf` for it. Returns the tool's path."""
        (self.objects / "x_cuda.cu.o").write_bytes(self.object + code)
        tool = self.build / "cuobjdump"
        tool.write_text(f"#!/bin/sh\ncat <<'END'\n{elf}{listing}\nEND\n")
        tool.chmod(0o755)
        return str(tool)

    def gate(self, report, table=None, *arguments):
        (self.objects / "x_cuda.cu.o.ptxas").write_text(report)
        self.table.write_text(json.dumps(TABLE if table is None else table))
        output = io.StringIO()
        with mock.patch.object(cuda_gate, "TABLE", self.table), \
                mock.patch.object(cuda_gate, "RUNS", self.build), \
                mock.patch.object(sys, "argv", ["gate", str(self.build), *arguments]), \
                contextlib.redirect_stdout(output):
            status = cuda_gate.main()
        return status, output.getvalue()


class KernelHashesTest(GateCase):
    def hashes(self, code):
        """Returns status and output of the gate over an object, and the hashes that it records."""
        self.write_object("", code=code)
        status, output = self.gate(REPORT.format(**CLEAN))
        recorded = self.build / "kernel_hashes.json"
        return status, output, json.loads(recorded.read_text()) if recorded.exists() else None

    def test_hash_is_that_of_the_code(self):
        status, output, first = self.hashes(CODE)
        self.assertEqual((status, output), (0, "machine code: 1 hashes, 0 of them passed on a GPU\n"
                                               "1 checks, 0 failed; kernels: 1 for sm_90\n"))
        self.assertRegex(first["x_cuda.cu"]["K"]["sm_90"], "^[0-9a-f]{16}$")
        # Other kernels, capabilities and PTX do not matter.
        others = fat_binary.fat_binary(
            fat_binary.entry(1, 80, b"PTX"), fat_binary.entry(2, 80, fat_binary.cubin({"_Z1Kv": b"other"})),
            fat_binary.entry(2, 90, fat_binary.cubin({"_Z1Lv": b"L", "_Z1Kv": b"code"})))
        self.assertEqual(self.hashes(others)[2], first)
        self.assertNotEqual(self.hashes(fat_binary.of_kernels({"_Z1Kv": b"Code"}, 90))[2], first)

    def test_passed_hashes_are_counted(self):
        value = self.hashes(CODE)[2]["x_cuda.cu"]["K"]["sm_90"]
        for verdict, count in (("passed", 1), ("FAILED", 0)):
            (self.build / "2026-gpu.json").write_text(json.dumps({"measurements": [
                {"id": "stages", "machine": "GPU", "rows": []},
                {"id": "code", "machine": "GPU", "rows": [["_Z1Kv", 90, value, verdict]]}]}))
            self.assertIn(f"1 hashes, {count} of them passed on a GPU", self.hashes(CODE)[1])

    def test_missing_or_compressed_code_is_an_error(self):
        for code, message in ((b"", "x_cuda.cu: K for sm_90: no machine code in the object"),
                              (fat_binary.of_kernels({"_Z1Kv": b"code"}, 80), "K for sm_90: no machine code"),
                              (fat_binary.fat_binary(fat_binary.entry(2, 90, b"packed")), "a cubin is compressed")):
            status, output, _ = self.hashes(code)
            self.assertEqual(status, 1)
            self.assertIn(message, output)


class CudaGateTest(GateCase):
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

    def test_report_without_figures_fails(self):
        status, output = self.gate(REPORT.format(**CLEAN).splitlines()[0])
        self.assertEqual(status, 1)
        self.assertIn("ptxas reported nothing", output)

    def test_too_many_kernels(self):
        report = "".join(REPORT.format(**CLEAN).replace("_Z1Kv", f"_Z4K{i:03}v")
                         for i in range(121))
        status, output = self.gate(report)
        self.assertEqual(status, 1)
        self.assertIn("121 kernels for sm_90, at most 120", output)

    def test_no_reports_is_a_failure(self):
        self.assertEqual(subprocess.run([sys.executable, ROOT / "tools/checks/cuda_gate.py", self.build],
                                        capture_output=True).returncode, 1)

    def test_machine_code(self):
        ptx = ".version 9.0\n mma.sync.aligned\n"
        for code, status in (("Function : K\n HMMA.16816 R1\n" + ptx, 0),
                             ("Function : K\n FFMA\n" + ptx, 1),
                             ("Function : K\n HMMA.1 R1\n.version 9.0\n", 1),
                             ("Function : K\n HMMA.1 R1\n", 1),
                             ("Function : K\n HMMA.1 R1\n STL [R1]\n" + ptx, 1), ("", 1)):
            tool = self.write_object(code)
            self.assertEqual(
                self.gate(REPORT.format(**CLEAN), None, "--cuobjdump", tool)[0], status, code)


class ArgumentsTest(GateCase):
    # L<BF16>(Args<BF16>, unsigned int) in nvcc's mangling, with a class in an unnamed namespace.
    NAME = "_ZN5quire12_GLOBAL__N_11LINS_4BF16EEEvNS0_4ArgsIT_EEj"

    def arguments(self, *sizes, name=NAME):
        """Returns the gate's result for machine code with arguments of these sizes."""
        elf = ELF.replace("_Z1Kv", name) + "".join(
            f"\tValue:\tIndex : 0x0\tOrdinal : {ordinal:#x}\tOffset  : 0x0\tSize    : {size:#x}\n"
            for ordinal, size in reversed(list(enumerate(sizes))))
        tool = self.write_object("Function : K\n HMMA.1 R1\n" + PTX, elf, fat_binary.of_kernels({self.NAME: b"code"}, 90))
        table = {"x_cuda.cu": {"instructions": [], "kernels": {"L<BF16>": {"sm_90": [32, 16]}}}}
        return self.gate(REPORT.format(**CLEAN).replace("_Z1Kv", self.NAME), table, "--cuobjdump", tool)

    def test_sizes_of_both_sides_agree(self):
        status, output = self.arguments(288, 4)
        self.assertEqual(status, 0, output)

    def test_class_with_two_layouts_is_named_with_both_sizes(self):
        status, output = self.arguments(464, 4)
        self.assertEqual(status, 1)
        self.assertIn("x_cuda.cu: void quire::(anonymous namespace)::L<quire::BF16>(quire::(anonymous namespace)::Args<"
                      "quire::BF16>, unsigned int) for sm_90: takes arguments of [464, 4] bytes, the host passes "
                      "[288, 4]", output)

    def test_argument_order_counts(self):
        self.assertIn("takes arguments of [4, 288] bytes", self.arguments(4, 288)[1])

    def test_kernel_without_a_launch_fails(self):
        status, output = self.arguments(4, name="_Z1Kj")
        self.assertEqual(status, 1)
        self.assertIn("x_cuda.cu: K(unsigned int) for sm_90: the host launches no kernel with these arguments", output)

    def test_machine_code_without_argument_sizes_fails(self):
        tool = self.write_object("Function : K\n HMMA.1 R1\n" + PTX, "arch = sm_90\n")
        status, output = self.gate(REPORT.format(**CLEAN), None, "--cuobjdump", tool)
        self.assertEqual(status, 1)
        self.assertIn("x_cuda.cu: the machine code describes the arguments of 0 of 1 kernels", output)


# A kernel whose tile loop branches over a copy, has a wait after the kernel's end, and a rare path. Addresses are 16
# apart. `{extra}` is one more instruction of every tile.
LOOP = """	code for sm_90
		Function : _Z1Kv
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   ISETP.GE.AND P0, PT, R0, 0x20, PT ;
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R2], R3 ;
        /*0030*/              @!P1 BRA 0x120 ;
        /*0040*/               @P0 BRA 0x60 ;
        /*0050*/                   LDGSTS.E.128 [R4], desc[UR4][R6.64] ;
        /*0060*/                   {extra} ;
        /*0070*/                   LDSM.16.M88.4 R8, [R5] ;
        /*0080*/                   HMMA.16816.F32.BF16 R12, R8, R10, R12 ;
        /*0090*/              @!P2 BRA 0xd0 ;
        /*00a0*/                   FADD R12, R12, R13 ;
        /*00b0*/                   FADD R12, R12, R13 ;
        /*00c0*/                   FADD R12, R12, R13 ;
        /*00d0*/                   UIADD3 UR4, UR4, 0x1, URZ ;
        /*00e0*/               @P3 BRA 0x20 ;
        /*00f0*/                   STG.E desc[UR4][R2.64], R12 ;
        /*0100*/                   EXIT ;
        /*0110*/                   BRA 0x110;
        /*0120*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R2], R3 ;
        /*0130*/              @!P1 BRA 0x120 ;
        /*0140*/                   BRA 0x40 ;
"""
PTX = ".version 9.0\n mma.sync.aligned\n"
# Wait, branch, branch, copy, extra, LDSM, HMMA, branch, UIADD3, branch: ten instructions, without the wait after the
# end and the sums.
TILE = {"all": 10, "tensor": 1, "shared": 1, "global": 1, "integer": 2, "control": 5}
LOOPS = {"K": {"tile_bytes": 40, "warps": 8, "instructions_per_tile": {"sm_90": TILE},
               "instructions_per_byte": {"sm_90": 2.0}}}


class LoopTest(GateCase):
    def loop(self, extra="MOV R1, R2", loops=LOOPS, arguments=(), listing=LOOP):
        tool = self.write_object(listing.replace("{extra}", extra) + PTX)
        table = {"x_cuda.cu": TABLE["x_cuda.cu"] | {"loops": loops}}
        return self.gate(REPORT.format(**CLEAN), table, "--cuobjdump", tool, *arguments)

    def test_loop_as_in_the_table_passes(self):
        self.assertEqual(self.loop()[0], 0, self.loop()[1])

    def test_additional_instruction_fails(self):
        twice = "MOV R1, R2 ;\n        /*0068*/                   MOV R1, R3"
        status, output = self.loop(twice)
        self.assertEqual(status, 1)
        self.assertIn("x_cuda.cu: loop of K for sm_90: instructions per tile: all 11, the table has 10; "
                      "integer 3, the table has 2", output)

    def test_other_instruction_class_of_equal_length_fails(self):
        self.assertIn("float 1, the table has 0", self.loop("FADD R1, R2, R3")[1])

    def test_missing_instruction_fails(self):
        longer = {"K": LOOPS["K"] | {"instructions_per_tile": {"sm_90": TILE | {"all": 11, "control": 6}}}}
        self.assertIn("all 10, the table has 11; control 5, the table has 6", self.loop(loops=longer)[1])

    def test_tensor_core_kernel_requires_a_row(self):
        status, output = self.loop(loops={})
        self.assertEqual(status, 1)
        self.assertIn("K for sm_90: uses tensor cores, but resources.json has no loop for it", output)

    def test_row_without_its_loop_fails(self):
        straight = LOOP.replace("@P3 BRA 0x20", "@P3 BRA 0x100")
        self.assertIn("K for sm_90: no loop with products", self.loop(listing=straight)[1])

    def test_bytes_follow_from_the_count(self):
        wrong = {"K": LOOPS["K"] | {"instructions_per_byte": {"sm_90": 1.0}}}
        self.assertIn("2.0 instructions per byte, the table has another number", self.loop(loops=wrong)[1])

    def test_unknown_instruction_is_reported(self):
        self.assertIn("TCGEN05 is in no class", self.loop("TCGEN05 R1")[1])
        table = LOOP.replace("@P3 BRA 0x20", "BRX R2 -0x20")
        self.assertIn("BRX at 0xe0, a jump through a table", self.loop(listing=table)[1])

    def test_update_writes_what_the_next_run_allows(self):
        bare = {"K": {"tile_bytes": 40, "warps": 8}}
        self.assertEqual(self.loop(loops=bare)[0], 1)
        self.assertEqual(self.loop(loops=bare, arguments=["--update"])[0], 0)
        self.assertEqual(json.loads(self.table.read_text())["x_cuda.cu"]["loops"], LOOPS)

    def test_load_count_identifies_the_path(self):
        without = {"K": LOOPS["K"] | {"loads": 0, "instructions_per_tile": {"sm_90": {
            "all": 9, "tensor": 1, "shared": 1, "integer": 2, "control": 5}}, "instructions_per_byte": {"sm_90": 1.8}}}
        self.assertEqual(self.loop(loops=without)[0], 0, self.loop(loops=without)[1])
        self.assertIn("no iteration has 2 loads; iterations have [0, 1]",
                      self.loop(loops={"K": LOOPS["K"] | {"loads": 2}})[1])

    def test_inner_loop_counts_per_iteration(self):
        inner = LOOP.replace("@!P2 BRA 0xd0", "@P2 BRA 0x80")  # the product runs twice
        twice = {"K": LOOPS["K"] | {"trips": 2, "instructions_per_tile": {"sm_90": {
            "all": 15, "tensor": 2, "shared": 1, "global": 1, "float": 3, "integer": 2, "control": 6}},
            "instructions_per_byte": {"sm_90": 3.0}}}
        status, output = self.loop(loops=twice, listing=inner)
        self.assertEqual(status, 0, output)

    def test_loop_of_other_warps(self):
        # Other warps run a loop of two conversions around one of three that runs twice.
        others = LOOP.replace("        /*0110*/                   BRA 0x110;\n", "") + """
        /*0150*/                   LDG.E R0, desc[UR4][R2.64] ;
        /*0160*/                   F2FP.BF16.F32.PACK_AB R1, R2, R3 ;
        /*0170*/                   STS.128 [R4], R8 ;
        /*0180*/               @P0 BRA 0x160 ;
        /*0190*/               @P1 BRA 0x150 ;
        /*01a0*/                   EXIT ;
"""
        others = others.replace("        /*0000*/                   S2R R0, SR_TID.X ;",
                                "        /*0000*/               @P4 BRA 0x150 ;")
        counts = {"all": 8, "shared": 2, "global": 1, "float": 2, "control": 3}
        table = {"K": LOOPS["K"] | {"beside": {"opcode": "F2FP", "trips": 2,
                                               "instructions_per_tile": {"sm_90": counts}}}}
        status, output = self.loop(loops=table, listing=others)
        self.assertEqual(status, 0, output)
        self.assertIn("no loop with F2FP in the warps without products", self.loop(loops=table)[1])
        more = others.replace("STS.128 [R4], R8 ;", "STS.128 [R4], R8 ;\n        /*0178*/                   FADD R0, R0, R1 ;")
        status, output = self.loop(loops=table, listing=more)
        self.assertEqual(status, 1)
        self.assertIn("loop of K for sm_90: instructions per tile of warps without products: all 10, the table has 8; "
                      "float 4, the table has 2", output)

    def test_bsync_continues_at_the_target_of_its_bssy(self):
        code = machine_code.functions("""	code for sm_90
		Function : K
        /*0000*/                   BSSY B0, 0x40 ;
        /*0010*/               @P0 BRA 0x50 ;
        /*0020*/                   NOP ;
        /*0030*/                   BSYNC B0 ;
        /*0040*/                   EXIT ;
        /*0050*/                   NOP ;
        /*0060*/                   BSYNC B0 ;
""")["K", "sm_90"]
        graph = machine_code.Graph(code)
        ends = [graph.index[0x40]]
        self.assertEqual([sorted(graph.next[graph.index[a]]) for a in (0x20, 0x50)], [ends, ends])



class LauncherTest(unittest.TestCase):
    def launch(self, output, status=0):
        with tempfile.TemporaryDirectory() as folder:
            compiler = pathlib.Path(folder, "nvcc")
            compiler.write_text(f"#!/bin/sh\ntouch x.o\ncat <<'END' >&2\n{output}\nEND\nexit {status}\n")
            compiler.chmod(0o755)
            result = subprocess.run([ROOT / "cmake/nvcc_report.sh", compiler, "-c", "-o", "x.o"],
                                    cwd=folder, capture_output=True, text=True)
            return result.returncode, result.stderr, os.path.exists(f"{folder}/x.o")

    def test_information_is_kept_but_not_printed(self):
        self.assertEqual(self.launch("ptxas info    : Used 3 registers"), (0, "", True))

    def test_warnings_and_status_pass_through(self):
        status, shown, _ = self.launch("ptxas warning : bad", 2)
        self.assertEqual((status, shown), (2, "ptxas warning : bad\n"))

    def test_both_remarks_fail(self):
        for remark in ("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to "
                       "maintain minimum register requirements.",
                       "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
                       "instructions are serialized due to insufficient register resources"):
            status, shown, kept = self.launch(remark)
            self.assertEqual((status, kept), (1, False))
            self.assertIn(remark, shown)


if __name__ == "__main__":
    unittest.main()
