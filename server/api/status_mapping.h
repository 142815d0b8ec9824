#pragma once

// Converts a status to its wire form: code, HTTP status and details, according to the table of
// reasons (base/error_reason.h; docs/api.md, Errors).
//
// Place:      between the lower layers, whose absl::Status carries a reason, and the transports.
//             Does not depend on any transport.
// Invariants: a wire error always has a reason. If a status has none, the codes INVALID_ARGUMENT,
//             UNIMPLEMENTED, DEADLINE_EXCEEDED and CANCELLED determine one. Any other status
//             without a reason is an internal bug, and so is a status whose reason has the code
//             INTERNAL. Both become INTERNAL / ENGINE_ERROR with an incident id, and their text is
//             only logged.
// Threads:    any.

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

  // Returns the value of the first entry named `key`, or "".
  absl::string_view Find(absl::string_view key) const;
};

// Converts an internal bug to ENGINE_ERROR with an incident id and logs its text. Returns any other
// status unchanged, including a status that already has an incident id. A status that is converted
// twice must be sanitized first, otherwise the log shows two incidents.
absl::Status SanitizeInternalError(absl::Status status);

// Converts and sanitizes the status. Truncates message and metadata so that the encoded details
// have less than 4 KiB. REQUIRES: !status.ok().
WireError ToWireError(const absl::Status& status);

// Returns INVALID_ARGUMENT / BAD_PARAMETER with the message "FIELD is VALUE, it must be RANGE".
absl::Status BadParameter(absl::string_view field, absl::string_view value,
                          absl::string_view range);
// Returns UNIMPLEMENTED / FEATURE_UNSUPPORTED. `field` is empty if a whole method is unsupported.
absl::Status FeatureUnsupported(absl::string_view feature, absl::string_view field);

}  // namespace quire::server
