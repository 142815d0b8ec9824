#pragma once

// Decoding of an instruction: its modifiers and operands are taken one by one, and the decoded step
// works on the state of a thread. A modifier or operand that is not taken is a problem, so no text
// of an instruction is ignored.
//
// Threads: one. A Frame belongs to one emulated thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/cuda_emulator/ptx/module.h"

namespace quire::cuda_emulator::ptx {

// Accumulators of warpgroup products from the first issue until the last wait, in the product's
// storage, and registers with A until then.
struct HeldRegisters {
  std::vector<std::uint32_t> registers{};
  std::vector<float> values{};  // bits that the registers must not change
  std::uint32_t group = 0;      // the commit that closes the last product on them
};

// One emulated thread inside a kernel.
struct Frame {
  const Kernel* kernel = nullptr;
  // Values in the low bits, zeros above; predicates are 0 or 1.
  std::vector<std::uint64_t> registers{};
  const std::byte* parameters = nullptr;
  std::vector<bool>* executed = nullptr;   // instructions reached by any thread
  std::set<std::string>* hints = nullptr;  // see Program::TakeHints
  std::uint32_t at = 0;                    // the running instruction
  std::uint32_t next = 0;                  // the next instruction
  std::uint32_t register_budget = 0;       // of setmaxnreg
  std::uint32_t product_groups = 0;        // committed so far
  std::vector<HeldRegisters> accumulators{};
  std::vector<HeldRegisters> fragments{};
};

// The effect of an instruction.
using Step = std::function<void(Frame&)>;

// u32, s64, b16, f32, f16x2, pred.
struct Type {
  absl::string_view name;
  std::uint32_t bits = 0;

  bool IsSigned() const { return name[0] == 's'; }
  bool IsInteger() const { return name[0] == 'u' || name[0] == 's' || name[0] == 'b'; }
  std::uint64_t Mask() const { return bits >= 64 ? ~std::uint64_t{0} : (1ull << bits) - 1; }
};

// A source: a register, a constant, or the run-time value of a special register or symbol.
struct Value {
  std::uint32_t reg = kNoRegister;
  std::uint64_t bits = 0;
  std::uint64_t mask = ~std::uint64_t{0};
  bool negated = false;  // of a predicate
  std::uint64_t (*read)() = nullptr;

  std::uint64_t Read(const Frame& frame) const;
  float ReadFloat(const Frame& frame) const;
  std::uint32_t Read32(const Frame& frame) const { return static_cast<std::uint32_t>(Read(frame)); }
};

struct Address {
  Value base{};
  std::uint64_t offset = 0;
  std::vector<Value> coordinates{};

  std::uint64_t Read(const Frame& frame) const { return base.Read(frame) + offset; }
};

class Form {
 public:
  Form(const Module& module, const Kernel& kernel, const Instruction& instruction)
      : module_(module), kernel_(kernel), instruction_(instruction) {}

  const Instruction& instruction() const { return instruction_; }
  const Kernel& kernel() const { return kernel_; }
  absl::string_view opcode() const { return instruction_.opcode; }

  // Takes the next modifier if it equals this one.
  bool Take(absl::string_view modifier);
  // Takes the next modifier, which must be this one.
  void Expect(absl::string_view modifier);
  void Expect(std::initializer_list<absl::string_view> modifiers);
  // Takes the next modifier and returns its index in `modifiers`.
  std::size_t TakeOneOf(std::initializer_list<absl::string_view> modifiers);
  Type TakeType();

  // The following functions take operands, in order.
  std::uint32_t TakeRegister();
  // Takes d or d|p. An absent p is kNoRegister.
  std::pair<std::uint32_t, std::uint32_t> TakeRegisterAndPredicate();
  std::vector<std::uint32_t> TakeRegisters(std::size_t count);  // a vector
  Value TakeValue(const Type& type);
  Value TakeU32() { return TakeValue({.name = "u32", .bits = 32}); }
  Value TakeU64() { return TakeValue({.name = "u64", .bits = 64}); }
  Value TakePredicate() { return TakeValue({.name = "pred", .bits = 1}); }
  std::vector<Value> TakeValues(const Type& type, std::size_t count);  // a vector
  Address TakeAddress(std::size_t coordinates = 0);
  // Takes an immediate, as wgmma and wait_group require.
  std::uint64_t TakeConstant();
  void TakeSink();
  std::uint32_t TakeLabel();
  const Operand* Peek() const;

  // Reports a problem. The first one is kept.
  void Fail(const std::string& problem);
  // Returns the problem, or "". Operands and modifiers that were not taken also are a problem.
  const std::string& Problem();

 private:
  void FailAtModifier(const std::string& expected);
  const Operand* TakeOperand();
  Value ToValue(const Operand& operand, const Type& type);

  const Module& module_;
  const Kernel& kernel_;
  const Instruction& instruction_;
  std::size_t next_modifier_ = 0;
  std::size_t next_operand_ = 0;
  std::string problem_{};
};

inline void Write(Frame& frame, std::uint32_t reg, std::uint64_t bits) {
  if (reg != kNoRegister) frame.registers[reg] = bits;
}
void WriteFloat(Frame& frame, std::uint32_t reg, float value);

}  // namespace quire::cuda_emulator::ptx
