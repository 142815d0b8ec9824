#pragma once

#include <span>

#include "absl/strings/string_view.h"

namespace quire::models {

// Names of a family's tensors. An empty name means that the family has no such tensor. Weights and
// biases end in ".weight" and ".bias". Names of a layer follow `layer_prefix`, the layer's number
// and a dot.
struct TensorNames {
  // Tensors with these prefixes are ignored, for example those of a vision tower.
  std::span<const absl::string_view> skipped = {};
  absl::string_view embedding = "model.embed_tokens";
  absl::string_view final_norm = "model.norm";
  absl::string_view head = "lm_head";
  absl::string_view layer_prefix = "model.layers.";
  absl::string_view attn_in = "input_layernorm";
  absl::string_view attn_out = "";
  absl::string_view mlp_in = "post_attention_layernorm";
  absl::string_view mlp_out = "";
  absl::string_view dense_out = "";     // MlpKind::kDenseAndMoe
  absl::string_view moe_in = "";        // MlpKind::kDenseAndMoe
  absl::string_view moe_out = "";       // MlpKind::kDenseAndMoe
  absl::string_view output_scale = "";  // complete name: no ".weight" is appended
  // Inputs per layer: tensors of the model, then of a layer.
  absl::string_view input_embedding = "";
  absl::string_view input_context = "";
  absl::string_view input_norm = "";
  absl::string_view input_gate = "";
  absl::string_view input_out = "";
  absl::string_view input_out_norm = "";
  absl::string_view q = "self_attn.q_proj";
  absl::string_view k = "self_attn.k_proj";
  absl::string_view v = "self_attn.v_proj";
  absl::string_view qkv = "";  // one tensor with the rows of q, k and v, instead of the three
  absl::string_view q_norm = "";
  absl::string_view k_norm = "";
  absl::string_view sinks = "";  // complete name: no ".weight" is appended
  // MLA.
  absl::string_view q_a = "self_attn.q_a_proj";
  absl::string_view q_a_norm = "self_attn.q_a_layernorm";
  absl::string_view q_b = "self_attn.q_b_proj";
  absl::string_view kv_a = "self_attn.kv_a_proj_with_mqa";
  absl::string_view kv_a_norm = "self_attn.kv_a_layernorm";
  absl::string_view kv_b = "self_attn.kv_b_proj";
  // Instead of kv_b: k_b_stack.weight [heads, rank, nope] and v_b_stack.weight [heads, v, rank].
  absl::string_view k_b_stack = "";
  absl::string_view v_b_stack = "";
  absl::string_view index_q = "self_attn.indexer.wq_b";
  absl::string_view index_k = "self_attn.indexer.wk";
  absl::string_view index_k_norm = "self_attn.indexer.k_norm";
  absl::string_view index_k_norm_bias = "self_attn.indexer.k_norm.bias";
  absl::string_view index_weights = "self_attn.indexer.weights_proj";
  absl::string_view o = "self_attn.o_proj";
  // Recurrent layers. Their input projection is one or more of the next tensors, which together
  // have the columns of RecurrentSpec::in_columns. Names of their vectors are complete: no
  // ".weight" is appended.
  absl::string_view in_qkvz = "";    // for each key head: q, k, then v and z of its heads
  absl::string_view in_ba = "";      // for each key head: b of its heads, then a of its heads
  absl::string_view in_zxbcdt = "";  // z, the channels of the convolution, a
  absl::string_view in_qkv = "";
  absl::string_view in_q = "";
  absl::string_view in_k = "";
  absl::string_view in_v = "";
  absl::string_view in_z = "";
  absl::string_view in_gate_rank = "";  // the first stage of z
  absl::string_view in_b = "";
  absl::string_view in_a = "";
  absl::string_view in_decay_rank = "";  // the first stage of a
  absl::string_view gate_of_rank = "";   // the second stages
  absl::string_view decay_of_rank = "";
  absl::string_view conv = "";
  absl::string_view conv_q = "";  // instead of conv
  absl::string_view conv_k = "";
  absl::string_view conv_v = "";
  absl::string_view conv_bias = "";
  absl::string_view a_log = "";
  absl::string_view dt_bias = "";
  absl::string_view skip = "";
  absl::string_view gate_norm = "";
  absl::string_view recurrent_out = "";
  absl::string_view short_conv_in = "";
  absl::string_view short_conv = "";  // complete name: no ".weight" is appended
  absl::string_view short_conv_out = "";
  absl::string_view gate = "mlp.gate_proj";
  absl::string_view up = "mlp.up_proj";
  absl::string_view gate_up = "";  // one tensor with the rows of gate and up, instead of the two
  absl::string_view down = "mlp.down_proj";
  // The names of gate, up and down in files that have no `down`.
  absl::string_view gate_alias = "";
  absl::string_view up_alias = "";
  absl::string_view down_alias = "";
  // MoE. Names below follow MOE and a dot, where MOE is `moe`, or `moe_alias` in files that have no
  // router under `moe`. An empty `moe` adds nothing, not even the dot.
  absl::string_view moe = "mlp";
  absl::string_view moe_alias = "";
  absl::string_view router = "gate";
  // Complete names: no ".weight" is appended.
  absl::string_view choice_bias = "";
  absl::string_view router_norm = "";
  absl::string_view expert_scale = "";
  // One tensor per expert: experts.NUMBER.expert_gate.weight and so on.
  absl::string_view expert_gate = "gate_proj";
  absl::string_view expert_up = "up_proj";
  absl::string_view expert_down = "down_proj";
  // Instead of the tensors per expert, as in GGUF files: gate_stack.weight [experts, outputs,
  // inputs] and so on. gate_up_stack replaces gate_stack and up_stack: rows of gate, then of up.
  absl::string_view gate_stack = "";
  absl::string_view up_stack = "";
  absl::string_view gate_up_stack = "";
  absl::string_view down_stack = "";
  // Instead of the tensors per expert: experts.stacked_gate_up [experts, inputs, outputs], whose
  // columns alternate between gate and up, and experts.stacked_down. Quantized tensors are
  // [experts, outputs, inputs]. Biases end in "_bias".
  absl::string_view stacked_gate_up = "";
  absl::string_view stacked_down = "";
  bool stacked_in_halves = false;  // the columns of gate precede those of up
  // stacked_gate_up and stacked_down are [experts, outputs, inputs], with the rows of gate before
  // those of up. If this flag or stacked_in_halves is true, some files have one tensor per expert
  // instead.
  bool stacks_are_output_major = false;
  absl::string_view latent_in = "";   // projection of the experts' input
  absl::string_view latent_out = "";  // projection of the experts' output
  // The shared expert: SHARED.shared_mlp_gate.weight and so on. If `shared` is empty, names have
  // neither SHARED nor its dot.
  absl::string_view shared = "";
  absl::string_view shared_mlp_gate = "gate_proj";
  absl::string_view shared_mlp_up = "up_proj";
  absl::string_view shared_mlp_gate_up = "";  // one tensor with the rows of gate and up
  absl::string_view shared_mlp_down = "down_proj";
  absl::string_view shared_gate = "";
};

}  // namespace quire::models
