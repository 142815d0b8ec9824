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

#include "absl/strings/string_view.h"
#include "text/chat/jinja/object.h"

namespace quire::text::jinja {

// The functions return INVALID_ARGUMENT for wrong arguments. raise_exception returns its message as
// the error.
std::span<const std::pair<absl::string_view, Function>> Builtins();

}  // namespace quire::text::jinja
