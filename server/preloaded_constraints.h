#pragma once

// Checks the constraints of structured.preload with the configuration, and compiles them before the
// daemon is ready.
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
// tool format, and each constraint is also compiled in the forms that follow reasoning. `compiler`
// is null in a build without structured output. Any entry is then an error. Errors name the entry
// or the limit.
absl::Status PreloadConstraints(std::span<const engine::ConstraintSpec> specs,
                                const text::ToolFormat* reasoning,
                                engine::ConstraintCompiler* compiler);

}  // namespace quire::server
