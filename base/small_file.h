#pragma once

// Small files that operators name: configuration, tokens, certificates, chat templates.
//
// Place:      base/. Every reader of such a file calls it and opens none itself; the weights of a
//             model are mapped (mapped_file.h). The log opens its file through AskWithin.
// Invariants: what is no regular file (a FIFO, a device, a folder) is refused, and opening it does
//             not wait. A caller waits for kFileTimeout at most: a thread of its own asks the file
//             system and is left behind when there is no answer, as on a mount whose server is
//             gone. kMaxLeftBehind of these at most; then asking fails at once until one returns.
// Threads:    any.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire {

inline constexpr absl::Duration kFileTimeout = absl::Seconds(5);
inline constexpr int kMaxLeftBehind = 16;

// The whole file. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular file, more than
// `max_bytes`), or what AskWithin returns; each message starts with the path. A file that is
// written in place meanwhile may be read half-written: StampOf before and after tells.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, std::size_t max_bytes);

// Differs after a file was written or replaced. All zero: it cannot be looked at, and a reader is
// told why.
struct FileStamp {
  std::uint64_t device = 0, inode = 0;
  std::int64_t size_bytes = 0;
  std::int64_t write_time = 0, change_time = 0;  // nanoseconds of the file system's clock

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
// Or what AskWithin says, starting with the path.
absl::StatusOr<FileStamp> StampOf(const std::string& path);

// Calls `ask` on a thread of its own, where no signal arrives, and returns when it has ended.
// DEADLINE_EXCEEDED: it has not within `timeout`. RESOURCE_EXHAUSTED: it is not called, since
// kMaxLeftBehind others never ended, or no thread can be made. `ask` owns what it uses.
absl::Status AskWithin(absl::Duration timeout, std::function<void()> ask);

}  // namespace quire
