#pragma once

// Requests to embed and to score -> items of an Evaluation, and its results -> the answers.
//
// Place:      between the transports and Evaluation.
// Invariants: what comes out satisfies every range of docs/api.md that does not need the tokens.
// Threads:    any.
// Lifetime:   none.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/evaluation.h"
#include "server/api/serving_state.h"

namespace quire::v1 {
class EmbedRequest;
class EmbedResponse;
class ScoreRequest;
class ScoreResponse;
}  // namespace quire::v1

namespace quire::server {

// FEATURE_UNSUPPORTED where the model cannot embed, BAD_PARAMETER, PROMPT_MISSING, MODEL_NOT_FOUND.
absl::StatusOr<std::vector<EvaluationItem>> ToEvaluationItems(const ServedModel& served,
                                                              const v1::EmbedRequest& message);
// Cuts the vectors to `dimensions`, then scales them to length 1, as the request asks.
// DATA_LOSS / NON_FINITE_LOGITS for a vector without a length to scale.
absl::Status ToProto(const ServedModel& served, const v1::EmbedRequest& message,
                     std::vector<EvaluationResult> results, v1::EmbedResponse* response);

// The same for continuations. Those of one context wait for the first of them, and share its pages.
absl::StatusOr<std::vector<EvaluationItem>> ToEvaluationItems(const ServedModel& served,
                                                              const v1::ScoreRequest& message);
// Sums in double, in the order of the tokens. A continuation is greedy if each of its tokens has
// rank 1: ties go to the lower id, as in sampling.
absl::Status ToProto(const ServedModel& served, const v1::ScoreRequest& message,
                     std::vector<EvaluationResult> results, v1::ScoreResponse* response);

}  // namespace quire::server
