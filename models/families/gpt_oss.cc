// GPT-OSS 20B and 120B.
//
// RMS pre-norms, biases on all projections, a learned attention sink per head, windows in every
// second layer, yarn. Every MLP is an MoE, whose router has a bias. The num_experts_per_tok experts
// with the largest logits are chosen. Their weights are the softmax over these logits. Experts have
// biases and compute
//   (up + 1) * gate * sigmoid(alpha * gate)
// where gate is clamped from above and up from both sides. All experts of a layer share one tensor,
// in which gate and up alternate: bf16 [experts, inputs, outputs], or mxfp4 blocks and scales. The
// softmax is computed in float32, whereas transformers computes it in bf16. Source:
// modeling_gpt_oss.py of Hugging Face transformers. GGUF files have the tensor names of llama.cpp's
// converter and loader, and separate stacks of gate and up.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"GptOssForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"gpt_oss"};
constexpr absl::string_view kKeys[] = {
    "attention_bias",      "num_local_experts",     "num_experts",    "n_routed_experts",
    "num_experts_per_tok", "experts_per_token",     "sliding_window", "swiglu_limit",
    "swiglu_alpha",        "initial_context_length"};
constexpr ConfigDefaults kDefaults{.rope_theta = 150000,
                                   .rms_norm_eps = 1e-5,
                                   .max_position_embeddings = 131072,
                                   .num_key_value_heads = 8,
                                   .head_dim = 64,
                                   .sliding_window = 128,
                                   .num_experts = 128,
                                   .experts_per_token = 4,
                                   .attention_bias = true};
constexpr TensorNames kNames{.sinks = "self_attn.sinks",
                             .router = "router",
                             .stacked_gate_up = "gate_up_proj",
                             .stacked_down = "down_proj"};

// GGUF files have no keys for swiglu_limit and swiglu_alpha. The values are those of the published
// models.
constexpr absl::string_view kGgufKeys[] = {
    "expert_count", "expert_used_count", "expert_feed_forward_length", "attention.sliding_window"};
constexpr TensorNames GgufNames() {
  TensorNames names = WithGgufExperts(kGgufNames);
  names.sinks = "attn_sinks.weight";
  names.mlp_in = "post_attention_norm";
  return names;
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, GptOssFamily()));
  for (LayerSpec& layer : spec.layers) {
    layer.heads.has_sinks = true;
    MlpSpec& mlp = layer.dense;
    mlp.gate_bias = true;
    mlp.up_bias = true;
    mlp.down_bias = true;
    mlp.alpha = static_cast<float>(config.moe.swiglu_alpha);
    mlp.limit = static_cast<float>(config.moe.swiglu_limit);
    mlp.up_offset = 1;
  }
  MoeSpec moe;
  moe.score = RouterScore::kSoftmaxChosen;
  moe.router_bias = true;
  UseExperts(config, moe, &spec);
  return spec;
}

// Rope settings of files without rope_scaling.
RopeConfig DefaultRope() {
  RopeConfig rope;
  rope.kind = RopeKind::kYarn;
  rope.factor = 32;
  rope.original_max_position = 4096;
  rope.truncate = false;
  return rope;
}

}  // namespace

const Family& GptOssFamily() {
  static const RopeConfig& kDefaultRope = *new RopeConfig(DefaultRope());
  static const Family kFamily{.name = "gpt_oss",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .windows = WindowRule::kEven,
                              .default_rope = &kDefaultRope,
                              .names = kNames,
                              .gguf_architecture = "gpt-oss",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
