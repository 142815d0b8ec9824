#pragma once

// The one table between statuses and the wire: reason -> gRPC code, HTTP status, and which details
// go along (docs/api.md, Errors).
//
// Place:      between the layers below, whose absl::Status carries a reason (base/error_reason.h),
//             and the transports. Knows no transport itself.
// Invariants: a wire error always has a reason of the table. What carries none, or one that the
//             table does not know, is a bug of ours: INTERNAL / ENGINE_ERROR with an incident id,
//             and the text goes to the log only.
// Threads:    any.
// Lifetime:   the table is constant.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace quire::server {

// Where trying again makes sense.
enum class Retry : std::uint8_t { kNo, kSameServer, kOtherServer };

// What accompanies the ErrorInfo.
enum class Extra : std::uint8_t { kNone, kBadRequest, kPrecondition, kRetryInfo };

struct ReasonRow {
  const char* reason;
  absl::StatusCode code;  // equal to the gRPC code, number by number
  int http_status;        // 0: the HTTP side has nobody left to tell
  Retry retry;
  Extra extra;
};

// Every reason that this server may send, in the order of docs/api.md.
std::span<const ReasonRow> ReasonTable();
// Null when the table has no such reason.
const ReasonRow* FindReason(absl::string_view reason);

struct WireError {
  absl::StatusCode code = absl::StatusCode::kInternal;
  int http_status = 500;
  Extra extra = Extra::kNone;
  std::string reason;
  std::string message;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<absl::Duration> retry_delay;

  // The value of the first entry `key`, or "".
  absl::string_view Find(absl::string_view key) const;
};

// What is a bug of ours, turned into ENGINE_ERROR with an incident id after its text was logged;
// anything else, and what was sealed before, stays as it is. Seal a status once when it is used
// twice, else the log shows two incidents.
absl::Status Seal(absl::Status status);

// REQUIRES: !status.ok(). Seals. Message and metadata are cut so that the encoded details stay
// below 4 KiB.
WireError ToWireError(const absl::Status& status);

// Statuses that handlers make themselves.
absl::Status BadParameter(absl::string_view field, absl::string_view value,
                          absl::string_view range);
// UNIMPLEMENTED / FEATURE_UNSUPPORTED; `field` may be empty (a whole method).
absl::Status FeatureUnsupported(absl::string_view feature, absl::string_view field);

}  // namespace quire::server
