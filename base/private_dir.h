#pragma once

// Directories that only the user of this process may enter, for sockets in shared locations such as
// /tmp.
//
// Place:   base/. The daemon creates such directories, and the client accepts no others.
// Threads: any.

#include <string>

#include "absl/status/status.h"

namespace quire {

// Returns OK if `path` is a directory of this user, not a symbolic link, and no other user may
// enter or read it. Returns NOT_FOUND if `path` does not exist or cannot be inspected. Otherwise
// returns FAILED_PRECONDITION with the cause.
absl::Status CheckPrivateDir(const std::string& path);

// Creates the directory if it does not exist, then checks it. Returns UNAVAILABLE when it cannot be
// created.
absl::Status MakePrivateDir(const std::string& path);

}  // namespace quire
