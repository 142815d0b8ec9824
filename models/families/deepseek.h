#pragma once

// DeepSeek-V2, V2-Lite, V3, V3.1, R1 and V3.2, and GLM-4.7-Flash.
//
// RMS pre-norms, MLA with interleaved rope on a part of each head, and yarn whose mscale also
// multiplies the attention scale. The first first_k_dense_replace layers are dense, the others are
// MoE layers with shared experts. V2 routes by a softmax over all experts and never renormalizes.
// V3 routes by sigmoids. A correction bias affects the choice only, and a group is scored by its
// two best experts. Experts of groups that are not kept are never chosen. GLM-4.7-Flash is V3 with
// other defaults. V3.2 is V3 with an indexer, which has half-split rope and selects keys.
// Source: modeling_deepseek_v2.py, modeling_deepseek_v3.py, modeling_deepseek_v32.py and
// modeling_glm4_moe_lite.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

// The config keys that every DeepSeek family accepts. Layers for multi-token prediction
// (num_nextn_predict_layers) follow the last layer and are skipped. V2 ignores norm_topk_prob.
inline constexpr absl::string_view kDeepseekKeys[] = {
    "attention_bias",    "q_lora_rank",
    "kv_lora_rank",      "qk_nope_head_dim",
    "qk_rope_head_dim",  "v_head_dim",
    "rope_interleave",   "n_routed_experts",
    "num_experts",       "num_local_experts",
    "n_shared_experts",  "num_experts_per_tok",
    "experts_per_token", "moe_intermediate_size",
    "n_group",           "topk_group",
    "topk_method",       "scoring_func",
    "norm_topk_prob",    "routed_scaling_factor",
    "moe_layer_freq",    "first_k_dense_replace",
    "mlp_layer_types",   "num_nextn_predict_layers",
    "num_mtp_layers"};

// Builds the spec of a family that computes like V3. Layers get an IndexSpec if the family reads
// index_topk.
absl::StatusOr<ModelSpec> DeepseekV3Spec(const ModelConfig& config);

}  // namespace quire::models
