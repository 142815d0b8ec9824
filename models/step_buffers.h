#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "kernels/sampling.h"
#include "models/layer_spec.h"

namespace quire::models {

// What the buffers of a runner are sized by.
struct StepLimits {
  std::uint32_t max_rows = 0;
  std::uint32_t max_step_tokens = 0;
  std::uint32_t max_step_draws = 0;
  std::uint32_t max_logprobs = 0;
};

// Logits of this many tokens are held at once.
inline constexpr std::uint32_t kHeadRows = 64;

// Every array of a step, cut from one allocation. T = max_step_tokens.
//
// Place:      owned by ModelRunner, used by the blocks.
// Invariants: arrays start at multiples of 64 bytes and do not overlap, except that gate_up shares
//             its memory with qkv and attended, which are dead by then.
// Threads:    the engine thread and the ops it runs.
// Lifetime:   movable, addresses stay.
struct StepBuffers {
  static absl::StatusOr<StepBuffers> Allocate(const ModelSpec& spec, const StepLimits& limits);
  // Bytes that Allocate takes.
  static std::int64_t BytesFor(const ModelSpec& spec, const StepLimits& limits);

  DeviceBuffer memory;
  std::int32_t* tokens = nullptr;            // [T] in order of batch rows
  std::int32_t* positions = nullptr;         // [T]
  std::uint32_t* batch_index = nullptr;      // [T] index into StepBatch::token_ids
  std::uint32_t* step_index = nullptr;       // [T] the inverse of batch_index
  std::uint32_t* row_offsets = nullptr;      // [max_rows + 1]
  std::uint32_t* row_order = nullptr;        // [max_rows] StepBatch::rows by batch row
  float* cosines = nullptr;                  // [rope tables][T, entries], one table after the other
  float* sines = nullptr;                    // likewise
  float* x = nullptr;                        // [T, hidden] the residual stream
  float* normed = nullptr;                   // [T, hidden]
  float* qkv = nullptr;                      // [T, (heads + 2 kv_heads) * d]
  float* attended = nullptr;                 // [T, heads * d]
  float* gate_up = nullptr;                  // [T, 2 * intermediate]
  float* head_in = nullptr;                  // [kHeadRows, hidden]
  float* logits = nullptr;                   // [kHeadRows, vocab]
  kernels::TopLogprob* draw_top = nullptr;   // [max_step_draws, max_logprobs]
  kernels::TopLogprob* score_top = nullptr;  // [T, max_logprobs]
};

}  // namespace quire::models
