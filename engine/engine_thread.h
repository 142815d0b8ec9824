#pragma once

// The engine thread: takes signals from the inbox, runs EngineCore step by step, and hands the
// output of EngineCore to the output workers.
//
// Place:      part of Engine; between Inbox, EngineCore and OutputStage.
// Invariants: every live request ends, even if the device is lost or an exception ends the thread.
// Threads:    thread-safe. Owns the engine thread.
// Lifetime:   the options and the objects in Parts outlive it.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/published.h"
#include "cache_manager/cache_manager.h"
#include "engine/output/output_item.h"
#include "engine/output/output_stage.h"
#include "engine/output/unread_answers.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/inbox.h"
#include "engine/request/request_table.h"
#include "engine/step/engine_core.h"
#include "engine/step/engine_stats.h"
#include "runtime/step/step_runner.h"

namespace quire::engine {

class EngineThread {
 public:
  struct Parts {
    cache::CacheManager* cache;
    runtime::StepRunner* runner;
    const Clock* clock;
    const Published<HotOptions>* hot;
    std::atomic<EngineState>* state;
    AdmissionLimiter* limiter;
    RequestTable* table;
    OutputStage* output;
    EngineProbe* probe;
    std::shared_ptr<Inbox> inbox;
    std::shared_ptr<UnreadAnswers> unread;
  };
  EngineThread(const EngineOptions& options, Parts parts);
  ~EngineThread() { Stop(); }

  // Ends every live request with UNAVAILABLE / SERVER_SHUTDOWN and joins the thread. Other threads
  // may use Call until Stop returns.
  void Stop();

  // Applies the published options at the next step boundary, before the first request that is
  // accepted after this call.
  void TakeHotOptions();
  // Calls the function on the engine thread with no step in flight, and waits until it returns.
  // Returns UNAVAILABLE without a call if the thread has died or stops.
  absl::Status Call(const std::function<void(EngineCore&)>& call);
  // See Engine.
  EngineStats GetStats() const;
  absl::StatusOr<PageSnapshot> GetPageSnapshot();
  bool IsAlive(absl::Duration stall_timeout) const;

 private:
  void Run();
  void Loop();
  void ApplyHotOptions();
  void HandleSignals(absl::Time now);
  void ReportWorkers();
  void Deliver();
  void BeginFailure(const absl::Status& status);
  void FailDevice(absl::Time now);
  void FailThread(const std::string& what);
  bool EndRequestsWithoutCore();
  void Sleep();
  void PublishStats(absl::Time now);
  absl::Status NoThreadError() const;

  const EngineOptions& options_;
  const Parts parts_;
  std::atomic<bool> died_{false};    // the core must not be used any more
  std::atomic<bool> is_idle_{true};  // the thread sleeps, and no step is due
  std::atomic<bool> has_new_options_{false};
  mutable Mutex stats_mutex_;
  EngineStats stats_ ABSL_GUARDED_BY(stats_mutex_);
  absl::Time stats_time_ ABSL_GUARDED_BY(stats_mutex_);
  // The members below belong to the engine thread.
  //
  // The options that steps use now, possibly older than the published ones.
  std::shared_ptr<const HotOptions> hot_;
  EngineCore core_;
  std::vector<Signal> signals_;
  std::vector<OutputItem> items_;
  bool has_failed_ = false;  // on_failing was called
  std::thread thread_;
};

}  // namespace quire::engine
