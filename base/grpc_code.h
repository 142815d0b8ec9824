#pragma once

// Names of gRPC status codes.
//
// Threads: pure.

#include "absl/strings/string_view.h"

namespace quire {

// Returns the name as gRPC spells it, for example "INVALID_ARGUMENT", or "UNKNOWN" if there is no
// such code.
absl::string_view GrpcCodeName(int code);

}  // namespace quire
