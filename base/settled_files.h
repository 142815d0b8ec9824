#pragma once

// Detects files that are still being written. A partly written file may look complete, so a changed
// file is read only after it has stayed unchanged for kSettleTime.
//
// Place:      above small_file.h, below the code that reloads files.
// Invariants: file timestamps are only compared with each other, never with the clock of this
//             machine, because another machine may have set them.
// Threads:    any.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/small_file.h"

namespace quire {

// Time for which a changed file must stay unchanged before it is read.
inline constexpr absl::Duration kSettleTime = absl::Seconds(1);
// Default time limit of WaitUntilSettled.
inline constexpr absl::Duration kSettleTimeout = absl::Seconds(10);

struct NamedFile {
  std::string key;  // configuration key, for messages
  std::string path;
};
using FileStamps = std::map<std::string, FileStamp>;  // by path

// Errors are those of ReadFileStamp, with key and path.
absl::StatusOr<FileStamps> StampFiles(const std::vector<NamedFile>& files);

// Returns immediately if all files have the stamps in `known`. Otherwise waits until they have
// stayed unchanged for kSettleTime. If a file still changes after `timeout`, returns UNAVAILABLE
// with its path. Other errors are those of StampFiles.
absl::StatusOr<FileStamps> WaitUntilSettled(const std::vector<NamedFile>& files,
                                            const FileStamps& known,
                                            absl::Duration timeout = kSettleTimeout);

// If a file differs from `before`, returns UNAVAILABLE with its path. REQUIRES: `before` has all
// files.
absl::Status CheckUnchanged(const std::vector<NamedFile>& files, const FileStamps& before);

}  // namespace quire
