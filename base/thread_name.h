#pragma once

// Names a thread for those who look at a running process: `top -H`, a debugger, a crash dump.

#include "absl/strings/string_view.h"

namespace quire {

// The calling thread's; at most 15 bytes, as Linux keeps.
void SetThreadName(absl::string_view name);

}  // namespace quire
