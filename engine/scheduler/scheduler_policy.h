#pragma once

// The constants of the scheduler's decisions as one value, so that a simulator can replay the same
// requests under another policy.
//
// Place:      passed to the constructor of Scheduler, whose parts copy it.
// Invariants: every count is at least 1, and every minimum is at most the maximum.
// Threads:    a value type; one thread at a time per object.

#include <cstdint>

#include "absl/time/time.h"

namespace quire::engine {

struct SchedulerPolicy {
  // For a step that a stream waits for, the automatic step-time target is this many times the
  // expected time of the step's decode rows alone.
  int target_factor = 3;
  // Replaces target_factor if there are more than half as many prompts as decode rows. A prompt
  // that finishes sooner becomes a decode row sooner, and all decode rows of a step share one read
  // of the weights.
  int target_factor_with_many_prompts = 4;
  // For a step that no stream waits for, the automatic target is this many times the expected time
  // of one decode row. Such a row takes about as long as reading the weights once. With this
  // target, reading the weights is a small part of the step.
  int target_factor_prefill_only = 16;
  absl::Duration min_target = absl::Milliseconds(20);
  absl::Duration max_target = absl::Milliseconds(500);
  absl::Duration min_target_prefill_only = absl::Milliseconds(5);
  // The minimum while several tenants have requests: the prompts of one tenant should not delay the
  // streams of another.
  absl::Duration min_target_several_tenants = absl::Milliseconds(1);
  // Two tenants count as concurrent for this long after both had requests, because the next request
  // of either tenant may arrive during a step.
  absl::Duration tenant_return_time = absl::Seconds(10);
  // Steps are planned for this fraction of the target, since some take longer than expected.
  double planned_share_of_target = 0.9;
  // When a target bounds a chunk, the number of rows in the step is a multiple of this. The integer
  // tiles of the CPU compute that many rows together. The first prompt of a step gets at least this
  // many tokens.
  std::uint32_t row_tile = 8;
  // Of this many consecutive steps with prompts, one serves the oldest prompt first. The others
  // serve the shortest prompt first.
  std::uint64_t steps_per_oldest_first = 4;
  // A sequence that was preempted this often is preempted again only if no other can be.
  std::int32_t max_preemptions = 3;
};

}  // namespace quire::engine
