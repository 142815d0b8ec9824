#include "server/api/status_mapping.h"

#include <algorithm>
#include <cstddef>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"

namespace quire::server {
namespace {

using absl::StatusCode;

constexpr ReasonRow kTable[] = {
    {"PROMPT_MISSING", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kBadRequest},
    {"PROMPT_TOO_LONG", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kNone},
    {"NEVER_FITS", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kNone},
    {"INPUT_TOO_LARGE", StatusCode::kInvalidArgument, 413, Retry::kNo, Extra::kNone},
    {"BAD_UTF8", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kBadRequest},
    {"BAD_TOKEN_ID", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kNone},
    {"BAD_SAMPLING_PARAM", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kBadRequest},
    {"BAD_PARAMETER", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kBadRequest},
    {"BAD_CONSTRAINT", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kNone},
    {"SELECTION_EMPTY", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kBadRequest},
    {"TOO_MANY_STOPS", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kNone},
    {"BAD_CHAT_TEMPLATE_INPUT", StatusCode::kInvalidArgument, 400, Retry::kNo, Extra::kNone},
    {"MODEL_NOT_FOUND", StatusCode::kNotFound, 404, Retry::kNo, Extra::kNone},
    {"REQUEST_NOT_FOUND", StatusCode::kNotFound, 404, Retry::kNo, Extra::kNone},
    {"REQUEST_ID_IN_USE", StatusCode::kAlreadyExists, 409, Retry::kNo, Extra::kNone},
    {"QUEUE_FULL", StatusCode::kResourceExhausted, 429, Retry::kSameServer, Extra::kRetryInfo},
    {"TENANT_LIMIT", StatusCode::kResourceExhausted, 429, Retry::kSameServer, Extra::kRetryInfo},
    {"QUEUE_TIMEOUT", StatusCode::kResourceExhausted, 429, Retry::kSameServer, Extra::kRetryInfo},
    {"DEADLINE_UNREACHABLE", StatusCode::kResourceExhausted, 429, Retry::kOtherServer,
     Extra::kRetryInfo},
    {"MODEL_LOADING", StatusCode::kUnavailable, 503, Retry::kSameServer, Extra::kRetryInfo},
    {"SERVER_DRAINING", StatusCode::kUnavailable, 503, Retry::kOtherServer, Extra::kRetryInfo},
    {"SERVER_SHUTDOWN", StatusCode::kUnavailable, 503, Retry::kOtherServer, Extra::kRetryInfo},
    {"DEVICE_ERROR", StatusCode::kUnavailable, 503, Retry::kOtherServer, Extra::kRetryInfo},
    {"CHAT_TEMPLATE_MISSING", StatusCode::kFailedPrecondition, 400, Retry::kNo,
     Extra::kPrecondition},
    {"FEATURE_DISABLED", StatusCode::kFailedPrecondition, 400, Retry::kNo, Extra::kPrecondition},
    {"NOT_IDLE", StatusCode::kFailedPrecondition, 409, Retry::kNo, Extra::kPrecondition},
    {"SHUTTING_DOWN", StatusCode::kFailedPrecondition, 409, Retry::kNo, Extra::kPrecondition},
    {"FEATURE_UNSUPPORTED", StatusCode::kUnimplemented, 501, Retry::kNo, Extra::kNone},
    {"TIMEOUT", StatusCode::kDeadlineExceeded, 504, Retry::kNo, Extra::kNone},
    {"CANCELLED_BY_CALLER", StatusCode::kCancelled, 499, Retry::kNo, Extra::kNone},
    {"ABORTED_BY_ADMIN", StatusCode::kCancelled, 503, Retry::kOtherServer, Extra::kNone},
    {"SLOW_CLIENT", StatusCode::kCancelled, 0, Retry::kNo, Extra::kNone},
    {"TOKEN_MISSING", StatusCode::kUnauthenticated, 401, Retry::kNo, Extra::kNone},
    {"TOKEN_INVALID", StatusCode::kUnauthenticated, 401, Retry::kNo, Extra::kNone},
    {"SCOPE", StatusCode::kPermissionDenied, 403, Retry::kNo, Extra::kNone},
    {"NON_FINITE_LOGITS", StatusCode::kDataLoss, 500, Retry::kOtherServer, Extra::kNone},
    {"ENGINE_ERROR", StatusCode::kInternal, 500, Retry::kOtherServer, Extra::kNone},
};

constexpr std::size_t kMaxMessageBytes = 1024;
constexpr std::size_t kMaxValueBytes = 512;
constexpr std::size_t kMaxMetadataBytes = 2048;  // all entries together
constexpr absl::Duration kDefaultRetryDelay = absl::Seconds(1);

// At most `limit` bytes of `text`, never half a UTF-8 character.
std::string Cut(absl::string_view text, std::size_t limit) {
  if (text.size() <= limit) return std::string(text);
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

std::string NewIncidentId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

// The reason of a status that carries none but whose code leaves no doubt; null otherwise.
const ReasonRow* ReasonOfCode(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument: return FindReason("BAD_PARAMETER");
    case StatusCode::kUnimplemented: return FindReason("FEATURE_UNSUPPORTED");
    case StatusCode::kDeadlineExceeded: return FindReason("TIMEOUT");
    case StatusCode::kCancelled: return FindReason("CANCELLED_BY_CALLER");
    default: return nullptr;
  }
}

const ReasonRow* RowOf(const absl::Status& status, const std::optional<ErrorReason>& reason) {
  return reason ? FindReason(reason->reason) : ReasonOfCode(status.code());
}

}  // namespace

std::span<const ReasonRow> ReasonTable() { return kTable; }

const ReasonRow* FindReason(absl::string_view reason) {
  for (const ReasonRow& row : kTable) {
    if (reason == row.reason) return &row;
  }
  return nullptr;
}

absl::string_view WireError::Find(absl::string_view key) const {
  for (const auto& [name, value] : metadata) {
    if (name == key) return value;
  }
  return "";
}

absl::Status Seal(absl::Status status) {
  if (status.ok()) return status;
  const std::optional<ErrorReason> reason = GetErrorReason(status);
  const ReasonRow* row = RowOf(status, reason);
  if (row != nullptr && (row->code != StatusCode::kInternal || reason->Find("incident_id"))) {
    return status;
  }
  const std::string incident = NewIncidentId();
  log::Error("api", "internal error",
             {{"incident_id", incident}, {"status", Cut(status.ToString(), 4096)}});
  return WithReason(absl::InternalError(absl::StrCat("internal error, incident ", incident)),
                    "ENGINE_ERROR", {{"incident_id", incident}});
}

WireError ToWireError(const absl::Status& original) {
  QUIRE_CHECK(!original.ok());
  const absl::Status status = Seal(original);
  const std::optional<ErrorReason> reason = GetErrorReason(status);
  const ReasonRow* row = RowOf(status, reason);
  WireError error;
  error.code = row->code;
  error.http_status = row->http_status;
  error.extra = row->extra;
  error.reason = row->reason;
  error.message = Cut(status.message(), kMaxMessageBytes);
  std::size_t bytes = 0;
  if (reason) {
    for (const auto& [key, value] : reason->metadata) {
      std::string text = Cut(value, kMaxValueBytes);
      bytes += key.size() + text.size();
      if (bytes > kMaxMetadataBytes) break;
      error.metadata.emplace_back(key, std::move(text));
    }
    error.retry_delay = reason->retry_delay;
  }
  if (row->extra == Extra::kRetryInfo && !error.retry_delay) {
    error.retry_delay = kDefaultRetryDelay;
  }
  return error;
}

absl::Status BadParameter(absl::string_view field, absl::string_view value,
                          absl::string_view range) {
  return WithReason(absl::InvalidArgumentError(
                        absl::StrCat(field, " is ", Cut(value, 128), ", it must be ", range)),
                    "BAD_PARAMETER",
                    {{"field", std::string(field)},
                     {"value", Cut(value, 128)},
                     {"range", std::string(range)}});
}

absl::Status FeatureUnsupported(absl::string_view feature, absl::string_view field) {
  std::vector<std::pair<std::string, std::string>> metadata = {{"feature", std::string(feature)}};
  if (!field.empty()) metadata.emplace_back("field", std::string(field));
  return WithReason(absl::UnimplementedError(absl::StrCat(feature, " is not supported")),
                    "FEATURE_UNSUPPORTED", std::move(metadata));
}

}  // namespace quire::server
