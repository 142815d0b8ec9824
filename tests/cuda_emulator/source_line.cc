#include "tests/cuda_emulator/source_line.h"

#include <elf.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cuda_emulator/simt.h"

// Symbols of the linker.
extern "C" const std::byte __executable_start[];
extern "C" const std::byte _end[];

namespace quire::cuda_emulator {
namespace {

// The address of the code for addr2line: an offset in a program that may be loaded anywhere.
std::uint64_t LinkedAddress(const void* code) {
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(__executable_start);
  const auto at = reinterpret_cast<std::uintptr_t>(code);
  return header->e_type == ET_DYN ? at - reinterpret_cast<std::uintptr_t>(__executable_start) : at;
}

// Lines of the emulator's own files are skipped, since they do not describe the kernel.
bool IsOfInterest(absl::string_view line) {
  if (absl::StartsWith(line, "?") || absl::EndsWith(line, ":?") || absl::EndsWith(line, ":0")) {
    return false;
  }
  if (absl::StrContains(line, "tests/cuda_emulator/")) {
    return absl::StrContains(line, "_test.cc:") || absl::StrContains(line, "planted");
  }
  return absl::StrContains(line, "/kernels/") || absl::StrContains(line, "/tests/") ||
         absl::StrContains(line, "/runtime/") || absl::StrContains(line, "/models/");
}

// Cuts the path before the first folder of the project.
std::string FromProject(absl::string_view line) {
  line = line.substr(0, line.find(" (discriminator"));
  std::size_t at = absl::string_view::npos;
  for (const char* folder : {"/kernels/", "/tests/", "/runtime/", "/models/"}) {
    at = std::min(at, line.find(folder));
  }
  return std::string(at == absl::string_view::npos ? line : line.substr(at + 1));
}

// Returns the lines of some calls, innermost first, with inlined functions.
std::vector<std::string> Lines(const std::vector<const void*>& calls) {
  std::string command = "addr2line -i -e /proc/" + absl::StrCat(getpid()) + "/exe";
  for (const void* code : calls) {
    absl::StrAppend(&command, " 0x", absl::Hex(LinkedAddress(code) - 1));
  }
  FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  std::array<char, 4096> buffer;
  while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), n);
  }
  pclose(pipe);
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

std::string FirstOfInterest(const std::vector<const void*>& calls) {
  for (const std::string& line : Lines(calls)) {
    if (IsOfInterest(line)) return FromProject(line);
  }
  return "an unknown line";
}

}  // namespace

std::uint32_t CodeOffset(const void* code) {
  return static_cast<std::uint32_t>(static_cast<const std::byte*>(code) - __executable_start);
}

const void* CodeAt(std::uint32_t offset) {
  return __executable_start + offset;
}

std::string LineOf(const void* code) {
  return FirstOfInterest({code});
}

std::string LineHere() {
  std::array<void*, 64> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  std::vector<const void*> calls;
  for (int i = 0; i < count; ++i) {
    if (IsInProgram(frames[static_cast<std::size_t>(i)])) {
      calls.push_back(frames[static_cast<std::size_t>(i)]);
    }
  }
  return FirstOfInterest(calls);
}

bool IsKernelCode(const void* code) {
  static auto& known = *new std::map<const void*, bool>();
  const auto [found, is_new] = known.try_emplace(code, false);
  if (is_new) {
    const std::vector<std::string> lines = Lines({code});
    if (lines.empty()) Fatal("addr2line of binutils is needed, and says nothing");
    found->second = !lines.empty() && IsOfInterest(lines.back());
  }
  return found->second;
}

bool IsInProgram(const void* p) {
  return p >= __executable_start && p < _end;
}

}  // namespace quire::cuda_emulator
