#pragma once

// PTX as the compiler writes it, parsed into instructions with resolved registers and labels. The
// semantics of instructions are defined elsewhere (form.h, decode.h).
//
// Source: PTX ISA, "Syntax" and "Directives"; the subset that nvcc writes for kernels without local
//         memory, calls and branch tables. Anything else is an error with its line.

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::cuda_emulator::ptx {

inline constexpr std::uint32_t kNoRegister = ~0u;

// The source position of a translated statement (.loc): a file of the build machine and a line.
struct SourceLine {
  std::string file{};
  std::uint32_t line = 0;

  std::string ToString() const;
  friend bool operator<(const SourceLine& a, const SourceLine& b) {
    return std::tie(a.file, a.line) < std::tie(b.file, b.line);
  }
};

struct Operand {
  enum class Kind : std::uint8_t {
    kRegister,   // %r1, !%p1, %r1|%p1
    kImmediate,  // 12, -1, 0f3F800000
    kName,       // a label, a symbol, a parameter, a special register
    kAddress,    // [%rd1+4], [name], [%rd1, {%r1, %r2}]
    kVector,     // {%r1, %r2}
    kSink,       // _
  };
  Kind kind = Kind::kSink;
  std::uint32_t reg = kNoRegister;
  std::uint32_t second = kNoRegister;  // the predicate after |
  bool negated = false;
  std::uint64_t bits = 0;  // of an immediate, or the offset of an address
  std::string name{};
  std::vector<Operand> elements{};  // of a vector; of an address: its base, then coordinates
};

struct Instruction {
  std::string opcode{};                  // "ld", or "" at the start of an inline assembly statement
  std::vector<std::string> modifiers{};  // "global", "L1::no_allocate", "v4", "u32"
  std::vector<Operand> operands{};
  std::uint32_t guard = kNoRegister;
  bool guard_negated = false;
  std::string text{};
  SourceLine source{};
};

struct Parameter {
  std::string name{};
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

struct Kernel {
  std::string name{};
  std::vector<Parameter> parameters{};
  std::uint32_t parameter_bytes = 0;
  std::uint32_t num_registers = 0;
  std::uint32_t max_threads = 0;  // .maxntid, or 0
  std::uint32_t min_blocks = 0;   // .minnctapersm, or 0
  std::vector<Instruction> instructions{};
  // Maps each label to the index of the instruction after it.
  std::vector<std::pair<std::string, std::uint32_t>> labels{};
};

struct Module {
  std::vector<Kernel> kernels{};
  std::string dynamic_shared{};  // the symbol of the dynamic shared memory, if any
};

// Returns INVALID_ARGUMENT with the line of the text.
absl::StatusOr<Module> ParseModule(absl::string_view text);

}  // namespace quire::cuda_emulator::ptx
