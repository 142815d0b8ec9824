#pragma once

// The sampling, stopping and output parameters of a request, with every default resolved.
// docs/api.md has the ranges. A value outside its range is rejected and not clipped, and the status
// names the field, the value and the range.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/constraint/dry_params.h"

namespace quire::engine {

struct SamplingParams {
  float temperature = 1;         // [0, 100]; below 0.001 greedy
  float top_p = 1;               // (0, 1]
  std::int32_t top_k = 0;        // [0, 2^31); 0 = off
  float min_p = 0;               // [0, 1]; 0 = off
  float top_n_sigma = 0;         // [0, 100]; 0 = off
  float xtc_probability = 0;     // [0, 1]; 0 = off
  float xtc_threshold = 0.1f;    // [0, 1]; above 0.5 off
  float repetition_penalty = 1;  // (0, 10]
  float presence_penalty = 0;    // [-2, 2]
  float frequency_penalty = 0;   // [-2, 2]
  std::uint64_t seed = 0;
  std::int32_t choice_count = 1;  // [1, max_choices]
  std::vector<std::pair<std::int32_t, float>>
      logit_bias;  // distinct ids in vocabulary; [-100, 100]
  // If not empty, only these ids are sampled. They must be in the vocabulary.
  std::vector<std::int32_t> allowed_token_ids;
  // Strings that must not occur in the output; at most 64, each of 1 to 256 bytes.
  std::vector<std::string> banned_text;
  DryParams dry;

  // Whether a penalty needs the counts of earlier tokens.
  bool uses_history() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

struct StoppingParams {
  // At least 1. PreparedPrompt::max_tokens is this value, clipped to what the prompt leaves of the
  // context.
  std::int32_t max_tokens = 0;
  std::int32_t min_tokens = 0;  // [0, max_tokens]
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_text = false;
};

struct OutputParams {
  bool stream = false;
  bool text = true;
  bool token_ids = false;
  std::int32_t logprobs = -1;  // -1: none; 0: the sampled token; n: also the n most likely tokens
  std::int32_t prompt_logprobs = -1;  // the same for prompt tokens
  // Also return the log-probability of each sampled token after penalties, masks, temperature and
  // truncation. Requires logprobs.
  bool processed_logprobs = false;
  bool skip_special_tokens = true;
  std::int32_t stream_interval_tokens = 1;  // [1, 1024]
  bool echo_prompt = false;
  bool timings = false;
  bool usage_every_chunk = false;
};

// The limits that Validate checks, from `limits.*` and the model.
struct ParamLimits {
  std::int32_t max_tokens_per_request = 1 << 20;
  std::int32_t max_choices = 16;
  std::int32_t max_logprobs = 20;
  std::int32_t max_stop_sequences = 16;
  std::int32_t max_stop_bytes = 256;
  std::int32_t max_logit_bias_entries = 1024;
  std::int32_t vocab_size = 0;
};

// If a field is invalid, returns INVALID_ARGUMENT with reason BAD_SAMPLING_PARAM, BAD_PARAMETER,
// BAD_TOKEN_ID, TOO_MANY_STOPS or BAD_UTF8 and the wire path of the field ("sampling.top_p").
absl::Status Validate(const SamplingParams& params, const ParamLimits& limits);
absl::Status Validate(const StoppingParams& params, const ParamLimits& limits);
absl::Status Validate(const OutputParams& params, const ParamLimits& limits);

}  // namespace quire::engine
