#pragma once

// What the prompt and the special tokens of a model mean to the reading of its answer.
//
// Place:      beside output_parser.h: a prompt is asked when it is made, a token before its text is
//             left out.
// Threads:    pure.

#include <optional>

#include "absl/strings/string_view.h"
#include "text/tools/tool_format.h"

namespace quire::text {

// Whether the answer begins inside a section of reasoning: the prompt ends with its first marker.
// Where the model goes on with a message, whose content `continued` ends the prompt: the last
// section that this message opens, or that the template opens right before it, is not closed in it.
// What other messages say of markers means nothing.
bool OpensReasoning(const ToolFormat& format, absl::string_view prompt,
                    std::optional<absl::string_view> continued);

// Whether no section of reasoning is to be expected of the answer: the prompt ends behind one, as a
// template says to a model that it shall not reason, or inside of a message of which `continued`
// is the content, and not in its reasoning.
bool IsAfterReasoning(const ToolFormat& format, absl::string_view prompt,
                      std::optional<absl::string_view> continued);

// Whether the model reasons, by the source of a chat template: it writes or explains a marker of
// such sections, or the format is one of reasoning alone.
bool HasReasoning(const ToolFormat& format, absl::string_view chat_template);

// Whether a parser needs the text of this special token, which answers usually leave out: it is a
// marker or part of one. `reads_calls`: tools are declared.
bool IsMarker(const ToolFormat& format, absl::string_view token, bool reads_calls);

}  // namespace quire::text
