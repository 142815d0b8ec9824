#include "text/tools/format_text.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace quire::text {
namespace {

bool IsPartOfAnyMarker(absl::string_view token, std::initializer_list<absl::string_view> markers) {
  return std::ranges::any_of(
      markers, [token](absl::string_view marker) { return absl::StrContains(marker, token); });
}

}  // namespace

bool OpensReasoning(const ToolFormat& format, absl::string_view prompt,
                    std::optional<absl::string_view> continued_content) {
  if (format.reasoning_begin.empty()) return false;
  absl::string_view message;
  if (continued_content.has_value()) {
    // Templates render the content of the continued message unchanged, or without the surrounding
    // white space.
    message = absl::StripLeadingAsciiWhitespace(*continued_content);
    if (!absl::EndsWith(prompt, message)) message = absl::StripAsciiWhitespace(message);
    if (!absl::ConsumeSuffix(&prompt, message)) message = {};
  }
  const std::size_t begin = message.rfind(format.reasoning_begin);
  if (begin != message.npos) return message.find(format.reasoning_end, begin) == message.npos;
  return absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), format.reasoning_begin) &&
         !absl::StrContains(message, format.reasoning_end);
}

bool IsAfterReasoning(const ToolFormat& format, absl::string_view prompt,
                      std::optional<absl::string_view> continued_content) {
  if (format.reasoning_begin.empty()) return false;
  if (continued_content.has_value() && !absl::StripAsciiWhitespace(*continued_content).empty()) {
    return !OpensReasoning(format, prompt, continued_content);
  }
  return absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), format.reasoning_end);
}

bool HasReasoning(const ToolFormat& format, absl::string_view chat_template) {
  if (format.reasoning_begin.empty()) return false;
  return format.shape == CallShape::kNone ||
         absl::StrContains(chat_template, format.reasoning_begin) ||
         absl::StrContains(chat_template, format.reasoning_end);
}

bool IsMarker(const ToolFormat& format, absl::string_view token, bool has_tools) {
  if (token.empty()) return false;
  if (format.shape == CallShape::kHarmony) {
    return IsPartOfAnyMarker(token, {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
                                     "<|end|>", "<|return|>", "<|call|>"});
  }
  if (IsPartOfAnyMarker(token, {format.reasoning_begin, format.reasoning_end})) return true;
  return has_tools &&
         IsPartOfAnyMarker(token, {format.section_begin, format.section_end, format.call_begin[0],
                                   format.call_begin[1], format.call_end, format.name_prefix,
                                   format.separator, format.arguments_suffix, format.id_marker,
                                   "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"});
}

}  // namespace quire::text
