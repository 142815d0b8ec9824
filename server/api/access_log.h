#pragma once

// One line per finished request.
//
// Place:      written by generation.h at the end of a request.
// Invariants: no text of prompts or outputs.
// Threads:    any.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/error_reason.h"

namespace quire::server {

struct AccessRecord {
  absl::string_view method;  // "Generate" or "BatchGenerate"
  std::string request_id, principal, tenant, model, traceparent;
  std::map<std::string, std::string> labels;
  std::string code = "OK";       // name of the gRPC code
  std::optional<Reason> reason;  // set if the request failed
  std::int32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  absl::Duration time_to_first_token;  // 0: no token was sent
  absl::Duration duration;
};

void WriteAccessLog(const AccessRecord& record);

}  // namespace quire::server
