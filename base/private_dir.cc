#include "base/private_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quire {

absl::Status CheckPrivateDir(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(path, " cannot be inspected: ", std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a directory"));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " belongs to user ", info.st_uid, ", it must belong to ", geteuid()));
  }
  const unsigned mode = info.st_mode & 07777u;
  if ((mode & 077u) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has mode %04o, so other users may enter it; set it to 0700", path, mode));
  }
  return absl::OkStatus();
}

absl::Status MakePrivateDir(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat(path, " cannot be created: ", std::strerror(errno)));
  }
  return CheckPrivateDir(path);
}

}  // namespace quire
