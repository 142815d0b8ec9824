#pragma once

// Python's format(value, spec): the part of a format string behind the colon.
//
//   [[fill]align][sign][z][#][0][width][grouping][.precision][type]
//
// Place:      below format.h, which reads whole format strings, and methods.h.
// Threads:    those of the rendering.
// Source:     Python 3.11, Library Reference, "Format Specification Mini-Language".

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// Errors: INVALID_ARGUMENT for a spec that is malformed or does not fit the type of the value;
// RESOURCE_EXHAUSTED for widths and precisions beyond the limit of texts.
absl::StatusOr<std::string> FormatWithSpec(const Value& value, absl::string_view spec,
                                           Runtime& runtime);

// A number without padding: "-", "0x" and "1f" of -31.
struct NumberText {
  std::string sign;
  std::string prefix;
  std::string digits;  // of the integer part
  std::string rest;    // point, fraction, exponent, percent sign
};

// Writes the value in base 2, 8, 10 or 16.
NumberText IntegerText(std::int64_t value, int base, bool is_upper);
// `type` is one of e, f, g and their upper cases. REQUIRES: precision is within the limit of texts.
NumberText FloatTextAs(double value, char type, std::int64_t precision, bool is_alternate);

// Adds `fill`, one character, up to `width` characters. Align is one of "<", ">" and "^".
std::string PadText(absl::string_view text, std::int64_t width, char align, absl::string_view fill);

}  // namespace quire::text::jinja
