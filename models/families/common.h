#pragma once

// What families share: the spec of a decoder with norms before attention and MLP, from a checked
// configuration. A family starts from it and changes what is its own.

#include "absl/status/statusor.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/families/registry.h"

namespace quire::models {

// Names of the tensors of a Llama in GGUF files, which those of other families vary.
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

// The same of a mixture of experts.
constexpr TensorNames WithGgufExperts(TensorNames names) {
  names.moe = "";
  names.router = "ffn_gate_inp";
  names.split_gate = "ffn_gate_exps";
  names.split_up = "ffn_up_exps";
  names.split_down = "ffn_down_exps";
  return names;
}
inline constexpr absl::string_view kGgufExpertKeys[] = {"expert_count", "expert_used_count",
                                                        "expert_feed_forward_length"};

// An RMS norm with rms_norm_eps whose weights mean `weight_offset` + weight. Converters to GGUF add
// the offset to the weights, so that it is 0 there.
NormSpec RmsNormSpec(const ModelConfig& config, float weight_offset = 0);

// `factor`, rounded to the type of the model's activations as trained: so do transformers and the
// training before it round a factor on embeddings that is no power of two.
float RoundToTrained(const ModelConfig& config, double factor);

// Pre-norm RMS, attention over heads with grouped queries and rope on halves, gated MLP. Biases,
// windows, layers without rope, tied head, activation and rope tables as the configuration says;
// table 1 is that of windowed layers, if they have one. Returns UNIMPLEMENTED for an activation
// that `family` does not list.
absl::StatusOr<ModelSpec> PreNormSpec(const ModelConfig& config, const Family& family);

// Makes mixtures of the layers that config.moe lists: of MLPs as the dense ones, as many and as
// wide as it says, routed as `moe` says.
void UseExperts(const ModelConfig& config, MoeSpec moe, ModelSpec* spec);

}  // namespace quire::models
