#pragma once

// Writes the files of a model without its weights: enough for `quired --set model.load_mode=dummy`,
// which makes them up, and so for measurements of a shape that is not at hand.
//
// Place:      behind `quire make-model`.
// Invariants: every id of the vocabulary has text, so that any draw is legal.
// Threads:    any.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::client {

struct ModelShape {
  std::string name;
  std::uint32_t hidden_size = 0, intermediate_size = 0;
  std::uint32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::uint32_t vocab_size = 0;  // 258 or more: 256 bytes, begin and end
  std::uint32_t max_position_embeddings = 0;
  double rope_theta = 10000;
  // Above 0: the "llama3" scaling of RoPE, factor 8, from this many positions.
  std::uint32_t original_max_position_embeddings = 0;
  bool tie_word_embeddings = false;
};

// "llama-3.1-8b"; "tiny", which a CPU computes in no time; and "llama-0.5b" and "llama-1.1b", the
// shapes of the CPU benchmarks.
const std::vector<ModelShape>& KnownShapes();
// NOT_FOUND for a name that KnownShapes lacks, with the names.
absl::StatusOr<ModelShape> FindShape(absl::string_view name);

// The text of each id as tokenizers write it: the 256 bytes, words, begin and end.
std::vector<std::string> SyntheticVocabulary(const ModelShape& shape);

// Writes config.json, generation_config.json, tokenizer.json and tokenizer_config.json into
// `directory`, which is made. Returns NOT_FOUND as FindShape; FAILED_PRECONDITION when one of the
// files exists or cannot be written.
absl::Status WriteSyntheticModel(absl::string_view shape_name, const std::string& directory);

}  // namespace quire::client
