// LFM2: Lfm2ForCausalLM.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"Lfm2ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"lfm2"};
constexpr absl::string_view kKeys[] = {
    "norm_eps",     "tie_embedding",     "full_attn_idxs",           "conv_L_cache",
    "block_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier", "block_auto_adjust_ff_dim"};
constexpr ConfigDefaults kDefaults{.rope_theta = 1e6,
                                   .rms_norm_eps = 1e-5,
                                   .max_position_embeddings = 128000,
                                   .tie_word_embeddings = true,
                                   .num_key_value_heads = 8};
constexpr LayerTypeName kLayerTypes[] = {{"conv", LayerBranch::kRecurrent},
                                         {"full_attention", LayerBranch::kAttention}};
constexpr TensorNames kNames{.final_norm = "model.embedding_norm",
                             .attn_in = "operator_norm",
                             .mlp_in = "ffn_norm",
                             .q_norm = "self_attn.q_layernorm",
                             .k_norm = "self_attn.k_layernorm",
                             .o = "self_attn.out_proj",
                             .short_conv_in = "conv.in_proj",
                             .short_conv = "conv.conv.weight",
                             .short_conv_out = "conv.out_proj",
                             .gate = "feed_forward.w1",
                             .up = "feed_forward.w3",
                             .down = "feed_forward.w2"};

constexpr TensorNames GgufNames() {
  TensorNames names = WithGgufQkNorm(kGgufNames);
  names.final_norm = "token_embd_norm";
  names.short_conv_in = "shortconv.in_proj";
  names.short_conv = "shortconv.conv.weight";
  names.short_conv_out = "shortconv.out_proj";
  return names;
}
constexpr absl::string_view kGgufKeys[] = {"shortconv.l_cache"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, Lfm2Family()));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (config.hybrid.layers[i] == LayerBranch::kAttention) {
      layer.heads.qk_norm = RmsNormSpec(config);
      continue;
    }
    layer.attention = AttentionKind::kShortConv;
    layer.short_conv.width = config.hybrid.recurrent.conv_width;
    layer.heads = {};
  }
  AssignCacheGroups(&spec);
  return spec;
}

}  // namespace

const Family& Lfm2Family() {
  static const Family kFamily{.name = "lfm2",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .layer_types = kLayerTypes,
                              .names = kNames,
                              .gguf_architecture = "lfm2",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
