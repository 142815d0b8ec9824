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

// Returns whether the output starts inside a reasoning section, because the prompt ends with the
// section's opening marker. `continued` is the content of a final message that the model continues.
// The result is then true if the last section that this content opens, or that the template opens
// just before it, is not closed in it. Markers in other messages are ignored.
bool OpensReasoning(const ToolFormat& format, absl::string_view prompt,
                    std::optional<absl::string_view> continued);

// Returns whether the output cannot contain a reasoning section. This is the case if the prompt
// ends after a section, with which templates disable reasoning, or inside a continued message but
// not in its reasoning.
bool IsAfterReasoning(const ToolFormat& format, absl::string_view prompt,
                      std::optional<absl::string_view> continued);

// Returns whether the model reasons: the source of its chat template contains a marker of reasoning
// sections, or the format has only reasoning.
bool HasReasoning(const ToolFormat& format, absl::string_view chat_template);

// Returns whether a parser needs the text of this special token, which is usually omitted from the
// output, because it is part of a marker. `reads_calls` means that tools are declared.
bool IsMarker(const ToolFormat& format, absl::string_view token, bool reads_calls);

}  // namespace quire::text
