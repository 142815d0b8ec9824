#include "server/dialects/ollama_answer.h"

#include <google/protobuf/duration.pb.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/json_text.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

std::int64_t Nanoseconds(const google::protobuf::Duration& duration) {
  return duration.seconds() * 1'000'000'000 + duration.nanos();
}

// Returns a v1::ToolCall or v1::ToolCallDelta as JSON on one line. The arguments keep their text,
// because parsing them would round long numbers. Strings in JSON contain no line breaks, so each
// line break can be replaced by a space.
template <typename Call>
std::string CallJson(const Call& call, int index) {
  return absl::StrCat("{\"id\":", JsonQuoted(call.id()), ",\"function\":{\"index\":", index,
                      ",\"name\":", JsonQuoted(call.name()), ",\"arguments\":",
                      absl::StrReplaceAll(call.arguments_json(), {{"\n", " "}, {"\r", " "}}), "}}");
}

const char* DoneReason(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH || reason == v1::FINISH_REASON_CONTEXT_FULL ? "length"
                                                                                        : "stop";
}

class OllamaAnswer final : public AnswerWriter {
 public:
  OllamaAnswer(const OpenAiRequest& request, const OpenAiAnswerHead& head)
      : is_chat_(request.is_chat),
        stream_(request.stream),
        model_(head.model),
        created_at_(absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(head.created),
                                     absl::UTCTimeZone())) {}

  void Take(std::size_t, const v1::GenerateResponse& message, std::string* events) override {
    if (message.has_completed()) return Complete(message.completed(), events);
    if (!message.has_delta()) return;
    const v1::Delta& delta = message.delta();
    std::vector<std::string> calls;
    for (const v1::ToolCallDelta& call : delta.tool_calls()) {
      calls.push_back(CallJson(call, call.call_index()));
    }
    if (delta.text().empty() && delta.reasoning_text().empty() && calls.empty() &&
        delta.logprobs().empty()) {
      return;
    }
    ordered_json rest = {{"done", false}};
    if (!delta.logprobs().empty()) rest["logprobs"] = ChatLogprobs(delta.logprobs());
    absl::StrAppend(events, Json(delta.text(), delta.reasoning_text(), calls, rest), "\n");
  }

  // Appends nothing, because Take has written the last line when the choice completed.
  void AppendEnd(std::string* /*events*/) override {}

  // Appends the error as the last line.
  void AppendError(const std::string& error_body, std::string* events) override {
    absl::StrAppend(events, error_body, "\n");
  }

  std::string TakeBody() override { return std::move(body_); }
  std::size_t buffered_bytes() const override { return body_.size(); }

 private:
  // Returns an answer, or one line of a stream. `calls` are JSON texts. `rest` contains the members
  // after the text and the calls.
  std::string Json(const std::string& text, const std::string& thinking,
                   const std::vector<std::string>& calls, const ordered_json& rest) const {
    ordered_json head = {{"model", model_}, {"created_at", created_at_}};
    if (!is_chat_) {
      head["response"] = text;
      if (!thinking.empty()) head["thinking"] = thinking;
    }
    std::string json = JsonText(head);
    json.pop_back();
    if (is_chat_) {
      ordered_json message = {{"role", "assistant"}, {"content", text}};
      if (!thinking.empty()) message["thinking"] = thinking;
      absl::StrAppend(&json, ",\"message\":", JsonText(message));
      if (!calls.empty()) {
        json.pop_back();
        absl::StrAppend(&json, ",\"tool_calls\":[", absl::StrJoin(calls, ","), "]}");
      }
    }
    absl::StrAppend(&json, ",", JsonText(rest).substr(1));
    return json;
  }

  void Complete(const v1::Completed& completed, std::string* events) {
    std::vector<std::string> calls;
    for (const v1::ToolCall& call : completed.tool_calls()) {
      calls.push_back(CallJson(call, static_cast<int>(calls.size())));
    }
    const v1::Timings& timings = completed.timings();
    const std::int64_t prefill = Nanoseconds(timings.prefill());
    const std::int64_t decode = Nanoseconds(timings.decode());
    ordered_json rest = {{"done", true},
                         {"done_reason", DoneReason(completed.finish_reason())},
                         {"total_duration", Nanoseconds(timings.queue()) + prefill + decode},
                         {"load_duration", 0},
                         {"prompt_eval_count", completed.usage().prompt_tokens()},
                         {"prompt_eval_duration", prefill},
                         {"eval_count", completed.usage().completion_tokens()},
                         {"eval_duration", decode}};
    if (!completed.logprobs().empty()) rest["logprobs"] = ChatLogprobs(completed.logprobs());
    std::string answer = Json(completed.text(), completed.reasoning_text(), calls, rest);
    if (stream_) {
      absl::StrAppend(events, answer, "\n");
    } else {
      body_ = std::move(answer);
    }
  }

  const bool is_chat_;  // false: /api/generate
  const bool stream_;
  const std::string model_, created_at_;
  std::string body_;  // the completed answer; empty with a stream
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeOllamaAnswer(const OpenAiRequest& request, OpenAiAnswerHead head,
                                               OpenAiTokens) {
  return std::make_unique<OllamaAnswer>(request, head);
}

std::string OllamaErrorBody(const ApiError& error) {
  return JsonText(ordered_json{{"error", error.message}});
}

}  // namespace quire::server
