// Samples: steps 0 and 2 to 10 of sampling.h without a sort. kSamplerSplits blocks share a row
// where all of it is read; what they find meets in SamplerState by maxima and integer sums, so no
// result depends on their order.
//
//   scan       the logits, once from memory: flags, maximum, masks; scaled x to scratch (L2)
//   edit       penalties, bias and banned ids, which are few: one block a row
//   scale      the edited rows' temperature, and the moments that top-n-sigma asks for
//   buckets    top-k or top-p: counts or masses by the first 11 bits of the ordered key
//   keep       without filters the race itself; with them a short list: keys from the border's
//              bucket on
//   choose     exact borders of top-k, top-p, min-p and XTC on that list, and the race
//   finish     tokens and flags
//
// A greedy row without edits needs the first and the last only.

#include <cstdint>

#include "base/philox.h"
#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/sampling/sampling_device.cuh"

namespace quire::kernels::internal {
namespace {

// As in sampling.cc: below the best candidate by this much a token cannot win.
constexpr float kReach = 28.0f;
constexpr std::uint32_t kPurposeSample = 0;

__device__ __forceinline__ float ScaleLogit(float z, float factor) {
  const float scaled = cuda::Min(cuda::Max(cuda::Mul(z, factor), -kLargestLogit), kLargestLogit);
  return z == kMinusInfinity ? z : scaled;
}

// Whether the row still takes part in a sample.
__device__ __forceinline__ bool Alive(const SamplerState& state) {
  return state.non_finite == 0 && state.best != 0;
}

// floor(w * 2^40) of a key.
struct OfMass {
  float max;
  __device__ __forceinline__ std::uint64_t operator()(std::uint64_t key) const {
    return static_cast<std::uint64_t>(cuda::Mul(ExactExp(cuda::Sub(KeyValue(key), max)), 0x1p40f));
  }
};

// Smallest (score, id) of what a thread has seen.
class Race {
 public:
  __device__ __forceinline__ Race(const DeviceRow& row, float max) : row_(row), max_(max) {}

  __device__ __forceinline__ auto Words(std::uint32_t id) const {
    return Philox4x32({id / 4, row_.position, row_.choice, kPurposeSample}, row_.seed);
  }
  __device__ __forceinline__ void Add(float x, std::uint32_t id, std::uint32_t r) {
    const float w = ExactExp(cuda::Sub(x, max_));
    if (row_.processed) mass_ += static_cast<std::uint64_t>(cuda::Mul(w, 0x1p40f));
    // -ln u is never below 1 - u, so most tokens lose without a logarithm.
    const float rest = cuda::Mul(static_cast<float>(~r), 0x1p-32f * 0.999f);
    if (rest > cuda::Mul(best_, w)) return;
    const float score = cuda::Div(ExponentialVariate(r), w);
    const std::uint64_t key = std::uint64_t{cuda::FloatBits(score)} << 32 | id;
    if (~key <= lost_) return;
    lost_ = ~key;
    best_ = score;
  }
  // All lanes of the warp call it.
  __device__ __forceinline__ void Publish(SamplerState& state) const {
    const std::uint64_t lost = WarpMax(lost_);
    if (cuda::Lane() == 0) cuda::AtomicMax(&state.race, lost);
    if (!row_.processed) return;
    const std::uint64_t mass = WarpSum(mass_);
    if (cuda::Lane() == 0) cuda::AtomicAdd(&state.mass, mass);
  }

 private:
  const DeviceRow& row_;
  const float max_;
  float best_ = std::numeric_limits<float>::infinity();
  std::uint64_t lost_ = 0;  // complement of the key
  std::uint64_t mass_ = 0;
};

__device__ __forceinline__ bool IsAllowed(const std::uint32_t* allowed, std::uint32_t id) {
  return allowed == nullptr || (allowed[id / 32] >> (id % 32) & 1) != 0;
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerScanKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  float* const x = args.x + cuda::BlockY() * args.x_stride;
  const bool score = row.token_logprob >= 0;
  const bool writes = !score && (row.edited || !row.greedy);
  bool bad = false;
  std::uint32_t raw_max = 0;
  std::uint64_t best = 0;
  // Edits of a masked logit leave it -infinity, so the mask may come before them.
  const std::uint32_t* const allowed =
      row.mask < 0 ? nullptr : args.masks + std::int64_t{row.mask} * args.mask_words;
  const IdStripe stripe = BlockStripe(args.vocab);
  for (std::uint32_t i = stripe.begin + cuda::ThreadIndex(); i < stripe.end; i += kSamplerThreads) {
    const float logit = row.logits[i];
    bad = bad || !(logit <= kLargestLogit);
    const std::uint32_t key = OrderedKey(logit);
    raw_max = raw_max < key ? key : raw_max;
    if (score) continue;
    float z = HasText(args, i) && IsAllowed(allowed, i) ? logit : kMinusInfinity;
    if (!row.greedy && !row.edited) z = ScaleLogit(z, row.factor);
    if (writes) x[i] = z;
    const std::uint64_t order = OrderKey(z, i);
    if (z > kMinusInfinity && order > best) best = order;
  }
  raw_max = WarpMax(raw_max);
  best = WarpMax(best);
  bad = cuda::AnyLane(bad);
  if (cuda::Lane() != 0) return;
  cuda::AtomicMax(&state.raw_max, raw_max);
  if (bad) cuda::AtomicOr(&state.non_finite, 1);
  if (!row.edited) cuda::AtomicMax(&state.best, best);
}

// Steps 2 to 4 of one token; NaN, which only infinite penalties make, cannot be sampled.
__device__ __forceinline__ float Penalised(const DeviceRow& row, const TokenCount& seen, float z) {
  z = z > 0.0f ? cuda::Div(z, row.repetition_penalty) : cuda::Mul(z, row.repetition_penalty);
  if (seen.output_count > 0) {
    z = cuda::Sub(z, cuda::Mul(row.frequency_penalty, static_cast<float>(seen.output_count)));
    z = cuda::Sub(z, row.presence_penalty);
  }
  if (z != z) return kMinusInfinity;
  return cuda::Min(z, kLargestLogit);
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerEditKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockX()];
  float* const x = args.x + cuda::BlockX() * args.x_stride;
  SamplerState& state = args.states[cuda::BlockX()];
  const std::int32_t in_flight = row.sample_in_flight == nullptr ? -1 : *row.sample_in_flight;
  for (std::uint32_t i = cuda::ThreadIndex(); i < row.history_size; i += kSamplerThreads) {
    TokenCount seen = args.history[row.history_begin + i];
    const auto id = static_cast<std::uint32_t>(seen.token);
    if (seen.token == in_flight) {
      ++seen.output_count;
      state.in_history = 1;
    }
    if (HasText(args, id)) x[id] = Penalised(row, seen, x[id]);
  }
  cuda::SyncBlock();
  const auto new_id = static_cast<std::uint32_t>(in_flight);
  if (cuda::ThreadIndex() == 0 && new_id < args.vocab && state.in_history == 0 &&
      HasText(args, new_id)) {
    x[new_id] = Penalised(row, {.token = in_flight, .output_count = 1}, x[new_id]);
  }
  cuda::SyncBlock();
  const LogitBias* const bias = args.bias + row.bias_begin;
  for (std::uint32_t i = cuda::ThreadIndex(); i < row.bias_size; i += kSamplerThreads) {
    // The first of equal tokens adds them all, in order.
    if (i > 0 && bias[i - 1].token == bias[i].token) continue;
    const std::int32_t token = bias[i].token;
    if (!HasText(args, static_cast<std::uint32_t>(token))) continue;
    float z = x[token];
    for (std::uint32_t j = i; j < row.bias_size && bias[j].token == token; ++j) {
      z = cuda::Min(cuda::Add(z, bias[j].bias), kLargestLogit);
    }
    x[token] = z;
  }
  cuda::SyncBlock();
  for (std::uint32_t i = cuda::ThreadIndex(); i < row.banned_size; i += kSamplerThreads) {
    x[args.banned[row.banned_begin + i]] = kMinusInfinity;
  }
}

// Shared memory of the scale kernel: sums of its warps.
struct WarpMoments {
  double sums[kSamplerWarps];
  double squares[kSamplerWarps];
};

// What all threads of the block have added up, as the moments of its stripe. All threads call it.
__device__ __forceinline__ void PublishMoments(const Moments& own, SamplerState& state) {
  auto& shared = *reinterpret_cast<WarpMoments*>(cuda::SharedMemory16());
  const std::uint32_t warp = cuda::Warp();
  const double sum = WarpSum(own.sum);
  const double squares = WarpSum(own.squares);
  const std::uint64_t count = WarpSum(own.count);
  Moments& stripe = state.stripes[cuda::BlockX()];
  if (cuda::Lane() == 0) {
    shared.sums[warp] = sum;
    shared.squares[warp] = squares;
    cuda::AtomicAdd(&stripe.count, count);
  }
  cuda::SyncBlock();
  if (cuda::ThreadIndex() != 0) return;
  double total = 0;
  double total_squares = 0;
#pragma unroll
  for (std::uint32_t w = 0; w < kSamplerWarps; ++w) {
    total += shared.sums[w];
    total_squares += shared.squares[w];
  }
  stripe.sum = total;
  stripe.squares = total_squares;
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerScaleKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  if (!row.edited) return;
  float* const x = args.x + cuda::BlockY() * args.x_stride;
  SamplerState& state = args.states[cuda::BlockY()];
  const bool adds = row.top_n_sigma > 0.0f;
  std::uint64_t best = 0;
  Moments own;
  const IdStripe stripe = BlockStripe(args.vocab);
  for (std::uint32_t i = stripe.begin + cuda::ThreadIndex(); i < stripe.end; i += kSamplerThreads) {
    float z = x[i];
    if (!row.greedy) {
      z = ScaleLogit(z, row.factor);
      x[i] = z;
    }
    const std::uint64_t order = OrderKey(z, i);
    if (z > kMinusInfinity && order > best) best = order;
    if (adds && z > kMinusInfinity) {
      const double value = z;
      own.sum += value;
      own.squares = fma(value, value, own.squares);
      ++own.count;
    }
  }
  best = WarpMax(best);
  if (cuda::Lane() == 0) cuda::AtomicMax(&state.best, best);
  if (adds) PublishMoments(own, state);
}

// The lowest key that can be sampled: below reach a token cannot win, below the border of
// top-n-sigma it may not. REQUIRES: something survived.
__device__ __forceinline__ std::uint32_t LowestKey(const DeviceRow& row,
                                                   const SamplerState& state) {
  const float max = KeyValue(state.best);
  float lowest = cuda::Max(cuda::Sub(max, kReach), -kLargestLogit);
  if (row.top_n_sigma > 0.0f) {
    Moments all;
#pragma unroll
    for (std::uint32_t s = 0; s < kSamplerSplits; ++s) {
      all.sum += state.stripes[s].sum;
      all.squares += state.stripes[s].squares;
      all.count += state.stripes[s].count;
    }
    lowest = cuda::Max(lowest, SigmaBorder(all, max, row.top_n_sigma));
  }
  return OrderedKey(lowest);
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerBucketsKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  const SamplerState& state = args.states[cuda::BlockY()];
  if ((row.top_k == 0 && row.top_p >= 1.0) || !Alive(state)) return;
  auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
  ClearSums(search);
  const float* const x = args.x + cuda::BlockY() * args.x_stride;
  const OfMass mass{KeyValue(state.best)};
  const std::uint32_t lowest = LowestKey(row, state);
  const IdStripe stripe = BlockStripe(args.vocab);
  for (std::uint32_t i = stripe.begin + cuda::ThreadIndex(); i < stripe.end; i += kSamplerThreads) {
    const std::uint64_t key = OrderKey(x[i], i);
    if (key >> 32 < lowest) continue;
    cuda::AtomicAdd(&search.sums[key >> 53], row.top_k > 0 ? 1 : mass(key));
  }
  cuda::SyncBlock();
  std::uint64_t* const buckets = args.buckets + std::int64_t{cuda::BlockY()} * kSamplerBuckets;
  for (std::uint32_t i = cuda::ThreadIndex(); i < kSamplerBuckets; i += kSamplerThreads) {
    if (search.sums[i] != 0) cuda::AtomicAdd(&buckets[i], search.sums[i]);
  }
}

// Mass that top-p asks for of `total`.
__device__ __forceinline__ double TopPTarget(const DeviceRow& row, std::uint64_t total) {
  return row.top_p * static_cast<double>(total);
}

// Sum of the row's buckets. All threads call it.
__device__ __forceinline__ std::uint64_t SumOfBuckets(DigitSearch& search,
                                                      const std::uint64_t* buckets) {
  std::uint64_t own = 0;
  for (std::uint32_t i = cuda::ThreadIndex(); i < kSamplerBuckets; i += kSamplerThreads) {
    own += buckets[i];
  }
  return BlockScan(search, own).total;
}

__device__ __forceinline__ std::uint32_t MinPKey(const DeviceRow& row, float max) {
  return row.log_min_p == kMinusInfinity ? 0 : OrderedKey(cuda::Add(max, row.log_min_p));
}

// Of a row without filters: the race over everything from the key on.
__device__ __forceinline__ void RaceOverStripe(const SamplerArgs& args, const DeviceRow& row,
                                               SamplerState& state, std::uint32_t lowest) {
  const float* const x = args.x + cuda::BlockY() * args.x_stride;
  Race race(row, KeyValue(state.best));
  const IdStripe stripe = BlockStripe(args.vocab);
  for (std::uint32_t i = stripe.begin + 4 * cuda::ThreadIndex(); i < stripe.end;
       i += 4 * kSamplerThreads) {
    float four[4];
    bool any = false;
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) {
      four[c] = i + c < stripe.end ? x[i + c] : kMinusInfinity;
      any = any || OrderedKey(four[c]) >= lowest;
    }
    if (!any) continue;
    const auto words = race.Words(i);
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) {
      if (OrderedKey(four[c]) >= lowest) race.Add(four[c], i + c, words[c]);
    }
  }
  cuda::SyncWarp();
  race.Publish(state);
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerKeepKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  if (row.token_logprob >= 0 || row.greedy || !Alive(state)) return;
  std::uint32_t lowest = LowestKey(row, state);
  // A token below min-p has a mass for top-p, but no part in anything else.
  if (row.top_p >= 1.0) {
    const std::uint32_t min_p = MinPKey(row, KeyValue(state.best));
    lowest = lowest < min_p ? min_p : lowest;
  }
  if (!row.filtered) {
    RaceOverStripe(args, row, state, lowest);
    return;
  }
  if (row.top_k > 0 || row.top_p < 1.0) {
    auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
    const std::uint64_t* const buckets =
        args.buckets + std::int64_t{cuda::BlockY()} * kSamplerBuckets;
    const double target = row.top_k > 0 ? static_cast<double>(row.top_k)
                                        : TopPTarget(row, SumOfBuckets(search, buckets));
    const std::uint32_t border = FindBucket(search, buckets, 0, target).index << 21;
    lowest = lowest < border ? border : lowest;
  }
  const float* const x = args.x + cuda::BlockY() * args.x_stride;
  std::uint64_t* const keys = args.keys + std::int64_t{cuda::BlockY()} * args.vocab;
  const IdStripe stripe = BlockStripe(args.vocab);
  // Every lane takes every turn: the warp appends together.
  for (std::uint32_t first = stripe.begin; first < stripe.end; first += kSamplerThreads) {
    const std::uint32_t i = first + cuda::ThreadIndex();
    const std::uint64_t key = i < stripe.end ? OrderKey(x[i], i) : 0;
    AppendKey(key >> 32 >= lowest, key, keys, &state.kept);
  }
}

// XTC over the keys of the list from `border` on: the largest key that stays. All threads call it.
__device__ __forceinline__ std::uint64_t XtcKey(DigitSearch& search, const std::uint64_t* keys,
                                                std::uint32_t count, std::uint64_t border,
                                                const OfMass& mass, float threshold) {
  std::uint64_t total = 0;
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    if (keys[i] >= border) total += mass(keys[i]);
  }
  total = BlockScan(search, total).total;
  const double target = static_cast<double>(threshold) * static_cast<double>(total);
  if (cuda::ThreadIndex() == 0) search.above = 0;
  cuda::SyncBlock();
  std::uint64_t last = 0;  // complement of the smallest key that reaches the target
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    const std::uint64_t of_key = keys[i] >= border ? mass(keys[i]) : 0;
    if (of_key > 0 && Reached(of_key, target) && ~keys[i] > last) last = ~keys[i];
  }
  cuda::SyncWarp();
  last = WarpMax(last);
  if (cuda::Lane() == 0) cuda::AtomicMax(&search.above, last);
  cuda::SyncBlock();
  return search.above == 0 ? ~std::uint64_t{0} : ~search.above;
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerChooseKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockX()];
  SamplerState& state = args.states[cuda::BlockX()];
  if (!row.filtered || !Alive(state)) return;
  auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
  const std::uint64_t* const keys = args.keys + std::int64_t{cuda::BlockX()} * args.vocab;
  const std::uint32_t count = state.kept;
  const OfMass mass{KeyValue(state.best)};
  std::uint64_t border = 0;
  if (row.top_k > 0) {
    border = FindBorder(search, keys, count, 0, static_cast<double>(row.top_k), OfOne{});
  }
  if (row.top_p < 1.0) {
    std::uint64_t total = 0;
    if (row.top_k > 0) {
      for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
        if (keys[i] >= border) total += mass(keys[i]);
      }
      total = BlockScan(search, total).total;
    } else {
      total = SumOfBuckets(search, args.buckets + std::int64_t{cuda::BlockX()} * kSamplerBuckets);
    }
    border = FindBorder(search, keys, count, border, TopPTarget(row, total), mass);
  }
  const std::uint64_t min_p = std::uint64_t{MinPKey(row, mass.max)} << 32;
  border = border < min_p ? min_p : border;
  std::uint64_t first = ~std::uint64_t{0};
  if (row.xtc) {
    first = XtcKey(search, keys, count, border, mass, row.xtc_threshold);
    if (cuda::ThreadIndex() == 0 && ~first != 0) state.best = first;
  }
  Race race(row, ~first != 0 ? KeyValue(first) : mass.max);
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    const std::uint64_t key = keys[i];
    if (key < border || key > first || (row.xtc && mass(key) == 0)) continue;
    const std::uint32_t id = KeyId(key);
    const auto words = race.Words(id);
    const std::uint32_t low = id % 2 == 0 ? words[0] : words[1];
    const std::uint32_t high = id % 2 == 0 ? words[2] : words[3];
    race.Add(KeyValue(key), id, id % 4 < 2 ? low : high);
  }
  cuda::SyncWarp();
  race.Publish(state);
}

__global__ void __launch_bounds__(kSamplerRows)
    SamplerFinishKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t r = cuda::ThreadIndex();
  if (r >= args.num_rows) return;
  const DeviceRow& row = args.rows[r];
  SamplerState& state = args.states[r];
  DeviceSampled result{};
  const bool bad = state.non_finite != 0 || state.raw_max <= OrderedKey(kMinusInfinity);
  state.non_finite = bad ? 1 : 0;
  result.non_finite = bad ? 1 : 0;
  result.token = -1;
  if (!bad) {
    if (row.token_logprob >= 0) {
      result.token = row.token_logprob;
    } else if (state.best == 0) {
      result.no_survivor = 1;
    } else if (row.greedy) {
      result.token = static_cast<std::int32_t>(KeyId(state.best));
    } else {
      result.token = static_cast<std::int32_t>(~state.race & 0xffffffffu);
    }
  }
  if (result.token >= 0) result.logit = row.logits[result.token];
  if (result.token >= 0 && row.processed) {
    result.x = args.x[r * args.x_stride + result.token];
    result.x_max = KeyValue(state.best);
    result.mass = state.mass;
  }
  result.max = KeyValue(state.raw_max);
  state.token = result.token;
  args.results[row.result] = result;
  if (row.token != nullptr) *row.token = result.token;
}

}  // namespace

absl::Status LaunchSamples(const CudaContext& context, const SamplerArgs& args,
                           const SamplerNeeds& needs) {
  const cuda::LaunchShape rows{
      .blocks_x = args.num_rows, .threads = kSamplerThreads, .programmatic = true};
  const cuda::LaunchShape splits{.blocks_x = kSamplerSplits,
                                 .blocks_y = args.num_rows,
                                 .threads = kSamplerThreads,
                                 .programmatic = true};
  cuda::LaunchShape search = splits;
  search.shared_bytes = sizeof(DigitSearch);
  QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "sampler_scan", SamplerScanKernel, splits, args));
  if (needs.edits) {
    QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "sampler_edit", SamplerEditKernel, rows, args));
    cuda::LaunchShape scale = splits;
    scale.shared_bytes = sizeof(WarpMoments);
    QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "sampler_scale", SamplerScaleKernel, scale, args));
  }
  if (needs.filters) {
    QUIRE_RETURN_IF_ERROR(
        cuda::Launch(context, "sampler_buckets", SamplerBucketsKernel, search, args));
  }
  if (needs.samples) {
    QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "sampler_keep", SamplerKeepKernel, search, args));
  }
  if (needs.filters) {
    cuda::LaunchShape choose = rows;
    choose.shared_bytes = sizeof(DigitSearch);
    QUIRE_RETURN_IF_ERROR(
        cuda::Launch(context, "sampler_choose", SamplerChooseKernel, choose, args));
  }
  return cuda::Launch(context, "sampler_finish", SamplerFinishKernel,
                      {.threads = kSamplerRows, .programmatic = true}, args);
}

}  // namespace quire::kernels::internal
