#pragma once

// One step's work, as ragged arrays: what the engine fills and a StepRunner computes.
//
//   rows          r0: 3 new tokens   r1: 1      r2: 2
//   token_ids     a0 a1 a2           b0         c0 c1        first_token: 0, 3, 4
//   logits_tokens       2             3             5        indices into token_ids, ascending
//   samples           one or more per logits row (choices of one request sample from the same row)
//   prompt_logprobs   log-probabilities of the prompt: the given next token under a logits row
//   pools             sums of hidden states, for embeddings
//
// Threads: filled by the engine thread; unchanged from StepRunner::Run to Collect, but for late
//          samples before SampleLate. The vectors keep their capacity from step to step.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/heartbeat.h"
#include "base/strong_id.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/views/kv_step_inputs.h"
#include "kernels/sampling/sampling.h"

namespace quire::runtime {

struct StepRow {
  BatchRow batch_row;
  std::uint32_t cache_length = 0;  // tokens of the row whose K and V are in its pages
  std::uint32_t first_token = 0;   // index into token_ids
  std::uint32_t num_tokens = 0;    // >= 1
  // Of num_tokens, how many (the first ones) are prompt tokens; the rest were generated. A GPU
  // computes the two classes with different kernels, and a token keeps its class when it is
  // computed again. The CPU ignores it.
  std::uint32_t prompt_tokens = 0;
};

// Entries of a sample's `row.bias` at most: 65536 that limits.max_logit_bias_entries may allow, and
// 4096 penalties for repetitions.
inline constexpr std::uint32_t kMaxBias = 65536 + 4096;

// One token to sample. The runner sets `row.logits`, `row.text_vocab`, `row.has_text` and
// `row.sample_in_flight`; everything else, pointers included, is the engine's. A late sample waits
// for its mask or its penalties: it is made by StepRunner::SampleLate, of `row` as it is then, and
// unless `is_completed` it is not made.
struct StepSample {
  std::uint32_t logits_index = 0;  // index into logits_tokens
  kernels::SamplingRow row;
  // Which sample of the step launched just before this one is the last token of the output, not yet
  // in row.history. -1: none; all tokens before this one are known, or no penalty asks for them.
  std::int32_t sample_in_flight = -1;
  bool is_late = false;
  bool is_completed = false;
};

// The raw log-probability of one given token.
struct StepPromptLogprob {
  std::uint32_t logits_index = 0;
  std::int32_t token = 0;
  std::int32_t num_top = 0;  // best tokens besides
};

// Hidden states behind the final norm to add up, token by token in f32: those of token_ids
// [first_token, first_token + num_tokens). The sums of a batch row go on from step to step, so that
// they do not depend on where a prompt is cut into chunks.
struct StepPool {
  BatchRow batch_row;
  std::uint32_t first_token = 0;
  std::uint32_t num_tokens = 0;  // >= 1
  bool begins = false;           // with the first of them: what the row had is over
  bool ends = false;             // the result is wanted
};

struct StepBatch {
  // [num_tokens]. Below 0: the token that sample -(id + 1) of the step launched just before this
  // one samples; only with StepRunner::max_steps_in_flight() > 1. If that sample gives no token,
  // the row computes with token 0 and its results mean nothing.
  std::vector<std::int32_t> token_ids;
  std::vector<StepRow> rows;
  std::vector<std::uint32_t> logits_tokens;
  std::vector<StepSample> samples;                 // logits_index ascending
  std::vector<StepPromptLogprob> prompt_logprobs;  // logits_index ascending
  std::vector<StepPool> pools;          // only with StepRunner::can_pool(); at most one a batch row
  std::vector<cache::PageCopy> copies;  // before the forward pass, in this order, after the clears
  std::vector<BlockId> clears;
  std::span<const cache::KvStepInputs> kv;  // one per layer group, or none without rows and pages

  // Where a step may take long, which is on the CPU, the runner beats whenever a layer is computed.
  // May be null.
  Heartbeat* heartbeat = nullptr;

  // For tests that compare logits: [logits_tokens.size(), vocab] or null.
  float* logits_out = nullptr;
  // For tests that compare layers: [layers + 2, num_tokens, hidden] or null. Row 0: embeddings; row
  // i: output of layer i; last: after the final norm.
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
    heartbeat = nullptr;
    logits_out = nullptr;
    hidden_out = nullptr;
  }
  bool has_late_samples() const {
    return std::ranges::any_of(samples, [](const StepSample& sample) { return sample.is_late; });
  }
};

// The outcome of a sample or a prompt logprob. `top` points into the result and lives as long as it
// does.
struct StepToken {
  std::int32_t token = 0;
  float logprob = 0;
  std::int32_t rank = 0;        // from 1, raw distribution; 0 when no log-probability was asked for
  float processed_logprob = 0;  // as kernels::SampledRow
  bool non_finite = false;      // the row's logits hold NaN or +inf, or are all -inf
  bool no_survivor = false;     // masks left no token
  bool unsampled = false;       // a late sample without a mask; there is no token
  std::span<const kernels::TopLogprob> top;
};

struct StepResult {
  std::vector<StepToken> samples;          // one per StepBatch::samples
  std::vector<StepToken> prompt_logprobs;  // one per StepBatch::prompt_logprobs
  // One per StepBatch::pools: [hidden], or empty unless it ends. They live as long as the result.
  std::vector<std::span<const float>> pools;
};

}  // namespace quire::runtime
