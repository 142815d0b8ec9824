#include "server/dialects/ollama_answer.h"

#include <google/protobuf/duration.pb.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/json_text.h"
#include "server/openai/openai_answer.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

std::int64_t Nanoseconds(const google::protobuf::Duration& duration) {
  return duration.seconds() * 1'000'000'000 + duration.nanos();
}

// Converts a v1::ToolCall or v1::ToolCallDelta.
template <typename Call>
ordered_json MakeCall(const Call& call, int index) {
  return {{"id", call.id()},
          {"function",
           {{"index", index},
            {"name", call.name()},
            {"arguments", ordered_json::parse(call.arguments_json())}}}};
}

const char* DoneReason(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH || reason == v1::FINISH_REASON_CONTEXT_FULL ? "length"
                                                                                        : "stop";
}

}  // namespace

OllamaAnswer::OllamaAnswer(const OpenAiRequest& request, const OpenAiAnswerHead& head)
    : is_chat_(request.is_chat),
      stream_(request.stream),
      model_(head.model),
      created_at_(absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(head.created),
                                   absl::UTCTimeZone())) {}

// Returns an answer, or one line of a stream, up to its text. `calls` is null without tool calls.
ordered_json OllamaAnswer::Part(const std::string& text, const std::string& thinking,
                                ordered_json calls) const {
  ordered_json part = {{"model", model_}, {"created_at", created_at_}};
  if (!is_chat_) {
    part["response"] = text;
    if (!thinking.empty()) part["thinking"] = thinking;
    return part;
  }
  ordered_json& message = part["message"];
  message = {{"role", "assistant"}, {"content", text}};
  if (!thinking.empty()) message["thinking"] = thinking;
  if (!calls.is_null()) message["tool_calls"] = std::move(calls);
  return part;
}

void OllamaAnswer::Take(std::size_t, const v1::GenerateResponse& message, std::string* events) {
  if (message.has_completed()) return Complete(message.completed(), events);
  if (!message.has_delta()) return;
  const v1::Delta& delta = message.delta();
  ordered_json calls;
  for (const v1::ToolCallDelta& call : delta.tool_calls()) {
    calls.push_back(MakeCall(call, call.call_index()));
  }
  if (delta.text().empty() && delta.reasoning_text().empty() && calls.is_null() &&
      delta.logprobs().empty()) {
    return;
  }
  ordered_json line = Part(delta.text(), delta.reasoning_text(), std::move(calls));
  line["done"] = false;
  if (!delta.logprobs().empty()) line["logprobs"] = ChatLogprobs(delta.logprobs());
  absl::StrAppend(events, JsonText(line), "\n");
}

void OllamaAnswer::Complete(const v1::Completed& completed, std::string* events) {
  ordered_json calls;
  for (const v1::ToolCall& call : completed.tool_calls()) {
    const int index = static_cast<int>(calls.size());
    calls.push_back(MakeCall(call, index));
  }
  ordered_json answer = Part(completed.text(), completed.reasoning_text(), std::move(calls));
  const v1::Timings& timings = completed.timings();
  const std::int64_t prefill = Nanoseconds(timings.prefill());
  const std::int64_t decode = Nanoseconds(timings.decode());
  answer["done"] = true;
  answer["done_reason"] = DoneReason(completed.finish_reason());
  answer["total_duration"] = Nanoseconds(timings.queue()) + prefill + decode;
  answer["load_duration"] = 0;
  answer["prompt_eval_count"] = completed.usage().prompt_tokens();
  answer["prompt_eval_duration"] = prefill;
  answer["eval_count"] = completed.usage().completion_tokens();
  answer["eval_duration"] = decode;
  if (!completed.logprobs().empty()) answer["logprobs"] = ChatLogprobs(completed.logprobs());
  if (stream_) {
    absl::StrAppend(events, JsonText(answer), "\n");
  } else {
    body_ = JsonText(answer);
  }
}

void OllamaAnswer::AppendEnd(std::string*) {}

void OllamaAnswer::AppendError(const std::string& error_body, std::string* events) {
  absl::StrAppend(events, error_body, "\n");
}

std::string OllamaAnswer::TakeBody() {
  return std::move(body_);
}

std::unique_ptr<AnswerWriter> MakeOllamaAnswer(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens) {
  return std::make_unique<OllamaAnswer>(request, head);
}

std::string OllamaErrorBody(const ApiError& error) {
  return JsonText(ordered_json{{"error", error.message}});
}

}  // namespace quire::server
