#pragma once

// Python's format strings: '{0} {name!r:>8}'.format(...), and '%s %5.2f' % (...).
//
// Place:      below methods and operators, which call it.
// Invariants: attributes and items of fields are read with the functions that expressions use, so a
//             field can only access what an expression can access.
// Threads:    the rendering thread.
// Source:     Python 3.11, Library Reference, "Format String Syntax" and "printf-style String
//             Formatting"; SandboxedFormatter of jinja2 3.1.6, observed by experiment.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// Implements format.format(arguments). Returns INVALID_ARGUMENT for malformed formats and missing
// arguments, and the errors of FormatWithSpec.
absl::StatusOr<std::string> FormatBraces(absl::string_view format, const Arguments& arguments,
                                         Runtime& runtime);

// Implements format % value. A tuple has one value per conversion. A mapping has the values of
// conversions such as %(name)s.
absl::StatusOr<std::string> FormatPercent(absl::string_view format, const Value& value,
                                          Runtime& runtime);

}  // namespace quire::text::jinja
