#pragma once

// Owns a file descriptor and closes it when it goes out of scope.

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
    std::swap(fd, other.fd);  // the destructor of `other` closes the old descriptor
    return *this;
  }
};

}  // namespace quire
