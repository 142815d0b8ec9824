// The PTX of each wrapper of kernels/cuda against its twin in the emulator, and against formulas.

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

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
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPlanted[] = "tests/cuda_emulator/ptx/planted.cu";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A program of the build folder, loaded once.
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

// "kernels/cuda/mma.cuh:31" below the repository's root; other files as they are.
std::string Relative(std::string text) {
  const std::string root = paths::Source("");
  return absl::StartsWith(text, root) ? text.substr(root.size()) : text;
}
std::set<std::string> TakeExecuted(Program& program) {
  std::set<std::string> lines;
  for (const SourceLine& line : program.TakeExecuted()) lines.insert(Relative(line.ToString()));
  return lines;
}

bool SameFloat(std::uint32_t a, std::uint32_t b, float tolerance) {
  const auto x = std::bit_cast<float>(a);
  const auto y = std::bit_cast<float>(b);
  if (a == b || (std::isnan(x) && std::isnan(y))) return true;
  return std::fabs(x - y) <= tolerance * (1.0f + std::fabs(y));
}
bool SameWithin(std::uint32_t a, std::uint32_t b, std::uint32_t ulps) {
  const std::int64_t distance = std::int64_t{a} - std::int64_t{b};
  return distance <= std::int64_t{ulps} && -distance <= std::int64_t{ulps};
}

class PtxTest : public KernelTest {
 protected:
  // What the unit's kernel in `program` gives.
  Words RunPtx(const Unit& unit, const std::string& program_name, const Words& in) {
    Program& program = Loaded(program_name);
    KernelLaunch launch = Shape(unit);
    // Below 9.0 a launch overlaps nothing, and the wrapper is empty.
    launch.programmatic = launch.programmatic && absl::StrContains(program_name, "90a");
    return Launch(std::move(launch), unit, in,
                  [&](const CUtensorMap& map, const std::uint32_t* from, std::uint32_t* to) {
                    alignas(128) std::byte arguments[256] = {};
                    std::byte* next = arguments;
                    if (unit.map_rank != 0) next = Append(next, map);
                    next = Append(Append(next, from), to);
                    const bool fits = program.ParameterBytes(unit.name) ==
                                      static_cast<std::uint32_t>(next - arguments);
                    EXPECT_TRUE(fits) << unit.name << " has other parameters";
                    program.RunThread(unit.name, arguments);
                  });
  }
  // What its twin gives.
  Words RunTwin(const Unit& unit, const Words& in) {
    return Launch(Shape(unit), unit, in,
                  [&](const CUtensorMap& map, const std::uint32_t* from, std::uint32_t* to) {
                    unit.map_rank != 0 ? unit.mapped_twin(map, from, to) : unit.twin(from, to);
                  });
  }

  // Empty, or the first word that differs.
  std::string Differs(const Unit& unit, const std::string& program, std::uint32_t seed) {
    UseSeed(seed);
    std::mt19937 random(seed);
    const Words in = unit.make_input(random);
    Loaded(program).TakeExecuted();
    Loaded(program).TakePolicies(unit.name);
    const Words ptx = RunPtx(unit, program, in);
    const Words twin = RunTwin(unit, in);
    const auto say = [&](std::size_t i, const char* other, std::uint32_t word) {
      return absl::StrCat("kernel ", unit.name, " of ", program, ".ptx, seed ", seed, ": word ", i,
                          " is 0x", absl::Hex(ptx[i]), ", ", other, " gives 0x", absl::Hex(word),
                          "; inline assembly that ran:\n  ",
                          absl::StrJoin(TakeExecuted(Loaded(program)), "\n  "));
    };
    for (std::size_t i = 0; i < ptx.size(); ++i) {
      if (!SameWithin(ptx[i], twin[i], unit.ulps) && !SameFloat(ptx[i], twin[i], 0.0f)) {
        return say(i, "the twin", twin[i]);
      }
    }
    const Words expected = unit.expected(in);
    if (expected.size() != ptx.size()) return absl::StrCat(unit.name, ": not as many words");
    if (Loaded(program).TakePolicies(unit.name) != unit.policies) {
      return absl::StrCat("kernel ", unit.name, " of ", program, ".ptx uses other policies of L2");
    }
    for (std::size_t i = 0; i < ptx.size(); ++i) {
      const bool same = unit.tolerance == 0.0f ? ptx[i] == expected[i]
                                               : SameFloat(ptx[i], expected[i], unit.tolerance);
      if (!same && !SameFloat(ptx[i], expected[i], 0.0f)) return say(i, "the formula", expected[i]);
    }
    return "";
  }

 private:
  template <typename T>
  static std::byte* Append(std::byte* to, const T& argument) {
    std::memcpy(to, &argument, sizeof(argument));
    return to + sizeof(argument);
  }

  static KernelLaunch Shape(const Unit& unit) {
    return {.name = unit.name,
            .blocks_x = unit.shape.blocks_x,
            .blocks_y = unit.shape.blocks_y,
            .threads = unit.shape.threads,
            .shared_bytes = unit.shape.shared_bytes,
            .programmatic = unit.shape.programmatic,
            .body = {}};
  }

  template <typename Body>
  Words Launch(KernelLaunch launch, const Unit& unit, const Words& in, const Body& body) {
    const DeviceArray<std::uint32_t> from(in);
    const DeviceArray<std::uint32_t> to(unit.out_words);
    const DeviceArray<std::uint32_t> tensor(kTensorWords);
    CUtensorMap map = {};
    if (unit.map_rank != 0) EncodeTensor(tensor.data(), unit.map_rank, &map);
    launch.body = [&] { body(map, from.data(), to.data()); };
    EXPECT_EQ(EnqueueKernel(stream_->cuda(), std::move(launch)), cudaSuccess);
    EXPECT_TRUE(stream_->Synchronize().ok());
    return Words(to.data(), to.data() + to.size());
  }
};
using PtxDeathTest = PtxTest;

TEST_F(PtxTest, EveryUnitGivesWhatItsTwinGives) {
  for (const std::string& program : Programs()) {
    EXPECT_THAT(Loaded(program).problems(), IsEmpty());
    for (const Unit& unit : Units()) {
      if (!Loaded(program).Has(unit.name)) continue;
      for (std::uint32_t seed = 1; seed <= 4; ++seed) EXPECT_EQ(Differs(unit, program, seed), "");
    }
  }
}

TEST_F(PtxTest, EveryKernelIsAUnit) {
  std::set<std::string> units;
  std::set<std::string> kernels;
  for (const Unit& unit : Units()) units.insert(unit.name);
  for (const std::string& program : Programs()) {
    for (const std::string& name : Loaded(program).KernelNames()) kernels.insert(name);
  }
  EXPECT_EQ(units, kernels);
}

// An inline assembly statement of the source: the compiler gives it one of its lines.
struct Statement {
  std::string file;  // below the repository's root
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::string function;  // the last one declared in front of it

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
    if (absl::StrContains(code, "__device__")) {
      const absl::string_view head = code.substr(0, code.find('('));
      function = std::string(head.substr(head.rfind(' ') + 1));
    }
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
      RunPtx(unit, program, unit.make_input(random));
    }
    executed.merge(TakeExecuted(Loaded(program)));
  }
  std::size_t count = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(paths::Source("kernels"))) {
    const std::string extension = entry.path().extension();
    if (extension != ".cuh" && extension != ".cu") continue;
    for (const Statement& statement : FindStatements(Relative(entry.path()))) {
      ++count;
      EXPECT_TRUE(statement.IsAmong(executed))
          << "no unit of tests/cuda_emulator/ptx runs the assembly of " << statement.function
          << ", " << statement.file << ":" << statement.first;
    }
  }
  EXPECT_GT(count, 30u);
}

// --- mistakes ---

// The statement of the wrapper of this name, the nth of those.
Statement FindPlanted(absl::string_view function, int nth = 1) {
  for (const Statement& statement : FindStatements(kPlanted)) {
    if (statement.function == function && --nth == 0) return statement;
  }
  ADD_FAILURE() << kPlanted << " has no " << function;
  return {};
}
// A regular expression of its lines, "planted.cu:(20|21|22)".
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
  const char* message = "";  // of the emulator, when it ends the process
  int nth = 1;
};

// Each gives other words than the twin; the message names the kernel and the line.
TEST_F(PtxTest, MistakesThatGiveOtherValues) {
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
    EXPECT_THAT(Differs(FindUnit(mistake.unit), mistake.program, 1),
                AllOf(HasSubstr(absl::StrCat("kernel ", mistake.unit, " of")),
                      ContainsRegex(LinesOf(FindPlanted(mistake.wrapper, mistake.nth)))));
  }
}

// Each does what the emulator ends the process for.
TEST_F(PtxDeathTest, MistakesThatTheEmulatorRefuses) {
  const Mistake mistakes[] = {
      {"planted1_90a", "CpAsync16", "CpAsync16Unit", "are outside the .* bytes of shared memory"},
      {"planted1_90a", "CpAsync4", "CpAsync4Unit", "cp.async of 4 bytes reads 16: all or none"},
      {"planted1_90a", "NamedArrive", "NamedBarrierUnit", "ids are 1 to 15"},
      {"planted1_90a", "E4M3ToF16", "E4M3Unit", "e5m2x2 .*: modifier .f32 is missing"},
      {"planted1_90a", "LowerRegisters", "RegistersUnit", "setmaxnreg.inc from 168 to 40"},
      {"planted1_90a", "WgmmaShared", "WgmmaSharedBF16N64Unit", "A is transposed"},
      {"planted3_90a", "BarrierExpect", "BulkLoadUnit",
       "bulk copies|more landed than were announced"},
      {"planted2_90a", "BarrierArriveAfterCpAsync", "BulkLoadUnit", "modifier .noinc is missing"},
      {"planted2_90a", "WgmmaRegisters", "WgmmaRegistersF16N64Unit", "a scale of -1 for B"}};
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.wrapper);
    EXPECT_DEATH(Differs(FindUnit(mistake.unit), mistake.program, 1),
                 absl::StrCat("kernel ", mistake.unit, ".*", mistake.message, ".*\n.*",
                              LinesOf(FindPlanted(mistake.wrapper, mistake.nth))));
  }
}

}  // namespace
}  // namespace quire::cuda_emulator::ptx
