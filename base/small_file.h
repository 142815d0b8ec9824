#pragma once

// Reads small files whose paths operators configure: configuration, tokens, certificates,
// templates.
//
// Place:      base/. All readers of such files use these functions. Model weights are mapped
//             instead (mapped_file.h). The log opens its file through RunWithTimeout.
// Invariants: only regular files are read. A FIFO, a device or a directory is rejected, and opening
//             it does not block. A caller waits at most kFileTimeout: a separate thread calls the
//             file system and is abandoned if the call hangs, for example on a dead network mount.
//             While kMaxAbandonedThreads threads are abandoned, calls fail at once.
// Threads:    any.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire {

inline constexpr absl::Duration kFileTimeout = absl::Seconds(5);
inline constexpr int kMaxAbandonedThreads = 16;

// Returns the whole file. Errors are NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular
// file, or more than `max_bytes`), and those of RunWithTimeout. Each message starts with the path.
// If another process is writing the file, the content may be incomplete. Compare ReadFileStamp
// before and after to detect this.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, std::size_t max_bytes);

// Identifies the content of a file. The stamp changes when the file is written or replaced. All
// fields are zero if the file cannot be inspected; reading the file then returns the error.
struct FileStamp {
  std::uint64_t device = 0, inode = 0;
  std::int64_t size_bytes = 0;
  std::int64_t write_time = 0, change_time = 0;  // nanoseconds of the file system's clock

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
// Errors are those of RunWithTimeout, with the path at the start of the message.
absl::StatusOr<FileStamp> ReadFileStamp(const std::string& path);

// Calls `work` on a separate thread that blocks all signals, and waits until it returns. Returns
// DEADLINE_EXCEEDED if that takes longer than `timeout`. Returns RESOURCE_EXHAUSTED, without
// calling `work`, if kMaxAbandonedThreads earlier calls still hang or no thread can be started.
// `work` must own all objects that it uses, because the thread may outlive the call.
absl::Status RunWithTimeout(absl::Duration timeout, std::function<void()> work);

}  // namespace quire
