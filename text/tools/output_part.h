#pragma once

// What an answer is made of, and where the parsers put it.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/tools/call_reader.h"

namespace quire::text {

struct OutputPart {
  enum class Kind {
    kContent,
    kReasoning,
    kMarkup,  // belongs to the format and reaches no client
    kCall,
    kFailed,  // was meant as a call: goes out as content, with its error
  };
  Kind kind = Kind::kContent;
  std::string source;  // the bytes of the answer
  ToolCall call = {};  // kCall; of kFailed the error, and the name where there is one

  friend bool operator==(const OutputPart&, const OutputPart&) = default;
};

// Appends parts, joining neighbours of a kind.
class PartSink {
 public:
  explicit PartSink(std::vector<OutputPart>* parts) : parts_(parts), first_(parts->size()) {}

  void Content(absl::string_view source) { Add(OutputPart::Kind::kContent, source); }
  void Reasoning(absl::string_view source) { Add(OutputPart::Kind::kReasoning, source); }
  void Markup(absl::string_view source) { Add(OutputPart::Kind::kMarkup, source); }
  // A call, or what failed to be one.
  void Call(absl::string_view source, ToolCall call) {
    const bool is_call = call.error.empty();
    parts_->push_back({.kind = is_call ? OutputPart::Kind::kCall : OutputPart::Kind::kFailed,
                       .source = std::string(source),
                       .call = std::move(call)});
  }
  void Failed(absl::string_view source, absl::string_view error) {
    Call(source, {.name = {}, .arguments_json = {}, .error = std::string(error)});
  }

 private:
  void Add(OutputPart::Kind kind, absl::string_view source) {
    if (source.empty()) return;
    if (parts_->size() > first_ && parts_->back().kind == kind) {
      parts_->back().source.append(source.data(), source.size());
    } else {
      parts_->push_back({.kind = kind, .source = std::string(source)});
    }
  }

  std::vector<OutputPart>* const parts_;
  const std::size_t first_;  // of this sink's parts
};

}  // namespace quire::text
