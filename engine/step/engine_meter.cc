#include "engine/step/engine_meter.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace quire::engine {
namespace {

// Reports to the limiter are at least this far apart. The limiter's retry delays are a second or
// more, so a report per step is not needed.
constexpr absl::Duration kBetweenLimiterUpdates = absl::Milliseconds(10);
constexpr absl::Duration kBetweenWallReads = absl::Milliseconds(10);
// Window of the moving average of output lengths: a new length has the weight 1 / kAnswersInMean.
constexpr double kAnswersInMean = 16;

}  // namespace

EngineMeter::EngineMeter(const Parts& parts)
    : cache_(parts.cache),
      scheduler_(parts.scheduler),
      clock_(parts.clock),
      limiter_(parts.limiter),
      probe_(parts.probe),
      last_step_(clock_->Now()) {}

void EngineMeter::CountAccepted() {
  probe_->requests.Accepted();
  ++num_waiting_;
}

void EngineMeter::RefreshGauge(ScheduledRequest& live) {
  const bool runs = std::any_of(live.sequences.begin(), live.sequences.end(),
                                [](const auto& sequence) { return sequence->row.has_value(); });
  if (runs == live.is_counted_running()) return;
  live.progress().is_counted_running.store(runs, std::memory_order_relaxed);
  num_running_ += runs ? 1 : -1;
  num_waiting_ += runs ? -1 : 1;
  if (runs) {
    probe_->requests.MoveToRunning();
  } else {
    probe_->requests.MoveToWaiting();
  }
}

void EngineMeter::CountEnd(const ScheduledRequest& live) {
  --(live.is_counted_running() ? num_running_ : num_waiting_);
}

void EngineMeter::CountEarlyEnd(RequestState state, CancelSource source) {
  ++early_ends_[static_cast<std::size_t>(state)][static_cast<std::size_t>(source)];
}

void EngineMeter::CountFinishedChoice(std::int32_t output_tokens) {
  const double mean = mean_answer_tokens_.value_or(output_tokens);
  mean_answer_tokens_ = mean + (output_tokens - mean) / kAnswersInMean;
}

absl::Duration EngineMeter::CountStep(const InFlightStep& flight, absl::Time collect_start) {
  const absl::Time now = clock_->Now();
  const StepPlan& plan = flight.plan;
  const StepKind kind = plan.prefills.empty()  ? StepKind::kDecode
                        : plan.decodes.empty() ? StepKind::kPrefill
                                               : StepKind::kMixed;
  const std::size_t sequences = plan.decodes.size() + plan.prefills.size();
  max_step_sequences_ = std::max(max_step_sequences_, static_cast<std::int32_t>(sequences));
  const absl::Duration wall = now - std::max(flight.start, last_step_);
  probe_->steps.StepRan({.kind = kind,
                         .num_tokens = plan.num_tokens,
                         .num_sequences = static_cast<std::uint32_t>(sequences),
                         .wall = wall,
                         .schedule = flight.planned - flight.start,
                         .prepare = flight.launched - flight.planned,
                         .output = now - collect_start,
                         .expected = flight.expected},
                        now + WallOffset(now));
  prompt_rate_.Add(now, plan.prompt_tokens());
  generation_rate_.Add(now, static_cast<std::int64_t>(flight.sample_owners.size()));
  PublishWork(now);
  last_step_ = now;
  return wall;
}

void EngineMeter::PublishWork(absl::Time now) {
  PublishCacheStats(EvictionCause::kAllocation);
  const std::int64_t waiting_tokens = scheduler_->admission().waiting_work().uncached_tokens;
  probe_->requests.ShowWaitingTokens(waiting_tokens);
  // The state without any request is always reported, because no later step would report it.
  if (now >= limiter_update_time_ + kBetweenLimiterUpdates || num_running_ + num_waiting_ == 0) {
    limiter_update_time_ = now;
    limiter_->Update({.prompt_tokens = waiting_tokens,
                      .output_tokens = ExpectedOutputTokens(),
                      .prompt_tokens_per_second = prompt_rate_.PerSecond(now),
                      .output_tokens_per_second = generation_rate_.PerSecond(now)});
  }
}

// Returns the wall clock minus the monotonic clock, at most 10 ms old. Reading both clocks at every
// step would take more than 1 % of a short step.
absl::Duration EngineMeter::WallOffset(absl::Time now) {
  if (now >= wall_read_time_ + kBetweenWallReads) {
    wall_read_time_ = now;
    wall_offset_ = clock_->ToWall(now) - now;
  }
  return wall_offset_;
}

// Returns the number of tokens that running and waiting choices are expected to generate. A choice
// is expected to reach the mean length of earlier choices, but at most its max_tokens.
std::int64_t EngineMeter::ExpectedOutputTokens() const {
  std::int64_t expected = 0;
  const auto add = [&](const Sequence* sequence) {
    if (sequence->finished()) return;
    const double most = sequence->request->prompt.max_tokens;
    const double length =
        mean_answer_tokens_.has_value() ? std::min(*mean_answer_tokens_, most) : most;
    expected += std::max(std::llround(length) - sequence->output_tokens(), 0LL);
  };
  for (const Sequence* sequence : scheduler_->running()) add(sequence);
  for (const Sequence* sequence : scheduler_->preempted()) add(sequence);
  const WaitingWork& waiting = scheduler_->admission().waiting_work();
  const std::int64_t most = waiting.max_output_tokens;
  if (!mean_answer_tokens_.has_value()) return expected + most;
  const double choices = static_cast<double>(waiting.choices);
  return expected + std::min<std::int64_t>(std::llround(choices * *mean_answer_tokens_), most);
}

EngineStats EngineMeter::Stats(absl::Time now) const {
  EngineStats stats;
  stats.running = num_running_;
  stats.waiting = num_waiting_;
  stats.waiting_uncached_tokens = scheduler_->admission().waiting_work().uncached_tokens;
  stats.blocked_admissions = scheduler_->admission().blocked_admissions();
  stats.cache = cache_->stats();
  stats.prompt_tokens_per_second = prompt_rate_.PerSecond(now);
  stats.generation_tokens_per_second = generation_rate_.PerSecond(now);
  stats.preemptions = probe_->steps.preemptions();
  stats.max_step_sequences = max_step_sequences_;
  stats.last_step_age = now - last_step_;
  stats.early_ends = early_ends_;
  return stats;
}

absl::Status EngineMeter::CheckIntegrity(std::span<const ScheduledRequest* const> live) const {
  std::int32_t running = 0, accepted = 0;
  for (const ScheduledRequest* request : live) {
    accepted += request->is_prepared() ? 1 : 0;
    running += request->is_counted_running() ? 1 : 0;
  }
  if (running == num_running_ && accepted - running == num_waiting_) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(accepted, " requests are accepted and ", running, " run, but ", num_running_,
                   " are counted as running and ", num_waiting_, " as waiting"));
}

}  // namespace quire::engine
