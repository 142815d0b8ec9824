#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire {

// A whole file that is mapped read-only.
//
// Place:      below the checkpoint readers.
// Invariants: bytes() is not empty. Accessing the mapping after another process has truncated the
//             file raises SIGBUS, so model files must be replaced instead of rewritten.
// Threads:    const methods are thread-safe.
// Lifetime:   spans into the mapping are valid until the MappedFile is destroyed; moving it keeps
//             them valid.
class MappedFile {
 public:
  // Follows symbolic links. If the system cannot open or map the file, returns the system's error,
  // such as NOT_FOUND or PERMISSION_DENIED. Returns INVALID_ARGUMENT if `path` is empty, or if the
  // file is empty or not a regular file. Each message about a file starts with the path.
  static absl::StatusOr<MappedFile> Open(absl::string_view path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }
  // The content as text, which is not validated as UTF-8.
  absl::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  const std::string& path() const { return path_; }

  // Allows the system to reclaim the memory of the whole pages inside `part`. The next access reads
  // these pages from the file again. REQUIRES: `part` is inside the mapping of a MappedFile.
  static void Forget(std::span<const std::byte> part);

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);

  std::string path_;
  std::span<const std::byte> bytes_;  // the mapping; empty after a move
};

}  // namespace quire
