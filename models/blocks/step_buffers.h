#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/sampling/sampling.h"
#include "models/config/layer_spec.h"

namespace quire::models {

// Logits of this many tokens are held at once on the CPU.
inline constexpr std::uint32_t kHeadRows = 64;

// What the buffers of a runner are sized by.
struct StepLimits {
  std::uint32_t max_rows = 0;
  std::uint32_t max_step_tokens = 0;
  std::uint32_t max_step_samples = 0;
  std::uint32_t max_logprobs = 0;
  std::uint32_t head_rows = kHeadRows;  // rows of logits held at once
  DType activation = DType::kF32;       // f32, or bf16 on a GPU
  MemoryKind memory = MemoryKind::kHost;
  std::uint32_t lookup_stride = 0;  // of a lookup table on a GPU
  std::uint32_t num_groups = 1;     // layer groups: lookup tables on a GPU
  bool is_part = false;             // of a model that is divided: branches are sums over ranks
};

// What latent attention needs beside normed; null where the model has none. H: heads, R: rank +
// rope.
struct MlaBuffers {
  kernels::FloatPtr q_latent;  // [T, q rank]
  kernels::FloatPtr heads;     // [T, H * (nope + rope)] queries as projected
  kernels::FloatPtr rows;      // [T, R] what is cached
  kernels::FloatPtr queries;   // [T, H * R]
  kernels::FloatPtr found;     // [T, H * R]
  kernels::FloatPtr values;    // [T, H * v]
};

// What a mixture of experts needs beside normed; null where the model has none. E: the most experts
// of a layer, K: the most that a token goes to, R: T * K on a GPU, which computes all experts at
// once, on the CPU T, the rows of one expert.
struct MoeBuffers {
  float* router_logits = nullptr;    // [T, E]
  std::uint32_t* chosen = nullptr;   // [T, K]
  float* chosen_weights = nullptr;   // [T, K]
  std::uint32_t* offsets = nullptr;  // [E + 1]
  std::uint32_t* rows = nullptr;     // [T * K] by expert
  float* row_weights = nullptr;      // [T * K]
  std::uint32_t* places = nullptr;   // [T, K] in rows; null on the CPU
  kernels::FloatPtr inputs;          // [R, hidden]; null on a GPU, which reads rows by number
  kernels::FloatPtr gate_up;         // [R, 2 * intermediate], or [T, that of the shared expert]
  float* outputs = nullptr;          // [R, hidden]
  float* sum = nullptr;              // [T, hidden] of all experts
};

// Whether a branch of the layer is no plain sum: BranchOutput::is_sum.
bool HasBranches(const LayerSpec& layer);

// Every array of a step that kernels read and write, cut from one allocation. T = max_step_tokens.
//
// Place:      owned by a runner, used by the blocks.
// Invariants: arrays start at multiples of 256 bytes and do not overlap, except that gate_up
//             and moe share the memory of the attention before them, which is dead by then: of
//             qkv and attended, or, in a layer of latent attention, of mla, which takes their
//             place; and branch is normed where activations are f32. Where they are not, it is null
//             unless some branch of the model is no plain sum, or one over ranks.
// Threads:    the engine thread and the ops it runs.
// Lifetime:   movable, addresses stay.
struct StepBuffers {
  static absl::StatusOr<StepBuffers> Allocate(const ModelSpec& spec, const StepLimits& limits);
  // Bytes that Allocate takes.
  static std::int64_t BytesFor(const ModelSpec& spec, const StepLimits& limits);

  DeviceBuffer memory;
  std::int32_t* tokens = nullptr;        // [T] in order of batch rows
  std::int32_t* positions = nullptr;     // [T]
  std::uint32_t* row_offsets = nullptr;  // [max_rows + 1]
  float* cosines = nullptr;              // [rope tables][T, entries], one table after the other
  float* sines = nullptr;                // likewise
  float* x = nullptr;                    // [T, hidden] the residual stream
  kernels::FloatPtr normed;              // [T, hidden] what a branch reads
  float* branch = nullptr;               // [T, hidden] what it gives, unless it is a plain sum
  kernels::FloatPtr qkv;                 // [T, (heads + 2 kv_heads) * d]
  kernels::FloatPtr attended;            // [T, heads * d]
  kernels::FloatPtr gate_up;             // [T, 2 * intermediate]
  MoeBuffers moe;
  MlaBuffers mla;
  std::uint32_t* head_tokens = nullptr;  // [T] which tokens get logits, in order of logits_tokens
  kernels::FloatPtr head_in;             // [head_rows, hidden]
  float* logits = nullptr;               // [head_rows, vocab]

  // Host memory only.
  kernels::TopLogprob* sample_top = nullptr;          // [max_step_samples, max_logprobs]
  kernels::TopLogprob* prompt_logprob_top = nullptr;  // [T, max_logprobs]

  // Device memory only; null on the CPU.
  std::int32_t* token_rows = nullptr;       // [T] batch row of each token, -1: padding
  std::uint32_t* cache_lengths = nullptr;   // [max_rows]
  std::uint32_t* prefill_tokens = nullptr;  // [max_rows] prompt tokens of each row of the step
  std::uint32_t* lookup_table = nullptr;    // [num_groups, max_rows, lookup_stride]
  float* inv_freq = nullptr;                // of all rope tables, one after the other
};

}  // namespace quire::models
