#pragma once

// Writes quire.v1.GenerateResponse as the response object, or the server-sent events, of OpenAI's
// POST /v1/responses.
//
//   created, in_progress, {output_item.added, deltas, output_item.done}..., completed
//
// Place:      a writer of dialect_endpoints.cc; see AnswerWriter.
// Invariants: an output that is not streamed has a reasoning item, a text item, and one item per
//             tool call, in this order. Empty items are absent, but an answer without output has an
//             empty text. A stream has items in the order in which they were generated; at most one
//             is open. `sequence_number` counts the events from 0. The last event has the whole
//             output, which is kept until then.
// Threads:    one thread at a time.
// Source:     openai 3.54.0 (PyPI), types/responses/response*.py.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "server/openai/answer_writer.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_request.h"

namespace quire::server {

class ResponsesAnswer : public AnswerWriter {
 public:
  ResponsesAnswer(const OpenAiRequest& request, OpenAiAnswerHead head);

  void Take(std::size_t prompt, const v1::GenerateResponse& message, std::string* events) override;
  void AppendEnd(std::string* events) override;
  // Appends `error` and `response.failed`.
  void AppendError(const std::string& error_body, std::string* events) override;
  std::string TakeBody() override;
  std::size_t buffered_bytes() const override { return stream_ ? 0 : output_.size(); }

 private:
  enum class Item { kNone, kReasoning, kMessage };

  // Adds the output of a Delta or a Completed.
  template <typename Output>
  void AddOutput(const Output& output, std::string* events);
  // Adds text to the open item. If the open item has another kind, closes it and opens one of
  // `kind`.
  void AddText(Item kind, absl::string_view text, nlohmann::ordered_json logprobs,
               std::string* events);
  void AddCall(absl::string_view call_id, absl::string_view name, const std::string& arguments,
               std::string* events);
  void OpenItem(Item kind, std::string* events);
  void CloseItem(absl::string_view status, std::string* events);
  // Appends a complete item to the output.
  void AppendItem(const nlohmann::ordered_json& item, std::string* events);
  // Return the open item and its only part. Both have no text until they are complete.
  nlohmann::ordered_json TextItem(absl::string_view status, bool is_complete) const;
  nlohmann::ordered_json TextPart(bool is_complete) const;
  // Returns the members by which events identify the part of the open item.
  nlohmann::ordered_json PartPath() const;
  std::string ItemId(absl::string_view prefix) const;
  void AppendEvent(const char* type, const nlohmann::ordered_json& members, std::string* events);
  void AppendResponseEvent(const char* type, const nlohmann::ordered_json& error,
                           std::string* events);
  // Returns the response object as JSON.
  std::string ResponseJson(const nlohmann::ordered_json& error) const;

  const bool stream_, with_logprobs_;
  const std::string repeated_members_;
  const OpenAiAnswerHead head_;
  std::int64_t sequence_number_ = 0;
  std::string status_ = "in_progress";
  Item open_item_ = Item::kNone;
  std::string text_;                                                   // the open item's text
  nlohmann::ordered_json logprobs_ = nlohmann::ordered_json::array();  // the open item's
  // Log-probabilities of tokens whose text is incomplete or not in a message, such as reasoning.
  // They are sent with the next text.
  nlohmann::ordered_json waiting_logprobs_ = nlohmann::ordered_json::array();
  std::string output_;         // JSON of complete items
  std::size_t num_items_ = 0;  // complete items
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0;
  v1::Usage usage_;
};

}  // namespace quire::server
