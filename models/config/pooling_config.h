#pragma once

// Settings of the sentence-transformers files next to a model: how hidden states are pooled into
// one vector, or how a reranker computes a score from the logits of two tokens.
//
// Place:      read with the configuration; the server uses them as defaults of requests.
// Invariants: an unsupported module, mode or flag is an error that names it, never ignored.
// Threads:    any.
// Lifetime:   values.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace quire::formats {
class ModelFiles;
}

namespace quire::models {

enum class PoolingMode : std::uint8_t { kLast, kMean, kCls };

// A score is the softmax over t and f, the logits of true_token_id and false_token_id after the
// prompt: exp(t) / (exp(t) + exp(f)).
struct LogitScore {
  std::int32_t true_token_id = 0;
  std::int32_t false_token_id = 0;
};

struct PoolingConfig {
  PoolingMode mode = PoolingMode::kLast;
  bool normalize = false;
  std::optional<LogitScore> logit_score = {};  // rerankers, which do not pool
};

// Reads modules.json and the files that it names, or else 1_Pooling/config.json. If neither file
// exists, returns kLast without normalization, which is the default of sentence-transformers 6 for
// causal models.
absl::StatusOr<PoolingConfig> ReadPoolingConfig(const formats::ModelFiles& files,
                                                std::uint32_t hidden_size,
                                                std::uint32_t vocab_size);

}  // namespace quire::models
