#include "models/config_keys.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace quire::models {
namespace {

// Read elsewhere.
constexpr absl::string_view kReadKeys[] = {"architectures",
                                           "attention_bias",
                                           "bos_token_id",
                                           "dtype",
                                           "eos_token_id",
                                           "head_dim",
                                           "hidden_act",
                                           "hidden_activation",
                                           "hidden_size",
                                           "intermediate_size",
                                           "max_position_embeddings",
                                           "mlp_bias",
                                           "model_type",
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

// Training, bookkeeping, or a hint for another program.
constexpr absl::string_view kHarmlessKeys[] = {"_name_or_path",
                                               "attention_dropout",
                                               "attn_implementation",
                                               "_attn_implementation",
                                               "attn_pdrop",
                                               "auto_map",
                                               "classifier_dropout",
                                               "embd_pdrop",
                                               "finetuning_task",
                                               "gradient_checkpointing",
                                               "hidden_dropout",
                                               "hidden_dropout_prob",
                                               "id2label",
                                               "initializer_range",
                                               "is_decoder",
                                               "is_llama_config",
                                               "label2id",
                                               "max_sequence_length",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "pretraining_tp",
                                               "problem_type",
                                               "resid_pdrop",
                                               "return_dict",
                                               "sep_token_id",
                                               "task_specific_params",
                                               "tokenizer_class",
                                               "transformers.js_config",
                                               "transformers_version",
                                               "unk_token_id",
                                               "unsloth_fixed",
                                               "unsloth_version",
                                               "use_cache"};

// Keys that change what is computed, with the values under which they do not (as JSON text; null
// and false always are among them).
struct ForeignKey {
  absl::string_view key;
  absl::string_view neutral[2];
};
constexpr ForeignKey kForeignKeys[] = {
    {"add_cross_attention", {}},
    {"alibi", {}},
    {"attention_multiplier", {}},
    {"attn_logit_softcapping", {"0", "0.0"}},
    {"clip_qkv", {}},
    {"dual_chunk_attention_config", {}},
    {"embedding_multiplier", {"1", "1.0"}},
    {"final_logit_softcapping", {"0", "0.0"}},
    {"first_k_dense_replace", {}},
    {"index_topk", {}},
    {"is_encoder_decoder", {}},
    {"kv_lora_rank", {}},
    {"logit_scale", {"1", "1.0"}},
    {"logits_scaling", {"1", "1.0"}},
    {"n_routed_experts", {"0", "1"}},
    {"no_rope_layers", {"[]"}},
    {"num_experts", {"0", "1"}},
    {"num_local_experts", {"0", "1"}},
    {"num_mtp_layers", {"0"}},
    {"num_nextn_predict_layers", {"0"}},
    {"parallel_attn", {}},
    {"position_embedding_type", {"\"rope\"", "\"rotary\""}},
    {"q_lora_rank", {}},
    {"qk_norm", {}},
    {"query_pre_attn_scalar", {}},
    {"residual_multiplier", {"1", "1.0"}},
    {"rope_interleaved", {}},
    {"scale_depth", {}},
    {"scale_emb", {"1", "1.0"}},
    {"sliding_window", {}},
    {"text_config", {}},
    {"use_bidirectional_attention", {}},
    {"use_parallel_residual", {}},
    {"use_qk_norm", {}},
    {"vision_config", {}},
};

template <std::size_t N>
bool Contains(const absl::string_view (&keys)[N], absl::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

bool IsNeutral(const ForeignKey& foreign, const std::string& value) {
  if (value == "null" || value == "false") return true;
  return std::any_of(
      std::begin(foreign.neutral), std::end(foreign.neutral),
      [&](absl::string_view neutral) { return !neutral.empty() && value == neutral; });
}

// True when every entry of layer_types is full attention.
absl::StatusOr<bool> AllLayersFull(const ConfigReader& reader) {
  const auto types = reader.OptionalStrings("layer_types");
  if (!types.ok()) return types.status();
  if (!*types) return true;
  return std::all_of((*types)->begin(), (*types)->end(), [](const std::string& type) {
    return type == "full_attention" || type == "attention";
  });
}

}  // namespace

absl::Status CheckForeignKeys(const ConfigReader& reader, absl::string_view family,
                              std::vector<std::string>* warnings) {
  for (const ForeignKey& foreign : kForeignKeys) {
    if (reader.Has(foreign.key) && !IsNeutral(foreign, reader.ValueText(foreign.key))) {
      return reader.Unsupported(foreign.key, absl::StrCat("by ", family));
    }
  }
  const absl::StatusOr<bool> full = AllLayersFull(reader);
  if (!full.ok()) return full.status();
  if (!*full) {
    return reader.Unsupported("layer_types",
                              absl::StrCat("by ", family, " (supported: ", "full_attention)"));
  }
  std::vector<std::string> unknown;
  for (const std::string& key : reader.Keys()) {
    const bool foreign = std::any_of(std::begin(kForeignKeys), std::end(kForeignKeys),
                                     [&](const ForeignKey& entry) { return entry.key == key; });
    if (!foreign && key != "layer_types" && !Contains(kReadKeys, key) &&
        !Contains(kHarmlessKeys, key)) {
      unknown.push_back(key);
    }
  }
  if (!unknown.empty()) {
    warnings->push_back(
        absl::StrCat("config.json has keys that are not read: ", absl::StrJoin(unknown, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace quire::models
