#pragma once

// Methods of strings, maps and sequences that templates may call. Methods that modify a value are
// missing, as in jinja2's immutable sandbox.
//
// Place:      below the operators, which look them up.
// Threads:    the rendering thread.
// Source:     documentation of Python's built-in types.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// Returns whether `name` is a method of Python's str that is not supported and that no other type
// has.
inline bool IsUnsupportedMethod(absl::string_view name) {
  return name == "encode";  // returns bytes, a type that templates lack
}

bool HasMethod(const Value& self, absl::string_view name);

// Returns INVALID_ARGUMENT for wrong arguments. REQUIRES: HasMethod(self, name).
absl::StatusOr<Value> CallMethod(const Value& self, absl::string_view name,
                                 const Arguments& arguments, Runtime& runtime);

}  // namespace quire::text::jinja
