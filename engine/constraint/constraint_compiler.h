#pragma once

// Makes compiled constraints on threads of its own, keeps them, and gives up on those that take too
// long.
//
// Place:      between the engine, which lets a request wait for its constraint, and what builds a
//             constraint (a function that ends soon, and not at once, when it is told to stop).
// Invariants: each call of Compile ends in exactly one call of its `done`, or in Cancel. The bytes
//             of the cache are at most its budget. Equal specs that are compiled at the same time
//             are compiled once. At most `compile_threads` builds run that are not late. A build
//             that is late is told to stop and gives its place to another, as long as at most
//             `max_late_builds` are; when they have taken all places, nothing compiles until one of
//             them ends. A build that takes long goes on at a lower priority than other threads,
//             and so do all of a stream of builds, from their beginning; a later one does not.
//             A refusal is kept for what its build took of a processor, and never for what other
//             threads left it.
// Threads:    every method from any. `done` runs on the calling thread when the answer is known at
//             once, else on a thread of the compiler, which holds no lock then; it must not wait.
// Lifetime:   the destructor refuses what waits, tells the builds that run to stop and joins their
//             threads. The registry outlives the compiler.

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/thread_priority.h"
#include "engine/constraint/constraint.h"

namespace quire::probe {
class Registry;
}

namespace quire::engine {

// The part that a running compiler can change.
struct HotConstraintOptions {
  absl::Duration compile_timeout = absl::Seconds(2);  // of a processor, for one build
  std::int64_t max_compiled_bytes = 64 << 20;         // of one constraint
  std::int64_t max_schema_bytes = 256 << 10;          // of one spec
  std::int64_t cache_bytes = 256 << 20;               // of all constraints that are kept
};

struct ConstraintOptions : HotConstraintOptions {
  std::int32_t compile_threads = 2;
  std::int32_t max_late_builds = 4;
  std::int32_t max_waiting = 1024;  // builds that wait for a thread
};

struct ConstraintCounts {
  std::int64_t hits = 0, misses = 0, errors = 0;  // of Compile; misses end as errors or constraints
  std::int64_t late = 0;                          // builds given up on so far
  std::int64_t running_late = 0;                  // of these, builds that still run
  std::int64_t waiting = 0;                       // builds that wait for a thread
  std::int64_t cached_bytes = 0, cached = 0;
};

class ConstraintCompiler {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const CompiledConstraint>>;
  // Runs on several threads at once. A refusal of the spec is INVALID_ARGUMENT / BAD_CONSTRAINT;
  // what it returns when it was told to stop is of no account.
  using Build = std::function<Result(const ConstraintSpec&, const std::stop_token&)>;
  using Done = std::function<void(Result)>;
  using Ticket = std::uint64_t;

  // The time of a processor that a thread has used.
  using Used = std::function<absl::Duration(std::int64_t thread)>;

  // `metrics` may be null (tests).
  ConstraintCompiler(const ConstraintOptions& options, Build build, probe::Registry* metrics,
                     Used used = ProcessorTime);
  ~ConstraintCompiler();
  ConstraintCompiler(const ConstraintCompiler&) = delete;
  ConstraintCompiler& operator=(const ConstraintCompiler&) = delete;

  // Errors, through `done`: those of the build; BAD_CONSTRAINT, stage `compile`, for a spec that is
  // too long, whose constraint is too large, or whose build takes longer than the timeout, now or
  // when it was asked for before; RESOURCE_EXHAUSTED / QUEUE_FULL when too many builds wait, or the
  // late ones leave no thread, or the processors left the build less than the timeout while another
  // one waited for its place, or for ten times as long; UNAVAILABLE / SERVER_SHUTDOWN when the
  // compiler ends.
  Ticket Compile(ConstraintSpec spec, Done done);

  // Once it returns, `done` of the ticket is not called any more. False: it was called, or is being
  // called by another thread.
  bool Cancel(Ticket ticket);

  void SetHotOptions(const HotConstraintOptions& options);
  ConstraintCounts GetCounts() const;
  absl::Status CheckIntegrity() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::engine
