#pragma once

// Python's format(value, spec). A spec is the part of a format field after the colon.
//
//   [[fill]align][sign][z][#][0][width][grouping][.precision][type]
//
// Place:      below methods.h and format.h, which parses whole format strings.
// Threads:    the rendering thread.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// Returns INVALID_ARGUMENT for a spec that is malformed or does not match the type of the value.
// Returns RESOURCE_EXHAUSTED for a width or precision that exceeds the text limit.
absl::StatusOr<std::string> FormatWithSpec(const Value& value, absl::string_view spec,
                                           Runtime& runtime);

// A number without padding. For -31 in hexadecimal: "-", "0x" and "1f".
struct NumberText {
  std::string sign;
  std::string prefix;
  std::string digits;  // digits of the integer part
  std::string rest;    // decimal point, fraction, exponent, percent sign
};

// Formats the value in base 2, 8, 10 or 16.
NumberText IntegerText(std::int64_t value, int base, bool is_upper);
// `type` is one of e, f, g and their upper cases, or r for a spec without a type. With r, a
// negative precision means that none is given. REQUIRES: precision is within the text limit.
NumberText FloatTextAs(double value, char type, std::int64_t precision, bool is_alternate);

// Pads to `width` characters with `fill`, one character. Align is one of "<", ">" and "^".
std::string PadText(absl::string_view text, std::int64_t width, char align, absl::string_view fill);

}  // namespace quire::text::jinja
