#pragma once

// The functions that every template sees: namespace, range, dict, joiner, cycler, raise_exception,
// strftime_now.
//
// Place:      below the interpreter, which calls them.
// Threads:    those of the rendering.
// Source:     documentation of jinja2 3.1, "List of Global Functions"; the last two as Hugging Face
//             transformers adds them.

#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/object.h"
#include "text/chat/jinja/runtime.h"

namespace quire::text::jinja {

std::span<const std::pair<absl::string_view, Builtin>> Builtins();

// Errors: INVALID_ARGUMENT for wrong arguments; that of raise_exception is its message.
absl::StatusOr<Value> CallBuiltin(Builtin builtin, const Arguments& arguments, Runtime& runtime);

}  // namespace quire::text::jinja
