// The part of EngineCore that runs a step and takes its results.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/engine_core.h"
#include "engine/scheduler.h"

namespace quire::engine {

bool EngineCore::Step(absl::Time now) {
  const absl::Time start = clock_->Now();
  plan_ = &scheduler_.Plan(now);
  StartPlanned(now);
  const absl::Time planned = clock_->Now();
  if (plan_->empty()) {
    if (scheduler_.stuck() != nullptr) {
      Fail(*scheduler_.stuck(), InternalError("a request is blocked although nobody runs"),
           /*scrub=*/false, now);
      return true;
    }
    return RunCacheWork(now);
  }
  const models::StepBatch& batch = builder_.Fill(*plan_);
  const absl::Time launched = clock_->Now();
  absl::Status error = runner_->Run(batch);
  const models::StepResult* result = nullptr;
  if (error.ok()) {
    const absl::StatusOr<const models::StepResult*> collected = runner_->Collect();
    error = collected.status();
    if (error.ok()) result = *collected;
  }
  cache_->CompleteStep();
  const absl::Time collected = clock_->Now();
  if (result == nullptr) {
    FailStep(error, collected);
  } else {
    Collect(*result, collected);
    ForgetCopies(batch);
  }
  AfterStep(start, planned, launched, collected);
  return true;
}

// Tells everybody what the plan has changed, before the step runs.
void EngineCore::StartPlanned(absl::Time now) {
  for (const Sequence* sequence : plan_->preempted) {
    probe_->Preempted();
    RefreshGauge(*sequence->request);
  }
  for (LiveRequest* live : plan_->started) {
    live->schedule_time = now;
    live->holds_queue_slot = false;
    queue_->LeaveRequest();
    queue_->RemoveTokens(live->queued_tokens);
    const std::int32_t queried =
        live->request.cache.skip_read ? 0 : static_cast<std::int32_t>(live->first().prompt_tokens);
    probe_->PrefixLookup(queried, live->cached_tokens);
    probe_->ObserveQueue(now - live->request.accept_time);
    hit_tokens_ += static_cast<std::uint64_t>(live->cached_tokens);
    queried_tokens_ += static_cast<std::uint64_t>(queried);
    Emit(OutputItem::Kind::kStarted, *live, now);
  }
  std::uint32_t expired = 0;
  auto check = [&](const Sequence& sequence, std::uint32_t tokens) {
    RefreshGauge(*sequence.request);
    if (sequence.request->request.deadline <= now) expired += tokens;
  };
  for (const Sequence* sequence : plan_->decodes) check(*sequence, 1);
  for (const PlannedChunk& chunk : plan_->chunks) check(*chunk.sequence, chunk.num_tokens);
  if (expired > 0) probe_->ExpiredTokens(expired);
}

void EngineCore::RefreshGauge(LiveRequest& live) {
  const bool runs = std::any_of(live.sequences.begin(), live.sequences.end(),
                                [](const auto& sequence) { return sequence->row.has_value(); });
  if (runs == live.counted_running) return;
  live.counted_running = runs;
  running_ += runs ? 1 : -1;
  waiting_ += runs ? -1 : 1;
  if (runs) {
    probe_->MoveToRunning();
  } else {
    probe_->MoveToWaiting();
  }
}

// Pages that wait to be cleared are not available; without rows to run, nothing else would clear
// them.
bool EngineCore::RunCacheWork(absl::Time now) {
  const models::StepBatch* batch = scheduler_.has_work() ? builder_.FillCacheWork() : nullptr;
  if (batch == nullptr) return false;
  absl::Status error = runner_->Run(*batch);
  if (error.ok()) error = runner_->Collect().status();
  cache_->CompleteStep();
  if (error.ok()) {
    ForgetCopies(*batch);
  } else {
    FailStep(error, now);
  }
  return true;
}

void EngineCore::ForgetCopies(const models::StepBatch& batch) {
  if (batch.copies.empty()) return;
  for (const auto& [arrival, live] : live_) live->has_pending_copy = false;
}

// Nothing of the step counts. Requests whose pages were to be copied in it have lost them too.
void EngineCore::FailStep(const absl::Status& error, absl::Time now) {
  log::Error("engine", "step failed", {{"status", error.ToString()}});
  builder_.KeepClears();
  to_fail_.clear();
  for (const auto& [arrival, live] : live_) {
    bool affected = live->has_pending_copy;
    for (const auto& sequence : live->sequences) {
      affected |= std::find(plan_->decodes.begin(), plan_->decodes.end(), sequence.get()) !=
                  plan_->decodes.end();
      affected |= std::any_of(plan_->chunks.begin(), plan_->chunks.end(),
                              [&](const auto& chunk) { return chunk.sequence == sequence.get(); });
    }
    if (affected) to_fail_.push_back(live.get());
  }
  for (LiveRequest* live : to_fail_) {
    Fail(*live, InternalError(error.message()), /*scrub=*/false, now);
  }
}

void EngineCore::Collect(const models::StepResult& result, absl::Time now) {
  QUIRE_CHECK(result.draws.size() == builder_.draw_owners().size());
  QUIRE_CHECK(result.scores.size() == builder_.score_owners().size());
  ++steps_;
  FailBadRows(result, now);
  for (Sequence* sequence : plan_->decodes) Advance(*sequence, 1);
  for (const PlannedChunk& chunk : plan_->chunks) Advance(*chunk.sequence, chunk.num_tokens);
  CollectScores(result, now);
  CollectDraws(result, now);
}

// Before anything of the step is published.
void EngineCore::FailBadRows(const models::StepResult& result, absl::Time now) {
  auto check = [&](const models::StepToken& token, LiveRequest& live, bool in_decode) {
    if (live.ended || (!token.non_finite && !token.no_survivor)) return;
    // The computed token has no successor; it balances the sum of step tokens (docs/metrics.md).
    if (in_decode) probe_->AddDiscarded(DiscardCause::kCancelled, 1);
    if (token.non_finite) {
      probe_->NonFinite();
      Fail(live,
           WithReason(
               absl::DataLossError("logits hold NaN or infinity"), "NON_FINITE_LOGITS",
               {{"incident_id", absl::StrCat("step-", steps_)}, {"step", absl::StrCat(steps_)}}),
           /*scrub=*/true, now);
    } else {
      Fail(live,
           WithReason(absl::InvalidArgumentError("no token is left to draw from"), "BAD_CONSTRAINT",
                      {{"stage", "decode"}}),
           /*scrub=*/false, now);
    }
  };
  // A request that fails here is freed only with its output item, so the owners stay valid.
  for (std::size_t i = 0; i < result.scores.size(); ++i) {
    check(result.scores[i], *builder_.score_owners()[i].request, false);
  }
  for (std::size_t i = 0; i < result.draws.size(); ++i) {
    const Sequence& sequence = *builder_.draw_owners()[i].sequence;
    check(result.draws[i], *sequence.request, sequence.request->forked);
  }
}

// Tokens [computed, computed + num_tokens) of the sequence now have K and V.
void EngineCore::Advance(Sequence& sequence, std::uint32_t num_tokens) {
  if (sequence.state == SequenceState::kFinished) return;
  const std::uint32_t begin = sequence.computed;
  const std::uint32_t end = begin + num_tokens;
  const std::uint32_t again =
      std::min(end, sequence.high_water) - std::min(begin, sequence.high_water);
  const std::uint32_t in_prompt =
      std::min(end, sequence.prompt_tokens) -
      std::min(std::max(begin, sequence.high_water), sequence.prompt_tokens);
  if (again > 0) {
    probe_->Recomputed(again);
    sequence.recomputed_tokens += static_cast<std::int32_t>(again);
  }
  if (end > sequence.high_water && in_prompt > 0) probe_->PromptComputed(in_prompt);
  if (end < sequence.total()) ++chunked_prefills_;
  sequence.computed = end;
  sequence.high_water = std::max(sequence.high_water, end);
  const std::uint32_t page_size = cache_->page_size();
  if (begin / page_size != end / page_size) {
    cache_->Publish(*sequence.row, sequence.tokens, &sequence.keys, end);
  }
}

void EngineCore::CollectScores(const models::StepResult& result, absl::Time now) {
  const std::vector<ScoreOwner>& owners = builder_.score_owners();
  OutputItem* item = nullptr;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    LiveRequest& live = *owners[i].request;
    if (live.ended) continue;
    if (i == 0 || owners[i - 1].request != &live) {
      item = &Emit(OutputItem::Kind::kPromptScores, live, now);
      item->start_position = static_cast<std::int32_t>(owners[i].position);
    }
    const models::StepToken& score = result.scores[i];
    item->scores.push_back({.token = score.token,
                            .logprob = score.logprob,
                            .rank = score.rank,
                            .top = {score.top.begin(), score.top.end()}});
    live.scored_tokens = owners[i].position + 1;
  }
}

void EngineCore::CollectDraws(const models::StepResult& result, absl::Time now) {
  const std::vector<DrawOwner>& owners = builder_.draw_owners();
  for (std::size_t i = 0; i < owners.size();) {
    LiveRequest& live = *owners[i].sequence->request;
    if (live.forked || live.ended) {
      if (!live.ended) AppendToken(*owners[i].sequence, result.draws[i], now);
      ++i;
      continue;
    }
    // The first tokens of all choices, drawn from one row of logits.
    const std::size_t count = live.sequences.size();
    const Sequence& parent = live.first();
    for (std::size_t c = 1; c < count; ++c) {
      Sequence& child = *live.sequences[c];
      child.tokens.reserve(parent.tokens.capacity());
      child.tokens.assign(parent.tokens.begin(), parent.tokens.end());
      child.keys = parent.keys;
      child.history = parent.history;
      child.history_index = parent.history_index;
    }
    scheduler_.Fork(live);
    for (const auto& choice : live.sequences) {
      if (choice->state == SequenceState::kPreempted) probe_->Preempted();
    }
    for (std::size_t c = 0; c < count; ++c) {
      AppendToken(*live.sequences[c], result.draws[i + c], now);
    }
    i += count;
  }
}

void EngineCore::AppendToken(Sequence& sequence, const models::StepToken& token, absl::Time now) {
  LiveRequest& live = *sequence.request;
  sequence.tokens.push_back(token.token);
  if (live.uses_history()) AddToHistory(sequence, token.token, /*in_output=*/true);
  live.shown_output_tokens.fetch_add(1, std::memory_order_relaxed);
  const std::optional<FinishReason> finish = FinishAfter(sequence);
  OutputItem& item = Emit(OutputItem::Kind::kToken, live, now);
  live.in_ring_tokens.fetch_add(1, std::memory_order_acq_rel);
  item.choice = sequence.choice;
  item.token = {.token = token.token,
                .logprob = token.logprob,
                .rank = token.rank,
                .top = {token.top.begin(), token.top.end()}};
  item.finish = finish;
  if (finish.has_value()) {
    FillEnd(sequence, &item);
    FinishChoice(sequence, now);
  } else if (sequence.state == SequenceState::kPrefill) {
    sequence.state = SequenceState::kDecode;
    RefreshState(live);
  }
}

std::optional<FinishReason> EngineCore::FinishAfter(const Sequence& sequence) const {
  const LiveRequest& live = *sequence.request;
  const std::int32_t token = sequence.tokens.back();
  const bool ends =
      std::find(live.end_ids.begin(), live.end_ids.end(), token) != live.end_ids.end();
  if (ends) {
    const bool is_eos = !live.request.stopping.ignore_eos &&
                        std::find(options_.eos_token_ids.begin(), options_.eos_token_ids.end(),
                                  token) != options_.eos_token_ids.end();
    return is_eos ? FinishReason::kEos : FinishReason::kStopToken;
  }
  if (sequence.output_tokens() < live.max_tokens) return std::nullopt;
  return live.clipped_by_context ? FinishReason::kContextFull : FinishReason::kLength;
}

void EngineCore::FillEnd(const Sequence& sequence, OutputItem* item) const {
  item->choice = sequence.choice;
  item->preemptions = sequence.preemptions;
  item->recomputed_tokens = sequence.recomputed_tokens;
}

// The choice's pages go back at once; the request ends with its last choice.
void EngineCore::FinishChoice(Sequence& sequence, absl::Time now) {
  LiveRequest& live = *sequence.request;
  scheduler_.Finish(sequence);
  if (live.live_choices > 0) {
    RefreshGauge(live);
    return;
  }
  scheduler_.Remove(live, /*scrub=*/false);
  probe_->Completed(live.counted_running);
  End(live, absl::OkStatus(), /*was_accepted=*/true, now);
}

void EngineCore::AfterStep(absl::Time start, absl::Time planned, absl::Time launched,
                           absl::Time collected) {
  const absl::Time now = clock_->Now();
  const StepKind kind = plan_->chunks.empty()    ? StepKind::kDecode
                        : plan_->decodes.empty() ? StepKind::kPrefill
                                                 : StepKind::kMixed;
  const std::size_t sequences = plan_->decodes.size() + plan_->chunks.size();
  max_step_sequences_ = std::max(max_step_sequences_, static_cast<std::int32_t>(sequences));
  probe_->StepRan({.kind = kind,
                   .num_tokens = plan_->num_tokens,
                   .num_sequences = static_cast<std::uint32_t>(sequences),
                   .wall = now - start,
                   .schedule = planned - start,
                   .prepare = launched - planned,
                   .output = now - collected},
                  now);
  probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  probe_->ShowWaitingTokens(scheduler_.waiting_uncached_tokens());
  const std::uint32_t decodes = static_cast<std::uint32_t>(plan_->decodes.size());
  prompt_rate_.Add(now, plan_->num_tokens - decodes);
  generation_rate_.Add(now, static_cast<std::int64_t>(builder_.draw_owners().size()));
  queue_->Update(scheduler_.waiting_uncached_tokens(),
                 prompt_rate_.PerSecond(now) + generation_rate_.PerSecond(now));
  last_step_ = now;
}

}  // namespace quire::engine
