// Raw log-probabilities of rows whose token is known: the sum of exponentials in the order of the
// CPU (parts of 4096 logits, 16 virtual lanes, parts in order in f64), the token's rank, and the n
// best ids by the digit search of the samples. The logarithm is taken on the host, so the figures
// are those of the CPU to the bit.

#include <cstdint>

#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/sampling/sampling_device.cuh"

namespace quire::kernels::internal {
namespace {

constexpr std::uint32_t kVirtualLanes = 16;
constexpr std::uint32_t kPartsPerBlock = kSamplerThreads / kVirtualLanes;

__device__ __forceinline__ bool Asked(const DeviceRow& row, const SamplerState& state) {
  return row.num_logprobs >= 0 && state.token >= 0;
}

__global__ void __launch_bounds__(kSamplerThreads)
    LogprobSumKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  const SamplerState& state = args.states[cuda::BlockY()];
  if (!Asked(row, state)) return;
  const float max = KeyValue(state.raw_max);
  const std::uint32_t lane = cuda::ThreadIndex() % kVirtualLanes;
  const std::uint32_t part = cuda::BlockX() * kPartsPerBlock + cuda::ThreadIndex() / kVirtualLanes;
  float sum = 0.0f;
  if (part < args.num_parts) {
    const std::uint32_t begin = part * kSamplerSumPart;
    const std::uint32_t end =
        args.vocab - begin < kSamplerSumPart ? args.vocab : begin + kSamplerSumPart;
    for (std::uint32_t i = begin + lane; i < end; i += kVirtualLanes) {
      sum = cuda::Add(sum, ExactExp(cuda::Sub(row.logits[i], max)));
    }
  }
#pragma unroll
  for (std::uint32_t mask = kVirtualLanes / 2; mask > 0; mask /= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  if (lane == 0 && part < args.num_parts) {
    args.part_sums[std::int64_t{cuda::BlockY()} * args.num_parts + part] = sum;
  }
}

// Ids that are likelier than the token, and counts by the first digit where best ids are asked for.
__global__ void __launch_bounds__(kSamplerThreads)
    LogprobRankKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  if (!Asked(row, state)) return;
  auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
  ClearSums(search);
  const auto token = static_cast<std::uint32_t>(state.token);
  const std::uint64_t token_key = OrderKey(row.logits[token], token);
  std::uint32_t better = 0;
  const IdStripe stripe = BlockStripe(args.vocab);
  for (std::uint32_t i = stripe.begin + cuda::ThreadIndex(); i < stripe.end; i += kSamplerThreads) {
    if (!HasText(args, i)) continue;
    const float logit = row.logits[i];
    const std::uint64_t key = OrderKey(logit, i);
    if (key > token_key) ++better;
    if (row.num_logprobs > 0 && logit > kMinusInfinity) {
      cuda::AtomicAdd(&search.sums[key >> 53], std::uint64_t{1});
    }
  }
  if (better > 0) cuda::AtomicAdd(&state.better, better);
  cuda::SyncBlock();
  std::uint64_t* const buckets = args.buckets + std::int64_t{cuda::BlockY()} * kSamplerBuckets;
  for (std::uint32_t i = cuda::ThreadIndex(); row.num_logprobs > 0 && i < kSamplerBuckets;
       i += kSamplerThreads) {
    if (search.sums[i] != 0) cuda::AtomicAdd(&buckets[i], search.sums[i]);
  }
}

__global__ void __launch_bounds__(kSamplerThreads)
    LogprobKeepKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  if (!Asked(row, state) || row.num_logprobs == 0) return;
  auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
  const std::uint64_t* const buckets =
      args.buckets + std::int64_t{cuda::BlockY()} * kSamplerBuckets;
  const auto target = static_cast<double>(row.num_logprobs);
  const std::uint64_t lowest = FindBucket(search, buckets, 0, target).index;
  std::uint64_t* const keys = args.keys + std::int64_t{cuda::BlockY()} * args.vocab;
  const IdStripe stripe = BlockStripe(args.vocab);
  for (std::uint32_t first = stripe.begin; first < stripe.end; first += kSamplerThreads) {
    const std::uint32_t i = first + cuda::ThreadIndex();
    std::uint64_t key = 0;
    bool keep = false;
    if (i < stripe.end && HasText(args, i)) {
      const float logit = row.logits[i];
      key = OrderKey(logit, i);
      keep = logit > kMinusInfinity && key >> 53 >= lowest;
    }
    AppendKey(keep, key, keys, &state.top_kept);
  }
}

// What a block of the last kernel shares.
struct TopSearch {
  DigitSearch digits;
  std::uint64_t best[kMaxDeviceLogprobs];
  std::uint32_t num_best;
};

// The n best ids, best first: the border, what lies above it in any order, and each one's place by
// counting.
__device__ __forceinline__ std::uint32_t WriteTops(const SamplerArgs& args, const DeviceRow& row,
                                                   TopSearch& search, std::uint32_t count) {
  const std::uint64_t* const keys = args.keys + std::int64_t{cuda::BlockX()} * args.vocab;
  const std::uint64_t border =
      FindBorder(search.digits, keys, count, 0, static_cast<double>(row.num_logprobs), OfOne{});
  if (cuda::ThreadIndex() == 0) search.num_best = 0;
  cuda::SyncBlock();
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    if (keys[i] >= border) search.best[cuda::AtomicAdd(&search.num_best, 1)] = keys[i];
  }
  cuda::SyncBlock();
  const std::uint32_t num_best = search.num_best;
  for (std::uint32_t i = cuda::ThreadIndex(); i < num_best; i += kSamplerThreads) {
    const std::uint64_t key = search.best[i];
    std::uint32_t place = 0;
    for (std::uint32_t j = 0; j < num_best; ++j) place += search.best[j] > key ? 1 : 0;
    args.tops[row.top + place] = {static_cast<std::int32_t>(KeyId(key)), KeyValue(key)};
  }
  return num_best;
}

__global__ void __launch_bounds__(kSamplerThreads)
    LogprobFinishKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockX()];
  const SamplerState& state = args.states[cuda::BlockX()];
  if (!Asked(row, state)) return;
  std::uint32_t num_top = 0;
  if (row.num_logprobs > 0) {
    num_top =
        WriteTops(args, row, *reinterpret_cast<TopSearch*>(cuda::SharedMemory16()), state.top_kept);
  }
  if (cuda::ThreadIndex() != 0) return;
  double sum = 0;
  for (std::uint32_t i = 0; i < args.num_parts; ++i) {
    sum += static_cast<double>(args.part_sums[std::int64_t{cuda::BlockX()} * args.num_parts + i]);
  }
  DeviceSampled& result = args.results[row.result];
  result.sum = sum;
  result.rank = static_cast<std::int32_t>(state.better) + 1;
  result.num_top = num_top;
}

}  // namespace

absl::Status LaunchLogprobs(const CudaContext& context, const SamplerArgs& args,
                            const SamplerNeeds& needs) {
  const cuda::LaunchShape splits{.blocks_x = kSamplerSplits,
                                 .blocks_y = args.num_rows,
                                 .threads = kSamplerThreads,
                                 .shared_bytes = sizeof(DigitSearch),
                                 .programmatic = true};
  QUIRE_RETURN_IF_ERROR(
      cuda::Launch(context, "logprob_sum", LogprobSumKernel,
                   {.blocks_x = (args.num_parts + kPartsPerBlock - 1) / kPartsPerBlock,
                    .blocks_y = args.num_rows,
                    .threads = kSamplerThreads,
                    .programmatic = true},
                   args));
  QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "logprob_rank", LogprobRankKernel, splits, args));
  if (needs.tops) {
    QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "logprob_keep", LogprobKeepKernel, splits, args));
  }
  return cuda::Launch(context, "logprob_finish", LogprobFinishKernel,
                      {.blocks_x = args.num_rows,
                       .threads = kSamplerThreads,
                       .shared_bytes = sizeof(TopSearch),
                       .programmatic = true},
                      args);
}

}  // namespace quire::kernels::internal
