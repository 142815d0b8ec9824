// What a step that has run leaves: tokens and ends for its requests, pages that others may find.

#include <algorithm>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/engine_core.h"

namespace quire::engine {
namespace {

// After so many answers of another length the mean is most of the way there.
constexpr double kAnswersInMean = 16;

bool IsFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// The sequences that have ended since the launch and whose rows are not finite.
std::vector<const Sequence*> PoisonedAndEnded(const InFlightStep& flight,
                                              const runtime::StepResult& result) {
  std::vector<const Sequence*> poisoned;
  for (std::size_t i = 0; i < flight.sample_owners.size(); ++i) {
    const Sequence& sequence = *flight.sample_owners[i].sequence;
    if (!result.samples[i].non_finite || sequence.invalidated) continue;
    if (sequence.finished()) poisoned.push_back(&sequence);
  }
  for (std::size_t i = 0; i < flight.prompt_logprob_owners.size(); ++i) {
    const ScheduledRequest& live = *flight.prompt_logprob_owners[i].request;
    const Sequence& sequence = *live.sequences.front();
    if (result.prompt_logprobs[i].non_finite && live.ended && !sequence.invalidated) {
      poisoned.push_back(&sequence);
    }
  }
  for (std::size_t i = 0; i < flight.pool_owners.size(); ++i) {
    const ScheduledRequest& live = *flight.pool_owners[i].request;
    const Sequence& sequence = *live.sequences.front();
    if (!IsFinite(result.pools[i]) && live.ended && !sequence.invalidated) {
      poisoned.push_back(&sequence);
    }
  }
  return poisoned;
}

}  // namespace

void EngineCore::CollectOldest() {
  if (num_in_flight_ == 1) FinishSampling();
  InFlightStep& oldest = flight(0);
  absl::Status error = oldest.launch_error;
  const runtime::StepResult* result = nullptr;
  if (error.ok()) {
    const absl::StatusOr<const runtime::StepResult*> answer = runner_->Collect();
    error = answer.status();
    if (error.ok()) result = *answer;
  }
  const absl::Time collected = clock_->Now();
  if (result != nullptr) heartbeat_.Beat(collected);
  if (HasReason(error, Reason::kDeviceLost)) {
    LoseDevice(error);
    return;
  }
  oldest_ = (oldest_ + 1) % kMaxStepsInFlight;
  --num_in_flight_;
  std::vector<const Sequence*> poisoned;
  if (result != nullptr) poisoned = PoisonedAndEnded(oldest, *result);
  if (!poisoned.empty()) probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  for (const Sequence* sequence : poisoned) {
    cache_->Invalidate(sequence->request->prompt.root, sequence->cache_tokens(), sequence->keys,
                       sequence->proven);
  }
  cache_->CompleteStep(!poisoned.empty());
  if (!poisoned.empty()) probe_->ShowCache(cache_->stats(), EvictionCause::kInvalidate);
  scheduler_.StepCompleted();
  if (result == nullptr) {
    FailStep(oldest, error, collected);
  } else {
    Collect(oldest, *result, collected);
  }
  AfterStep(oldest, collected);
  oldest.ended.clear();
}

// No call to the runner would succeed: the steps in flight are given up, and with them what their
// requests have in flight.
void EngineCore::LoseDevice(const absl::Status& error) {
  log::Error("engine", "device lost", {{"status", error.ToString()}});
  fatal_ = error;
  has_late_samples_ = false;
  for (; num_in_flight_ > 0; --num_in_flight_) {
    flight(num_in_flight_ - 1).ended.clear();
    cache_->CompleteStep();
    scheduler_.StepCompleted();
  }
  for (const auto& [arrival, live] : live_) {
    for (const auto& sequence : live->sequences) {
      sequence->in_flight = 0;
      sequence->samples_in_flight = 0;
    }
  }
}

// Nothing of the step counts. Requests whose pages were to be copied in it have lost them too.
void EngineCore::FailStep(const InFlightStep& flight, const absl::Status& error, absl::Time now) {
  log::Error("engine", "step failed", {{"status", error.ToString()}});
  builder_.KeepClears(flight);
  to_fail_.clear();
  auto lose = [&](Sequence& sequence, std::uint32_t num_tokens) {
    sequence.in_flight -= num_tokens;
    if (!sequence.finished()) to_fail_.push_back(sequence.request);
  };
  for (const PlannedDecode& decode : flight.plan.decodes) lose(*decode.sequence, kDecodeTokens);
  for (const PlannedPrefill& prefill : flight.plan.prefills) {
    lose(*prefill.sequence, prefill.num_tokens);
  }
  for (const SampleOwner& owner : flight.sample_owners) --owner.sequence->samples_in_flight;
  for (const auto& [arrival, live] : live_) {
    const bool is_copied =
        live->first_copy_step <= flight.number && flight.number <= live->last_copy_step;
    if (is_copied) to_fail_.push_back(live.get());
  }
  std::sort(
      to_fail_.begin(), to_fail_.end(),
      [](const ScheduledRequest* a, const ScheduledRequest* b) { return a->arrival < b->arrival; });
  to_fail_.erase(std::unique(to_fail_.begin(), to_fail_.end()), to_fail_.end());
  for (ScheduledRequest* live : to_fail_) {
    Fail(*live, InternalError(error.message()), /*invalidate=*/false, now);
  }
}

void EngineCore::Collect(const InFlightStep& flight, const runtime::StepResult& result,
                         absl::Time now) {
  QUIRE_CHECK(result.samples.size() == flight.sample_owners.size());
  QUIRE_CHECK(result.prompt_logprobs.size() == flight.prompt_logprob_owners.size());
  QUIRE_CHECK(result.pools.size() == flight.pool_owners.size());
  ++steps_;
  FailBadRows(flight, result, now);
  std::size_t row = 0;
  for (const PlannedDecode& decode : flight.plan.decodes) {
    Advance(*decode.sequence, flight.batch.rows[row++]);
  }
  for (const PlannedPrefill& prefill : flight.plan.prefills) {
    Advance(*prefill.sequence, flight.batch.rows[row++]);
  }
  CollectPromptLogprobs(flight, result, now);
  CollectPools(flight, result);
  FinishPrompts(flight, now);
  CollectSamples(flight, result, now);
}

// Before anything of the step is published.
void EngineCore::FailBadRows(const InFlightStep& flight, const runtime::StepResult& result,
                             absl::Time now) {
  auto fail_non_finite = [&](absl::string_view what, ScheduledRequest& live) {
    probe_->NonFinite();
    Fail(live,
         WithReason(
             absl::DataLossError(absl::StrCat(what, " hold NaN or infinity")),
             Reason::kNonFiniteLogits,
             {{"incident_id", absl::StrCat("step-", steps_)}, {"step", absl::StrCat(steps_)}}),
         /*invalidate=*/true, now);
  };
  auto check = [&](const runtime::StepToken& token, ScheduledRequest& live) {
    if (live.ended || (!token.non_finite && !token.no_survivor)) return;
    if (token.non_finite) {
      fail_non_finite("logits", live);
    } else {
      Fail(live,
           WithReason(
               absl::InvalidArgumentError("the request excludes every token of the vocabulary"),
               Reason::kBadConstraint, {{"stage", "decode"}}),
           /*invalidate=*/false, now);
    }
  };
  // A request that fails here is freed only when the next step begins, so the owners stay valid.
  for (std::size_t i = 0; i < result.prompt_logprobs.size(); ++i) {
    check(result.prompt_logprobs[i], *flight.prompt_logprob_owners[i].request);
  }
  for (std::size_t i = 0; i < result.pools.size(); ++i) {
    ScheduledRequest& live = *flight.pool_owners[i].request;
    if (!live.ended && !IsFinite(result.pools[i])) fail_non_finite("hidden states", live);
  }
  for (std::size_t i = 0; i < result.samples.size(); ++i) {
    const Sequence& sequence = *flight.sample_owners[i].sequence;
    // The surplus row of a choice that has ended says nothing about the others.
    if (!sequence.finished()) check(result.samples[i], *sequence.request);
  }
}

// Of a sequence whose known tokens are all computed, how many FailBadRows has seen to be finite: a
// last one that samples or is pooled, the one before it where its log-probability was given.
std::uint32_t EngineCore::ProvenTokens(const ScheduledRequest& live, std::uint32_t computed) {
  switch (live.request.task) {
    case Task::kGenerate:
      return computed;
    case Task::kScore:
      return computed - 1;
    case Task::kEmbed:
      return live.request.pooling == Pooling::kCls ? 1 : computed;
  }
  return 0;
}

// The row's tokens now have K and V. They count for whom they were computed, even if it has ended.
void EngineCore::Advance(Sequence& sequence, const runtime::StepRow& row) {
  // A row without its sample computes its last token again, which counts then.
  const std::uint32_t unsampled = sequence.awaits_mask && !sequence.finished() ? 1 : 0;
  const std::uint32_t begin = row.cache_length;
  const std::uint32_t end = begin + row.num_tokens - unsampled;
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
  sequence.in_flight -= row.num_tokens;
  sequence.high_water = std::max(sequence.high_water, end);
  if (sequence.finished()) return;
  if (end + unsampled < sequence.total()) ++chunked_prefills_;
  sequence.computed = end;
  if (end >= sequence.total()) {
    const std::uint32_t proven = ProvenTokens(*sequence.request, end);
    if (proven > 0) cache_->SetProven(*sequence.row, proven);
  }
  const std::uint32_t page_size = cache_->page_size();
  if (begin / page_size != end / page_size) {
    cache_->Publish(*sequence.row, sequence.cache_tokens(), &sequence.keys, end);
  }
  scheduler_.ReleaseOutsideWindow(sequence);
}

void EngineCore::CollectPromptLogprobs(const InFlightStep& flight,
                                       const runtime::StepResult& result, absl::Time now) {
  const std::vector<PromptLogprobOwner>& owners = flight.prompt_logprob_owners;
  OutputItem* item = nullptr;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    ScheduledRequest& live = *owners[i].request;
    if (live.ended) continue;
    if (i == 0 || owners[i - 1].request != &live) {
      item = &Emit(OutputItem::Kind::kPromptLogprobs, live, now);
      item->start_position = static_cast<std::int32_t>(owners[i].position);
    }
    const runtime::StepToken& prompt_logprob = result.prompt_logprobs[i];
    item->prompt_logprobs.push_back(
        {.token = prompt_logprob.token,
         .logprob = prompt_logprob.logprob,
         .rank = prompt_logprob.rank,
         .processed_logprob = 0,
         .top = {prompt_logprob.top.begin(), prompt_logprob.top.end()}});
    live.prompt_logprob_tokens = owners[i].position + 1;
  }
}

// What a row gives is kept until its prompt is computed.
void EngineCore::CollectPools(const InFlightStep& flight, const runtime::StepResult& result) {
  for (std::size_t i = 0; i < flight.pool_owners.size(); ++i) {
    ScheduledRequest& live = *flight.pool_owners[i].request;
    const std::span<const float> sum = result.pools[i];
    if (live.ended || sum.empty()) continue;
    live.pooled.assign(sum.begin(), sum.end());
    if (live.request.pooling != Pooling::kMean) continue;
    const auto tokens = static_cast<float>(live.first().prompt_tokens);
    for (float& value : live.pooled) value /= tokens;
  }
}

// Requests that do not generate end with their prompts.
void EngineCore::FinishPrompts(const InFlightStep& flight, absl::Time now) {
  for (const PlannedPrefill& prefill : flight.plan.prefills) {
    Sequence& sequence = *prefill.sequence;
    ScheduledRequest& live = *sequence.request;
    if (live.request.generates() || sequence.finished() || sequence.computed < sequence.total()) {
      continue;
    }
    if (live.request.task == Task::kEmbed) {
      Emit(OutputItem::Kind::kPooled, live, now).pooled = std::move(live.pooled);
    }
    scheduler_.Finish(sequence);
    FinishRequest(live, now);
  }
}

void EngineCore::CollectSamples(const InFlightStep& flight, const runtime::StepResult& result,
                                absl::Time now) {
  const std::vector<SampleOwner>& owners = flight.sample_owners;
  for (const SampleOwner& owner : owners) --owner.sequence->samples_in_flight;
  for (std::size_t i = 0; i < owners.size();) {
    Sequence& sequence = *owners[i].sequence;
    ScheduledRequest& live = *sequence.request;
    if (result.samples[i].unsampled && !sequence.finished()) {
      probe_->AddDiscarded(DiscardCause::kLateMask, 1);
      i += live.forked ? 1 : live.sequences.size();
      continue;
    }
    if (sequence.finished()) {
      // It balances the sum of step tokens (docs/metrics.md), where a first token has no part.
      if (flight.batch.samples[i].row.position > sequence.prompt_tokens) {
        probe_->AddDiscarded(
            sequence.completed ? DiscardCause::kAfterStop : DiscardCause::kCancelled, 1);
      }
      ++i;
      continue;
    }
    if (live.forked) {
      AppendToken(sequence, result.samples[i], now);
      ++i;
      continue;
    }
    ForkRequest(live);
    for (const auto& choice : live.sequences) AppendToken(*choice, result.samples[i++], now);
  }
}

// The prompt is computed, and the first tokens of all choices are sampled from one row of logits.
void EngineCore::ForkRequest(ScheduledRequest& live) {
  const Sequence& parent = live.first();
  for (std::size_t c = 1; c < live.sequences.size(); ++c) {
    Sequence& child = *live.sequences[c];
    child.tokens.reserve(parent.tokens.capacity());
    child.tokens.assign(parent.tokens.begin(), parent.tokens.end());
    child.marked_tokens = parent.marked_tokens;
    child.keys = parent.keys;
    child.history.CopyFrom(parent.history);
  }
  scheduler_.Fork(live);
  for (const auto& choice : live.sequences) {
    if (choice->state() == SequenceState::kPreempted) probe_->Preempted();
  }
}

void EngineCore::AppendToken(Sequence& sequence, const runtime::StepToken& token, absl::Time now) {
  ScheduledRequest& live = *sequence.request;
  sequence.Append(token.token);
  if (live.uses_history()) sequence.history.AddOutput(token.token);
  live.progress().output_tokens.fetch_add(1, std::memory_order_relaxed);
  const std::optional<FinishReason> finish = FinishAfter(sequence);
  OutputItem& item = Emit(OutputItem::Kind::kToken, live, now);
  live.accepted->in_ring_tokens.fetch_add(1, std::memory_order_acq_rel);
  item.choice = sequence.choice;
  item.token = {.token = token.token,
                .logprob = token.logprob,
                .rank = token.rank,
                .processed_logprob = token.processed_logprob,
                .top = {token.top.begin(), token.top.end()}};
  item.finish = finish;
  if (finish.has_value()) {
    FillEnd(sequence, &item);
    FinishChoice(sequence, now);
    return;
  }
  if (sequence.mask != nullptr) masks_.Advance(sequence.mask, token.token);
  if (sequence.state() == SequenceState::kPrefill) scheduler_.StartDecode(sequence);
}

std::optional<FinishReason> EngineCore::FinishAfter(const Sequence& sequence) const {
  const ScheduledRequest& live = *sequence.request;
  const std::int32_t token = sequence.tokens.back();
  const bool ends = std::find(live.prompt.end_ids.begin(), live.prompt.end_ids.end(), token) !=
                    live.prompt.end_ids.end();
  if (ends) {
    const bool is_eos = !live.request.stopping.ignore_eos &&
                        std::find(options_.eos_token_ids.begin(), options_.eos_token_ids.end(),
                                  token) != options_.eos_token_ids.end();
    return is_eos ? FinishReason::kEos : FinishReason::kStopToken;
  }
  if (sequence.output_tokens() < live.prompt.max_tokens) return std::nullopt;
  return live.prompt.clipped_by_context ? FinishReason::kContextFull : FinishReason::kLength;
}

void EngineCore::FillEnd(const Sequence& sequence, OutputItem* item) const {
  item->choice = sequence.choice;
  item->preemptions = sequence.preemptions;
  item->recomputed_tokens = sequence.recomputed_tokens;
}

// The choice's pages go back at once; the request ends with its last choice.
void EngineCore::FinishChoice(Sequence& sequence, absl::Time now) {
  ScheduledRequest& live = *sequence.request;
  const double tokens = sequence.output_tokens();
  const double mean = mean_answer_tokens_.value_or(tokens);
  mean_answer_tokens_ = mean + (tokens - mean) / kAnswersInMean;
  scheduler_.Finish(sequence);
  if (live.live_choices > 0) {
    RefreshGauge(live);
    return;
  }
  FinishRequest(live, now);
}

void EngineCore::FinishRequest(ScheduledRequest& live, absl::Time now) {
  scheduler_.Remove(live, /*invalidate=*/false);
  probe_->Completed(live.is_counted_running());
  End(live, absl::OkStatus(), /*was_accepted=*/true, now);
}

}  // namespace quire::engine
