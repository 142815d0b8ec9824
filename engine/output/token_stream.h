#pragma once

// The bounded output channel of one request: output workers write, and one reader takes events.
//
// Place:      between the output stage and the transport (a gRPC reactor, a test).
// Invariants: there is one StartedEvent, and it comes first. Deltas of a choice are in order. There
//             is at most one CompletedEvent per choice, and none for tasks that do not generate
//             (kScore, kEmbed). Nothing follows Finish. Consecutive deltas of a choice are merged
//             until they are taken. The memory of a stream with a slow reader therefore grows only
//             with its unread tokens. The scheduler limits their number: it does not run a sequence
//             whose stream has `capacity_tokens` unread tokens. The unread part of a finished
//             answer is dropped after a while (UnreadAnswers).
// Threads:    thread-safe.
// Lifetime:   shared by engine and reader, which may release it in any order.

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
  std::optional<float> processed_logprob;  // set if requested
  // For a sampled token: its position in the text of the choice before that text is split into
  // content, reasoning and tool calls. The position is the number of code points that begin before
  // the token.
  std::int32_t text_offset = 0;
  std::vector<TopToken> top;
};

struct Usage {
  std::int32_t prompt_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int32_t reasoning_tokens = 0;  // the part of completion_tokens that produced reasoning
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
  std::string prompt_text;                     // empty unless echo_prompt is set
  std::vector<std::int32_t> prompt_token_ids;  // empty unless echo_prompt is set
  std::vector<std::string> unenforced;         // CompiledConstraint::unenforced()
};

struct PromptLogprobsEvent {
  std::int32_t start_position = 1;
  std::vector<TokenLogprob> tokens;
};

// The result of Task::kEmbed, neither truncated nor normalized.
struct PooledEvent {
  std::vector<float> values;  // [hidden]
};

struct ToolCallOutput {
  std::int32_t index = 0;  // index among the calls of its choice
  std::string id;
  std::string name;
  std::string arguments_json;
};

// The parts of an answer's text that are separated if Request::parsing is set.
struct ParsedOutput {
  std::string reasoning_text;
  std::vector<ToolCallOutput> tool_calls;
  // Error of the first call that failed and was emitted as text; empty: none.
  std::string parse_error;

  bool empty() const { return reasoning_text.empty() && tool_calls.empty() && parse_error.empty(); }
};

struct DeltaEvent {
  std::int32_t index = 0;  // index of the choice
  std::string text;
  ParsedOutput parsed;
  std::vector<std::int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  std::int32_t num_tokens = 0;  // number of tokens of this delta, with or without their ids
  std::optional<Usage> usage;
};

struct CompletedEvent {
  std::int32_t index = 0;  // index of the choice
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<std::int32_t> stop_token_id;
  std::optional<std::string> stop_text;
  std::string text;                     // empty when streaming
  ParsedOutput parsed;                  // empty when streaming
  std::vector<std::int32_t> token_ids;  // empty when streaming
  std::vector<TokenLogprob> logprobs;   // empty when streaming
  Usage usage;
  std::optional<Timings> timings;
};

using OutputEvent =
    std::variant<StartedEvent, PromptLogprobsEvent, DeltaEvent, CompletedEvent, PooledEvent>;

class TokenStream {
 public:
  // Write and Finish are for the producer. After Finish, both do nothing.
  void Write(OutputEvent event);
  // Ends the request: with OK after the last CompletedEvent, otherwise with the status and its
  // reason. `usage` is the usage so far, for the trailers of a failed call. `time_to_first_token`
  // is 0 if no token was sampled.
  void Finish(absl::Status status, const Usage& usage,
              absl::Duration time_to_first_token = absl::ZeroDuration());

  // For the reader. Returns the next event, or nullopt if there is none now. If finished() is also
  // true, none will follow.
  std::optional<OutputEvent> Take();
  // Returns whether Finish was called and every event was taken. The answer counts as unread until
  // this returns true for the first time.
  bool finished();
  absl::Status status() const;
  Usage usage() const;
  // Returns the time that Finish set, or 0 before.
  absl::Duration time_to_first_token() const;
  // Sets a callback. After Take returned nothing, the thread that writes the next event or the end
  // calls it once. The callback may call Take. If an event or the end is already available,
  // SetReadyCallback itself calls the callback. There is one callback at a time. Passing null
  // removes it and returns after a running call has ended. Must not be called from inside the
  // callback.
  void SetReadyCallback(std::function<void()> callback);

  // Sets a callback that Abandon calls. Passing null removes it and returns after a running call
  // has ended. Must not be called from inside the callback.
  void SetAbandonedCallback(std::function<void()> callback);

  // For the engine, before the reader gets the stream: the reading thread calls `on_read` once,
  // when finished() is true for the first time.
  void SetFullyReadCallback(std::function<void()> on_read) { on_read_ = std::move(on_read); }
  // For the engine, before the reader gets the stream: the reading thread calls `on_drained`
  // whenever a Take reduces the unread tokens from `capacity_tokens` or more to fewer.
  void SetDrainedCallback(std::int32_t capacity_tokens, std::function<void()> on_drained) {
    capacity_tokens_ = capacity_tokens;
    on_drained_ = std::move(on_drained);
  }
  // Number of tokens in deltas that are written and not taken. The engine reads it for
  // back-pressure.
  std::int32_t unread_tokens() const { return unread_tokens_.load(std::memory_order_acquire); }
  // Number of events taken so far.
  std::uint64_t num_taken() const { return num_taken_.load(std::memory_order_acquire); }
  bool is_complete() const;  // whether Finish was called
  // Drops the events that are not taken. Does nothing if the reader has read everything or the
  // stream is not complete. If the final status was OK, it becomes `status`.
  void Abandon(absl::Status status);

  absl::Status CheckIntegrity() const;

 private:
  void Notify();

  mutable Mutex mutex_;
  Mutex callback_mutex_;
  std::deque<OutputEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::int32_t> unread_tokens_{0};  // changed under mutex_
  std::atomic<std::uint64_t> num_taken_{0};     // changed under mutex_
  // True if Take has returned nothing since the last event was written, or if no event was written.
  bool reader_waits_ ABSL_GUARDED_BY(mutex_) = true;
  bool finish_called_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_read_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Usage usage_ ABSL_GUARDED_BY(mutex_);
  absl::Duration time_to_first_token_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> callback_ ABSL_GUARDED_BY(callback_mutex_);
  std::int32_t capacity_tokens_ = 0;  // constant after SetDrainedCallback
  std::function<void()> on_drained_;  // constant after SetDrainedCallback
  std::function<void()> on_read_;     // constant after SetFullyReadCallback
  Mutex abandoned_mutex_;
  std::function<void()> on_abandoned_ ABSL_GUARDED_BY(abandoned_mutex_);
};

}  // namespace quire::engine
