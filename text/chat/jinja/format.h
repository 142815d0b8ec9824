#pragma once

// Format strings of Python: '{0} {name!r:>8}'.format(...), and '%s %5.2f' % (...).
//
// Place:      below methods and operators, which call it.
// Invariants: attributes and items of fields are read as templates read them, so a field reaches
//             nothing that an expression does not.
// Threads:    those of the rendering.
// Source:     Python 3.11, Library Reference, "Format String Syntax" and "printf-style String
//             Formatting"; SandboxedFormatter of jinja2 3.1.6 by experiment.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// format.format(arguments). Errors: INVALID_ARGUMENT for malformed formats and absent arguments;
// those of FormatWithSpec.
absl::StatusOr<std::string> FormatBraces(absl::string_view format, const Arguments& arguments,
                                         Runtime& runtime);

// format % value. A tuple has a value for each conversion, a mapping those of %(name)s.
absl::StatusOr<std::string> FormatPercent(absl::string_view format, const Value& value,
                                          Runtime& runtime);

}  // namespace quire::text::jinja
