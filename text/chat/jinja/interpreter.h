#pragma once

// Runs a syntax tree.
//
// Place:      top of the template engine; chat_template.h renders with it.
// Invariants: a rendering ends within its limits: steps and bytes (jinja_runtime.h), kMaxMacroDepth
//             calls of macros inside each other, kMaxStackDepth levels of the tree.
// Threads:    Render may run on any number of threads at once over one tree.
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

// Where a rendering failed; line 0: nowhere in particular.
struct RenderResult {
  absl::StatusOr<std::string> text;
  Position error_position;
};

// What the template prints. `variables` hide the functions of the same name; of two with one name
// the later one counts. `now` is the clock of strftime_now. Errors: INVALID_ARGUMENT, without the
// place; RESOURCE_EXHAUSTED when a text exceeds max_bytes; UNIMPLEMENTED when a part of the
// template is executed that Parse warned about.
RenderResult Render(const Body& body, const Variables& variables, const RenderLimits& limits,
                    absl::Time now);

}  // namespace quire::text::jinja
