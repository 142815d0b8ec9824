#pragma once

// Whose pages are taken when a running sequence cannot grow; overcommit mode only.
//
// Place:      asked by Scheduler, which then frees the pages; the sequence is computed again later.
// Invariants: the oldest admitted sequence that can run is never chosen, so it always reaches its
//             end: a lone request fits (EXCEEDS_CAPACITY), and everything else can be taken
//             from the others.
// Threads:    engine thread only.
// Lifetime:   none.

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"

namespace quire::engine {

inline constexpr std::int32_t kMaxPreemptions = 3;

// The victim among `running`, which is sorted by admission: one whose preemption `frees_pages`
// before those that share all of theirs; of these one whose stream is full first, since it makes no
// progress anyway; then one of the tenant that comes last in TenantRequests::order; of its own the
// highest priority number; then the latest admission.
// Sequences with at most `page_size` tokens left, or preempted kMaxPreemptions times, are spared
// while there is another. The one that needs the page may be the answer itself. Null when there is
// no sequence to choose.
Sequence* ChooseVictim(std::span<Sequence* const> running, std::uint32_t page_size,
                       absl::FunctionRef<bool(const Sequence&)> frees_pages);

}  // namespace quire::engine
