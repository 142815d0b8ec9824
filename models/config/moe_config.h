#pragma once

// The MoE keys of config.json.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::models {

class ConfigReader;
struct Family;

inline constexpr std::uint32_t kMaxExperts = 4096;
// Defaults of swiglu_limit and swiglu_alpha. GGUF files have no keys for these values.
inline constexpr double kDefaultSwigluLimit = 7;
inline constexpr double kDefaultSwigluAlpha = 1.702;

struct MoeConfig {
  std::uint32_t num_experts = 0;        // 0: the family has no MoE layers
  std::uint32_t experts_per_token = 0;  // num_experts_per_tok
  std::uint32_t intermediate_size = 0;  // width of one expert
  bool norm_topk_prob = false;
  std::vector<bool> sparse_layers;  // true for MoE layers, false for dense ones
  std::uint32_t n_shared_experts = 0;
  std::uint32_t latent_size = 0;  // moe_latent_size; 0: none
  std::uint32_t n_group = 1;
  std::uint32_t topk_group = 1;
  bool use_routing_bias = true;
  std::string topk_method;   // empty: not given
  std::string scoring_func;  // empty: not given
  std::uint32_t shared_expert_intermediate_size = 0;
  double routed_scaling_factor = 1;
  double swiglu_limit = 0;
  double swiglu_alpha = 0;
};

// Reads the MoE keys that `family` lists in Family::keys. num_experts, num_local_experts and
// n_routed_experts are synonyms, and so are num_experts_per_tok, experts_per_token and
// num_experts_per_token. If the family does not read moe_intermediate_size, experts have the width
// of dense layers, `intermediate_size`. Returns INVALID_ARGUMENT that names the key.
absl::StatusOr<MoeConfig> ReadMoe(const ConfigReader& reader, const Family& family,
                                  std::uint32_t num_layers, std::uint32_t intermediate_size);

}  // namespace quire::models
