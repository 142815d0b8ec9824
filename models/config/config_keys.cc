#include "models/config/config_keys.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "models/config/family.h"

namespace quire::models {
namespace {

// Keys that are read for every family.
constexpr absl::string_view kReadKeys[] = {"architectures",
                                           "bos_token_id",
                                           "dtype",
                                           "eos_token_id",
                                           "head_dim",
                                           "hidden_act",
                                           "hidden_activation",
                                           "hidden_size",
                                           "intermediate_size",
                                           "layer_types",
                                           "max_position_embeddings",
                                           "model_type",
                                           "num_labels",
                                           "num_attention_heads",
                                           "num_hidden_layers",
                                           "num_key_value_heads",
                                           "original_max_position_embeddings",
                                           "pad_token_id",
                                           "partial_rotary_factor",
                                           "quantization_config",
                                           "rms_norm_eps",
                                           "rope_parameters",
                                           "rope_scaling",
                                           "rope_theta",
                                           "tie_word_embeddings",
                                           "torch_dtype",
                                           "vocab_size"};

// Keys for training, bookkeeping or other programs.
constexpr absl::string_view kHarmlessKeys[] = {"_name_or_path",
                                               "attention_dropout",
                                               "attn_implementation",
                                               "_attn_implementation",
                                               "attn_pdrop",
                                               "auto_map",
                                               "aux_loss_alpha",
                                               "block_dim",
                                               "block_mlp_init_scale",
                                               "block_norm_eps",
                                               "block_out_init_scale",
                                               "block_use_swiglu",
                                               "block_use_xavier_init",
                                               "cache_implementation",
                                               "chunk_size",
                                               "classifier_dropout",
                                               "conv_dim",
                                               "conv_dim_out",
                                               "conv_use_xavier_init",
                                               "embd_pdrop",
                                               "ep_size",
                                               "expand",
                                               "finetuning_task",
                                               "gradient_checkpointing",
                                               "hidden_dropout",
                                               "hidden_dropout_prob",
                                               "id2label",
                                               "init_method",
                                               "initializer_range",
                                               "is_decoder",
                                               "is_llama_config",
                                               "label2id",
                                               "mamba_chunk_size",
                                               "mamba_ssm_cache_dtype",
                                               "mamba_ssm_dtype",
                                               "max_sequence_length",
                                               "max_window_layers",
                                               "moe_shared_expert_overlap",
                                               "mtp_num_hidden_layers",
                                               "mtp_transformer_layers",
                                               "mtp_use_dedicated_embeddings",
                                               "num_heads",
                                               "num_logits_to_keep",
                                               "num_mtp_modules",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "output_router_logits",
                                               "pretraining_tp",
                                               "problem_type",
                                               "rescale_prenorm_residual",
                                               "resid_pdrop",
                                               "residual_in_fp32",
                                               "return_dict",
                                               "router_aux_loss_coef",
                                               "router_jitter_noise",
                                               "sep_token_id",
                                               "seq_aux",
                                               "shared_moe_mode",
                                               "task_specific_params",
                                               "time_step_floor",
                                               "time_step_max",
                                               "time_step_min",
                                               "tokenizer_class",
                                               "transformers.js_config",
                                               "transformers_version",
                                               "unk_token_id",
                                               "unsloth_fixed",
                                               "unsloth_version",
                                               "use_cache",
                                               "use_grouped_topk",
                                               "use_mamba_kernels",
                                               "use_mtp",
                                               "use_pos_enc"};

// Keys that change the computation, with their neutral values as JSON text. null and false are
// always neutral. Some families read some of these keys (Family::keys).
struct ComputationKey {
  absl::string_view key;
  absl::string_view neutral[2];
};
constexpr ComputationKey kComputationKeys[] = {
    {"_sliding_window_pattern", {}},
    {"add_cross_attention", {}},
    {"alibi", {}},
    {"attention_bias", {}},
    {"attention_chunk_size", {}},
    {"attention_k_eq_v", {}},
    {"attention_multiplier", {}},
    {"attn_logit_softcapping", {"0", "0.0"}},
    {"attn_output_gate", {}},
    {"attn_temperature_tuning", {"0"}},
    {"block_ff_dim", {}},
    {"clip_qkv", {}},
    {"conv_L_cache", {}},
    {"conv_bias", {}},
    {"dual_chunk_attention_config", {}},
    {"embedding_multiplier", {"1", "1.0"}},
    {"enable_moe_block", {}},
    {"final_logit_softcapping", {"0", "0.0"}},
    {"first_k_dense_replace", {}},
    {"full_attention_interval", {}},
    {"full_attn_idxs", {}},
    {"global_head_dim", {}},
    {"hidden_size_per_layer_input", {"0"}},
    {"hybrid_override_pattern", {}},
    {"index_topk", {}},
    {"index_topk_pattern", {}},
    {"indexer_types", {}},
    {"interleave_moe_layer_step", {"1"}},
    {"is_encoder_decoder", {}},
    {"kv_lora_rank", {}},
    {"layernorm_full_attention_alpha", {"1", "1.0"}},
    {"layernorm_full_attention_beta", {"1", "1.0"}},
    {"layernorm_linear_attention_alpha", {"1", "1.0"}},
    {"layernorm_linear_attention_beta", {"1", "1.0"}},
    {"layernorm_mlp_alpha", {"1", "1.0"}},
    {"layernorm_mlp_beta", {"1", "1.0"}},
    {"layers_block_type", {}},
    {"linear_attn_config", {}},
    {"linear_conv_kernel_dim", {}},
    {"linear_key_head_dim", {}},
    {"linear_num_key_heads", {}},
    {"linear_num_value_heads", {}},
    {"linear_value_head_dim", {}},
    {"logit_scale", {"1", "1.0"}},
    {"logits_scaling", {"1", "1.0"}},
    {"mamba_d_state", {}},
    {"mamba_hidden_act", {"\"silu\""}},
    {"mamba_n_heads", {}},
    {"mamba_num_heads", {}},
    {"mamba_proj_bias", {}},
    {"mla_use_nope", {}},
    {"mlp_bias", {}},
    {"mlp_layer_types", {}},
    {"moe_latent_size", {}},
    {"moe_layer_freq", {"1"}},
    {"moe_layers", {"[]"}},
    {"n_group", {"1"}},
    {"n_routed_experts", {"0", "1"}},
    {"n_shared_experts", {"0"}},
    {"no_rope_layer_interval", {}},
    {"no_rope_layers", {"[]"}},
    {"normalization_function", {"\"rmsnorm\""}},
    {"num_expert_group", {"1"}},
    {"num_experts", {"0", "1"}},
    {"num_global_key_value_heads", {}},
    {"num_kv_shared_layers", {"0"}},
    {"num_local_experts", {"0", "1"}},
    {"num_mtp_layers", {"0"}},
    {"num_nextn_predict_layers", {"0"}},
    {"num_shared_experts", {"0"}},
    {"parallel_attn", {}},
    {"position_embedding_type", {"\"rope\"", "\"rotary\""}},
    {"q_lora_rank", {}},
    {"qk_norm", {}},
    {"qk_norm_type", {"\"per_layer\""}},
    {"query_pre_attn_scalar", {}},
    {"residual_multiplier", {"1", "1.0"}},
    {"rope_interleaved", {}},
    {"rope_local_base_freq", {}},
    {"rotary_dim", {}},
    {"routed_scaling_factor", {"1", "1.0"}},
    {"scale_depth", {}},
    {"scale_emb", {"1", "1.0"}},
    {"scoring_func", {"\"softmax\""}},
    {"shared_expert_intermediate_size", {"0"}},
    {"shared_intermediate_size", {"0"}},
    {"sliding_window", {}},
    {"sliding_window_pattern", {}},
    {"swiglu_alpha", {}},
    {"swiglu_limit", {}},
    {"text_config", {}},
    {"time_step_limit", {}},
    {"top_k_experts", {}},
    {"topk_group", {"1"}},
    {"topk_method", {"\"greedy\""}},
    {"use_bias", {}},
    {"use_bidirectional_attention", {}},
    {"use_double_wide_mlp", {}},
    {"use_parallel_residual", {}},
    {"use_qk_norm", {}},
    {"use_routing_bias", {}},
    {"use_sliding_window", {}},
    {"vision_config", {}},
};

template <std::size_t N>
bool Contains(const absl::string_view (&keys)[N], absl::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

bool IsNeutral(const ComputationKey& entry, const std::string& value) {
  if (value == "null" || value == "false") return true;
  return std::any_of(
      std::begin(entry.neutral), std::end(entry.neutral),
      [&](absl::string_view neutral) { return !neutral.empty() && value == neutral; });
}

bool HasOnlyOnes(const ConfigReader& reader, const std::string& key) {
  const auto list = reader.OptionalIds(key);
  return list.ok() && *list &&
         std::all_of((*list)->begin(), (*list)->end(),
                     [](std::int32_t entry) { return entry == 1; });
}

KeyUse UseOf(const ConfigReader& reader, const Family& family, const std::string& key) {
  // The value false makes attention bidirectional.
  if (key == "is_causal" && !reader.IsNull(key)) {
    return reader.ValueText(key) == "true" ? KeyUse::kIgnored : KeyUse::kRefused;
  }
  // Most families that list the key always normalize heads of q and k, so false is an error.
  if (key == "use_qk_norm" && ReadsKey(family, key) && !family.may_omit_qk_norm &&
      !reader.IsNull(key)) {
    return reader.ValueText(key) == "true" ? KeyUse::kRead : KeyUse::kRefused;
  }
  // 1 stands for softmax attention, 0 for linear attention.
  if (key == "attn_type_list" && !reader.IsNull(key)) {
    return HasOnlyOnes(reader, key) ? KeyUse::kIgnored : KeyUse::kRefused;
  }
  // Families that list the key always have the gate. transformers does not read the key.
  if (key == "attn_output_gate" && ReadsKey(family, key) && !reader.IsNull(key)) {
    return reader.ValueText(key) == "true" ? KeyUse::kRead : KeyUse::kRefused;
  }
  if (ReadsKey(family, key) || Contains(kReadKeys, key)) return KeyUse::kRead;
  const auto* found = std::find_if(std::begin(kComputationKeys), std::end(kComputationKeys),
                                   [&](const ComputationKey& entry) { return entry.key == key; });
  if (found != std::end(kComputationKeys)) {
    return IsNeutral(*found, reader.ValueText(key)) ? KeyUse::kIgnored : KeyUse::kRefused;
  }
  return Contains(kHarmlessKeys, key) ? KeyUse::kIgnored : KeyUse::kUnknown;
}

}  // namespace

std::vector<ConfigKey> ListKeys(const ConfigReader& reader, const Family& family) {
  std::vector<ConfigKey> keys;
  for (const std::string& key : reader.Keys()) {
    const bool is_nested = !family.text_model_type.empty();
    if (is_nested && key == "text_config") {
      const absl::StatusOr<std::optional<ConfigReader>> inner = reader.OptionalObject(key);
      if (!inner.ok() || !*inner) continue;
      for (const std::string& name : (*inner)->Keys()) {
        keys.push_back(
            {(*inner)->PathOf(name), (*inner)->ValueText(name), UseOf(**inner, family, name)});
      }
      continue;
    }
    const KeyUse use =
        is_nested && Contains(kOtherInputKeys, key) ? KeyUse::kIgnored : UseOf(reader, family, key);
    keys.push_back({key, reader.ValueText(key), use});
  }
  return keys;
}

absl::Status CheckConfigKeys(const ConfigReader& reader, const Family& family,
                             std::vector<std::string>* warnings) {
  std::vector<std::string> unknown;
  for (const std::string& key : reader.Keys()) {
    const KeyUse use = UseOf(reader, family, key);
    if (use == KeyUse::kRefused) {
      return reader.Unsupported(key, absl::StrCat("by ", family.name));
    }
    if (use == KeyUse::kUnknown) unknown.push_back(key);
  }
  if (!unknown.empty()) {
    warnings->push_back(
        absl::StrCat("config.json has keys that are not read: ", absl::StrJoin(unknown, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace quire::models
