#pragma once

// A descriptor that is closed on every way out of a scope.

#include <unistd.h>

#include <utility>

namespace quire {

struct FileDescriptor {
  int fd = -1;  // negative: none
  FileDescriptor() = default;
  explicit FileDescriptor(int opened) : fd(opened) {}
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd, other.fd);  // `other` closes what this had
    return *this;
  }
};

}  // namespace quire
