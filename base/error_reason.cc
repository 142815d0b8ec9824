#include "base/error_reason.h"

#include <cstddef>
#include <iterator>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace quire {
namespace {

using absl::StatusCode;

constexpr ReasonRow kReasons[] = {
    {Reason::kPromptMissing, "PROMPT_MISSING", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kBadRequest, "the prompt, input or command is missing or empty"},
    {Reason::kPromptTooLong, "PROMPT_TOO_LONG", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kNone, "the prompt does not fit into the context"},
    {Reason::kExceedsCapacity, "EXCEEDS_CAPACITY", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kNone,
     "the request needs more pages than the pool has, or its prompt exceeds the queue's token "
     "limit"},
    {Reason::kInputTooLarge, "INPUT_TOO_LARGE", StatusCode::kInvalidArgument, 413, Retry::kNo,
     ErrorDetail::kNone,
     "the text or chat exceeds `tokenizer.max_input_bytes`, the rendered chat exceeds "
     "`chat.max_render_bytes`, the HTTP body is too large, or Tokenize would return the bytes of "
     "more than 1000000 tokens"},
    {Reason::kBadUtf8, "BAD_UTF8", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kBadRequest, "a text is not valid UTF-8"},
    {Reason::kBadTokenId, "BAD_TOKEN_ID", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kNone, "a token id is not in the vocabulary"},
    {Reason::kBadSamplingParam, "BAD_SAMPLING_PARAM", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kBadRequest, "a field of `sampling` is out of range"},
    {Reason::kBadParameter, "BAD_PARAMETER", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kBadRequest, "a field outside `sampling` has an invalid value"},
    {Reason::kBadConstraint, "BAD_CONSTRAINT", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kNone, "the constraint is not supported, or allows no next token"},
    {Reason::kSelectionEmpty, "SELECTION_EMPTY", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kBadRequest, "AbortRequests selects no requests"},
    {Reason::kTooManyStops, "TOO_MANY_STOPS", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kNone,
     "there are too many stop sequences or stop token ids, or a stop sequence is empty or too "
     "long"},
    {Reason::kBadChatTemplateInput, "BAD_CHAT_TEMPLATE_INPUT", StatusCode::kInvalidArgument, 400,
     Retry::kNo, ErrorDetail::kNone,
     "the template raised an error, or the conversation is malformed"},
    {Reason::kModelNotFound, "MODEL_NOT_FOUND", StatusCode::kNotFound, 404, Retry::kNo,
     ErrorDetail::kNone, "the server has no model with this name"},
    {Reason::kRequestIdInUse, "REQUEST_ID_IN_USE", StatusCode::kAlreadyExists, 409, Retry::kNo,
     ErrorDetail::kNone, "a live request already has this id"},
    {Reason::kQueueFull, "QUEUE_FULL", StatusCode::kResourceExhausted, 429, Retry::kSameServer,
     ErrorDetail::kRetryInfo, "a limit `limits.max_queued_*` is reached"},
    {Reason::kTenantLimit, "TENANT_LIMIT", StatusCode::kResourceExhausted, 429, Retry::kSameServer,
     ErrorDetail::kRetryInfo, "a limit of the tenant (`tenants.*`) is reached"},
    {Reason::kQueueTimeout, "QUEUE_TIMEOUT", StatusCode::kResourceExhausted, 429,
     Retry::kSameServer, ErrorDetail::kRetryInfo, "the request was not scheduled in time"},
    {Reason::kModelLoading, "MODEL_LOADING", StatusCode::kUnavailable, 503, Retry::kSameServer,
     ErrorDetail::kRetryInfo, "the server is not ready yet"},
    {Reason::kServerDraining, "SERVER_DRAINING", StatusCode::kUnavailable, 503, Retry::kOtherServer,
     ErrorDetail::kRetryInfo, "the server is draining and accepts no new requests"},
    {Reason::kServerShutdown, "SERVER_SHUTDOWN", StatusCode::kUnavailable, 503, Retry::kOtherServer,
     ErrorDetail::kRetryInfo, "the process is exiting"},
    {Reason::kDeviceError, "DEVICE_ERROR", StatusCode::kUnavailable, 503, Retry::kOtherServer,
     ErrorDetail::kRetryInfo, "the device or the engine has failed, and the process is exiting"},
    {Reason::kChatTemplateMissing, "CHAT_TEMPLATE_MISSING", StatusCode::kFailedPrecondition, 400,
     Retry::kNo, ErrorDetail::kPrecondition,
     "the model has no usable chat template, none with this name, or none that prints the tools; "
     "the message gives the cause"},
    {Reason::kNotIdle, "NOT_IDLE", StatusCode::kFailedPrecondition, 409, Retry::kNo,
     ErrorDetail::kPrecondition, "the call requires an idle server, but requests are live"},
    {Reason::kShuttingDown, "SHUTTING_DOWN", StatusCode::kFailedPrecondition, 409, Retry::kNo,
     ErrorDetail::kPrecondition, "the process is already exiting"},
    {Reason::kFeatureUnsupported, "FEATURE_UNSUPPORTED", StatusCode::kUnimplemented, 400,
     Retry::kNo, ErrorDetail::kNone, "this version does not support the feature"},
    {Reason::kTimeout, "TIMEOUT", StatusCode::kDeadlineExceeded, 504, Retry::kNo,
     ErrorDetail::kNone, "the deadline has passed"},
    {Reason::kCancelledByCaller, "CANCELLED_BY_CALLER", StatusCode::kCancelled, 499, Retry::kNo,
     ErrorDetail::kNone, "a Cancel call or a closed stream ended the request"},
    {Reason::kAbortedByAdmin, "ABORTED_BY_ADMIN", StatusCode::kCancelled, 503, Retry::kOtherServer,
     ErrorDetail::kNone, "an AbortRequests call ended the request"},
    {Reason::kSlowClient, "SLOW_CLIENT", StatusCode::kCancelled, 0, Retry::kNo, ErrorDetail::kNone,
     "the client read nothing for `stream.slow_client_timeout`"},
    {Reason::kTokenMissing, "TOKEN_MISSING", StatusCode::kUnauthenticated, 401, Retry::kNo,
     ErrorDetail::kNone, "the bearer token or the client certificate is missing"},
    {Reason::kTokenInvalid, "TOKEN_INVALID", StatusCode::kUnauthenticated, 401, Retry::kNo,
     ErrorDetail::kNone, "the token is unknown, or was revoked while the call ran"},
    {Reason::kScopeMissing, "SCOPE_MISSING", StatusCode::kPermissionDenied, 403, Retry::kNo,
     ErrorDetail::kNone, "the caller lacks the required scope"},
    {Reason::kNonFiniteLogits, "NON_FINITE_LOGITS", StatusCode::kDataLoss, 500, Retry::kOtherServer,
     ErrorDetail::kNone, "the logits of the request contain NaN or infinity"},
    {Reason::kEngineError, "ENGINE_ERROR", StatusCode::kInternal, 500, Retry::kOtherServer,
     ErrorDetail::kNone, "a defect of the server; the log has the details under the incident id"},
    {Reason::kBadRequest, "BAD_REQUEST", StatusCode::kInvalidArgument, 400, Retry::kNo,
     ErrorDetail::kNone, "the HTTP request is malformed or not supported"},
    {Reason::kUnsupportedEncoding, "UNSUPPORTED_ENCODING", StatusCode::kInvalidArgument, 415,
     Retry::kNo, ErrorDetail::kNone, "the body has a `Content-Encoding` other than identity"},
    {Reason::kUnknownEndpoint, "UNKNOWN_ENDPOINT", StatusCode::kNotFound, 404, Retry::kNo,
     ErrorDetail::kNone, "the path does not exist"},
    {Reason::kMethodNotAllowed, "METHOD_NOT_ALLOWED", StatusCode::kUnimplemented, 405, Retry::kNo,
     ErrorDetail::kNone, "the path does not support the method"},
    {Reason::kRequestTimeout, "REQUEST_TIMEOUT", StatusCode::kDeadlineExceeded, 408, Retry::kNo,
     ErrorDetail::kNone, "the request did not arrive in time"},
    {Reason::kHeadersTooLarge, "HEADERS_TOO_LARGE", StatusCode::kInvalidArgument, 431, Retry::kNo,
     ErrorDetail::kNone, "the headers are too large"},
    {Reason::kTooManyConnections, "TOO_MANY_CONNECTIONS", StatusCode::kUnavailable, 503,
     Retry::kSameServer, ErrorDetail::kRetryInfo, "the limit of connections is reached"},
    {Reason::kOriginNotAllowed, "ORIGIN_NOT_ALLOWED", StatusCode::kPermissionDenied, 403,
     Retry::kNo, ErrorDetail::kNone,
     "a browser sent the request from an origin that is not allowed"},
    {Reason::kHostNotAllowed, "HOST_NOT_ALLOWED", StatusCode::kPermissionDenied, 403, Retry::kNo,
     ErrorDetail::kNone,
     "the server has no authentication, and the `Host` header is not an IP address or localhost"},
    {Reason::kDeviceLost, "DEVICE_LOST", StatusCode::kInternal, 500, Retry::kOtherServer,
     ErrorDetail::kNone, "the device no longer responds"},
    {Reason::kEngineDied, "ENGINE_DIED", StatusCode::kInternal, 500, Retry::kOtherServer,
     ErrorDetail::kNone, "the engine thread has ended"},
};

constexpr bool IsInOrder() {
  for (std::size_t i = 0; i < std::size(kReasons); ++i) {
    if (static_cast<std::size_t>(kReasons[i].reason) != i) return false;
  }
  return std::size(kReasons) == static_cast<std::size_t>(Reason::kEngineDied) + 1;
}
static_assert(IsInOrder(), "kReasons needs one row for each enumerator, in enum order");

const ReasonRow* FindRow(absl::string_view name) {
  for (const ReasonRow& row : kReasons) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

constexpr absl::string_view kPayloadUrl = "quire/error_reason";

// The payload has lines of the form `<tag><value>`: r is the reason, d the retry delay in
// nanoseconds, k and v are a metadata key and value. Values are C-escaped, so they contain no
// newline.
void AppendLine(char tag, absl::string_view value, std::string* out) {
  absl::StrAppend(out, absl::string_view(&tag, 1), absl::CHexEscape(value), "\n");
}

bool ParseLine(absl::string_view line, ErrorReason* parsed, bool* has_reason) {
  std::string value;
  if (line.empty() || !absl::CUnescape(line.substr(1), &value)) return false;
  switch (line[0]) {
    case 'r': {
      const ReasonRow* row = FindRow(value);
      if (row == nullptr) return false;
      parsed->reason = row->reason;
      *has_reason = true;
      return true;
    }
    case 'k':
      parsed->metadata.emplace_back(std::move(value), "");
      return true;
    case 'v':
      if (parsed->metadata.empty()) return false;
      parsed->metadata.back().second = std::move(value);
      return true;
    case 'd': {
      std::int64_t nanoseconds = 0;
      if (!absl::SimpleAtoi(value, &nanoseconds)) return false;
      parsed->retry_delay = absl::Nanoseconds(nanoseconds);
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

std::span<const ReasonRow> ReasonTable() {
  return kReasons;
}

const ReasonRow& RowOf(Reason reason) {
  return kReasons[static_cast<std::size_t>(reason)];
}

std::string ReasonName(Reason reason) {
  return std::string(RowOf(reason).name);
}

std::optional<std::string> ErrorReason::Find(absl::string_view key) const {
  for (const auto& [name, value] : metadata) {
    if (name == key) return value;
  }
  return std::nullopt;
}

absl::Status WithReason(absl::Status status, Reason reason,
                        const std::vector<std::pair<std::string, std::string>>& metadata,
                        std::optional<absl::Duration> retry_delay) {
  std::string payload;
  AppendLine('r', RowOf(reason).name, &payload);
  if (retry_delay.has_value()) {
    AppendLine('d', absl::StrCat(absl::ToInt64Nanoseconds(*retry_delay)), &payload);
  }
  for (const auto& [key, value] : metadata) {
    AppendLine('k', key, &payload);
    AppendLine('v', value, &payload);
  }
  status.SetPayload(kPayloadUrl, absl::Cord(payload));
  return status;
}

std::optional<ErrorReason> GetErrorReason(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return std::nullopt;
  ErrorReason parsed;
  bool has_reason = false;
  const std::string text(*payload);
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (!ParseLine(line, &parsed, &has_reason)) return std::nullopt;
  }
  if (!has_reason) return std::nullopt;
  return parsed;
}

bool HasReason(const absl::Status& status, Reason reason) {
  const std::optional<ErrorReason> carried = GetErrorReason(status);
  return carried.has_value() && carried->reason == reason;
}

}  // namespace quire
