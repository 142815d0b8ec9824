#pragma once

// Device functions of the sampler's kernels: order keys, and selection by digits without a sort.
// Keys, compared as integers, have the order of the floats. The search by digits with histograms is
// radix selection as in RadiK (Li et al., ICS 2024) and the top-k kernels of RAFT.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/backend/exact_math.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/sampling/sampling_device.h"

namespace quire::kernels::internal {

inline constexpr std::uint32_t kSamplerThreads = 256;
inline constexpr std::uint32_t kSamplerWarps = kSamplerThreads / cuda::kWarpSize;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr float kLargestLogit = std::numeric_limits<float>::max();

// Maps x to an integer that increases with x. 0 and -0 have the same key.
__device__ __forceinline__ std::uint32_t OrderedKey(float x) {
  const std::uint32_t bits = cuda::FloatBits(cuda::Add(x, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float KeyValue(std::uint32_t key) {
  return cuda::BitsFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
// Returns a key for the order (x descending, id ascending): larger keys come first.
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

static_assert(kSigmaLanes == kSamplerThreads && kSigmaGroup == cuda::kWarpSize);

// The range of ids that this block of the row processes. Bounds are multiples of 4.
struct IdStripe {
  std::uint32_t begin;
  std::uint32_t end;
};
__device__ __forceinline__ IdStripe BlockStripe(std::uint32_t vocab) {
  const std::uint32_t length = StripeLength(vocab, cuda::GridX());
  const std::uint32_t begin = cuda::BlockX() * length;
  const std::uint32_t end = begin + length;
  return {begin < vocab ? begin : vocab, end < vocab ? end : vocab};
}

// Values of ids i to i + 3 and related data. The value of an id that does not exist is -infinity.
struct FourValues {
  float values[4] = {kMinusInfinity, kMinusInfinity, kMinusInfinity, kMinusInfinity};
  std::uint32_t text = 0x01010101;  // bytes of has_text for the four ids
  std::uint32_t mask = ~0u;         // mask word that contains the bits of the four ids
};
// VisitStripe passes this id to threads beyond the end of the block's stripe.
inline constexpr std::uint32_t kNoId = ~0u;

// Calls visit(i, load(i)) in all lanes together for every fourth id of the block's stripe. The ids
// of a thread are ascending. Threads with fewer ids get kNoId and FourValues{} until the thread
// with the most ids has finished. The loads of kAtOnce calls are pending at the same time, so
// `load` must not use the loaded values.
template <std::uint32_t kAtOnce = 4, typename Load, typename Visit>
__device__ __forceinline__ void VisitStripe(std::uint32_t vocab, Load load, Visit visit) {
  constexpr std::uint32_t kStep = 4 * kSamplerThreads;
  const IdStripe stripe = BlockStripe(vocab);
  for (std::uint32_t first = stripe.begin; first < stripe.end; first += kAtOnce * kStep) {
    const std::uint32_t own = first + 4 * cuda::ThreadIndex();
    FourValues fours[kAtOnce];
#pragma unroll
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      if (own + j * kStep < stripe.end) fours[j] = load(own + j * kStep);
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      const std::uint32_t i = own + j * kStep;
      visit(i < stripe.end ? i : kNoId, fours[j]);
    }
  }
}

// Loads four values from a row of `x`, which is aligned and padded with -infinity to a multiple of
// 4.
__device__ __forceinline__ FourValues LoadX(const float* x, std::uint32_t i) {
  const float4 v = *reinterpret_cast<const float4*>(x + i);
  return {.values = {v.x, v.y, v.z, v.w}};
}

// Loads four values from a row of logits, which may be unaligned and has no padding.
class LogitLoader {
 public:
  __device__ __forceinline__ LogitLoader(const SamplerArgs& args, const float* logits)
      : logits_(logits),
        has_text_(args.has_text),
        vocab_(args.vocab),
        aligned_(reinterpret_cast<std::uintptr_t>(logits) % sizeof(float4) == 0) {}

  __device__ __forceinline__ FourValues operator()(std::uint32_t i) const {
    FourValues four;
    if (aligned_ && i + 4 <= vocab_) {
      four = LoadX(logits_, i);
    } else {
#pragma unroll
      for (std::uint32_t c = 0; c < 4; ++c) {
        if (i + c < vocab_) four.values[c] = logits_[i + c];
      }
    }
    // has_text is padded to a multiple of 4.
    if (has_text_ != nullptr) four.text = *reinterpret_cast<const std::uint32_t*>(has_text_ + i);
    return four;
  }

 private:
  const float* const logits_;
  const std::uint8_t* const has_text_;
  const std::uint32_t vocab_;
  const bool aligned_;
};

// True if id i + c has text, according to `four`.
__device__ __forceinline__ bool HasText(const SamplerArgs& args, const FourValues& four,
                                        std::uint32_t i, std::uint32_t c) {
  return i + c < args.text_vocab && (four.text >> (8 * c) & 0xff) != 0;
}

// Returns the maximum over the warp, in all lanes.
template <typename T>
__device__ __forceinline__ T WarpMax(T value) {
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    const T other = cuda::ShuffleXor(value, mask);
    value = value < other ? other : value;
  }
  return value;
}

// Returns the sum over the warp, in all lanes. For f64 the order is that of sigma.h.
template <typename T>
__device__ __forceinline__ T WarpSum(T value) {
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    value += cuda::ShuffleXor(value, mask);
  }
  return value;
}

// Shared memory for reductions within a block and between the blocks of a row.
struct BlockReduction {
  std::uint64_t per_warp[kSamplerWarps];
  std::uint32_t flag;  // used by ArrivesLast
};

// Returns the maximum over the block, in all threads. All threads must call this function.
__device__ __forceinline__ std::uint64_t BlockMax(BlockReduction& reduction, std::uint64_t value) {
  value = WarpMax(value);
  cuda::SyncBlock();
  if (cuda::Lane() == 0) reduction.per_warp[cuda::ThreadIndex() / cuda::kWarpSize] = value;
  cuda::SyncBlock();
#pragma unroll
  for (std::uint32_t w = 0; w < kSamplerWarps; ++w) {
    const std::uint64_t other = reduction.per_warp[w];
    value = value < other ? other : value;
  }
  return value;
}

// Shared memory of a search by digits. A 64-bit sum is stored as two words, because 64-bit atomics
// on shared memory are compare-and-swap loops.
struct DigitSearch {
  std::uint32_t low[kSamplerBuckets];
  std::uint32_t high[kSamplerBuckets];
  BlockReduction reduction;
  std::uint64_t above;
  std::uint64_t sum;
  std::uint32_t bucket;

  __device__ __forceinline__ std::uint64_t operator[](std::uint32_t i) const {
    return std::uint64_t{high[i]} << 32 | low[i];
  }
};

__device__ __forceinline__ void ClearSums(DigitSearch& search) {
  for (std::uint32_t i = cuda::ThreadIndex(); i < kSamplerBuckets; i += kSamplerThreads) {
    search.low[i] = 0;
    search.high[i] = 0;
  }
  cuda::SyncBlock();
}

__device__ __forceinline__ void CountInBucket(DigitSearch& search, std::uint32_t bucket) {
  cuda::AtomicAdd(&search.low[bucket], 1u);
}
// Adds a mass to a bucket. The second atomic is rare, because most masses are below 2^32. The
// number of times that the low word wraps does not depend on the order of additions.
__device__ __forceinline__ void AddToBucket(DigitSearch& search, std::uint32_t bucket,
                                            std::uint64_t mass) {
  const auto low = static_cast<std::uint32_t>(mass);
  const std::uint32_t before = cuda::AtomicAdd(&search.low[bucket], low);
  const std::uint32_t high =
      static_cast<std::uint32_t>(mass >> 32) + (before + low < before ? 1u : 0u);
  if (high != 0) cuda::AtomicAdd(&search.high[bucket], high);
}

// Adds nonzero sums to a row's buckets in device memory. All threads must call this function.
__device__ __forceinline__ void PublishBuckets(const DigitSearch& search, std::uint64_t* buckets) {
  cuda::SyncBlock();
  for (std::uint32_t i = cuda::ThreadIndex(); i < kSamplerBuckets; i += kSamplerThreads) {
    if (search[i] != 0) cuda::AtomicAdd(&buckets[i], search[i]);
  }
}

// Zeroes this block's share of a row's buckets.
__device__ __forceinline__ void ClearBuckets(std::uint64_t* buckets) {
  const std::uint32_t threads = cuda::BlockThreads();
  for (std::uint32_t i = cuda::BlockX() * threads + cuda::ThreadIndex(); i < kSamplerBuckets;
       i += cuda::GridX() * threads) {
    buckets[i] = 0;
  }
}

// The sums of `value` over the preceding threads and over all threads. All threads must call
// BlockScan.
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
  if (cuda::Lane() == cuda::kWarpSize - 1) search.reduction.per_warp[warp] = sum;
  cuda::SyncBlock();
  ScanResult result{sum - value, 0};
#pragma unroll
  for (std::uint32_t w = 0; w < kSamplerWarps; ++w) {
    const std::uint64_t warp_sum = search.reduction.per_warp[w];
    if (w < warp) result.before += warp_sum;
    result.total += warp_sum;
  }
  cuda::SyncBlock();
  return result;
}

__device__ __forceinline__ bool Reached(std::uint64_t sum, double target) {
  return static_cast<double>(sum) >= target;
}

struct Bucket {
  std::uint64_t above;  // the caller's `above` plus the sums of all higher buckets
  std::uint64_t sum;    // sum of this bucket
  std::uint32_t index;
};
// Adds sums from the last bucket down to the first. Returns the bucket at which `above` plus these
// sums reach the target, or bucket 0 if they never do. `sums` has kSamplerBuckets entries and is
// the search itself or a pointer to device memory. All threads must call this function.
template <typename Sums>
__device__ __forceinline__ Bucket FindBucket(DigitSearch& search, const Sums& sums,
                                             std::uint64_t above, double target) {
  constexpr std::uint32_t kPer = kSamplerBuckets / kSamplerThreads;
  const std::uint32_t thread = cuda::ThreadIndex();
  const std::uint32_t top = kSamplerBuckets - 1 - thread * kPer;
  std::uint64_t own = 0;
  // Each lane starts at a different offset in its run, to avoid shared-memory bank conflicts. For
  // device memory the offset makes no difference.
#pragma unroll
  for (std::uint32_t j = 0; j < kPer; ++j) own += sums[top - (j + thread / 4) % kPer];
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

// Appends the keys with `keep` set to a list in device memory. All lanes of the warp must call this
// function.
__device__ __forceinline__ void AppendKeys(const bool (&keep)[4], const std::uint64_t (&four)[4],
                                           std::uint64_t* keys, std::uint32_t* count) {
  std::uint32_t lanes[4];
  std::uint32_t total = 0;
#pragma unroll
  for (std::uint32_t c = 0; c < 4; ++c) {
    lanes[c] = cuda::Ballot(keep[c]);
    total += cuda::CountBits(lanes[c]);
  }
  if (total == 0) return;
  std::uint32_t first = 0;
  if (cuda::Lane() == 0) first = cuda::AtomicAdd(count, total);
  first = cuda::Shuffle(first, 0);
#pragma unroll
  for (std::uint32_t c = 0; c < 4; ++c) {
    const std::uint32_t before = cuda::CountBits(lanes[c] & ((1u << cuda::Lane()) - 1));
    if (keep[c]) keys[first + before] = four[c];
    first += cuda::CountBits(lanes[c]);
  }
}

// Weight type that counts keys instead of adding masses.
struct CountWeight {};

// Returns the smallest key of the shortest prefix whose weights reach the target, among the keys of
// the list that are at least `lowest`. Returns 0 if all these keys together do not reach the
// target. Searches six digits: three of the value, then three of the id. All threads must call this
// function.
template <typename Weight>
__device__ __forceinline__ std::uint64_t FindCutoff(DigitSearch& search, const std::uint64_t* keys,
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
      const auto bucket = static_cast<std::uint32_t>((key >> shift) & digit);
      if constexpr (std::is_same_v<Weight, CountWeight>) {
        CountInBucket(search, bucket);
      } else {
        AddToBucket(search, bucket, weight(key));
      }
    }
    cuda::SyncBlock();
    const Bucket bucket = FindBucket(search, search, above, target);
    above = bucket.above;
    prefix |= std::uint64_t{bucket.index} << shift;
    mask |= digit << shift;
    // With CountWeight, if exactly `target` keys have at least this digit prefix, the result
    // includes all of them and its remaining digits are 0.
    if (std::is_same_v<Weight, CountWeight> && static_cast<double>(above + bucket.sum) == target)
      break;
  }
  return prefix;
}

}  // namespace quire::kernels::internal
