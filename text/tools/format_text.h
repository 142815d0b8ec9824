#pragma once

// Functions that find the markers of a tool format in prompts and special tokens.
//
// Place:      next to output_parser.h. They are called when a prompt is rendered, and before the
//             text of a special token is omitted.
// Threads:    pure functions.

#include <optional>

#include "absl/strings/string_view.h"
#include "text/tools/tool_format.h"

namespace quire::text {

// Returns true if the prompt ends with the opening marker of a reasoning section. The output then
// starts inside the section. `continued_content` is the content of a final message that the model
// continues. If it is set, returns whether a section is open at the end of this content. The
// section may begin in the content or just before it. Markers in other messages are ignored.
bool OpensReasoning(const ToolFormat& format, absl::string_view prompt,
                    std::optional<absl::string_view> continued_content);

// Returns true if the output cannot contain a reasoning section. This is the case if the prompt
// ends inside a continued message but outside its reasoning, or with a closed section. Templates
// write a closed section to disable reasoning.
bool IsAfterReasoning(const ToolFormat& format, absl::string_view prompt,
                      std::optional<absl::string_view> continued_content);

// Returns whether the model reasons: the source of its chat template contains a marker of reasoning
// sections, or the format has only reasoning.
bool HasReasoning(const ToolFormat& format, absl::string_view chat_template);

// Returns whether the special token is part of a marker. The parser then needs its text, which is
// usually omitted from the output. `has_tools` means that tools are declared.
bool IsMarker(const ToolFormat& format, absl::string_view token, bool has_tools);

}  // namespace quire::text
