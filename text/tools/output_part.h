#pragma once

// The parts of model output, and the sink that collects them.

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
    kMarkup,  // syntax of the format, not sent to clients
    kCall,
    kFailed,  // an invalid call: sent as content, with its error
  };
  Kind kind = Kind::kContent;
  std::string source;  // the bytes of this part, as the model wrote them
  ToolCall call = {};  // kCall; for kFailed the error, and the name if known

  friend bool operator==(const OutputPart&, const OutputPart&) = default;
};

// Appends parts, and merges adjacent parts of the same kind.
class PartSink {
 public:
  explicit PartSink(std::vector<OutputPart>* parts) : parts_(parts), first_(parts->size()) {}

  void Content(absl::string_view source) { Add(OutputPart::Kind::kContent, source); }
  void Reasoning(absl::string_view source) { Add(OutputPart::Kind::kReasoning, source); }
  void Markup(absl::string_view source) { Add(OutputPart::Kind::kMarkup, source); }
  // Appends a valid or failed call.
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
  const std::size_t first_;  // index of this sink's first part
};

}  // namespace quire::text
