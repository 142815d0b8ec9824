#pragma once

// The computation of a model as plain data: numbers, enums and indices, comparable and printable.
// Kernels, activation types and page sizes are chosen from a spec and are not part of it. A family
// (models/families) only fills these structs; blocks and kernels never depend on a family's name.
//
//   x = E[token] * embed_scale
//   for L in layers:
//     a = attn(norm(x, L.attn_in));   x += L.residual_scale * norm(a, L.attn_out)
//     m = mlp (norm(x, L.mlp_in));    x += L.residual_scale * norm(m, L.mlp_out)
//     x += norm(W_p (act(W_g x) * u_L), L.input.norm)                if L.input.size > 0
//     x *= L.output_scale * (L.has_output_scale ? output_scale tensor : 1)
//   A layer with one branch, attention or mlp, computes that branch alone.
//   logits = softcap(W_head * norm(x, final_norm) * logit_scale, logit_softcap)
//
// CheckSupported rejects a spec that this version cannot compute. Notation: p is the absolute
// position, d the head size. docs/adding_a_model.md explains how to fill a spec.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "kernels/backend/gate_shape.h"
#include "models/config/rope_table.h"

namespace quire::models {

// A norm of kind kNone is the identity. Pre-norm models use attn_in and mlp_in, post-norm models
// attn_out and mlp_out, sandwich norms all four.
enum class NormKind : std::uint8_t { kNone, kRms, kLayer };

struct NormSpec {
  NormKind kind = NormKind::kNone;
  float eps = 0;            // inside the root
  float weight_offset = 0;  // the norm multiplies by weight * weight_scale + weight_offset
  float weight_scale = 1;
  bool has_weight = true;
  bool has_bias = false;
  friend bool operator==(const NormSpec&, const NormSpec&) = default;
};

enum class QkNormScope : std::uint8_t {
  kPerHead,  // norm over d; one weight [d] for all heads
  kWhole,    // norm over heads * d, before the split into heads
};

// Pairs of columns that rotate together, for rotary size r: (i, i + r/2) or (2i, 2i + 1).
enum class RopeStyle : std::uint8_t { kHalf, kInterleaved };

// After rope: q *= 1 + beta * ln(1 + floor((p + offset) / period)). Off if beta is 0.
struct PositionScale {
  float beta = 0;
  std::uint32_t period = 0;  // tokens
  std::uint32_t offset = 0;  // tokens
  friend bool operator==(const PositionScale&, const PositionScale&) = default;
};

// Attention over heads. Order: project + bias, gate split, QK norm, rope, position scale,
// cache write, scores, softcap, mask, softmax (+ sink), V, gate, output projection (+ bias).
struct AttentionSpec {
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;  // query head h reads KV head h / (num_heads / num_kv_heads)
  std::uint32_t head_size = 0;     // for q and k; num_heads * head_size may differ from hidden
  std::uint32_t v_head_size = 0;   // for v and the output of a head
  bool q_bias = false;
  bool k_bias = false;
  bool v_bias = false;
  bool o_bias = false;
  NormSpec qk_norm;
  QkNormScope qk_norm_scope = QkNormScope::kPerHead;
  bool qk_norm_after_rope = false;
  NormSpec v_norm;         // per head, before v is cached
  bool v_from_k = false;   // v is the projected k, before the norm and rope of k
  std::int32_t rope = -1;  // index into ModelSpec::rope_tables; -1: no rope in this layer
  RopeStyle rope_style = RopeStyle::kHalf;
  std::uint32_t rotary_size = 0;   // number of rotated columns, r
  std::uint32_t rotary_first = 0;  // first rotated column; the other columns are unchanged
  PositionScale q_position_scale;
  float scale = 0;           // factor of q . k
  float softcap = 0;         // s = c tanh(s / c), after scale, before mask; 0: off
  std::uint32_t window = 0;  // key j visible to query i iff i - w < j <= i; 0: off
  std::uint32_t chunk = 0;   // visible iff i / c == j / c and j <= i; 0: off
  bool has_sinks = false;    // one learned logit per head joins the softmax without a value row
  // The result is multiplied by a sigmoid of additional rows of the query projection.
  bool output_gate = false;
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

// The indexer of DeepSeek sparse attention. It selects the keys that a query sees. A query at
// position p sees only the min(topk, p + 1) keys j with the largest scores s_j. Of equal s_j the
// lowest positions are selected.
//   qi = rope(W_qb c_q) [heads, size]; ki = rope(layer_norm(W_k h)) [size]; w = W_w h [heads]
//   s_j = sum over heads of w_h relu(qi_h . ki_j) / sqrt(heads * size)
// c_q is the normed query latent, h the layer's normed input. Rope rotates the first columns with
// the angles of the layer's queries. ki is cached as an index row beside the MLA cache row.
struct IndexSpec {
  std::uint32_t heads = 0;
  std::uint32_t size = 0;
  std::uint32_t topk = 0;
  RopeStyle rope_style = RopeStyle::kHalf;
  float norm_eps = 1e-6f;
  std::int32_t from_layer = -1;  // layer whose selection this layer uses; -1: its own
  constexpr bool is_own() const { return from_layer < 0; }
  friend bool operator==(const IndexSpec&, const IndexSpec&) = default;
};

// Multi-head latent attention: the cached row is [norm(c), rope(k_pe)], or [norm(c), k_pe] without
// rope.
struct MlaSpec {
  std::uint32_t num_heads = 0;
  std::uint32_t q_lora_rank = 0;  // 0: one query matrix
  std::uint32_t kv_lora_rank = 0;
  std::uint32_t nope_size = 0;
  std::uint32_t rope_size = 0;  // columns that all heads share
  std::uint32_t v_size = 0;
  std::int32_t rope = -1;  // index into ModelSpec::rope_tables; -1: no column rotates
  RopeStyle rope_style = RopeStyle::kInterleaved;
  float latent_eps = 1e-6f;  // epsilon of the norms of both latents; 0: no norms
  float scale = 0;
  bool qa_bias = false;
  bool kva_bias = false;
  bool o_bias = false;
  std::optional<IndexSpec> index = std::nullopt;  // absent: a query sees all keys
  // True if the layer computes a selection.
  constexpr bool has_indexer() const { return index && index->is_own(); }
  friend bool operator==(const MlaSpec&, const MlaSpec&) = default;
};

enum class DecayKind : std::uint8_t {
  kPerHead,     // one factor per head
  kPerChannel,  // one factor per head and key column, that is, per row of a head's state
};

// Order of the norm and the gate of a recurrent layer, for its result o and its gate z.
enum class RecurrentGate : std::uint8_t {
  kNormThenSilu,     // norm(o) * w * silu(z)
  kNormThenSigmoid,  // norm(o) * w * sigmoid(z)
  kSiluThenNorm,     // norm(o * silu(z)) * w
};

// A layer whose memory of earlier tokens is a state of constant size, not keys and values. A head
// has the state S [key_size, value_size], which is zero before the first token. All is f32:
//
//   q, k, v (in the order v, k, q without delta) = silu(conv(W_in x)), z, b, a = W_in x
//   q = q / sqrt(sum q^2 + qk_l2_eps) * key_size^-0.5, k = k / sqrt(sum k^2 + qk_l2_eps)
//   t = softplus(a + dt_bias), without delta clamped to [dt_min, dt_max]
//   S = exp(-exp(A_log) t) * S
//   S = S + k (beta (v - S^T k))^T with delta, where beta = sigmoid(b)
//   S = S + k (t v)^T without delta
//   o = S^T q, plus D v with `skip`
//   y = W_out gate(o, z)
//
// With delta this is the gated delta rule, without it the state space model of Mamba-2 (SSD), where
// v, k and q are called x, B and C. The convolution is causal and runs over conv_width tokens of
// each channel: y_t = bias + sum over j of w_j x_(t - conv_width + 1 + j).
struct RecurrentSpec {
  std::uint32_t conv_width = 0;     // 1 to kMaxConvWidth
  std::uint32_t conv_channels = 0;  // 2 * key_heads * key_size + heads * value_size
  bool conv_bias = false;
  std::uint32_t heads = 0;
  std::uint32_t key_heads = 0;  // head h reads q and k of key head h / (heads / key_heads)
  // True: head h reads key head h % key_heads instead. Some GGUF files have this order of heads.
  bool tiles_key_heads = false;
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  DecayKind decay = DecayKind::kPerHead;
  bool delta = true;
  float qk_l2_eps = 0;  // 0: q and k are used as they are
  float dt_min = 0;
  float dt_max = std::numeric_limits<float>::infinity();
  bool skip = false;
  RecurrentGate gate = RecurrentGate::kNormThenSilu;
  float norm_eps = 0;
  // Ranks of two-stage projections: a = W_b (W_a x) for decays, and likewise for z. 0: one stage.
  std::uint32_t decay_rank = 0;
  std::uint32_t gate_rank = 0;
  // 0: the norm is over value_size, with the same weights for all heads. Otherwise the number of
  // groups of adjacent columns that are normalized, with a weight for each column of all heads.
  std::uint32_t norm_groups = 0;

  std::uint32_t key_columns() const { return key_heads * key_size; }
  std::uint32_t value_columns() const { return heads * value_size; }
  // Number of decay factors of a token.
  std::uint32_t decay_columns() const {
    return decay == DecayKind::kPerChannel ? heads * key_size : heads;
  }
  // Columns of W_in: those of the convolution, z, b and a. If z or a has two stages, W_in computes
  // only the first one, whose columns are the rank.
  std::uint32_t in_columns() const {
    return conv_channels + gate_in_columns() + (delta ? heads : 0) + decay_in_columns();
  }
  // Floats of the states of one sequence: S of all heads, and the inputs of the convolution.
  std::int64_t state_floats() const { return std::int64_t{heads} * key_size * value_size; }
  std::int64_t conv_floats() const { return std::int64_t{conv_width - 1} * conv_channels; }
  // Elements of a token: W_in x, then the second stages of z and of a.
  std::uint32_t row_columns() const {
    return in_columns() + (gate_rank != 0 ? value_columns() : 0) +
           (decay_rank != 0 ? decay_columns() : 0);
  }
  std::uint32_t gate_in_columns() const { return gate_rank != 0 ? gate_rank : value_columns(); }
  std::uint32_t decay_in_columns() const { return decay_rank != 0 ? decay_rank : decay_columns(); }
  friend bool operator==(const RecurrentSpec&, const RecurrentSpec&) = default;
};

// A layer whose only memory is a causal convolution over `width` tokens, one for each column of
// hidden: y = W_out (C * conv(B * v)), with B, C, v = W_in x.
struct ShortConvSpec {
  std::uint32_t width = 0;  // 2 to kMaxConvWidth
  friend bool operator==(const ShortConvSpec&, const ShortConvSpec&) = default;
};

inline constexpr std::uint32_t kMaxConvWidth = 8;
inline constexpr std::uint32_t kMaxStateColumns = 256;  // limit of key_size and of value_size

using kernels::Activation;

struct MlpSpec {
  bool gated = true;  // W_down(act(W_gate x) * W_up x), else W_down act(W_up x)
  std::uint32_t intermediate = 0;
  bool gate_bias = false;
  bool up_bias = false;
  bool down_bias = false;
  Activation act = Activation::kSilu;
  float alpha = 1;
  float limit = 0;      // g = min(g, limit), u = clamp(u, -limit, limit) before act; 0: off
  float up_offset = 0;  // act(g) * (u + up_offset)
  // Columns of the first product: gate and up, or up alone.
  std::int64_t inner_columns() const { return (gated ? 2 : 1) * std::int64_t{intermediate}; }
  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

enum class RouterScore : std::uint8_t { kSoftmaxAll, kSigmoid, kSoftmaxChosen, kSigmoidChosen };
enum class GroupScore : std::uint8_t { kMax, kTop2Sum };

struct MoeSpec {
  std::uint32_t num_experts = 0;
  std::uint32_t top_k = 0;
  MlpSpec expert;
  RouterScore score = RouterScore::kSoftmaxAll;
  bool router_bias = false;
  bool choice_bias = false;  // added to the scores for choosing experts, not to their weights
  std::uint32_t groups = 1;
  std::uint32_t groups_kept = 1;
  GroupScore group_score = GroupScore::kMax;
  bool renormalize = false;
  float renorm_eps = 0;
  float weight_scale = 1;
  bool weight_on_input = false;  // the weight multiplies the expert's input, not its output
  // Width in which experts compute. W_in projects their input to this width, and W_out projects
  // their weighted sum back. The router and the shared expert read the full width. 0: off.
  std::uint32_t latent = 0;
  std::optional<MlpSpec> shared;
  bool shared_gate = false;
  // The router reads this norm of the residual stream instead of the input of the experts.
  NormSpec router_norm;
  bool expert_scale = false;  // one learned factor per expert, after renormalizing
  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};

enum class AttentionKind : std::uint8_t { kHeads, kMla, kRecurrent, kShortConv, kNone };
enum class MlpKind : std::uint8_t {
  kDense,
  kMoe,
  // norm(dense(norm(x, mlp_in)), dense_out) + norm(moe(norm(x, moe_in)), moe_out)
  kDenseAndMoe,
  kNone
};

// The last branch of a layer, which multiplies by the layer's input u_L of PerLayerInputSpec.
struct LayerInputSpec {
  std::uint32_t size = 0;  // columns of u_L; 0: the layer has no such branch
  Activation act = Activation::kGeluTanh;
  NormSpec norm;
  friend bool operator==(const LayerInputSpec&, const LayerInputSpec&) = default;
};

struct LayerSpec {
  NormSpec attn_in;
  NormSpec attn_out;
  NormSpec mlp_in;
  NormSpec mlp_out;
  float residual_scale = 1;       // multiplies each branch before it is added
  float output_scale = 1;         // multiplies the residual stream after the layer
  bool has_output_scale = false;  // a stored scalar also multiplies the residual stream
  AttentionKind attention = AttentionKind::kHeads;
  MlpKind mlp = MlpKind::kDense;
  AttentionSpec heads;       // used if attention is kHeads
  MlaSpec mla;               // used if attention is kMla
  RecurrentSpec recurrent;   // used if attention is kRecurrent
  ShortConvSpec short_conv;  // used if attention is kShortConv
  MlpSpec dense;             // used if mlp is kDense or kDenseAndMoe
  MoeSpec moe;               // used if mlp is kMoe or kDenseAndMoe
  NormSpec dense_out;        // used if mlp is kDenseAndMoe
  NormSpec moe_in;           // used if mlp is kDenseAndMoe
  NormSpec moe_out;          // used if mlp is kDenseAndMoe
  LayerInputSpec input;
  std::int32_t kv_from_layer = -1;  // layer whose K and V this layer reads; -1: its own
  // AssignCacheGroups computes this: layers with equal KV rows and windows have equal numbers.
  // layer_groups.h decides which layers share pages.
  std::uint8_t cache_group = 0;
  bool has_dense() const { return mlp == MlpKind::kDense || mlp == MlpKind::kDenseAndMoe; }
  bool has_moe() const { return mlp == MlpKind::kMoe || mlp == MlpKind::kDenseAndMoe; }
  // True if the layer attends to rows in the pages of the KV cache, one row per token.
  bool has_kv() const {
    return attention == AttentionKind::kHeads || attention == AttentionKind::kMla;
  }
  // True if the layer writes such rows itself, instead of reading those of an earlier layer.
  bool stores_kv() const { return has_kv() && kv_from_layer < 0; }
  // True if the layer keeps a state of constant size for each sequence.
  bool has_state() const {
    return attention == AttentionKind::kRecurrent || attention == AttentionKind::kShortConv;
  }
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// Inputs of layers besides the residual stream. For layer L of a token with embedding x0 (scaled):
//   u_L = (norm(projection_scale * W_context x0)_L + embedding[token]_L * embed_scale) * scale
// The norm has the size of one layer's input. W_context and `embedding` have the columns of all
// layers.
struct PerLayerInputSpec {
  std::uint32_t size = 0;   // columns per layer, LayerInputSpec::size of all layers; 0: none
  std::uint32_t vocab = 0;  // rows of the embedding
  float embed_scale = 1;
  float projection_scale = 1;
  float scale = 1;
  NormSpec norm;
  friend bool operator==(const PerLayerInputSpec&, const PerLayerInputSpec&) = default;
};

struct ModelSpec {
  std::uint32_t vocab_size = 0;  // rows of embedding and head, padding rows included
  std::uint32_t hidden = 0;
  std::uint32_t max_position = 0;  // tokens of context, after rope scaling
  std::vector<LayerSpec> layers;
  std::vector<RopeTable> rope_tables;
  float embed_scale = 1;
  PerLayerInputSpec layer_inputs;
  NormSpec final_norm;
  bool has_head = true;  // false: the model returns hidden states or labels
  // Rows of the matrix `score`, which maps the hidden state of the last token to labels; 0: none.
  std::uint32_t num_labels = 0;
  bool tie_embeddings = false;
  float logit_scale = 1;
  float logit_softcap = 0;  // 0: off
  std::vector<std::int32_t> eos_ids;
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> pad_id;
  // The first layer with KV. REQUIRES: CheckSupported is OK.
  const LayerSpec& first_kv_layer() const {
    return *std::find_if(layers.begin(), layers.end(),
                         [](const LayerSpec& layer) { return layer.has_kv(); });
  }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// Sets LayerSpec::cache_group: groups are layers with equal (kind, KV heads, qk size, v size, and
// window or chunk), numbered in order of first appearance.
void AssignCacheGroups(ModelSpec* spec);

// Returns the number of columns of index rows (IndexSpec::size); 0 if no layer has an indexer.
std::uint32_t IndexSize(const ModelSpec& spec);

// Rejects a spec that contradicts itself, independent of the backend. Returns INVALID_ARGUMENT that
// names the layer, the field, its value and the limit.
absl::Status ValidateSpec(const ModelSpec& spec);

// Rejects a spec that this version cannot compute on the device; CUDA supports fewer knobs than the
// CPU. Returns UNIMPLEMENTED that names the layer and the unsupported field or combination.
absl::Status CheckSupported(const ModelSpec& spec, DeviceKind device);

// Prints a spec: one line per group of equal layers, without fields at their defaults. Prints only
// the first and the last entry of a rope table, so specs with equal dumps may still differ in the
// rounding of their tables.
std::string DumpSpec(const ModelSpec& spec);

}  // namespace quire::models
