#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/sampling/sampling.h"
#include "models/config/layer_spec.h"

namespace quire::models {

// Number of tokens whose logits are computed at once on the CPU.
inline constexpr std::uint32_t kHeadRows = 64;
// Number of tokens whose index scores are computed at once.
inline constexpr std::uint32_t kIndexRows = 64;

// Limits that determine the sizes of a runner's buffers.
struct StepLimits {
  std::uint32_t max_rows = 0;  // sequences of a step
  std::uint32_t max_step_tokens = 0;
  std::uint32_t max_step_samples = 0;
  std::uint32_t max_logprobs = 0;
  std::uint32_t head_rows = kHeadRows;  // rows of logits that are computed at once
  DType activation = DType::kF32;       // f32, or bf16 on a GPU
  MemoryKind memory = MemoryKind::kHost;
  std::uint32_t lookup_stride = 0;    // row stride of a lookup table on a GPU
  std::uint32_t num_groups = 1;       // layer groups: number of lookup tables on a GPU
  std::uint32_t num_state_slots = 0;  // slots of recurrent states, the null slot included
  bool is_part = false;  // the weights are one rank's part; branches are sums over ranks
  std::uint32_t max_context_tokens = 0;  // maximum length of a sequence; 0: the model's limit
};

// Buffers of MLA; null if the model has none. H is the number of heads, R is rank + rope.
struct MlaBuffers {
  kernels::FloatPtr q_latent;  // [T, q rank]
  kernels::FloatPtr heads;     // [T, H * (nope + rope)] projected queries
  kernels::FloatPtr rows;      // [T, R] rows for the cache
  kernels::FloatPtr queries;   // [T, H * R]
  kernels::FloatPtr attended;  // [T, H * R] weighted means of latents
  kernels::FloatPtr values;    // [T, H * v]
};

// Buffers of recurrent layers; null if the model has none.
struct RecurrentBuffers {
  float* in = nullptr;     // [T, RecurrentSpec::row_columns], or [T, 3 * hidden]
  float* decay = nullptr;  // [T, RecurrentSpec::decay_columns]
  float* rate = nullptr;   // [T, heads]
  float* out = nullptr;    // [T, heads * value_size]
  // [T, columns] input of a product; null if activations are f32, because such products read `in`
  // and `out` directly.
  kernels::FloatPtr rounded;
};

// Buffers of the indexers (IndexSpec); null if no layer has one. K is the largest topk, at most the
// context. The last four arrays outlive the layer, because layers share selections.
struct IndexBuffers {
  float* queries = nullptr;        // [T, heads * size]
  float* keys = nullptr;           // [T, size] rows for the cache
  float* weights = nullptr;        // [T, heads]
  float* scores = nullptr;         // [kIndexRows, score_stride]
  std::int64_t score_stride = 0;   // the context, rounded up to the tiles of IndexScore
  std::uint32_t max_selected = 0;  // K
  // [T, K] selected keys, ascending: positions, until MapSelectedRows replaces them by view rows.
  std::int32_t* selected = nullptr;
  std::uint32_t* last_selected = nullptr;  // [T] index of the last key in each row of `selected`
  std::uint32_t* offsets = nullptr;        // [T + 1] 0, 1, 2, ...
  std::uint32_t* live_rows = nullptr;      // [1 + T] SelectedRowsParams; null on the CPU
};

// Buffers of MoE layers; null if the model has none. E is the largest number of experts of a layer,
// K the largest number of experts per token. R is T * K on a GPU, which computes all experts at
// once, and T on the CPU, which computes one expert at a time. An expert's input has as many
// columns as the latent width, or as `hidden` if the layer has no latent width.
struct MoeBuffers {
  float* router_logits = nullptr;    // [T, E]
  std::uint32_t* chosen = nullptr;   // [T, K]
  float* chosen_weights = nullptr;   // [T, K]
  std::uint32_t* offsets = nullptr;  // [E + 1]
  std::uint32_t* rows = nullptr;     // [T * K] sorted by expert
  float* row_weights = nullptr;      // [T * K]
  std::uint32_t* places = nullptr;   // [T, K] indices into rows; null on the CPU
  // [R, expert input]. Null on a GPU, unless experts read weighted inputs. Grouped matrix products
  // gather unweighted inputs themselves.
  kernels::FloatPtr inputs;
  kernels::FloatPtr gate_up;    // [R, inner columns of an expert], or [T, those of the shared one]
  float* outputs = nullptr;     // [R, expert input], or [T, hidden] of the shared expert
  float* sum = nullptr;         // [T, hidden] sum over all experts
  kernels::FloatPtr latent_in;  // [T, latent] input of the experts
  float* latent_sum = nullptr;  // [T, latent] sum over the chosen experts
};

// True if a branch of the layer is written to the buffer `branch` before it is added, because
// BranchOutput::is_sum is false.
bool NeedsBranchBuffer(const LayerSpec& layer);

// All arrays of a step that kernels read and write, in one allocation. T = max_step_tokens.
//
// Place:      owned by a runner, used by the blocks.
// Invariants: arrays start at multiples of 256 bytes and do not overlap, with two exceptions.
//             1. gate_up and moe share memory with qkv and attended, mla, or recurrent, since the
//                results of attention are not needed any more when the MLP runs. layer_context
//                and tail_values, which are used between layers, also share this memory.
//             2. If activations are f32, branch and normed are the same array. Otherwise branch
//                exists only if a branch of the model is not a plain sum or is summed over ranks.
// Threads:    the engine thread and the ops it runs.
// Lifetime:   movable; addresses do not change.
struct StepBuffers {
  static absl::StatusOr<StepBuffers> Allocate(const ModelSpec& spec, const StepLimits& limits);
  // Returns the number of bytes that Allocate allocates.
  static std::int64_t BytesFor(const ModelSpec& spec, const StepLimits& limits);

  DeviceBuffer memory;
  std::int32_t* tokens = nullptr;        // [T] in the order of batch rows
  std::int32_t* positions = nullptr;     // [T]
  std::uint32_t* row_offsets = nullptr;  // [max_rows + 1]
  float* cosines = nullptr;              // [rope tables][T, entries]
  float* sines = nullptr;                // [rope tables][T, entries]
  float* x = nullptr;                    // [T, hidden] the residual stream
  kernels::FloatPtr normed;              // [T, hidden] input of a branch
  float* branch = nullptr;               // [T, hidden] output of a branch that is not a plain sum
  float* layer_inputs = nullptr;         // [T, layers, input]; null: no inputs per layer
  float* layer_context = nullptr;        // [T, layers, input]; null: no inputs per layer
  float* dense_out = nullptr;            // [T, hidden]; null: no dense MLP beside experts
  kernels::FloatPtr qkv;                 // [T, (heads + 2 kv_heads) * d], then output gates
  kernels::FloatPtr attended;            // [T, heads * d]
  kernels::FloatPtr gate_up;             // [T, inner columns]
  MoeBuffers moe;
  MlaBuffers mla;
  RecurrentBuffers recurrent;
  IndexBuffers index;
  std::uint32_t* head_tokens = nullptr;  // [T] tokens with logits (StepBatch::logits_tokens)
  kernels::FloatPtr head_in;             // [head_rows, hidden]
  float* logits = nullptr;               // [head_rows, vocab]

  // Host memory only. The next two are null unless the model has tail layers (tail_rows.h).
  std::uint32_t* tail_offsets = nullptr;              // [max_rows + 1]
  std::uint32_t* tail_lengths = nullptr;              // [max_rows]
  kernels::TopLogprob* sample_top = nullptr;          // [max_step_samples, max_logprobs]
  kernels::TopLogprob* prompt_logprob_top = nullptr;  // [T, max_logprobs]

  // Device memory only; null on the CPU.
  std::int32_t* token_rows = nullptr;       // [T] batch row of each token, -1: padding
  std::uint32_t* cache_lengths = nullptr;   // [max_rows]
  std::uint32_t* prefill_tokens = nullptr;  // [max_rows] prompt tokens of each row of the step
  std::uint32_t* live_rows = nullptr;  // [1 + max_rows] number of rows of the step, then the rows
  std::uint32_t* lookup_table = nullptr;  // [num_groups, max_rows, lookup_stride]
  float* tail_values = nullptr;           // [T, hidden or all inputs per layer]; null: no tail
  // The arrays of cache::StateStepInputs, [max_rows] each; null without num_state_slots.
  std::uint32_t* states = nullptr;
  float* inv_freq = nullptr;  // all rope tables, concatenated
};

}  // namespace quire::models
