// Computes raw log-probabilities of rows whose token is known. The sum of exponentials has the
// order of the CPU (sampling.h). The token's rank and the n best ids use the same search by digits
// as sampling. The host computes the logarithm, so results equal those of the CPU bit for bit.

#include <cstdint>

#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/sampling/sampling_device.cuh"

namespace quire::kernels::internal {
namespace {

using last_block::ArrivesLast;

constexpr std::uint32_t kVirtualLanes = 16;
// One warp per block, so that the few parts of a row are spread over many multiprocessors.
constexpr std::uint32_t kSumThreads = cuda::kWarpSize;
constexpr std::uint32_t kPartsPerBlock = kSumThreads / kVirtualLanes;

__device__ __forceinline__ bool WantsLogprobs(const DeviceRow& row, const SamplerState& state) {
  return row.num_logprobs >= 0 && state.token >= 0;
}

__global__ void __launch_bounds__(kSumThreads)
    LogprobSumKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  const SamplerState& state = args.states[cuda::BlockY()];
  if (!WantsLogprobs(row, state)) return;
  if (row.num_logprobs > 0) {
    ClearBuckets(args.buckets + std::int64_t{row.scratch} * kSamplerBuckets);
  }
  constexpr std::uint32_t kAtOnce = 8;  // pending loads per thread
  const float* const logits = row.logits;
  const float max = KeyValue(state.raw_max);
  const std::uint32_t lane = cuda::ThreadIndex() % kVirtualLanes;
  const std::uint32_t part = cuda::BlockX() * kPartsPerBlock + cuda::ThreadIndex() / kVirtualLanes;
  float sum = 0.0f;
  if (part < args.num_parts) {
    const std::uint32_t begin = part * kSamplerSumPart;
    const std::uint32_t end =
        args.vocab - begin < kSamplerSumPart ? args.vocab : begin + kSamplerSumPart;
    for (std::uint32_t first = begin + lane; first < end; first += kAtOnce * kVirtualLanes) {
      float values[kAtOnce];
#pragma unroll
      for (std::uint32_t j = 0; j < kAtOnce; ++j) {
        const std::uint32_t i = first + j * kVirtualLanes;
        values[j] = i < end ? logits[i] : kMinusInfinity;  // its exponential is 0
      }
#pragma unroll
      for (const float value : values) sum = cuda::Add(sum, ExactExp(cuda::Sub(value, max)));
    }
  }
#pragma unroll
  for (std::uint32_t mask = kVirtualLanes / 2; mask > 0; mask /= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  if (lane == 0 && part < args.num_parts) {
    args.part_sums[std::int64_t{row.scratch} * args.num_parts + part] = sum;
  }
}

// Shared memory of the search for the best ids.
struct TopSearch {
  DigitSearch digits;
  std::uint64_t best[kMaxDeviceLogprobs];
  std::uint32_t num_best;
};

// Writes the n best ids, best first. Finds the cutoff, collects the keys that are at least the
// cutoff in any order, and places each key by counting the larger keys.
__device__ __forceinline__ std::uint32_t WriteTops(const SamplerArgs& args, const DeviceRow& row,
                                                   TopSearch& search, std::uint32_t count) {
  const std::uint64_t* const keys = args.keys + std::int64_t{row.scratch} * args.vocab;
  const std::uint64_t cutoff = FindCutoff(search.digits, keys, count, 0,
                                          static_cast<double>(row.num_logprobs), CountWeight{});
  if (cuda::ThreadIndex() == 0) search.num_best = 0;
  cuda::SyncBlock();
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    if (keys[i] >= cutoff) search.best[cuda::AtomicAdd(&search.num_best, 1)] = keys[i];
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

// Writes the values from which the host computes log-probabilities. One thread calls this function
// after all counts are complete.
__device__ __forceinline__ void FinishLogprob(const SamplerArgs& args, const DeviceRow& row,
                                              const SamplerState& state, std::uint32_t num_top) {
  const float* const parts = args.part_sums + std::int64_t{row.scratch} * args.num_parts;
  double sum = 0;
  for (std::uint32_t i = 0; i < args.num_parts; ++i) sum += static_cast<double>(parts[i]);
  DeviceSampled& result = args.results[row.result];
  result.sum = sum;
  result.rank = static_cast<std::int32_t>(state.better) + 1;
  result.num_top = num_top;
}

// Counts the ids that are better than the token. If best ids are requested, also counts keys by
// their first digit. Otherwise the last block finishes the row.
__global__ void __launch_bounds__(kSamplerThreads)
    LogprobRankKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  if (!WantsLogprobs(row, state)) return;
  auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
  const bool counts = row.num_logprobs > 0;
  if (counts) ClearSums(search);
  const auto token = static_cast<std::uint32_t>(state.token);
  const std::uint64_t token_key = OrderKey(row.logits[token], token);
  std::uint32_t better = 0;
  VisitStripe(args.vocab, LogitLoader(args, row.logits),
              [&](std::uint32_t i, const FourValues& four) {
#pragma unroll
                for (std::uint32_t c = 0; c < 4; ++c) {
                  if (i == kNoId || !HasText(args, four, i, c)) continue;
                  const std::uint64_t key = OrderKey(four.values[c], i + c);
                  if (key > token_key) ++better;
                  if (counts && four.values[c] > kMinusInfinity) {
                    CountInBucket(search, static_cast<std::uint32_t>(key >> 53));
                  }
                }
              });
  better = WarpSum(better);
  if (cuda::Lane() == 0 && better > 0) cuda::AtomicAdd(&state.better, better);
  if (counts) {
    PublishBuckets(search, args.buckets + std::int64_t{row.scratch} * kSamplerBuckets);
    return;
  }
  if (!ArrivesLast(&state.arrived, cuda::GridX(), &search.reduction.flag)) return;
  if (cuda::ThreadIndex() == 0) FinishLogprob(args, row, state, 0);
}

// Appends the keys in and above the cutoff's bucket to the row's list. The last block then selects
// the best keys.
__global__ void __launch_bounds__(kSamplerThreads)
    LogprobKeepKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  if (!WantsLogprobs(row, state) || row.num_logprobs == 0) return;
  auto& search = *reinterpret_cast<TopSearch*>(cuda::SharedMemory16());
  const std::uint64_t* const buckets = args.buckets + std::int64_t{row.scratch} * kSamplerBuckets;
  const auto target = static_cast<double>(row.num_logprobs);
  const std::uint64_t lowest = FindBucket(search.digits, buckets, 0, target).index;
  std::uint64_t* const keys = args.keys + std::int64_t{row.scratch} * args.vocab;
  VisitStripe(args.vocab, LogitLoader(args, row.logits),
              [&](std::uint32_t i, const FourValues& four) {
                std::uint64_t own[4];
                bool keep[4];
#pragma unroll
                for (std::uint32_t c = 0; c < 4; ++c) {
                  own[c] = OrderKey(four.values[c], i + c);
                  keep[c] = HasText(args, four, i, c) && four.values[c] > kMinusInfinity &&
                            own[c] >> 53 >= lowest;
                }
                AppendKeys(keep, own, keys, &state.top_kept);
              });
  if (!ArrivesLast(&state.arrived, cuda::GridX(), &search.digits.reduction.flag)) return;
  const std::uint32_t num_top = WriteTops(args, row, search, state.top_kept);
  if (cuda::ThreadIndex() == 0) FinishLogprob(args, row, state, num_top);
}

}  // namespace

absl::Status LaunchLogprobs(const CudaContext& context, const SamplerArgs& args,
                            const SamplerNeeds& needs) {
  QUIRE_RETURN_IF_ERROR(
      cuda::Launch(context, "logprob_sum", LogprobSumKernel,
                   {.blocks_x = (args.num_parts + kPartsPerBlock - 1) / kPartsPerBlock,
                    .blocks_y = args.num_rows,
                    .threads = kSumThreads,
                    .programmatic = true},
                   args));
  const cuda::LaunchShape rank{.blocks_x = BlocksOfRow(args),
                               .blocks_y = args.num_rows,
                               .threads = kSamplerThreads,
                               .shared_bytes = sizeof(DigitSearch),
                               .programmatic = true};
  QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "logprob_rank", LogprobRankKernel, rank, args));
  if (!needs.tops) return absl::OkStatus();
  cuda::LaunchShape keep = rank;
  keep.shared_bytes = sizeof(TopSearch);
  return cuda::Launch(context, "logprob_keep", LogprobKeepKernel, keep, args);
}

}  // namespace quire::kernels::internal
