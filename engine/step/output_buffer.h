#pragma once

// The output items that the engine thread has created and not yet handed to the output workers.
//
// Place:      filled by RequestLifecycle and StepCollector, emptied by EngineCore::TakeOutput.
// Invariants: items are in the order in which they were created. kRequestEnd is the last item of
//             its request.
// Threads:    engine thread only.

#include <vector>

#include "absl/time/time.h"
#include "base/check.h"
#include "engine/output/output_item.h"
#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

class OutputBuffer {
 public:
  // Appends an item and returns it. REQUIRES: !live.ended || kind == kRequestEnd.
  OutputItem& Add(OutputItem::Kind kind, const ScheduledRequest& live, absl::Time now) {
    QUIRE_CHECK(!live.ended || kind == OutputItem::Kind::kRequestEnd);
    OutputItem& item = items_.emplace_back();
    item.kind = kind;
    item.request = live.accepted;
    item.time = now;
    return item;
  }
  // Clears `out` and swaps it with the buffer. Both vectors keep their capacity.
  void Take(std::vector<OutputItem>* out) {
    out->clear();
    out->swap(items_);
  }

 private:
  std::vector<OutputItem> items_;
};

// Copies the counters of a choice into the last item of the choice.
inline void CopyChoiceCounters(const Sequence& sequence, OutputItem* item) {
  item->choice = sequence.choice;
  item->preemptions = sequence.preemptions;
  item->recomputed_tokens = sequence.recomputed_tokens;
}

}  // namespace quire::engine
