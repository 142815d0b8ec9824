#pragma once

// What the files of sentence-transformers beside a model say: how hidden states become one vector,
// or the logits of two tokens a score.
//
// Place:      read with the configuration; the server's defaults for requests.
// Invariants: a module, a mode or a flag that would give other vectors than ours is an error that
//             names it; nothing is left out silently.
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

// A score is the softmax over the logits of two tokens behind the prompt: exp(t) / (exp(t) +
// exp(f)).
struct LogitScore {
  std::int32_t true_token_id = 0;
  std::int32_t false_token_id = 0;
};

struct PoolingConfig {
  PoolingMode mode = PoolingMode::kLast;
  bool normalize = false;
  std::optional<LogitScore> logit_score = {};  // of a reranker, which pools nothing
};

// From modules.json and the files that it names; without it from 1_Pooling/config.json; without
// that the last token, not normalised, as sentence-transformers 6 takes for causal models.
absl::StatusOr<PoolingConfig> ReadPoolingConfig(const formats::ModelFiles& files,
                                                std::uint32_t hidden_size,
                                                std::uint32_t vocab_size);

}  // namespace quire::models
