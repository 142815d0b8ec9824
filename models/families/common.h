#pragma once

// The spec of a pre-norm decoder, built from a checked configuration. Families start from it and
// change what differs.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/families/registry.h"

namespace quire::models {

// Tensor names of Llama models in GGUF files. Other families change some of them.
inline constexpr TensorNames kGgufNames{.embedding = "token_embd",
                                        .final_norm = "output_norm",
                                        .head = "output",
                                        .layer_prefix = "blk.",
                                        .attn_in = "attn_norm",
                                        .mlp_in = "ffn_norm",
                                        .q = "attn_q",
                                        .k = "attn_k",
                                        .v = "attn_v",
                                        .o = "attn_output",
                                        .gate = "ffn_gate",
                                        .up = "ffn_up",
                                        .down = "ffn_down"};

// Adds the tensor names of MoE layers.
constexpr TensorNames WithGgufExperts(TensorNames names) {
  names.moe = "";
  names.router = "ffn_gate_inp";
  names.gate_stack = "ffn_gate_exps";
  names.up_stack = "ffn_up_exps";
  names.down_stack = "ffn_down_exps";
  return names;
}
// Adds the tensor names of a shared expert.
constexpr TensorNames WithGgufSharedExpert(TensorNames names) {
  names.shared_mlp_gate = "ffn_gate_shexp";
  names.shared_mlp_up = "ffn_up_shexp";
  names.shared_mlp_down = "ffn_down_shexp";
  return names;
}
// Adds the tensor names of Mamba-2 layers.
constexpr TensorNames WithGgufMamba(TensorNames names) {
  names.in_zxbcdt = "ssm_in";
  names.conv = "ssm_conv1d.weight";
  names.conv_bias = "ssm_conv1d.bias";
  names.a_log = "ssm_a";
  names.dt_bias = "ssm_dt.bias";
  names.skip = "ssm_d";
  names.gate_norm = "ssm_norm.weight";
  names.recurrent_out = "ssm_out";
  return names;
}

// Adds the tensor names of MLA.
constexpr TensorNames WithGgufMla(TensorNames names) {
  names.q_a = "attn_q_a";
  names.q_a_norm = "attn_q_a_norm";
  names.q_b = "attn_q_b";
  names.kv_a = "attn_kv_a_mqa";
  names.kv_a_norm = "attn_kv_a_norm";
  names.k_b_stack = "attn_k_b";
  names.v_b_stack = "attn_v_b";
  return names;
}
constexpr TensorNames WithGgufChoiceBias(TensorNames names) {
  names.choice_bias = "exp_probs_b.bias";
  return names;
}
constexpr TensorNames WithGgufIndexer(TensorNames names) {
  names.index_q = "indexer.attn_q_b";
  names.index_k = "indexer.attn_k";
  names.index_k_norm = "indexer.k_norm";
  names.index_k_norm_bias = "indexer.k_norm.bias";
  names.index_weights = "indexer.proj";
  return names;
}
constexpr TensorNames WithGgufQkNorm(TensorNames names) {
  names.q_norm = "attn_q_norm";
  names.k_norm = "attn_k_norm";
  return names;
}
inline constexpr absl::string_view kGgufMambaKeys[] = {
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"};
inline constexpr absl::string_view kGgufExpertKeys[] = {"expert_count", "expert_used_count",
                                                        "expert_feed_forward_length"};

// GGUF keys of MoE layers with sigmoid routing and shared experts.
inline constexpr absl::string_view kGgufSigmoidKeys[] = {"expert_count",
                                                         "expert_used_count",
                                                         "expert_feed_forward_length",
                                                         "expert_shared_count",
                                                         "expert_group_count",
                                                         "expert_group_used_count",
                                                         "expert_weights_norm",
                                                         "expert_weights_scale",
                                                         "expert_gating_func",
                                                         "leading_dense_block_count"};

// Returns `keys`, then `appended`.
template <std::size_t N, std::size_t M>
constexpr std::array<absl::string_view, N + M> JoinKeys(const absl::string_view (&keys)[N],
                                                        const absl::string_view (&appended)[M]) {
  std::array<absl::string_view, N + M> all;
  std::copy_n(appended, M, std::copy_n(keys, N, all.begin()));
  return all;
}
template <std::size_t N, std::size_t M>
constexpr std::array<absl::string_view, N + M> JoinKeys(
    const std::array<absl::string_view, N>& keys, const absl::string_view (&appended)[M]) {
  std::array<absl::string_view, N + M> all;
  std::copy_n(appended, M, std::copy_n(keys.begin(), N, all.begin()));
  return all;
}

// GGUF keys of MLA models with experts, without and with an indexer.
inline constexpr auto kGgufMlaKeys =
    JoinKeys(kGgufSigmoidKeys,
             {"attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
              "attention.value_length_mla", "rope.scaling.yarn_log_multiplier"});
inline constexpr auto kGgufIndexKeys = JoinKeys(
    kGgufMlaKeys,
    {"attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k"});

// Returns the family of the text model inside a multimodal model. The text model alone is `text`.
Family InMultimodalModel(const Family& text, absl::string_view name,
                         std::span<const absl::string_view> architectures,
                         std::span<const absl::string_view> model_types, const TensorNames& names);

// Returns an RMS norm with rms_norm_eps that multiplies by `weight_offset` + weight. Converters to
// GGUF add the offset to the weights, so it is 0 for GGUF files.
NormSpec RmsNormSpec(const ModelConfig& config, float weight_offset = 0);

// Rounds `factor` to the dtype of activations in training, as transformers rounds embedding
// factors.
float RoundToTrainingDType(const ModelConfig& config, double factor);

// Returns a decoder with RMS pre-norms, grouped-query attention with half-split rope, and a gated
// MLP. Biases, windows, layers without rope, a tied head, the activation and the rope tables are
// taken from the configuration. If windowed layers have their own rope table, it is table 1.
// Returns UNIMPLEMENTED for an activation that `family` does not list.
absl::StatusOr<ModelSpec> PreNormSpec(const ModelConfig& config, const Family& family);

// Returns the shared expert with the activation of `dense`, or nullopt if config.moe has none.
std::optional<MlpSpec> SharedExperts(const ModelConfig& config, const MlpSpec& dense);

// Returns the routing of DeepSeek-V3: sigmoids with a correction bias, and groups that are scored
// by their two best experts.
MoeSpec SigmoidRouting(const ModelConfig& config, const MlpSpec& dense);

// Returns an UNIMPLEMENTED error with the key, its value, the family and the supported values.
absl::Status UnsupportedName(absl::string_view key, absl::string_view value,
                             absl::string_view supported, const Family& family);
// Returns UnsupportedName unless `value` is `supported` or empty, which means absent.
absl::Status CheckName(absl::string_view key, absl::string_view value, absl::string_view supported,
                       const Family& family);

// Turns the layers that config.moe lists into MoE layers with the routing of `moe`. config.moe
// states the number of experts and their width. Other fields of MoeSpec::expert are those of the
// dense MLP.
void UseExperts(const ModelConfig& config, MoeSpec moe, ModelSpec* spec);

// Returns the sizes of MLA and its attention scale, without rope.
MlaSpec UnrotatedMla(const ModelConfig& config);
// Replaces the attention of all layers by MLA.
void UseMla(const MlaSpec& mla, ModelSpec* spec);
// Makes attention independent of positions.
void RemoveRope(ModelSpec* spec);

// Applies the four constants of Granite: the factors of embeddings, attention scores and branches,
// and the divisor of logits.
void ApplyGraniteMultipliers(const ModelConfig& config, ModelSpec* spec);
// Replaces attention by `recurrent` in the recurrent layers of config.hybrid.
void UseRecurrentLayers(const ModelConfig& config, const RecurrentSpec& recurrent, ModelSpec* spec);

// Calls UseRecurrentLayers for Mamba-2 with the sizes of config.hybrid. The gated norm normalizes
// each of `norm_groups` groups of columns.
void UseMamba(const ModelConfig& config, std::uint32_t norm_groups, ModelSpec* spec);

}  // namespace quire::models
