#pragma once

// Splits the text of an answer into content, reasoning and tool calls while it comes.
//
//   text -> OutputParser (reasoning | everything else -> the parser of the format's calls) -> parts
//
// Place:      on an output worker, between the stop matcher and the stream; one a choice.
// Invariants: the sources of all parts, joined, are the text that was pushed: nothing is lost.
//             Parts do not depend on how the text was cut. A call goes out whole, when its end has
//             come, so that what it seemed to be is never taken back; a call that fails, or of a
//             tool that was not declared, goes out as content with its error. Held back is what
//             may still become a marker, white space beside one, and the call under way. A byte
//             costs O(length of a marker), and a call once more when it is whole.
//             Calls inside reasoning are reasoning; a section of reasoning is looked for once, at
//             the start of the answer.
// Threads:    one.
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

class OutputParser {
 public:
  // Without declared tools no calls are looked for. `opens_reasoning`: the prompt ends inside a
  // section of reasoning.
  OutputParser(const ToolFormat& format, std::shared_ptr<const DeclaredTools> tools,
               bool opens_reasoning);

  // Appends what has become certain.
  void Push(absl::string_view text, std::vector<OutputPart>* parts);
  // The answer is over.
  void Finish(std::vector<OutputPart>* parts);

  // Every byte that was pushed is held or went out.
  absl::Status CheckIntegrity() const;

 private:
  enum class Section { kLeading, kReasoning, kRest };

  void PushByte(char byte, PartSink& sink);
  void PushReasoning(PartSink& sink);

  const ToolFormat& format_;
  const std::shared_ptr<const DeclaredTools> tools_;
  Section section_;
  std::string space_;    // kLeading: white space so far
  std::string pending_;  // may become a marker of the reasoning section
  std::variant<PlainParser, MarkedParser, ListParser, ObjectParser, PythonParser, HarmonyParser>
      parser_;
  std::size_t num_pushed_ = 0, num_out_ = 0;
};

}  // namespace quire::text
