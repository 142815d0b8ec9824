#include "text/chat/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/chat/jinja/format_spec.h"
#include "text/chat/jinja/operators.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

using Text = absl::StatusOr<std::string>;

absl::Status BadFormat(absl::string_view problem) {
  return absl::InvalidArgumentError(problem);
}

bool IsDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
}

// Returns str, repr or ascii of the value for the conversions s, r and a.
Text Convert(const Value& value, char conversion, Runtime& runtime) {
  if (conversion == 's') return runtime.Print(value);
  QUIRE_ASSIGN_OR_RETURN(std::string repr, runtime.PrintRepr(value));
  return conversion == 'a' ? EscapeNonAscii(repr) : repr;
}

// Formats a string with brace fields. Fields inside specs are formatted recursively.
class BraceFormatter {
 public:
  BraceFormatter(const Arguments& arguments, Runtime& runtime)
      : arguments_(arguments), runtime_(runtime) {}

  Text Format(absl::string_view format, int levels) {
    if (levels == 0) return BadFormat("Max string recursion exceeded");
    std::string out;
    for (std::size_t at = 0; at < format.size();) {
      const std::size_t brace = std::min(format.find_first_of("{}", at), format.size());
      absl::StrAppend(&out, format.substr(at, brace - at));
      if (brace == format.size()) break;
      at = brace + 1;
      if (at < format.size() && format[at] == format[brace]) {
        out += format[brace];
        ++at;
        continue;
      }
      if (format[brace] == '}') return BadFormat("Single '}' encountered in format string");
      if (at == format.size()) return BadFormat("Single '{' encountered in format string");
      QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
      QUIRE_ASSIGN_OR_RETURN(const Field field, ReadField(format, &at));
      QUIRE_ASSIGN_OR_RETURN(const std::string text, Print(field, levels));
      absl::StrAppend(&out, text);
      QUIRE_RETURN_IF_ERROR(runtime_.ChargeText(out.size()));
    }
    return out;
  }

 private:
  struct Field {
    absl::string_view name;
    char conversion = 0;
    absl::string_view spec;
  };

  // Reads the field that starts at `*at`, and advances `*at` past its closing brace.
  static absl::StatusOr<Field> ReadField(absl::string_view format, std::size_t* at) {
    Field field;
    std::size_t end = *at;
    while (end < format.size() && format[end] != '}' && format[end] != '!' && format[end] != ':') {
      if (format[end] == '{') return BadFormat("unexpected '{' in field name");
      if (format[end] == '[') end = std::min(format.find(']', end), format.size() - 1);
      ++end;
    }
    if (end == format.size()) return BadFormat("expected '}' before end of string");
    field.name = format.substr(*at, end - *at);
    if (format[end] == '!') {
      if (end + 2 >= format.size()) {
        return BadFormat("end of string while looking for conversion specifier");
      }
      field.conversion = format[end + 1];
      end += 2;
      if (format[end] != '}' && format[end] != ':') {
        return BadFormat("expected ':' after conversion specifier");
      }
    }
    if (format[end] == ':') {
      const std::size_t begin = ++end;
      for (int open = 1; end < format.size(); ++end) {
        if (format[end] == '{') ++open;
        if (format[end] == '}' && --open == 0) break;
      }
      if (end == format.size()) return BadFormat("unmatched '{' in format spec");
      field.spec = format.substr(begin, end - begin);
    }
    *at = end + 1;
    return field;
  }

  Text Print(const Field& field, int levels) {
    QUIRE_ASSIGN_OR_RETURN(Value value, ReadValue(field.name));
    if (field.conversion != 0) {
      if (absl::string_view("sra").find(field.conversion) == absl::string_view::npos) {
        return BadFormat(
            absl::StrCat("Unknown conversion specifier ", std::string(1, field.conversion)));
      }
      QUIRE_ASSIGN_OR_RETURN(std::string text, Convert(value, field.conversion, runtime_));
      value = Value::String(std::move(text));
    }
    QUIRE_ASSIGN_OR_RETURN(const std::string spec, Format(field.spec, levels - 1));
    return FormatWithSpec(value, spec, runtime_);
  }

  // Returns the value of a field name such as "0.name[key]".
  absl::StatusOr<Value> ReadValue(absl::string_view name) {
    std::size_t at = std::min(name.find_first_of(".["), name.size());
    QUIRE_ASSIGN_OR_RETURN(Value value, ReadArgument(name.substr(0, at)));
    while (at < name.size()) {
      QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
      if (name[at] == '.') {
        const std::size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        const absl::string_view attribute = name.substr(at + 1, end - at - 1);
        if (attribute.empty()) return BadFormat("Empty attribute in format string");
        QUIRE_ASSIGN_OR_RETURN(value, GetAttribute(value, attribute, runtime_));
        at = end;
        continue;
      }
      if (name[at] != '[') {
        return BadFormat("Only '.' or '[' may follow ']' in format field specifier");
      }
      const std::size_t end = name.find(']', at);
      if (end == absl::string_view::npos) return BadFormat("Missing ']' in format string");
      const absl::string_view key = name.substr(at + 1, end - at - 1);
      if (key.empty()) return BadFormat("Empty attribute in format string");
      std::int64_t index = 0;
      const bool is_index = IsDigits(key) && absl::SimpleAtoi(key, &index);
      QUIRE_ASSIGN_OR_RETURN(
          value, GetItem(value, is_index ? Value::Int(index) : Value::String(key), runtime_));
      at = end + 1;
    }
    return value;
  }

  absl::StatusOr<Value> ReadArgument(absl::string_view name) {
    std::int64_t index = 0;
    if (name.empty()) {
      if (numbering_ == Numbering::kManual) {
        return BadFormat(
            "cannot switch from manual field specification to automatic field numbering");
      }
      numbering_ = Numbering::kAutomatic;
      index = next_++;
    } else if (IsDigits(name)) {
      if (numbering_ == Numbering::kAutomatic) {
        return BadFormat(
            "cannot switch from automatic field numbering to manual field specification");
      }
      numbering_ = Numbering::kManual;
      if (!absl::SimpleAtoi(name, &index))
        return BadFormat("Too many decimal digits in format string");
    } else {
      const auto& named = arguments_.named;
      QUIRE_RETURN_IF_ERROR(runtime_.ChargeNames(named.size()));
      const auto found = std::find_if(named.begin(), named.end(), [name](const auto& argument) {
        return argument.first == name;
      });
      if (found != named.end()) return found->second;
      return BadFormat(absl::StrCat("the format string uses '", name.substr(0, 100),
                                    "', but there is no such argument"));
    }
    if (index < static_cast<std::int64_t>(arguments_.positional.size())) {
      return arguments_.positional[static_cast<std::size_t>(index)];
    }
    return BadFormat(
        absl::StrCat("Replacement index ", index, " out of range for positional args tuple"));
  }

  enum class Numbering : std::uint8_t { kNone, kAutomatic, kManual };

  const Arguments& arguments_;
  Runtime& runtime_;
  Numbering numbering_ = Numbering::kNone;
  std::int64_t next_ = 0;
};

// A conversion specifier such as "%-5.2f".
struct Conversion {
  bool is_left = false, has_plus = false, has_space = false, is_alternate = false,
       has_zeros = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;  // -1: not specified
  char type = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(absl::string_view format, const Value& value, Runtime& runtime)
      : format_(format), value_(value), runtime_(runtime) {
    const bool is_tuple = value.is_sequence() && value.as_sequence()->kind == SequenceKind::kTuple;
    items_ = is_tuple ? value.as_sequence()->items : std::vector<Value>{value};
    // CPython does not report a mapping or list that the format does not use.
    items_may_be_unused_ =
        value.is_map() || value.is_undefined() || (value.is_sequence() && !is_tuple);
  }

  Text Format() {
    QUIRE_RETURN_IF_ERROR(runtime_.ChargeText(format_.size()));
    std::string out;
    while (at_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', at_), format_.size());
      absl::StrAppend(&out, format_.substr(at_, percent - at_));
      at_ = percent + 1;
      if (percent == format_.size()) break;
      QUIRE_RETURN_IF_ERROR(runtime_.Charge(1));
      QUIRE_ASSIGN_OR_RETURN(const std::string text, FormatConversion());
      absl::StrAppend(&out, text);
      QUIRE_RETURN_IF_ERROR(runtime_.ChargeText(out.size()));
    }
    if (next_ < items_.size() && !items_may_be_unused_) {
      return BadFormat("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  bool Skip(char c) {
    if (at_ >= format_.size() || format_[at_] != c) return false;
    ++at_;
    return true;
  }

  absl::StatusOr<Value> NextItem() {
    if (next_ < items_.size()) return items_[next_++];
    return BadFormat("not enough arguments for format string");
  }

  absl::StatusOr<Value> NamedItem() {
    if (!value_.is_map()) return BadFormat("format requires a mapping");
    const std::size_t begin = at_;
    for (int open = 1; at_ < format_.size(); ++at_) {
      if (format_[at_] == '(') ++open;
      if (format_[at_] == ')' && --open == 0) break;
    }
    if (at_ >= format_.size()) return BadFormat("incomplete format key");
    const absl::string_view name = format_.substr(begin, at_ - begin);
    ++at_;
    QUIRE_RETURN_IF_ERROR(runtime_.ChargeBytes(name.size()));
    const Value* found = Find(*value_.as_map(), Value::String(name));
    if (found != nullptr) return *found;
    return BadFormat(absl::StrCat("the mapping has no key '", name.substr(0, 100), "'"));
  }

  // Reads digits and returns their value, or reads an asterisk and returns the next argument.
  // Returns 0 if there is neither.
  absl::StatusOr<std::int64_t> ReadNumber() {
    if (Skip('*')) {
      QUIRE_ASSIGN_OR_RETURN(const Value item, NextItem());
      const std::optional<std::int64_t> number = item.ToInteger();
      constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int32_t>::max();
      if (!number || *number < -kMaxNumber || *number > kMaxNumber) return BadFormat("* wants int");
      return *number;
    }
    std::int64_t number = 0;
    while (at_ < format_.size() && absl::ascii_isdigit(static_cast<unsigned char>(format_[at_]))) {
      number = number * 10 + (format_[at_++] - '0');
      if (number > std::numeric_limits<std::int32_t>::max()) return BadFormat("width too big");
    }
    return number;
  }

  Text FormatConversion() {
    if (Skip('%')) return std::string("%");
    Conversion conversion;
    std::optional<Value> named;
    if (Skip('(')) {
      QUIRE_ASSIGN_OR_RETURN(named, NamedItem());
      items_may_be_unused_ = true;
    }
    for (bool is_flag = true; is_flag;) {
      is_flag = (Skip('-') && (conversion.is_left = true)) ||
                (Skip('+') && (conversion.has_plus = true)) ||
                (Skip(' ') && (conversion.has_space = true)) ||
                (Skip('#') && (conversion.is_alternate = true)) ||
                (Skip('0') && (conversion.has_zeros = true));
    }
    QUIRE_ASSIGN_OR_RETURN(conversion.width, ReadNumber());
    if (conversion.width < 0) {
      conversion.is_left = true;
      conversion.width = -conversion.width;
    }
    if (Skip('.')) {
      QUIRE_ASSIGN_OR_RETURN(conversion.precision, ReadNumber());
      conversion.precision = std::max<std::int64_t>(conversion.precision, 0);
    }
    if (!Skip('h') && !Skip('l')) Skip('L');
    if (at_ >= format_.size()) return BadFormat("incomplete format");
    conversion.type = format_[at_++];
    Value value;
    if (named) {
      value = *std::move(named);
    } else {
      QUIRE_ASSIGN_OR_RETURN(value, NextItem());
    }
    const std::int64_t largest = std::max(conversion.width, conversion.precision);
    if (largest > 0) QUIRE_RETURN_IF_ERROR(runtime_.ChargeText(static_cast<std::size_t>(largest)));
    return FormatValue(value, conversion);
  }

  Text FormatValue(const Value& value, const Conversion& conversion) {
    const char side = conversion.is_left ? '<' : '>';
    const absl::string_view type(&conversion.type, 1);
    if (absl::string_view("sra").find(type) != absl::string_view::npos) {
      QUIRE_ASSIGN_OR_RETURN(std::string text, Convert(value, conversion.type, runtime_));
      if (conversion.precision >= 0) {
        text = std::string(
            CharRange(text, 0, std::min(conversion.precision, CountUtf8Characters(text))));
      }
      return PadText(text, conversion.width, side, " ");
    }
    if (conversion.type == 'c') {
      QUIRE_ASSIGN_OR_RETURN(const std::string text, CharacterOf(value));
      return PadText(text, conversion.width, side, " ");
    }
    NumberText number;
    if (absl::string_view("diuoxX").find(type) != absl::string_view::npos) {
      QUIRE_ASSIGN_OR_RETURN(number, IntegerOf(value, conversion));
    } else if (absl::string_view("eEfFgG").find(type) != absl::string_view::npos) {
      if (!value.is_number())
        return BadFormat(absl::StrCat("must be real number, not ", TypeName(value)));
      number =
          FloatTextAs(value.ToDouble(), conversion.type,
                      conversion.precision < 0 ? 6 : conversion.precision, conversion.is_alternate);
    } else {
      return BadFormat(absl::StrCat("unsupported format character '", type, "'"));
    }
    if (number.sign.empty() && conversion.has_plus) number.sign.push_back('+');
    if (number.sign.empty() && conversion.has_space) number.sign.push_back(' ');
    const std::string head = absl::StrCat(number.sign, number.prefix);
    const std::string body = absl::StrCat(number.digits, number.rest);
    if (!conversion.has_zeros || conversion.is_left) {
      return PadText(absl::StrCat(head, body), conversion.width, side, " ");
    }
    const auto head_width = static_cast<std::int64_t>(head.size());
    return absl::StrCat(head, PadText(body, conversion.width - head_width, '>', "0"));
  }

  static Text CharacterOf(const Value& value) {
    if (value.is_string() && CountUtf8Characters(value.as_string()) == 1) return value.as_string();
    const std::optional<std::int64_t> code = value.ToInteger();
    if (!code) return BadFormat("%c requires int or char");
    if (*code < 0 || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) {
      return BadFormat("%c arg not in range(0x110000)");
    }
    std::string text;
    AppendUtf8(static_cast<char32_t>(*code), text);
    return text;
  }

  static absl::StatusOr<NumberText> IntegerOf(const Value& value, const Conversion& conversion) {
    const char type = conversion.type;
    const bool is_decimal = type == 'd' || type == 'i' || type == 'u';
    const std::optional<std::int64_t> integer = value.ToInteger();
    NumberText number;
    if (integer) {
      const int base = is_decimal ? 10 : type == 'o' ? 8 : 16;
      number = IntegerText(*integer, base, type == 'X');
    } else if (is_decimal && value.is_float() && std::isfinite(value.as_float())) {
      number = FloatTextAs(std::trunc(value.as_float()), 'f', 0, /*is_alternate=*/false);
      if (number.digits == "0") number.sign.clear();
    } else {
      return BadFormat(absl::StrCat("%", std::string(1, type),
                                    " format: ", is_decimal ? "a real number" : "an integer",
                                    " is required, not ", TypeName(value)));
    }
    if (conversion.is_alternate && !is_decimal) {
      number.prefix = absl::StrCat("0", std::string(1, type));
    }
    const auto digits = static_cast<std::int64_t>(number.digits.size());
    if (conversion.precision > digits) {
      number.digits.insert(0, static_cast<std::size_t>(conversion.precision - digits), '0');
    }
    return number;
  }

  const absl::string_view format_;
  const Value& value_;
  Runtime& runtime_;
  std::vector<Value> items_;
  std::size_t next_ = 0;
  bool items_may_be_unused_ = false;
  std::size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::string> FormatBraces(absl::string_view format, const Arguments& arguments,
                                         Runtime& runtime) {
  // Python allows a field inside a spec, but no field inside the spec of that inner field. The
  // third level formats the spec of the inner field.
  constexpr int kLevels = 3;
  return BraceFormatter(arguments, runtime).Format(format, kLevels);
}

absl::StatusOr<std::string> FormatPercent(absl::string_view format, const Value& value,
                                          Runtime& runtime) {
  return PercentFormatter(format, value, runtime).Format();
}

}  // namespace quire::text::jinja
