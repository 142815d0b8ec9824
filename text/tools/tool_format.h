#pragma once

// How a family of models writes tool calls and reasoning: data, from which one parser reads all of
// them (output_parser.h).
//
// Place:      chosen once for a model, by chat.tool_format or by its chat template.
// Invariants: markers are ASCII at their first byte, and none is the beginning of another one of
//             the same format.
// Threads:    constants.

#include <array>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

namespace quire::text {

// The format for models whose chat template does not render tools. text/chat/generic_tools.h
// describes it in the prompt, so it is never detected from a template.
inline constexpr absl::string_view kGenericFormat = "generic";

// What a call looks like between its markers, and what ends it.
enum class CallShape : std::uint8_t {
  kNone,           // no calls: reasoning at most
  kObject,         // {"name": .., "arguments": {..}} between markers
  kObjectAtStart,  // the same without markers, as the first thing of an answer; several with "; "
  kList,           // [{"name": .., "arguments": {..}}, ..] behind a marker
  kNameThenJson,   // name, separator, {..}
  kPythonAtStart,  // [f(a=1), g()], as the first thing of an answer
  kXmlParameters,  // <function=NAME> <parameter=KEY> value </parameter> </function>
  kKeyValues,      // name, then keys and values between markers of their own
  kHarmony,        // messages with headers that name a channel and a recipient
};

// How a call is written where one is forced, as the chat templates of the models write it: begin,
// calls with separators between them, end; a call is call_begin, name, arguments_begin, arguments,
// call_end. Arguments are JSON where nothing else is said, and name=value of Python for the shape
// kPythonAtStart.
struct CallWriting {
  absl::string_view begin = {}, separator = {}, end = {};
  absl::string_view call_begin = {}, arguments_begin = {}, call_end = {};  // empty: not in this way
  absl::string_view index_begin = {};  // between name and arguments_begin: this and a number
  bool is_single = false;              // the end of a call ends the answer
  // Of a format whose arguments are no JSON: for each one key_begin, key, value_begin, value,
  // value_end and a line break. A string is written as it is; other values are JSON, and
  // value_space behind them. never_in_value would end a value too.
  absl::string_view key_begin = {}, value_begin = {}, value_space = {}, value_end = {};
  absl::string_view never_in_value = {};
  // Of a format whose reasoning has no markers of its own; and what would end that section instead.
  absl::string_view reasoning_begin = {}, reasoning_end = {};
  std::array<absl::string_view, 3> never_in_reasoning = {};
};

struct ToolFormat {
  absl::string_view name;  // of chat.tool_format
  CallShape shape = CallShape::kNone;
  absl::string_view reasoning_begin = {}, reasoning_end = {};  // empty: no such section
  absl::string_view section_begin = {}, section_end = {};      // around all calls; empty: none
  std::array<absl::string_view, 2> call_begin = {};            // either begins a call, or a list
  absl::string_view call_end = {};                             // empty: the end of its JSON ends it
  // kNameThenJson: what stands before the name, between name and arguments, and behind those. A
  // format whose separator is optional goes on at the first brace.
  absl::string_view name_prefix = {}, separator = {}, arguments_suffix = {};
  bool is_separator_optional = false;
  absl::string_view id_marker = {};  // between name and separator: the id of the call
  bool has_function_index = false;   // the name is functions.NAME:INDEX
  CallWriting writing = {};

  // The marker that begins calls wherever it stands behind the reasoning. Empty: calls are told by
  // their place in the answer, or there are none.
  absl::string_view trigger() const;

  // Whether a call can be forced.
  bool can_be_forced() const { return !writing.arguments_begin.empty(); }
};

// All formats, in the order in which DetectToolFormat tries them.
std::span<const ToolFormat> ToolFormats();

// Null for an unknown name.
const ToolFormat* FindToolFormat(absl::string_view name);

// By the markers that the source of a chat template writes or explains. Null where there are none.
const ToolFormat* DetectToolFormat(absl::string_view chat_template);

}  // namespace quire::text
