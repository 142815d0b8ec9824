#include "engine/output/output_stage.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/bounded_queue.h"
#include "base/thread_name.h"
#include "engine/output/output_state.h"
#include "engine/output/token_stream.h"

namespace quire::engine {

// The ring of one worker. The batch and the states belong to the worker thread.
struct OutputStage::Ring {
  static constexpr std::size_t kBatch = 256;

  explicit Ring(std::size_t items) : queue(items) { batch.reserve(kBatch); }
  BoundedQueue<OutputItem> queue;
  std::deque<OutputItem> overflow;  // belongs to the engine thread
  std::atomic<bool> engine_waits{false};
  std::uint64_t pushed = 0;  // items, without the overflow
  std::atomic<std::uint64_t> done{0};
  std::vector<OutputItem> batch;
  absl::flat_hash_map<std::uint64_t, std::unique_ptr<OutputState>> states;  // by request (arrival)
};

OutputStage::OutputStage(const OutputStageOptions& options, const text::Tokenizer* tokenizer,
                         const Clock* clock, RequestTable* table, EngineProbe* probe,
                         std::shared_ptr<Inbox> inbox)
    : tokenizer_(tokenizer),
      clock_(clock),
      table_(table),
      probe_(probe),
      inbox_(std::move(inbox)),
      half_capacity_(options.ring_items / 2),
      stream_queue_tokens_(options.stream_queue_tokens),
      id_key_(options.id_key) {
  for (std::int32_t i = 0; i < options.num_workers; ++i) {
    rings_.push_back(std::make_unique<Ring>(options.ring_items));
    workers_.emplace_back([this, ring = rings_.back().get()] { Work(*ring); });
  }
}

OutputStage::~OutputStage() {
  Stop();
}

void OutputStage::Reserve(std::size_t ring_items) {
  for (const auto& ring : rings_) ring->queue.Reserve(ring_items);
  // Set after the rings have grown, because the engine may fill them up to this size.
  half_capacity_.store(rings_.front()->queue.capacity() / 2);
}

void OutputStage::Push(std::vector<OutputItem>* items) {
  // A worker is woken once for consecutive items.
  for (std::span<OutputItem> rest(*items); !rest.empty();) {
    const std::size_t worker = rest.front().request->output_worker;
    const auto end = std::ranges::find_if(
        rest, [&](const OutputItem& item) { return item.request->output_worker != worker; });
    const auto same_worker = rest.first(static_cast<std::size_t>(end - rest.begin()));
    Ring& ring = *rings_[worker];
    const std::size_t pushed = ring.overflow.empty() ? ring.queue.PushSome(same_worker) : 0;
    ring.pushed += pushed;
    std::ranges::move(same_worker.subspan(pushed), std::back_inserter(ring.overflow));
    rest = rest.subspan(same_worker.size());
  }
  items->clear();
  for (const auto& ring : rings_) {
    PushOverflow(*ring);
    if (ring->overflow.empty()) continue;
    ring->engine_waits.store(true);
    // The worker may have emptied the ring before it saw the flag.
    PushOverflow(*ring);
  }
}

void OutputStage::PushOverflow(Ring& ring) {
  while (!ring.overflow.empty() && ring.queue.TryPush(std::move(ring.overflow.front()))) {
    ring.overflow.pop_front();
    ++ring.pushed;
  }
}

bool OutputStage::IsDone(Ring& ring) {
  PushOverflow(ring);
  return ring.overflow.empty() && ring.done.load(std::memory_order_acquire) == ring.pushed;
}

bool OutputStage::HasRoom(std::size_t worker) const {
  const Ring& ring = *rings_[worker];
  return ring.overflow.empty() && ring.queue.size() < half_capacity_;
}

void OutputStage::WakeWhenRoom(std::size_t worker) {
  rings_[worker]->engine_waits.store(true);
  // The worker may have emptied the ring before it saw the flag.
  if (HasRoom(worker)) inbox_->Wake();
}

bool OutputStage::WaitDone(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (const auto& ring : rings_) {
    while (!IsDone(*ring)) {
      if (MonotonicNow() >= deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  return true;
}

void OutputStage::Stop() {
  WaitDone(absl::InfiniteDuration());
  for (const auto& ring : rings_) ring->queue.Close();
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
}

void OutputStage::Work(Ring& ring) {
  SetThreadName("output");
  while (ring.queue.PopAll(Ring::kBatch, &ring.batch) > 0) {
    for (OutputItem& item : ring.batch) Process(ring, item);
    ring.done.fetch_add(ring.batch.size(), std::memory_order_release);
    ring.batch.clear();
    if (ring.engine_waits.load() && ring.queue.size() < half_capacity_) {
      ring.engine_waits.store(false);
      inbox_->Wake();
    }
  }
}

void OutputStage::Process(Ring& ring, OutputItem& item) {
  AcceptedRequest& request = *item.request;
  if (item.kind == OutputItem::Kind::kToken) {
    // The engine stalls a request that has stream_queue_tokens_ tokens in the ring.
    const std::int32_t in_ring = request.in_ring_tokens.fetch_sub(1, std::memory_order_acq_rel);
    if (in_ring == stream_queue_tokens_) inbox_->Wake();
  }
  MakeEvents(ring, item);
  if (item.kind == OutputItem::Kind::kRequestEnd) FinishStream(ring, item);
}

void OutputStage::MakeEvents(Ring& ring, OutputItem& item) {
  AcceptedRequest& request = *item.request;
  std::unique_ptr<OutputState>& state = ring.states[request.arrival];
  if (state == nullptr) state = std::make_unique<OutputState>(item.request, *tokenizer_, id_key_);
  OutputState& output = *state;
  switch (item.kind) {
    case OutputItem::Kind::kStarted:
      output.Start(item);
      return;
    case OutputItem::Kind::kPromptLogprobs:
      output.AddPromptLogprobs(item);
      return;
    case OutputItem::Kind::kPooled:
      request.stream->Write(PooledEvent{std::move(item.pooled)});
      return;
    case OutputItem::Kind::kToken: {
      const bool matched = output.AddToken(item, *clock_, *probe_);
      if (item.finish.has_value()) {
        output.EndChoice(item);
      } else if (matched) {
        inbox_->Post(
            {.kind = Signal::Kind::kStopMatched, .request = item.request, .choice = item.choice});
      }
      return;
    }
    case OutputItem::Kind::kChoiceEnd:
      output.EndChoice(item);
      return;
    case OutputItem::Kind::kRequestEnd:
      output.EndRequest(item, clock_->Now(), *probe_);
      return;
  }
}

// Frees the request id before the client can see the end of the stream.
void OutputStage::FinishStream(Ring& ring, OutputItem& item) {
  AcceptedRequest& request = *item.request;
  const auto state = ring.states.find(request.arrival);  // created by MakeEvents
  const Usage usage = state->second->TotalUsage();
  const absl::Duration time_to_first_token = state->second->TimeToFirstToken();
  ring.states.erase(state);
  table_->Remove(request);
  request.stream->Finish(std::move(item.status), usage, time_to_first_token);
}

}  // namespace quire::engine
