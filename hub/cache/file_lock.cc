#include "hub/cache/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire::hub {
namespace {

// Returns whether `path` still names the open file. Another process may have removed the lock file
// after it was opened and before it was locked.
bool IsSameFile(int fd, const std::string& path) {
  struct stat opened, named;
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Try(const std::string& path, LockMode mode) {
  const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
  while (true) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    // The mode lets the members of a group share a cache, as in huggingface_hub.
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664));
    if (file.fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
    if (flock(file.fd, operation) != 0) {
      if (errno == EWOULDBLOCK) return absl::UnavailableError(absl::StrCat(path, " is locked"));
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(
          errno, absl::StrCat("cannot lock ", path,
                              "; set HF_HUB_CACHE to a directory of a file system with flock"));
    }
    if (IsSameFile(file.fd, path)) return FileLock(std::move(file));
  }
}

}  // namespace quire::hub
