#pragma once

// Sets thread names, which `top -H`, debuggers and crash dumps show.

#include "absl/strings/string_view.h"

namespace quire {

// Names the calling thread. REQUIRES: at most 15 bytes, the limit of Linux.
void SetThreadName(absl::string_view name);

}  // namespace quire
