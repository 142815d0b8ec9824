#pragma once

// A family of models as data: the configuration keys that it reads, their defaults and the names of
// its tensors. The families themselves are in models/families.

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config/hybrid_config.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/config/tensor_table.h"
#include "models/config/window_config.h"

namespace quire::models {

// A family's defaults for absent keys of config.json. Keys with the value null have other defaults:
// hidden_size / num_attention_heads for head_dim, num_attention_heads for num_key_value_heads, no
// window for sliding_window, and no cap for the softcapping keys.
struct ConfigDefaults {
  double rope_theta = 10000;
  double rope_local_base_freq = 10000;
  double rms_norm_eps = 1e-6;
  absl::string_view hidden_act = "silu";
  std::uint32_t max_position_embeddings = 2048;
  bool tie_word_embeddings = false;
  std::uint32_t vocab_size = 0;           // 0: the key is required
  std::uint32_t num_attention_heads = 0;  // 0: the key is required
  std::uint32_t num_key_value_heads = 0;  // 0: as many as heads
  std::uint32_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  std::uint32_t sliding_window = 0;       // tokens; 0: no window
  std::int64_t sliding_window_pattern = kDefaultWindowPattern;
  bool use_qk_norm = true;                 // for families that list the key
  std::uint32_t attention_chunk_size = 0;  // tokens
  std::uint32_t floor_scale = 0;           // tokens
  double attn_scale = 0;
  std::uint32_t intermediate_size_mlp = 0;
  double query_pre_attn_scalar = 256;
  double attn_logit_softcapping = 0;   // 0: no cap
  double final_logit_softcapping = 0;  // 0: no cap
  std::uint32_t num_experts = 0;       // 0: the family has no MoE layers
  std::uint32_t experts_per_token = 0;
  std::uint32_t moe_intermediate_size = 0;
  std::uint32_t intermediate_size = 0;  // 0: the key is required
  std::uint32_t shared_expert_intermediate_size = 0;
  double partial_rotary_factor = 1;
  bool attention_bias = false;
  bool norm_topk_prob = false;
  std::uint32_t first_k_dense_replace = 0;  // layers
  std::uint32_t n_shared_experts = 0;
  std::uint32_t n_group = 1;
  std::uint32_t topk_group = 1;
  double routed_scaling_factor = 1;
  std::uint32_t index_n_heads = 0;  // with index_topk only
  bool indexer_rope_interleave = false;
};

inline constexpr absl::string_view kSiluNames[] = {"silu", "swish"};

struct Family {
  absl::string_view name;
  std::span<const absl::string_view> architectures;
  std::span<const absl::string_view> model_types;
  ConfigDefaults defaults = {};
  std::span<const absl::string_view> activations = kSiluNames;  // accepted values of hidden_act
  // Keys of config.json that this family reads. Families that do not list such a key refuse it,
  // unless its value is neutral (config_keys.cc).
  std::span<const absl::string_view> keys = {};
  WindowRule windows = WindowRule::kNone;
  // Entries of layer_types, for families with layers of different kinds. Empty: layer_types only
  // distinguishes windowed from full layers.
  std::span<const LayerTypeName> layer_types = {};
  bool has_full_last_layer = false;  // the last layer has no window, regardless of the keys
  // model_type of text_config, for the text model inside a multimodal model. Empty: the keys are at
  // the top level.
  absl::string_view text_model_type = "";
  // use_qk_norm may be false. Families that list the key without this flag refuse false.
  bool may_omit_qk_norm = false;
  // rope_scaling applies to layers without window only, and rope_parameters are nested.
  bool scales_full_layers_only = false;
  // In early files rope_type "su" and "yarn" mean longrope.
  bool has_old_longrope_names = false;
  // Rope settings for files without rope_scaling and rope_parameters; null: no scaling. If windowed
  // layers have separate settings, the default applies to full layers only. default_rope->theta is
  // not used.
  const RopeConfig* default_rope = nullptr;
  TensorNames names = {};
  // general.architecture of GGUF files; empty if they are not supported.
  absl::string_view gguf_architecture = "";
  // general.architecture of GGUF files with experts; empty if it is the same.
  absl::string_view gguf_moe_architecture = "";
  TensorNames gguf_names = {};
  // Keys of GGUF files, after the architecture, that this family reads. Families that do not list
  // such a key refuse it.
  std::span<const absl::string_view> gguf_keys = {};
  // GGUF files do not contain query_pre_attn_scalar. Its value is the head size, except in the
  // published model with this block_count, where it is hidden_size / num_attention_heads. 0: no
  // exception.
  std::uint32_t gguf_wide_block_count = 0;
  // Builds the spec of a checked configuration. Returns UNIMPLEMENTED or INVALID_ARGUMENT that
  // names the key.
  absl::StatusOr<ModelSpec> (*build_spec)(const ModelConfig& config);
};

// True if `key` is among Family::keys.
bool ReadsKey(const Family& family, absl::string_view key);

}  // namespace quire::models
