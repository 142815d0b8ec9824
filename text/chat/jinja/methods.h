#pragma once

// Methods of texts, maps and sequences that templates may call. Those that change a value do not
// exist, as in jinja2's immutable sandbox.
//
// Place:      below the operators, which find them behind a dot.
// Threads:    those of the rendering.
// Source:     documentation of Python's built-in types.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// True for methods of Python's str that are not implemented and that no other type has.
inline bool IsUnsupportedMethod(absl::string_view name) {
  return name == "encode";  // gives bytes, which templates do not have
}

bool HasMethod(const Value& self, absl::string_view name);

// REQUIRES: HasMethod(self, name). Errors: INVALID_ARGUMENT for wrong arguments.
absl::StatusOr<Value> CallMethod(const Value& self, absl::string_view name,
                                 const Arguments& arguments, Runtime& runtime);

}  // namespace quire::text::jinja
