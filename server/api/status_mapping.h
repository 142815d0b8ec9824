#pragma once

// From a status to what the wire says of it: the code, HTTP status and details that the table of
// reasons asks for (base/error_reason.h; docs/api.md, Errors).
//
// Place:      between the layers below, whose absl::Status carries a reason, and the transports.
//             Knows no transport itself.
// Invariants: a wire error always has a reason. What carries none, or one whose code is INTERNAL,
//             is a bug of ours: INTERNAL / ENGINE_ERROR with an incident id, and the text goes to
//             the log only.
// Threads:    any.
// Lifetime:   values.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/error_reason.h"

namespace quire::server {

struct WireError {
  absl::StatusCode code = absl::StatusCode::kInternal;
  int http_status = 500;
  ErrorDetail detail = ErrorDetail::kNone;
  Reason reason = Reason::kEngineError;
  std::string message;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<absl::Duration> retry_delay;

  // The value of the first entry `key`, or "".
  absl::string_view Find(absl::string_view key) const;
};

// What is a bug of ours, turned into ENGINE_ERROR with an incident id after its text was logged;
// anything else, and what has an incident id already, stays as it is. A status that is used twice
// is sanitized once before, else the log shows two incidents.
absl::Status SanitizeInternalError(absl::Status status);

// REQUIRES: !status.ok(). Sanitizes it. Message and metadata are cut so that the encoded details
// stay below 4 KiB.
WireError ToWireError(const absl::Status& status);

// Statuses that handlers make themselves.
absl::Status BadParameter(absl::string_view field, absl::string_view value,
                          absl::string_view range);
// UNIMPLEMENTED / FEATURE_UNSUPPORTED; `field` may be empty (a whole method).
absl::Status FeatureUnsupported(absl::string_view feature, absl::string_view field);

}  // namespace quire::server
