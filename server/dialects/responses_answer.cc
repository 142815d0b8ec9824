#include "server/dialects/responses_answer.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "server/dialects/dialect_fields.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

class ResponsesAnswer final : public AnswerWriter {
 public:
  ResponsesAnswer(const OpenAiRequest& request, OpenAiAnswerHead head)
      : stream_(request.stream),
        with_logprobs_(request.logprobs),
        repeated_members_(request.repeated_members),
        head_(std::move(head)) {}

  void Take(std::size_t /*prompt*/, const v1::GenerateResponse& message,
            std::string* events) override {
    if (message.has_started()) {
      prompt_tokens_ = message.started().prompt_tokens();
      cached_tokens_ = message.started().cached_tokens();
      AppendResponseEvent("response.created", nullptr, events);
      AppendResponseEvent("response.in_progress", nullptr, events);
    } else if (message.has_delta()) {
      AddOutput(message.delta(), events);
    } else if (message.has_completed()) {
      const v1::Completed& completed = message.completed();
      AddOutput(completed, events);
      usage_ = completed.usage();
      const v1::FinishReason reason = completed.finish_reason();
      const bool is_cut =
          reason == v1::FINISH_REASON_LENGTH || reason == v1::FINISH_REASON_CONTEXT_FULL;
      status_ = is_cut ? "incomplete" : "completed";
      if (open_item_ == Item::kNone && num_items_ == 0) OpenItem(Item::kMessage, events);
      if (open_item_ == Item::kMessage && !waiting_logprobs_.empty()) {
        AddText(Item::kMessage, "", std::move(waiting_logprobs_), events);
      }
      CloseItem(status_, events);
    }
  }

  void AppendEnd(std::string* events) override {
    AppendResponseEvent(status_ == "incomplete" ? "response.incomplete" : "response.completed",
                        nullptr, events);
  }

  // Appends `error` and `response.failed`.
  void AppendError(const std::string& error_body, std::string* events) override {
    const ordered_json error = ordered_json::parse(error_body)["error"];
    AppendEvent("error",
                {{"code", error["code"]}, {"message", error["message"]}, {"param", error["param"]}},
                events);
    status_ = "failed";
    AppendResponseEvent("response.failed", {{"code", error["code"]}, {"message", error["message"]}},
                        events);
  }

  std::string TakeBody() override { return ResponseJson(nullptr); }
  std::size_t buffered_bytes() const override { return stream_ ? 0 : output_.size(); }

 private:
  enum class Item { kNone, kReasoning, kMessage };

  // Adds the output of a Delta or a Completed.
  template <typename Output>
  void AddOutput(const Output& output, std::string* events) {
    if (!output.reasoning_text().empty()) {
      AddText(Item::kReasoning, output.reasoning_text(), ordered_json::array(), events);
    }
    if (with_logprobs_) {
      for (const ordered_json& token : ChatLogprobs(output.logprobs()))
        waiting_logprobs_.push_back(token);
    }
    if (!output.text().empty()) {
      AddText(Item::kMessage, output.text(),
              std::exchange(waiting_logprobs_, ordered_json::array()), events);
    }
    for (const auto& call : output.tool_calls()) {
      AddCall(call.id(), call.name(), call.arguments_json(), events);
    }
  }

  // Adds text to the open item. Closes an open item of another kind, and opens one of `kind`.
  void AddText(Item kind, absl::string_view text, ordered_json logprobs, std::string* events) {
    if (open_item_ != kind) {
      CloseItem("completed", events);
      OpenItem(kind, events);
    }
    absl::StrAppend(&text_, text);
    for (const ordered_json& token : logprobs) logprobs_.push_back(token);
    if (!stream_) return;
    ordered_json members = PartPath();
    members["delta"] = text;
    if (kind == Item::kMessage) members["logprobs"] = std::move(logprobs);
    AppendEvent(
        kind == Item::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta",
        members, events);
  }

  void AddCall(absl::string_view call_id, absl::string_view name, const std::string& arguments,
               std::string* events) {
    CloseItem("completed", events);
    ordered_json item = {{"type", "function_call"}, {"id", ItemId("fc_")},
                         {"call_id", call_id},      {"name", name},
                         {"arguments", ""},         {"status", "in_progress"}};
    AppendEvent("response.output_item.added", {{"output_index", num_items_}, {"item", item}},
                events);
    ordered_json path = {{"item_id", item["id"]}, {"output_index", num_items_}};
    ordered_json members = path;
    members["delta"] = arguments;
    AppendEvent("response.function_call_arguments.delta", members, events);
    path["arguments"] = arguments;
    AppendEvent("response.function_call_arguments.done", path, events);
    item["arguments"] = arguments;
    item["status"] = "completed";
    AppendItem(item, events);
  }

  void OpenItem(Item kind, std::string* events) {
    open_item_ = kind;
    AppendEvent(
        "response.output_item.added",
        {{"output_index", num_items_}, {"item", TextItem("in_progress", /*is_complete=*/false)}},
        events);
    ordered_json members = PartPath();
    members["part"] = TextPart(/*is_complete=*/false);
    AppendEvent("response.content_part.added", members, events);
  }

  void CloseItem(absl::string_view status, std::string* events) {
    if (open_item_ == Item::kNone) return;
    const bool is_message = open_item_ == Item::kMessage;
    const ordered_json path = PartPath();
    ordered_json members = path;
    members["text"] = text_;
    if (is_message) members["logprobs"] = logprobs_;
    AppendEvent(is_message ? "response.output_text.done" : "response.reasoning_text.done", members,
                events);
    members = path;
    members["part"] = TextPart(/*is_complete=*/true);
    AppendEvent("response.content_part.done", members, events);
    const ordered_json item = TextItem(status, /*is_complete=*/true);
    open_item_ = Item::kNone;
    text_.clear();
    logprobs_.clear();
    AppendItem(item, events);
  }

  // Appends a complete item to the output.
  void AppendItem(const ordered_json& item, std::string* events) {
    AppendEvent("response.output_item.done", {{"output_index", num_items_}, {"item", item}},
                events);
    absl::StrAppend(&output_, output_.empty() ? "" : ",", JsonText(item));
    ++num_items_;
  }

  // Returns the open item, which has no text until it is complete.
  ordered_json TextItem(absl::string_view status, bool is_complete) const {
    ordered_json content = ordered_json::array();
    if (is_complete) content.push_back(TextPart(is_complete));
    if (open_item_ == Item::kReasoning) {
      return {{"type", "reasoning"},
              {"id", ItemId("rs_")},
              {"summary", ordered_json::array()},
              {"content", std::move(content)},
              {"status", status}};
    }
    return {{"type", "message"},
            {"id", ItemId("msg_")},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }

  // Returns the only part of the open item, which has no text until it is complete.
  ordered_json TextPart(bool is_complete) const {
    const std::string text = is_complete ? text_ : "";
    if (open_item_ == Item::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"annotations", ordered_json::array()},
            {"logprobs", is_complete ? logprobs_ : ordered_json::array()},
            {"text", text}};
  }

  // Returns the members by which events identify the part of the open item.
  ordered_json PartPath() const {
    return {{"item_id", ItemId(open_item_ == Item::kReasoning ? "rs_" : "msg_")},
            {"output_index", num_items_},
            {"content_index", 0}};
  }

  std::string ItemId(absl::string_view prefix) const {
    return absl::StrCat(prefix, absl::StripPrefix(head_.id, "resp_"), "_", num_items_);
  }

  void AppendEvent(const char* type, const ordered_json& members, std::string* events) {
    if (!stream_) return;
    ordered_json event = {{"type", type}, {"sequence_number", sequence_number_++}};
    event.update(members);
    absl::StrAppend(events, NamedEvent(type, JsonText(event)));
  }

  void AppendResponseEvent(const char* type, const ordered_json& error, std::string* events) {
    if (!stream_) return;
    absl::StrAppend(events,
                    NamedEvent(type, absl::StrCat("{\"type\":", JsonQuoted(type),
                                                  ",\"sequence_number\":", sequence_number_++,
                                                  ",\"response\":", ResponseJson(error), "}")));
  }

  // Returns the response object as JSON.
  std::string ResponseJson(const ordered_json& error) const {
    const bool has_ended = status_ != "in_progress";
    ordered_json response = {{"id", head_.id},
                             {"object", "response"},
                             {"created_at", head_.created},
                             {"status", status_},
                             {"background", false},
                             {"error", error},
                             {"incomplete_details", nullptr},
                             {"model", head_.model},
                             {"previous_response_id", nullptr},
                             {"store", false},
                             {"truncation", "disabled"},
                             {"usage", nullptr}};
    if (status_ == "incomplete") response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    // A stream that failed has no final counts.
    if (has_ended && status_ != "failed") {
      response["usage"] = {
          {"input_tokens", prompt_tokens_},
          {"input_tokens_details", {{"cached_tokens", cached_tokens_}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage_.completion_tokens()},
          {"output_tokens_details", {{"reasoning_tokens", usage_.reasoning_tokens()}}},
          {"total_tokens", prompt_tokens_ + usage_.completion_tokens()}};
    }
    std::string json = JsonText(response);
    json.pop_back();
    absl::StrAppend(&json, ",", repeated_members_, ",\"output\":[", has_ended ? output_ : "", "]}");
    return json;
  }

  const bool stream_, with_logprobs_;
  const std::string repeated_members_;
  const OpenAiAnswerHead head_;
  std::int64_t sequence_number_ = 0;
  std::string status_ = "in_progress";
  Item open_item_ = Item::kNone;
  std::string text_;                               // the open item's text
  ordered_json logprobs_ = ordered_json::array();  // the open item's
  // Log-probabilities of tokens whose text is incomplete or not in a message, such as reasoning.
  // They are sent with the next text.
  ordered_json waiting_logprobs_ = ordered_json::array();
  std::string output_;         // JSON of complete items
  std::size_t num_items_ = 0;  // complete items
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0;
  v1::Usage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesAnswer(const OpenAiRequest& request,
                                                  OpenAiAnswerHead head, OpenAiTokens /*tokens*/) {
  return std::make_unique<ResponsesAnswer>(request, std::move(head));
}

}  // namespace quire::server
