#pragma once

// The constraints of structured.preload: checked with the configuration, compiled before the daemon
// is ready.
//
// Place:      beside the engine stack, which has the compiler.
// Threads:    PreloadConstraints waits, so not on a thread that answers; else pure.

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

// What can be said without a vocabulary, before anything is loaded. The message names the entry;
// UNIMPLEMENTED in a build without structured output, which takes none.
absl::Status CheckPreload(std::span<const engine::ConstraintSpec> specs);

// Returns once all of them are compiled and kept, and with `reasoning`, the format of a model that
// reasons, each also as it is behind reasoning. `compiler` is null for a model without structured
// output, which takes none. Errors name the entry, or the limit of all.
absl::Status PreloadConstraints(std::span<const engine::ConstraintSpec> specs,
                                const text::ToolFormat* reasoning,
                                engine::ConstraintCompiler* compiler);

}  // namespace quire::server
