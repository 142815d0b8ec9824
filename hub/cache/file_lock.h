#pragma once

// An advisory lock (flock) that huggingface_hub and other processes also take.
//
// Threads:  any; one object per lock. The lock excludes other objects of the same process, too.
// Lifetime: the lock is released when the object is destroyed or the process ends in any way.

#include <string>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace quire::hub {

enum class LockMode { kShared, kExclusive };

class FileLock {
 public:
  // Creates the file and its directories if needed, and takes the lock without waiting. Returns
  // UNAVAILABLE while another holder has it. Other errors have the path and the cause.
  static absl::StatusOr<FileLock> Try(const std::string& path, LockMode mode);

 private:
  explicit FileLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;
};

}  // namespace quire::hub
