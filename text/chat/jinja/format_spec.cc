#include "text/chat/jinja/format_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

struct Spec {
  std::string fill = " ";
  char align = 0;  // <, >, = or ^
  bool has_fill = false;
  char sign = 0;  // +, - or space
  bool no_negative_zero = false;
  bool is_alternate = false;
  std::int64_t width = 0;
  char grouping = 0;            // , or _
  std::int64_t precision = -1;  // -1: not specified
  std::string type;             // one character, or empty
};

absl::Status BadSpec(absl::string_view problem) {
  return absl::InvalidArgumentError(problem);
}

bool IsAlign(absl::string_view character) {
  return character == "<" || character == ">" || character == "=" || character == "^";
}

// Parses a spec from left to right.
class SpecReader {
 public:
  explicit SpecReader(absl::string_view text) : characters_(Characters(text)) {}

  // `default_align` is the alignment for the value's type if the spec has none.
  absl::StatusOr<Spec> Read(char default_align) {
    Spec spec;
    ReadAlign(&spec);
    if (Is("+") || Is("-") || Is(" ")) spec.sign = characters_[at_++].front();
    spec.no_negative_zero = Skip("z");
    spec.is_alternate = Skip("#");
    if (!spec.has_fill && Skip("0")) {
      spec.fill.assign(1, '0');
      if (spec.align == 0 && default_align == '>') spec.align = '=';
    }
    if (spec.align == 0) spec.align = default_align;
    QUIRE_ASSIGN_OR_RETURN(spec.width, ReadNumber(0));
    QUIRE_RETURN_IF_ERROR(ReadGrouping(&spec));
    if (Skip(".")) {
      QUIRE_ASSIGN_OR_RETURN(spec.precision, ReadNumber(-1));
      if (spec.precision < 0) return BadSpec("Format specifier missing precision");
    }
    if (characters_.size() - at_ > 1) return BadSpec("Invalid format specifier");
    if (at_ < characters_.size()) spec.type = std::string(characters_[at_]);
    QUIRE_RETURN_IF_ERROR(CheckGrouping(spec));
    return spec;
  }

 private:
  bool Is(absl::string_view character) const {
    return at_ < characters_.size() && characters_[at_] == character;
  }
  bool Skip(absl::string_view character) {
    if (!Is(character)) return false;
    ++at_;
    return true;
  }

  void ReadAlign(Spec* spec) {
    if (characters_.size() > 1 && IsAlign(characters_[1])) {
      spec->fill = std::string(characters_[0]);
      spec->has_fill = true;
      spec->align = characters_[1].front();
      at_ = 2;
    } else if (!characters_.empty() && IsAlign(characters_[0])) {
      spec->align = characters_[0].front();
      at_ = 1;
    }
  }

  absl::StatusOr<std::int64_t> ReadNumber(std::int64_t absent) {
    if (at_ >= characters_.size() || !IsAsciiDigit()) return absent;
    std::int64_t number = 0;
    for (; at_ < characters_.size() && IsAsciiDigit(); ++at_) {
      number = number * 10 + (characters_[at_].front() - '0');
      if (number > std::numeric_limits<std::int32_t>::max()) {
        return BadSpec("Too many decimal digits in format string");
      }
    }
    return number;
  }

  bool IsAsciiDigit() const {
    return absl::ascii_isdigit(static_cast<unsigned char>(characters_[at_].front()));
  }

  absl::Status ReadGrouping(Spec* spec) {
    if (Skip(",")) spec->grouping = ',';
    if (Skip("_")) {
      if (spec->grouping != 0) return BadSpec("Cannot specify both ',' and '_'.");
      spec->grouping = '_';
    }
    if (spec->grouping != 0 && (Is(",") || Is("_"))) {
      return BadSpec(Is(",") && spec->grouping == ',' ? "Cannot specify ',' with ','."
                                                      : "Cannot specify both ',' and '_'.");
    }
    return absl::OkStatus();
  }

  static absl::Status CheckGrouping(const Spec& spec) {
    if (spec.grouping == 0 || spec.type.empty()) return absl::OkStatus();
    constexpr absl::string_view kDecimal = "defgEG%F";
    constexpr absl::string_view kBinary = "boxX";
    const auto is_in = [&spec](absl::string_view types) {
      return types.find(spec.type) != absl::string_view::npos;
    };
    if (is_in(kDecimal) || (spec.grouping == '_' && is_in(kBinary))) return absl::OkStatus();
    return BadSpec(absl::StrCat("Cannot specify '", std::string(1, spec.grouping), "' with '",
                                spec.type, "'."));
  }

  const std::vector<absl::string_view> characters_;
  std::size_t at_ = 0;
};

absl::Status UnknownType(const Spec& spec, const Value& value) {
  return BadSpec(absl::StrCat("Unknown format code '", spec.type, "' for object of type '",
                              TypeName(value), "'"));
}

absl::StatusOr<std::string> FormatString(const Value& value, const Spec& spec) {
  if (!spec.type.empty() && spec.type != "s") return UnknownType(spec, value);
  if (spec.sign != 0) return BadSpec("Sign not allowed in string format specifier");
  if (spec.no_negative_zero) {
    return BadSpec("Negative zero coercion (z) not allowed in string format specifier");
  }
  if (spec.is_alternate) {
    return BadSpec("Alternate form (#) not allowed in string format specifier");
  }
  if (spec.align == '=') return BadSpec("'=' alignment not allowed in string format specifier");
  if (spec.grouping != 0) {
    return BadSpec(absl::StrCat("Cannot specify '", std::string(1, spec.grouping), "' with 's'."));
  }
  absl::string_view text = value.as_string();
  if (spec.precision >= 0) {
    text = CharRange(text, 0, std::min(spec.precision, CountUtf8Characters(text)));
  }
  return PadText(text, spec.width, spec.align, spec.fill);
}

// Returns the digits with separators. As in CPython, leading zeros are added until the result has
// at least `min_width` characters, and the zeros are grouped too.
std::string GroupDigits(absl::string_view digits, std::int64_t min_width, const Spec& spec) {
  const bool is_binary =
      !spec.type.empty() && absl::string_view("boxX").find(spec.type) != absl::string_view::npos;
  const std::int64_t group = spec.grouping == 0 ? std::numeric_limits<std::int64_t>::max()
                             : is_binary        ? 4
                                                : 3;
  auto remaining = static_cast<std::int64_t>(digits.size());
  std::string reversed;
  bool is_first = true;
  do {
    if (!is_first) reversed += spec.grouping;
    is_first = false;
    const std::int64_t count =
        std::min(group, std::max<std::int64_t>({remaining, min_width, std::int64_t{1}}));
    const std::int64_t num_digits = std::min(remaining, count);
    for (std::int64_t i = 0; i < num_digits; ++i) {
      reversed += digits[static_cast<std::size_t>(remaining - 1 - i)];
    }
    reversed.append(static_cast<std::size_t>(count - num_digits), '0');
    remaining -= num_digits;
    min_width -= count + 1;
  } while (remaining > 0 || min_width + 1 > 0);
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

std::string LayOutNumber(const NumberText& number, const Spec& spec) {
  std::string sign = number.sign;
  if (sign.empty() && (spec.sign == '+' || spec.sign == ' ')) sign.push_back(spec.sign);
  const bool fills_zeros = spec.fill == "0" && spec.align == '=';
  const auto fixed = static_cast<std::int64_t>(sign.size() + number.prefix.size()) +
                     CountUtf8Characters(number.rest);
  // Infinity and NaN have no digits to group.
  const std::string digits =
      number.digits.empty()
          ? std::string()
          : GroupDigits(number.digits, fills_zeros ? spec.width - fixed : 0, spec);
  const std::string head = absl::StrCat(sign, number.prefix);
  const std::string body = absl::StrCat(digits, number.rest);
  if (spec.align != '=') {
    return PadText(absl::StrCat(head, body), spec.width, spec.align, spec.fill);
  }
  const auto head_width = static_cast<std::int64_t>(head.size());
  return absl::StrCat(head, PadText(body, spec.width - head_width, '>', spec.fill));
}

absl::StatusOr<std::string> FormatCharacter(std::int64_t code, const Spec& spec) {
  if (spec.sign != 0) return BadSpec("Sign not allowed with integer format specifier 'c'");
  if (spec.is_alternate) {
    return BadSpec("Alternate form (#) not allowed with integer format specifier 'c'");
  }
  if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    return BadSpec("%c arg not in range(0x110000)");
  }
  NumberText text;
  AppendUtf8(static_cast<char32_t>(code), text.rest);
  return LayOutNumber(text, spec);
}

absl::StatusOr<std::string> FormatFloat(const Value& value, const Spec& spec) {
  const std::string type = spec.type == "n" ? "g" : spec.type;
  if (!type.empty() && absl::string_view("eEfFgG%").find(type) == absl::string_view::npos) {
    return UnknownType(spec, value);
  }
  const double number = value.ToDouble();
  NumberText text;
  if (type == "%") {
    text =
        FloatTextAs(number * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.is_alternate);
    text.rest += '%';
  } else if (!type.empty()) {
    text = FloatTextAs(number, type.front(), spec.precision < 0 ? 6 : spec.precision,
                       spec.is_alternate);
  } else {
    // With neither type nor precision, prints repr. With only a precision, prints a variant of g
    // (GeneralWithPoint).
    text = FloatTextAs(number, 'r', spec.precision, spec.is_alternate);
  }
  const auto is_zero = [](absl::string_view digits) {
    return digits.substr(0, digits.find_first_of("eE")).find_first_of("123456789") ==
           absl::string_view::npos;
  };
  if (spec.no_negative_zero && !text.digits.empty() && is_zero(text.digits) && is_zero(text.rest)) {
    text.sign.clear();
  }
  return LayOutNumber(text, spec);
}

absl::StatusOr<std::string> FormatInteger(const Value& value, const Spec& spec) {
  const std::string& type = spec.type;
  if (!type.empty() && absl::string_view("eEfFgG%").find(type) != absl::string_view::npos) {
    return FormatFloat(value, spec);
  }
  if (!type.empty() && absl::string_view("bcdoxXn").find(type) == absl::string_view::npos) {
    return UnknownType(spec, value);
  }
  if (spec.precision >= 0) return BadSpec("Precision not allowed in integer format specifier");
  if (spec.no_negative_zero) {
    return BadSpec("Negative zero coercion (z) not allowed in integer format specifier");
  }
  const std::int64_t number = *value.ToInteger();
  if (type == "c") return FormatCharacter(number, spec);
  const int base = type == "b" ? 2 : type == "o" ? 8 : type == "x" || type == "X" ? 16 : 10;
  NumberText text = IntegerText(number, base, type == "X");
  if (spec.is_alternate && base != 10) text.prefix = absl::StrCat("0", type);
  return LayOutNumber(text, spec);
}

// Splits a float in C notation into sign, digits of the integer part, and rest.
NumberText SplitFloat(absl::string_view text) {
  NumberText number;
  if (!text.empty() && text.front() == '-') {
    number.sign.push_back('-');
    text.remove_prefix(1);
  }
  const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  number.digits = std::string(text.substr(0, end));
  number.rest = std::string(text.substr(end));
  return number;
}

// Prints a float with a precision and without a type. CPython does not treat this as type g. It
// switches to exponents one digit earlier, and plain notation has at least one digit after the
// point.
std::string GeneralWithPoint(double value, std::int64_t precision, bool is_alternate) {
  const int digits = static_cast<int>(std::max<std::int64_t>(precision, 1));
  const std::string scientific = absl::StrFormat("%.*e", digits - 1, value);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent + 1 > -4 && exponent + 1 <= digits - 1) {
    std::string plain = absl::StrFormat("%.*f", std::max(digits - 1 - exponent, 1), value);
    while (!is_alternate && plain.back() == '0' && plain[plain.size() - 2] != '.') {
      plain.pop_back();
    }
    return plain;
  }
  std::string mantissa = scientific.substr(0, scientific.find('e'));
  if (is_alternate) {
    if (mantissa.find('.') == std::string::npos) mantissa += '.';
  } else if (mantissa.find('.') != std::string::npos) {
    while (mantissa.back() == '0') mantissa.pop_back();
    if (mantissa.back() == '.') mantissa.pop_back();
  }
  return absl::StrCat(mantissa, scientific.substr(scientific.find('e')));
}

std::string CNotation(double value, char type, int precision, bool is_alternate) {
  switch (type) {
    case 'e':
      return is_alternate ? absl::StrFormat("%#.*e", precision, value)
                          : absl::StrFormat("%.*e", precision, value);
    case 'f':
      return is_alternate ? absl::StrFormat("%#.*f", precision, value)
                          : absl::StrFormat("%.*f", precision, value);
    default:
      return is_alternate ? absl::StrFormat("%#.*g", precision, value)
                          : absl::StrFormat("%.*g", precision, value);
  }
}

}  // namespace

NumberText IntegerText(std::int64_t value, int base, bool is_upper) {
  NumberText text;
  if (value < 0) text.sign.push_back('-');
  auto rest = static_cast<std::uint64_t>(value);
  if (value < 0) rest = ~rest + 1;
  const auto radix = static_cast<std::uint64_t>(base);
  do {
    const char digit = "0123456789abcdef"[rest % radix];
    text.digits += is_upper ? absl::ascii_toupper(static_cast<unsigned char>(digit)) : digit;
    rest /= radix;
  } while (rest > 0);
  std::reverse(text.digits.begin(), text.digits.end());
  return text;
}

NumberText FloatTextAs(double value, char type, std::int64_t precision, bool is_alternate) {
  const bool is_upper = absl::ascii_isupper(static_cast<unsigned char>(type));
  NumberText number;
  if (!std::isfinite(value)) {
    if (value < 0) number.sign.push_back('-');
    absl::StrAppend(&number.rest, std::isnan(value) ? "nan" : "inf");
  } else if (type == 'r') {
    std::string text =
        precision < 0 ? FloatText(value) : GeneralWithPoint(value, precision, is_alternate);
    if (is_alternate && text.find('.') == std::string::npos) text.insert(text.find('e'), 1, '.');
    number = SplitFloat(text);
  } else {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(type));
    number = SplitFloat(CNotation(value, lower, static_cast<int>(precision), is_alternate));
  }
  if (is_upper) number.rest = absl::AsciiStrToUpper(number.rest);
  return number;
}

std::string PadText(absl::string_view text, std::int64_t width, char align,
                    absl::string_view fill) {
  const std::int64_t missing = std::max<std::int64_t>(width - CountUtf8Characters(text), 0);
  const std::int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string padded;
  for (std::int64_t i = 0; i < left; ++i) absl::StrAppend(&padded, fill);
  absl::StrAppend(&padded, text);
  for (std::int64_t i = left; i < missing; ++i) absl::StrAppend(&padded, fill);
  return padded;
}

absl::StatusOr<std::string> FormatWithSpec(const Value& value, absl::string_view spec,
                                           Runtime& runtime) {
  if (spec.empty()) return runtime.Print(value);
  if (!value.is_string() && !value.is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unsupported format string passed to ", TypeName(value), ".__format__"));
  }
  QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(spec.size()));
  QUIRE_ASSIGN_OR_RETURN(const Spec parsed, SpecReader(spec).Read(value.is_string() ? '<' : '>'));
  // A fill character has up to four bytes, and separators add at most a third to the digits.
  const auto largest = static_cast<std::size_t>(std::max(parsed.width, parsed.precision));
  if (parsed.width > 0 || parsed.precision > 0) {
    QUIRE_RETURN_IF_ERROR(
        runtime.ChargeText(largest * std::max<std::size_t>(parsed.fill.size(), 2)));
  }
  QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(value));
  if (value.is_string()) return FormatString(value, parsed);
  return value.is_float() ? FormatFloat(value, parsed) : FormatInteger(value, parsed);
}

}  // namespace quire::text::jinja
