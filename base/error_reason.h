#pragma once

// Machine-readable error reasons: an enum of all reasons, and a table of how each reason is
// reported to clients. A reason is a payload of an absl::Status, with metadata and a retry delay,
// so every layer can pass it on without parsing it. The server turns it into gRPC's ErrorInfo and
// RetryInfo, or into an HTTP status (docs/api.md, Errors).
//
//   return WithReason(absl::InvalidArgumentError("prompt has 9216 tokens, context is 8192"),
//                     Reason::kPromptTooLong, {{"prompt_tokens", "9216"}, {"max_context_tokens",
//                     "8192"}});
//
// Place:      below everything that can fail because of a caller.
// Invariants: the table has one row for each enumerator, in enum order; names are distinct.
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
  // Only the HTTP listeners use kBadRequest to kHostNotAllowed.
  kBadRequest,
  kUnsupportedEncoding,
  kUnknownEndpoint,
  kMethodNotAllowed,
  kRequestTimeout,
  kHeadersTooLarge,
  kTooManyConnections,
  kOriginNotAllowed,
  kHostNotAllowed,
  // kDeviceLost and kEngineDied appear only in the log. Clients get kEngineError or kDeviceError
  // instead.
  kDeviceLost,
  kEngineDied,
};

// States whether a client should retry, and on which server.
enum class Retry : std::uint8_t { kNo, kSameServer, kOtherServer };

// The detail message that gRPC sends along with ErrorInfo.
enum class ErrorDetail : std::uint8_t { kNone, kBadRequest, kPrecondition, kRetryInfo };

struct ReasonRow {
  Reason reason;
  absl::string_view name;  // on the wire, in logs and metrics; SCREAMING_SNAKE
  absl::StatusCode code;   // the gRPC code has the same number
  int http_status;         // 0: the HTTP client is gone and gets no response
  Retry retry;
  ErrorDetail detail;
  absl::string_view text;  // the cause of the error, in the words of docs/api.md
};

// Returns every reason, in the order of the enum and of docs/api.md.
std::span<const ReasonRow> ReasonTable();
const ReasonRow& RowOf(Reason reason);
std::string ReasonName(Reason reason);

struct ErrorReason {
  Reason reason = Reason::kEngineError;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<absl::Duration> retry_delay;

  std::string name() const { return ReasonName(reason); }
  // Returns the value of the first entry named `key`, or nullopt.
  std::optional<std::string> Find(absl::string_view key) const;
};

// Returns `status` with the reason attached, replacing an earlier reason. An OK status is returned
// unchanged.
absl::Status WithReason(absl::Status status, Reason reason,
                        const std::vector<std::pair<std::string, std::string>>& metadata = {},
                        std::optional<absl::Duration> retry_delay = {});

// Returns nullopt if `status` carries no reason.
std::optional<ErrorReason> GetErrorReason(const absl::Status& status);
bool HasReason(const absl::Status& status, Reason reason);

}  // namespace quire
