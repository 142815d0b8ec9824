#include "text/tools/tool_format.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/match.h"

namespace quire::text {
namespace {

constexpr absl::string_view kThink = "<think>", kEndThink = "</think>";
constexpr absl::string_view kToolCall = "<tool_call>", kEndToolCall = "</tool_call>";
constexpr absl::string_view kDeepSeekSection = "<｜tool▁calls▁begin｜>";
constexpr absl::string_view kEndDeepSeekSection = "<｜tool▁calls▁end｜>";

// A chat template uses the format if its source contains all strings in `marks`.
struct Detection {
  absl::string_view format;
  std::array<absl::string_view, 2> marks;
};

// Returns the CallWriting of {"name": .., "arguments": ..} objects between `begin` and `end`.
constexpr CallWriting ObjectWriting(absl::string_view begin, absl::string_view end) {
  return {.begin = begin,
          .separator = ", ",
          .end = end,
          .call_begin = "{\"name\": \"",
          .arguments_begin = "\", \"arguments\": ",
          .call_end = "}"};
}

// Returns the format of {"name": .., "arguments": ..} objects between tags.
constexpr ToolFormat TaggedObjects(absl::string_view name) {
  return {.name = name,
          .shape = CallShape::kObject,
          .reasoning_begin = kThink,
          .reasoning_end = kEndThink,
          .call_begin = {kToolCall},
          .call_end = kEndToolCall,
          .writing = {.separator = "\n",
                      .call_begin = "<tool_call>\n{\"name\": \"",
                      .arguments_begin = "\", \"arguments\": ",
                      .call_end = "}\n</tool_call>"}};
}

constexpr ToolFormat kFormats[] = {
    {.name = "harmony",
     .shape = CallShape::kHarmony,
     .writing = {.call_begin = "<|channel|>commentary to=functions.",
                 .arguments_begin = " <|constrain|>json<|message|>",
                 .is_single = true,
                 .reasoning_begin = "<|channel|>analysis<|message|>",
                 .reasoning_end = "<|end|><|start|>assistant",
                 .forbidden_in_reasoning = {"<|start|>", "<|return|>", "<|call|>"}}},
    {.name = "qwen3-coder",
     .shape = CallShape::kXmlParameters,
     .reasoning_begin = kThink,
     .reasoning_end = kEndThink,
     .call_begin = {kToolCall, "<function="},
     .call_end = kEndToolCall,
     .writing = {.separator = "\n",
                 .call_begin = "<tool_call>\n<function=",
                 .arguments_begin = ">\n",
                 .call_end = "</function>\n</tool_call>",
                 .key_begin = "<parameter=",
                 .value_begin = ">\n",
                 .value_space = "\n",
                 .value_end = "</parameter>",
                 .forbidden_in_value = "<parameter="}},
    {.name = "glm-4.5",
     .shape = CallShape::kKeyValues,
     .reasoning_begin = kThink,
     .reasoning_end = kEndThink,
     .call_begin = {kToolCall},
     .call_end = kEndToolCall,
     .writing = {.separator = "\n",
                 .call_begin = kToolCall,
                 .arguments_begin = "\n",
                 .call_end = kEndToolCall,
                 .key_begin = "<arg_key>",
                 .value_begin = "</arg_key>\n<arg_value>",
                 .value_end = "</arg_value>"}},
    {.name = "kimi-k2",
     .shape = CallShape::kNameThenJson,
     .reasoning_begin = kThink,
     .reasoning_end = kEndThink,
     .section_begin = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .call_begin = {"<|tool_call_begin|>"},
     .call_end = "<|tool_call_end|>",
     .separator = "<|tool_call_argument_begin|>",
     .has_function_index = true,
     .writing = {.begin = "<|tool_calls_section_begin|>",
                 .end = "<|tool_calls_section_end|>",
                 .call_begin = "<|tool_call_begin|>functions.",
                 .arguments_begin = "<|tool_call_argument_begin|>",
                 .call_end = "<|tool_call_end|>",
                 .index_begin = ":"}},
    {.name = "deepseek-v3",
     .shape = CallShape::kNameThenJson,
     .reasoning_begin = kThink,
     .reasoning_end = kEndThink,
     .section_begin = kDeepSeekSection,
     .section_end = kEndDeepSeekSection,
     .call_begin = {"<｜tool▁call▁begin｜>"},
     .call_end = "<｜tool▁call▁end｜>",
     .name_prefix = "function<｜tool▁sep｜>",
     .separator = "```json",
     .arguments_suffix = "```",
     .writing = {.begin = kDeepSeekSection,
                 .separator = "\n",
                 .end = kEndDeepSeekSection,
                 .call_begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                 .arguments_begin = "\n```json\n",
                 .call_end = "\n```<｜tool▁call▁end｜>"}},
    {.name = "deepseek-v31",
     .shape = CallShape::kNameThenJson,
     .reasoning_begin = kThink,
     .reasoning_end = kEndThink,
     .section_begin = kDeepSeekSection,
     .section_end = kEndDeepSeekSection,
     .call_begin = {"<｜tool▁call▁begin｜>"},
     .call_end = "<｜tool▁call▁end｜>",
     .separator = "<｜tool▁sep｜>",
     .writing = {.begin = kDeepSeekSection,
                 .end = kEndDeepSeekSection,
                 .call_begin = "<｜tool▁call▁begin｜>",
                 .arguments_begin = "<｜tool▁sep｜>",
                 .call_end = "<｜tool▁call▁end｜>"}},
    {.name = "mistral-name-args",
     .shape = CallShape::kNameThenJson,
     .reasoning_begin = "[THINK]",
     .reasoning_end = "[/THINK]",
     .call_begin = {"[TOOL_CALLS]"},
     .separator = "[ARGS]",
     .is_separator_optional = true,
     .id_marker = "[CALL_ID]",
     .writing = {.call_begin = "[TOOL_CALLS]", .arguments_begin = "[ARGS]"}},
    {.name = "mistral-list",
     .shape = CallShape::kList,
     .call_begin = {"[TOOL_CALLS]"},
     .writing = ObjectWriting("[TOOL_CALLS] [", "]")},
    {.name = "phi4-mini",
     .shape = CallShape::kList,
     .call_begin = {"<|tool_call|>"},
     .call_end = "<|/tool_call|>",
     .writing = ObjectWriting("<|tool_call|>[", "]<|/tool_call|>")},
    {.name = "granite-list",
     .shape = CallShape::kList,
     .call_begin = {"<|tool_call|>", kToolCall},
     .writing = ObjectWriting("<|tool_call|>[", "]")},
    TaggedObjects("hermes"),
    TaggedObjects(kGenericFormat),
    {.name = "llama3-json",
     .shape = CallShape::kObjectAtStart,
     .call_begin = {"<|python_tag|>"},
     .writing = {.separator = "; ",
                 .call_begin = "{\"name\": \"",
                 .arguments_begin = "\", \"parameters\": ",
                 .call_end = "}"}},
    {.name = "pythonic",
     .shape = CallShape::kPythonAtStart,
     .call_begin = {"<|python_start|>"},
     .call_end = "<|python_end|>",
     .writing =
         {.begin = "[", .separator = ", ", .end = "]", .arguments_begin = "(", .call_end = ")"}},
    {.name = "think", .reasoning_begin = kThink, .reasoning_end = kEndThink},
};

// The first detection whose marks a template contains wins. A detection therefore precedes all
// others whose marks are a subset of its marks, such as mistral-name-args before mistral-list.
// IsMostSpecificFirst checks this. Two more positions matter. deepseek-v3 precedes deepseek-v31,
// because templates of deepseek-v3 contain the marks of both. `think` is last, because the
// templates of most models that reason contain its marks.
constexpr Detection kDetections[] = {
    {"harmony", {"<|channel|>", "<|message|>"}},
    {"qwen3-coder", {kToolCall, "<function="}},
    {"glm-4.5", {kToolCall, "<arg_key>"}},
    {"kimi-k2", {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"}},
    {"deepseek-v3", {kDeepSeekSection, "```json"}},
    {"deepseek-v31", {kDeepSeekSection, "<｜tool▁sep｜>"}},
    {"mistral-name-args", {"[TOOL_CALLS]", "[ARGS]"}},
    {"mistral-list", {"[TOOL_CALLS]", ""}},
    {"phi4-mini", {"<|tool_call|>", "<|/tool_call|>"}},
    {"granite-list", {"<|tool_call|>", ""}},
    {"hermes", {kToolCall, kEndToolCall}},
    {"llama3-json", {"\"parameters\": ", "<|eom_id|>"}},
    {"llama3-json", {"\"parameters\": ", "<|python_tag|>"}},
    {"pythonic", {"<|python_start|>", ""}},
    {"pythonic", {"[func_name1(params_name1=", ""}},
    {"think", {kThink, kEndThink}},
};

constexpr const ToolFormat* FindFormat(absl::string_view name) {
  for (const ToolFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

constexpr bool NamesKnownFormats() {
  for (const Detection& detection : kDetections) {
    if (FindFormat(detection.format) == nullptr) return false;
  }
  return true;
}
static_assert(NamesKnownFormats(), "kDetections names a format that kFormats lacks");

// Returns whether `whole` contains every mark of `part`.
constexpr bool ContainsMarks(const Detection& whole, const Detection& part) {
  for (const absl::string_view mark : part.marks) {
    if (!mark.empty() && mark != whole.marks[0] && mark != whole.marks[1]) return false;
  }
  return true;
}

constexpr bool IsMostSpecificFirst() {
  for (std::size_t later = 1; later < std::size(kDetections); ++later) {
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      if (ContainsMarks(kDetections[later], kDetections[earlier])) return false;
    }
  }
  return true;
}
static_assert(IsMostSpecificFirst(), "an earlier detection hides a later one in kDetections");

}  // namespace

absl::string_view ToolFormat::trigger() const {
  if (shape == CallShape::kNone || shape == CallShape::kObjectAtStart ||
      shape == CallShape::kPythonAtStart || shape == CallShape::kHarmony) {
    return "";
  }
  return section_begin.empty() ? call_begin[0] : section_begin;
}

std::span<const ToolFormat> ToolFormats() {
  return kFormats;
}

const ToolFormat* FindToolFormat(absl::string_view name) {
  return FindFormat(name);
}

const ToolFormat* DetectToolFormat(absl::string_view chat_template) {
  for (const Detection& detection : kDetections) {
    const bool fits = std::ranges::all_of(detection.marks, [&](absl::string_view mark) {
      return absl::StrContains(chat_template, mark);
    });
    if (fits) return FindFormat(detection.format);
  }
  return nullptr;
}

}  // namespace quire::text
