#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/published.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "engine/output/output_stage.h"
#include "engine/output/unread_answers.h"
#include "engine/request/engine_options.h"
#include "engine/request/text_stage.h"
#include "engine/step/engine_core.h"

namespace quire::engine {
namespace {

// `running`: max_running_sequences at start, whatever it is now.
std::size_t TableCapacity(const HotOptions& options, std::int32_t running) {
  return static_cast<std::size_t>(options.max_queued_requests) +
         4 * static_cast<std::size_t>(running);
}

// More than two steps and the ends of all live requests can add, twice.
std::size_t RingItems(const HotOptions& options, std::int32_t running) {
  return 8 * (TableCapacity(options, running) + static_cast<std::size_t>(running)) + 128;
}

// The bound of its tenant: the lower a priority, the more urgent.
absl::Status CheckPriority(const Request& request, const TenantLimits& limits) {
  constexpr std::int32_t kMaxPriority = 100;
  const std::int32_t most_urgent = limits.most_urgent_priority.value_or(request.priority);
  if (request.priority >= most_urgent) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("priority is ", request.priority, ", tenant \"",
                                              request.tenant, "\" may ask for ", most_urgent,
                                              " to ", kMaxPriority, " (most_urgent_priority)")),
      Reason::kBadParameter,
      {{"field", "priority"},
       {"value", absl::StrCat(request.priority)},
       {"range", absl::StrCat(most_urgent, " to ", kMaxPriority)}});
}

absl::Status CheckTask(const Request& request, bool has_head, bool can_pool) {
  const bool can = request.task == Task::kEmbed ? can_pool : has_head;
  if (can) return absl::OkStatus();
  return WithReason(absl::UnimplementedError(
                        request.task == Task::kEmbed
                            ? "embedding is not computed on this device"
                            : "the model has no output matrix: it can embed, and nothing else"),
                    Reason::kFeatureUnsupported,
                    {{"feature", request.task == Task::kEmbed ? "embed" : "generate"}});
}

// How long a caller that wants to see the pages waits for the end of a step.
constexpr absl::Duration kSnapshotTimeout = absl::Seconds(1);

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, std::unique_ptr<cache::CacheManager> cache,
       runtime::StepRunner* runner, const text::Tokenizer* tokenizer, const Clock* clock,
       probe::Registry* metrics)
      : options_(options),
        can_pool_(runner->can_pool()),
        cache_(std::move(cache)),
        clock_(clock),
        inbox_(std::make_shared<Inbox>()),
        probe_(metrics, {.model_name = options.model_id,
                         .max_context_tokens = options.max_context_tokens,
                         .page_size = cache_->page_size(),
                         .num_pages = cache_->usable_pages(),
                         .kv_dtype = options.kv_dtype}),
        queue_(options.max_queued_requests, options.max_queued_tokens),
        table_(TableCapacity(options, options.max_running_sequences)),
        hot_(options),
        step_options_(options),
        core_(step_options_, cache_.get(), runner, clock, &queue_, &probe_),
        output_({.num_workers = options.text_threads,
                 .ring_items = RingItems(options, options.max_running_sequences),
                 .stream_queue_tokens = options.stream_queue_tokens,
                 .id_key = cache_->hash_key()},
                tokenizer, clock, &table_, &probe_, inbox_),
        text_(options_,
              {.hash_key = cache_->hash_key(),
               .page_size = cache_->page_size(),
               .usable_pages = cache_->usable_pages(),
               .demand = cache_->demand()},
              tokenizer, clock, &queue_, &probe_, inbox_) {
    queue_.SetTenants(options.tenants);
    core_.scheduler().SetOutputReady(
        [this](const AcceptedRequest& request) { return output_.IsReady(request); });
    PublishStats(clock->Now());
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    state_.store(EngineState::kStopped);
    text_.Stop();
    inbox_->Close();
    thread_.join();
    output_.Stop();
  }

  absl::StatusOr<std::shared_ptr<TokenStream>> Accept(Request request, WhenFull when_full) {
    if (when_full == WhenFull::kIsRefused) probe_.Received();
    absl::StatusOr<std::shared_ptr<TokenStream>> stream = TryAccept(std::move(request));
    if (when_full == WhenFull::kComesAgain) {
      if (IsFull(stream.status())) return stream;
      probe_.Received();
    }
    if (!stream.ok()) {
      const auto reason = GetErrorReason(stream.status());
      probe_.Rejected(reason.has_value() ? reason->reason : Reason::kEngineError);
    }
    return stream;
  }

  bool Cancel(const Caller& caller, absl::string_view id, CancelSource source,
              const TokenStream* stream) {
    const std::shared_ptr<AcceptedRequest> live = table_.Find(caller, id);
    if (live == nullptr || (stream != nullptr && live->stream.get() != stream)) return false;
    PostCancel(live, source, {});
    return true;
  }

  absl::StatusOr<AbortResult> Abort(const AbortSelection& selection);
  std::vector<RequestInfo> ListRequests() const;

  void Drain() {
    EngineState ready = EngineState::kReady;
    state_.compare_exchange_strong(ready, EngineState::kDraining);
  }
  void Resume() {
    EngineState draining = EngineState::kDraining;
    state_.compare_exchange_strong(draining, EngineState::kReady);
  }
  bool WaitIdle(absl::Time deadline) {
    return table_.WaitEmpty(deadline == absl::InfiniteFuture() ? absl::InfiniteDuration()
                                                               : deadline - clock_->Now());
  }

  absl::Status PrepareHotOptions(const HotOptions& options);
  void SetHotOptions(const HotOptions& options) {
    queue_.SetLimits(options.max_queued_requests, options.max_queued_tokens);
    queue_.SetTenants(options.tenants);
    text_.SetLimits(options);
    hot_.Set(options);
    hot_version_.fetch_add(1, std::memory_order_release);
    inbox_->Wake();
  }

  EngineStats GetStats() const {
    MutexLock lock(&stats_mutex_);
    EngineStats stats = stats_;
    stats.state = state_.load();
    stats.last_step_age += clock_->Now() - stats_time_;
    return stats;
  }

  absl::StatusOr<cache::FlushCounts> FlushCache(absl::Duration idle_timeout) {
    if (idle_timeout > absl::ZeroDuration() && !table_.WaitEmpty(idle_timeout)) {
      return WithReason(absl::FailedPreconditionError(absl::StrCat(
                            "engine is not idle after ", absl::FormatDuration(idle_timeout))),
                        Reason::kNotIdle);
    }
    cache::FlushCounts counts;
    QUIRE_RETURN_IF_ERROR(OnEngineThread([&] { counts = core_.FlushCache(); }));
    return counts;
  }

  bool IsAlive(absl::Duration stall_timeout) const {
    if (state_.load() == EngineState::kFailed) return false;
    return is_idle_.load(std::memory_order_acquire) || core_.heartbeat().age() < stall_timeout;
  }

  // The caller may time out before the engine thread answers, so the promise is shared.
  absl::StatusOr<PageSnapshot> GetPageSnapshot() {
    const auto answer = std::make_shared<std::promise<absl::StatusOr<PageSnapshot>>>();
    const auto call = [this, answer] { answer->set_value(DescribePages()); };
    if (!inbox_->Post({.kind = Signal::Kind::kCall, .request = nullptr, .call = call})) {
      return NoThreadError();
    }
    std::future<absl::StatusOr<PageSnapshot>> snapshot = answer->get_future();
    if (snapshot.wait_for(absl::ToChronoMilliseconds(kSnapshotTimeout)) !=
        std::future_status::ready) {
      return absl::DeadlineExceededError(absl::StrCat("the engine did not describe its pages in ",
                                                      absl::FormatDuration(kSnapshotTimeout)));
    }
    return snapshot.get();
  }

  absl::StatusOr<IntegrityReport> InspectIntegrity() {
    IntegrityReport report;
    QUIRE_RETURN_IF_ERROR(OnEngineThread([&] { report = core_.CheckIntegrity(); }));
    return report;
  }

 private:
  absl::Status CheckRequest(const Request& request, const HotOptions& hot) const;
  absl::Status CheckConstraint(const Request& request) const;
  absl::StatusOr<std::shared_ptr<TokenStream>> TryAccept(Request request);
  std::shared_ptr<AcceptedRequest> MakeAccepted(Request request, const HotOptions& hot);
  absl::Status TakePlace(const std::shared_ptr<AcceptedRequest>& live);
  void PostCancel(const std::shared_ptr<AcceptedRequest>& live, CancelSource source,
                  std::string text);
  absl::Status ShutdownError() const {
    return WithReason(absl::UnavailableError("server is shutting down"), Reason::kServerShutdown,
                      {}, queue_.RetryDelay());
  }
  // Of a call that the engine thread cannot answer any more.
  absl::Status NoThreadError() const { return died_.load() ? DeviceError() : ShutdownError(); }
  absl::StatusOr<PageSnapshot> DescribePages() {
    if (died_.load()) return DeviceError();
    return core_.DescribePages();
  }
  // Calls it between two steps. With an error, NoThreadError, nothing was called.
  absl::Status OnEngineThread(const std::function<void()>& call);
  void Run();
  void Loop();
  void TakeHotOptions();
  void HandleSignals(absl::Time now);
  void Deliver();
  void BeginFailure(const absl::Status& status);
  void FailDevice(absl::Time now);
  void FailThread(const std::string& what);
  bool EndWithoutCore();
  void Sleep();
  void PublishStats(absl::Time now);

  const EngineOptions options_;
  const bool can_pool_;
  const std::unique_ptr<cache::CacheManager> cache_;
  const Clock* const clock_;
  const std::shared_ptr<Inbox> inbox_;
  EngineProbe probe_;
  AdmissionLimiter queue_;
  RequestTable table_;
  const std::shared_ptr<UnreadAnswers> unread_ = std::make_shared<UnreadAnswers>();
  Published<HotOptions> hot_;
  std::atomic<std::uint64_t> hot_version_{0};
  std::uint64_t taken_hot_version_ = 0;  // engine thread only, as the next two
  EngineOptions step_options_;           // options_ with the hot part as steps have it
  EngineCore core_;
  OutputStage output_;
  TextStage text_;

  std::atomic<EngineState> state_{EngineState::kReady};
  std::atomic<bool> died_{false};  // the core is not to be used any more
  std::atomic<std::uint64_t> next_arrival_{1};
  std::atomic<bool> is_idle_{true};  // the engine thread sleeps, and no step is due
  mutable Mutex stats_mutex_;
  EngineStats stats_ ABSL_GUARDED_BY(stats_mutex_);
  absl::Time stats_time_ ABSL_GUARDED_BY(stats_mutex_);
  std::vector<Signal> signals_;  // engine thread, as the next two
  bool has_failed_ = false;      // on_failing was called
  std::vector<OutputItem> items_;
  std::thread thread_;
};

// quire throws nothing, but libraries may.
void Engine::Impl::Run() {
  SetThreadName("engine");
  std::string what;
  try {
    if (options_.on_engine_thread) options_.on_engine_thread();
    Loop();
    return;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "unknown exception";
  }
  FailThread(what);
}

// Everything that the engine does, in its order. Whether this is the last pass is known together
// with what it has to handle: a signal that came later was refused.
void Engine::Impl::Loop() {
  is_idle_.store(false, std::memory_order_release);
  while (true) {
    const bool stops = !inbox_->Drain(&signals_);
    TakeHotOptions();
    const absl::Time now = clock_->Now();
    HandleSignals(now);
    if (stops) {
      core_.Settle();
      core_.EndAll(now);
    }
    core_.Expire(now);
    unread_->Expire(now, step_options_.slow_client_timeout);
    const bool ran = core_.Step(now);
    Deliver();
    if (!core_.fatal().ok()) FailDevice(now);
    if (stops) return;
    if (!ran) Sleep();
  }
}

// Between two plans, and before the first request that came after SetHotOptions. A step that is in
// flight ends as it was planned.
void Engine::Impl::TakeHotOptions() {
  const std::uint64_t version = hot_version_.load(std::memory_order_acquire);
  if (version == taken_hot_version_) return;
  taken_hot_version_ = version;
  static_cast<HotOptions&>(step_options_) = *hot_.Get();
  cache_->SetPartialPageReuse(step_options_.partial_page_reuse);
  core_.scheduler().OptionsChanged();
}

void Engine::Impl::HandleSignals(absl::Time now) {
  for (Signal& signal : signals_) {
    if (signal.kind == Signal::Kind::kCall) {  // between two steps, with none in flight
      core_.Settle();
      PublishStats(clock_->Now());
    }
    core_.Handle(signal, now);
    signal.call = nullptr;
  }
  signals_.clear();
}

void Engine::Impl::Deliver() {
  core_.TakeOutput(&items_);
  PublishStats(clock_->Now());  // first: a client that sees its request end finds it in the numbers
  for (const OutputItem& item : items_) {
    if (item.kind == OutputItem::Kind::kRequestEnd) unread_->Add(*item.request, item.time);
  }
  output_.Push(&items_);
}

void Engine::Impl::BeginFailure(const absl::Status& status) {
  has_failed_ = true;
  state_.store(EngineState::kFailed);
  log::Error("engine", "the engine has failed", {{"status", status.ToString()}});
  if (options_.on_failing) options_.on_failing(status);
}

// The device is gone, the engine's own state is sound: requests end as always. Those that were
// accepted in the same moment come later, so the loop goes on.
void Engine::Impl::FailDevice(absl::Time now) {
  const bool is_first = !has_failed_;
  if (is_first) BeginFailure(core_.fatal());
  core_.FailAll(now);
  Deliver();
  if (!is_first) return;
  output_.WaitDone(options_.answer_timeout);
  if (options_.on_fatal) options_.on_fatal(core_.fatal());
}

// Who calls from now on is answered here, until the engine is destroyed.
void Engine::Impl::FailThread(const std::string& what) {
  died_.store(true);
  const absl::Status status = WithReason(
      absl::InternalError(absl::StrCat("the engine thread ended: ", what)), Reason::kEngineDied);
  BeginFailure(status);
  items_.clear();
  EndWithoutCore();
  output_.WaitDone(options_.answer_timeout);
  if (options_.on_fatal) options_.on_fatal(status);
  bool stops = false;
  while (true) {  // first what was not handled when it ended
    for (Signal& signal : signals_) {
      if (signal.call) signal.call();
    }
    const bool have_ended = EndWithoutCore();
    if (stops && have_ended) return;
    inbox_->Wait(have_ended ? absl::InfiniteDuration() : absl::Milliseconds(100));
    stops = !inbox_->Drain(&signals_);
  }
}

// What has no end on its way to the output worker gets one. False when a worker is too slow to tell
// what has.
bool Engine::Impl::EndWithoutCore() {
  if (!output_.WaitDone(options_.answer_timeout)) return false;
  for (const std::shared_ptr<AcceptedRequest>& live : table_.All()) {
    const absl::Status status = DeviceError();
    RequestProgress& progress = live->progress;
    const bool has_ended =
        progress.state.exchange(RequestState::kFinished) == RequestState::kFinished;
    if (progress.is_prepared.load() && !has_ended) {
      probe_.Failed(progress.is_counted_running.load(), status.code());
    } else if (!has_ended) {
      probe_.Rejected(Reason::kDeviceError);
    }
    OutputItem& item = items_.emplace_back();
    item.kind = OutputItem::Kind::kRequestEnd;
    item.request = live;
    item.time = clock_->Now();
    item.status = status;
    item.was_accepted = progress.is_prepared.load();
  }
  output_.Push(&items_);
  return true;
}

// Without a step that is due the time does not count against liveness; what comes has all of it.
void Engine::Impl::Sleep() {
  const absl::Time wake =
      std::min(core_.NextWake(), unread_->NextExpiry(step_options_.slow_client_timeout));
  const bool is_idle = !core_.awaits_step();
  is_idle_.store(is_idle, std::memory_order_release);
  inbox_->Wait(wake == absl::InfiniteFuture()
                   ? absl::InfiniteDuration()
                   : std::max(wake - clock_->Now(), absl::ZeroDuration()));
  if (is_idle) core_.heartbeat().Beat();
  is_idle_.store(false, std::memory_order_release);
}

void Engine::Impl::PublishStats(absl::Time now) {
  EngineStats stats = core_.Stats(now);
  MutexLock lock(&stats_mutex_);
  stats_ = stats;
  stats_time_ = now;
}

absl::Status Engine::Impl::PrepareHotOptions(const HotOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckHotOptions(options_, options, cache_->page_size()));
  const std::int32_t running = options_.max_running_sequences;
  output_.Reserve(RingItems(options, running));
  table_.Reserve(TableCapacity(options, running));
  return absl::OkStatus();
}

absl::Status Engine::Impl::OnEngineThread(const std::function<void()>& call) {
  std::promise<bool> done;
  const bool is_posted =
      inbox_->Post({.kind = Signal::Kind::kCall, .request = nullptr, .call = [&] {
                      const bool is_alive = !died_.load();
                      if (is_alive) call();
                      done.set_value(is_alive);
                    }});
  return is_posted && done.get_future().get() ? absl::OkStatus() : NoThreadError();
}

absl::Status Engine::Impl::CheckConstraint(const Request& request) const {
  if (!request.constraint.has_value()) return absl::OkStatus();
  if (options_.constraints == nullptr) {
    const char* field = "constraint";
    if (request.constraint->kind == ConstraintKind::kToolCalls) {
      field = request.constraint->calls_are_optional ? "chat.tools" : "chat.tool_choice";
    }
    return WithReason(absl::UnimplementedError("this server has no structured output"),
                      Reason::kFeatureUnsupported, {{"field", field}});
  }
  if (!request.stopping.ignore_eos) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(
                        "stopping.ignore_eos is set, with a constraint the end of the text is its"),
                    Reason::kBadParameter, {{"field", "stopping.ignore_eos"}});
}

absl::Status Engine::Impl::CheckRequest(const Request& request, const HotOptions& hot) const {
  const std::int64_t bytes = InputBytes(request);
  if (bytes > hot.max_input_bytes) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("prompt has ", bytes, " bytes, at most ",
                                                hot.max_input_bytes, " are allowed")),
        Reason::kInputTooLarge,
        {{"field", "prompt"},
         {"bytes", absl::StrCat(bytes)},
         {"max_bytes", absl::StrCat(hot.max_input_bytes)}});
  }
  const EngineState state = state_.load();
  if (state == EngineState::kFailed) return DeviceError();
  if (state == EngineState::kStopped) return ShutdownError();
  if (state == EngineState::kDraining) {
    return WithReason(absl::UnavailableError("server is draining"), Reason::kServerDraining, {},
                      queue_.RetryDelay());
  }
  // A template may print something for messages without any text.
  if (bytes == 0 && !std::holds_alternative<ChatPrompt>(request.prompt)) {
    return WithReason(absl::InvalidArgumentError("prompt is empty"), Reason::kPromptMissing);
  }
  QUIRE_RETURN_IF_ERROR(CheckTask(request, options_.has_head, can_pool_));
  if (request.generates()) {
    QUIRE_RETURN_IF_ERROR(Validate(request.sampling, hot.limits));
    QUIRE_RETURN_IF_ERROR(Validate(request.stopping, hot.limits));
    QUIRE_RETURN_IF_ERROR(Validate(request.output, hot.limits));
  }
  QUIRE_RETURN_IF_ERROR(CheckConstraint(request));
  QUIRE_RETURN_IF_ERROR(CheckPriority(request, hot.tenants.LimitsOf(request.tenant)));
  if (request.sampling.choice_count > hot.max_running_sequences) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "sampling.choice_count is ", request.sampling.choice_count, ", at most ",
                          hot.max_running_sequences, " sequences can run")),
                      Reason::kBadSamplingParam,
                      {{"field", "sampling.choice_count"},
                       {"value", absl::StrCat(request.sampling.choice_count)},
                       {"range", absl::StrCat("[1, ", hot.max_running_sequences, "]")}});
  }
  return absl::OkStatus();
}

std::shared_ptr<AcceptedRequest> Engine::Impl::MakeAccepted(Request request,
                                                            const HotOptions& hot) {
  if (request.accept_time == absl::Time()) request.accept_time = clock_->Now();
  request.deadline = std::min(request.deadline, request.accept_time + hot.max_request_duration);
  if (request.queue_timeout == absl::InfiniteDuration()) {
    request.queue_timeout = hot.queue_timeout;
  }
  auto stream = std::make_shared<TokenStream>();
  stream->SetDrainedCallback(options_.stream_queue_tokens, [inbox = inbox_] { inbox->Wake(); });
  const std::uint64_t arrival = next_arrival_.fetch_add(1);
  stream->SetReadCallback([unread = std::weak_ptr(unread_), arrival] {
    if (const std::shared_ptr<UnreadAnswers> alive = unread.lock()) alive->Remove(arrival);
  });
  return std::make_shared<AcceptedRequest>(std::move(request), arrival,
                                           arrival % output_.num_workers(), std::move(stream));
}

// Its places in the queue and with the text workers, or neither.
absl::Status Engine::Impl::TakePlace(const std::shared_ptr<AcceptedRequest>& live) {
  const std::string& tenant = live->request.tenant;
  QUIRE_RETURN_IF_ERROR(queue_.EnterRequest(tenant, unread_->CountsOf(tenant)));
  absl::Status submitted = text_.Submit(live);
  if (!submitted.ok()) queue_.LeaveRequest(tenant);
  return submitted;
}

absl::StatusOr<std::shared_ptr<TokenStream>> Engine::Impl::TryAccept(Request request) {
  const std::shared_ptr<const HotOptions> hot = hot_.Get();
  QUIRE_RETURN_IF_ERROR(CheckRequest(request, *hot));
  const std::shared_ptr<AcceptedRequest> live = MakeAccepted(std::move(request), *hot);
  if (live->request.deadline <= clock_->Now()) {
    return WithReason(absl::DeadlineExceededError("deadline had passed on arrival"),
                      Reason::kTimeout, {{"stage", "queue"}, {"tokens", "0"}});
  }
  QUIRE_RETURN_IF_ERROR(table_.Insert(live, queue_.RetryDelay(), [&] { return TakePlace(live); }));
  inbox_->Post({.kind = Signal::Kind::kArrived, .request = live});
  return live->stream;
}

void Engine::Impl::PostCancel(const std::shared_ptr<AcceptedRequest>& live, CancelSource source,
                              std::string text) {
  if (live->cancel_requested.exchange(true, std::memory_order_acq_rel)) return;
  inbox_->Post({.kind = Signal::Kind::kCancel,
                .request = live,
                .source = source,
                .reason_text = std::move(text)});
}

absl::StatusOr<AbortResult> Engine::Impl::Abort(const AbortSelection& selection) {
  if (selection.ids.empty() && !selection.all) {
    return WithReason(absl::InvalidArgumentError(
                          "nothing is selected; name request_ids, or set all and narrow it"),
                      Reason::kSelectionEmpty, {{"field", "request_ids"}});
  }
  AbortResult result;
  const absl::Time now = clock_->Now();
  result.unknown_ids = selection.ids;
  for (const std::shared_ptr<AcceptedRequest>& live : table_.All()) {
    const Request& request = live->request;
    if (!selection.ids.empty()) {
      if (std::ranges::find(selection.ids, request.id) == selection.ids.end()) continue;
      std::erase(result.unknown_ids, request.id);
    }
    if (!selection.tenant.empty() && request.tenant != selection.tenant) continue;
    const bool by_age = selection.older_than > absl::ZeroDuration();
    if (by_age && now - request.accept_time <= selection.older_than) continue;
    PostCancel(live, CancelSource::kAdmin, selection.reason_text);
    ++result.aborted;
  }
  return result;
}

std::vector<RequestInfo> Engine::Impl::ListRequests() const {
  std::vector<RequestInfo> infos;
  for (const std::shared_ptr<AcceptedRequest>& live : table_.All()) {
    const Request& request = live->request;
    infos.push_back({.id = request.id,
                     .model = request.model,
                     .principal = request.principal,
                     .tenant = request.tenant,
                     .state = live->progress.state.load(std::memory_order_acquire),
                     .accept_time = request.accept_time,
                     .deadline = request.deadline,
                     .prompt_tokens = live->progress.prompt_tokens.load(std::memory_order_relaxed),
                     .output_tokens = live->progress.output_tokens.load(std::memory_order_relaxed),
                     .kv_pages = live->progress.pages.load(std::memory_order_relaxed),
                     .priority = request.priority,
                     .labels = request.labels});
  }
  return infos;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<cache::CacheManager> cache,
                                                       runtime::StepRunner* runner,
                                                       const text::Tokenizer* tokenizer,
                                                       const Clock* clock,
                                                       probe::Registry* metrics) {
  QUIRE_RETURN_IF_ERROR(CheckOptions(options, cache->page_size()));
  return std::unique_ptr<Engine>(new Engine(
      std::make_unique<Impl>(options, std::move(cache), runner, tokenizer, clock, metrics)));
}

bool IsFull(const absl::Status& status) {
  return HasReason(status, Reason::kQueueFull) || HasReason(status, Reason::kTenantLimit);
}

absl::StatusOr<std::shared_ptr<TokenStream>> Engine::Accept(Request request, WhenFull when_full) {
  return impl_->Accept(std::move(request), when_full);
}
bool Engine::Cancel(const Caller& caller, absl::string_view id, CancelSource source,
                    const TokenStream* stream) {
  return impl_->Cancel(caller, id, source, stream);
}
absl::StatusOr<AbortResult> Engine::Abort(const AbortSelection& selection) {
  return impl_->Abort(selection);
}
void Engine::Drain() {
  impl_->Drain();
}
void Engine::Resume() {
  impl_->Resume();
}
bool Engine::WaitIdle(absl::Time deadline) {
  return impl_->WaitIdle(deadline);
}
absl::Status Engine::PrepareHotOptions(const HotOptions& options) {
  return impl_->PrepareHotOptions(options);
}
void Engine::SetHotOptions(const HotOptions& options) {
  impl_->SetHotOptions(options);
}
std::vector<RequestInfo> Engine::ListRequests() const {
  return impl_->ListRequests();
}
EngineStats Engine::GetStats() const {
  return impl_->GetStats();
}
absl::StatusOr<cache::FlushCounts> Engine::FlushCache(absl::Duration idle_timeout) {
  return impl_->FlushCache(idle_timeout);
}
bool Engine::IsAlive(absl::Duration stall_timeout) const {
  return impl_->IsAlive(stall_timeout);
}
absl::StatusOr<PageSnapshot> Engine::GetPageSnapshot() {
  return impl_->GetPageSnapshot();
}
absl::StatusOr<IntegrityReport> Engine::InspectIntegrity() {
  return impl_->InspectIntegrity();
}
absl::Status Engine::CheckIntegrity() {
  QUIRE_ASSIGN_OR_RETURN(const IntegrityReport report, impl_->InspectIntegrity());
  return report.status();
}

}  // namespace quire::engine
