#pragma once

// One completions or chat call under way: generations -> events or a body.
//
//   exchange -> Begin -> Generation::Start for each prompt -> Pump ... -> the answer's end
//
// Place:      made by openai_service.cc on the exchange's sequence.
// Invariants: nothing is taken from a generation while a piece of the stream is being written, so a
//             reader that stalls makes tokens wait in TokenStream, which holds the engine back. A
//             failure of one prompt cancels the others and is the answer of the call. When the peer
//             goes, all are cancelled at once. The call ends only when every generation has.
// Threads:    the exchange's sequence; OnReady from any.
// Lifetime:   keeps itself alive until the end of the call.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/api/generation.h"
#include "server/http/http_message.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_request.h"

namespace quire::server {

class OpenAiCall : public std::enable_shared_from_this<OpenAiCall> {
 public:
  // `method` is a constant that metrics and the access log show; `headers` go with every answer.
  OpenAiCall(const HandlerContext& context, std::shared_ptr<HttpExchange> exchange,
             absl::string_view method, HttpHeaders headers);

  // `request_id`: of the first prompt; "-1", "-2" and so on are appended for the others.
  void Begin(OpenAiRequest request, const CallInfo& info, const std::string& request_id,
             const std::string& traceparent);

 private:
  struct Part {
    std::unique_ptr<Generation> generation;
    bool is_done = false;
  };

  void Start(OpenAiRequest request, const CallInfo& info, const std::string& request_id,
             const std::string& traceparent);
  void OnReady();
  void OnGone();
  void Pump();
  void Drain(std::size_t index, std::string* events);
  void Fail(const absl::Status& status);
  void CancelAll();
  bool is_over() const;
  void WriteEvents(std::string events);
  void End();
  void EndWithError();
  void Count(absl::StatusCode code);

  const HandlerContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const absl::string_view method_;
  HttpHeaders headers_;
  bool stream_ = false;
  std::unique_ptr<OpenAiAnswer> answer_;
  std::vector<Part> parts_;
  absl::Status error_;        // the first
  bool has_begun_ = false;    // some of the stream is out
  bool is_writing_ = false;
  bool is_gone_ = false;
  bool has_ended_ = false;
  std::atomic<bool> is_posted_{false};  // a Pump is on its way
};

}  // namespace quire::server
