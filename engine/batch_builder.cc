#include "engine/batch_builder.h"

#include <utility>

namespace quire::engine {

const models::StepBatch& BatchBuilder::Fill(const StepPlan& plan) {
  batch_.Clear();
  row_steps_.clear();
  draw_owners_.clear();
  score_owners_.clear();
  for (Sequence* sequence : plan.decodes) AddRow(*sequence, 1);
  for (const PlannedChunk& chunk : plan.chunks) AddRow(*chunk.sequence, chunk.num_tokens);
  TakeCacheWork();
  batch_.kv = &cache_->PrepareStep(row_steps_);
  return batch_;
}

const models::StepBatch* BatchBuilder::FillCacheWork() {
  batch_.Clear();
  row_steps_.clear();
  draw_owners_.clear();
  score_owners_.clear();
  TakeCacheWork();
  if (batch_.copies.empty() && batch_.clears.empty()) return nullptr;
  batch_.kv = &cache_->PrepareStep(row_steps_);
  return &batch_;
}

void BatchBuilder::TakeCacheWork() {
  batch_.clears = cache_->TakeClears();
  batch_.clears.insert(batch_.clears.end(), kept_clears_.begin(), kept_clears_.end());
  kept_clears_.clear();
  batch_.copies = cache_->TakeCopies();
}

void BatchBuilder::KeepClears() {
  kept_clears_.insert(kept_clears_.end(), batch_.clears.begin(), batch_.clears.end());
}

void BatchBuilder::AddRow(Sequence& sequence, std::uint32_t num_tokens) {
  const auto first_token = static_cast<std::uint32_t>(batch_.token_ids.size());
  const auto begin = sequence.tokens.begin() + static_cast<std::ptrdiff_t>(sequence.computed);
  batch_.token_ids.insert(batch_.token_ids.end(), begin,
                          begin + static_cast<std::ptrdiff_t>(num_tokens));
  batch_.rows.push_back({.batch_row = *sequence.row,
                         .cache_length = sequence.computed,
                         .first_token = first_token,
                         .num_tokens = num_tokens});
  row_steps_.push_back(
      {.row = *sequence.row, .cache_length = sequence.computed, .new_tokens = num_tokens});
  AddScores(sequence, first_token, num_tokens);
  if (sequence.computed + num_tokens < sequence.total()) return;
  batch_.logits_tokens.push_back(first_token + num_tokens - 1);
  if (sequence.request->forked) {
    AddDraw(sequence);
  } else {
    for (const auto& choice : sequence.request->sequences) AddDraw(*choice);
  }
}

// Token i of the prompt predicts token i + 1; positions that are out already are not scored again.
void BatchBuilder::AddScores(Sequence& sequence, std::uint32_t first_token,
                             std::uint32_t num_tokens) {
  LiveRequest& request = *sequence.request;
  const std::int32_t num_top = request.request.output.prompt_logprobs;
  if (num_top < 0 || sequence.choice != 0) return;
  for (std::uint32_t i = 0; i < num_tokens; ++i) {
    const std::uint32_t position = sequence.computed + i + 1;
    if (position >= sequence.prompt_tokens || position < request.scored_tokens) continue;
    batch_.scores.push_back(
        {.logits_index = static_cast<std::uint32_t>(batch_.logits_tokens.size()),
         .token = sequence.tokens[position],
         .num_top = num_top});
    score_owners_.push_back({&request, position});
    batch_.logits_tokens.push_back(first_token + i);
  }
}

void BatchBuilder::AddDraw(Sequence& sequence) {
  const LiveRequest& live = *sequence.request;
  const Sequence& history = live.forked ? sequence : *live.sequences.front();
  const SamplingParams& params = live.request.sampling;
  const bool holds_end = history.output_tokens() < live.request.stopping.min_tokens;
  models::StepDraw draw{
      .logits_index = static_cast<std::uint32_t>(batch_.logits_tokens.size() - 1),
      .row = {.logits = nullptr,
              .temperature = params.temperature,
              .top_p = params.top_p,
              .min_p = params.min_p,
              .repetition_penalty = params.repetition_penalty,
              .presence_penalty = params.presence_penalty,
              .frequency_penalty = params.frequency_penalty,
              .top_k = params.top_k,
              .seed = params.seed,
              .choice = static_cast<std::uint32_t>(sequence.choice),
              .position = history.total(),
              .history = history.history.data(),
              .history_size = static_cast<std::uint32_t>(history.history.size()),
              .bias = live.bias.data(),
              .bias_size = static_cast<std::uint32_t>(live.bias.size()),
              .banned = live.end_ids.data(),
              .banned_size = holds_end ? static_cast<std::uint32_t>(live.end_ids.size()) : 0,
              .text_vocab = 0,
              .has_text = nullptr,
              .num_logprobs = live.request.output.logprobs}};
  batch_.draws.push_back(draw);
  draw_owners_.push_back({&sequence});
}

}  // namespace quire::engine
