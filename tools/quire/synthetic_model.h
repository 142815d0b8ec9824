#pragma once

// Writes the files of a model without weights. They suffice for `quired --set
// model.load_mode=dummy`, which generates weights, so a shape can be measured without a checkpoint.
//
// Place:      used by `quire make-model`.
// Invariants: every id of the vocabulary has text, so that every sampled token is valid.
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
  std::uint32_t vocab_size = 0;  // at least 258: 256 bytes, begin and end
  std::uint32_t max_position_embeddings = 0;
  double rope_theta = 10000;
  // If above 0, RoPE has "llama3" scaling with factor 8 for this original context length.
  std::uint32_t original_max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  // If above 0, three of four layers are recurrent (gated delta rule), and the model is a Qwen3.5
  // instead of a Llama. It then has output gates, QK norm, and RoPE on a quarter of a head.
  std::uint32_t linear_key_heads = 0, linear_value_heads = 0;

  bool is_hybrid() const { return linear_key_heads > 0; }
  bool is_recurrent(std::uint32_t layer) const {
    return is_hybrid() && (layer + 1) % kFullAttentionInterval != 0;
  }
  std::uint32_t linear_key_columns() const { return linear_key_heads * kLinearHeadSize; }
  std::uint32_t linear_value_columns() const { return linear_value_heads * kLinearHeadSize; }

  static constexpr std::uint32_t kFullAttentionInterval = 4, kLinearHeadSize = 128, kConvWidth = 4;
};

// Returns the shapes "llama-3.1-8b", "tiny" (fast on a CPU), and those of the CPU benchmarks:
// "llama-0.5b", "llama-1.1b", "qwen3.5-4b", and "qwen3.5-4b-quarter". The last shape has a quarter
// of the layers and of the vocabulary, so that layers and head take the same shares of a step as in
// the full model.
const std::vector<ModelShape>& KnownShapes();
// If the name is unknown, returns NOT_FOUND with all known names.
absl::StatusOr<ModelShape> FindShape(absl::string_view name);

// Returns the text of each id in tokenizer files: the 256 bytes, words, begin and end.
std::vector<std::string> SyntheticVocabulary(const ModelShape& shape);

// Creates `directory` and writes config.json, generation_config.json, tokenizer.json and
// tokenizer_config.json. Returns NOT_FOUND for an unknown shape, and FAILED_PRECONDITION if a file
// exists or cannot be written.
absl::Status WriteSyntheticModel(absl::string_view shape_name, const std::string& directory);

}  // namespace quire::client
