#pragma once

// Samples tokens from logits: penalties, bias, masks, temperature, top-n-sigma, top-k, top-p,
// min-p, XTC, the random choice, and raw log-probabilities. A sampled token is a pure function of
// its SamplingRow and does not depend on other rows of the call.
//
// Steps of one row, in f32 unless stated otherwise; z starts as the logits:
//   0 check        NaN or +inf anywhere, or all -inf: non_finite, and no token
//   1 raw          logprob(i) = z(i) - max z - ln(sum exp(z - max z)), only if requested
//   2 repetition   tokens of the history and the sample in flight: z = z > 0 ? z / r : z * r
//   3 frequency, presence   output tokens: z = z - f * count, then z = z - p
//   4 bias         z = z + bias, in the order of the list
//   5 masks        z = -inf for banned ids, for ids whose bit of `allowed` is 0 and for ids without
//                  text; if none is left: no_survivor
//   6 temperature  below 0.001 the largest z wins, ties by lower id; else x = z * (1 / T)
//   7 top-n-sigma  x >= max x - n * sigma; sigma: standard deviation of all finite x. 0: off
//     top-k        the k largest x; among equal x lower ids first. 0: off
//   8 top-p        shortest prefix in order of (x descending, id ascending) whose mass reaches
//                  p * total, compared in f64. 1: off
//                  Masses are floor(exp(x - max x) * 2^40) in u64, so order does not matter
//   9 min-p        x >= max x + ln(min_p). 0: off
//     XTC          applies with probability xtc_probability. Removes tokens with mass 0, and tokens
//                  whose mass is at least threshold * total, except the last one in the order of
//                  step 8; max x becomes the x of the largest survivor
//  10 race         exponential race: the smallest e(i) / exp(x(i) - max x) wins, where e = -ln u.
//                  Ties by lower id.
//                  u = (r + 0.5) / 2^32; r is word token % 4 of Philox4x32 with the seed as key and
//                  {token / 4, position, choice, 0} as counter. XTC applies if u of the first word
//                  of {0, position, choice, 1} is below its probability
//
// Sums of exponentials are computed in parts of 4096 logits. A part has 16 partial sums in f32,
// with logit i in sum i mod 16, which are added in a fixed order. Parts are added in order in f64.
// exp is the polynomial of cpu/simd_math-inl.h for every instruction set. sigma.h has the sums for
// sigma.
//
// Sources: Minh et al., "Turning Up the Heat: Min-p Sampling", ICLR 2025; Tang et al., "Top-nsigma:
// Not All Logits Are You Need", 2024; XTC is by P. E. Weidmann (oobabooga/text-generation-webui,
// pull request 6335).

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

// A distinct token that occurs in prompt or output, with its count.
struct TokenCount {
  std::int32_t token;
  std::int32_t output_count;  // occurrences in the output; 0: only in the prompt
};

struct LogitBias {
  std::int32_t token;
  float bias;
};

// Returns the number of 32-bit words of a mask with one bit per token.
constexpr std::uint32_t MaskWords(std::uint32_t vocab) {
  return vocab / 32 + (vocab % 32 != 0);
}

// Parameters of one sample. The caller owns the pointers, which must be valid until the call
// returns. Token ids are in [0, vocab).
struct SamplingRow {
  const float* logits = nullptr;  // [vocab], never written
  float temperature = 1;          // [0, 100]; below 0.001: greedy
  float top_p = 1;                // (0, 1]; 1: off
  float min_p = 0;                // [0, 1]; 0: off
  float top_n_sigma = 0;          // >= 0 and finite; 0: off
  float xtc_probability = 0;      // [0, 1]; 0: off
  float xtc_threshold = 0;       // [0, 1]; XTC is off above 0.5, since only one token can exceed it
  float repetition_penalty = 1;  // > 0; 1: off
  float presence_penalty = 0;    // 0: off
  float frequency_penalty = 0;   // 0: off
  std::int32_t top_k = 0;        // 0: off
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;             // index of the choice within its request
  std::uint32_t position = 0;           // absolute index of the token being sampled
  const TokenCount* history = nullptr;  // [history_size] distinct tokens of prompt and output
  std::uint32_t history_size = 0;
  // An output token that the history does not count yet, in the backend's memory. It is read when
  // the row is computed, so the step that samples it may still be running. A null pointer or a
  // value outside [0, vocab) means that there is no such token.
  const std::int32_t* sample_in_flight = nullptr;
  const LogitBias* bias = nullptr;  // [bias_size], a token may occur more than once
  std::uint32_t bias_size = 0;
  const std::int32_t* banned = nullptr;  // [banned_size] excluded, such as EOS before min_tokens
  std::uint32_t banned_size = 0;
  // [MaskWords(vocab)] host memory. Token t is allowed if bit t % 32 of word t / 32 is 1. Bits from
  // vocab on are ignored. Null: every id is allowed.
  const std::uint32_t* allowed = nullptr;
  std::uint32_t text_vocab = 0;  // ids from this one on have no text and are masked; usually vocab
  // [vocab]; ids with 0 have no text and are masked. Null: every id below text_vocab has text.
  const std::uint8_t* has_text = nullptr;
  // Log-probabilities to return. -1: none. 0: only that of the token. n: also those of the n best
  // ids with text and a finite logit.
  std::int32_t num_logprobs = -1;
  bool wants_processed_logprob = false;
};

struct TopLogprob {
  std::int32_t token;
  float logprob;
};

// The caller sets `top`, which has room for num_logprobs entries. Sample writes the other fields.
struct SampledRow {
  std::int32_t token = -1;  // -1 when non_finite or no_survivor
  float logprob = 0;        // raw; 0 unless requested
  // ln P(token) among the survivors of step 9; 0 when greedy or not requested. The masses of step 8
  // are used.
  float processed_logprob = 0;
  // 1 + the number of better ids with text. An id is better than the token if its logit is larger,
  // or if its logit is equal and its id lower. 0 unless requested.
  std::int32_t rank = 0;
  bool non_finite = false;    // the logits contain NaN or +inf, or are all -inf
  bool no_survivor = false;   // penalties, bias and masks left no finite logit
  std::uint32_t num_top = 0;  // entries of `top`, best first
  TopLogprob* top = nullptr;
};

struct SampleParams {
  std::span<const SamplingRow> rows;
  std::span<SampledRow> sampled;  // same size as rows
  std::uint32_t vocab;            // number of token ids
};

// Samples one token per row. Returns INVALID_ARGUMENT and writes nothing if sizes differ, a token
// is outside the vocabulary, or a parameter is outside its range.
absl::Status Sample(const Backend& backend, const SampleParams& params);
// Returns the bytes that Sample uses of each Backend::workspace.
std::int64_t SampleThreadBytes(std::uint32_t vocab);

// A request for the log-probability of a known token, and its result.
struct TokenLogprob {
  // Input.
  std::int32_t token = 0;         // [0, vocab)
  std::int32_t num_logprobs = 0;  // number of best ids to report
  const float* logits = nullptr;  // [vocab], the row that predicts the token
  TopLogprob* top = nullptr;      // room for num_logprobs entries
  // Output, as in SampledRow; 0 when non_finite.
  float logprob = 0;
  std::int32_t rank = 0;
  bool non_finite = false;
  std::uint32_t num_top = 0;
};

struct LogprobParams {
  std::span<TokenLogprob> tokens;
  std::uint32_t vocab;
  std::uint32_t text_vocab;      // see SamplingRow
  const std::uint8_t* has_text;  // see SamplingRow
};

// Computes raw log-probability, rank and n best ids of given tokens. The results have the same bits
// as those of Sample. Returns INVALID_ARGUMENT for a token outside the vocabulary.
absl::Status ComputeLogprobs(const Backend& backend, const LogprobParams& params);

namespace internal {

// True if XTC applies to the row. The decision depends only on seed, position, choice and the XTC
// parameters.
bool HasXtc(const SamplingRow& row);
// Checks one row like Sample, except for the size of its results.
absl::Status CheckSamplingRow(const SamplingRow& row, std::uint32_t vocab);
// Returns the sample in flight of a row whose sample is in host memory, or -1 if there is none.
inline std::int32_t SampleInFlight(const SamplingRow& row, std::uint32_t vocab) {
  if (row.sample_in_flight == nullptr) return -1;
  const std::int32_t token = *row.sample_in_flight;
  return static_cast<std::uint32_t>(token) < vocab ? token : -1;
}
// Returns the log-probability of a token whose logit after step 6 is x. `max` is the largest x of
// the survivors, and mass * 2^-40 is the sum of their exp(x - max).
float ProcessedLogprob(float x, float max, std::uint64_t mass);
// Checks one token like ComputeLogprobs.
absl::Status CheckTokenLogprob(const TokenLogprob& token, std::uint32_t vocab);

}  // namespace internal
}  // namespace quire::kernels
