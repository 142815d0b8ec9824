#pragma once

// Converts Embed and Score requests to items of an Evaluation, and its results to responses.
//
// Place:      between the transports and Evaluation.
// Invariants: the items satisfy every value range in docs/api.md that does not depend on the
//             tokens.
// Threads:    any.

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

// Returns FEATURE_UNSUPPORTED if the model cannot embed. Other errors are BAD_PARAMETER,
// PROMPT_MISSING and MODEL_NOT_FOUND.
absl::StatusOr<std::vector<EvaluationItem>> ToEvaluationItems(const ServedModel& served,
                                                              const v1::EmbedRequest& message);
// Truncates the vectors to `dimensions` if it is set. Normalizes them if `normalize` is true, or if
// it is unset and the model normalizes by default. Returns DATA_LOSS / NON_FINITE_LOGITS if a
// vector to normalize is zero.
absl::Status ToProto(const ServedModel& served, const v1::EmbedRequest& message,
                     std::vector<EvaluationResult> results, v1::EmbedResponse* response);

// If several items have the same context, and the context may fill a page, the later items wait for
// the first item and reuse its pages.
absl::StatusOr<std::vector<EvaluationItem>> ToEvaluationItems(const ServedModel& served,
                                                              const v1::ScoreRequest& message);
// Sums log-probabilities in double, in token order. A continuation is greedy if each of its tokens
// has rank 1. Among equal logits the lower id ranks first, as in sampling.
absl::Status ToProto(const ServedModel& served, const v1::ScoreRequest& message,
                     std::vector<EvaluationResult> results, v1::ScoreResponse* response);

}  // namespace quire::server
