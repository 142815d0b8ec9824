#pragma once

// The keys of config.json that say which layers are mixtures of experts, and of what experts.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::models {

class ConfigReader;
struct Family;

inline constexpr std::uint32_t kMaxExperts = 4096;
// What absent keys swiglu_limit and swiglu_alpha mean, and GGUF files, which have none.
inline constexpr double kDefaultSwigluLimit = 7;
inline constexpr double kDefaultSwigluAlpha = 1.702;

struct MoeConfig {
  std::uint32_t num_experts = 0;        // 0: the family has no mixtures
  std::uint32_t experts_per_token = 0;  // num_experts_per_tok
  std::uint32_t intermediate_size = 0;  // of one expert
  bool norm_topk_prob = false;
  std::vector<bool> sparse_layers;  // whether a layer is a mixture; else it is dense
  std::uint32_t n_shared_experts = 0;
  std::uint32_t n_group = 1;
  std::uint32_t topk_group = 1;
  std::string topk_method;   // empty: not given
  std::string scoring_func;  // likewise
  double routed_scaling_factor = 1;
  double swiglu_limit = 0;
  double swiglu_alpha = 0;
};

// What `family` reads of them (Family::keys): num_experts, num_local_experts and n_routed_experts
// are three names of one number, num_experts_per_tok and experts_per_token two. Experts are as wide
// as `intermediate_size`, which is the dense layers', where the family does not read
// moe_intermediate_size. Returns INVALID_ARGUMENT that names the key.
absl::StatusOr<MoeConfig> ReadMoe(const ConfigReader& reader, const Family& family,
                                  std::uint32_t num_layers, std::uint32_t intermediate_size);

}  // namespace quire::models
