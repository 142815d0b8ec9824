#pragma once

// Reads and writes the bodies of calls without streams: /v1/embeddings in OpenAI's format, and
// /v1/score, /v1/rerank and /v1/classify in the formats of vLLM, Jina and Cohere.
//
// Place:      between the OpenAI-compatible listener and Evaluation.
// Invariants: null fields count as absent. Errors about an unknown, refused or mistyped field name
//             the field (request_fields.h).
// Threads:    any.
// Lifetime:   the model outlives a plan.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/evaluation.h"
#include "server/api/serving_state.h"
#include "server/openai/openai_request.h"

namespace quire::server {

struct EvaluationBodyContext {
  const ServedModel& served;
  OpenAiLimits limits;
  absl::Time wall_now;
  std::string request_id;
};

// The items of a body, and the function that writes its answer.
struct EvaluationPlan {
  std::vector<EvaluationItem> items;
  std::function<absl::StatusOr<std::string>(std::vector<EvaluationResult>)> answer;
};

using ReadEvaluationBody = absl::StatusOr<EvaluationPlan> (*)(const EvaluationBodyContext&,
                                                              absl::string_view body);

struct EvaluationEndpoint {
  absl::string_view path;
  absl::string_view method;  // name in metrics and the access log
  ReadEvaluationBody read;
};
// Returns null for other paths.
const EvaluationEndpoint* FindEvaluationEndpoint(absl::string_view path);

}  // namespace quire::server
