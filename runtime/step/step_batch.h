#pragma once

// The work of one step as ragged arrays. The engine fills them and a StepRunner computes them.
//
//   rows          r0: 3 new tokens   r1: 1      r2: 2
//   token_ids     a0 a1 a2           b0         c0 c1        first_token: 0, 3, 4
//   logits_tokens       2             3             5        indices into token_ids, ascending
//   samples           one or more per logits row (choices of one request sample from the same row)
//   prompt_logprobs   log-probability of a prompt token, from the logits row of the token before it
//   pools             sums of hidden states, for embeddings
//
// Threads: filled by the engine thread and constant from StepRunner::Run to Collect, except for
//          late samples (StepSample::is_late) before SampleLate. The vectors keep their capacity
//          from step to step.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/heartbeat.h"
#include "base/strong_id.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/views/kv_step_inputs.h"
#include "cache_manager/views/state_step_inputs.h"
#include "kernels/sampling/sampling.h"

namespace quire::runtime {

struct StepRow {
  BatchRow batch_row;
  std::uint32_t cache_length = 0;  // tokens of the row whose K and V are in its pages
  std::uint32_t first_token = 0;   // index into token_ids
  std::uint32_t num_tokens = 0;    // >= 1
  // The first prompt_tokens of num_tokens are prompt tokens, and the rest were generated. A GPU
  // computes the two classes with different kernels. A token that is computed again keeps its
  // class. The CPU ignores the class.
  std::uint32_t prompt_tokens = 0;
};

// Maximum number of entries of a sample's `row.bias`: 65536 logit biases (the maximum of
// limits.max_logit_bias_entries) plus 4096 tokens that the DRY sampler penalizes.
inline constexpr std::uint32_t kMaxBias = 65536 + 4096;

// One token to sample. The runner sets `row.logits`, `row.text_vocab`, `row.has_text` and
// `row.sample_in_flight` in a copy of `row`. The engine sets and owns everything else, including
// what the pointers refer to. A late sample waits for its mask or its penalties. The engine
// completes `row` and sets `is_completed` before StepRunner::SampleLate. Late samples without
// `is_completed` are not computed.
struct StepSample {
  std::uint32_t logits_index = 0;  // index into logits_tokens
  kernels::SamplingRow row;
  // Index of the sample in the previous step that produces the newest output token, if that token
  // is not yet in row.history. -1 if all tokens before this sample are known or no penalty needs
  // them.
  std::int32_t sample_in_flight = -1;
  bool is_late = false;
  bool is_completed = false;
};

// Requests the raw log-probability of one given token.
struct StepPromptLogprob {
  std::uint32_t logits_index = 0;
  std::int32_t token = 0;
  std::int32_t num_top = 0;  // number of most likely tokens to report in addition
};

// Requests the sum of hidden states after the final norm, over the tokens with indices in
// [first_token, first_token + num_tokens). Addition is in f32, token by token. The sum of a batch
// row continues from step to step, so it does not depend on the chunks of a prompt.
struct StepPool {
  BatchRow batch_row;
  std::uint32_t first_token = 0;
  std::uint32_t num_tokens = 0;  // >= 1
  bool begins = false;           // the sum of the row starts with these tokens
  bool ends = false;             // the sum is complete and reported
};

struct StepBatch {
  // [num_tokens]. An id below 0 is the token that sample -(id + 1) of the previous step returns,
  // which requires StepRunner::max_steps_in_flight() > 1. If that sample returns no token, the row
  // is computed with token 0 and its results are undefined.
  std::vector<std::int32_t> token_ids;
  std::vector<StepRow> rows;
  std::vector<std::uint32_t> logits_tokens;
  std::vector<StepSample> samples;                 // logits_index ascending
  std::vector<StepPromptLogprob> prompt_logprobs;  // logits_index ascending
  std::vector<StepPool> pools;  // only with StepRunner::can_pool(); at most one per batch row
  // Pages to copy in this order, after `clears` and before the forward pass.
  std::vector<cache::PageCopy> copies;
  std::vector<BlockId> clears;  // pages to clear
  // One per layer group; empty if the step has no rows, copies or clears.
  std::span<const cache::KvStepInputs> kv;
  cache::StateStepInputs states;  // empty if the model has no recurrent layers

  // The CPU runner signals it after every layer, because a step may take long. May be null.
  Heartbeat* heartbeat = nullptr;

  // For tests that compare logits: [logits_tokens.size(), vocab] or null.
  float* logits_out = nullptr;
  // For tests that compare layers: [layers + 2, num_tokens, hidden] or null. Entry 0 has the
  // embeddings, entry i + 1 the output of layer i, and the last entry that of the final norm.
  float* hidden_out = nullptr;

  void Clear() {
    token_ids.clear();
    rows.clear();
    logits_tokens.clear();
    samples.clear();
    prompt_logprobs.clear();
    pools.clear();
    copies.clear();
    clears.clear();
    kv = {};
    states = {};
    heartbeat = nullptr;
    logits_out = nullptr;
    hidden_out = nullptr;
  }
  bool has_late_samples() const {
    return std::ranges::any_of(samples, [](const StepSample& sample) { return sample.is_late; });
  }
};

// The result of a sample or a prompt log-probability. `top` points into the StepResult.
struct StepToken {
  std::int32_t token = 0;
  float logprob = 0;
  std::int32_t rank = 0;        // from 1, in the raw distribution; 0 if not requested
  float processed_logprob = 0;  // see kernels::SampledRow
  bool non_finite = false;      // the row's logits contain NaN or +inf, or are all -inf
  bool no_survivor = false;     // masks excluded every token
  bool unsampled = false;       // a late sample that was not completed; there is no token
  std::span<const kernels::TopLogprob> top;
};

struct StepResult {
  std::vector<StepToken> samples;          // one per StepBatch::samples
  std::vector<StepToken> prompt_logprobs;  // one per StepBatch::prompt_logprobs
  // One per StepBatch::pools: [hidden] if `ends` is set, else empty. The values are valid as long
  // as the StepResult.
  std::vector<std::span<const float>> pools;
};

}  // namespace quire::runtime
