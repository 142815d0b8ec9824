// Fuzzes model answers in every tool call format. The first byte selects the format and whether the
// prompt opened the reasoning, the second how the rest is split.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "text/tools/output_parser.h"

namespace {

using quire::text::OutputParser;
using quire::text::OutputPart;

const std::vector<quire::text::ChatTool>& Tools() {
  static const std::vector<quire::text::ChatTool> tools = {
      {.name = "now"},
      {.name = "get_weather",
       .parameters_json =
           R"({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}})"}};
  return tools;
}

// Returns the client's view, piece by piece.
std::string ShownOf(const std::vector<OutputPart>& parts) {
  std::string content, reasoning, calls;
  for (const OutputPart& part : parts) {
    switch (part.kind) {
      case OutputPart::Kind::kContent:
      case OutputPart::Kind::kFailed:
        content += part.source;
        break;
      case OutputPart::Kind::kReasoning:
        reasoning += part.source;
        break;
      case OutputPart::Kind::kMarkup:
        break;
      case OutputPart::Kind::kCall:
        calls += part.call.name + part.call.arguments_json;
        break;
    }
  }
  return content + '\n' + reasoning + '\n' + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto formats = quire::text::ToolFormats();
  const auto& format = formats[data[0] / 2 % formats.size()];
  const auto tools = std::make_shared<const quire::text::DeclaredTools>(
      *quire::text::DeclaredTools::Create(Tools()));
  const absl::string_view text = quire::fuzz::AsText(data + 2, size - 2);
  std::string shown;
  for (const std::size_t step : {text.size() + 1, static_cast<std::size_t>(data[1] % 16 + 1)}) {
    OutputParser parser(format, tools, data[0] % 2 == 1);
    std::vector<OutputPart> parts;
    for (std::size_t begin = 0; begin < text.size(); begin += step) {
      parser.Push(text.substr(begin, step), &parts);
      QUIRE_CHECK(parser.CheckIntegrity().ok());
    }
    parser.Finish(&parts);
    QUIRE_CHECK(parser.CheckIntegrity().ok());
    std::string sources;
    for (const OutputPart& part : parts) sources += part.source;
    QUIRE_CHECK(sources == text);
    const bool has_call = std::ranges::any_of(
        parts, [](const OutputPart& part) { return part.kind == OutputPart::Kind::kCall; });
    const bool has_headers = format.shape == quire::text::CallShape::kHarmony;
    if (!has_call && !has_headers && format.reasoning_begin.empty()) {
      QUIRE_CHECK(ShownOf(parts) == std::string(text) + "\n\n");
    }
    if (shown.empty()) shown = ShownOf(parts);
    QUIRE_CHECK(shown == ShownOf(parts));
  }
  return 0;
}
