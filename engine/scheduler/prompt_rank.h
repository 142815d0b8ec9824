#pragma once

// The order in which the prompts of one step are served.
//
// Place:      between Admission and PrefillPlanner, which compare waiting requests with prompts
//             that are being computed.
// Threads:    a value type; one thread at a time per object.

#include <bit>
#include <compare>
#include <cstdint>

#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"

namespace quire::engine {

// Returns the class of a length. Each class spans a factor of four. Prompts of one class count as
// equally long, so their order of arrival can decide.
inline std::uint32_t LengthClass(std::uint32_t tokens) {
  return static_cast<std::uint32_t>(std::bit_width(tokens)) / 2;
}

// Among the prompts of one tenant, the prompt with the lowest rank is served first.
struct PromptRank {
  // The priority. A waiting request subtracts the number of aging intervals that it has waited.
  std::int64_t level = 0;
  std::uint32_t length_class = 0;  // class of the number of tokens left to compute
  auto operator<=>(const PromptRank&) const = default;
};

inline PromptRank RankOf(const Sequence& sequence) {
  return {sequence.request->request.priority, LengthClass(sequence.total() - sequence.launched())};
}

// Returns whether `request`, which has the given rank and waits for its admission, is served before
// `sequence`, a prompt that is being computed. Between tenants only the length counts, because the
// order of tenants is decided before this call.
inline bool ComesBefore(const ScheduledRequest& request, const PromptRank& rank,
                        const Sequence& sequence) {
  const PromptRank other = RankOf(sequence);
  const bool is_same_tenant = request.tenant_requests == sequence.request->tenant_requests;
  return is_same_tenant ? rank < other : rank.length_class < other.length_class;
}

}  // namespace quire::engine
