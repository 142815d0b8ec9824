#pragma once

// One Embed or Score call, independent of the transport. It runs many engine requests that generate
// no tokens, and collects their results.
//
//   transport -> translator -> Evaluation::Start -> Engine::Accept, a few at a time -> done
//
// Place:      between the transports and the engine, like Generation. Owns the read side of the
//             streams, the access log line and the counters of one call.
// Invariants: `done` is called once, after all requests of the call have ended. The first failure
//             becomes the status of the call and cancels the other requests. At most kMaxLiveItems
//             requests are live. If the queue is full, a request is retried when another request of
//             the call ends. If no other request of the call is live, the call fails.
// Threads:    one thread calls Start. Cancel is thread-safe. `done` is called from Refuse, Start,
//             Cancel or an output worker, without a lock.
// Lifetime:   keeps itself alive until `done` has returned. The state's model outlives it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/output/token_stream.h"
#include "engine/request/request.h"
#include "server/api/access_log.h"
#include "server/api/generation.h"

namespace quire::server {

struct EvaluationItem {
  engine::Request request;  // task, prompt and output; Start sets the other fields
  // The index of an earlier item whose prompt shares a prefix with this item's prompt. This item
  // starts when the earlier item has ended.
  std::optional<std::size_t> predecessor = {};
  // If true, the ScorePrompt of this item has no context. It receives the context tokens of the
  // predecessor, so that the context is tokenized only once. REQUIRES: the predecessor is a score
  // that echoes its prompt ids.
  bool copies_context = false;
  // The name of the item in the client's request ("documents[3]"), for error messages; empty: no
  // name.
  std::string field = {};
};

struct EvaluationResult {
  engine::Usage usage;
  std::vector<engine::TokenLogprob> logprobs;  // for Task::kScore
  std::vector<float> pooled;                   // for Task::kEmbed
};

class Evaluation : public std::enable_shared_from_this<Evaluation> {
 public:
  static constexpr std::size_t kMaxLiveItems = 32;
  // If the status is OK, there is one result per item, in order.
  using Done = std::function<void(absl::Status status, std::vector<EvaluationResult> results)>;

  // `method` is a constant, as used in metrics and the access log.
  Evaluation(const HandlerContext& context, absl::string_view method, std::string traceparent,
             const CallInfo& call, Done done);

  // The id of the first item. The other items append "-1", "-2" and so on.
  const std::string& id() const { return record_.request_id; }

  // Counts and logs a call that was refused before it had items, and calls `done`.
  void Refuse(const absl::Status& why);
  // Starts the items. Call either Refuse or Start, once. REQUIRES: there are items.
  void Start(const ServedModel& served, std::vector<EvaluationItem> items);
  // Called if the client is gone or the deadline of the call has passed.
  void Cancel();

 private:
  struct ItemState {
    EvaluationItem item;
    std::shared_ptr<engine::TokenStream> stream = nullptr;  // null unless its request is live
    bool is_done = false;
    std::vector<std::int32_t> prompt_ids = {};  // set if the request echoes them
    EvaluationResult result = {};
  };

  void FillRequest(std::size_t index, engine::Request* request) const;
  void OnReady();
  void Pump();
  void Drain(ItemState& state);
  void Submit();
  static void CopyContext(const ItemState& earlier, engine::Request* request);
  bool SubmitNext(std::size_t index);
  void Fail(const absl::Status& status, engine::CancelSource source);
  void End(absl::Status status);
  std::vector<EvaluationResult> TakeResults(const absl::Status& status);

  const HandlerContext context_;
  const CallInfo call_;
  const Done done_;
  AccessRecord record_;
  const ServedModel* served_ = nullptr;  // constant after Start, like the next member
  std::shared_ptr<const TranslatorOptions> options_;

  // Used by the thread that runs Pump. At most one thread runs it at any moment.
  std::vector<ItemState> items_;
  std::size_t num_live_ = 0;
  std::size_t first_unsubmitted_ = 0;  // all items before it were submitted
  absl::Status error_;                 // the first error
  bool has_ended_ = false;

  std::atomic<bool> is_started_{false};
  std::atomic<bool> is_cancelled_{false};
  std::atomic<std::uint32_t> num_events_{0};  // events since the last Pump
};

}  // namespace quire::server
