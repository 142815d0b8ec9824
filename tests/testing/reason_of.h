#pragma once

// What tests compare of an error.

#include <string>

#include "absl/status/status.h"
#include "base/error_reason.h"

namespace quire {

// The name of the reason that an error carries, or "".
inline std::string ReasonOf(const absl::Status& status) {
  const auto reason = GetErrorReason(status);
  return reason.has_value() ? reason->name() : "";
}

}  // namespace quire
