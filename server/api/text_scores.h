#pragma once

// Texts and pairs of texts -> items of an Evaluation, and its results -> probabilities: what
// classifiers and rerankers are asked.
//
//   classifier     logits = score * hidden state of the last token; softmax, of one label sigmoid
//   yes/no         exp(y) / (exp(y) + exp(n)) of two tokens behind the prompt
//
// A pair is rendered by the model's chat template, as messages of the roles `query` and `document`;
// a classifier without a template reads the query with what the tokenizer adds, then the document.
//
// Place:      between the transports and Evaluation.
// Invariants: a template is the model's file, never built in. Sums are in double, in the order of
//             the hidden state's columns.
// Threads:    any.
// Lifetime:   none.

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

// Views: one query may stand in all pairs of a call.
struct TextPair {
  absl::string_view query;
  absl::string_view document;
  // Errors name these fields, in which the client sent them.
  std::string query_field = "query";
  std::string document_field = "document";
};

// Of all pairs of a call, the query counted in each: every pair becomes a prompt of its own.
inline constexpr std::size_t kMaxPairBytes = std::size_t{64} << 20;

// FEATURE_UNSUPPORTED where the model is neither a classifier of one label nor a yes/no reranker;
// BAD_PARAMETER above kMaxPairBytes, before any pair is copied. Pairs are rendered and tokenized by
// the engine's text workers, as all prompts are.
absl::StatusOr<std::vector<EvaluationItem>> ToPairItems(const ServedModel& served,
                                                        const std::vector<TextPair>& pairs);
// One in [0, 1] a pair. REQUIRES: the results are those of ToPairItems.
std::vector<double> PairScores(const ServedModel& served,
                               const std::vector<EvaluationResult>& results);

// FEATURE_UNSUPPORTED where the model is no classifier.
absl::Status CheckClassifies(const ServedModel& served);
// Of each label one in [0, 1]. REQUIRES: a classifier; `hidden` has its width.
std::vector<double> LabelProbabilities(const Classifier& classifier,
                                       const std::vector<float>& hidden);

// What all items have used; a pair's prompt counts once for each item that reads it.
engine::Usage SumOfUsage(const std::vector<EvaluationResult>& results);

}  // namespace quire::server
