#pragma once

// Checks the constraints of structured.preload at start, and compiles them before the daemon is
// ready.
//
// Place:      used by the engine stack, which owns the compiler.
// Threads:    any, but PreloadConstraints blocks.

#include <span>

#include "absl/status/status.h"
#include "engine/constraint/constraint.h"

namespace quire::engine {
class ConstraintCompiler;
}
namespace quire::text {
struct ToolFormat;
}

namespace quire::server {

// Checks the entries as far as possible without a vocabulary. The message names the entry. Returns
// UNIMPLEMENTED for any entry in a build without structured output.
absl::Status CheckPreload(std::span<const engine::ConstraintSpec> specs);

// Returns after all constraints are compiled and cached. If the model reasons, `reasoning` is its
// tool format, and each constraint is also compiled in the forms that begin after reasoning.
// Otherwise `reasoning` is null. If `compiler` is null, structured output is unavailable and any
// entry is an error. Errors name the entry or the limit.
absl::Status PreloadConstraints(std::span<const engine::ConstraintSpec> specs,
                                const text::ToolFormat* reasoning,
                                engine::ConstraintCompiler* compiler);

}  // namespace quire::server
