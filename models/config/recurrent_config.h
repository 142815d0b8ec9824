#pragma once

// The keys of config.json that describe layers with linear attention.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::models {

class ConfigReader;
struct Family;

struct RecurrentConfig {
  std::vector<bool> layers;       // true for recurrent layers; empty: the family has none
  std::uint32_t key_heads = 0;    // linear_num_key_heads
  std::uint32_t value_heads = 0;  // linear_num_value_heads, a multiple of key_heads
  std::uint32_t key_size = 0;     // linear_key_head_dim
  std::uint32_t value_size = 0;   // linear_value_head_dim
  std::uint32_t conv_width = 0;   // linear_conv_kernel_dim
};

// Reads the keys of a family with recurrent layers. layer_types lists the layers. Without it every
// full_attention_interval-th layer has full attention. Returns INVALID_ARGUMENT or UNIMPLEMENTED
// that names the key.
absl::StatusOr<RecurrentConfig> ReadRecurrent(const ConfigReader& reader, const Family& family,
                                              std::uint32_t num_layers);

}  // namespace quire::models
