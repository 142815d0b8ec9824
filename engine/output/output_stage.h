#pragma once

// Output workers: each takes the items of its requests in order, turns them into stream events,
// reports stop strings back to the engine and removes finished requests from the table.
//
// Place:      between the engine thread and the TokenStreams.
// Invariants: all items of a request go to one worker, in order. The engine neither runs rows nor
//             starts requests whose ring is half full; what it adds all the same, for steps in
//             flight and requests that end, waits behind a full ring, and the ring counts as full
//             until that is gone.
// Threads:    Push, IsReady and WaitDone from the engine thread; Stop once that has ended; owns
//             `num_workers` threads.
// Lifetime:   tokenizer, table and probe outlive it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/keyed_hash.h"
#include "engine/output/output_item.h"
#include "engine/request/engine_probe.h"
#include "engine/request/inbox.h"
#include "engine/request/request_table.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

struct OutputStageOptions {
  std::int32_t num_workers = 1;
  std::size_t ring_items = 0;
  std::int32_t stream_queue_tokens = 0;  // of one request that may be on their way
  HashKey id_key;                        // of the ids of tool calls
};

class OutputStage {
 public:
  OutputStage(const OutputStageOptions& options, const text::Tokenizer* tokenizer,
              const Clock* clock, RequestTable* table, EngineProbe* probe,
              std::shared_ptr<Inbox> inbox);
  ~OutputStage();

  std::size_t num_workers() const { return rings_.size(); }
  // Every ring holds at least so many items. From any thread.
  void Reserve(std::size_t ring_items);
  // Hands all items over and leaves the vector empty. When a ring is full the engine is woken once
  // it has room, and must call this again, if with no items.
  void Push(std::vector<OutputItem>* items);
  // Whether items of this request may be made. After false the engine is woken when that changes.
  bool IsReady(const AcceptedRequest& request);
  // Waits until the workers have done everything that was pushed; false when `timeout` passes
  // first. From the pushing thread.
  bool WaitDone(absl::Duration timeout);
  // Finishes everything that was pushed and joins the workers.
  void Stop();

 private:
  struct Ring;

  static void PushLate(Ring& ring);
  static bool IsDone(Ring& ring);
  bool HasRoom(const Ring& ring) const;
  void Work(Ring& ring);
  void Process(Ring& ring, OutputItem& item);
  void MakeEvents(Ring& ring, OutputItem& item);
  void FinishStream(Ring& ring, OutputItem& item);

  const text::Tokenizer* const tokenizer_;
  const Clock* const clock_;
  RequestTable* const table_;
  EngineProbe* const probe_;
  const std::shared_ptr<Inbox> inbox_;
  std::atomic<std::size_t> half_;  // of a ring's items
  const std::int32_t stream_queue_tokens_;
  const HashKey id_key_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<std::thread> workers_;
};

}  // namespace quire::engine
