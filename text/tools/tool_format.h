#pragma once

// Describes how a model family writes tool calls and reasoning. output_parser.h parses all formats
// from this data.
//
// Place:      chosen once per model, by chat.tool_format or from its chat template.
// Invariants: the first byte of a marker is ASCII, and no marker is a prefix of another marker of
//             the same format.
// Threads:    constants.

#include <array>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

namespace quire::text {

// The format for models whose chat template does not render tools. text/chat/generic_tools.h adds a
// description of this format to the prompt. The format is never detected from a template.
inline constexpr absl::string_view kGenericFormat = "generic";

// The syntax of a call between its markers.
enum class CallShape : std::uint8_t {
  kNone,    // no calls, at most reasoning
  kObject,  // {"name": .., "arguments": {..}} between markers
  // Like kObject, but without markers and at the start of the output. Several objects are separated
  // by "; ".
  kObjectAtStart,
  kList,           // [{"name": .., "arguments": {..}}, ..] after a marker
  kNameThenJson,   // name, separator, {..}
  kPythonAtStart,  // [f(a=1), g()] at the start of the output
  kXmlParameters,  // <function=NAME> <parameter=KEY> value </parameter> </function>
  kKeyValues,      // name, then keys and values, each between its own markers
  kHarmony,        // messages with headers that name a channel and a recipient
};

// How to write tool calls that the request forces, in the layout of the models' chat templates:
// `begin`, calls with `separator` between them, `end`. A call is call_begin, name, arguments_begin,
// arguments, call_end. Arguments are JSON by default, and Python's name=value for kPythonAtStart.
struct CallWriting {
  absl::string_view begin = {}, separator = {}, end = {};
  // Empty arguments_begin: calls cannot be forced.
  absl::string_view call_begin = {}, arguments_begin = {}, call_end = {};
  absl::string_view index_begin = {};  // followed by a number, between name and arguments_begin
  bool is_single = false;              // a call ends the output
  // For formats whose arguments are not JSON: each argument is key_begin, key, value_begin, value,
  // value_end and a newline. A string is written as it is. Any other value is JSON followed by
  // value_space. Values must not contain forbidden_in_value, because this text would end the value.
  absl::string_view key_begin = {}, value_begin = {}, value_space = {}, value_end = {};
  absl::string_view forbidden_in_value = {};
  // Used if ToolFormat::reasoning_begin is empty: the markers around reasoning, and texts that must
  // not occur in reasoning because they would end it.
  absl::string_view reasoning_begin = {}, reasoning_end = {};
  std::array<absl::string_view, 3> forbidden_in_reasoning = {};
};

struct ToolFormat {
  absl::string_view name;  // value of chat.tool_format
  CallShape shape = CallShape::kNone;
  absl::string_view reasoning_begin = {}, reasoning_end = {};  // empty: no reasoning section
  absl::string_view section_begin = {}, section_end = {};      // around all calls; empty: none
  std::array<absl::string_view, 2> call_begin = {};  // each of them begins a call or a list
  absl::string_view call_end = {};                   // empty: the call ends with its JSON
  // kNameThenJson: texts before the name, between name and arguments, and after the arguments. If
  // the separator is optional, the first brace also ends the name.
  absl::string_view name_prefix = {}, separator = {}, arguments_suffix = {};
  bool is_separator_optional = false;
  // Marker between the name and the separator. The id of the call follows this marker.
  absl::string_view id_marker = {};
  bool has_function_index = false;  // the name is written as functions.NAME:INDEX
  CallWriting writing = {};

  // Returns the marker that begins calls anywhere after the reasoning. Empty if calls are
  // recognized by their position, or if there are none.
  absl::string_view trigger() const;

  // Returns whether the format supports forced calls.
  bool can_be_forced() const { return !writing.arguments_begin.empty(); }
};

// Returns all formats.
std::span<const ToolFormat> ToolFormats();

// Returns null for an unknown name.
const ToolFormat* FindToolFormat(absl::string_view name);

// Detects the format from the markers in the source of a chat template. If several formats match,
// the most specific one is returned. Returns null if none matches.
const ToolFormat* DetectToolFormat(absl::string_view chat_template);

}  // namespace quire::text
