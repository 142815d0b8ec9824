#include "base/settled_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"

namespace quire {
namespace {

// Returns an iterator to the first file that differs, or files.end().
auto FindChanged(const std::vector<NamedFile>& files, const FileStamps& before,
                 const FileStamps& after) {
  return std::find_if(files.begin(), files.end(), [&](const NamedFile& file) {
    const auto old = before.find(file.path);
    return old == before.end() || old->second != after.at(file.path);
  });
}

}  // namespace

absl::StatusOr<FileStamps> StampFiles(const std::vector<NamedFile>& files) {
  FileStamps stamps;
  for (const NamedFile& file : files) {
    const absl::StatusOr<FileStamp> stamp = ReadFileStamp(file.path);
    if (!stamp.ok()) {
      return absl::Status(stamp.status().code(),
                          absl::StrCat(file.key, ": ", stamp.status().message()));
    }
    stamps[file.path] = *stamp;
  }
  return stamps;
}

absl::StatusOr<FileStamps> WaitUntilSettled(const std::vector<NamedFile>& files,
                                            const FileStamps& known, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  QUIRE_ASSIGN_OR_RETURN(FileStamps stamps, StampFiles(files));
  if (FindChanged(files, known, stamps) == files.end()) return stamps;
  for (;;) {
    absl::SleepFor(kSettleTime);
    QUIRE_ASSIGN_OR_RETURN(FileStamps later, StampFiles(files));
    const auto changed = FindChanged(files, stamps, later);
    if (changed == files.end()) return later;
    if (MonotonicNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          changed->key, ": ", changed->path, " is still being written: it changed again within ",
          absl::FormatDuration(kSettleTime)));
    }
    stamps = std::move(later);
  }
}

absl::Status CheckUnchanged(const std::vector<NamedFile>& files, const FileStamps& before) {
  QUIRE_ASSIGN_OR_RETURN(const FileStamps now, StampFiles(files));
  const auto changed = FindChanged(files, before, now);
  if (changed == files.end()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(changed->key, ": ", changed->path, " changed while it was read; retry"));
}

}  // namespace quire
