#include "models/blocks/recurrent_block.h"

#include <cstdint>

#include "base/status.h"
#include "kernels/linear/linear.h"
#include "kernels/recurrent/causal_conv.h"
#include "kernels/recurrent/gate_norm.h"
#include "kernels/recurrent/prepare_scan.h"
#include "kernels/recurrent/state_scan.h"
#include "models/blocks/branch.h"

namespace quire::models {
namespace {

// Columns of RecurrentBuffers::in where the parts of a row begin.
struct Columns {
  explicit Columns(const RecurrentSpec& r)
      : q(r.delta ? 0 : r.value_columns() + r.key_columns()),
        k(r.delta ? r.key_columns() : r.value_columns()),
        v(r.delta ? 2 * r.key_columns() : 0),
        gate_in(r.conv_channels),
        b(gate_in + r.gate_in_columns()),
        decay_in(r.delta ? b + r.heads : b),
        z(r.gate_rank != 0 ? r.in_columns() : gate_in),
        a(r.decay_rank != 0 ? r.row_columns() - r.decay_columns() : decay_in),
        width(r.row_columns()) {}
  std::uint32_t q, k, v;
  std::uint32_t gate_in;  // the first stage of `z` if `z` has two, else `z`
  std::uint32_t b;
  std::uint32_t decay_in;  // the first stage of `a` if `a` has two, else `a`
  std::uint32_t z, a;
  std::int64_t width;
};

// Computes the second stage of `z` or `a`. Reads RecurrentBuffers::in from column `from` on, and
// writes the result from column `to` on.
absl::Status ApplySecondStage(const StepContext& step, const LinearWeights& weights,
                              std::int64_t width, std::uint32_t from, std::uint32_t to) {
  const RecurrentBuffers& b = step.buffers->recurrent;
  QUIRE_ASSIGN_OR_RETURN(
      const ProductRows rows,
      ProductInput(step, b.in + from, width, weights.matrices.front().k(), b.rounded));
  return ApplyLinear(*step.backend, weights,
                     {.x = rows.x,
                      .weight = nullptr,
                      .y = b.in + to,
                      .x_stride = rows.stride,
                      .y_stride = width,
                      .num_rows = step.num_tokens});
}

// Computes, for the step's tokens, the inputs of the scan and of the gate. The scan reads q, k, v,
// decay and rate. PrepareScan normalizes q and k in place (if qk_l2_eps is above 0) and computes
// decay and rate from `a` and `b`. The gate reads `z`.
absl::Status Project(const StepContext& step, const RecurrentSpec& recurrent,
                     const RecurrentWeights& weights, const LayerPlace& place,
                     kernels::ConstFloatPtr input) {
  const RecurrentBuffers& b = step.buffers->recurrent;
  const Columns columns(recurrent);
  QUIRE_RETURN_IF_ERROR(ApplyLinear(*step.backend, weights.in,
                                    {.x = input,
                                     .weight = nullptr,
                                     .y = b.in,
                                     .x_stride = step.hidden,
                                     .y_stride = columns.width,
                                     .num_rows = step.num_tokens}));
  if (recurrent.gate_rank != 0) {
    QUIRE_RETURN_IF_ERROR(
        ApplySecondStage(step, weights.gate, columns.width, columns.gate_in, columns.z));
  }
  if (recurrent.decay_rank != 0) {
    QUIRE_RETURN_IF_ERROR(
        ApplySecondStage(step, weights.decay, columns.width, columns.decay_in, columns.a));
  }
  QUIRE_RETURN_IF_ERROR(kernels::CausalConv(
      *step.backend, {.rows = StateRowsOf(step, place, recurrent.state_floats()),
                      .x = b.in,
                      .weight = weights.conv,
                      .bias = weights.conv_bias,
                      .x_stride = columns.width,
                      .channels = recurrent.conv_channels,
                      .width = recurrent.conv_width}));
  return kernels::PrepareScan(*step.backend, {.q = b.in + columns.q,
                                              .k = b.in + columns.k,
                                              .a = b.in + columns.a,
                                              .b = recurrent.delta ? b.in + columns.b : nullptr,
                                              .a_log = weights.a_log,
                                              .dt_bias = weights.dt_bias,
                                              .decay = b.decay,
                                              .rate = b.rate,
                                              .qk_stride = columns.width,
                                              .rates_stride = columns.width,
                                              .num_rows = step.num_tokens,
                                              .heads = recurrent.heads,
                                              .key_heads = recurrent.key_heads,
                                              .key_size = recurrent.key_size,
                                              .channels = recurrent.decay_columns(),
                                              .qk_l2_eps = recurrent.qk_l2_eps,
                                              .dt_min = recurrent.dt_min,
                                              .dt_max = recurrent.dt_max});
}

absl::Status Scan(const StepContext& step, const RecurrentSpec& recurrent,
                  const RecurrentWeights& weights, const LayerPlace& place) {
  const RecurrentBuffers& b = step.buffers->recurrent;
  const Columns columns(recurrent);
  return kernels::StateScan(*step.backend,
                            {.rows = StateRowsOf(step, place, 0),
                             .q = b.in + columns.q,
                             .k = b.in + columns.k,
                             .v = b.in + columns.v,
                             .decay = b.decay,
                             .rate = b.rate,
                             .skip = weights.skip,
                             .out = b.out,
                             .qkv_stride = columns.width,
                             .heads = recurrent.heads,
                             .key_heads = recurrent.key_heads,
                             .key_size = recurrent.key_size,
                             .value_size = recurrent.value_size,
                             .decays_channels = recurrent.decay == DecayKind::kPerChannel,
                             .delta = recurrent.delta,
                             .tiles_key_heads = recurrent.tiles_key_heads});
}

kernels::GateOrder OrderOf(RecurrentGate gate) {
  switch (gate) {
    case RecurrentGate::kNormThenSilu:
      return kernels::GateOrder::kNormThenSilu;
    case RecurrentGate::kNormThenSigmoid:
      return kernels::GateOrder::kNormThenSigmoid;
    case RecurrentGate::kSiluThenNorm:
      break;
  }
  return kernels::GateOrder::kSiluThenNorm;
}

// Returns the output buffer of the gate, which the last product reads.
kernels::FloatPtr Gated(const RecurrentBuffers& b) {
  return b.rounded.is_null() ? kernels::FloatPtr(b.out) : b.rounded;
}

// Computes gate(out, z).
absl::Status Gate(const StepContext& step, const RecurrentSpec& recurrent,
                  const RecurrentWeights& weights) {
  const RecurrentBuffers& b = step.buffers->recurrent;
  const Columns columns(recurrent);
  const bool by_head = recurrent.norm_groups == 0;
  const std::uint32_t groups = by_head ? recurrent.heads : recurrent.norm_groups;
  return kernels::GateNorm(*step.backend, {.x = b.out,
                                           .gate = b.in + columns.z,
                                           .weight = weights.gate_norm,
                                           .y = Gated(b),
                                           .x_stride = recurrent.value_columns(),
                                           .gate_stride = columns.width,
                                           .y_stride = recurrent.value_columns(),
                                           .num_rows = step.num_tokens,
                                           .groups = groups,
                                           .columns = recurrent.value_columns() / groups,
                                           .order = OrderOf(recurrent.gate),
                                           .has_group_weights = !by_head,
                                           .epsilon = recurrent.norm_eps});
}

}  // namespace

kernels::StateRows StateRowsOf(const StepContext& step, const LayerPlace& place,
                               std::int64_t offset_floats) {
  return {.states = step.states.memory + place.state + offset_floats * std::int64_t{sizeof(float)},
          .slot_stride = step.states.slot_bytes,
          .slots = step.states.inputs,
          .row_offsets = step.buffers->row_offsets,
          .positions = step.buffers->positions,
          .batch_size = step.batch_size,
          .num_tokens = step.num_tokens,
          .live_rows = step.buffers->live_rows};
}

absl::Status RecurrentBlock(const StepContext& step, const LayerSpec& layer,
                            const LayerWeights& weights, const LayerPlace& place) {
  const RecurrentSpec& recurrent = layer.recurrent;
  QUIRE_ASSIGN_OR_RETURN(const kernels::ConstFloatPtr input,
                         BranchInput(step, layer.attn_in, weights.attn_in));
  QUIRE_RETURN_IF_ERROR(Project(step, recurrent, weights.recurrent, place, input));
  QUIRE_RETURN_IF_ERROR(Scan(step, recurrent, weights.recurrent, place));
  QUIRE_RETURN_IF_ERROR(Gate(step, recurrent, weights.recurrent));
  return AddProduct(step, AttentionOutput(layer, weights), weights.recurrent.out,
                    Gated(step.buffers->recurrent), recurrent.value_columns());
}

}  // namespace quire::models
