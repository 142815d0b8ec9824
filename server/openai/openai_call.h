#pragma once

// One completions or chat call under way: a body -> generations -> events or a body.
//
//   exchange -> Begin -> Prepare: parse, Generation::Start for each prompt -> Pump ... -> the end
//
// Place:      made by openai_service.cc on the exchange's sequence.
// Invariants: nothing is taken from a generation while a piece of the stream is being written, so a
//             reader that stalls makes tokens wait in TokenStream, which holds the engine back. A
//             failure of one prompt cancels the others and is the answer of the call; so does an
//             exception of a library while an answer is made. When the peer goes, all are cancelled
//             at once. The call ends only when every generation has.
// Threads:    the exchange's sequence; OnReady from any. Prepare runs on a worker where the body is
//             not small, and the sequence touches nothing of what it makes before it is back.
// Lifetime:   keeps itself alive until the end of the call.

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/api/call_worker.h"
#include "server/api/generation.h"
#include "server/http/http_message.h"
#include "server/openai/field_names.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_request.h"

namespace quire::server {

// What the model's tokenizer knows of its tokens.
OpenAiTokens TokensOf(const ServedModel& served);

// What is known of a call before its body is read.
struct OpenAiCallHead {
  absl::string_view method;  // a constant, as metrics and the access log show it
  bool is_chat = false;
  CallInfo info;
  std::string request_id;  // of the first prompt; the others get "-1", "-2" and so on behind it
  std::string traceparent;
  HttpHeaders headers;  // that go with every answer
  OpenAiTokens (*tokens)(const ServedModel& served) = &TokensOf;
  // Of an answer without a stream, which is kept until its last choice is there.
  std::size_t max_kept_bytes = std::size_t{256} << 20;
};

class OpenAiCall : public std::enable_shared_from_this<OpenAiCall> {
 public:
  OpenAiCall(const HandlerContext& context, std::shared_ptr<HttpExchange> exchange,
             OpenAiCallHead head);

  // Once. `worker` outlives the exchange.
  void Begin(std::string body, CallWorker* worker);

 private:
  struct Part {
    std::unique_ptr<Generation> generation;
    bool is_done = false;
  };

  void Prepare(const std::string& body);
  absl::StatusOr<OpenAiRequest> Read(const std::string& body);
  void Start(OpenAiRequest request);
  void Run();
  void OnReady();
  void OnGone();
  void Pump();
  std::string Collect();
  void Drain(std::size_t index, std::string* events);
  // `prompt`: the index of the one that failed, of a list; absent: the call as a whole.
  void Fail(const absl::Status& status, std::optional<std::size_t> prompt = std::nullopt);
  void CancelAll();
  bool is_over() const;
  void WriteEvents(std::string events);
  void End();
  void EndWithError();
  void Count(absl::StatusCode code);

  const HandlerContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  OpenAiCallHead head_;
  bool stream_ = false;
  std::unique_ptr<OpenAiAnswer> answer_;
  std::vector<Part> parts_;
  std::size_t num_prompts_ = 0;
  absl::Status error_;       // the first
  FieldNames names_;         // of the fields that error_ may name
  bool is_running_ = false;  // Prepare is back
  bool has_begun_ = false;   // some of the stream is out
  bool is_writing_ = false;
  bool is_gone_ = false;
  bool has_ended_ = false;
  std::atomic<bool> is_posted_{false};  // a Pump is on its way
};

}  // namespace quire::server
