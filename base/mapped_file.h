#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire {

// A whole file, mapped read-only.
//
// Place:      under the checkpoint readers.
// Invariants: bytes() is not empty. A file that another process truncates while it is mapped raises
//             SIGBUS on access: model files are to be replaced, not rewritten.
// Threads:    const methods from any thread.
// Lifetime:   spans into it are valid until it is destroyed; moving it keeps them valid.
class MappedFile {
 public:
  // Follows symbolic links. Returns NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (a directory,
  // something else that is not a regular file, or an empty file); each message starts with the
  // path.
  static absl::StatusOr<MappedFile> Open(absl::string_view path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }
  // The content as text; not checked for UTF-8.
  absl::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  const std::string& path() const { return path_; }

  // Lets the system take the memory of the whole pages inside `part`; the next access reads them
  // from the file, or its cache, again. REQUIRES: `part` lies in the mapping of a MappedFile.
  static void Forget(std::span<const std::byte> part);

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);

  std::string path_;
  std::span<const std::byte> bytes_;  // the mapping; empty after a move
};

}  // namespace quire
