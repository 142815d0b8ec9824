#pragma once

// Renders a syntax tree.
//
// Place:      top of the template engine; chat_template.h calls it.
// Invariants: a rendering stops at its limits: steps and bytes (runtime.h), kMaxMacroDepth nested
//             macro calls, and kMaxStackDepth nested nodes of the tree.
// Threads:    several threads may render one tree at the same time.
// Lifetime:   the tree must outlive the call.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "text/chat/jinja/ast.h"
#include "text/chat/jinja/runtime.h"

namespace quire::text::jinja {

inline constexpr int kMaxMacroDepth = 64;
inline constexpr int kMaxStackDepth = 1500;

using Variables = std::vector<std::pair<std::string, Value>>;

// The text or the error of a rendering. Line 0 means that the error has no position.
struct RenderResult {
  absl::StatusOr<std::string> text;
  Position error_position;
};

// Returns the output of the template. `variables` hide functions of the same name; if a name occurs
// twice, the last one counts. strftime_now prints `now`. Returns RESOURCE_EXHAUSTED if a text
// exceeds max_bytes, UNIMPLEMENTED if the template executes a part that Parse warned about, and
// INVALID_ARGUMENT for other errors. The messages do not contain the position.
RenderResult Render(const Body& body, const Variables& variables, const RenderLimits& limits,
                    absl::Time now);

}  // namespace quire::text::jinja
