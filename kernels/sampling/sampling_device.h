#pragma once

// Definitions that the host code and the kernels of DeviceSampler share: device rows, scratch
// memory, results, and launch functions.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/context.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sigma.h"

namespace quire::kernels::internal {

// The rows of a call are processed in groups, each by one sequence of launches (SamplerArgs).
// Maximum number of rows of a group that have scratch memory.
inline constexpr std::uint32_t kSamplerRows = 32;
// Maximum number of rows of a group. Each row is a block in the grid's second dimension.
inline constexpr std::uint32_t kMaxGroupRows = 65535;
// Number of buckets, one per value of the first 11 bits of OrderedKey (sampling_device.cuh).
inline constexpr std::uint32_t kSamplerBuckets = 2048;
// Number of logits whose exponentials are summed in f32 before the sums are added in f64.
inline constexpr std::uint32_t kSamplerSumPart = 4096;
inline constexpr std::uint32_t kMaxDeviceLogprobs = 1024;

// A row to sample, or a known token whose log-probability is computed. token_logprob is the known
// token, or -1 for a row to sample.
struct DeviceRow {
  const float* logits;  // [vocab]
  std::int32_t* token;  // destination of the sampled token; null for a prompt logprob
  const std::int32_t* sample_in_flight;  // see SamplingRow
  std::uint64_t seed;
  double top_p;       // 1: off
  float factor;       // 1 / temperature
  float log_min_p;    // -infinity: off
  float top_n_sigma;  // 0: off
  float xtc_threshold;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  std::uint32_t top_k;  // 0: off
  std::uint32_t choice;
  std::uint32_t position;
  // Begin indices are into the arrays of the call. Sizes are 0 if the list is unused.
  std::uint32_t history_begin;
  std::uint32_t history_size;
  std::uint32_t bias_begin;  // equal tokens are adjacent, in the caller's order
  std::uint32_t bias_size;
  std::uint32_t banned_begin;
  std::uint32_t banned_size;
  std::int32_t mask;  // index of the row's mask; -1: none
  std::int32_t token_logprob;
  std::int32_t num_logprobs;
  std::uint32_t result;   // index of the result
  std::uint32_t top;      // index of the first best id
  std::uint32_t scratch;  // index of the row's scratch memory, if NeedsScratch
  bool greedy;
  bool edited;     // history, bias or banned ids change logits, or top-n-sigma needs moments
  bool filtered;   // top-k, top-p or XTC
  bool xtc;        // XTC applies to this sample
  bool processed;  // the mass of the survivors is requested
};

// True if kernels use scratch memory for the row. Greedy rows without edits or log-probabilities
// need none: kernels only read their logits.
inline bool NeedsScratch(const DeviceRow& row) {
  return !row.greedy || row.edited || row.num_logprobs >= 0;
}

// State of a row while it is processed; initially zero. Blocks exchange only maxima and integer
// sums, so the order of the blocks does not matter.
struct SamplerState {
  // Largest OrderKey of x. XTC replaces it by the largest key that it keeps. 0: no survivors.
  std::uint64_t best;
  std::uint64_t race;     // complement of the smallest (score, id) of step 10 of sampling.h
  std::uint64_t mass;     // mass of the survivors, if requested
  std::uint32_t raw_max;  // largest OrderedKey of the logits
  std::uint32_t non_finite;
  std::uint32_t kept;      // number of keys kept for the sample
  std::uint32_t top_kept;  // number of keys kept for the best ids
  std::uint32_t better;    // number of ids with text that are better than the token
  std::int32_t token;
  std::uint32_t in_history;        // 1 if the history contains the sample in flight
  std::uint32_t arrived;           // number of blocks that have finished; the last one continues
  Moments stripes[kSigmaStripes];  // moments of x, for top-n-sigma
};

// Results from which the host computes log-probabilities.
struct DeviceSampled {
  std::int32_t token;  // -1: none
  std::uint32_t non_finite;
  std::uint32_t no_survivor;
  std::int32_t rank;
  double sum;  // sum of exp(logit - max)
  float max;
  float logit;
  std::uint32_t num_top;
  float x;             // x of the token after step 6, if the mass is requested
  std::uint64_t mass;  // mass of the survivors
  float x_max;         // largest x of the survivors
  std::uint32_t unused;
};

// Arguments for one group of at most kMaxGroupRows rows, of which at most kSamplerRows need scratch
// memory. All pointers are device memory.
struct SamplerArgs {
  const DeviceRow* rows;
  const TokenCount* history;
  const LogitBias* bias;
  const std::int32_t* banned;
  const std::uint32_t* masks;    // [masks of the call, mask_words]
  const std::uint8_t* has_text;  // [x_stride]; null: every id below text_vocab has text
  SamplerState* states;          // [num_rows]
  std::uint64_t* buckets;        // [kSamplerRows, kSamplerBuckets]
  float* x;                      // [kSamplerRows, x_stride] adjusted and scaled logits
  std::uint64_t* keys;           // [kSamplerRows, vocab] OrderKey of each kept id
  float* part_sums;              // [kSamplerRows, num_parts]
  DeviceSampled* results;
  TopLogprob* tops;       // contains logits; the host converts them to log-probabilities
  std::int64_t x_stride;  // vocab rounded up to a multiple of 4; x is -infinity from vocab on
  std::uint32_t vocab;
  std::uint32_t text_vocab;
  std::uint32_t mask_words;
  std::uint32_t num_parts;
  std::uint32_t num_rows;
};

// The kernels that the rows of a group need.
struct SamplerNeeds {
  bool edits = false;
  bool moments = false;  // rows with top-n-sigma
  bool samples = false;  // rows that are not greedy
  bool filters = false;
  bool logprobs = false;
  bool tops = false;
};

// Returns the number of blocks per row in kernels that read the whole row. The number is large
// enough that a few rows fill a GPU, and small enough that each of the 256 threads has a 16-byte
// load.
inline std::uint32_t BlocksOfRow(const SamplerArgs& args) {
  constexpr std::uint32_t kBlocks = 128, kFewest = 8, kMost = 64;
  const std::uint32_t wanted = std::clamp(kBlocks / args.num_rows, kFewest, kMost);
  return std::min(wanted, args.vocab / 1024 + 1);
}

// Does steps 0 and 2 to 10 of sampling.h and writes tokens and flags to `results`. REQUIRES: states
// are zero.
absl::Status LaunchSamples(const CudaContext& context, const SamplerArgs& args,
                           const SamplerNeeds& needs);
// Computes sums, ranks and best ids of rows that requested log-probabilities, after LaunchSamples.
absl::Status LaunchLogprobs(const CudaContext& context, const SamplerArgs& args,
                            const SamplerNeeds& needs);

}  // namespace quire::kernels::internal
