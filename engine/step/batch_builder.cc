#include "engine/step/batch_builder.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "engine/constraint/dry_params.h"
#include "engine/masks/mask_pool.h"

namespace quire::engine {
namespace {

// Upper bound of limits.max_logit_bias_entries.
constexpr std::size_t kMaxRequestBias = 65536;
static_assert(kMaxRequestBias + kMaxDryTokens <= runtime::kMaxBias);

}  // namespace

void BatchBuilder::Begin(InFlightStep* flight) {
  flight_ = flight;
  flight_->batch.Clear();
  flight_->sample_owners.clear();
  flight_->prompt_logprob_owners.clear();
  flight_->pool_owners.clear();
  row_steps_.clear();
}

void BatchBuilder::Fill(InFlightStep* flight) {
  Begin(flight);
  flight->plan.ForEachRow([&](const PlannedRow& row) { AddRow(*row.sequence, row.num_tokens); });
  TakeCacheWork();
  flight->batch.kv = cache_->PrepareStep(row_steps_);
  flight->batch.states = cache_->state_inputs();
}

bool BatchBuilder::FillCacheWork(InFlightStep* flight) {
  Begin(flight);
  TakeCacheWork();
  if (flight->batch.copies.empty() && flight->batch.clears.empty()) return false;
  flight->batch.kv = cache_->PrepareStep(row_steps_);
  flight->batch.states = cache_->state_inputs();
  return true;
}

void BatchBuilder::TakeCacheWork() {
  runtime::StepBatch& batch = flight_->batch;
  batch.clears = cache_->TakeClears();
  batch.clears.insert(batch.clears.end(), kept_clears_.begin(), kept_clears_.end());
  kept_clears_.clear();
  batch.copies = cache_->TakeCopies();
}

void BatchBuilder::KeepClears(const InFlightStep& flight) {
  const std::vector<BlockId>& clears = flight.batch.clears;
  kept_clears_.insert(kept_clears_.end(), clears.begin(), clears.end());
}

void BatchBuilder::AddRow(Sequence& sequence, std::uint32_t num_tokens) {
  runtime::StepBatch& batch = flight_->batch;
  const auto first_token = static_cast<std::uint32_t>(batch.token_ids.size());
  const std::uint32_t begin = sequence.launched();
  const std::uint32_t end = begin + num_tokens;
  const std::uint32_t end_in_tokens = std::min(end, sequence.total());
  batch.token_ids.insert(batch.token_ids.end(),
                         sequence.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                         sequence.tokens.begin() + static_cast<std::ptrdiff_t>(end_in_tokens));
  if (end > end_in_tokens) {
    QUIRE_CHECK(end == end_in_tokens + 1 && sequence.samples_in_flight == 1);
    batch.token_ids.push_back(-static_cast<std::int32_t>(sequence.sample_index) - 1);
  }
  const std::uint32_t prompt_tokens =
      sequence.prompt_tokens - std::min(begin, sequence.prompt_tokens);
  batch.rows.push_back({.batch_row = *sequence.row,
                        .cache_length = begin,
                        .first_token = first_token,
                        .num_tokens = num_tokens,
                        .prompt_tokens = std::min(prompt_tokens, num_tokens)});
  row_steps_.push_back({.row = *sequence.row, .cache_length = begin, .new_tokens = num_tokens});
  AddPromptLogprobRows(sequence, first_token, num_tokens);
  AddPool(sequence, first_token, num_tokens);
  const bool samples = end == sequence.known() && sequence.request->request.generates();
  sequence.in_flight += num_tokens;
  if (!samples) return;
  batch.logits_tokens.push_back(first_token + num_tokens - 1);
  if (sequence.request->forked) {
    AddSample(sequence, end);
  } else {
    for (const auto& choice : sequence.request->sequences) AddSample(*choice, end);
  }
}

// Token i of the prompt predicts token i + 1. Positions whose log-probability was emitted already
// are skipped.
void BatchBuilder::AddPromptLogprobRows(Sequence& sequence, std::uint32_t first_token,
                                        std::uint32_t num_tokens) {
  ScheduledRequest& request = *sequence.request;
  const std::int32_t num_top = request.request.output.prompt_logprobs;
  if (num_top < 0 || sequence.choice != 0) return;
  runtime::StepBatch& batch = flight_->batch;
  for (std::uint32_t i = 0; i < num_tokens; ++i) {
    const std::uint32_t position = sequence.launched() + i + 1;
    if (position >= sequence.prompt_tokens || position < request.prompt_logprob_tokens) continue;
    batch.prompt_logprobs.push_back(
        {.logits_index = static_cast<std::uint32_t>(batch.logits_tokens.size()),
         .token = sequence.tokens[position],
         .num_top = num_top});
    flight_->prompt_logprob_owners.push_back({&request, position});
    batch.logits_tokens.push_back(first_token + i);
  }
}

void BatchBuilder::AddPool(const Sequence& sequence, std::uint32_t first_token,
                           std::uint32_t num_tokens) {
  const Request& request = sequence.request->request;
  if (request.task != Task::kEmbed) return;
  const bool has_first = sequence.launched() == 0;
  const bool has_last = sequence.launched() + num_tokens == sequence.total();
  runtime::StepPool pool{.batch_row = *sequence.row,
                         .first_token = first_token,
                         .num_tokens = num_tokens,
                         .begins = has_first,
                         .ends = has_last};
  if (request.pooling != Pooling::kMean) {
    const bool is_last = request.pooling == Pooling::kLast;
    if (!(is_last ? has_last : has_first)) return;
    if (is_last) pool.first_token += num_tokens - 1;
    pool.num_tokens = 1;
    pool.begins = pool.ends = true;
  }
  flight_->batch.pools.push_back(pool);
  flight_->pool_owners.push_back(sequence.request);
}

// Samples the token at `position`. End tokens are banned until the output has min_tokens tokens. If
// the token before `position` is still in flight, the history lacks it, and `sample_in_flight`
// refers to it.
void BatchBuilder::AddSample(Sequence& sequence, std::uint32_t position) {
  const ScheduledRequest& live = *sequence.request;
  const Sequence& history_owner = live.forked ? sequence : *live.sequences.front();
  QUIRE_CHECK(position == history_owner.total() || position == history_owner.total() + 1);
  const std::span<const kernels::TokenCount> history = history_owner.history.entries();
  const bool lacks_last = !history.empty() && position > history_owner.total();
  const std::int32_t in_flight =
      lacks_last ? static_cast<std::int32_t>(history_owner.sample_index) : -1;
  const SamplingParams& params = live.request.sampling;
  const auto& allowed = live.prompt.mask_rules.allowed;
  const bool bans_end_tokens = static_cast<std::int32_t>(position - history_owner.prompt_tokens) <
                               live.request.stopping.min_tokens;
  runtime::StepBatch& batch = flight_->batch;
  sequence.sample_index = static_cast<std::uint32_t>(batch.samples.size());
  ++sequence.samples_in_flight;
  runtime::StepSample sample{
      .logits_index = static_cast<std::uint32_t>(batch.logits_tokens.size() - 1),
      .row = {.logits = nullptr,
              .temperature = params.temperature,
              .top_p = params.top_p,
              .min_p = params.min_p,
              .top_n_sigma = params.top_n_sigma,
              .xtc_probability = params.xtc_probability,
              .xtc_threshold = params.xtc_threshold,
              .repetition_penalty = params.repetition_penalty,
              .presence_penalty = params.presence_penalty,
              .frequency_penalty = params.frequency_penalty,
              .top_k = params.top_k,
              .seed = params.seed,
              .choice = static_cast<std::uint32_t>(sequence.choice),
              .position = position,
              .history = history.data(),
              .history_size = static_cast<std::uint32_t>(history.size()),
              .bias = live.prompt.bias.data(),
              .bias_size = static_cast<std::uint32_t>(live.prompt.bias.size()),
              .banned = live.prompt.end_ids.data(),
              .banned_size =
                  bans_end_tokens ? static_cast<std::uint32_t>(live.prompt.end_ids.size()) : 0,
              .allowed = allowed == nullptr ? nullptr : allowed->data(),
              .text_vocab = 0,
              .has_text = nullptr,
              .num_logprobs = live.request.output.logprobs,
              .wants_processed_logprob = live.request.output.processed_logprobs},
      .sample_in_flight = in_flight,
      .is_late = sequence.mask != nullptr};
  batch.samples.push_back(sample);
  flight_->sample_owners.push_back(&sequence);
}

void BatchBuilder::CompleteSample(InFlightStep* flight, std::size_t index) const {
  const Sequence& sequence = *flight->sample_owners[index];
  const ScheduledRequest& live = *sequence.request;
  const Sequence& history_owner = live.forked ? sequence : *live.sequences.front();
  runtime::StepSample& sample = flight->batch.samples[index];
  QUIRE_CHECK(sample.row.position == history_owner.total());
  const std::span<const kernels::TokenCount> history = history_owner.history.entries();
  sample.row.history = history.data();
  sample.row.history_size = static_cast<std::uint32_t>(history.size());
  sample.sample_in_flight = -1;
  const ChoiceMask& mask = *sequence.mask;
  if (!mask.words().empty()) sample.row.allowed = mask.words().data();
  if (mask.has_repeat_penalty()) {
    sample.row.bias = mask.bias().data();
    sample.row.bias_size = static_cast<std::uint32_t>(mask.bias().size());
  }
  sample.is_completed = true;
}

}  // namespace quire::engine
