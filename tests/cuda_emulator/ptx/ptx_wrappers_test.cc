// Compares the PTX of each wrapper of kernels/cuda with its host emulation and with formulas.

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/cuda_emulator/kernel_test.h"
#include "tests/cuda_emulator/launch.h"
#include "tests/cuda_emulator/ptx/interpreter.h"
#include "tests/cuda_emulator/ptx/unit.h"
#include "tests/testing/paths.h"

namespace quire::cuda_emulator::ptx {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kPlanted[] = "tests/cuda_emulator/ptx/planted.cu";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns a program of the build folder, which is loaded once.
Program& Loaded(const std::string& name) {
  static auto& programs = *new std::map<std::string, Program>();
  const auto found = programs.find(name);
  if (found != programs.end()) return found->second;
  absl::StatusOr<Program> program =
      Program::Load(ReadFile(absl::StrCat(QUIRE_PTX_FOLDER "/", name, ".ptx")));
  if (!program.ok()) Fatal(absl::StrCat(name, ".ptx: ", program.status().ToString()));
  return programs.emplace(name, *std::move(program)).first->second;
}

const std::vector<std::string>& Programs() {
  static const auto& names =
      *new std::vector<std::string>{"units_80", "units_90a", "units_sm90_90a"};
  return names;
}

// Returns "kernels/cuda/mma.cuh:31" relative to the repository's root. Other paths are unchanged.
std::string Relative(const std::string& text) {
  const std::string root = paths::Source("");
  return absl::StartsWith(text, root) ? text.substr(root.size()) : text;
}
std::set<std::string> TakeExecuted(Program& program) {
  std::set<std::string> lines;
  for (const SourceLine& line : program.TakeExecuted()) lines.insert(Relative(line.ToString()));
  return lines;
}

bool BothNaN(std::uint32_t a, std::uint32_t b) {
  return std::isnan(std::bit_cast<float>(a)) && std::isnan(std::bit_cast<float>(b));
}
// Compares the sign of zero only if the tolerance is 0.
bool SameFloat(std::uint32_t a, std::uint32_t b, float tolerance) {
  const auto x = std::bit_cast<float>(a);
  const auto y = std::bit_cast<float>(b);
  return BothNaN(a, b) || (tolerance > 0 && std::fabs(x - y) <= tolerance * (1.0f + std::fabs(y)));
}
bool SameFloatWithin(std::uint32_t a, std::uint32_t b, std::uint32_t ulps) {
  const std::int64_t distance = std::int64_t{a} - std::int64_t{b};
  return BothNaN(a, b) || (distance <= std::int64_t{ulps} && -distance <= std::int64_t{ulps});
}

// Returns a launch whose threads call `body`.
KernelLaunch LaunchOf(std::function<void()> body) {
  KernelLaunch launch;
  launch.body = [](const void* p) { (*static_cast<const std::function<void()>*>(p))(); };
  launch.arguments = std::make_shared<const std::function<void()>>(std::move(body));
  return launch;
}

class PtxTest : public KernelTest {
 protected:
  // The interpreter's loads and stores are not recorded.
  PtxTest() { CheckNoAccess(); }

  // Returns the output of the unit's kernel in `program`.
  Words RunPtx(const Unit& unit, Program* program, const Words& in) {
    return Launch(
        unit, in, [&](const CUtensorMap& map, const std::uint32_t* from, std::uint32_t* to) {
          alignas(128) std::byte arguments[256] = {};
          std::byte* next = arguments;
          if (unit.map_rank != 0) next = Append(next, map);
          next = Append(Append(next, from), to);
          const bool fits =
              program->ParameterBytes(unit.name) == static_cast<std::uint32_t>(next - arguments);
          EXPECT_TRUE(fits) << unit.name << " has other parameters";
          program->RunThread(unit.name, arguments);
        });
  }
  // Returns the output of its host emulation.
  Words RunEmulation(const Unit& unit, const Words& in) {
    return Launch(
        unit, in, [&](const CUtensorMap& map, const std::uint32_t* from, std::uint32_t* to) {
          unit.map_rank != 0 ? unit.mapped_emulation(map, from, to) : unit.emulation(from, to);
        });
  }

  // Returns "", or a description of the first word that differs under one of several seeds.
  std::string Differs(const Unit& unit, const std::string& program) {
    const auto first = static_cast<std::uint32_t>(GetOptions().seed);
    std::string found;
    for (std::uint32_t i = 0; i < 4 && found.empty(); ++i) {
      found = DiffersUnder(unit, program, first + i);
    }
    UseSeed(first);
    return found;
  }

 private:
  std::string DiffersUnder(const Unit& unit, const std::string& program, std::uint32_t seed) {
    UseSeed(seed);
    std::mt19937 random(seed);
    const Words in = unit.make_input(random);
    Loaded(program).TakeExecuted();
    Loaded(program).TakeHints(unit.name);
    const Words ptx = RunPtx(unit, &Loaded(program), in);
    const Words emulation = RunEmulation(unit, in);
    const auto say = [&](std::size_t i, const char* other, std::uint32_t word) {
      return absl::StrCat("kernel ", unit.name, " of ", program, ".ptx, seed ", seed, ": word ", i,
                          " is 0x", absl::Hex(ptx[i]), ", ", other, " gives 0x", absl::Hex(word),
                          "; inline assembly that ran:\n  ",
                          absl::StrJoin(TakeExecuted(Loaded(program)), "\n  "));
    };
    for (std::size_t i = 0; i < ptx.size(); ++i) {
      const bool same = ptx[i] == emulation[i] ||
                        (unit.is_float && SameFloatWithin(ptx[i], emulation[i], unit.ulps));
      if (!same) return say(i, "the host emulation", emulation[i]);
    }
    const Words expected = unit.expected(in);
    const std::set<std::string> hints = Loaded(program).TakeHints(unit.name);
    if (hints != unit.hints) {
      return absl::StrCat("kernel ", unit.name, " of ", program, ".ptx asks for ",
                          absl::StrJoin(hints, ", "));
    }
    for (std::size_t i = 0; i < ptx.size(); ++i) {
      const bool same = ptx[i] == expected[i] ||
                        (unit.is_float && SameFloat(ptx[i], expected[i], unit.tolerance));
      if (!same) return say(i, "the formula", expected[i]);
    }
    return "";
  }

  template <typename T>
  static std::byte* Append(std::byte* to, const T& argument) {
    std::memcpy(to, &argument, sizeof(argument));
    return to + sizeof(argument);
  }

  template <typename Body>
  Words Launch(const Unit& unit, const Words& in, const Body& body) {
    const DeviceArray<std::uint32_t> from(in);
    const DeviceArray<std::uint32_t> to(unit.expected(in).size());
    const DeviceArray<std::uint32_t> tensor(kTensorWords);
    CUtensorMap map = {};
    if (unit.map_rank != 0) EncodeTensor(tensor.data(), unit.map_rank, &map);
    KernelLaunch launch = LaunchOf([&] { body(map, from.data(), to.data()); });
    launch.name = unit.name;
    launch.blocks_x = unit.shape.blocks_x;
    launch.blocks_y = unit.shape.blocks_y;
    launch.cluster_x = unit.shape.cluster_x;
    launch.threads = unit.shape.threads;
    launch.shared_bytes = unit.shape.shared_bytes;
    launch.programmatic = unit.shape.programmatic;
    EXPECT_EQ(EnqueueKernel(stream_->cuda(), std::move(launch)), cudaSuccess);
    EXPECT_TRUE(stream_->Synchronize().ok());
    return Words(to.data(), to.data() + to.size());
  }
};
using PtxDeathTest = PtxTest;

TEST_F(PtxTest, EveryUnitEqualsItsHostEmulation) {
  for (const std::string& program : Programs()) {
    EXPECT_THAT(Loaded(program).problems(), IsEmpty());
    for (const Unit& unit : Units()) {
      if (!Loaded(program).Has(unit.name)) continue;
      EXPECT_EQ(Differs(unit, program), "");
    }
  }
}

TEST_F(PtxTest, EveryKernelIsListedAsAUnit) {
  std::set<std::string> units;
  std::set<std::string> kernels;
  for (const Unit& unit : Units()) units.insert(unit.name);
  for (const std::string& program : Programs()) {
    for (const std::string& name : Loaded(program).KernelNames()) kernels.insert(name);
  }
  EXPECT_EQ(units, kernels);
}

// Returns the name of the device function that the line declares, or "".
std::string DeclaredFunction(absl::string_view line) {
  if (!absl::StrContains(line, "__device__")) return "";
  const absl::string_view head = line.substr(0, line.find('('));
  return std::string(head.substr(head.rfind(' ') + 1));
}

// True if the source calls a function of exactly this name outside comments.
bool CallsFunction(const std::string& source, const std::string& name) {
  const auto is_of_name = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  for (absl::string_view line : absl::StrSplit(source, '\n')) {
    line = line.substr(0, line.find("//"));
    for (std::size_t at = line.find(name); at != line.npos; at = line.find(name, at + 1)) {
      const std::size_t end = at + name.size();
      const bool begins = at == 0 || !is_of_name(line[at - 1]);
      if (begins && end < line.size() && (line[end] == '(' || line[end] == '<')) return true;
    }
  }
  return false;
}

// The host emulation of the headers replaces all of these functions, with or without assembly.
TEST_F(PtxTest, EveryWrapperIsCalled) {
  const std::string units = ReadFile(paths::Source("tests/cuda_emulator/ptx/units.cu")) +
                            ReadFile(paths::Source("tests/cuda_emulator/ptx/units_sm90.cu"));
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           paths::Source("tests/cuda_emulator/include/kernels/cuda"))) {
    if (entry.path().extension() != ".cuh") continue;
    const std::string emulation = Relative(entry.path());
    const std::string header = emulation.substr(emulation.find("kernels/cuda"));
    for (const absl::string_view line : absl::StrSplit(ReadFile(paths::Source(header)), '\n')) {
      const std::string name = DeclaredFunction(line);
      if (name.empty()) continue;
      ++count;
      EXPECT_TRUE(CallsFunction(units, name))
          << "no unit of tests/cuda_emulator/ptx calls " << name << " of " << header;
    }
  }
  EXPECT_GT(count, 70u);
}

// An inline assembly statement of the source. The compiler attributes it to one of its lines.
struct Statement {
  std::string file;  // below the repository's root
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::string function;  // the last function declared before it

  bool IsAmong(const std::set<std::string>& lines) const {
    for (std::uint32_t line = first; line <= last; ++line) {
      if (lines.contains(absl::StrCat(file, ":", line))) return true;
    }
    return false;
  }
};

std::vector<Statement> FindStatements(const std::string& file) {
  std::vector<Statement> statements;
  std::uint32_t number = 0;
  std::string function;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(ReadFile(paths::Source(file)), '\n')) {
    ++number;
    const absl::string_view code = line.substr(0, line.find("//"));
    const std::string declared = DeclaredFunction(code);
    if (!declared.empty()) function = declared;
    if (absl::StrContains(code, "asm(") || absl::StrContains(code, "asm volatile(")) {
      statements.push_back({.file = file, .first = number, .last = 0, .function = function});
      inside = true;
    }
    if (inside && absl::EndsWith(code, ");")) {
      statements.back().last = number;
      inside = false;
    }
  }
  return statements;
}

TEST_F(PtxTest, EveryInlineAssemblyStatementRuns) {
  std::set<std::string> executed;
  for (const std::string& program : Programs()) {
    Loaded(program).TakeExecuted();
    for (const Unit& unit : Units()) {
      if (!Loaded(program).Has(unit.name)) continue;
      std::mt19937 random(1);
      RunPtx(unit, &Loaded(program), unit.make_input(random));
    }
    executed.merge(TakeExecuted(Loaded(program)));
  }
  for (const Statement& statement : FindStatements(kPlanted)) {
    EXPECT_FALSE(statement.IsAmong(executed)) << "no unit calls " << statement.function;
  }
  std::size_t count = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(paths::Source("kernels"))) {
    const std::string path = entry.path();
    // Headers of CPU instruction sets end in -inl.h and are not device code.
    const bool is_device_code = absl::EndsWith(path, ".cuh") || absl::EndsWith(path, ".cu") ||
                                (absl::EndsWith(path, ".h") && !absl::EndsWith(path, "-inl.h"));
    if (!is_device_code) continue;
    for (const Statement& statement : FindStatements(Relative(path))) {
      ++count;
      EXPECT_TRUE(statement.IsAmong(executed))
          << "no unit of tests/cuda_emulator/ptx runs the assembly of " << statement.function
          << ", " << statement.file << ":" << statement.first;
    }
  }
  EXPECT_GT(count, 30u);
}

// Returns a kernel of one thread with these statements. Their source line is line 7 of a.cu.
std::string OneThread(absl::string_view statements) {
  return absl::StrCat(
      ".version 9.0\n.target sm_90a\n.address_size 64\n"
      ".visible .entry K(.param .u64 K_in, .param .u64 K_out)\n{\n"
      ".reg .pred %p<4>;\n.reg .b32 %r<6>;\n.reg .b64 %rd<6>;\n"
      "ld.param.u64 %rd1, [K_in];\nld.param.u64 %rd2, [K_out];\n"
      "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n.loc 1 7 3\n",
      statements, "\nst.global.u64 [%rd2], %rd3;\nret;\n}\n.file 1 \"a.cu\"\n");
}

TEST(ProgramTest, NamesUnknownInstructions) {
  const std::pair<const char*, const char*> cases[] = {
      {"brev.b32 %r1, %r2", "the opcode is not known"},
      {"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2]",
       "one of .x4 .x2 is expected, not .x1"},
      {"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r2]", "operand 1 is no vector of 2"},
      {"mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %r2",
       ".parity is expected, not .shared::cta"},
      {"cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16, %r2", ".L2::128B is not known here"},
      {"cp.async.cg.shared.global [%r1], [%rd1], 4, %r2", "a copy of 4 bytes"},
      {"shfl.sync.bfly.b32 %r1, %r2, %r3, %r4", "operand 5 is missing"},
      {"add.s32 %r1, %r2, %r3, %r4", "operand 4 is one too many"},
      {"add.sat.s32 %r1, %r2, %r3", "a type is expected, not .sat"},
      {"mov.u32 %r1, %clock", "operand 2 is no value: %clock"},
      {"bra nowhere", "operand 1 is no label"},
      {"setmaxnreg.inc.sync.aligned.u32 50", "a budget of 50 registers"}};
  for (const auto& [statement, problem] : cases) {
    const absl::StatusOr<Program> program = Program::Load(OneThread(absl::StrCat(statement, ";")));
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_THAT(program->problems(),
                ElementsAre(AllOf(StartsWith(absl::StrCat("kernel K at a.cu:7: ", statement, ": ")),
                                  HasSubstr(problem))));
  }
}

TEST(ProgramTest, RejectsUnknownSyntax) {
  const std::pair<const char*, const char*> cases[] = {
      {".local .b8 depot[16];", "PTX line 13: not interpreted: .local"},
      {"@%p9 bra next;", "PTX line 13: no predicate: %p9"},
      {"mov.u32 %r1, ;", "PTX line 13: an operand is empty"},
      {"mov.u32 %r1, 0x1G;", "PTX line 13: not a number: 0x1G"},
      {"{", "PTX ends inside a kernel"}};
  for (const auto& [statement, message] : cases) {
    EXPECT_THAT(std::string(Program::Load(OneThread(statement)).status().message()),
                StartsWith(message));
  }
}

// Instruction forms that nvcc may choose for the units, with results computed by hand. %r1 to %r4
// are 0x80000010, 5, 0xfffffffe and 0x40490fdb. The result is in %rd3.
TEST_F(PtxTest, ArithmeticMatchesResultsComputedByHand) {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"mov.b64 %rd3, {%r2, %r3};", 0xfffffffe00000005},
      {"shr.s32 %r5, %r1, 4; cvt.u64.u32 %rd3, %r5;", 0xf8000001},
      {"shr.s32 %r5, %r1, 40; cvt.u64.u32 %rd3, %r5;", 0xffffffff},
      {"shr.u32 %r5, %r1, 32; cvt.u64.u32 %rd3, %r5;", 0},
      {"shl.b32 %r5, %r2, 30; cvt.u64.u32 %rd3, %r5;", 0x40000000},
      {"mul.wide.s32 %rd3, %r2, %r3;", 0xfffffffffffffff6},
      {"mul.wide.u32 %rd3, %r2, %r3;", 0x4fffffff6},
      {"cvt.u64.u32 %rd4, %r2; mad.wide.s32 %rd3, %r2, %r3, %rd4;", 0xfffffffffffffffb},
      {"mad.lo.s32 %r5, %r2, %r3, %r2; cvt.u64.u32 %rd3, %r5;", 0xfffffffb},
      {"cvt.s64.s32 %rd3, %r3;", 0xfffffffffffffffe},
      {"min.s32 %r5, %r2, %r3; cvt.u64.u32 %rd3, %r5;", 0xfffffffe},
      {"max.u32 %r5, %r2, %r3; cvt.u64.u32 %rd3, %r5;", 0xfffffffe},
      {"neg.s32 %r5, %r2; cvt.u64.u32 %rd3, %r5;", 0xfffffffb},
      {"cvt.u64.u32 %rd4, %r2; bfi.b64 %rd3, %rd4, -1, 8, 4;", 0xfffffffffffff5ff},
      {"setp.lt.s32 %p1, %r3, %r2; selp.b64 %rd3, 7, 9, %p1;", 7},
      {"setp.lt.u32 %p1, %r3, %r2; selp.b64 %rd3, 7, 9, %p1;", 9},
      {"setp.gt.f32 %p1, %r4, 0f40000000; selp.b64 %rd3, 7, 9, %p1;", 7},
      {"setp.eq.s32 %p1, %r2, 5; @!%p1 mov.u64 %rd3, 1; @%p1 mov.u64 %rd3, 2;", 2},
      {"mov.u64 %rd3, 0; again: add.s64 %rd3, %rd3, 3; setp.ne.s64 %p1, %rd3, 12; @%p1 bra again;",
       12},
      {"prmt.b32 %r5, %r1, %r4, 0x0f83; cvt.u64.u32 %rd3, %r5;", 0x10000080}};
  for (const auto& [statements, expected] : cases) {
    absl::StatusOr<Program> program = Program::Load(OneThread(statements));
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_THAT(program->problems(), IsEmpty());
    const DeviceArray<std::uint32_t> in({0x80000010, 5, 0xfffffffe, 0x40490fdb});
    const DeviceArray<std::uint64_t> out(1);
    alignas(128) const void* const arguments[] = {in.data(), out.data()};
    const auto* const bytes = reinterpret_cast<const std::byte*>(arguments);
    KernelLaunch launch = LaunchOf([&] { program->RunThread("K", bytes); });
    launch.name = "K";
    launch.threads = 1;
    EXPECT_EQ(EnqueueKernel(stream_->cuda(), std::move(launch)), cudaSuccess);
    EXPECT_TRUE(stream_->Synchronize().ok());
    EXPECT_EQ(out[0], expected) << statements;
  }
}

// Returns the nth statement of the wrapper with this name.
Statement FindPlanted(absl::string_view function, int nth = 1) {
  for (const Statement& statement : FindStatements(kPlanted)) {
    if (statement.function == function && --nth == 0) return statement;
  }
  ADD_FAILURE() << kPlanted << " has no " << function;
  return {};
}
// Returns a regular expression that matches the statement's lines, "planted.cu:(20|21|22)".
std::string LinesOf(const Statement& statement) {
  std::vector<std::uint32_t> lines;
  for (std::uint32_t line = statement.first; line <= statement.last; ++line) lines.push_back(line);
  return absl::StrCat(statement.file, ":(", absl::StrJoin(lines, "|"), ")");
}

const Unit& FindUnit(absl::string_view name) {
  return *std::find_if(Units().begin(), Units().end(),
                       [&](const Unit& unit) { return unit.name == name; });
}

struct Mistake {
  const char* program;
  const char* wrapper;
  const char* unit;
  const char* message = "";  // of the emulator when it aborts the process
  int nth = 1;
};

// The output of each faulty wrapper differs from the emulation's. The message names the kernel and
// the line.
TEST_F(PtxTest, DetectsFaultsThatChangeValues) {
  const Mistake mistakes[] = {{"planted1_90a", "MmaBF16", "MmaBF16Unit"},
                              {"planted1_90a", "MmaF16", "MmaF16Unit"},
                              {"planted1_90a", "LdMatrixX4Trans", "LdMatrixX4TransUnit"},
                              {"planted1_90a", "LdMatrixX2", "LdMatrixX2Unit"},
                              {"planted1_90a", "Exp2Approx", "ApproxUnit"},
                              {"planted1_90a", "TmaLoad3D", "TmaLoad3DUnit"},
                              {"planted2_90a", "BarrierWait", "BarrierRingUnit"},
                              {"planted2_90a", "CpAsyncWait", "CpAsync16Unit"},
                              {"planted2_90a", "LoadStreaming", "LoadUnit"},
                              {"planted3_90a", "BarrierWait", "BarrierRingUnit", "", 2}};
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.wrapper);
    EXPECT_THAT(Differs(FindUnit(mistake.unit), mistake.program),
                AllOf(HasSubstr(absl::StrCat("kernel ", mistake.unit, " of")),
                      ContainsRegex(LinesOf(FindPlanted(mistake.wrapper, mistake.nth)))));
  }
}

// The kernel writes a register of A before it waits for the product.
TEST_F(PtxDeathTest, DetectsWritesToRegistersOfAPendingProduct) {
  const Unit& unit = FindUnit("WgmmaRegistersN64Unit");
  std::string text = ReadFile(QUIRE_PTX_FOLDER "/units_sm90_90a.ptx");
  const std::size_t product = text.find("wgmma.mma_async", text.find(".entry " + unit.name));
  const std::size_t first = text.find("}, {", product) + 4;
  const std::string reg = text.substr(first, text.find(',', first) - first);
  const std::string commit = "wgmma.commit_group.sync.aligned;";
  text.insert(text.find(commit, product) + commit.size(), "mov.b32 " + reg + ", 7;");
  absl::StatusOr<Program> program = Program::Load(text);
  ASSERT_TRUE(program.ok()) << program.status();
  std::mt19937 random(1);
  const Words in = unit.make_input(random);
  EXPECT_DEATH(RunPtx(unit, &*program, in), "a register of a wgmma product under way was written");
}

// The emulator aborts the process for each of these faults.
TEST_F(PtxDeathTest, DetectsFaultsThatTheEmulatorRejects) {
  const Mistake mistakes[] = {
      {"planted1_90a", "CpAsync16", "CpAsync16Unit", "are outside the .* bytes of shared memory"},
      {"planted1_90a", "CpAsync4", "CpAsync4Unit", "cp.async of 4 bytes reads 16: all or none"},
      {"planted1_90a", "NamedArrive", "NamedBarrierUnit", "ids are 1 to 15"},
      {"planted1_90a", "E4M3ToF16", "E4M3Unit", "e5m2x2 .*: .f32 is expected, not .e5m2x2"},
      {"planted1_90a", "LowerRegisters", "RegistersUnit", "setmaxnreg.inc from 168 to 40"},
      {"planted1_90a", "BarrierArriveIn", "ClusterUnit", "at an address that is not mapa's"},
      {"planted1_90a", "WgmmaShared", "WgmmaSharedN64Unit", "A is transposed"},
      {"planted3_90a", "BarrierExpect", "BulkLoadUnit",
       "bulk copies|more landed than were announced"},
      {"planted2_90a", "BarrierArriveAfterCpAsync", "BulkLoadUnit",
       ".noinc is expected, not .shared::cta"},
      {"planted2_90a", "WgmmaRegisters", "WgmmaRegistersN64Unit", "a scale of -1 for B"}};
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.wrapper);
    EXPECT_DEATH(Differs(FindUnit(mistake.unit), mistake.program),
                 absl::StrCat("kernel ", mistake.unit, ".*(", mistake.message, ").*\n.*",
                              LinesOf(FindPlanted(mistake.wrapper, mistake.nth))));
  }
}

}  // namespace
}  // namespace quire::cuda_emulator::ptx
