#pragma once

// Converts tool_choice and tools to constraints in the model's tool-call format:
//   required or named   the answer consists of tool calls; parallel_tool_calls is respected
//   auto, strict tools  the answer is any text; the arguments of its calls match the tools' schemas
//
// Place:   used by the request translator.
// Threads: any; no state.

#include "absl/status/statusor.h"
#include "engine/constraint/constraint.h"
#include "text/chat/chat_input.h"

namespace quire::text {
struct ToolFormat;
}
namespace quire::v1 {
class ChatPrompt;
}

namespace quire::server {

// Returns true if tool_choice forces a call.
bool ForcesCalls(const v1::ChatPrompt& chat);

// `input` is the checked prompt. `format` is the model's tool-call format, or null if the model has
// none. `has_reasoning` is true if the chat template has reasoning markers; with the generic
// format, only such a model may reason before a call. Returns UNIMPLEMENTED / FEATURE_UNSUPPORTED
// if calls of the format cannot be forced, and INVALID_ARGUMENT / BAD_CONSTRAINT if parameters are
// not an object. REQUIRES: ForcesCalls(chat).
absl::StatusOr<engine::ConstraintSpec> ToForcedCalls(const v1::ChatPrompt& chat,
                                                     const text::ChatInput& input,
                                                     const text::ToolFormat* format,
                                                     bool has_reasoning);

// Returns true if tool_choice is auto and a tool is strict.
bool ConstrainsCalls(const v1::ChatPrompt& chat, const text::ChatInput& input);

// Constrains the calls of an answer that may also contain no call. A tool that is not strict
// accepts any object as arguments. Returns the errors of ToForcedCalls. Also returns
// FEATURE_UNSUPPORTED if the format does not start calls with a marker, or if a tool is not strict
// and the format does not write arguments as JSON. REQUIRES: ConstrainsCalls(chat, input), and
// `format` has a call syntax.
absl::StatusOr<engine::ConstraintSpec> ToConstrainedCalls(const text::ChatInput& input,
                                                          const text::ToolFormat& format,
                                                          bool has_reasoning);

}  // namespace quire::server
