#include "tests/cuda_emulator/ptx/form.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator::ptx {
namespace {

struct SpecialRegister {
  absl::string_view name;
  std::uint64_t (*read)();
};

constexpr SpecialRegister kSpecialRegisters[] = {
    {"%tid.x", [] { return std::uint64_t{current_thread->index}; }},
    {"%laneid", [] { return std::uint64_t{current_thread->lane}; }},
    {"%ntid.x", [] { return std::uint64_t{CurrentLaunch().threads}; }},
    {"%ctaid.x", [] { return std::uint64_t{CurrentBlockX()}; }},
    {"%ctaid.y", [] { return std::uint64_t{CurrentBlockY()}; }},
    {"%nctaid.x", [] { return std::uint64_t{CurrentLaunch().blocks_x}; }},
    {"%nctaid.y", [] { return std::uint64_t{CurrentLaunch().blocks_y}; }},
};

std::uint64_t DynamicShared() {
  return SharedAddress(SharedStart(), 0, 16, "dynamic shared memory");
}

}  // namespace

std::uint64_t Value::Read(const Frame& frame) const {
  const std::uint64_t value = reg != kNoRegister ? frame.registers[reg]
                              : read != nullptr  ? read()
                                                 : bits;
  return (negated ? value ^ 1 : value) & mask;
}

float Value::ReadFloat(const Frame& frame) const {
  return std::bit_cast<float>(Read32(frame));
}

void WriteFloat(Frame& frame, std::uint32_t reg, float value) {
  Write(frame, reg, std::bit_cast<std::uint32_t>(value));
}

void Form::Fail(const std::string& problem) {
  if (problem_.empty()) problem_ = problem;
}

void Form::FailAtModifier(const std::string& expected) {
  const auto& modifiers = instruction_.modifiers;
  Fail(absl::StrCat(expected, " is expected, not ",
                    next_modifier_ < modifiers.size() ? absl::StrCat(".", modifiers[next_modifier_])
                                                      : std::string("the end of the modifiers")));
}

const std::string& Form::Problem() {
  if (next_modifier_ < instruction_.modifiers.size()) {
    Fail(absl::StrCat("modifier .", instruction_.modifiers[next_modifier_], " is not known here"));
  }
  if (next_operand_ < instruction_.operands.size()) {
    Fail(absl::StrCat("operand ", next_operand_ + 1, " is one too many"));
  }
  return problem_;
}

bool Form::Take(absl::string_view modifier) {
  if (next_modifier_ >= instruction_.modifiers.size() ||
      instruction_.modifiers[next_modifier_] != modifier) {
    return false;
  }
  ++next_modifier_;
  return true;
}

void Form::Expect(absl::string_view modifier) {
  if (!Take(modifier)) FailAtModifier(absl::StrCat(".", modifier));
}

void Form::Expect(std::initializer_list<absl::string_view> modifiers) {
  for (const absl::string_view modifier : modifiers) Expect(modifier);
}

std::size_t Form::TakeOneOf(std::initializer_list<absl::string_view> modifiers) {
  std::size_t i = 0;
  for (const absl::string_view modifier : modifiers) {
    if (Take(modifier)) return i;
    ++i;
  }
  FailAtModifier(absl::StrCat("one of .", absl::StrJoin(modifiers, " .")));
  return 0;
}

Type Form::TakeType() {
  constexpr Type kTypes[] = {{"u8", 8},     {"u16", 16},    {"u32", 32}, {"u64", 64},
                             {"s8", 8},     {"s16", 16},    {"s32", 32}, {"s64", 64},
                             {"b8", 8},     {"b16", 16},    {"b32", 32}, {"b64", 64},
                             {"f16", 16},   {"f32", 32},    {"f64", 64}, {"bf16", 16},
                             {"f16x2", 32}, {"bf16x2", 32}, {"pred", 1}, {"e4m3x2", 16}};
  for (const Type& type : kTypes) {
    if (Take(type.name)) return type;
  }
  FailAtModifier("a type");
  return kTypes[2];
}

const Operand* Form::Peek() const {
  return next_operand_ < instruction_.operands.size() ? &instruction_.operands[next_operand_]
                                                      : nullptr;
}

const Operand* Form::TakeOperand() {
  const Operand* const operand = Peek();
  if (operand == nullptr) Fail(absl::StrCat("operand ", next_operand_ + 1, " is missing"));
  ++next_operand_;
  return operand;
}

std::pair<std::uint32_t, std::uint32_t> Form::TakeRegisterAndPredicate() {
  const Operand* const operand = TakeOperand();
  if (operand != nullptr && operand->kind == Operand::Kind::kRegister && !operand->negated) {
    return {operand->reg, operand->second};
  }
  Fail(absl::StrCat("operand ", next_operand_, " is no register"));
  return {kNoRegister, kNoRegister};
}

std::uint32_t Form::TakeRegister() {
  const auto [reg, predicate] = TakeRegisterAndPredicate();
  if (predicate != kNoRegister) Fail(absl::StrCat("operand ", next_operand_, " has a predicate"));
  return reg;
}

std::vector<std::uint32_t> Form::TakeRegisters(std::size_t count) {
  std::vector<std::uint32_t> registers;
  const Operand* const operand = TakeOperand();
  if (operand != nullptr && operand->kind == Operand::Kind::kVector) {
    for (const Operand& element : operand->elements) registers.push_back(element.reg);
  }
  if (registers.size() != count || std::count(registers.begin(), registers.end(), kNoRegister)) {
    Fail(absl::StrCat("operand ", next_operand_, " is no vector of ", count, " registers"));
    registers.assign(count, kNoRegister);
  }
  return registers;
}

Value Form::ToValue(const Operand& operand, const Type& type) {
  Value value{.reg = operand.reg, .bits = operand.bits, .mask = type.Mask()};
  value.negated = operand.negated;
  switch (operand.kind) {
    case Operand::Kind::kRegister:
      if (operand.second == kNoRegister && (!value.negated || type.name == "pred")) return value;
      break;
    case Operand::Kind::kImmediate:
      return value;
    case Operand::Kind::kName:
      for (const SpecialRegister& special : kSpecialRegisters) {
        if (special.name == operand.name) value.read = special.read;
      }
      if (operand.name == module_.dynamic_shared) value.read = DynamicShared;
      if (value.read != nullptr) return value;
      for (const Parameter& parameter : kernel_.parameters) {
        if (parameter.name != operand.name) continue;
        value.bits = parameter.offset;
        return value;
      }
      break;
    default:
      break;
  }
  Fail(absl::StrCat("operand ", next_operand_, " is no value: ", operand.name));
  return value;
}

Value Form::TakeValue(const Type& type) {
  const Operand* const operand = TakeOperand();
  return operand == nullptr ? Value{} : ToValue(*operand, type);
}

std::vector<Value> Form::TakeValues(const Type& type, std::size_t count) {
  std::vector<Value> values;
  const Operand* const operand = TakeOperand();
  if (operand != nullptr && operand->kind == Operand::Kind::kVector) {
    for (const Operand& element : operand->elements) values.push_back(ToValue(element, type));
  }
  if (values.size() != count) {
    Fail(absl::StrCat("operand ", next_operand_, " is no vector of ", count));
    values.resize(count);
  }
  return values;
}

Address Form::TakeAddress(std::size_t coordinates) {
  const Operand* const operand = TakeOperand();
  Address address;
  if (operand == nullptr || operand->kind != Operand::Kind::kAddress ||
      operand->elements.size() != 1 + coordinates) {
    Fail(absl::StrCat("operand ", next_operand_, " is no address with ", coordinates,
                      " coordinates"));
    return address;
  }
  address.base = ToValue(operand->elements[0], {.name = "u64", .bits = 64});
  address.offset = operand->bits;
  for (std::size_t i = 0; i < coordinates; ++i) {
    address.coordinates.push_back(ToValue(operand->elements[1 + i], {.name = "u32", .bits = 32}));
  }
  return address;
}

std::uint64_t Form::TakeConstant() {
  const Operand* const operand = TakeOperand();
  if (operand != nullptr && operand->kind == Operand::Kind::kImmediate) return operand->bits;
  Fail(absl::StrCat("operand ", next_operand_, " is no constant"));
  return 0;
}

void Form::TakeSink() {
  const Operand* const operand = TakeOperand();
  if (operand != nullptr && operand->kind != Operand::Kind::kSink) {
    Fail(absl::StrCat("operand ", next_operand_, " is not _"));
  }
}

std::uint32_t Form::TakeLabel() {
  const Operand* const operand = TakeOperand();
  for (const auto& [name, index] : kernel_.labels) {
    if (operand != nullptr && operand->name == name) return index;
  }
  Fail(absl::StrCat("operand ", next_operand_, " is no label"));
  return 0;
}

}  // namespace quire::cuda_emulator::ptx
