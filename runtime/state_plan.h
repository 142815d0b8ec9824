#pragma once

// Divides the memory of a KV cache between the pages and the state slots of recurrent layers.
//
// Place:      below the plans of devices, which give the pages the memory that StatePlan leaves.
// Threads:    any; pure functions.

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"

namespace quire::runtime {

struct StatePlanRequest {
  std::int64_t slot_bytes = 0;  // states of all recurrent layers of one sequence
  std::int64_t kv_bytes = 0;    // memory for pages and slots together
  double share = 0;             // part of kv_bytes for snapshots; key kv_cache.state_share
  std::uint32_t max_rows = 0;
  bool may_lower_rows = false;  // plan as many rows as fit instead of refusing max_rows
  std::int64_t page_bytes = 0;
  std::uint32_t page_size = 0;  // tokens
  // Maximum useful number of pages of an automatic pool, and thus of snapshots.
  std::int64_t max_pages = std::numeric_limits<std::int64_t>::max();
};

struct StatePlan {
  std::int64_t slot_bytes = 0;  // 0: the model has no recurrent layers
  std::uint32_t max_rows = 0;   // max_rows of the request, or fewer with may_lower_rows
  std::uint32_t num_slots = 0;  // the null slot, one per row, and those for snapshots
  std::uint32_t num_snapshots = 0;
  std::uint32_t slot_tokens = 0;      // tokens whose pages take as many bytes as a slot
  std::uint32_t interval_tokens = 0;  // tokens between two snapshots of a long prompt
  std::int64_t bytes() const { return slot_bytes * num_slots; }
};

// Plans share * kv_bytes / slot_bytes snapshots, at most as many as pages fit into kv_bytes and at
// most max_pages, but never fewer than 2. Returns RESOURCE_EXHAUSTED if the slots of the rows take
// more than half of kv_bytes, or if two pages do not fit besides all slots. With may_lower_rows, an
// error is returned only if not even one row fits.
absl::StatusOr<StatePlan> PlanStateSlots(const StatePlanRequest& request);

}  // namespace quire::runtime
