#pragma once

// Classifier and reranker scores: converts texts and pairs of texts to items of an Evaluation, and
// the results of the Evaluation to probabilities.
//
//   classifier     logits = weights * hidden state of the last token; softmax (one label: sigmoid)
//   yes/no         exp(y) / (exp(y) + exp(n)) for the logits of two tokens after the prompt
//
// A pair is rendered by the model's chat template, as messages with the roles `query` and
// `document`. Without a template, a classifier gets the query's tokens followed by the document's
// tokens.
//
// Place:      between the transports and Evaluation.
// Invariants: templates come from the model's files and are never built in. Sums are computed in
//             double, in the order of the hidden state's columns.
// Threads:    any.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/output/token_stream.h"
#include "server/api/evaluation.h"
#include "server/api/serving_state.h"

namespace quire::server {

// The texts are views, because all pairs of a call may have the same query.
struct TextPair {
  absl::string_view query;
  absl::string_view document;
  // The names of these fields in the client's request, for error messages.
  std::string query_field = "query";
  std::string document_field = "document";
};

// Maximum number of bytes of all pairs of a call together. A query that several pairs share counts
// once per pair, since each pair is a prompt.
inline constexpr std::size_t kMaxPairBytes = std::size_t{64} << 20;

// Returns FEATURE_UNSUPPORTED unless the model is a classifier with one label or a yes/no reranker.
// Returns BAD_PARAMETER above kMaxPairBytes, before any pair is copied. The engine's text workers
// render and tokenize the pairs.
absl::StatusOr<std::vector<EvaluationItem>> ToPairItems(const ServedModel& served,
                                                        const std::vector<TextPair>& pairs);
// Returns one score in [0, 1] per pair. REQUIRES: the results belong to items of ToPairItems.
std::vector<double> ComputePairScores(const ServedModel& served,
                                      const std::vector<EvaluationResult>& results);

// Returns FEATURE_UNSUPPORTED unless the model is a classifier.
absl::Status CheckIsClassifier(const ServedModel& served);
// Returns the probability of each label. REQUIRES: `hidden` has the classifier's width.
std::vector<double> ComputeLabelProbabilities(const Classifier& classifier,
                                              const std::vector<float>& hidden);

// Returns the total usage. A prompt that two items share counts twice.
engine::Usage SumUsage(const std::vector<EvaluationResult>& results);

}  // namespace quire::server
