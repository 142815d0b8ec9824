#pragma once

// The rope settings of a config.json, in their two forms.
//
//   old   rope_theta, rope_scaling {type or rope_type, ...}, partial_rotary_factor at the top
//   new   rope_parameters {rope_theta, rope_type, ...}
//
// A non-empty rope_scaling wins over rope_parameters; when both are there and mean different things
// the file is refused. theta is taken from the chosen dictionary, else from the top, else from the
// family's default, with a warning. A top-level original_max_position_embeddings beats the nested
// one; without either it is max_position_embeddings.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config_reader.h"
#include "models/rope_table.h"

namespace quire::models {

struct RopeContext {
  absl::string_view family;  // for messages
  double default_theta = 0;
  std::uint32_t max_position = 0;  // max_position_embeddings
};

// Appends to `warnings`. Errors name the key with its path, such as rope_scaling.factor.
absl::StatusOr<RopeConfig> ReadRopeConfig(const ConfigReader& config, const RopeContext& context,
                                          std::vector<std::string>* warnings);

}  // namespace quire::models
