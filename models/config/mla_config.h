#pragma once

// The keys of config.json of multi-head latent attention.

#include <cstdint>

#include "absl/status/statusor.h"

namespace quire::models {

class ConfigReader;

struct MlaConfig {
  std::uint32_t q_lora_rank = 0;       // 0: one query matrix
  std::uint32_t kv_lora_rank = 0;      // 0: the family has no latent attention
  std::uint32_t qk_nope_head_dim = 0;  // columns of a query head that do not rotate,
  std::uint32_t qk_rope_head_dim = 0;  // and that do
  std::uint32_t v_head_dim = 0;
  bool rope_interleave = true;  // neighbouring columns rotate together
};

// All but rope_interleave must be given; q_lora_rank may be null, for 0. Returns INVALID_ARGUMENT
// that names the key.
absl::StatusOr<MlaConfig> ReadMla(const ConfigReader& reader);

}  // namespace quire::models
