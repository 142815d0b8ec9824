#include "text/tools/output_parser.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace quire::text {
namespace {

AnyCallParser MakeParser(const ToolFormat& format, const DeclaredTools& tools) {
  if (format.shape == CallShape::kHarmony) return HarmonyParser(tools);
  if (tools.empty()) return PlainParser();
  switch (format.shape) {
    case CallShape::kNone:
    case CallShape::kHarmony:
      break;
    case CallShape::kObject:
    case CallShape::kNameThenJson:
    case CallShape::kXmlParameters:
    case CallShape::kKeyValues:
      return MarkedParser(format, tools);
    case CallShape::kList:
      return ListParser(format, tools);
    case CallShape::kObjectAtStart:
      return ObjectParser(format, tools);
    case CallShape::kPythonAtStart:
      return PythonParser(format, tools);
  }
  return PlainParser();
}

}  // namespace

OutputParser::OutputParser(const ToolFormat& format, std::shared_ptr<const DeclaredTools> tools,
                           bool opens_reasoning)
    : format_(format),
      tools_(tools == nullptr ? std::make_shared<const DeclaredTools>() : std::move(tools)),
      section_(format.reasoning_begin.empty() ? Section::kRest
               : opens_reasoning              ? Section::kReasoning
                                              : Section::kLeading),
      parser_(MakeParser(format_, *tools_)) {}

void OutputParser::Push(absl::string_view text, std::vector<OutputPart>* parts) {
  const std::size_t first = parts->size();
  PartSink sink(parts);
  for (const char byte : text) PushByte(byte, sink);
  num_pushed_ += text.size();
  for (std::size_t i = first; i < parts->size(); ++i) num_emitted_ += (*parts)[i].source.size();
}

void OutputParser::PushByte(char byte, PartSink& sink) {
  const auto push_to_parser = [&](char next) {
    std::visit([&](auto& parser) { parser.Push(next, sink); }, parser_);
  };
  switch (section_) {
    case Section::kRest:
      push_to_parser(byte);
      return;
    case Section::kReasoning:
      pending_ += byte;
      PushReasoning(sink);
      return;
    case Section::kLeading:
      break;
  }
  if (pending_.empty() && absl::ascii_isspace(static_cast<unsigned char>(byte))) {
    space_ += byte;
    return;
  }
  pending_ += byte;
  const MarkerMatch match = MatchMarkers(pending_, {format_.reasoning_begin});
  if (match.is_prefix) return;
  if (!match.marker.empty()) {
    section_ = Section::kReasoning;
    sink.Markup(std::exchange(space_, {}));
    sink.Markup(std::exchange(pending_, {}));
    return;
  }
  section_ = Section::kRest;
  for (const char buffered : std::exchange(space_, {})) push_to_parser(buffered);
  for (const char buffered : std::exchange(pending_, {})) push_to_parser(buffered);
}

void OutputParser::PushReasoning(PartSink& sink) {
  while (!pending_.empty()) {
    const MarkerMatch match = MatchMarkers(pending_, {format_.reasoning_end});
    if (match.is_prefix) return;
    if (!match.marker.empty()) {
      section_ = Section::kRest;
      sink.Markup(std::exchange(pending_, {}));
      return;
    }
    sink.Reasoning(pending_.substr(0, 1));
    pending_.erase(0, 1);
  }
}

void OutputParser::Finish(std::vector<OutputPart>* parts) {
  const std::size_t first = parts->size();
  PartSink sink(parts);
  if (section_ == Section::kReasoning) {
    sink.Reasoning(std::exchange(pending_, {}));
  } else {
    sink.Content(std::exchange(space_, {}));
    sink.Content(std::exchange(pending_, {}));
  }
  std::visit([&](auto& parser) { parser.Finish(sink); }, parser_);
  for (std::size_t i = first; i < parts->size(); ++i) num_emitted_ += (*parts)[i].source.size();
}

absl::Status OutputParser::CheckIntegrity() const {
  const std::size_t buffered =
      space_.size() + pending_.size() +
      std::visit([](const auto& parser) { return parser.num_buffered(); }, parser_);
  if (num_emitted_ + buffered == num_pushed_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(num_pushed_, " bytes were pushed, but ", num_emitted_,
                                          " were emitted and ", buffered, " are buffered"));
}

}  // namespace quire::text
