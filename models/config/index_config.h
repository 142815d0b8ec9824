#pragma once

// The settings in config.json for the indexers of sparse attention (IndexSpec).

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::models {

class ConfigReader;
struct Family;

struct IndexConfig {
  std::uint32_t topk = 0;  // index_topk; 0: the family has no indexer
  std::uint32_t n_heads = 0;
  std::uint32_t head_dim = 0;
  bool rope_interleave = false;  // adjacent columns rotate together
  // True for layers with their own indexer. Other layers use the selection of the last such layer.
  std::vector<bool> has_indexer;
};

// Reads the keys that `family` lists in Family::keys. indexer_types has precedence over
// index_topk_pattern, and index_topk_pattern over index_topk_freq and index_skip_topk_offset. If a
// key is wrong, returns INVALID_ARGUMENT with the key.
absl::StatusOr<IndexConfig> ReadIndex(const ConfigReader& reader, const Family& family,
                                      std::uint32_t num_layers);

}  // namespace quire::models
