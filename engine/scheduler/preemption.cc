#include "engine/scheduler/preemption.h"

#include <tuple>

namespace quire::engine {
namespace {

bool IsSpared(const Sequence& sequence, std::uint32_t page_size, std::int32_t max_preemptions) {
  const std::int64_t left =
      std::int64_t{sequence.request->prompt.max_cached_tokens} - sequence.computed;
  return left <= page_size || sequence.preemptions >= max_preemptions;
}

}  // namespace

Sequence* ChooseVictim(std::span<Sequence* const> running, std::uint32_t page_size,
                       std::int32_t max_preemptions,
                       absl::FunctionRef<bool(const Sequence&)> frees_pages) {
  const Sequence* exempt = nullptr;
  for (const Sequence* sequence : running) {
    if (sequence->active() && !sequence->is_stalled) {
      exempt = sequence;
      break;
    }
  }
  Sequence* victim = nullptr;
  auto rank = [&](const Sequence& sequence) {
    const ScheduledRequest& request = *sequence.request;
    return std::tuple(frees_pages(sequence), !IsSpared(sequence, page_size, max_preemptions),
                      sequence.is_stalled, request.tenant_requests->order(),
                      request.request.priority, sequence.admission_number);
  };
  for (Sequence* sequence : running) {
    if (sequence == exempt || !sequence->active() || sequence->num_pages == 0) continue;
    if (victim == nullptr || rank(*sequence) > rank(*victim)) victim = sequence;
  }
  return victim;
}

}  // namespace quire::engine
