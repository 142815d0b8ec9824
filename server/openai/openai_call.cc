#include "server/openai/openai_call.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "server/api/request_translator.h"
#include "server/api/status_mapping.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "server/openai/openai_error.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::server {
namespace {

// Events are buffered up to about this size before they are written.
constexpr std::size_t kPieceBytes = 64 << 10;
// Larger bodies are read by a worker, because only two listener threads serve the streams of all
// calls. Reading a body of at most this size takes one or two milliseconds.
constexpr std::size_t kSmallBodyBytes = 2 << 10;

absl::Status TooLargeAnswer(std::size_t max_bytes) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("the answer has more than ", max_bytes,
                                              " bytes; set stream to true or request less output")),
      Reason::kBadParameter, {{"field", "stream"}});
}

// Converts an exception of a library.
absl::Status ToStatus(const std::exception& error) {
  return SanitizeInternalError(absl::InternalError(error.what()));
}

}  // namespace

OpenAiTokens MakeTokens(const ServedModel& served) {
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
  // Jobs are copied, so share the body instead of copying it.
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
  // Our code does not throw, but libraries may.
  try {
    absl::StatusOr<OpenAiRequest> request = Read(body);
    if (request.ok()) return Start(*std::move(request));
    error_ = SanitizeInternalError(request.status());
    context_.probe->CountRefused(ToWireError(error_).reason);
  } catch (const std::exception& error) {
    Fail(ToStatus(error));
  }
}

absl::StatusOr<OpenAiRequest> OpenAiCall::Read(const std::string& body) {
  const std::shared_ptr<const DaemonOptions> options = context_.config->options();
  const text::jinja::JsonLimits& json = options->chat.rendering.json_limits;
  OpenAiLimits limits = {.max_json_nodes = json.max_nodes,
                         .max_json_depth = json.max_depth,
                         .max_logit_bias_entries = options->engine.limits.max_logit_bias_entries};
  // Without a model the limits keep their defaults, and the call fails later.
  if (const ServedModel* const served = context_.state->model()) {
    const std::shared_ptr<const TranslatorOptions> model = served->translator.options();
    limits.max_tokens = model->limits.max_tokens_per_request;
    limits.has_chat_template = model->chat != nullptr && model->chat->has_default();
  }
  if (!options->openai.refuses_unknown_fields && head_.unknown_fields != nullptr) {
    limits.on_unknown_field = [this](absl::string_view path) { head_.unknown_fields->Warn(path); };
  }
  absl::StatusOr<OpenAiRequest> request = head_.endpoint->read(body, limits);
  // The id of the last prompt is the longest one. A refused call has an id, too.
  const std::size_t others = request.ok() ? request->prompts.size() - 1 : 0;
  head_.request_id =
      ChooseRequestId(head_.request_id, others == 0 ? "" : absl::StrCat("-", others));
  head_.headers.emplace_back("x-request-id", head_.request_id);
  if (const absl::string_view second = head_.endpoint->id_header; !second.empty()) {
    head_.headers.emplace_back(std::string(second), head_.request_id);
  }
  if (!request.ok()) return request.status();
  // A longer list could never be queued completely.
  const std::int32_t max_prompts = options->engine.max_queued_requests;
  if (request->prompts.size() > static_cast<std::size_t>(max_prompts)) {
    return BadParameter(
        "prompt", absl::StrCat(request->prompts.size(), " entries long"),
        absl::StrCat("at most ", max_prompts, " entries (limits.max_queued_requests)"));
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
        Generation::Start(context_, head_.endpoint->method, head_.traceparent, message, head_.info);
    if (!generation.ok()) return Fail(generation.status(), i);
    prompts_.push_back({.generation = *std::move(generation)});
  }
  // The model is set, since a generation has started.
  const ServedModel* const served = context_.state->model();
  answer_ = head_.endpoint->make_writer(
      request,
      {.id = absl::StrCat(head_.endpoint->id_prefix, head_.request_id),
       .model = served->id(),
       .created = absl::ToUnixSeconds(context_.clock->ToWall(head_.info.accept_time)),
       .system_fingerprint = served->description.system_fingerprint},
      head_.tokens(*served));
}

// From here on, everything runs on the strand of the exchange.
void OpenAiCall::Run() {
  is_running_ = true;
  if (is_client_gone_) CancelAll();
  const std::shared_ptr<OpenAiCall> self = shared_from_this();
  for (PromptState& state : prompts_)
    state.generation->SetReadyCallback([self] { self->OnReady(); });
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
  is_client_gone_ = true;
  is_writing_ = false;
  if (!is_running_) return;  // Run checks is_client_gone_
  CancelAll();
  Pump();
}

void OpenAiCall::Pump() {
  if (has_ended_ || is_writing_ || !is_running_) return;
  std::string events;
  try {
    events = Collect();
  } catch (const std::exception& error) {
    // Messages that were already taken are lost, so the call fails. After a failure, Collect
    // discards messages and does not throw.
    Fail(ToStatus(error));
    Collect();
  }
  if (!events.empty()) return WriteEvents(std::move(events));
  if (has_finished()) End();
}

// Returns the events that can be written now.
std::string OpenAiCall::Collect() {
  std::string events;
  for (std::size_t i = 0; i < prompts_.size(); ++i) Drain(i, &events);
  // Before the first byte is sent, a failure can still set the HTTP status.
  const bool may_write = has_begun_ || error_.ok();
  if (!may_write && !events.empty()) {
    // Drain stopped at kPieceBytes. Take the remaining messages now, because no write will resume
    // Drain.
    events.clear();
    for (std::size_t i = 0; i < prompts_.size(); ++i) Drain(i, &events);
  }
  if (is_client_gone_ || !may_write) events.clear();
  return events;
}

void OpenAiCall::Drain(std::size_t index, std::string* events) {
  PromptState& state = prompts_[index];
  if (state.is_done) return;
  v1::GenerateResponse message;
  // After a failure messages are discarded, so kPieceBytes does not apply.
  while ((events->size() < kPieceBytes || !error_.ok()) &&
         state.generation->TakeResponse(&message)) {
    if (!is_client_gone_ && error_.ok()) {
      answer_->Take(index, message, events);
      if (answer_->buffered_bytes() > head_.max_buffered_bytes) {
        Fail(TooLargeAnswer(head_.max_buffered_bytes));
      }
    }
    message.Clear();
  }
  if (!state.generation->finished()) return;
  state.is_done = true;
  const absl::Status status = state.generation->Close();
  if (!status.ok()) Fail(status, index);
}

void OpenAiCall::Fail(const absl::Status& status, std::optional<std::size_t> prompt) {
  if (!error_.ok()) return;
  error_ = status;
  if (prompt && num_prompts_ > 1) names_.Set("prompt", absl::StrCat("prompt[", *prompt, "]"));
  CancelAll();
}

void OpenAiCall::CancelAll() {
  for (PromptState& state : prompts_) {
    if (!state.is_done) state.generation->Cancel();
  }
}

bool OpenAiCall::has_finished() const {
  return std::all_of(prompts_.begin(), prompts_.end(),
                     [](const PromptState& state) { return state.is_done; });
}

void OpenAiCall::WriteEvents(std::string events) {
  if (!has_begun_) {
    has_begun_ = true;
    HttpAnswer head = {.content_type = std::string(head_.endpoint->stream_type),
                       .body = "",
                       .headers = head_.headers};
    // nginx buffers answers of a proxied server unless they have this header.
    head.headers.emplace_back("X-Accel-Buffering", "no");
    exchange_->BeginStream(std::move(head));
  }
  is_writing_ = true;
  exchange_->Write(std::move(events), [self = shared_from_this()] {
    self->is_writing_ = false;
    self->Pump();
  });
}

void OpenAiCall::End() {
  std::string last;
  if (!is_client_gone_ && error_.ok()) {
    try {
      if (stream_) {
        answer_->AppendEnd(&last);
      } else {
        last = answer_->TakeBody();
      }
    } catch (const std::exception& error) {
      error_ = ToStatus(error);
    }
  }
  has_ended_ = true;
  // Also destroys the generations' callbacks. Each callback shares ownership of this call.
  prompts_.clear();
  const std::unique_ptr<AnswerWriter> writer = std::move(answer_);
  if (is_client_gone_) return Count(absl::StatusCode::kCancelled);
  if (!error_.ok()) return EndWithError(writer.get());
  Count(absl::StatusCode::kOk);
  if (!stream_) {
    return exchange_->Answer({.content_type = "application/json",
                              .body = std::move(last),
                              .headers = std::move(head_.headers)});
  }
  // Some APIs have nothing to send after the last event.
  if (last.empty()) return exchange_->EndStream(true);
  exchange_->Write(std::move(last), [exchange = exchange_] { exchange->EndStream(true); });
}

void OpenAiCall::EndWithError(AnswerWriter* writer) {
  Count(error_.code());
  HttpAnswer answer = OpenAiError(error_, names_, head_.endpoint->write_error, head_.request_id);
  if (!has_begun_) {
    answer.headers.insert(answer.headers.end(), head_.headers.begin(), head_.headers.end());
    return exchange_->Answer(std::move(answer));
  }
  std::string events;
  writer->AppendError(answer.body, &events);
  // Ends without completing the body, so that the client does not mistake the answer for a complete
  // one.
  exchange_->Write(std::move(events), [exchange = exchange_] { exchange->EndStream(false); });
}

void OpenAiCall::Count(absl::StatusCode code) {
  context_.probe->CountRpc(head_.endpoint->method, code);
}

}  // namespace quire::server
