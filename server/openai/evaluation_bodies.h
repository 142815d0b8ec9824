#pragma once

// Bodies of calls that have no stream: /v1/embeddings as OpenAI has it, /v1/score, /v1/rerank and
// /v1/classify as vLLM, Jina and Cohere have them.
//
// Place:      between the OpenAI-compatible listener and Evaluation.
// Invariants: as openai_request.h: unknown and null fields are as if absent, what is of the wrong
//             type is named.
// Threads:    any.
// Lifetime:   a plan's `answer` needs the model.

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

// What a body asks for, and how its answer is written.
struct EvaluationPlan {
  std::vector<EvaluationItem> items;
  std::function<absl::StatusOr<std::string>(std::vector<EvaluationResult>)> answer;
};

using ReadEvaluationBody = absl::StatusOr<EvaluationPlan> (*)(const EvaluationBodyContext&,
                                                              absl::string_view body);

struct EvaluationEndpoint {
  absl::string_view path;
  absl::string_view method;  // of metrics and the access log
  ReadEvaluationBody read;
};
// Null for other paths.
const EvaluationEndpoint* FindEvaluationEndpoint(absl::string_view path);

}  // namespace quire::server
