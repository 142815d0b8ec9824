#pragma once

// Helper for tests that compare the reason of an error.

#include <string>

#include "absl/status/status.h"
#include "base/error_reason.h"

namespace quire {

// Returns the name of the error's reason, or "" if it has none.
inline std::string ReasonOf(const absl::Status& status) {
  const auto reason = GetErrorReason(status);
  return reason.has_value() ? reason->name() : "";
}

}  // namespace quire
