#pragma once

// Statistics that the engine thread publishes between two steps.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "engine/request/request.h"

namespace quire::engine {

// kFailed is final: Accept answers UNAVAILABLE / DEVICE_ERROR.
enum class EngineState : std::uint8_t { kReady, kDraining, kStopped, kFailed };

// Numbers of requests that ended early, indexed by [RequestState][CancelSource].
using EndCounts = std::array<std::array<std::int64_t, kNumCancelSources>, kNumRequestStates>;

struct EngineStats {
  EngineState state = EngineState::kReady;
  std::int32_t running = 0, waiting = 0;
  std::int64_t waiting_uncached_tokens = 0;
  // Attempts to admit a request, or a preempted sequence, for which too few pages or state slots
  // were available.
  std::int64_t blocked_admissions = 0;
  cache::CacheStats cache;
  double prompt_tokens_per_second = 0, generation_tokens_per_second = 0;  // mean of the last 10 s
  std::int64_t steps = 0, preemptions = 0;
  std::int64_t overlap_steps = 0;       // launched while another was in flight
  std::int64_t chunked_prefills = 0;    // chunks that did not complete their prompt
  std::int32_t max_step_sequences = 0;  // most sequences in one step so far
  absl::Duration last_step_age;
  EndCounts early_ends{};
};

// Results of the checks of all stateful classes, between two steps.
struct IntegrityReport {
  std::vector<std::string> failures;  // "Class: text"
  std::int32_t num_checks = 0;
  absl::Duration pause;  // time during which no step ran

  // Returns OK, or INTERNAL with the first failure.
  absl::Status status() const {
    return failures.empty() ? absl::OkStatus() : absl::InternalError(failures.front());
  }
};

// The owner of each page between two steps. pages[i] describes page i + 1.
struct PageSnapshot {
  static constexpr std::int32_t kFree = 0;
  static constexpr std::int32_t kCached = 1;
  static constexpr std::int32_t kShared = 2;      // used by several sequences
  static constexpr std::int32_t kWork = 3;        // used by page copies and clears
  static constexpr std::int32_t kFirstOwner = 4;  // + i: used by one sequence of owners[i]
  std::vector<std::int32_t> pages;
  // Request ids. A request with several choices may occur more than once.
  std::vector<std::string> owners;
};

}  // namespace quire::engine
