#include "base/error_reason.h"

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace quire {
namespace {

constexpr absl::string_view kPayloadUrl = "quire/error_reason";

// The payload is lines of `tag value`: r for the reason, d for the retry delay in nanoseconds, k
// and v for the metadata. Values are C-escaped, so they contain no line end.
void AppendLine(char tag, absl::string_view value, std::string* out) {
  absl::StrAppend(out, absl::string_view(&tag, 1), absl::CHexEscape(value), "\n");
}

bool ParseLine(absl::string_view line, ErrorReason* parsed) {
  std::string value;
  if (line.empty() || !absl::CUnescape(line.substr(1), &value)) return false;
  switch (line[0]) {
    case 'r':
      parsed->reason = std::move(value);
      return true;
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

std::optional<std::string> ErrorReason::Find(absl::string_view key) const {
  for (const auto& [name, value] : metadata) {
    if (name == key) return value;
  }
  return std::nullopt;
}

absl::Status WithReason(absl::Status status, absl::string_view reason,
                        const std::vector<std::pair<std::string, std::string>>& metadata,
                        std::optional<absl::Duration> retry_delay) {
  QUIRE_CHECK(!reason.empty());
  std::string payload;
  AppendLine('r', reason, &payload);
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
  const std::string text(*payload);
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (!ParseLine(line, &parsed)) return std::nullopt;
  }
  if (parsed.reason.empty()) return std::nullopt;
  return parsed;
}

}  // namespace quire
