#include "engine/step/step_collector.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/error_reason.h"

namespace quire::engine {
namespace {

bool IsFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// Returns the sequences that have ended since the launch and whose results are not finite.
std::vector<const Sequence*> FindEndedNonFinite(const InFlightStep& flight,
                                                const runtime::StepResult& result) {
  std::vector<const Sequence*> poisoned;
  const auto add = [&](bool is_finite, bool has_ended, const Sequence& sequence) {
    if (!is_finite && has_ended && !sequence.invalidated) poisoned.push_back(&sequence);
  };
  for (std::size_t i = 0; i < flight.sample_owners.size(); ++i) {
    const Sequence& sequence = *flight.sample_owners[i];
    add(!result.samples[i].non_finite, sequence.finished(), sequence);
  }
  for (std::size_t i = 0; i < flight.prompt_logprob_owners.size(); ++i) {
    ScheduledRequest& live = *flight.prompt_logprob_owners[i].request;
    add(!result.prompt_logprobs[i].non_finite, live.ended, live.first());
  }
  for (std::size_t i = 0; i < flight.pool_owners.size(); ++i) {
    ScheduledRequest& live = *flight.pool_owners[i];
    add(IsFinite(result.pools[i]), live.ended, live.first());
  }
  return poisoned;
}

// Returns the number of leading tokens that FailBadRows has proven finite. `computed` is the number
// of tokens that the sequence has after the step. A finite result of a token proves this token and
// all before it. Generation samples from the last token. Scoring uses the logits of the token
// before the last one. Pooling uses the last token, or the first one for kCls.
std::uint32_t ProvenTokens(const ScheduledRequest& live, std::uint32_t computed) {
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

OutputItem::Logprob LogprobOf(const runtime::StepToken& token) {
  return {.token = token.token,
          .logprob = token.logprob,
          .rank = token.rank,
          .processed_logprob = token.processed_logprob,
          .top = {token.top.begin(), token.top.end()}};
}

// Stores the pooled result of each row until its whole prompt is computed.
void CollectPools(const InFlightStep& flight, const runtime::StepResult& result) {
  for (std::size_t i = 0; i < flight.pool_owners.size(); ++i) {
    ScheduledRequest& live = *flight.pool_owners[i];
    const std::span<const float> sum = result.pools[i];
    if (live.ended || sum.empty()) continue;
    live.pooled.assign(sum.begin(), sum.end());
    if (live.request.pooling != Pooling::kMean) continue;
    const auto tokens = static_cast<float>(live.first().prompt_tokens);
    for (float& value : live.pooled) value /= tokens;
  }
}

// Returns the error message of a request whose fields together exclude every token.
std::string DescribeExclusion(const ScheduledRequest& live) {
  std::vector<absl::string_view> fields;
  if (live.prompt.mask_rules.constraint != nullptr) fields.push_back("constraint");
  if (live.prompt.mask_rules.allowed != nullptr) fields.push_back("sampling.allowed_token_ids");
  if (!live.request.sampling.banned_text.empty()) fields.push_back("sampling.banned_text");
  if (live.request.stopping.min_tokens > 0) fields.push_back("stopping.min_tokens");
  if (fields.empty()) fields.push_back("the request");
  return absl::StrCat(absl::StrJoin(fields, " and "), fields.size() == 1 ? " excludes" : " exclude",
                      " every token of the vocabulary");
}

}  // namespace

StepCollector::StepCollector(std::vector<std::int32_t> eos_token_ids, const Parts& parts)
    : eos_token_ids_(std::move(eos_token_ids)),
      cache_(parts.cache),
      scheduler_(parts.scheduler),
      masks_(parts.masks),
      lifecycle_(parts.lifecycle),
      output_(parts.output),
      probe_(parts.probe) {}

bool StepCollector::InvalidateEnded(const InFlightStep& flight, const runtime::StepResult& result) {
  const std::vector<const Sequence*> poisoned = FindEndedNonFinite(flight, result);
  if (!poisoned.empty()) probe_->cache.Update(cache_->stats(), EvictionCause::kAllocation);
  for (const Sequence* sequence : poisoned) {
    cache_->Invalidate(sequence->request->prompt.root, sequence->cache_tokens(), sequence->keys,
                       sequence->proven_tokens);
  }
  return !poisoned.empty();
}

void StepCollector::Collect(const InFlightStep& flight, const runtime::StepResult& result,
                            absl::Time now) {
  QUIRE_CHECK(result.samples.size() == flight.sample_owners.size());
  QUIRE_CHECK(result.prompt_logprobs.size() == flight.prompt_logprob_owners.size());
  QUIRE_CHECK(result.pools.size() == flight.pool_owners.size());
  ++steps_;
  FailBadRows(flight, result, now);
  std::size_t next = 0;
  flight.plan.ForEachRow(
      [&](const PlannedRow& row) { Advance(*row.sequence, flight.batch.rows[next++]); });
  CollectPromptLogprobs(flight, result, now);
  CollectPools(flight, result);
  FinishPrompts(flight, now);
  CollectSamples(flight, result, now);
}

void StepCollector::FailNonFinite(ScheduledRequest& live, absl::string_view what, absl::Time now) {
  probe_->steps.NonFinite();
  lifecycle_->Fail(
      live,
      WithReason(absl::DataLossError(absl::StrCat(what, " contain NaN or infinity")),
                 Reason::kNonFiniteLogits,
                 {{"incident_id", absl::StrCat("step-", steps_)}, {"step", absl::StrCat(steps_)}}),
      /*invalidate=*/true, now);
}

// Runs before anything of the step is published.
void StepCollector::FailBadRows(const InFlightStep& flight, const runtime::StepResult& result,
                                absl::Time now) {
  auto check = [&](const runtime::StepToken& token, ScheduledRequest& live) {
    if (live.ended || (!token.non_finite && !token.no_survivor)) return;
    if (token.non_finite) {
      FailNonFinite(live, "logits", now);
    } else {
      std::vector<std::pair<std::string, std::string>> metadata = {{"stage", "decode"}};
      if (live.prompt.mask_rules.allowed != nullptr) {
        metadata.emplace_back("field", "sampling.allowed_token_ids");
      }
      lifecycle_->Fail(live,
                       WithReason(absl::InvalidArgumentError(DescribeExclusion(live)),
                                  Reason::kBadConstraint, metadata),
                       /*invalidate=*/false, now);
    }
  };
  // A request that fails here is freed when the next step begins, so the owners of results stay
  // valid.
  for (std::size_t i = 0; i < result.prompt_logprobs.size(); ++i) {
    check(result.prompt_logprobs[i], *flight.prompt_logprob_owners[i].request);
  }
  for (std::size_t i = 0; i < result.pools.size(); ++i) {
    ScheduledRequest& live = *flight.pool_owners[i];
    if (!live.ended && !IsFinite(result.pools[i])) FailNonFinite(live, "hidden states", now);
  }
  for (std::size_t i = 0; i < result.samples.size(); ++i) {
    const Sequence& sequence = *flight.sample_owners[i];
    // A choice that has ended may have a surplus row, whose result is ignored.
    if (!sequence.finished()) check(result.samples[i], *sequence.request);
  }
}

// Counts the row's tokens as computed, because their K and V are now in pages, even if the sequence
// has ended.
void StepCollector::Advance(Sequence& sequence, const runtime::StepRow& row) {
  // The last token of a row that was not sampled is counted later, when it is recomputed.
  const std::uint32_t unsampled = sequence.awaits_mask && !sequence.finished() ? 1 : 0;
  const std::uint32_t begin = row.cache_length;
  const std::uint32_t end = begin + row.num_tokens - unsampled;
  const std::uint32_t recomputed =
      std::min(end, sequence.high_water) - std::min(begin, sequence.high_water);
  const std::uint32_t in_prompt =
      std::min(end, sequence.prompt_tokens) -
      std::min(std::max(begin, sequence.high_water), sequence.prompt_tokens);
  if (recomputed > 0) {
    probe_->steps.Recomputed(recomputed);
    sequence.recomputed_tokens += static_cast<std::int32_t>(recomputed);
  }
  if (end > sequence.high_water && in_prompt > 0) probe_->steps.PromptComputed(in_prompt);
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
  scheduler_->ReleaseOutsideWindow(sequence);
}

void StepCollector::CollectPromptLogprobs(const InFlightStep& flight,
                                          const runtime::StepResult& result, absl::Time now) {
  const std::vector<PromptLogprobOwner>& owners = flight.prompt_logprob_owners;
  OutputItem* item = nullptr;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    ScheduledRequest& live = *owners[i].request;
    if (live.ended) continue;
    if (i == 0 || owners[i - 1].request != &live) {
      item = &output_->Add(OutputItem::Kind::kPromptLogprobs, live, now);
      item->start_position = static_cast<std::int32_t>(owners[i].position);
    }
    item->prompt_logprobs.push_back(LogprobOf(result.prompt_logprobs[i]));
    live.prompt_logprob_tokens = owners[i].position + 1;
  }
}

// Ends the requests that do not generate and whose prompts are computed.
void StepCollector::FinishPrompts(const InFlightStep& flight, absl::Time now) {
  for (const PlannedRow& prefill : flight.plan.prefills) {
    Sequence& sequence = *prefill.sequence;
    ScheduledRequest& live = *sequence.request;
    if (live.request.generates() || sequence.finished() || sequence.computed < sequence.total()) {
      continue;
    }
    if (live.request.task == Task::kEmbed) {
      output_->Add(OutputItem::Kind::kPooled, live, now).pooled = std::move(live.pooled);
    }
    scheduler_->Finish(sequence);
    lifecycle_->FinishRequest(live, now);
  }
}

void StepCollector::CollectSamples(const InFlightStep& flight, const runtime::StepResult& result,
                                   absl::Time now) {
  const std::vector<Sequence*>& owners = flight.sample_owners;
  for (Sequence* owner : owners) --owner->samples_in_flight;
  for (std::size_t i = 0; i < owners.size();) {
    Sequence& sequence = *owners[i];
    ScheduledRequest& live = *sequence.request;
    if (result.samples[i].unsampled && !sequence.finished()) {
      probe_->steps.AddDiscarded(DiscardCause::kLateMask, 1);
      i += live.forked ? 1 : live.sequences.size();
      continue;
    }
    if (sequence.finished()) {
      // Counts the discarded token, so that the sum of step tokens balances (docs/metrics.md). The
      // sum does not include first tokens.
      if (flight.batch.samples[i].row.position > sequence.prompt_tokens) {
        probe_->steps.AddDiscarded(
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
    Fork(live);
    for (const auto& choice : live.sequences) AppendToken(*choice, result.samples[i++], now);
  }
}

// Called when the prompt is computed and the first tokens of all choices were sampled from one row
// of logits.
void StepCollector::Fork(ScheduledRequest& live) {
  const Sequence& parent = live.first();
  for (std::size_t c = 1; c < live.sequences.size(); ++c) {
    Sequence& child = *live.sequences[c];
    child.tokens.reserve(parent.tokens.capacity());
    child.tokens.assign(parent.tokens.begin(), parent.tokens.end());
    child.tagged_tokens = parent.tagged_tokens;
    child.keys = parent.keys;
    child.history.CopyFrom(parent.history);
  }
  scheduler_->Fork(live);
  for (const auto& choice : live.sequences) {
    if (choice->state() == SequenceState::kPreempted) probe_->steps.Preempted();
  }
}

void StepCollector::AppendToken(Sequence& sequence, const runtime::StepToken& token,
                                absl::Time now) {
  ScheduledRequest& live = *sequence.request;
  sequence.Append(token.token);
  if (live.uses_history()) sequence.history.AddOutput(token.token);
  live.progress().output_tokens.fetch_add(1, std::memory_order_relaxed);
  const std::optional<FinishReason> finish = FinishAfter(sequence);
  OutputItem& item = output_->Add(OutputItem::Kind::kToken, live, now);
  live.accepted->in_ring_tokens.fetch_add(1, std::memory_order_acq_rel);
  item.choice = sequence.choice;
  item.token = LogprobOf(token);
  item.finish = finish;
  if (finish.has_value()) {
    CopyChoiceCounters(sequence, &item);
    lifecycle_->FinishChoice(sequence, now);
    return;
  }
  masks_->Advance(sequence, token.token);
  if (sequence.state() == SequenceState::kPrefill) scheduler_->StartDecode(sequence);
}

std::optional<FinishReason> StepCollector::FinishAfter(const Sequence& sequence) const {
  const ScheduledRequest& live = *sequence.request;
  const std::int32_t token = sequence.tokens.back();
  const bool ends = std::find(live.prompt.end_ids.begin(), live.prompt.end_ids.end(), token) !=
                    live.prompt.end_ids.end();
  if (ends) {
    const bool is_eos = !live.request.stopping.ignore_eos &&
                        std::ranges::find(eos_token_ids_, token) != eos_token_ids_.end();
    return is_eos ? FinishReason::kEos : FinishReason::kStopToken;
  }
  if (sequence.output_tokens() < live.prompt.max_tokens) return std::nullopt;
  return live.prompt.clipped_by_context ? FinishReason::kContextFull : FinishReason::kLength;
}

}  // namespace quire::engine
