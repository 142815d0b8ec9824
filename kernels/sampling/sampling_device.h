#pragma once

// What the host side of DeviceSampler and its kernels share: rows of a call as the device reads
// them, scratch, results, and the launches in their order.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/context.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sigma.h"

namespace quire::kernels::internal {

// Rows that are worked on at a time: scratch is per row.
inline constexpr std::uint32_t kSamplerRows = 32;
// Buckets of the first digit of the ordered key.
inline constexpr std::uint32_t kSamplerBuckets = 2048;
// Logits whose exponentials are summed in f32 before the sums add up in f64.
inline constexpr std::uint32_t kSamplerSumPart = 4096;
inline constexpr std::uint32_t kMaxDeviceLogprobs = 1024;

// A sample, or a prompt logprob when token_logprob is not -1.
struct DeviceRow {
  const float* logits;                   // [vocab]
  std::int32_t* token;                   // where the sampled token goes; null for a prompt logprob
  const std::int32_t* sample_in_flight;  // as SamplingRow
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
  std::uint32_t history_begin;  // into the call's arrays; sizes are 0 where nothing is to be done
  std::uint32_t history_size;
  std::uint32_t bias_begin;  // equal tokens lie together, in the caller's order
  std::uint32_t bias_size;
  std::uint32_t banned_begin;
  std::uint32_t banned_size;
  std::int32_t mask;  // index of its mask; -1: none
  std::int32_t token_logprob;
  std::int32_t num_logprobs;
  std::uint32_t result;  // index of its result
  std::uint32_t top;     // index of its first best id
  bool greedy;
  bool edited;     // history, bias or banned ids change logits, or top-n-sigma asks for moments
  bool filtered;   // top-k, top-p or XTC
  bool xtc;        // it happens
  bool processed;  // the mass of the survivors is asked for
};

// Of a row while it is worked on; zero at the start. What blocks share is a maximum or an integer
// sum, so the order in which they arrive does not matter.
struct SamplerState {
  std::uint64_t best;  // largest order key of x, in the end of what XTC left; 0: nothing survived
  std::uint64_t race;  // complement of the smallest (score, id)
  std::uint64_t mass;  // of the survivors, where it is asked for
  std::uint32_t raw_max;  // largest ordered key of the logits
  std::uint32_t non_finite;
  std::uint32_t kept;      // keys that were kept for the sample
  std::uint32_t top_kept;  // and for the best ids
  std::uint32_t better;    // ids with text that are likelier than the token
  std::int32_t token;
  std::uint32_t in_history;        // the history holds the sample in flight
  std::uint32_t arrived;           // blocks of a launch whose last one goes on
  Moments stripes[kSigmaStripes];  // of x, where top-n-sigma asks for them
};

// What the host makes log-probabilities of.
struct DeviceSampled {
  std::int32_t token;  // -1: none
  std::uint32_t non_finite;
  std::uint32_t no_survivor;
  std::int32_t rank;
  double sum;  // of exp(logit - max)
  float max;
  float logit;
  std::uint32_t num_top;
  float x;             // where the mass is asked for: of the token, after step 6
  std::uint64_t mass;  // of the survivors
  float x_max;         // their largest
  std::uint32_t unused;
};

// One group of at most kSamplerRows rows. All pointers are device memory.
struct SamplerArgs {
  const DeviceRow* rows;
  const TokenCount* history;
  const LogitBias* bias;
  const std::int32_t* banned;
  const std::uint32_t* masks;    // [masks of the call, mask_words]
  const std::uint8_t* has_text;  // [x_stride]; null: every id below text_vocab has text
  SamplerState* states;          // [kSamplerRows]
  std::uint64_t* buckets;        // [kSamplerRows, kSamplerBuckets]
  float* x;                      // [kSamplerRows, x_stride] adjusted and scaled logits
  std::uint64_t* keys;           // [kSamplerRows, vocab] kept order keys
  float* part_sums;              // [kSamplerRows, num_parts]
  DeviceSampled* results;
  TopLogprob* tops;       // logits in place of log-probabilities
  std::int64_t x_stride;  // vocab rounded up to a multiple of 4; x is -infinity from vocab on
  std::uint32_t vocab;
  std::uint32_t text_vocab;
  std::uint32_t mask_words;
  std::uint32_t num_parts;
  std::uint32_t num_rows;
};

// Which kernels a group needs.
struct SamplerNeeds {
  bool edits = false;
  bool moments = false;  // rows with top-n-sigma
  bool samples = false;  // rows that are not greedy
  bool filters = false;
  bool logprobs = false;
  bool tops = false;
};

// Blocks that share a row where all of it is read: with few rows enough to fill a GPU, but none
// without a load of 16 bytes for each of its 256 threads.
inline std::uint32_t BlocksOfRow(const SamplerArgs& args) {
  constexpr std::uint32_t kBlocks = 128, kFewest = 8, kMost = 64;
  const std::uint32_t wanted = std::clamp(kBlocks / args.num_rows, kFewest, kMost);
  return std::min(wanted, args.vocab / 1024 + 1);
}

// Steps 0 and 2 to 10 of sampling.h; results hold tokens and flags. states are zero.
absl::Status LaunchSamples(const CudaContext& context, const SamplerArgs& args,
                           const SamplerNeeds& needs);
// Sums, ranks and best ids of rows that asked for log-probabilities, after LaunchSamples.
absl::Status LaunchLogprobs(const CudaContext& context, const SamplerArgs& args,
                            const SamplerNeeds& needs);

}  // namespace quire::kernels::internal
