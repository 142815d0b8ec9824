#pragma once

// A fuzz target is one function that parses bytes like one of the daemon's readers.
//
// Place:      between a target (NAME_fuzz.cc) and its caller: libFuzzer under clang, driver.cc
//             under g++.
// Invariants: a target returns quickly for any bytes and keeps no state. Errors abort the process:
//             a signal, a sanitizer, QUIRE_CHECK.
// Threads:    one.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

// Returns 0, as libFuzzer requires.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace quire::fuzz {

inline absl::string_view AsText(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}
inline std::span<const std::byte> AsBytes(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

// Removes and returns the part of `rest` before the next `separator`, or all of it if there is
// none.
inline absl::string_view TakePart(absl::string_view* rest, char separator) {
  const absl::string_view part = rest->substr(0, rest->find(separator));
  rest->remove_prefix(part.size() + (part.size() < rest->size() ? 1 : 0));
  return part;
}

// A file in memory, for readers that need a path. It exists as long as the object.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view content) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    QUIRE_CHECK(fd_ >= 0);
    QUIRE_CHECK(write(fd_, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  const int fd_;
};

// Reads every byte, so that a sanitizer detects a span outside its memory.
inline void TouchAll(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += std::to_integer<unsigned>(byte);
  volatile unsigned kept = sum;
  (void)kept;
}

}  // namespace quire::fuzz
