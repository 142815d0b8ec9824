#include "engine/output/output_stage.h"

#include <utility>

#include "absl/time/clock.h"
#include "engine/output/request_output.h"

namespace quire::engine {

OutputStage::OutputStage(const OutputStageOptions& options, const text::Tokenizer* tokenizer,
                         const Clock* clock, RequestTable* table, EngineProbe* probe,
                         std::shared_ptr<Inbox> inbox)
    : tokenizer_(tokenizer),
      clock_(clock),
      table_(table),
      probe_(probe),
      inbox_(std::move(inbox)),
      half_(options.ring_items / 2),
      stream_queue_tokens_(options.stream_queue_tokens) {
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
  // Only now: what the engine makes up to here must have its room.
  half_.store(rings_.front()->queue.capacity() / 2);
}

void OutputStage::Push(std::vector<OutputItem>* items) {
  for (OutputItem& item : *items) {
    Ring& ring = *rings_[item.request->output_worker];
    if (ring.late.empty() && ring.queue.TryPush(std::move(item))) {
      ++ring.pushed;
    } else {
      ring.late.push_back(std::move(item));
    }
  }
  items->clear();
  for (const auto& ring : rings_) {
    PushLate(*ring);
    if (ring->late.empty()) continue;
    ring->engine_waits.store(true);
    // The worker may have emptied it in between and seen no flag.
    PushLate(*ring);
  }
}

void OutputStage::PushLate(Ring& ring) {
  while (!ring.late.empty() && ring.queue.TryPush(std::move(ring.late.front()))) {
    ring.late.pop_front();
    ++ring.pushed;
  }
}

bool OutputStage::IsDone(Ring& ring) {
  PushLate(ring);
  return ring.late.empty() && ring.done.load(std::memory_order_acquire) == ring.pushed;
}

bool OutputStage::HasRoom(const Ring& ring) const {
  return ring.late.empty() && ring.queue.size() < half_;
}

bool OutputStage::IsReady(const LiveRequest& live) {
  if (live.in_ring_tokens.load(std::memory_order_acquire) >= stream_queue_tokens_) return false;
  Ring& ring = *rings_[live.output_worker];
  if (HasRoom(ring)) return true;
  ring.engine_waits.store(true);
  // The worker may have emptied it in between and seen no flag.
  return HasRoom(ring);
}

bool OutputStage::WaitDone(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (const auto& ring : rings_) {
    while (!IsDone(*ring)) {
      if (absl::Now() >= deadline) return false;
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
  constexpr std::size_t kBatch = 256;
  std::vector<OutputItem> items;
  items.reserve(kBatch);
  while (ring.queue.WaitPopAll(kBatch, &items) > 0) {
    for (OutputItem& item : items) Process(item);
    ring.done.fetch_add(items.size(), std::memory_order_release);
    items.clear();
    if (ring.engine_waits.load() && ring.queue.size() < half_) {
      ring.engine_waits.store(false);
      inbox_->Wake();
    }
  }
}

void OutputStage::Process(OutputItem& item) {
  LiveRequest& live = *item.request;
  if (live.output == nullptr) live.output = std::make_shared<RequestOutput>(live, *tokenizer_);
  RequestOutput& output = *live.output;
  switch (item.kind) {
    case OutputItem::Kind::kStarted:
      output.Start(item);
      return;
    case OutputItem::Kind::kPromptScores:
      output.AddPromptScores(item);
      return;
    case OutputItem::Kind::kToken: {
      // The engine passes over a request with that many tokens on their way.
      const std::int32_t in_ring = live.in_ring_tokens.fetch_sub(1, std::memory_order_acq_rel);
      if (in_ring == stream_queue_tokens_) inbox_->Wake();
      const bool matched = output.AddToken(item, clock_->Now(), *probe_);
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
    case OutputItem::Kind::kRequestEnd: {
      // Whoever sees the end finds it counted, and the id free.
      const Usage usage = output.EndRequest(item, clock_->Now(), *probe_);
      table_->Remove(live);
      live.stream->Finish(item.status, usage);
      return;
    }
  }
}

}  // namespace quire::engine
