#include "tests/cuda_emulator/ptx/interpreter.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/cuda_emulator/ptx/decode.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator::ptx {
namespace {

// The threads inside a kernel, by slot of their block and index.
std::array<const Frame*, kMaxFibers> frames;

const Frame*& FrameOf(const Thread& thread) {
  return frames[std::size_t{thread.slot} * kMaxThreads + thread.index];
}

std::string Describe(const Instruction& instruction) {
  return absl::StrCat(instruction.source.ToString(), ": ", instruction.text);
}

// Prints where threads are when the emulator aborts, and which inline assembly has run. abort() is
// called by Fatal, on the stack of the thread at fault or, in a deadlock, of the last one that
// could run.
void OnAbort(int) {
  std::set<std::string> places;
  for (const Frame* const frame : frames) {
    if (frame == nullptr) continue;
    const std::string kernel = absl::StrCat("  kernel ", frame->kernel->name);
    const std::vector<Instruction>& code = frame->kernel->instructions;
    places.insert(absl::StrCat(kernel, " stands at ", Describe(code[frame->at])));
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (!(*frame->executed)[i] || !code[i].opcode.empty()) continue;
      places.insert(absl::StrCat(kernel, " has run the assembly at ", code[i].source.ToString()));
    }
  }
  if (current_thread != nullptr && current_thread->index < kMaxThreads) {
    const Frame* const own = FrameOf(*current_thread);
    if (own != nullptr) {
      std::fprintf(stderr, "PTX: thread %u stands at %s\n", current_thread->index,
                   Describe(own->kernel->instructions[own->at]).c_str());
    }
  }
  for (const std::string& place : places) std::fprintf(stderr, "%s\n", place.c_str());
  std::fflush(stderr);
}

// Computes the register limit from the launch bounds (CUDA C++ Programming Guide, "Launch Bounds"):
// the registers of a multiprocessor divided by the threads that must fit, in units of 8.
std::uint32_t RegisterBudget(const Kernel& kernel) {
  constexpr std::uint32_t kRegisters = 65536;
  if (kernel.max_threads == 0) return 255;
  const std::uint32_t threads = kernel.max_threads * std::max(kernel.min_blocks, 1u);
  return std::min(kRegisters / threads / 8 * 8, 255u);
}

}  // namespace

absl::StatusOr<Program> Program::Load(absl::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(Module module, ParseModule(text));
  std::signal(SIGABRT, OnAbort);
  Program program;
  for (Kernel& kernel : module.kernels) {
    auto code = std::make_unique<Code>();
    code->kernel = std::move(kernel);
    for (const Instruction& instruction : code->kernel.instructions) {
      code->steps.push_back(program.Decode(module, code->kernel, instruction));
    }
    code->executed.resize(code->steps.size());
    program.codes_.push_back(std::move(code));
  }
  return program;
}

Step Program::Decode(const Module& module, const Kernel& kernel, const Instruction& instruction) {
  if (instruction.opcode.empty()) return [](Frame&) {};
  Form form(module, kernel, instruction);
  Step step;
  for (const auto decode : {DecodeArithmetic, DecodeMemory, DecodeWarp, DecodeAsync}) {
    if (!step) step = decode(&form);
  }
  if (!step) form.Fail("the opcode is not known");
  const std::string& problem = form.Problem();
  if (problem.empty()) return step;
  problems_.push_back(
      absl::StrCat("kernel ", kernel.name, " at ", Describe(instruction), ": ", problem));
  return [message = problems_.back()](Frame&) { Fatal(message); };
}

Program::Code* Program::Find(absl::string_view kernel) const {
  for (const auto& code : codes_) {
    if (code->kernel.name == kernel) return code.get();
  }
  return nullptr;
}

std::vector<std::string> Program::KernelNames() const {
  std::vector<std::string> names;
  for (const auto& code : codes_) names.push_back(code->kernel.name);
  return names;
}

std::uint32_t Program::ParameterBytes(absl::string_view kernel) const {
  return Find(kernel)->kernel.parameter_bytes;
}

void Program::RunThread(absl::string_view kernel, const std::byte* arguments) {
  Code& code = *Find(kernel);
  Frame frame{.kernel = &code.kernel,
              .registers = std::vector<std::uint64_t>(code.kernel.num_registers, 0),
              .parameters = arguments,
              .executed = &code.executed,
              .hints = &code.hints,
              .register_budget = RegisterBudget(code.kernel)};
  const Frame*& own = FrameOf(*current_thread);
  own = &frame;
  const auto end = static_cast<std::uint32_t>(code.steps.size());
  while (frame.next < end) {
    frame.at = frame.next++;
    const Instruction& instruction = code.kernel.instructions[frame.at];
    if (instruction.guard != kNoRegister &&
        (frame.registers[instruction.guard] != 0) == instruction.guard_negated) {
      continue;
    }
    (*frame.executed)[frame.at] = true;
    code.steps[frame.at](frame);
  }
  own = nullptr;
}

std::set<std::string> Program::TakeHints(absl::string_view kernel) {
  return std::exchange(Find(kernel)->hints, {});
}

std::set<SourceLine> Program::TakeExecuted() {
  std::set<SourceLine> lines;
  for (const auto& code : codes_) {
    for (std::size_t i = 0; i < code->steps.size(); ++i) {
      const Instruction& instruction = code->kernel.instructions[i];
      if (code->executed[i] && instruction.opcode.empty()) lines.insert(instruction.source);
      code->executed[i] = false;
    }
  }
  return lines;
}

}  // namespace quire::cuda_emulator::ptx
