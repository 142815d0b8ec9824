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

// `input` is the result of ToChatInput for `chat`. `format` is the model's tool-call format, or
// null if the model has none. `has_reasoning` is true if the chat template has reasoning markers.
// In text::kGenericFormat, reasoning before a call is allowed only if `has_reasoning` is true.
// Returns UNIMPLEMENTED / FEATURE_UNSUPPORTED if `format` is null or its calls cannot be forced.
// Returns INVALID_ARGUMENT / BAD_CONSTRAINT if the parameters schema of a tool does not allow an
// object. REQUIRES: ForcesCalls(chat).
absl::StatusOr<engine::ConstraintSpec> ToForcedCalls(const v1::ChatPrompt& chat,
                                                     const text::ChatInput& input,
                                                     const text::ToolFormat* format,
                                                     bool has_reasoning);

// Returns true if tool_choice is auto and a tool is strict.
bool ConstrainsCalls(const v1::ChatPrompt& chat, const text::ChatInput& input);

// Returns a constraint for an answer that may contain calls but need not. The arguments of a call
// match the tool's schema if the tool is strict, else they may be any object. Returns
// UNIMPLEMENTED / FEATURE_UNSUPPORTED if calls of the format cannot be forced or do not start with
// a call marker. Returns the same error if a tool is not strict and the format does not write
// arguments as JSON.
// Returns BAD_CONSTRAINT like ToForcedCalls. REQUIRES: ConstrainsCalls is true for `input`, and
// `format` has a call syntax.
absl::StatusOr<engine::ConstraintSpec> ToConstrainedCalls(const text::ChatInput& input,
                                                          const text::ToolFormat& format,
                                                          bool has_reasoning);

}  // namespace quire::server
