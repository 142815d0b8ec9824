// Scatters the packed arrays of a step. All threads of the grid copy each array. Then each changed
// range of the lookup tables is copied by one block. The arrays are a few KB, so launch latency
// dominates.

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/elementwise/step_inputs.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kMaxBlocks = 64;

__device__ __forceinline__ std::int32_t ResolveToken(const StepInputsParams& p, std::int32_t id) {
  if (id >= 0) return id;
  const auto index = static_cast<std::uint32_t>(-(id + 1));
  if (index >= p.num_previous) return 0;
  const std::int32_t token = p.previous_tokens[index];
  return token < 0 ? 0 : token;
}

__device__ __forceinline__ void ScatterTokens(const StepInputsParams& p, std::uint32_t first,
                                              std::uint32_t step) {
  const std::uint32_t n = p.num_tokens;
  for (std::uint32_t i = first; i < p.padded_tokens; i += step) {
    const bool real = i < n;
    p.tokens[i] = real ? ResolveToken(p, static_cast<std::int32_t>(p.block[i])) : 0;
    p.positions[i] = real ? static_cast<std::int32_t>(p.block[n + i]) : 0;
    p.token_rows[i] = real ? static_cast<std::int32_t>(p.block[2 * n + i]) : -1;
  }
  for (std::uint32_t i = first; i < p.padded_head_tokens; i += step) {
    p.head_tokens[i] = i < p.num_head_tokens ? p.block[3 * n + i] : 0;
  }
}

__device__ __forceinline__ void ScatterRows(const StepInputsParams& p, const std::uint32_t* offsets,
                                            std::uint32_t first, std::uint32_t step) {
  const std::uint32_t* const lengths = offsets + p.batch_size + 1;
  const std::uint32_t* const prompts = lengths + p.batch_size;
  for (std::uint32_t i = first; i <= p.padded_rows; i += step) {
    p.row_offsets[i] = i <= p.batch_size ? offsets[i] : p.num_tokens;
    if (i == p.padded_rows) return;
    p.cache_lengths[i] = i < p.batch_size ? lengths[i] : 0;
    p.prefill_tokens[i] = i < p.batch_size ? prompts[i] : 0;
  }
}

__device__ __forceinline__ void ScatterLiveRows(const StepInputsParams& p,
                                                const std::uint32_t* rows, std::uint32_t first,
                                                std::uint32_t step) {
  for (std::uint32_t i = first; i <= p.num_live_rows; i += step) {
    p.live_rows[i] = i == 0 ? p.num_live_rows : rows[i - 1];
  }
}

// Scatters the arrays of StateStepInputs. Padding rows get the null slot and no snapshot.
__device__ __forceinline__ void ScatterStates(const StepInputsParams& p,
                                              const std::uint32_t* arrays, std::uint32_t first,
                                              std::uint32_t step) {
  for (std::uint32_t i = first; i < p.padded_rows; i += step) {
    for (std::uint32_t a = 0; a < kStateArrays; ++a) {
      p.states[a * p.states_stride + i] = i < p.batch_size ? arrays[a * p.batch_size + i] : 0;
    }
  }
}

__global__ void __launch_bounds__(kThreads) StepInputsKernel(const StepInputsParams p) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t first = cuda::BlockX() * kThreads + cuda::ThreadIndex();
  const std::uint32_t step = cuda::GridX() * kThreads;
  const std::uint32_t* const offsets = p.block + 3 * p.num_tokens + p.num_head_tokens;
  ScatterTokens(p, first, step);
  ScatterRows(p, offsets, first, step);
  const std::uint32_t* const live_rows = offsets + 3 * p.batch_size + 1;
  ScatterLiveRows(p, live_rows, first, step);
  const std::uint32_t* ranges = live_rows + p.num_live_rows;
  if (p.states != nullptr) {
    ScatterStates(p, ranges, first, step);
    ranges += kStateArrays * p.batch_size;
  }
  for (std::uint32_t r = cuda::BlockX(); r < p.num_ranges; r += cuda::GridX()) {
    const std::uint32_t to = ranges[3 * r];
    const std::uint32_t from = ranges[3 * r + 1];
    const std::uint32_t count = ranges[3 * r + 2];
    for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kThreads) {
      p.lookup_table[to + i] = p.block[from + i];
    }
  }
}

}  // namespace

namespace internal {

absl::Status StepInputsCuda(const CudaContext& context, const StepInputsParams& params) {
  std::uint32_t work = params.padded_tokens;
  if (work < params.padded_rows + 1) work = params.padded_rows + 1;
  std::uint32_t blocks = (work + kThreads - 1) / kThreads;
  if (blocks < params.num_ranges) blocks = params.num_ranges;
  if (blocks > kMaxBlocks) blocks = kMaxBlocks;
  return cuda::Launch(context, "step inputs", StepInputsKernel,
                      {.blocks_x = blocks, .threads = kThreads, .programmatic = true}, params);
}

}  // namespace internal
}  // namespace quire::kernels
