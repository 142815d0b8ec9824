#pragma once

// The keys of config.json that describe recurrent layers and layers of different kinds.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config/layer_spec.h"

namespace quire::models {

class ConfigReader;
struct Family;

// The branch that distinguishes a layer. kMlp and kExperts layers have no other branch.
enum class LayerBranch : std::uint8_t { kAttention, kRecurrent, kMlp, kExperts };

// An entry of layer_types, and the branch that it means.
struct LayerTypeName {
  absl::string_view name;
  LayerBranch branch;
};

struct HybridConfig {
  std::vector<LayerBranch> layers;  // empty: all layers have attention and an MLP
  // The sizes, conv_bias and the limits of the time step dt from config.json. Families set the
  // rest.
  RecurrentSpec recurrent;
};

// Reads the keys that `family` lists in Family::keys, for families that have Family::layer_types.
// `hidden_size` determines mamba_d_head "auto". Returns INVALID_ARGUMENT or UNIMPLEMENTED that
// names the key.
absl::StatusOr<HybridConfig> ReadHybrid(const ConfigReader& reader, const Family& family,
                                        std::uint32_t num_layers, std::uint32_t hidden_size);

// Reads the width of dense MLPs of a family that lists block_ff_dim. block_ff_dim takes precedence
// over intermediate_size. If block_auto_adjust_ff_dim is true (the default), the width is two
// thirds of the key's value, times block_ffn_dim_multiplier, rounded up to block_multiple_of.
absl::StatusOr<std::uint32_t> ReadAdjustedWidth(const ConfigReader& reader);

// Returns the text of config.json with {"__float__": "Infinity"} in place of a bare Infinity in
// time_step_limit. Bare Infinity is not JSON, but some programs write it.
std::string WithQuotedInfinity(absl::string_view text);

}  // namespace quire::models
