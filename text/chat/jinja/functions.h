#pragma once

// The functions that every template can call: namespace, range, dict, joiner, cycler,
// raise_exception, strftime_now.
//
// Place:      below the interpreter, which calls them.
// Threads:    the rendering thread.
// Source:     documentation of jinja2 3.1, "List of Global Functions"; Hugging Face transformers
//             for raise_exception and strftime_now.

#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/object.h"
#include "text/chat/jinja/runtime.h"

namespace quire::text::jinja {

std::span<const std::pair<absl::string_view, Builtin>> Builtins();

// Returns INVALID_ARGUMENT for wrong arguments. raise_exception returns its message as the error.
absl::StatusOr<Value> CallBuiltin(Builtin builtin, const Arguments& arguments, Runtime& runtime);

}  // namespace quire::text::jinja
