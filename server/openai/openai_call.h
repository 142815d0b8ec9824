#pragma once

// One call that generates text: reads the body, runs the generations, writes events or a body.
//
//   exchange -> Begin -> Prepare: parse, Generation::Start per prompt -> Pump ... -> End
//
// Place:      created by openai_service.cc on the exchange's strand.
// Invariants: no tokens are taken from generations while a chunk is being written. If the client
//             stops reading, tokens are therefore buffered in TokenStream and the engine stalls the
//             request. A failure of one prompt, or an exception while writing the answer, cancels
//             the other prompts and becomes the answer of the call. If the client disconnects, all
//             prompts are cancelled at once. The call ends when every generation has ended.
// Threads:    runs on the exchange's strand. OnReady is thread-safe. For a large body, Prepare runs
//             on a worker, and the strand does not use the results of Prepare until Prepare has
//             returned.
// Lifetime:   keeps itself alive until the end of the call.

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/call_worker.h"
#include "server/api/generation.h"
#include "server/http/http_message.h"
#include "server/openai/field_names.h"
#include "server/openai/generation_endpoint.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_request.h"
#include "server/openai/unknown_field_log.h"

namespace quire::server {

// Returns the token functions of the model's tokenizer.
OpenAiTokens MakeTokens(const ServedModel& served);

// Properties of a call that are known before its body is read.
struct OpenAiCallHead {
  const GenerationEndpoint* endpoint = nullptr;
  CallInfo info;
  std::string request_id;  // id of the first prompt; others append "-1", "-2", ...
  std::string traceparent;
  HttpHeaders headers;  // added to every answer
  OpenAiTokens (*tokens)(const ServedModel& served) = &MakeTokens;
  UnknownFieldLog* unknown_fields = nullptr;  // outlives the call; null: unknown fields are refused
  // Maximum size of an answer that is not streamed. Such an answer is buffered until its last
  // choice is complete.
  std::size_t max_buffered_bytes = std::size_t{256} << 20;
};

class OpenAiCall : public std::enable_shared_from_this<OpenAiCall> {
 public:
  OpenAiCall(const HandlerContext& context, std::shared_ptr<HttpExchange> exchange,
             OpenAiCallHead head);

  // Call once. `worker` outlives the exchange.
  void Begin(std::string body, CallWorker* worker);

 private:
  struct PromptState {
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
  // `prompt` is the index of the failed prompt of a list; absent: the call failed as a whole.
  void Fail(const absl::Status& status, std::optional<std::size_t> prompt = std::nullopt);
  void CancelAll();
  bool has_finished() const;
  void WriteEvents(std::string events);
  void End();
  // `writer` is null if no generation has started. In this case no stream has begun.
  void EndWithError(AnswerWriter* writer);
  void Count(absl::StatusCode code);

  const HandlerContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  OpenAiCallHead head_;
  bool stream_ = false;
  std::unique_ptr<AnswerWriter> answer_;
  std::vector<PromptState> prompts_;
  std::size_t num_prompts_ = 0;
  absl::Status error_;       // the first error
  FieldNames names_;         // client's names of the fields that error_ may name
  bool is_running_ = false;  // Prepare has returned
  bool has_begun_ = false;   // the response headers of the stream were sent
  bool is_writing_ = false;
  bool is_client_gone_ = false;
  bool has_ended_ = false;
  std::atomic<bool> is_posted_{false};  // a Pump is posted
};

}  // namespace quire::server
