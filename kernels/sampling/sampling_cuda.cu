// Does steps 0 and 2 to 10 of sampling.h without a sort. Passes over a whole row use several blocks
// per row, with 16-byte loads and four pending loads per thread. The results of the blocks are
// combined in SamplerState by maxima and integer sums. They therefore depend neither on the number
// nor on the order of the blocks. The last block of a row to finish also does the work that needs a
// single block, which saves a launch.
//
//   scan       reads the logits once: flags, maximum, masks, scaled x to scratch (L2); then applies
//              penalties, bias and banned ids
//   scale      temperature of edited rows, and the moments for top-n-sigma
//   buckets    top-k or top-p: counts or masses by the first 11 bits of OrderedKey
//   keep       without filters runs the race; with filters lists the keys from the cutoff's bucket
//              on, then finds exact cutoffs of top-k, top-p, min-p and XTC, and runs the race
//
// The token of a row is written by scan (greedy, not edited), by scale (greedy, edited) or by keep
// (not greedy).

#include <cstdint>

#include "base/philox.h"
#include "base/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/sampling/sampling_device.cuh"

namespace quire::kernels::internal {
namespace {

using last_block::ArrivesLast;

// A token whose x is this far below the best candidate cannot be sampled (see sampling.cc).
constexpr float kReach = 28.0f;
constexpr std::uint32_t kPurposeSample = 0;

__device__ __forceinline__ float ScaleLogit(float z, float factor) {
  const float scaled = cuda::Min(cuda::Max(cuda::Mul(z, factor), -kLargestLogit), kLargestLogit);
  return z == kMinusInfinity ? z : scaled;
}

// True if the row can yield a token.
__device__ __forceinline__ bool CanSample(const SamplerState& state) {
  return state.non_finite == 0 && state.best != 0;
}

// Weight of a key: floor(w * 2^40).
struct MassWeight {
  float max;
  __device__ __forceinline__ std::uint64_t operator()(std::uint64_t key) const {
    return static_cast<std::uint64_t>(cuda::Mul(ExactExp(cuda::Sub(KeyValue(key), max)), 0x1p40f));
  }
};

// Finds the smallest key (score, id) among the ids of this thread, then of the row.
class Race {
 public:
  __device__ __forceinline__ Race(const DeviceRow& row, float max)
      : seed_(row.seed),
        position_(row.position),
        choice_(row.choice),
        processed_(row.processed),
        max_(max) {}

  __device__ __forceinline__ auto Words(std::uint32_t id) const {
    return Philox4x32({id / 4, position_, choice_, kPurposeSample}, seed_);
  }
  __device__ __forceinline__ void Add(float x, std::uint32_t id, std::uint32_t r) {
    const float w = ExactExp(cuda::Sub(x, max_));
    if (processed_) mass_ += static_cast<std::uint64_t>(cuda::Mul(w, 0x1p40f));
    // -ln u is never below 1 - u, so most tokens lose without a logarithm.
    const float rest = cuda::Mul(static_cast<float>(~r), 0x1p-32f * 0.999f);
    if (rest > cuda::Mul(best_, w)) return;
    const float score = cuda::Div(ExponentialVariate(r), w);
    const std::uint64_t key = std::uint64_t{cuda::FloatBits(score)} << 32 | id;
    if (~key <= best_complement_) return;
    best_complement_ = ~key;
    best_ = score;
  }
  // All threads must call this function.
  __device__ __forceinline__ void Publish(BlockReduction& reduction, SamplerState& state) const {
    const std::uint64_t complement = BlockMax(reduction, best_complement_);
    if (cuda::ThreadIndex() == 0) cuda::AtomicMax(&state.race, complement);
    if (!processed_) return;
    const std::uint64_t mass = WarpSum(mass_);
    if (cuda::Lane() == 0) cuda::AtomicAdd(&state.mass, mass);
  }

 private:
  const std::uint64_t seed_;
  const std::uint32_t position_;
  const std::uint32_t choice_;
  const bool processed_;
  const float max_;
  float best_ = std::numeric_limits<float>::infinity();
  std::uint64_t best_complement_ = 0;  // complement of the best key
  std::uint64_t mass_ = 0;
};

// Does steps 2 and 3 for one token. Only infinite penalties can give NaN, which is never sampled.
__device__ __forceinline__ float Penalized(const DeviceRow& row, const TokenCount& seen, float z) {
  z = z > 0.0f ? cuda::Div(z, row.repetition_penalty) : cuda::Mul(z, row.repetition_penalty);
  if (seen.output_count > 0) {
    z = cuda::Sub(z, cuda::Mul(row.frequency_penalty, static_cast<float>(seen.output_count)));
    z = cuda::Sub(z, row.presence_penalty);
  }
  if (z != z) return kMinusInfinity;
  return cuda::Min(z, kLargestLogit);
}

// Applies penalties, bias and banned ids. Only one block calls this function.
__device__ __forceinline__ void EditRow(const SamplerArgs& args, const DeviceRow& row,
                                        SamplerState& state, float* x) {
  const std::int32_t in_flight = row.sample_in_flight == nullptr ? -1 : *row.sample_in_flight;
  for (std::uint32_t i = cuda::ThreadIndex(); i < row.history_size; i += kSamplerThreads) {
    TokenCount seen = args.history[row.history_begin + i];
    const auto id = static_cast<std::uint32_t>(seen.token);
    if (seen.token == in_flight) {
      ++seen.output_count;
      state.in_history = 1;
    }
    if (HasText(args, id)) x[id] = Penalized(row, seen, x[id]);
  }
  cuda::SyncBlock();
  const auto new_id = static_cast<std::uint32_t>(in_flight);
  if (cuda::ThreadIndex() == 0 && new_id < args.vocab && state.in_history == 0 &&
      HasText(args, new_id)) {
    x[new_id] = Penalized(row, {.token = in_flight, .output_count = 1}, x[new_id]);
  }
  cuda::SyncBlock();
  const LogitBias* const bias = args.bias + row.bias_begin;
  for (std::uint32_t i = cuda::ThreadIndex(); i < row.bias_size; i += kSamplerThreads) {
    // The thread of the first of equal tokens adds all their biases, in order.
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

// Writes the result of a row and its token. One thread calls this function after all work on the
// row is done.
__device__ __forceinline__ void FinishRow(const SamplerArgs& args, const DeviceRow& row,
                                          SamplerState& state) {
  DeviceSampled result{};
  const bool bad = state.non_finite != 0 || state.raw_max <= OrderedKey(kMinusInfinity);
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
    result.x = args.x[row.scratch * args.x_stride + result.token];
    result.x_max = KeyValue(state.best);
    result.mass = state.mass;
  }
  result.max = KeyValue(state.raw_max);
  state.token = result.token;
  args.results[row.result] = result;
  if (row.token != nullptr) *row.token = result.token;
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerScanKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  auto& reduction = *reinterpret_cast<BlockReduction*>(cuda::SharedMemory16());
  float* const x = args.x + row.scratch * args.x_stride;
  const bool edited = row.edited;
  const bool greedy = row.greedy;
  const float factor = row.factor;
  // Edits leave a masked logit at -infinity, so the mask may be applied before the edits.
  const std::uint32_t* const mask =
      row.mask < 0 ? nullptr : args.masks + std::int64_t{row.mask} * args.mask_words;
  const LogitLoader logits(args, row.logits);
  const auto load = [&](std::uint32_t i) {
    FourValues four = logits(i);
    if (mask != nullptr) four.mask = mask[i / 32];
    return four;
  };
  bool bad = false;
  float raw_max = kMinusInfinity;
  float best = kMinusInfinity;
  std::uint32_t best_id = 0;
  VisitStripe(args.vocab, load, [&](std::uint32_t i, const FourValues& four) {
    if (i == kNoId) return;
    float z[4];
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) {
      const float logit = four.values[c];
      bad = bad || !(logit <= kLargestLogit);
      raw_max = raw_max < logit ? logit : raw_max;
      const bool allowed = (four.mask >> (i % 32 + c) & 1) != 0;
      z[c] = allowed && HasText(args, four, i, c) ? logit : kMinusInfinity;
      if (!greedy && !edited) z[c] = ScaleLogit(z[c], factor);
      // Among equal values the first one is kept. NaN never compares larger.
      if (z[c] > best) {
        best = z[c];
        best_id = i + c;
      }
    }
    if (!greedy || edited) *reinterpret_cast<float4*>(x + i) = {z[0], z[1], z[2], z[3]};
  });
  if (row.filtered) ClearBuckets(args.buckets + std::int64_t{row.scratch} * kSamplerBuckets);
  // The maximum may hide a NaN, so a NaN or +infinity is published as the largest key.
  const std::uint64_t largest = BlockMax(reduction, bad ? ~0u : OrderedKey(raw_max));
  const std::uint64_t order =
      BlockMax(reduction, best > kMinusInfinity ? OrderKey(best, best_id) : std::uint64_t{0});
  if (cuda::ThreadIndex() == 0) {
    if (largest > OrderedKey(kLargestLogit)) cuda::AtomicOr(&state.non_finite, 1);
    cuda::AtomicMax(&state.raw_max, static_cast<std::uint32_t>(largest));
    if (!edited) cuda::AtomicMax(&state.best, order);
  }
  if (!edited && !greedy) return;
  if (!ArrivesLast(&state.arrived, cuda::GridX(), &reduction.flag)) return;
  if (edited) {
    EditRow(args, row, state, x);
  } else if (cuda::ThreadIndex() == 0) {
    FinishRow(args, row, state);
  }
}

// Shared memory of the scale kernel.
struct ScaleShared {
  BlockReduction reduction;
  double sums[kSamplerWarps];
  double squares[kSamplerWarps];
};

// Adds up the moments of all threads of the block and stores them as the moments of its stripe. All
// threads must call this function.
__device__ __forceinline__ void PublishMoments(ScaleShared& shared, const Moments& own,
                                               Moments& stripe) {
  const std::uint32_t warp = cuda::Warp();
  const double sum = WarpSum(own.sum);
  const double squares = WarpSum(own.squares);
  const std::uint64_t count = WarpSum(own.count);
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

// Applies the temperature. A thread processes every 256th id instead of four adjacent ones, because
// the sums have that order (sigma.h).
__global__ void __launch_bounds__(kSamplerThreads)
    SamplerScaleKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  if (!row.edited) return;
  constexpr std::uint32_t kAtOnce = 8;
  auto& shared = *reinterpret_cast<ScaleShared*>(cuda::SharedMemory16());
  float* const x = args.x + row.scratch * args.x_stride;
  SamplerState& state = args.states[cuda::BlockY()];
  const bool greedy = row.greedy;
  const float factor = row.factor;
  const bool adds = row.top_n_sigma > 0.0f;
  std::uint64_t best = 0;
  Moments own;
  const IdStripe stripe = BlockStripe(args.vocab);
  for (std::uint32_t first = stripe.begin + cuda::ThreadIndex(); first < stripe.end;
       first += kAtOnce * kSamplerThreads) {
    float values[kAtOnce];
#pragma unroll
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      const std::uint32_t i = first + j * kSamplerThreads;
      values[j] = i < stripe.end ? x[i] : kMinusInfinity;
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      const std::uint32_t i = first + j * kSamplerThreads;
      float z = values[j];
      if (!(z > kMinusInfinity)) continue;
      if (!greedy) {
        z = ScaleLogit(z, factor);
        x[i] = z;
      }
      const std::uint64_t order = OrderKey(z, i);
      best = best < order ? order : best;
      if (adds) {
        const double value = z;
        own.sum += value;
        own.squares = fma(value, value, own.squares);
        ++own.count;
      }
    }
  }
  best = BlockMax(shared.reduction, best);
  if (cuda::ThreadIndex() == 0) cuda::AtomicMax(&state.best, best);
  if (adds) PublishMoments(shared, own, state.stripes[cuda::BlockX()]);
  if (!greedy || !ArrivesLast(&state.arrived, cuda::GridX(), &shared.reduction.flag)) return;
  if (cuda::ThreadIndex() == 0) FinishRow(args, row, state);
}

// Returns the lowest key that can be sampled, given kReach and the cutoff of top-n-sigma. REQUIRES:
// there are survivors.
__device__ __forceinline__ std::uint32_t LowestKey(const DeviceRow& row,
                                                   const SamplerState& state) {
  const float max = KeyValue(state.best);
  float lowest = cuda::Max(cuda::Sub(max, kReach), -kLargestLogit);
  if (row.top_n_sigma > 0.0f) {
    Moments all;
#pragma unroll
    for (std::uint32_t s = 0; s < kSigmaStripes; ++s) {
      all.sum += state.stripes[s].sum;
      all.squares += state.stripes[s].squares;
      all.count += state.stripes[s].count;
    }
    lowest = cuda::Max(lowest, SigmaCutoff(all, max, row.top_n_sigma));
  }
  return OrderedKey(lowest);
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerBucketsKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  const SamplerState& state = args.states[cuda::BlockY()];
  if (!row.filtered || (row.top_k == 0 && row.top_p >= 1.0) || !CanSample(state)) return;
  auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
  ClearSums(search);
  const float* const x = args.x + row.scratch * args.x_stride;
  const MassWeight mass{KeyValue(state.best)};
  const std::uint32_t lowest = LowestKey(row, state);
  const bool counts = row.top_k > 0;
  const auto load = [x](std::uint32_t i) { return LoadX(x, i); };
  VisitStripe(args.vocab, load, [&](std::uint32_t i, const FourValues& four) {
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) {
      const std::uint64_t key = OrderKey(four.values[c], i + c);
      if (key >> 32 < lowest) continue;
      const auto bucket = static_cast<std::uint32_t>(key >> 53);
      if (counts) {
        CountInBucket(search, bucket);
      } else {
        AddToBucket(search, bucket, mass(key));
      }
    }
  });
  PublishBuckets(search, args.buckets + std::int64_t{row.scratch} * kSamplerBuckets);
}

// Returns the mass that top-p must reach, for this total mass.
__device__ __forceinline__ double TopPTarget(const DeviceRow& row, std::uint64_t total) {
  return row.top_p * static_cast<double>(total);
}

// Returns the sum of the row's buckets. All threads must call this function.
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

// For rows without filters, runs the race over all keys of at least `lowest`.
__device__ __forceinline__ void RaceOverStripe(const SamplerArgs& args, const DeviceRow& row,
                                               SamplerState& state, BlockReduction& reduction,
                                               std::uint32_t lowest) {
  const float* const x = args.x + row.scratch * args.x_stride;
  Race race(row, KeyValue(state.best));
  const auto load = [x](std::uint32_t i) { return LoadX(x, i); };
  // Uses two pending loads instead of four, because the code of the race is long and is unrolled
  // once per load.
  VisitStripe<2>(args.vocab, load, [&](std::uint32_t i, const FourValues& four) {
    bool takes_part[4];
    bool any = false;
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) {
      takes_part[c] = OrderedKey(four.values[c]) >= lowest;
      any = any || takes_part[c];
    }
    if (!any) return;
    const auto words = race.Words(i);
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) {
      if (takes_part[c]) race.Add(four.values[c], i + c, words[c]);
    }
  });
  cuda::SyncWarp();
  race.Publish(reduction, state);
}

// For rows with filters, appends the keys in and above the cutoff's bucket to the row's list.
__device__ __forceinline__ void KeepKeys(const SamplerArgs& args, const DeviceRow& row,
                                         SamplerState& state, DigitSearch& search,
                                         std::uint32_t lowest) {
  if (row.top_k > 0 || row.top_p < 1.0) {
    const std::uint64_t* const buckets = args.buckets + std::int64_t{row.scratch} * kSamplerBuckets;
    const double target = row.top_k > 0 ? static_cast<double>(row.top_k)
                                        : TopPTarget(row, SumOfBuckets(search, buckets));
    const std::uint32_t cutoff = FindBucket(search, buckets, 0, target).index << 21;
    lowest = lowest < cutoff ? cutoff : lowest;
  }
  const float* const x = args.x + row.scratch * args.x_stride;
  std::uint64_t* const keys = args.keys + std::int64_t{row.scratch} * args.vocab;
  const auto load = [x](std::uint32_t i) { return LoadX(x, i); };
  VisitStripe(args.vocab, load, [&](std::uint32_t i, const FourValues& four) {
    std::uint64_t own[4];
    bool keep[4];
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) {
      own[c] = OrderKey(four.values[c], i + c);
      keep[c] = own[c] >> 32 >= lowest;
    }
    AppendKeys(keep, own, keys, &state.kept);
  });
}

// Applies XTC to the keys of the list that are at least `cutoff`. Returns the largest key that is
// kept. All threads must call this function.
__device__ __forceinline__ std::uint64_t XtcKey(DigitSearch& search, const std::uint64_t* keys,
                                                std::uint32_t count, std::uint64_t cutoff,
                                                const MassWeight& mass, float threshold) {
  std::uint64_t total = 0;
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    if (keys[i] >= cutoff) total += mass(keys[i]);
  }
  total = BlockScan(search, total).total;
  const double target = static_cast<double>(threshold) * static_cast<double>(total);
  if (cuda::ThreadIndex() == 0) search.above = 0;
  cuda::SyncBlock();
  std::uint64_t last = 0;  // complement of the smallest key that reaches the target
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    const std::uint64_t key_mass = keys[i] >= cutoff ? mass(keys[i]) : 0;
    if (key_mass > 0 && Reached(key_mass, target) && ~keys[i] > last) last = ~keys[i];
  }
  cuda::SyncWarp();
  last = WarpMax(last);
  if (cuda::Lane() == 0) cuda::AtomicMax(&search.above, last);
  cuda::SyncBlock();
  return search.above == 0 ? ~std::uint64_t{0} : ~search.above;
}

// For rows with filters, finds the exact cutoffs on the list and runs the race over the remaining
// keys. One block calls this function.
__device__ __forceinline__ void Choose(const SamplerArgs& args, const DeviceRow& row,
                                       SamplerState& state, DigitSearch& search) {
  const std::uint64_t* const keys = args.keys + std::int64_t{row.scratch} * args.vocab;
  const std::uint32_t count = state.kept;
  const MassWeight mass{KeyValue(state.best)};
  std::uint64_t cutoff = 0;
  if (row.top_k > 0) {
    cutoff = FindCutoff(search, keys, count, 0, static_cast<double>(row.top_k), CountWeight{});
  }
  if (row.top_p < 1.0) {
    std::uint64_t total = 0;
    if (row.top_k > 0) {
      for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
        if (keys[i] >= cutoff) total += mass(keys[i]);
      }
      total = BlockScan(search, total).total;
    } else {
      total = SumOfBuckets(search, args.buckets + std::int64_t{row.scratch} * kSamplerBuckets);
    }
    cutoff = FindCutoff(search, keys, count, cutoff, TopPTarget(row, total), mass);
  }
  const std::uint64_t min_p = std::uint64_t{MinPKey(row, mass.max)} << 32;
  cutoff = cutoff < min_p ? min_p : cutoff;
  std::uint64_t first = ~std::uint64_t{0};
  if (row.xtc) {
    first = XtcKey(search, keys, count, cutoff, mass, row.xtc_threshold);
    if (cuda::ThreadIndex() == 0 && ~first != 0) state.best = first;
  }
  Race race(row, ~first != 0 ? KeyValue(first) : mass.max);
  for (std::uint32_t i = cuda::ThreadIndex(); i < count; i += kSamplerThreads) {
    const std::uint64_t key = keys[i];
    if (key < cutoff || key > first || (row.xtc && mass(key) == 0)) continue;
    const std::uint32_t id = KeyId(key);
    const auto words = race.Words(id);
    const std::uint32_t low = id % 2 == 0 ? words[0] : words[1];
    const std::uint32_t high = id % 2 == 0 ? words[2] : words[3];
    race.Add(KeyValue(key), id, id % 4 < 2 ? low : high);
  }
  cuda::SyncWarp();
  race.Publish(search.reduction, state);
  cuda::SyncBlock();
}

__global__ void __launch_bounds__(kSamplerThreads)
    SamplerKeepKernel(const __grid_constant__ SamplerArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const DeviceRow& row = args.rows[cuda::BlockY()];
  SamplerState& state = args.states[cuda::BlockY()];
  if (row.token_logprob >= 0 || row.greedy) return;
  auto& search = *reinterpret_cast<DigitSearch*>(cuda::SharedMemory16());
  const bool can_sample = CanSample(state);
  if (can_sample) {
    std::uint32_t lowest = LowestKey(row, state);
    // Tokens below min-p contribute only to the total mass of top-p. They are skipped if top-p is
    // off.
    if (row.top_p >= 1.0) {
      const std::uint32_t min_p = MinPKey(row, KeyValue(state.best));
      lowest = lowest < min_p ? min_p : lowest;
    }
    if (row.filtered) {
      KeepKeys(args, row, state, search, lowest);
    } else {
      RaceOverStripe(args, row, state, search.reduction, lowest);
    }
  }
  if (!ArrivesLast(&state.arrived, cuda::GridX(), &search.reduction.flag)) return;
  if (can_sample && row.filtered) Choose(args, row, state, search);
  if (cuda::ThreadIndex() == 0) FinishRow(args, row, state);
}

}  // namespace

absl::Status LaunchSamples(const CudaContext& context, const SamplerArgs& args,
                           const SamplerNeeds& needs) {
  const cuda::LaunchShape scan{.blocks_x = BlocksOfRow(args),
                               .blocks_y = args.num_rows,
                               .threads = kSamplerThreads,
                               .shared_bytes = sizeof(BlockReduction),
                               .programmatic = true};
  QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "sampler_scan", SamplerScanKernel, scan, args));
  if (needs.edits) {
    cuda::LaunchShape scale = scan;
    if (needs.moments) scale.blocks_x = kSigmaStripes;
    scale.shared_bytes = sizeof(ScaleShared);
    QUIRE_RETURN_IF_ERROR(cuda::Launch(context, "sampler_scale", SamplerScaleKernel, scale, args));
  }
  cuda::LaunchShape search = scan;
  search.shared_bytes = sizeof(DigitSearch);
  if (needs.filters) {
    QUIRE_RETURN_IF_ERROR(
        cuda::Launch(context, "sampler_buckets", SamplerBucketsKernel, search, args));
  }
  if (!needs.samples) return absl::OkStatus();
  return cuda::Launch(context, "sampler_keep", SamplerKeepKernel, search, args);
}

}  // namespace quire::kernels::internal
