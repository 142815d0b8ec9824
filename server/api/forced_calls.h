#pragma once

// Converts tool_choice and tools to constraints in the model's tool-call format:
//   required or named   the answer consists of such calls; parallel_tool_calls is respected
//   auto, strict tools  the answer is free, but calls have arguments that match their schemas
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

// `input` is the checked prompt. `format` is the model's, null if it has none. `has_reasoning`: the
// chat template has reasoning markers; in the generic format only such a model may reason before a
// call. Returns UNIMPLEMENTED / FEATURE_UNSUPPORTED if calls of the format cannot be forced, and
// INVALID_ARGUMENT / BAD_CONSTRAINT if parameters are not an object. REQUIRES: ForcesCalls(chat).
absl::StatusOr<engine::ConstraintSpec> ToForcedCalls(const v1::ChatPrompt& chat,
                                                     const text::ChatInput& input,
                                                     const text::ToolFormat* format,
                                                     bool has_reasoning);

// Returns true if tool_choice is auto and a tool is strict.
bool ConstrainsCalls(const v1::ChatPrompt& chat, const text::ChatInput& input);

// Constrains optional calls. Tools that are not strict take any object as arguments. Also returns
// FEATURE_UNSUPPORTED if the format does not start calls with a marker, or if some tools are not
// strict and the format does not write arguments as JSON. REQUIRES: ConstrainsCalls(chat, input),
// and a format that has calls.
absl::StatusOr<engine::ConstraintSpec> ToConstrainedCalls(const text::ChatInput& input,
                                                          const text::ToolFormat& format,
                                                          bool has_reasoning);

}  // namespace quire::server
