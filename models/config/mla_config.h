#pragma once

// The MLA keys of config.json.

#include <cstdint>

#include "absl/status/statusor.h"

namespace quire::models {

class ConfigReader;

struct MlaConfig {
  std::uint32_t q_lora_rank = 0;       // 0: one query matrix
  std::uint32_t kv_lora_rank = 0;      // 0: the family has no MLA
  std::uint32_t qk_nope_head_dim = 0;  // columns of a query head without rope
  std::uint32_t qk_rope_head_dim = 0;  // columns of a query head with rope
  std::uint32_t v_head_dim = 0;
  bool rope_interleave = true;  // adjacent columns rotate together
};

// Reads the MLA keys. Only rope_interleave is optional; a null q_lora_rank means 0. Returns
// INVALID_ARGUMENT that names the key.
absl::StatusOr<MlaConfig> ReadMla(const ConfigReader& reader);

}  // namespace quire::models
