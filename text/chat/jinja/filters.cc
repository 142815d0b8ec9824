#include "text/chat/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/chat/jinja/format.h"
#include "text/chat/jinja/json.h"
#include "text/chat/jinja/methods.h"
#include "text/chat/jinja/sequence_filters.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Bound = std::vector<std::optional<Value>>;

template <std::string (*change)(absl::string_view)>
Result ChangeText(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("the filter", arguments, {}).status());
  QUIRE_ASSIGN_OR_RETURN(const std::string text, runtime.Print(value));
  return Value::String(change(text));
}

std::string ReturnUnchanged(absl::string_view text) {
  return std::string(text);
}

// Converts the first character of each word to upper case, and the others to lower case. White
// space, hyphens and opening brackets (including <) separate words.
std::string TitleWords(absl::string_view text) {
  const std::vector<absl::string_view> characters = Characters(text);
  const auto separates = [](absl::string_view character) {
    return IsPythonSpace(DecodeUtf8At(character, 0).code_point) ||
           absl::string_view("-({[<").find(character) != absl::string_view::npos;
  };
  std::string out;
  for (std::size_t i = 0; i < characters.size();) {
    const bool is_separator = separates(characters[i]);
    std::string rest;
    std::size_t next = i + 1;
    for (; next < characters.size() && separates(characters[next]) == is_separator; ++next) {
      absl::StrAppend(&rest, characters[next]);
    }
    absl::StrAppend(&out, ToUpper(characters[i]), ToLower(rest));
    i = next;
  }
  return out;
}

Result Trim(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, BindArguments("trim", arguments, {"chars"}));
  QUIRE_ASSIGN_OR_RETURN(const std::string text, runtime.Print(value));
  if (!bound[0] || bound[0]->is_none()) {
    return Value::String(StripChars(text, Side::kBoth, std::nullopt));
  }
  if (!bound[0]->is_string()) {
    return absl::InvalidArgumentError("the chars argument of trim must be a string");
  }
  QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(bound[0]->as_string().size()));
  return Value::String(StripChars(text, Side::kBoth, absl::string_view(bound[0]->as_string())));
}

Result Replace(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("replace", arguments, {"old", "new", "count"}));
  if (!bound[0] || !bound[1]) {
    return absl::InvalidArgumentError("replace needs two arguments");
  }
  QUIRE_ASSIGN_OR_RETURN(std::string text, runtime.Print(value));
  QUIRE_ASSIGN_OR_RETURN(std::string from, runtime.Print(*bound[0]));
  QUIRE_ASSIGN_OR_RETURN(std::string to, runtime.Print(*bound[1]));
  Arguments call;
  call.positional = {Value::String(std::move(from)), Value::String(std::move(to))};
  if (bound[2] && !bound[2]->is_none()) call.positional.push_back(*bound[2]);
  return CallMethod(Value::String(std::move(text)), "replace", call, runtime);
}

constexpr std::size_t kMaxWidth = 1000;

// Returns the text of one indent. `argument` names the argument in the error.
absl::StatusOr<std::string> ReadIndent(absl::string_view argument,
                                       const std::optional<Value>& width) {
  if (width && width->is_string()) return width->as_string();
  const std::int64_t spaces = width ? width->ToInteger().value_or(-1) : 4;
  if (spaces < 0 || spaces > static_cast<std::int64_t>(kMaxWidth)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", argument, " must be a string or an integer from 0 to ", kMaxWidth));
  }
  return std::string(static_cast<std::size_t>(spaces), ' ');
}

Result Indent(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("indent", arguments, {"width", "first", "blank"}));
  if (!value.is_string()) {
    if (value.is_undefined()) return value.UndefinedError();
    return absl::InvalidArgumentError(
        absl::StrCat("indent needs a string, not '", TypeName(value), "'"));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string indent_text,
                         ReadIndent("width argument of indent", bound[0]));
  const bool indents_first = bound[1] && IsTrue(*bound[1]);
  const bool indents_blank = bound[2] && IsTrue(*bound[2]);
  QUIRE_RETURN_IF_ERROR(runtime.ChargeText(value.as_string().size()));
  const std::vector<std::string> lines =
      SplitTextLines(absl::StrCat(value.as_string(), "\n"), false);
  std::string text;
  if (indents_first) text = indent_text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += '\n';
    if (i > 0 && (indents_blank || !lines[i].empty())) text += indent_text;
    text += lines[i];
    QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(indent_text.size() + lines[i].size() + 32));
  }
  QUIRE_RETURN_IF_ERROR(runtime.ChargeText(text.size()));
  return Value::String(std::move(text));
}

Result LengthOf(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("length", arguments, {}).status());
  if (value.is_string()) QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(value.as_string().size()));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t length, Length(value));
  return Value::Int(length);
}

Result Default(Runtime&, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("default", arguments, {"default_value", "boolean"}));
  const bool replaces_false = bound[1] && IsTrue(*bound[1]);
  if (value.is_undefined() || (replaces_false && !IsTrue(value))) {
    return bound[0].value_or(Value::String(""));
  }
  return value;
}

absl::StatusOr<std::string> AsSeparator(const Value& value) {
  if (value.is_string()) return value.as_string();
  return absl::InvalidArgumentError("separators must be strings");
}

Result Json(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(
      const Bound bound,
      BindArguments("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii_only = bound[0] && IsTrue(*bound[0]);
  style.sort_keys = bound[3] && IsTrue(*bound[3]);
  if (bound[1] && !bound[1]->is_none()) {
    QUIRE_ASSIGN_OR_RETURN(style.indent, ReadIndent("indent argument of tojson", bound[1]));
    if (style.indent->size() > kMaxWidth) {
      return absl::InvalidArgumentError(
          absl::StrCat("the indent of tojson has more than ", kMaxWidth, " bytes"));
    }
    style.item_separator = std::string(1, ',');
    // An element may be preceded by one indent per nesting level. Only one indent per element is
    // charged, because the nesting depth is limited.
    const std::int64_t weight = std::min(WeightOf(value), runtime.limits().max_steps);
    QUIRE_RETURN_IF_ERROR(runtime.Charge(
        weight * (1 + static_cast<std::int64_t>(style.indent->size()) / Runtime::kBytesPerStep)));
  }
  if (bound[2] && !bound[2]->is_none()) {
    QUIRE_ASSIGN_OR_RETURN(Iteration parts, Iteration::Over(*bound[2], runtime));
    const std::vector<Value> separators = parts.Rest();
    if (separators.size() != 2) return absl::InvalidArgumentError("separators must be two strings");
    QUIRE_ASSIGN_OR_RETURN(style.item_separator, AsSeparator(separators[0]));
    QUIRE_ASSIGN_OR_RETURN(style.key_separator, AsSeparator(separators[1]));
  }
  QUIRE_ASSIGN_OR_RETURN(std::string text, ToJson(value, style, runtime));
  return Value::String(std::move(text));
}

// Implements Python's int(text, base), except that it ignores all underscores and refuses
// upper-case prefixes (0X). Returns nullopt for malformed text and for magnitudes from 2^63 on.
std::optional<std::int64_t> ParseInteger(absl::string_view text, int base) {
  std::string digits(StripChars(text, Side::kBoth, std::nullopt));
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  absl::string_view rest = digits;
  const bool negative = absl::ConsumePrefix(&rest, "-");
  if (!negative) absl::ConsumePrefix(&rest, "+");
  const absl::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  absl::ConsumePrefix(&rest, prefix);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value, base);
  const bool is_whole = !rest.empty() && rest.front() != '-' && error == std::errc() &&
                        stop == rest.data() + rest.size();
  if (!is_whole) return std::nullopt;
  return negative ? -value : value;
}

// Implements Python's float(text), except that underscores are malformed. Returns nullopt for
// malformed text.
std::optional<double> ParseFloat(absl::string_view text) {
  std::string digits(StripChars(text, Side::kBoth, std::nullopt));
  double value = 0;
  if (!absl::SimpleAtod(digits, &value)) return std::nullopt;
  return value;
}

std::optional<double> ToFloat(const Value& value) {
  if (value.is_number()) return value.ToDouble();
  return value.is_string() ? ParseFloat(value.as_string()) : std::nullopt;
}

std::optional<std::int64_t> Truncate(double value) {
  if (!(std::abs(value) < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

Result ToInt(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, BindArguments("int", arguments, {"default", "base"}));
  QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(value));
  if (value.is_undefined()) return value.UndefinedError();
  const std::int64_t base = bound[1] ? bound[1]->ToInteger().value_or(10) : 10;
  if (base < 2 || base > 36) return absl::InvalidArgumentError("the base must be from 2 to 36");
  std::optional<std::int64_t> number = value.ToInteger();
  if (!number && value.is_string())
    number = ParseInteger(value.as_string(), static_cast<int>(base));
  if (!number) {
    if (const std::optional<double> parsed = ToFloat(value)) number = Truncate(*parsed);
  }
  return number ? Value::Int(*number) : bound[0].value_or(Value::Int(0));
}

Result ToFloatNumber(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, BindArguments("float", arguments, {"default"}));
  QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(value));
  if (value.is_undefined()) return value.UndefinedError();
  if (const std::optional<double> number = ToFloat(value)) return Value::Float(*number);
  return bound[0].value_or(Value::Float(0));
}

Result Absolute(Runtime&, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("abs", arguments, {}).status());
  if (value.is_undefined()) return value.UndefinedError();
  if (value.is_float()) return Value::Float(std::abs(value.as_float()));
  const std::optional<std::int64_t> number = value.ToInteger();
  if (!number) {
    return absl::InvalidArgumentError(
        absl::StrCat("bad operand type for abs(): '", TypeName(value), "'"));
  }
  if (*number == std::numeric_limits<std::int64_t>::min()) {
    return absl::InvalidArgumentError(
        absl::StrCat("abs() of ", *number, ": the result does not fit 64 bits"));
  }
  return Value::Int(std::abs(*number));
}

// Implements Python's round(value, precision): exact halves are rounded to the even digit.
double RoundTo(double value, std::int64_t precision) {
  if (precision >= 0) {
    double rounded = value;
    (void)absl::SimpleAtod(absl::StrFormat("%.*f", static_cast<int>(precision), value), &rounded);
    return rounded;
  }
  const double scale = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / scale) * scale;
}

Result Round(Runtime&, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("round", arguments, {"precision", "method"}));
  if (value.is_undefined()) return value.UndefinedError();
  const std::string method = bound[1] && bound[1]->is_string() ? bound[1]->as_string() : "common";
  const std::optional<std::int64_t> precision = bound[0] ? bound[0]->ToInteger() : 0;
  if (!value.is_number() || !precision || *precision < -300 || *precision > 300) {
    return absl::InvalidArgumentError("round needs a number and a precision from -300 to 300");
  }
  if (method != "common" && method != "ceil" && method != "floor") {
    return absl::InvalidArgumentError("the method of round must be common, ceil or floor");
  }
  if (method == "common") {
    if (!value.is_float() && *precision >= 0) return Value::Int(*value.ToInteger());
    const double rounded = RoundTo(value.ToDouble(), *precision);
    if (value.is_float()) return Value::Float(rounded);
    return Value::Int(Truncate(rounded).value_or(0));
  }
  const double scale = std::pow(10.0, static_cast<double>(*precision));
  const double scaled = value.ToDouble() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// Implements `value % arguments` with positional or named arguments.
Result FormatFilter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return absl::InvalidArgumentError(
        "can't handle positional and keyword arguments at the same time");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string format, runtime.Print(value));
  QUIRE_ASSIGN_OR_RETURN(Value format_arguments,
                         MakeSequence(SequenceKind::kTuple, arguments.positional));
  if (!arguments.named.empty()) {
    MapBuilder names;
    for (const auto& [name, argument] : arguments.named) {
      QUIRE_RETURN_IF_ERROR(names.Set(name, argument));
    }
    format_arguments = std::move(names).Build();
  }
  QUIRE_ASSIGN_OR_RETURN(std::string text, FormatPercent(format, format_arguments, runtime));
  return Value::String(std::move(text));
}

constexpr FilterRow kTextFilters[] = {
    {"format", FormatFilter},
    {"tojson", Json},
    {"trim", Trim},
    {"length", LengthOf},
    {"count", LengthOf},
    {"string", ChangeText<ReturnUnchanged>},
    {"safe", ChangeText<ReturnUnchanged>},  // nothing is escaped, so all text is already safe
    {"lower", ChangeText<ToLower>},
    {"upper", ChangeText<ToUpper>},
    {"capitalize", ChangeText<Capitalize>},
    {"title", ChangeText<TitleWords>},
    {"replace", Replace},
    {"indent", Indent},
    {"default", Default},
    {"d", Default},
    {"int", ToInt},
    {"float", ToFloatNumber},
    {"abs", Absolute},
    {"round", Round},
};

}  // namespace

const FilterRow* FindFilter(absl::string_view name) {
  const FilterRow* const row = FindRow<FilterRow>(kTextFilters, name);
  return row != nullptr ? row : FindRow(SequenceFilters(), name);
}

}  // namespace quire::text::jinja
