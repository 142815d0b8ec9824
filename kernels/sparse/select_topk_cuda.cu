// Radix select: one block per row. Four passes of 8-bit histograms find the threshold of the
// selection, and one ordered scan lists the selected keys. All sums are integers, so their order
// does not matter. After the first pass the scores of a row are read from L2.

#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/sparse/select_topk.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 512;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kDigits = 256;
constexpr std::uint32_t kThreadKeys = 4;  // number of adjacent keys that a thread scans
static_assert(kThreads >= kDigits);
static_assert(kThreads * kThreadKeys < 1u << 16);  // two counts fit in 32 bits

struct SelectShared {
  std::uint32_t starts[kDigits + 1];
  std::uint32_t scratch[kWarps];
  std::uint32_t bits;  // bits of the threshold found so far
  std::uint32_t left;  // keys to select among those that agree with `bits`
};

__device__ __forceinline__ std::uint32_t OrderOf(float score) {
  return internal::OrderedScoreBits(cuda::FloatBits(score));
}

// Stores the bits of the threshold in shared.bits and the number of selected keys with these bits
// in shared.left. REQUIRES: topk <= num_keys.
__device__ __forceinline__ void FindThreshold(const float* scores, std::uint32_t num_keys,
                                              std::uint32_t topk, SelectShared& shared) {
  const std::uint32_t thread = cuda::ThreadIndex();
  std::uint32_t known = 0;  // mask of the bits that are already known
  if (thread == 0) {
    shared.bits = 0;
    shared.left = topk;
  }
  for (std::int32_t shift = 24; shift >= 0; shift -= 8) {
    if (thread < kDigits) shared.starts[thread] = 0;
    cuda::SyncBlock();
    const std::uint32_t bits = shared.bits;
    const std::uint32_t left = shared.left;
    for (std::uint32_t j = thread; j < num_keys; j += kThreads) {
      const std::uint32_t key = OrderOf(scores[j]);
      if ((key & known) == bits) {
        cuda::AtomicAdd(&shared.starts[(key >> shift) & (kDigits - 1)], 1u);
      }
    }
    cuda::SyncBlock();
    cuda::ScanCounts<kThreads>(shared.starts, kDigits, shared.scratch);
    if (thread < kDigits) {
      const std::uint32_t total = shared.starts[kDigits];
      const std::uint32_t above = total - shared.starts[thread + 1];
      if (above < left && total - shared.starts[thread] >= left) {
        shared.bits = bits | thread << shift;
        shared.left = left - above;
      }
    }
    known |= (kDigits - 1) << shift;
    cuda::SyncBlock();
  }
}

// Returns the sum of `count` over all threads before this one, and in *total the sum over the
// block. Ends without a barrier, so the caller must synchronize before the next call.
__device__ __forceinline__ std::uint32_t SumBefore(std::uint32_t count, SelectShared& shared,
                                                   std::uint32_t* total) {
  const std::uint32_t warp = cuda::Warp();
  std::uint32_t inclusive = count;
#pragma unroll
  for (std::uint32_t delta = 1; delta < cuda::kWarpSize; delta *= 2) {
    const std::uint32_t before = cuda::ShuffleUp(inclusive, delta);
    if (cuda::Lane() >= delta) inclusive += before;
  }
  if (cuda::Lane() == cuda::kWarpSize - 1) shared.scratch[warp] = inclusive;
  cuda::SyncBlock();
  std::uint32_t sum = inclusive - count;
  *total = 0;
  for (std::uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp) sum += shared.scratch[w];
    *total += shared.scratch[w];
  }
  return sum;
}

// Lists the keys above the threshold, and the first shared.left keys at the threshold.
__device__ __forceinline__ void ListKeys(const float* scores, std::uint32_t num_keys,
                                         SelectShared& shared, std::int32_t* selected) {
  const std::uint32_t bits = shared.bits;
  const std::uint32_t left = shared.left;
  std::uint32_t num_above = 0;  // keys of the preceding rounds
  std::uint32_t num_equal = 0;
  for (std::uint32_t first = 0; first < num_keys; first += kThreads * kThreadKeys) {
    const std::uint32_t begin = first + cuda::ThreadIndex() * kThreadKeys;
    std::uint32_t keys[kThreadKeys];
    std::uint32_t count = 0;  // keys above the threshold + 2^16 * keys at the threshold
#pragma unroll
    for (std::uint32_t j = 0; j < kThreadKeys; ++j) {
      keys[j] = begin + j < num_keys ? OrderOf(scores[begin + j]) : 0;
      if (begin + j >= num_keys) continue;
      count += (keys[j] > bits ? 1u : 0u) + (keys[j] == bits ? 1u << 16 : 0u);
    }
    std::uint32_t total;
    const std::uint32_t before = SumBefore(count, shared, &total);
    std::uint32_t above = num_above + (before & 0xffffu);
    std::uint32_t equal = num_equal + (before >> 16);
#pragma unroll
    for (std::uint32_t j = 0; j < kThreadKeys; ++j) {
      if (begin + j >= num_keys || keys[j] < bits) continue;
      const std::uint32_t place = above + (equal < left ? equal : left);
      const bool is_selected = keys[j] > bits || equal < left;
      (keys[j] > bits ? above : equal) += 1;
      if (is_selected) selected[place] = static_cast<std::int32_t>(begin + j);
    }
    num_above += total & 0xffffu;
    num_equal += total >> 16;
    cuda::SyncBlock();
  }
}

__global__ void __launch_bounds__(kThreads)
    SelectTopKKernel(const __grid_constant__ SelectTopKParams params) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  if (params.token_rows[row] < 0) return;
  SelectShared& shared = *reinterpret_cast<SelectShared*>(cuda::SharedMemory16());
  const auto num_keys = static_cast<std::uint32_t>(params.positions[row]) + 1;
  const std::uint32_t count = num_keys < params.topk ? num_keys : params.topk;
  std::int32_t* const selected = params.selected + row * params.max_selected;
  for (std::uint32_t i = cuda::ThreadIndex(); i < params.max_selected; i += kThreads) {
    if (i >= count) {
      selected[i] = -1;
    } else if (count == num_keys) {
      selected[i] = static_cast<std::int32_t>(i);
    }
  }
  if (count == num_keys) return;
  const float* const scores = params.scores + row * params.score_stride;
  FindThreshold(scores, num_keys, count, shared);
  ListKeys(scores, num_keys, shared, selected);
}

}  // namespace

namespace internal {

absl::Status SelectTopKCuda(const CudaContext& context, const SelectTopKParams& params) {
  if (params.token_rows == nullptr) {
    return absl::InvalidArgumentError("SelectTopK on a GPU requires token_rows");
  }
  return cuda::Launch(context, "select_topk", SelectTopKKernel,
                      {.blocks_x = params.num_rows,
                       .threads = kThreads,
                       .shared_bytes = sizeof(SelectShared),
                       .programmatic = true},
                      params);
}

}  // namespace internal
}  // namespace quire::kernels
