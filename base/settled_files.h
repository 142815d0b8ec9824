#pragma once

// Whether files are whole. A file that is written in place looks like a shorter one meanwhile, and
// each of its lines, or certificates, may be in order: what tells is that it stays as it is.
//
// Place:      above small_file.h; below what reads files again while the process runs.
// Invariants: no clock of a file system is compared with ours, since it may be another machine's.
// Threads:    any.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/small_file.h"

namespace quire {

// So long a file that has changed has to stay as it is before it is read.
inline constexpr absl::Duration kSettleTime = absl::Seconds(1);
// So long a reload waits for that.
inline constexpr absl::Duration kSettleTimeout = absl::Seconds(10);

struct NamedFile {
  std::string key;  // of the configuration, for messages
  std::string path;
};
using FileStamps = std::map<std::string, FileStamp>;  // by path

// DEADLINE_EXCEEDED naming key and path.
absl::StatusOr<FileStamps> StampFiles(const std::vector<NamedFile>& files);

// Returns at once when all files are as in `known`, else when they have stayed as they are for
// kSettleTime. UNAVAILABLE naming a file that does not before `timeout`; else as StampFiles.
absl::StatusOr<FileStamps> WaitUntilSettled(const std::vector<NamedFile>& files,
                                            const FileStamps& known,
                                            absl::Duration timeout = kSettleTimeout);

// UNAVAILABLE naming a file that is not as in `before` any more. REQUIRES: `before` has all files.
absl::Status CheckUnchanged(const std::vector<NamedFile>& files, const FileStamps& before);

}  // namespace quire
