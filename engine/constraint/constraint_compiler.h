#pragma once

// Compiles constraints on its own threads and caches them.
//
// Place:      between the engine, where requests wait for their constraints, and the build
//             function. GrammarLimits bounds the steps and bytes of a build. There is no timeout.
// Invariants: `done` of each call of Compile is called once, or never if Cancel returned true for
//             its ticket. The cache has at most `cache_bytes`. Callers that wait for equal specs
//             share one build. At most `compile_threads` builds run, all at low priority. A
//             running build continues even after its last caller has cancelled.
// Threads:    thread-safe. `done` runs inside Compile if the call needs no build, inside the
//             destructor if the build has not ended by then, and otherwise on a compiler thread. No
//             lock is held during the call. `done` must not block.
// Lifetime:   the destructor rejects waiting specs, asks running builds to stop, and joins the
//             threads. The registry must outlive the compiler.

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "engine/constraint/constraint.h"

namespace quire::engine {

// Options that can change while the compiler runs.
struct HotConstraintOptions {
  std::int64_t max_compiled_bytes = 64 << 20;  // per constraint
  std::int64_t max_schema_bytes = 256 << 10;   // per spec
  std::int64_t cache_bytes = 256 << 20;        // all cached constraints
};

struct ConstraintOptions : HotConstraintOptions {
  std::int32_t compile_threads = 2;
  std::int32_t max_waiting_builds = 1024;  // builds that wait for a thread
};

struct ConstraintCounts {
  // Calls of Compile for a cached constraint (hits), calls that wait for a build (misses), and
  // failed builds and specs that are too large (errors).
  std::int64_t hits = 0, misses = 0, errors = 0;
  std::int64_t waiting_builds = 0;  // builds that wait for a thread
  std::int64_t cached_bytes = 0, cached_constraints = 0;
};

class ConstraintCompiler {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const CompiledConstraint>>;
  // Runs on several threads at once. Returns INVALID_ARGUMENT / BAD_CONSTRAINT for an invalid spec.
  // The result is ignored if a stop was requested.
  using BuildFunction = std::function<Result(const ConstraintSpec&, const std::stop_token&)>;
  using Done = std::function<void(Result)>;
  using Ticket = std::uint64_t;

  // `metrics` may be null (tests).
  ConstraintCompiler(const ConstraintOptions& options, BuildFunction build,
                     probe::Registry* metrics);
  ~ConstraintCompiler();
  ConstraintCompiler(const ConstraintCompiler&) = delete;
  ConstraintCompiler& operator=(const ConstraintCompiler&) = delete;

  // `done` gets the result, an error of the build, or one of these errors:
  //   - BAD_CONSTRAINT, stage `compile`: the spec or the compiled constraint is too large;
  //   - RESOURCE_EXHAUSTED / QUEUE_FULL: too many builds wait;
  //   - UNAVAILABLE / SERVER_SHUTDOWN: the compiler is destroyed.
  Ticket Compile(ConstraintSpec spec, Done done);

  // Returns true if `done` of the ticket will never be called. Returns false if it was called or is
  // being called by another thread.
  bool Cancel(Ticket ticket);

  void SetHotOptions(const HotConstraintOptions& options);
  ConstraintCounts GetCounts() const;
  absl::Status CheckIntegrity() const;

 private:
  // A build that waits or runs, and the callers that wait for its result.
  struct Job {
    std::string key;
    ConstraintSpec spec;
    bool is_running = false;
    std::stop_source stop;
    std::vector<std::pair<Ticket, Done>> waiters;
  };
  struct Cached {
    std::string key;
    std::shared_ptr<const CompiledConstraint> constraint;
    std::int64_t bytes = 0;
  };

  void AddMetrics(probe::Registry& metrics);
  void Work();
  // Runs the job's build and passes the result to its waiters.
  void RunJob(const std::shared_ptr<Job>& job);
  void TakeWaiters(Job& job, std::vector<Done>* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddToCache(std::string key, std::shared_ptr<const CompiledConstraint> constraint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the result if nothing has to be built: a cached constraint, or an error if the spec is
  // too large.
  std::optional<Result> Answer(const ConstraintSpec& spec, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const BuildFunction build_;
  std::unique_ptr<probe::Registry> own_registry_;
  probe::Histogram compile_seconds_;
  probe::Counter hits_, misses_, errors_;
  probe::Gauge cache_bytes_;

  mutable Mutex mutex_;
  CondVar job_added_;
  ConstraintOptions options_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Job>> waiting_jobs_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Ticket, Job*> tickets_ ABSL_GUARDED_BY(mutex_);
  Ticket last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Cached> cache_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  absl::flat_hash_map<std::string, std::list<Cached>::iterator> cache_index_
      ABSL_GUARDED_BY(mutex_);
  std::int64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> workers_;
};

}  // namespace quire::engine
