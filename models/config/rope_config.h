#pragma once

// The rope settings of config.json, in all the forms that publishers use.
//
//   old     rope_theta, rope_scaling {type or rope_type, ...}, partial_rotary_factor at the top
//   new     rope_parameters {rope_theta, rope_type, ...}
//   nested  rope_parameters {full_attention {...}, sliding_attention {...}}, for families that read
//           rope_local_base_freq or global_head_dim or have scales_full_layers_only. In their old
//           form rope_theta and rope_scaling apply to full layers, and rope_local_base_freq to
//           windowed ones. With scales_full_layers_only rope_theta also applies to windowed layers
//
// A non-empty rope_scaling takes precedence over rope_parameters. The file is refused if both are
// present and differ. theta is read from the chosen dictionary, else from the top level, else it is
// the family's default, with a warning. partial_rotary_factor is read likewise, without a warning.
// Some families state the number of rotated columns as rotary_dim instead.
// A top-level original_max_position_embeddings takes precedence over a nested one; the default is
// max_position_embeddings. attn_factor of yarn is ignored with a warning, as in transformers.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config/config_reader.h"
#include "models/config/rope_table.h"

namespace quire::models {

struct Family;

struct RopeContext {
  const Family& family;
  std::uint32_t max_position = 0;  // max_position_embeddings
  std::uint32_t head_dim = 0;
};

struct RopeSettings {
  RopeConfig rope;                  // for all layers, or for full layers only if `local` is set
  std::optional<RopeConfig> local;  // for windowed layers, if they differ
  std::uint32_t rotary_size = 0;    // rotated columns of a head; even
};

// Appends to `warnings`. Errors name the key with its path, such as rope_scaling.factor.
absl::StatusOr<RopeSettings> ReadRopeConfig(const ConfigReader& config, const RopeContext& context,
                                            std::vector<std::string>* warnings);

}  // namespace quire::models
