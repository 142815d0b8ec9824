#pragma once

// One Embed or Score call without any transport: many requests to the engine that generate nothing,
// and their results as one answer.
//
//   transport -> translator -> Evaluation::Start -> Engine::Accept, some at a time -> done
//
// Place:      between the transports and the engine, as Generation; owns the reader's ends of the
//             streams, the access log line and the counters of one call.
// Invariants: `done` is called once, and after it no request of the call is live. The first failure
//             is that of the call, and cancels the others. At most kMaxLiveItems requests are live
//             at a time; one that finds the queue full while others are live waits for one of them.
// Threads:    Start from one; Cancel from any. `done` is called from Start, Cancel or an output
//             worker, with no lock held.
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
  engine::Request request;  // task, prompt and output; Start fills the rest
  // An earlier item whose pages this one shares: it begins when that one has ended.
  std::optional<std::size_t> after = {};
  // The context of its ScorePrompt, which is empty here, is that of the earlier item in tokens: it
  // is not read twice. REQUIRES: that one is a score, and echoes the ids of its prompt.
  bool takes_context = false;
  // Its errors name this field, in which the client sent it ("documents[3]"); empty: they do not.
  std::string field = {};
};

struct EvaluationResult {
  engine::Usage usage;
  std::vector<engine::TokenLogprob> logprobs;  // of Task::kScore
  std::vector<float> pooled;                   // of Task::kEmbed
};

class Evaluation : public std::enable_shared_from_this<Evaluation> {
 public:
  static constexpr std::size_t kMaxLiveItems = 32;
  // With an OK status one result an item, in their order.
  using Done = std::function<void(absl::Status status, std::vector<EvaluationResult> results)>;

  // `method` is a constant, as metrics and the access log show it.
  Evaluation(const HandlerContext& context, absl::string_view method, std::string traceparent,
             const CallInfo& call, Done done);

  // The id of the first item; the others get "-1", "-2" and so on behind it.
  const std::string& id() const { return record_.request_id; }

  // Counts and logs the refusal of a call that came to no items, and calls `done`.
  void Refuse(const absl::Status& why);
  // Once, as Refuse. REQUIRES: there are items.
  void Start(const ServedModel& served, std::vector<EvaluationItem> items);
  // The client is gone, or the deadline of the call has passed.
  void Cancel();

 private:
  struct Part {
    EvaluationItem item;
    std::shared_ptr<engine::TokenStream> stream = nullptr;  // while it is live
    bool is_done = false;
    std::vector<std::int32_t> prompt_ids = {};  // where the request echoes them
    EvaluationResult result = {};
  };

  void FillRequest(std::size_t index, engine::Request* request) const;
  void OnReady();
  void Pump();
  void Drain(Part& part);
  void Submit();
  static void TakeContext(const Part& earlier, engine::Request* request);
  bool SubmitNext(std::size_t index);
  void Fail(const absl::Status& status, engine::CancelSource source);
  void End(absl::Status status);
  std::vector<EvaluationResult> TakeResults(const absl::Status& status);

  const HandlerContext context_;
  const CallInfo call_;
  const Done done_;
  AccessRecord record_;
  const ServedModel* served_ = nullptr;  // constant after Start, as the next
  std::shared_ptr<const TranslatorOptions> options_;

  // Of the thread that pumps, of which there is one at a time.
  std::vector<Part> parts_;
  std::size_t num_live_ = 0;
  std::size_t first_idle_ = 0;  // the parts before it were all submitted
  absl::Status error_;          // the first
  bool has_ended_ = false;

  std::atomic<bool> is_started_{false};
  std::atomic<bool> is_cancelled_{false};
  std::atomic<std::uint32_t> news_{0};  // since the thread that pumps has looked
};

}  // namespace quire::server
