#pragma once

// Why something failed, machine-readable: one enum of all reasons, one table of what each means to
// a client, and the way in which a reason travels. It rides in an absl::Status as a payload, with
// numbers and the time to try again, so every layer can pass it up unread; the server turns it into
// gRPC's ErrorInfo and RetryInfo, or into an HTTP status (docs/api.md, Errors).
//
//   return WithReason(absl::InvalidArgumentError("prompt has 9216 tokens, context is 8192"),
//                     Reason::kPromptTooLong, {{"prompt_tokens", "9216"}, {"max_context_tokens",
//                     "8192"}});
//
// Place:      below everything that can fail because of a caller.
// Invariants: the table has one row for each enumerator, in their order; names are distinct.
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

namespace quire {

enum class Reason : std::uint8_t {
  kPromptMissing,
  kPromptTooLong,
  kExceedsCapacity,
  kInputTooLarge,
  kBadUtf8,
  kBadTokenId,
  kBadSamplingParam,
  kBadParameter,
  kBadConstraint,
  kSelectionEmpty,
  kTooManyStops,
  kBadChatTemplateInput,
  kModelNotFound,
  kRequestIdInUse,
  kQueueFull,
  kTenantLimit,
  kQueueTimeout,
  kModelLoading,
  kServerDraining,
  kServerShutdown,
  kDeviceError,
  kChatTemplateMissing,
  kNotIdle,
  kShuttingDown,
  kFeatureUnsupported,
  kTimeout,
  kCancelledByCaller,
  kAbortedByAdmin,
  kSlowClient,
  kTokenMissing,
  kTokenInvalid,
  kScopeMissing,
  kNonFiniteLogits,
  kEngineError,
  // Only HTTP gives the next ones.
  kBadRequest,
  kUnsupportedEncoding,
  kUnknownEndpoint,
  kMethodNotAllowed,
  kRequestTimeout,
  kHeadersTooLarge,
  kTooManyConnections,
  kOriginNotAllowed,
  kHostNotAllowed,
  // Only the log shows the last ones; a client gets kEngineError or kDeviceError.
  kDeviceLost,
  kEngineDied,
};

// Where trying again makes sense.
enum class Retry : std::uint8_t { kNo, kSameServer, kOtherServer };

// What accompanies gRPC's ErrorInfo.
enum class ErrorDetail : std::uint8_t { kNone, kBadRequest, kPrecondition, kRetryInfo };

struct ReasonRow {
  Reason reason;
  absl::string_view name;  // on the wire, in logs and metrics; SCREAMING_SNAKE
  absl::StatusCode code;   // equal to the gRPC code, number by number
  int http_status;         // 0: the HTTP client is gone and gets no answer
  Retry retry;
  ErrorDetail detail;
  absl::string_view text;  // when it happens, as docs/api.md says
};

// Every reason, in the order of the enum and of docs/api.md.
std::span<const ReasonRow> ReasonTable();
const ReasonRow& RowOf(Reason reason);
std::string ReasonName(Reason reason);

struct ErrorReason {
  Reason reason = Reason::kEngineError;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<absl::Duration> retry_delay;

  std::string name() const { return ReasonName(reason); }
  // The value of the first entry `key`, or nothing.
  std::optional<std::string> Find(absl::string_view key) const;
};

// Returns `status` with the reason attached, replacing an earlier one. An OK status stays as it is.
absl::Status WithReason(absl::Status status, Reason reason,
                        const std::vector<std::pair<std::string, std::string>>& metadata = {},
                        std::optional<absl::Duration> retry_delay = {});

// Nothing if `status` carries no reason.
std::optional<ErrorReason> GetErrorReason(const absl::Status& status);
bool HasReason(const absl::Status& status, Reason reason);

}  // namespace quire
