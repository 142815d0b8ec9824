#pragma once

// The output workers. Each takes the items of its requests in order and turns them into stream
// events. It reports stop strings back to the engine and removes finished requests from the table.
//
// Place:      between the engine thread and the TokenStreams.
// Invariants: all items of a request go to one worker, in order. While the ring of a worker is at
//             least half full, the engine starts no requests of that worker, and its steps contain
//             no tokens of the worker's running requests. Steps in flight and ending requests still
//             add items. Items that do not fit into the ring overflow into a list. The worker has
//             room when the ring is less than half full and the list is empty.
// Threads:    Reserve may be called from any thread, and Stop after the engine thread has ended.
//             The engine thread calls everything else. Owns `num_workers` threads.
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
  // The engine is woken when the number of a request's tokens in the ring falls below this.
  std::int32_t stream_queue_tokens = 0;
  HashKey id_key;  // key of the hash that generates tool call ids
};

class OutputStage {
 public:
  OutputStage(const OutputStageOptions& options, const text::Tokenizer* tokenizer,
              const Clock* clock, RequestTable* table, EngineProbe* probe,
              std::shared_ptr<Inbox> inbox);
  ~OutputStage();

  std::size_t num_workers() const { return rings_.size(); }
  // Raises the capacity of every ring to at least `ring_items`.
  void Reserve(std::size_t ring_items);
  // Hands the items to their workers and leaves the vector empty. If items overflow, the engine is
  // woken when the ring is less than half full, and has to call Push again, with or without new
  // items.
  void Push(std::vector<OutputItem>* items);
  // Returns whether the engine may create items for requests of this worker.
  bool HasRoom(std::size_t worker) const;
  // Wakes the engine at once if the worker has room, else when its ring is less than half full.
  void WakeWhenRoom(std::size_t worker);
  // Waits until the workers have processed everything that was pushed. Returns false on timeout.
  bool WaitDone(absl::Duration timeout);
  // Processes everything that was pushed and joins the workers.
  void Stop();

 private:
  struct Ring;

  static void PushOverflow(Ring& ring);
  static bool IsDone(Ring& ring);
  void Work(Ring& ring);
  void Process(Ring& ring, OutputItem& item);
  void MakeEvents(Ring& ring, OutputItem& item);
  void FinishStream(Ring& ring, OutputItem& item);

  const text::Tokenizer* const tokenizer_;
  const Clock* const clock_;
  RequestTable* const table_;
  EngineProbe* const probe_;
  const std::shared_ptr<Inbox> inbox_;
  std::atomic<std::size_t> half_capacity_;  // half the capacity of a ring, in items
  const std::int32_t stream_queue_tokens_;
  const HashKey id_key_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<std::thread> workers_;
};

}  // namespace quire::engine
