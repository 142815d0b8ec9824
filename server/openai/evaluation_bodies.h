#pragma once

// Reads and writes the bodies of calls without streams: /v1/embeddings in OpenAI's format, and
// /v1/score, /v1/rerank and /v1/classify in the formats of vLLM, Jina and Cohere. server/dialects
// adds calls of other APIs.
//
// Place:      between the OpenAI-compatible listener and Evaluation.
// Invariants: null fields count as absent. If a field is unknown, refused or has a wrong type, the
//             error contains the field's name (request_fields.h).
// Threads:    any.
// Lifetime:   the model outlives a plan.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/evaluation.h"
#include "server/api/serving_state.h"
#include "server/openai/openai_error.h"
#include "server/openai/openai_request.h"

namespace quire::server {

struct EvaluationBodyContext {
  const ServedModel& served;
  OpenAiLimits limits;
  absl::Time wall_now;
  std::string request_id;
  std::int64_t max_input_bytes = 0;  // tokenizer.max_input_bytes
};

// The items of a body, and the function that converts their results to the body of the answer. If
// there are no items, the function is called at once.
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
  BodyFields body;  // for /openapi.json
  WriteErrorBody write_error = &OpenAiErrorBody;
  absl::string_view id_header = "";  // name of a second header with the request id; empty: none
};
std::span<const EvaluationEndpoint> EvaluationEndpoints();

}  // namespace quire::server
