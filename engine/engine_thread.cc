#include "engine/engine_thread.h"

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "base/thread_name.h"
#include "engine/request_intake.h"

namespace quire::engine {
namespace {

// Maximum time that GetPageSnapshot waits for the engine thread.
constexpr absl::Duration kSnapshotTimeout = absl::Seconds(1);

}  // namespace

EngineThread::EngineThread(const EngineOptions& options, Parts parts)
    : options_(options),
      parts_(std::move(parts)),
      hot_(parts_.hot->Get()),
      core_(options, parts_.cache, parts_.runner, parts_.clock, parts_.limiter, parts_.probe) {
  PublishStats(parts_.clock->Now());
  thread_ = std::thread([this] { Run(); });
}

void EngineThread::Stop() {
  parts_.inbox->Close();
  if (thread_.joinable()) thread_.join();
}

void EngineThread::TakeHotOptions() {
  has_new_options_.store(true, std::memory_order_release);
  parts_.inbox->Wake();
}

absl::Status EngineThread::NoThreadError() const {
  return died_.load() ? DeviceError() : ShutdownError(*parts_.limiter);
}

absl::Status EngineThread::Call(const std::function<void(EngineCore&)>& call) {
  std::promise<bool> done;
  const bool is_posted =
      parts_.inbox->Post({.kind = Signal::Kind::kCall, .request = nullptr, .call = [&] {
                            const bool is_alive = !died_.load();
                            if (is_alive) call(core_);
                            done.set_value(is_alive);
                          }});
  return is_posted && done.get_future().get() ? absl::OkStatus() : NoThreadError();
}

// The caller may time out before the engine thread answers, so the promise is shared.
absl::StatusOr<PageSnapshot> EngineThread::GetPageSnapshot() {
  const auto answer = std::make_shared<std::promise<absl::StatusOr<PageSnapshot>>>();
  const auto call = [this, answer] {
    if (died_.load()) {
      answer->set_value(DeviceError());
    } else {
      answer->set_value(core_.DescribePages());
    }
  };
  if (!parts_.inbox->Post({.kind = Signal::Kind::kCall, .request = nullptr, .call = call})) {
    return NoThreadError();
  }
  std::future<absl::StatusOr<PageSnapshot>> snapshot = answer->get_future();
  if (snapshot.wait_for(absl::ToChronoMilliseconds(kSnapshotTimeout)) !=
      std::future_status::ready) {
    return absl::DeadlineExceededError(absl::StrCat("the engine did not describe its pages within ",
                                                    absl::FormatDuration(kSnapshotTimeout)));
  }
  return snapshot.get();
}

EngineStats EngineThread::GetStats() const {
  MutexLock lock(&stats_mutex_);
  EngineStats stats = stats_;
  stats.state = parts_.state->load();
  stats.last_step_age += parts_.clock->Now() - stats_time_;
  return stats;
}

bool EngineThread::IsAlive(absl::Duration stall_timeout) const {
  if (parts_.state->load() == EngineState::kFailed) return false;
  return is_idle_.load(std::memory_order_acquire) || core_.heartbeat().age() < stall_timeout;
}

// quire throws nothing, but libraries may.
void EngineThread::Run() {
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

// The iteration in which Drain returns false is the last, because no signal can follow.
void EngineThread::Loop() {
  is_idle_.store(false, std::memory_order_release);
  while (true) {
    const bool stops = !parts_.inbox->Drain(&signals_);
    ApplyHotOptions();
    const absl::Time now = parts_.clock->Now();
    HandleSignals(now);
    if (stops) {
      core_.CollectAll();
      core_.EndAll(now);
    }
    core_.Expire(now);
    parts_.unread->Expire(now, hot_->slow_client_timeout);
    ReportWorkers();
    const bool ran = core_.Step(now);
    Deliver();
    if (!core_.fatal_error().ok()) FailDevice(now);
    if (stops) return;
    if (!ran) Sleep();
  }
}

void EngineThread::ApplyHotOptions() {
  if (!has_new_options_.load(std::memory_order_acquire)) return;
  has_new_options_.store(false, std::memory_order_release);
  hot_ = parts_.hot->Get();
  core_.SetHotOptions(hot_);
}

void EngineThread::HandleSignals(absl::Time now) {
  for (Signal& signal : signals_) {
    if (signal.kind == Signal::Kind::kCall) {  // runs with no step in flight
      core_.CollectAll();
      PublishStats(parts_.clock->Now());
    }
    core_.Handle(signal, now);
    signal.call = nullptr;
  }
  signals_.clear();
}

// Reports to the scheduler which output workers have no room, before it plans a step.
void EngineThread::ReportWorkers() {
  for (std::size_t worker = 0; worker < parts_.output->num_workers(); ++worker) {
    const bool has_room = parts_.output->HasRoom(worker);
    if (!has_room) parts_.output->WakeWhenRoom(worker);
    core_.scheduler().SetWorkerStalled(worker, !has_room);
  }
}

// Publishes the stats first, so that they include the end of a request when its client sees it.
void EngineThread::Deliver() {
  core_.TakeOutput(&items_);
  PublishStats(parts_.clock->Now());
  for (const OutputItem& item : items_) {
    if (item.kind == OutputItem::Kind::kRequestEnd) parts_.unread->Add(*item.request, item.time);
  }
  parts_.output->Push(&items_);
}

void EngineThread::BeginFailure(const absl::Status& status) {
  has_failed_ = true;
  parts_.state->store(EngineState::kFailed);
  log::Error("engine", "the engine has failed", {{"status", status.ToString()}});
  if (options_.on_failing) options_.on_failing(status);
}

// The device is lost, but the state of the engine is consistent, so requests end in the usual way.
// The loop continues, because requests that are being accepted at this moment arrive later.
void EngineThread::FailDevice(absl::Time now) {
  const bool is_first = !has_failed_;
  if (is_first) BeginFailure(core_.fatal_error());
  core_.FailAll(now);
  Deliver();
  if (!is_first) return;
  parts_.output->WaitDone(options_.answer_timeout);
  if (options_.on_fatal) options_.on_fatal(core_.fatal_error());
}

// Called when an exception ended Loop. Ends all requests, and answers calls until the engine is
// destroyed.
void EngineThread::FailThread(const std::string& what) {
  died_.store(true);
  const absl::Status status = WithReason(
      absl::InternalError(absl::StrCat("the engine thread ended: ", what)), Reason::kEngineDied);
  BeginFailure(status);
  items_.clear();
  EndRequestsWithoutCore();
  parts_.output->WaitDone(options_.answer_timeout);
  if (options_.on_fatal) options_.on_fatal(status);
  bool stops = false;
  while (true) {  // starts with the signals that were not handled when the thread ended
    for (Signal& signal : signals_) {
      if (signal.call) signal.call();
    }
    const bool have_ended = EndRequestsWithoutCore();
    if (stops && have_ended) return;
    parts_.inbox->Wait(have_ended ? absl::InfiniteDuration() : absl::Milliseconds(100));
    stops = !parts_.inbox->Drain(&signals_);
  }
}

// Ends every request that is still in the table after the output workers have processed all items.
// Returns false if the workers do not finish in time, because it is then unknown which requests
// have an end queued.
bool EngineThread::EndRequestsWithoutCore() {
  if (!parts_.output->WaitDone(options_.answer_timeout)) return false;
  for (const std::shared_ptr<AcceptedRequest>& live : parts_.table->All()) {
    const absl::Status status = DeviceError();
    RequestProgress& progress = live->progress;
    const bool has_ended =
        progress.state.exchange(RequestState::kFinished) == RequestState::kFinished;
    if (progress.is_prepared.load() && !has_ended) {
      parts_.probe->requests.Failed(progress.is_counted_running.load(), status.code());
    } else if (!has_ended) {
      parts_.probe->requests.Rejected(Reason::kDeviceError);
    }
    OutputItem& item = items_.emplace_back();
    item.kind = OutputItem::Kind::kRequestEnd;
    item.request = live;
    item.time = parts_.clock->Now();
    item.status = status;
    item.was_accepted = progress.is_prepared.load();
  }
  parts_.output->Push(&items_);
  return true;
}

// Sleeping while no step is due does not count against liveness. The next step then has the whole
// timeout.
void EngineThread::Sleep() {
  const absl::Time wake =
      std::min(core_.NextWake(), parts_.unread->NextExpiry(hot_->slow_client_timeout));
  const bool is_idle = !core_.scheduler().awaits_step();
  is_idle_.store(is_idle, std::memory_order_release);
  parts_.inbox->Wait(wake == absl::InfiniteFuture()
                         ? absl::InfiniteDuration()
                         : std::max(wake - parts_.clock->Now(), absl::ZeroDuration()));
  if (is_idle) core_.heartbeat().Beat();
  is_idle_.store(false, std::memory_order_release);
}

void EngineThread::PublishStats(absl::Time now) {
  EngineStats stats = core_.Stats(now);
  MutexLock lock(&stats_mutex_);
  stats_ = stats;
  stats_time_ = now;
}

}  // namespace quire::engine
