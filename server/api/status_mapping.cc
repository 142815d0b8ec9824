#include "server/api/status_mapping.h"

#include <cstddef>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/logging.h"

namespace quire::server {
namespace {

using absl::StatusCode;

constexpr std::size_t kMaxMessageBytes = 1024;
constexpr std::size_t kMaxValueBytes = 512;
constexpr std::size_t kMaxMetadataBytes = 2048;  // all entries together
constexpr absl::Duration kDefaultRetryDelay = absl::Seconds(1);

// Returns at most `limit` bytes of `text`, without splitting a UTF-8 character.
std::string Truncate(absl::string_view text, std::size_t limit) {
  if (text.size() <= limit) return std::string(text);
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

std::string NewIncidentId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

// Returns the reason that the code of a status without a reason determines, or nullopt.
std::optional<Reason> ReasonFromCode(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return Reason::kBadParameter;
    case StatusCode::kUnimplemented:
      return Reason::kFeatureUnsupported;
    case StatusCode::kDeadlineExceeded:
      return Reason::kTimeout;
    case StatusCode::kCancelled:
      return Reason::kCancelledByCaller;
    default:
      return std::nullopt;
  }
}

// Returns the row of the status in the table of reasons, or null if the status is an internal bug.
const ReasonRow* FindPublicRow(const absl::Status& status,
                               const std::optional<ErrorReason>& carried) {
  const std::optional<Reason> reason =
      carried ? std::optional<Reason>(carried->reason) : ReasonFromCode(status.code());
  if (!reason) return nullptr;
  const ReasonRow& row = RowOf(*reason);
  const bool is_public = row.code != StatusCode::kInternal ||
                         (row.reason == Reason::kEngineError && carried->Find("incident_id"));
  return is_public ? &row : nullptr;
}

}  // namespace

absl::string_view WireError::Find(absl::string_view key) const {
  for (const auto& [name, value] : metadata) {
    if (name == key) return value;
  }
  return "";
}

absl::Status SanitizeInternalError(absl::Status status) {
  if (status.ok()) return status;
  if (FindPublicRow(status, GetErrorReason(status)) != nullptr) return status;
  const std::string incident = NewIncidentId();
  log::Error("api", "internal error",
             {{"incident_id", incident}, {"status", Truncate(status.ToString(), 4096)}});
  return WithReason(absl::InternalError(absl::StrCat("internal error, incident ", incident)),
                    Reason::kEngineError, {{"incident_id", incident}});
}

WireError ToWireError(const absl::Status& original) {
  QUIRE_CHECK(!original.ok());
  const absl::Status status = SanitizeInternalError(original);
  const std::optional<ErrorReason> reason = GetErrorReason(status);
  const ReasonRow* row = FindPublicRow(status, reason);
  WireError error;
  error.code = row->code;
  error.http_status = row->http_status;
  error.detail = row->detail;
  error.reason = row->reason;
  error.message = Truncate(status.message(), kMaxMessageBytes);
  std::size_t bytes = 0;
  if (reason) {
    for (const auto& [key, value] : reason->metadata) {
      std::string text = Truncate(value, kMaxValueBytes);
      bytes += key.size() + text.size();
      if (bytes > kMaxMetadataBytes) break;
      error.metadata.emplace_back(key, std::move(text));
    }
    error.retry_delay = reason->retry_delay;
  }
  if (row->detail == ErrorDetail::kRetryInfo && !error.retry_delay) {
    error.retry_delay = kDefaultRetryDelay;
  }
  return error;
}

absl::Status BadParameter(absl::string_view field, absl::string_view value,
                          absl::string_view range) {
  return WithReason(absl::InvalidArgumentError(
                        absl::StrCat(field, " is ", Truncate(value, 128), ", it must be ", range)),
                    Reason::kBadParameter,
                    {{"field", std::string(field)},
                     {"value", Truncate(value, 128)},
                     {"range", std::string(range)}});
}

absl::Status FeatureUnsupported(absl::string_view feature, absl::string_view field) {
  std::vector<std::pair<std::string, std::string>> metadata = {{"feature", std::string(feature)}};
  if (!field.empty()) metadata.emplace_back("field", std::string(field));
  return WithReason(absl::UnimplementedError(absl::StrCat(feature, " is not supported")),
                    Reason::kFeatureUnsupported, std::move(metadata));
}

}  // namespace quire::server
