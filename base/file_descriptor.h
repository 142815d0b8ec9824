#pragma once

// A descriptor that is closed on every way out of a scope.

#include <unistd.h>

namespace quire {

struct FileDescriptor {
  int fd;  // negative: none
  explicit FileDescriptor(int opened) : fd(opened) {}
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
};

}  // namespace quire
