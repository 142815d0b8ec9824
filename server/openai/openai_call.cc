#include "server/openai/openai_call.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "server/api/request_translator.h"
#include "server/api/status_mapping.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "server/openai/openai_error.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::server {
namespace {

// Events are collected up to about this size before they are written.
constexpr std::size_t kPieceBytes = 64 << 10;
// A larger body is read by a worker: the threads of the listener, of which there are two, move the
// streams of all calls on. So many bytes have at most 500 prompts and take a millisecond or two.
constexpr std::size_t kSmallBodyBytes = 2 << 10;

absl::Status TooLargeAnswer(std::size_t max_bytes) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("the answer has more than ", max_bytes,
                                              " bytes; ask for a stream, or for less at once")),
      Reason::kBadParameter, {{"field", "stream"}});
}

// A library threw.
absl::Status StatusOf(const std::exception& error) {
  return SanitizeInternalError(absl::InternalError(error.what()));
}

}  // namespace

OpenAiTokens TokensOf(const ServedModel& served) {
  const text::Tokenizer* const tokenizer = served.tokenizer;
  return {.bytes = [tokenizer](std::int32_t id) { return tokenizer->TokenBytes(id); },
          .is_special = [tokenizer](std::int32_t id) { return tokenizer->IsSpecial(id); },
          .detokenizer = [tokenizer](bool skips) { return text::Detokenizer(*tokenizer, skips); }};
}

OpenAiCall::OpenAiCall(const HandlerContext& context, std::shared_ptr<HttpExchange> exchange,
                       OpenAiCallHead head)
    : context_(context), exchange_(std::move(exchange)), head_(std::move(head)) {}

void OpenAiCall::Begin(std::string body, CallWorker* worker) {
  const std::shared_ptr<OpenAiCall> self = shared_from_this();
  exchange_->OnGone([self] { self->OnGone(); });
  if (body.size() <= kSmallBodyBytes) {
    Prepare(body);
    return Run();
  }
  // A job is copied, a body should not be.
  const auto shared_body = std::make_shared<const std::string>(std::move(body));
  const absl::Status status = worker->Run([self, shared_body] {
    self->Prepare(*shared_body);
    self->exchange_->Post([self] { self->Run(); });
  });
  if (status.ok()) return;
  context_.probe->CountRefused(ToWireError(status).reason);
  error_ = status;
  Run();
}

void OpenAiCall::Prepare(const std::string& body) {
  // The project throws nothing, but libraries below may: an allocation above all.
  try {
    absl::StatusOr<OpenAiRequest> request = Read(body);
    if (request.ok()) return Start(*std::move(request));
    error_ = SanitizeInternalError(request.status());
    context_.probe->CountRefused(ToWireError(error_).reason);
  } catch (const std::exception& error) {
    Fail(StatusOf(error));
  }
}

absl::StatusOr<OpenAiRequest> OpenAiCall::Read(const std::string& body) {
  const std::shared_ptr<const DaemonOptions> options = context_.config->options();
  const text::jinja::JsonLimits& json = options->chat.rendering.json_limits;
  const OpenAiLimits limits = {
      .max_json_nodes = json.max_nodes,
      .max_json_depth = json.max_depth,
      .max_logit_bias_entries = options->engine.limits.max_logit_bias_entries};
  absl::StatusOr<OpenAiRequest> request =
      head_.is_chat ? ParseChatRequest(body, limits) : ParseCompletionRequest(body, limits);
  // The last prompt's id is the longest one. A refusal has an id, too.
  const std::size_t others = request.ok() ? request->prompts.size() - 1 : 0;
  head_.request_id =
      ChooseRequestId(head_.request_id, others == 0 ? "" : absl::StrCat("-", others));
  head_.headers.emplace_back("x-request-id", head_.request_id);
  if (!request.ok()) return request.status();
  // A longer list could never wait as a whole.
  const std::int32_t most = options->engine.max_queued_requests;
  if (request->prompts.size() > static_cast<std::size_t>(most)) {
    return BadParameter("prompt", absl::StrCat(request->prompts.size(), " entries long"),
                        absl::StrCat("at most ", most, " entries (limits.max_queued_requests)"));
  }
  return request;
}

void OpenAiCall::Start(OpenAiRequest request) {
  stream_ = request.stream;
  names_ = request.names;
  num_prompts_ = request.prompts.size();
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    v1::GenerateRequest& message = request.prompts[i];
    message.set_request_id(i == 0 ? head_.request_id : absl::StrCat(head_.request_id, "-", i));
    auto generation =
        Generation::Start(context_, head_.method, head_.traceparent, message, head_.info);
    if (!generation.ok()) return Fail(generation.status(), i);
    parts_.push_back({.generation = *std::move(generation)});
  }
  // The model is there, since the first generation has begun.
  const ServedModel* const served = context_.state->model();
  answer_ = std::make_unique<OpenAiAnswer>(
      request,
      OpenAiAnswerHead{
          .id = absl::StrCat(head_.is_chat ? "chatcmpl-" : "cmpl-", head_.request_id),
          .model = served->id(),
          .created = absl::ToUnixSeconds(context_.clock->ToWall(head_.info.accept_time))},
      head_.tokens(*served));
}

// From here on everything happens on the sequence of the exchange.
void OpenAiCall::Run() {
  is_running_ = true;
  if (is_gone_) CancelAll();
  const std::shared_ptr<OpenAiCall> self = shared_from_this();
  for (Part& part : parts_) part.generation->SetReadyCallback([self] { self->OnReady(); });
  Pump();
}

void OpenAiCall::OnReady() {
  if (is_posted_.exchange(true)) return;
  exchange_->Post([self = shared_from_this()] {
    self->is_posted_.store(false);
    self->Pump();
  });
}

void OpenAiCall::OnGone() {
  is_gone_ = true;
  is_writing_ = false;
  if (!is_running_) return;  // Run will look
  CancelAll();
  Pump();
}

void OpenAiCall::Pump() {
  if (has_ended_ || is_writing_ || !is_running_) return;
  std::string events;
  try {
    events = Collect();
  } catch (const std::exception& error) {
    // What was taken is lost, so the call cannot go on; behind a failure nothing is made of the
    // rest.
    Fail(StatusOf(error));
    Collect();
  }
  if (!events.empty()) return WriteEvents(std::move(events));
  if (is_over()) End();
}

// The events that may leave now.
std::string OpenAiCall::Collect() {
  std::string events;
  for (std::size_t i = 0; i < parts_.size(); ++i) Drain(i, &events);
  // Before the first byte a failure still has a status of its own.
  const bool may_write = has_begun_ || error_.ok();
  if (!may_write && !events.empty()) {
    // What the limit of one piece left waiting would otherwise wait for a write that never comes.
    events.clear();
    for (std::size_t i = 0; i < parts_.size(); ++i) Drain(i, &events);
  }
  if (is_gone_ || !may_write) events.clear();
  return events;
}

void OpenAiCall::Drain(std::size_t index, std::string* events) {
  Part& part = parts_[index];
  if (part.is_done) return;
  v1::GenerateResponse message;
  // Behind a failure nothing is kept, so nothing needs to wait.
  while ((events->size() < kPieceBytes || !error_.ok()) &&
         part.generation->TakeResponse(&message)) {
    if (!is_gone_ && error_.ok()) {
      answer_->Take(index, message, events);
      if (answer_->kept_bytes() > head_.max_kept_bytes) {
        Fail(TooLargeAnswer(head_.max_kept_bytes));
      }
    }
    message.Clear();
  }
  if (!part.generation->finished()) return;
  part.is_done = true;
  const absl::Status status = part.generation->Close();
  if (!status.ok()) Fail(status, index);
}

void OpenAiCall::Fail(const absl::Status& status, std::optional<std::size_t> prompt) {
  if (!error_.ok()) return;
  error_ = status;
  if (prompt && num_prompts_ > 1) names_.Set("prompt", absl::StrCat("prompt[", *prompt, "]"));
  CancelAll();
}

void OpenAiCall::CancelAll() {
  for (Part& part : parts_) {
    if (!part.is_done) part.generation->Cancel();
  }
}

bool OpenAiCall::is_over() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.is_done; });
}

void OpenAiCall::WriteEvents(std::string events) {
  if (!has_begun_) {
    has_begun_ = true;
    exchange_->BeginStream(
        {.content_type = "text/event-stream; charset=utf-8", .body = "", .headers = head_.headers});
  }
  is_writing_ = true;
  exchange_->Write(std::move(events), [self = shared_from_this()] {
    self->is_writing_ = false;
    self->Pump();
  });
}

void OpenAiCall::End() {
  std::string last;
  if (!is_gone_ && error_.ok()) {
    try {
      if (stream_) {
        answer_->AppendEnd(&last);
      } else {
        last = answer_->TakeBody();
      }
    } catch (const std::exception& error) {
      error_ = StatusOf(error);
    }
  }
  has_ended_ = true;
  // With them go their callbacks, which hold this call.
  parts_.clear();
  answer_.reset();
  if (is_gone_) return Count(absl::StatusCode::kCancelled);
  if (!error_.ok()) return EndWithError();
  Count(absl::StatusCode::kOk);
  if (!stream_) {
    return exchange_->Answer({.content_type = "application/json",
                              .body = std::move(last),
                              .headers = std::move(head_.headers)});
  }
  exchange_->Write(std::move(last), [exchange = exchange_] { exchange->EndStream(true); });
}

void OpenAiCall::EndWithError() {
  Count(error_.code());
  HttpAnswer answer = OpenAiError(error_, names_);
  if (!has_begun_) {
    answer.headers.insert(answer.headers.end(), head_.headers.begin(), head_.headers.end());
    return exchange_->Answer(std::move(answer));
  }
  // Without [DONE] and without the end of the body, so that the client does not take it for a whole
  // answer.
  exchange_->Write(SseEvent(answer.body), [exchange = exchange_] { exchange->EndStream(false); });
}

void OpenAiCall::Count(absl::StatusCode code) {
  context_.probe->CountRpc(head_.method, code);
}

}  // namespace quire::server
