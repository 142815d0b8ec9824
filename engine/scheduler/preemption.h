#pragma once

// Chooses the sequence that loses its pages when a running sequence cannot grow; overcommit mode
// only.
//
// Place:      called by RowPool, which frees the pages; the sequence is computed again later.
// Invariants: the oldest admitted sequence that can run is never chosen. It always reaches its end:
//             all other sequences can be preempted for it, and it fits alone, because larger
//             requests are rejected (EXCEEDS_CAPACITY).
// Threads:    engine thread only.
// Lifetime:   none.

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"

namespace quire::engine {

// Returns the victim among `running`, which is sorted by admission, or null if there is none. The
// candidates are compared by these criteria, in this order:
//   1. it has pages that no other sequence shares, so preempting it frees them (`frees_pages`);
//   2. it has more than `page_size` tokens left, and fewer than `max_preemptions` preemptions;
//   3. it is stalled, so it would make no progress if it kept its pages;
//   4. its tenant is the last by TenantRequests::order;
//   5. it has the highest priority number;
//   6. it was admitted last.
// The sequence that needs the page may be the victim itself.
Sequence* ChooseVictim(std::span<Sequence* const> running, std::uint32_t page_size,
                       std::int32_t max_preemptions,
                       absl::FunctionRef<bool(const Sequence&)> frees_pages);

}  // namespace quire::engine
