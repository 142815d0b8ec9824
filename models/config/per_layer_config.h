#pragma once

// Keys of config.json for properties that differ between layers: head sizes, layers that read the K
// and V of other layers, and inputs per layer.

#include <cstdint>

#include "absl/status/statusor.h"

namespace quire::models {

class ConfigReader;
struct Family;

inline constexpr std::uint32_t kDefaultGlobalHeadDim = 512;

// "Full layers" are those without a window.
struct PerLayerConfig {
  std::uint32_t global_head_dim = 0;             // head size of full layers; 0: not read
  std::uint32_t num_global_key_value_heads = 0;  // KV heads of full layers
  std::uint32_t num_kv_shared_layers = 0;        // last layers that read K and V of earlier ones
  bool attention_k_eq_v = false;                 // full layers have no v_proj
  bool use_double_wide_mlp = false;  // the last num_kv_shared_layers have MLPs of twice the width
  std::uint32_t hidden_size_per_layer_input = 0;  // 0: none
  std::uint32_t vocab_size_per_layer_input = 0;
};

// Values of keys that other readers have read.
struct PerLayerContext {
  std::uint32_t vocab_size = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;
};

// Reads the keys if `family` lists global_head_dim in Family::keys. Returns INVALID_ARGUMENT that
// names the key, and UNIMPLEMENTED for bidirectional attention over text.
absl::StatusOr<PerLayerConfig> ReadPerLayerConfig(const ConfigReader& reader, const Family& family,
                                                  const PerLayerContext& context);

}  // namespace quire::models
