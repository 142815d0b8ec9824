#pragma once

// Folders that only the user of this process may enter: for sockets in places that others can
// write to as well, such as /tmp.
//
// Place:   base/; the daemon makes them, its client trusts no others.
// Threads: any.

#include <string>

#include "absl/status/status.h"

namespace quire {

// OK when `path` is a folder of this user, no link to one, that no other user may enter or read.
// NOT_FOUND when there is nothing, FAILED_PRECONDITION naming what is wrong otherwise.
absl::Status CheckPrivateDir(const std::string& path);

// The same of a folder that is made when there is nothing. UNAVAILABLE when it cannot be made.
absl::Status MakePrivateDir(const std::string& path);

}  // namespace quire
