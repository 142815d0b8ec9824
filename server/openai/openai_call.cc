#include "server/openai/openai_call.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "models/text/tokenizer.h"
#include "server/api/status_mapping.h"
#include "server/openai/openai_error.h"

namespace quire::server {
namespace {

// Events are collected up to about this size before they are written.
constexpr std::size_t kPieceBytes = 64 << 10;

}  // namespace

OpenAiCall::OpenAiCall(const HandlerContext& context, std::shared_ptr<HttpExchange> exchange,
                       absl::string_view method, HttpHeaders headers)
    : context_(context),
      exchange_(std::move(exchange)),
      method_(method),
      headers_(std::move(headers)) {}

void OpenAiCall::Begin(OpenAiRequest request, const CallInfo& info, const std::string& request_id,
                       const std::string& traceparent) {
  const std::shared_ptr<OpenAiCall> self = shared_from_this();
  stream_ = request.stream;
  headers_.emplace_back("x-request-id", request_id);
  // The project throws nothing, but libraries below may: an allocation above all.
  try {
    Start(std::move(request), info, request_id, traceparent);
  } catch (const std::exception& error) {
    Fail(Seal(absl::InternalError(error.what())));
  }
  for (Part& part : parts_) part.generation->SetReadyCallback([self] { self->OnReady(); });
  exchange_->OnGone([self] { self->OnGone(); });
  Pump();
}

void OpenAiCall::Start(OpenAiRequest request, const CallInfo& info, const std::string& request_id,
                       const std::string& traceparent) {
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    v1::GenerateRequest& message = request.prompts[i];
    message.set_request_id(i == 0 ? request_id : absl::StrCat(request_id, "-", i));
    auto generation = Generation::Start(context_, method_, traceparent, message, info);
    if (!generation.ok()) return Fail(generation.status());
    parts_.push_back({.generation = *std::move(generation)});
  }
  // The model is there, since the first generation has begun.
  const ServedModel* const served = context_.state->model();
  answer_ = std::make_unique<OpenAiAnswer>(
      request,
      OpenAiAnswerHead{.id = absl::StrCat(request.is_chat ? "chatcmpl-" : "cmpl-", request_id),
                       .model = served->id(),
                       .created = absl::ToUnixSeconds(info.accept_time)},
      OpenAiTokens{
          .bytes = [tokenizer = served->tokenizer](
                       std::int32_t id) { return tokenizer->TokenBytes(id); },
          .is_special = [tokenizer = served->tokenizer](
                            std::int32_t id) { return tokenizer->IsSpecial(id); }});
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
  CancelAll();
  Pump();
}

void OpenAiCall::Pump() {
  if (has_ended_ || is_writing_) return;
  std::string events;
  for (std::size_t i = 0; i < parts_.size(); ++i) Drain(i, &events);
  // Before the first byte a failure still has a status of its own.
  const bool may_write = has_begun_ || error_.ok();
  if (!may_write && !events.empty()) {
    // What the limit of one piece left waiting would otherwise wait for a write that never comes.
    events.clear();
    for (std::size_t i = 0; i < parts_.size(); ++i) Drain(i, &events);
  }
  if (!events.empty() && !is_gone_ && may_write) return WriteEvents(std::move(events));
  if (is_over()) End();
}

void OpenAiCall::Drain(std::size_t index, std::string* events) {
  Part& part = parts_[index];
  if (part.is_done) return;
  v1::GenerateResponse message;
  // Behind a failure nothing is kept, so nothing needs to wait.
  while ((events->size() < kPieceBytes || !error_.ok()) &&
         part.generation->TakeResponse(&message)) {
    if (!is_gone_ && error_.ok()) answer_->Take(index, message, events);
    message.Clear();
  }
  if (!part.generation->finished()) return;
  part.is_done = true;
  const absl::Status status = part.generation->Close();
  if (!status.ok()) Fail(status);
}

void OpenAiCall::Fail(const absl::Status& status) {
  if (!error_.ok()) return;
  error_ = status;
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
    exchange_->BeginStream({.content_type = "text/event-stream; charset=utf-8",
                            .body = "",
                            .headers = headers_});
  }
  is_writing_ = true;
  exchange_->Write(std::move(events), [self = shared_from_this()] {
    self->is_writing_ = false;
    self->Pump();
  });
}

void OpenAiCall::End() {
  has_ended_ = true;
  // With them go their callbacks, which hold this call.
  parts_.clear();
  if (is_gone_) return Count(absl::StatusCode::kCancelled);
  if (!error_.ok()) return EndWithError();
  Count(absl::StatusCode::kOk);
  if (!stream_) {
    return exchange_->Answer(
        {.content_type = "application/json", .body = answer_->Body(), .headers = headers_});
  }
  std::string events;
  answer_->AppendEnd(&events);
  exchange_->Write(std::move(events), [exchange = exchange_] { exchange->EndStream(true); });
}

void OpenAiCall::EndWithError() {
  Count(error_.code());
  HttpAnswer answer = OpenAiError(error_);
  if (!has_begun_) {
    answer.headers.insert(answer.headers.end(), headers_.begin(), headers_.end());
    return exchange_->Answer(std::move(answer));
  }
  // Without [DONE] and without the end of the body, so that nobody takes it for a whole answer.
  exchange_->Write(SseEvent(answer.body), [exchange = exchange_] { exchange->EndStream(false); });
}

void OpenAiCall::Count(absl::StatusCode code) { context_.probe->CountRpc(method_, code); }

}  // namespace quire::server
