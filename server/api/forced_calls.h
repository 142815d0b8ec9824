#pragma once

// tool_choice `required` and a named tool -> the constraint that lets the model write such calls in
// its own format and nothing else, and parallel_tool_calls. Tools that are `strict` where the model
// decides -> the constraint that lets it write anything, and calls with arguments of their schemas.
//
// Place:      beside the request translator.
// Threads:    pure.

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

// Whether a call is asked for.
bool ForcesCalls(const v1::ChatPrompt& chat);

// `input`: of the same prompt, with its tools checked and its tool_choice among them; `format`: of
// the model, null if it has none; `has_reasoning`: its chat template has markers of reasoning. In
// the generic format only such a model may reason before a call. Errors: UNIMPLEMENTED /
// FEATURE_UNSUPPORTED for formats whose calls cannot be forced; INVALID_ARGUMENT / BAD_CONSTRAINT
// for parameters that are no objects. REQUIRES: ForcesCalls(chat).
absl::StatusOr<engine::ConstraintSpec> ToForcedCalls(const v1::ChatPrompt& chat,
                                                     const text::ChatInput& input,
                                                     const text::ToolFormat* format,
                                                     bool has_reasoning);

// Returns true if calls that the model may make must match their schemas.
bool HoldsCalls(const v1::ChatPrompt& chat, const text::ChatInput& input);

// As above. Tools that are not strict take any arguments that are an object. Errors: also
// FEATURE_UNSUPPORTED for formats that do not tell calls by a marker, and, when not all tools are
// strict, for those whose arguments are no JSON. REQUIRES: HoldsCalls of the chat, and a format of
// calls.
absl::StatusOr<engine::ConstraintSpec> ToHeldCalls(const text::ChatInput& input,
                                                   const text::ToolFormat& format,
                                                   bool has_reasoning);

}  // namespace quire::server
