#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "engine/engine_thread.h"
#include "engine/output/output_stage.h"
#include "engine/request/inbox.h"
#include "engine/request/text_stage.h"
#include "runtime/step/step_runner.h"

namespace quire::engine {
namespace {

// `running`: max_running_sequences at the start.
std::size_t TableCapacity(const HotOptions& options, std::int32_t running) {
  return static_cast<std::size_t>(options.max_queued_requests) +
         4 * static_cast<std::size_t>(running);
}

// Returns twice the number of items that two steps and the ends of all live requests can add.
std::size_t RingItems(const HotOptions& options, std::int32_t running) {
  return 8 * (TableCapacity(options, running) + static_cast<std::size_t>(running)) + 128;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<cache::CacheManager> cache,
                                                       runtime::StepRunner* runner,
                                                       const text::Tokenizer* tokenizer,
                                                       const Clock* clock,
                                                       probe::Registry* metrics) {
  QUIRE_RETURN_IF_ERROR(CheckOptions(options, cache->page_size()));
  const int steps = std::min(options.max_steps_in_flight, runner->max_steps_in_flight());
  if (cache->has_states() && steps > 1) {
    return absl::UnimplementedError(absl::StrCat(
        "max_steps_in_flight is ", steps,
        ", it must be 1 for a model with recurrent layers, because a discarded step would have "
        "changed their states"));
  }
  return std::unique_ptr<Engine>(
      new Engine(options, std::move(cache), runner, tokenizer, clock, metrics));
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<cache::CacheManager> cache,
               runtime::StepRunner* runner, const text::Tokenizer* tokenizer, const Clock* clock,
               probe::Registry* metrics)
    : options_(options),
      cache_(std::move(cache)),
      clock_(clock),
      inbox_(std::make_shared<Inbox>()),
      probe_(metrics, {.model_name = options.model_id,
                       .max_context_tokens = options.max_context_tokens,
                       .page_size = cache_->page_size(),
                       .num_pages = cache_->usable_pages(),
                       .kv_dtype = options.kv_dtype}),
      limiter_(options.max_queued_requests, options.max_queued_tokens),
      table_(TableCapacity(options, options.max_running_sequences)),
      hot_(options) {
  limiter_.SetLimits(options.max_queued_requests, options.max_queued_tokens, options.tenants);
  probe_.requests.ShowMaxRunning(options.max_running_sequences);
  output_ = std::make_unique<OutputStage>(
      OutputStageOptions{.num_workers = options.text_threads,
                         .ring_items = RingItems(options, options.max_running_sequences),
                         .stream_queue_tokens = options.stream_queue_tokens,
                         .id_key = cache_->hash_key()},
      tokenizer, clock, &table_, &probe_, inbox_);
  text_ = std::make_unique<TextStage>(options_,
                                      CacheShape{.hash_key = cache_->hash_key(),
                                                 .page_size = cache_->page_size(),
                                                 .usable_pages = cache_->usable_pages(),
                                                 .demand = cache_->demand()},
                                      tokenizer, clock, &limiter_, &probe_, inbox_);
  intake_ = std::make_unique<RequestIntake>(options_, runner->can_pool(),
                                            RequestIntake::Parts{.clock = clock,
                                                                 .hot = &hot_,
                                                                 .state = &state_,
                                                                 .limiter = &limiter_,
                                                                 .table = &table_,
                                                                 .text = text_.get(),
                                                                 .probe = &probe_,
                                                                 .inbox = inbox_,
                                                                 .unread = unread_answers_});
  thread_ =
      std::make_unique<EngineThread>(options_, EngineThread::Parts{.cache = cache_.get(),
                                                                   .runner = runner,
                                                                   .clock = clock,
                                                                   .hot = &hot_,
                                                                   .state = &state_,
                                                                   .limiter = &limiter_,
                                                                   .table = &table_,
                                                                   .output = output_.get(),
                                                                   .probe = &probe_,
                                                                   .inbox = inbox_,
                                                                   .unread = unread_answers_});
}

Engine::~Engine() {
  state_.store(EngineState::kStopped);
  text_->Stop();
  thread_->Stop();
  output_->Stop();
}

absl::StatusOr<std::shared_ptr<TokenStream>> Engine::Accept(Request request,
                                                            QueueFullMetric queue_full_metric) {
  return intake_->Accept(std::move(request), queue_full_metric);
}

bool Engine::Cancel(const Caller& caller, absl::string_view id, CancelSource source,
                    const TokenStream* stream) {
  return intake_->Cancel(caller, id, source, stream);
}

absl::StatusOr<AbortResult> Engine::Abort(const AbortSelection& selection) {
  return intake_->Abort(selection);
}

std::vector<RequestInfo> Engine::ListRequests() const {
  return intake_->ListRequests();
}

void Engine::Drain() {
  EngineState ready = EngineState::kReady;
  state_.compare_exchange_strong(ready, EngineState::kDraining);
}

void Engine::Resume() {
  EngineState draining = EngineState::kDraining;
  state_.compare_exchange_strong(draining, EngineState::kReady);
}

bool Engine::WaitIdle(absl::Time deadline) {
  return table_.WaitEmpty(deadline == absl::InfiniteFuture() ? absl::InfiniteDuration()
                                                             : deadline - clock_->Now());
}

absl::Status Engine::PrepareHotOptions(const HotOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckHotOptions(options_, options, cache_->page_size()));
  const std::int32_t running = options_.max_running_sequences;
  output_->Reserve(RingItems(options, running));
  table_.Reserve(TableCapacity(options, running));
  return absl::OkStatus();
}

void Engine::SetHotOptions(const HotOptions& options) {
  limiter_.SetLimits(options.max_queued_requests, options.max_queued_tokens, options.tenants);
  text_->SetLimits(options);
  probe_.requests.ShowMaxRunning(options.max_running_sequences);
  hot_.Set(options);
  thread_->TakeHotOptions();
}

EngineStats Engine::GetStats() const {
  return thread_->GetStats();
}

absl::StatusOr<PageSnapshot> Engine::GetPageSnapshot() {
  return thread_->GetPageSnapshot();
}

absl::StatusOr<cache::FlushCounts> Engine::FlushCache(absl::Duration idle_timeout) {
  if (idle_timeout > absl::ZeroDuration() && !table_.WaitEmpty(idle_timeout)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "engine is not idle after ", absl::FormatDuration(idle_timeout))),
                      Reason::kNotIdle);
  }
  cache::FlushCounts counts;
  QUIRE_RETURN_IF_ERROR(thread_->Call([&](EngineCore& core) { counts = core.FlushCache(); }));
  return counts;
}

bool Engine::IsAlive(absl::Duration stall_timeout) const {
  return thread_->IsAlive(stall_timeout);
}

absl::StatusOr<IntegrityReport> Engine::InspectIntegrity() {
  IntegrityReport report;
  QUIRE_RETURN_IF_ERROR(thread_->Call([&](EngineCore& core) { report = core.CheckIntegrity(); }));
  return report;
}

absl::Status Engine::CheckIntegrity() {
  QUIRE_ASSIGN_OR_RETURN(const IntegrityReport report, InspectIntegrity());
  return report.status();
}

}  // namespace quire::engine
