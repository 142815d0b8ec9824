// The numbers that the engine shows of itself: gauges of requests, step metrics, EngineStats.

#include "engine/step/engine_stats.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/step/engine_core.h"

namespace quire::engine {
namespace {

// Retry delays are seconds; what they count is looked at more often than that, and not every step.
constexpr absl::Duration kBetweenLimiterUpdates = absl::Milliseconds(10);
constexpr absl::Duration kBetweenWallLooks = absl::Milliseconds(10);

}  // namespace

absl::Status IntegrityReport::status() const {
  return failures.empty() ? absl::OkStatus() : absl::InternalError(failures.front());
}

void EngineCore::RefreshGauge(ScheduledRequest& live) {
  const bool runs = std::any_of(live.sequences.begin(), live.sequences.end(),
                                [](const auto& sequence) { return sequence->row.has_value(); });
  if (runs == live.is_counted_running()) return;
  live.progress().is_counted_running.store(runs, std::memory_order_relaxed);
  running_ += runs ? 1 : -1;
  waiting_ += runs ? -1 : 1;
  if (runs) {
    probe_->MoveToRunning();
  } else {
    probe_->MoveToWaiting();
  }
}

// An overlapped step begins for the clock when the one before it has ended.
void EngineCore::AfterStep(const InFlightStep& flight, absl::Time collected) {
  const absl::Time now = clock_->Now();
  const StepPlan& plan = flight.plan;
  const StepKind kind = plan.prefills.empty()  ? StepKind::kDecode
                        : plan.decodes.empty() ? StepKind::kPrefill
                                               : StepKind::kMixed;
  const std::size_t sequences = plan.decodes.size() + plan.prefills.size();
  max_step_sequences_ = std::max(max_step_sequences_, static_cast<std::int32_t>(sequences));
  const absl::Duration wall = now - std::max(flight.start, last_step_);
  if (flight.launch_error.ok()) scheduler_.LearnStepTime(plan.work, wall);
  probe_->StepRan({.kind = kind,
                   .num_tokens = plan.num_tokens,
                   .num_sequences = static_cast<std::uint32_t>(sequences),
                   .wall = wall,
                   .schedule = flight.planned - flight.start,
                   .prepare = flight.launched - flight.planned,
                   .output = now - collected,
                   .expected = flight.expected},
                  now + WallOffset(now));
  const std::uint32_t decode_tokens =
      static_cast<std::uint32_t>(plan.decodes.size()) * kDecodeTokens;
  prompt_rate_.Add(now, plan.num_tokens - decode_tokens);
  generation_rate_.Add(now, static_cast<std::int64_t>(flight.sample_owners.size()));
  ShowWork(now);
  last_step_ = now;
}

// The pages and the work that is waiting, after a step, or after choices that ended without one.
void EngineCore::ShowWork(absl::Time now) {
  probe_->ShowCache(cache_->stats(), EvictionCause::kAllocation);
  probe_->ShowWaitingTokens(scheduler_.waiting_uncached_tokens());
  // The last step before a pause leaves nothing to count.
  if (now >= limiter_told_at_ + kBetweenLimiterUpdates || running_ + waiting_ == 0) {
    limiter_told_at_ = now;
    queue_->Update({.prompt_tokens = scheduler_.waiting_uncached_tokens(),
                    .output_tokens = ExpectedOutputTokens(),
                    .prompt_tokens_per_second = prompt_rate_.PerSecond(now),
                    .output_tokens_per_second = generation_rate_.PerSecond(now)});
  }
}

// What the wall clock shows beyond the monotonic one, as of the last 10 ms: asking both
// at every step would cost more than a percent of a short one.
absl::Duration EngineCore::WallOffset(absl::Time now) {
  if (now >= wall_asked_at_ + kBetweenWallLooks) {
    wall_asked_at_ = now;
    wall_offset_ = clock_->ToWall(now) - now;
  }
  return wall_offset_;
}

// Of what runs and of what waits. An answer is expected to be as long as the ones that have ended
// were on average, and never longer than it may be.
std::int64_t EngineCore::ExpectedOutputTokens() const {
  std::int64_t expected = 0;
  const auto add = [&](const Sequence* sequence) {
    if (sequence->finished()) return;
    const double most = sequence->request->prompt.max_tokens;
    const double length =
        mean_answer_tokens_.has_value() ? std::min(*mean_answer_tokens_, most) : most;
    expected += std::max(std::llround(length) - sequence->output_tokens(), 0LL);
  };
  for (const Sequence* sequence : scheduler_.running()) add(sequence);
  for (const Sequence* sequence : scheduler_.preempted()) add(sequence);
  const std::int64_t most = scheduler_.waiting_output_tokens();
  if (!mean_answer_tokens_.has_value()) return expected + most;
  const double choices = static_cast<double>(scheduler_.waiting_choices());
  return expected + std::min<std::int64_t>(std::llround(choices * *mean_answer_tokens_), most);
}

EngineStats EngineCore::Stats(absl::Time now) const {
  EngineStats stats;
  stats.running = running_;
  stats.waiting = waiting_;
  stats.waiting_uncached_tokens = scheduler_.waiting_uncached_tokens();
  stats.blocked_admissions = scheduler_.blocked_admissions();
  stats.cache = cache_->stats();
  stats.prompt_tokens_per_second = prompt_rate_.PerSecond(now);
  stats.generation_tokens_per_second = generation_rate_.PerSecond(now);
  stats.steps = steps_;
  stats.overlap_steps = overlap_steps_;
  stats.preemptions = probe_->preemptions();
  stats.chunked_prefills = chunked_prefills_;
  stats.max_step_sequences = max_step_sequences_;
  stats.last_step_age = now - last_step_;
  stats.early_ends = early_ends_;
  return stats;
}

}  // namespace quire::engine
