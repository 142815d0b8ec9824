#pragma once

// The machine-readable part of an error: a reason such as PROMPT_TOO_LONG, numbers, and when to try
// again. It rides in an absl::Status as a payload, so every layer can pass it up unread; the server
// turns it into gRPC's ErrorInfo and RetryInfo.
//
//   return WithReason(absl::InvalidArgumentError("prompt has 9216 tokens, context is 8192"),
//                     "PROMPT_TOO_LONG", {{"prompt_tokens", "9216"}, {"max_context_tokens",
//                     "8192"}});

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace quire {

struct ErrorReason {
  std::string reason;  // SCREAMING_SNAKE, of the table in docs/api.md
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<absl::Duration> retry_delay;

  // The value of the first entry `key`, or nothing.
  std::optional<std::string> Find(absl::string_view key) const;
};

// Returns `status` with the reason attached, replacing an earlier one. An OK status stays as it is.
// REQUIRES: `reason` is not empty.
absl::Status WithReason(absl::Status status, absl::string_view reason,
                        const std::vector<std::pair<std::string, std::string>>& metadata = {},
                        std::optional<absl::Duration> retry_delay = {});

// Nothing if `status` carries no reason.
std::optional<ErrorReason> GetErrorReason(const absl::Status& status);

}  // namespace quire
