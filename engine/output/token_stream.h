#pragma once

// The bounded output channel of one request: output workers write, one reader takes.
//
// Place:      between the output stage and the transport (a gRPC reactor, a test).
// Invariants: one StartedEvent first; deltas of an index in order; at most one CompletedEvent per
//             index, and none without a generation; nothing after Finish. Consecutive deltas of
//             one index that were not taken yet are merged, so the memory of a slow reader is
//             bounded by its tokens, and those by the scheduler, which does not run a sequence
//             whose stream holds `capacity_tokens` unread tokens. What a reader leaves of a
//             finished answer is given up after a while (UnreadAnswers).
// Threads:    all methods thread-safe.
// Lifetime:   shared by engine and reader; either may go first.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/request/request.h"

namespace quire::engine {

struct TopToken {
  std::int32_t token = 0;
  float logprob = 0;
  std::string bytes;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
  std::int32_t rank = 0;
  std::string bytes;
  std::optional<float> processed_logprob;  // where it was asked for
  // For a sampled token: characters of the choice's text, before it is parsed, that begin before
  // this token.
  std::int32_t text_offset = 0;
  std::vector<TopToken> top;
};

struct Usage {
  std::int32_t prompt_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int32_t reasoning_tokens = 0;  // of completion_tokens, those that made reasoning
};

struct Timings {
  absl::Duration queue, prefill, decode, time_to_first_token;
  std::int32_t preemption_count = 0;
  std::int32_t recomputed_tokens = 0;
};

struct StartedEvent {
  std::string model;
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int64_t seed = 0;
  absl::Time schedule_time;
  std::int32_t max_tokens = 0;
  std::string prompt_text;                     // with echo_prompt
  std::vector<std::int32_t> prompt_token_ids;  // with echo_prompt
  std::vector<std::string> unenforced;         // of CompiledConstraint
};

struct PromptLogprobsEvent {
  std::int32_t start_position = 1;
  std::vector<TokenLogprob> tokens;
};

// The answer of Task::kEmbed, neither cut nor scaled.
struct PooledEvent {
  std::vector<float> values;  // [hidden]
};

struct ToolCallOutput {
  std::int32_t index = 0;  // among the calls of its choice
  std::string id;
  std::string name;
  std::string arguments_json;
};

// With Request::parsing the text of an answer is split into these.
struct ParsedOutput {
  std::string reasoning_text;
  std::vector<ToolCallOutput> tool_calls;
  std::string parse_error;  // of the first call that failed and went out as text; empty: none

  bool empty() const { return reasoning_text.empty() && tool_calls.empty() && parse_error.empty(); }
};

struct DeltaEvent {
  std::int32_t index = 0;
  std::string text;
  ParsedOutput parsed;
  std::vector<std::int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  std::int32_t num_tokens = 0;  // tokens this delta stands for, whether ids are sent or not
  std::optional<Usage> usage;
};

struct CompletedEvent {
  std::int32_t index = 0;
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<std::int32_t> stop_token_id;
  std::optional<std::string> stop_text;
  std::string text;                     // without streaming
  ParsedOutput parsed;                  // without streaming
  std::vector<std::int32_t> token_ids;  // without streaming
  std::vector<TokenLogprob> logprobs;   // without streaming
  Usage usage;
  std::optional<Timings> timings;
};

using OutputEvent =
    std::variant<StartedEvent, PromptLogprobsEvent, DeltaEvent, CompletedEvent, PooledEvent>;

class TokenStream {
 public:
  // Producer side. After Finish both are ignored.
  void Write(OutputEvent event);
  // The end of the request: OK after the last CompletedEvent, else the status with its reason.
  // `usage` is what was spent, for the trailers of a failure.
  void Finish(absl::Status status, const Usage& usage);

  // Reader side. The next event, or nothing. When nothing is left and the stream is finished,
  // `finished()`.
  std::optional<OutputEvent> Take();
  // Finish was called and every event was taken. The first true ends the reading: until then the
  // answer counts as unread.
  bool finished();
  absl::Status status() const;
  Usage usage() const;
  // Called once each time something becomes available after Take returned nothing (or at once if
  // something waits already), from the writing thread, without a lock held. One callback at a time;
  // null removes it and returns after a running call has ended. Not from inside the callback.
  void SetReadyCallback(std::function<void()> callback);

  // Called when the stream is given up while the reader is busy with something that it took, from
  // the thread that gives up. Null removes it and returns after a running call has ended. Not from
  // inside the callback.
  void SetAbandonedCallback(std::function<void()> callback);

  // Engine side, before the stream is handed out: `on_read` runs on the reading thread, once, when
  // finished() is true for the first time.
  void SetReadCallback(std::function<void()> on_read) { on_read_ = std::move(on_read); }
  // Engine side, before the stream is handed out: `on_drained` runs on the reading thread each time
  // a Take brings the unread tokens from `capacity_tokens` or more to below it.
  void SetDrainedCallback(std::int32_t capacity_tokens, std::function<void()> on_drained);
  // Tokens of deltas that were written and not taken; read by the engine for back-pressure.
  std::int32_t unread_tokens() const { return unread_tokens_.load(std::memory_order_acquire); }
  // Take returned nothing since the last event was written.
  bool reader_waits() const;
  // Events so far.
  std::uint64_t num_taken() const { return num_taken_.load(std::memory_order_acquire); }
  bool is_complete() const;  // Finish was called
  // Drops what was not taken; nothing if the reader has come to the end or the stream is not
  // complete. A stream that ended well now ends with `status`.
  void Abandon(absl::Status status);

  absl::Status CheckIntegrity() const;

 private:
  void Notify();

  mutable Mutex mutex_;
  Mutex callback_mutex_;
  std::deque<OutputEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::int32_t> unread_tokens_{0};  // changed under mutex_
  std::atomic<std::uint64_t> num_taken_{0};     // likewise
  bool reader_waits_ ABSL_GUARDED_BY(mutex_) = true;
  bool finish_called_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_read_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Usage usage_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> callback_ ABSL_GUARDED_BY(callback_mutex_);
  std::int32_t capacity_tokens_ = 0;  // constant after SetDrainedCallback
  std::function<void()> on_drained_;  // constant after SetDrainedCallback
  std::function<void()> on_read_;     // constant after SetReadCallback
  Mutex abandoned_mutex_;
  std::function<void()> on_abandoned_ ABSL_GUARDED_BY(abandoned_mutex_);
};

}  // namespace quire::engine
