#include "models/families/llama.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"LlamaForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"llama"};
constexpr TensorNames kGgufNames{.embedding = "token_embd",
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

// Positions up to which the scaled table is meant to hold.
std::uint32_t MaxPosition(const ModelConfig& config) {
  if (config.rope.kind != RopeKind::kYarn) return config.max_position_embeddings;
  const double stretched = config.rope.factor * config.rope.original_max_position;
  const double limit = std::min(stretched, double{1u << 30});
  return std::max(config.max_position_embeddings, static_cast<std::uint32_t>(limit));
}

AttentionSpec Attention(const ModelConfig& config) {
  AttentionSpec heads;
  heads.num_heads = config.num_attention_heads;
  heads.num_kv_heads = config.num_key_value_heads;
  heads.head_size = config.head_dim;
  heads.v_head_size = config.head_dim;
  heads.q_bias = config.attention_bias;
  heads.k_bias = config.attention_bias;
  heads.v_bias = config.attention_bias;
  heads.o_bias = config.attention_bias;
  heads.rope = 0;
  heads.rotary_size = config.head_dim;
  heads.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  return heads;
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  if (config.hidden_act != "silu" && config.hidden_act != "swish") {
    return absl::UnimplementedError(absl::StrCat("hidden_act \"", config.hidden_act,
                                                 "\" is not supported by llama (supported: silu, ",
                                                 "swish)"));
  }
  NormSpec norm;
  norm.kind = NormKind::kRms;
  norm.eps = config.rms_norm_eps;
  LayerSpec layer;
  layer.attn_in = norm;
  layer.mlp_in = norm;
  layer.heads = Attention(config);
  layer.dense.intermediate = config.intermediate_size;
  layer.dense.gate_bias = config.mlp_bias;
  layer.dense.up_bias = config.mlp_bias;
  layer.dense.down_bias = config.mlp_bias;

  ModelSpec spec;
  spec.vocab_size = config.vocab_size;
  spec.hidden = config.hidden_size;
  spec.max_position = MaxPosition(config);
  spec.layers.assign(config.num_hidden_layers, layer);
  QUIRE_ASSIGN_OR_RETURN(RopeTable table, BuildRopeTable(config.rope, config.head_dim));
  spec.rope_tables.push_back(std::move(table));
  spec.final_norm = norm;
  spec.tie_embeddings = config.tie_word_embeddings;
  spec.eos_ids = config.eos_ids;
  spec.bos_id = config.bos_id;
  spec.pad_id = config.pad_id;
  AssignCacheGroups(&spec);
  return spec;
}

}  // namespace

const Family& LlamaFamily() {
  static const Family kFamily{.name = "llama",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = {},
                              .names = {},
                              .gguf_architecture = "llama",
                              .gguf_names = kGgufNames,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
