#pragma once

// Splits model output into content, reasoning and tool calls as it is generated.
//
//   text -> OutputParser (reasoning section, then the parser of the format's calls) -> parts
//
// Place:      on an output worker, between the stop matcher and the stream; one per choice.
// Invariants: the concatenated OutputPart::source of all parts equals the pushed text. Parts do not
//             depend on how the text was split between calls of Push. A call is emitted when it is
//             complete. A call that fails, or that names an undeclared tool, becomes content with
//             its error. Buffered text is a possible prefix of a marker, white space next to a
//             marker, or an incomplete call. A byte costs O(length of a marker), and a complete
//             call is parsed once. Calls inside a reasoning section are reasoning. There is at most
//             one reasoning section, at the start of the output. Exception: with kHarmony, each
//             message can be reasoning.
// Threads:    one thread.
// Lifetime:   the format is a constant; the tools are shared.

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "text/tools/call_parsers.h"
#include "text/tools/declared_tools.h"
#include "text/tools/output_part.h"
#include "text/tools/tool_format.h"

namespace quire::text {

using AnyCallParser =
    std::variant<PlainParser, MarkedParser, ListParser, ObjectParser, PythonParser, HarmonyParser>;

class OutputParser {
 public:
  // Without declared tools there are no calls. `opens_reasoning` means that the prompt ends inside
  // a reasoning section.
  OutputParser(const ToolFormat& format, std::shared_ptr<const DeclaredTools> tools,
               bool opens_reasoning);

  // Appends the parts that can be determined so far.
  void Push(absl::string_view text, std::vector<OutputPart>* parts);
  // Ends the output and appends the remaining parts.
  void Finish(std::vector<OutputPart>* parts);

  // Checks that every pushed byte is buffered or was emitted.
  absl::Status CheckIntegrity() const;

 private:
  enum class Section { kLeading, kReasoning, kRest };

  void PushByte(char byte, PartSink& sink);
  void PushReasoning(PartSink& sink);

  const ToolFormat& format_;
  const std::shared_ptr<const DeclaredTools> tools_;
  Section section_;
  std::string space_;    // kLeading: white space so far
  std::string pending_;  // possible prefix of a marker of the reasoning section
  AnyCallParser parser_;
  std::size_t num_pushed_ = 0, num_emitted_ = 0;
};

}  // namespace quire::text
