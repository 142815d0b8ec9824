#pragma once

// Device functions of the sampler's kernels: order keys, and selection by digits without a sort.
// The idea of keys whose integer order is that of the floats, searched digit by digit with
// histograms, is radix selection as in RadiK (Li et al., ICS 2024) and the top-k kernels of RAFT.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/backend/exact_math.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/sampling/sampling_device.h"

namespace quire::kernels::internal {

inline constexpr std::uint32_t kSamplerThreads = 256;
inline constexpr std::uint32_t kSamplerWarps = kSamplerThreads / cuda::kWarpSize;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr float kLargestLogit = std::numeric_limits<float>::max();

// u32 that grows with x, and is equal for 0 and -0.
__device__ __forceinline__ std::uint32_t OrderedKey(float x) {
  const std::uint32_t bits = cuda::FloatBits(cuda::Add(x, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float KeyValue(std::uint32_t key) {
  return cuda::BitsFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
// Rank in order of (x descending, id ascending): larger comes first.
__device__ __forceinline__ std::uint64_t OrderKey(float x, std::uint32_t id) {
  return std::uint64_t{OrderedKey(x)} << 32 | ~id;
}
__device__ __forceinline__ float KeyValue(std::uint64_t key) {
  return KeyValue(static_cast<std::uint32_t>(key >> 32));
}
__device__ __forceinline__ std::uint32_t KeyId(std::uint64_t key) {
  return ~static_cast<std::uint32_t>(key);
}

__device__ __forceinline__ bool HasText(const SamplerArgs& args, std::uint32_t id) {
  return id < args.text_vocab && (args.has_text == nullptr || args.has_text[id] != 0);
}

static_assert(kSigmaStripes == kSamplerSplits && kSigmaLanes == kSamplerThreads &&
              kSigmaGroup == cuda::kWarpSize);

// The ids of this block: one of kSamplerSplits stripes, whose bounds are multiples of 4.
struct IdStripe {
  std::uint32_t begin;
  std::uint32_t end;
};
__device__ __forceinline__ IdStripe BlockStripe(std::uint32_t vocab) {
  const std::uint32_t length = StripeLength(vocab);
  const std::uint32_t begin = cuda::BlockX() * length;
  const std::uint32_t end = begin + length;
  return {begin < vocab ? begin : vocab, end < vocab ? end : vocab};
}

// Largest over the warp, in all lanes.
template <typename T>
__device__ __forceinline__ T WarpMax(T value) {
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    const T other = cuda::ShuffleXor(value, mask);
    value = value < other ? other : value;
  }
  return value;
}

// Sum over the warp, in all lanes: the order of sigma.h for f64.
template <typename T>
__device__ __forceinline__ T WarpSum(T value) {
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    value += cuda::ShuffleXor(value, mask);
  }
  return value;
}

// Shared memory of the searches.
struct DigitSearch {
  std::uint64_t sums[kSamplerBuckets];
  std::uint64_t warp_sums[kSamplerWarps];
  std::uint64_t above;
  std::uint64_t sum;
  std::uint32_t bucket;
};

__device__ __forceinline__ void ClearSums(DigitSearch& search) {
  for (std::uint32_t i = cuda::ThreadIndex(); i < kSamplerBuckets; i += kSamplerThreads) {
    search.sums[i] = 0;
  }
  cuda::SyncBlock();
}

// Sum of `value` over the threads before this one, and over all. All threads call it.
struct ScanResult {
  std::uint64_t before;
  std::uint64_t total;
};
__device__ __forceinline__ ScanResult BlockScan(DigitSearch& search, std::uint64_t value) {
  std::uint64_t sum = value;
#pragma unroll
  for (std::uint32_t delta = 1; delta < cuda::kWarpSize; delta *= 2) {
    const std::uint64_t lower = cuda::ShuffleUp(sum, delta);
    if (cuda::Lane() >= delta) sum += lower;
  }
  const std::uint32_t warp = cuda::Warp();
  if (cuda::Lane() == cuda::kWarpSize - 1) search.warp_sums[warp] = sum;
  cuda::SyncBlock();
  ScanResult result{sum - value, 0};
#pragma unroll
  for (std::uint32_t w = 0; w < kSamplerWarps; ++w) {
    const std::uint64_t of_warp = search.warp_sums[w];
    if (w < warp) result.before += of_warp;
    result.total += of_warp;
  }
  cuda::SyncBlock();
  return result;
}

__device__ __forceinline__ bool Reached(std::uint64_t sum, double target) {
  return static_cast<double>(sum) >= target;
}

// Largest bucket at which `above` and the sums from the top on reach the target, and what is above
// it; bucket 0 when they never do. `sums` has kSamplerBuckets entries in any memory. All threads
// call it.
struct Bucket {
  std::uint64_t above;
  std::uint64_t sum;
  std::uint32_t index;
};
__device__ __forceinline__ Bucket FindBucket(DigitSearch& search, const std::uint64_t* sums,
                                             std::uint64_t above, double target) {
  constexpr std::uint32_t kPer = kSamplerBuckets / kSamplerThreads;
  const std::uint32_t thread = cuda::ThreadIndex();
  const std::uint32_t top = kSamplerBuckets - 1 - thread * kPer;
  std::uint64_t own = 0;
  // Each lane begins elsewhere in its run, so that the lanes of a warp meet in no bank of shared
  // memory. In device memory it makes no difference: every load is one of 8 bytes.
#pragma unroll
  for (std::uint32_t j = 0; j < kPer; ++j) own += sums[top - (j + thread / 2) % kPer];
  std::uint64_t running = above + BlockScan(search, own).before;
  const bool last = thread == kSamplerThreads - 1;
  if (!Reached(running, target) && (last || Reached(running + own, target))) {
    std::uint32_t j = 0;
    while (j < kPer - 1 && !Reached(running + sums[top - j], target)) running += sums[top - j++];
    search.bucket = top - j;
    search.above = running;
    search.sum = sums[top - j];
  }
  cuda::SyncBlock();
  const Bucket bucket{search.above, search.sum, search.bucket};
  cuda::SyncBlock();
  return bucket;
}

// Adds `key` to a list in device memory when `keep`; all lanes of the warp call it.
__device__ __forceinline__ void AppendKey(bool keep, std::uint64_t key, std::uint64_t* keys,
                                          std::uint32_t* count) {
  const std::uint32_t lanes = cuda::Ballot(keep);
  if (lanes == 0) return;
  std::uint32_t first = 0;
  if (cuda::Lane() == 0) first = cuda::AtomicAdd(count, cuda::CountBits(lanes));
  first = cuda::Shuffle(first, 0);
  if (keep) keys[first + cuda::CountBits(lanes & ((1u << cuda::Lane()) - 1))] = key;
}

// The weight of a key that is counted.
struct OfOne {
  __device__ __forceinline__ std::uint64_t operator()(std::uint64_t) const { return 1; }
};

// The smallest key of the shortest prefix, in order of the keys in the list from `lowest` on, whose
// weights reach the target; 0 when all of them do not. Six digits: three of the value, three of the
// id. All threads call it.
template <typename Weight>
__device__ __forceinline__ std::uint64_t FindBorder(DigitSearch& search, const std::uint64_t* keys,
                                                    std::uint32_t count, std::uint64_t lowest,
                                                    double target, Weight weight) {
  std::uint64_t prefix = 0;
  std::uint64_t mask = 0;
  std::uint64_t above = 0;
  for (std::uint32_t step = 0; step < 6; ++step) {
    const std::uint32_t third = step % 3;
    const std::uint32_t shift = (step < 3 ? 32 : 0) + (third == 0 ? 21 : (third == 1 ? 10 : 0));
    const std::uint64_t digit = third == 2 ? 0x3ff : 0x7ff;
    ClearSums(search);
    for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
      const std::uint64_t key = keys[i];
      if (key < lowest || (key & mask) != prefix) continue;
      cuda::AtomicAdd(&search.sums[(key >> shift) & digit], weight(key));
    }
    cuda::SyncBlock();
    const Bucket bucket = FindBucket(search, search.sums, above, target);
    above = bucket.above;
    prefix |= std::uint64_t{bucket.index} << shift;
    mask |= digit << shift;
    // Counts: when all keys with this prefix are in, the rest of the digits are 0.
    if (std::is_same_v<Weight, OfOne> && static_cast<double>(above + bucket.sum) == target) break;
  }
  return prefix;
}

}  // namespace quire::kernels::internal
