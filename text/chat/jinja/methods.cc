#include "text/chat/jinja/methods.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/chat/jinja/characters.h"
#include "text/chat/jinja/format.h"
#include "text/chat/jinja/format_spec.h"
#include "text/chat/jinja/operators.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Bound = std::vector<std::optional<Value>>;
using Names = std::vector<absl::string_view>;

struct Call {
  absl::string_view name;
  const Value& self;
  const Arguments& arguments;
  Runtime& runtime;

  const std::string& text() const { return self.as_string(); }
  absl::StatusOr<Bound> Bind(const Names& names) const {
    return BindArguments(name, arguments, names);
  }
};

absl::Status WrongArgument(const Call& call, absl::string_view wanted, const Value& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(call.name, " needs ", wanted, ", not '", TypeName(got), "'"));
}

absl::StatusOr<std::string> TextArgument(const Call& call, const std::optional<Value>& value) {
  if (!value) return absl::InvalidArgumentError(absl::StrCat(call.name, " needs an argument"));
  if (!value->is_string()) return WrongArgument(call, "a string", *value);
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeBytes(value->as_string().size()));
  return value->as_string();
}

// Returns nullopt for absent and none arguments.
absl::StatusOr<std::optional<std::string>> OptionalText(const Call& call,
                                                        const std::optional<Value>& value) {
  if (!value || value->is_none()) return std::optional<std::string>();
  QUIRE_ASSIGN_OR_RETURN(std::string text, TextArgument(call, value));
  return std::optional<std::string>(std::move(text));
}

absl::StatusOr<std::int64_t> IntegerArgument(const Call& call, const std::optional<Value>& value,
                                             std::int64_t default_value) {
  if (!value) return default_value;
  if (const auto number = value->ToInteger()) return *number;
  return WrongArgument(call, "an integer", *value);
}

// Converts the parts to a list. REQUIRES: the caller has charged for the parts.
Result MakeTextList(std::vector<std::string> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.push_back(Value::String(std::move(part)));
  return MakeList(std::move(items));
}

template <std::string (*change)(absl::string_view)>
Result ChangeCase(const Call& call) {
  QUIRE_RETURN_IF_ERROR(call.Bind({}).status());
  return Value::String(change(call.text()));
}

// Implements isalpha and similar methods. For an empty text, only isascii and isprintable are true.
template <bool (*is)(char32_t), bool empty_passes = false>
Result TestCharacters(const Call& call) {
  QUIRE_RETURN_IF_ERROR(call.Bind({}).status());
  const std::string& text = call.text();
  return Value::Bool(text.empty() ? empty_passes : AllCharacters(text, is));
}

bool IsAlphanumeric(char32_t c) {
  return IsLetter(c) || IsNumericValue(c);
}
bool IsAscii(char32_t c) {
  return c < 0x80;
}

template <bool (*is)(absl::string_view)>
Result TestText(const Call& call) {
  QUIRE_RETURN_IF_ERROR(call.Bind({}).status());
  return Value::Bool(is(call.text()));
}

Result Strip(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"chars"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> chars, OptionalText(call, bound[0]));
  const Side side = call.name == "strip"    ? Side::kBoth
                    : call.name == "lstrip" ? Side::kLeft
                                            : Side::kRight;
  std::optional<absl::string_view> set;
  if (chars) set = *chars;
  return Value::String(StripChars(call.text(), side, set));
}

Result Split(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"sep", "maxsplit"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> separator, OptionalText(call, bound[0]));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t limit, IntegerArgument(call, bound[1], -1));
  if (separator && separator->empty()) return absl::InvalidArgumentError("empty separator");
  std::optional<absl::string_view> delimiter;
  if (separator) delimiter = *separator;
  QUIRE_RETURN_IF_ERROR(call.runtime.Charge(CountParts(call.text(), delimiter)));
  return MakeTextList(SplitText(call.text(), delimiter, limit, call.name == "rsplit"));
}

Result SplitLines(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"keepends"}));
  QUIRE_RETURN_IF_ERROR(call.runtime.Charge(CountLines(call.text())));
  return MakeTextList(SplitTextLines(call.text(), bound[0] && IsTrue(*bound[0])));
}

// The part of the text that the arguments `start` and `end` select. startswith, endswith and the
// methods that Search implements take these arguments.
struct Window {
  absl::string_view text;
  std::int64_t begin = 0;  // number of characters before this part
  // False if `start` is after `end` or after the end of the text, so that nothing is found.
  bool is_valid = true;
};

// If `start` is absent or none, the part begins at the start of the text. If `end` is absent or
// none, the part ends at the end of the text.
absl::StatusOr<Window> WindowOf(const Call& call, const std::optional<Value>& start,
                                const std::optional<Value>& end) {
  const auto is_given = [](const std::optional<Value>& value) {
    return value && !value->is_none();
  };
  Window window{.text = call.text()};
  if (!is_given(start) && !is_given(end)) return window;
  const std::int64_t length = CountUtf8Characters(call.text());
  const auto clamp_index = [length](std::int64_t index) {
    return std::clamp<std::int64_t>(index < 0 ? index + length : index, 0, length);
  };
  std::int64_t first = 0;
  std::int64_t last = length;
  if (is_given(start)) {
    QUIRE_ASSIGN_OR_RETURN(first, IntegerArgument(call, start, 0));
  }
  if (is_given(end)) {
    QUIRE_ASSIGN_OR_RETURN(last, IntegerArgument(call, end, length));
  }
  window.begin = clamp_index(first);
  window.is_valid = first <= length && window.begin <= clamp_index(last);
  window.text = window.is_valid ? CharRange(call.text(), window.begin, clamp_index(last)) : "";
  return window;
}

// Implements startswith and endswith. The argument is a string or a tuple of strings; start and end
// count characters.
Result StartsOrEnds(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"prefix", "start", "end"}));
  QUIRE_ASSIGN_OR_RETURN(const Window window, WindowOf(call, bound[1], bound[2]));
  const absl::string_view text = window.text;
  const auto matches = [&](absl::string_view part) {
    if (!window.is_valid) return false;
    return call.name == "startswith" ? absl::StartsWith(text, part) : absl::EndsWith(text, part);
  };
  const bool is_tuple =
      bound[0] && bound[0]->is_sequence() && bound[0]->as_sequence()->kind == SequenceKind::kTuple;
  if (!is_tuple) {
    QUIRE_ASSIGN_OR_RETURN(const std::string part, TextArgument(call, bound[0]));
    return Value::Bool(matches(part));
  }
  bool any_matches = false;
  for (const Value& item : bound[0]->as_sequence()->items) {
    QUIRE_RETURN_IF_ERROR(call.runtime.Charge(1));
    QUIRE_ASSIGN_OR_RETURN(const std::string part, TextArgument(call, item));
    any_matches = any_matches || matches(part);
  }
  return Value::Bool(any_matches);
}

Result Replace(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"old", "new", "count"}));
  QUIRE_ASSIGN_OR_RETURN(const std::string from, TextArgument(call, bound[0]));
  QUIRE_ASSIGN_OR_RETURN(const std::string to, TextArgument(call, bound[1]));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t count, IntegerArgument(call, bound[2], -1));
  // A text of n bytes has at most n + 1 matches.
  const std::size_t max_matches = call.text().size() / std::max<std::size_t>(from.size(), 1) + 1;
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeBytes(max_matches * to.size()));
  std::string result = ReplaceText(call.text(), from, to, count);
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeText(result.size()));
  return Value::String(std::move(result));
}

// Implements find, rfind, index, rindex and count.
Result Search(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"sub", "start", "end"}));
  QUIRE_ASSIGN_OR_RETURN(const std::string part, TextArgument(call, bound[0]));
  QUIRE_ASSIGN_OR_RETURN(const Window window, WindowOf(call, bound[1], bound[2]));
  const absl::string_view text = window.text;
  if (call.name == "count") {
    if (!window.is_valid) return Value::Int(0);
    return Value::Int(part.empty() ? CountUtf8Characters(text) + 1 : CountParts(text, part) - 1);
  }
  const bool from_right = absl::StartsWith(call.name, "r");
  const std::size_t at = !window.is_valid ? absl::string_view::npos
                         : from_right     ? FindLast(text, part)
                                          : FindFirst(text, part);
  if (at != absl::string_view::npos) {
    return Value::Int(window.begin + CountUtf8Characters(text.substr(0, at)));
  }
  if (absl::EndsWith(call.name, "index")) {
    return absl::InvalidArgumentError("substring not found");
  }
  return Value::Int(-1);
}

// Implements ljust, rjust and center.
Result Justify(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"width", "fillchar"}));
  if (!bound[0]) return absl::InvalidArgumentError(absl::StrCat(call.name, " needs a width"));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t width, IntegerArgument(call, bound[0], 0));
  std::string fill = " ";
  if (bound[1]) {
    QUIRE_ASSIGN_OR_RETURN(fill, TextArgument(call, bound[1]));
  }
  if (CountUtf8Characters(fill) != 1) {
    return absl::InvalidArgumentError("The fill character must be exactly one character long");
  }
  const std::int64_t length = CountUtf8Characters(call.text());
  if (width <= length) return call.self;
  const std::int64_t missing = width - length;
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeText(
      call.text().size() + fill.size() * static_cast<std::size_t>(std::min(
                                             missing, call.runtime.limits().max_bytes + 1))));
  // If the number of fill characters is odd, center puts the extra one on the left if the width is
  // odd, otherwise on the right. CPython does the same.
  const std::int64_t left = call.name == "ljust"   ? 0
                            : call.name == "rjust" ? missing
                                                   : missing / 2 + (missing & width & 1);
  const std::int64_t width_with_left = length + left;
  return Value::String(PadText(PadText(call.text(), width_with_left, '>', fill), width, '<', fill));
}

Result ZeroFill(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"width"}));
  if (!bound[0]) return absl::InvalidArgumentError("zfill needs a width");
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t width, IntegerArgument(call, bound[0], 0));
  const std::int64_t length = CountUtf8Characters(call.text());
  if (width <= length) return call.self;
  const std::int64_t missing = width - length;
  QUIRE_RETURN_IF_ERROR(
      call.runtime.ChargeText(call.text().size() + static_cast<std::size_t>(missing)));
  const bool has_sign = absl::StartsWith(call.text(), "+") || absl::StartsWith(call.text(), "-");
  std::string text = call.text();
  text.insert(has_sign ? 1 : 0, static_cast<std::size_t>(missing), '0');
  return Value::String(std::move(text));
}

Result ExpandAllTabs(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"tabsize"}));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t size, IntegerArgument(call, bound[0], 8));
  const auto tabs = std::count(call.text().begin(), call.text().end(), '\t');
  const std::int64_t limit = call.runtime.limits().max_bytes + 1;
  const std::int64_t spaces =
      tabs == 0 ? 0 : std::clamp<std::int64_t>(size, 0, limit / tabs + 1) * tabs;
  QUIRE_RETURN_IF_ERROR(
      call.runtime.ChargeText(call.text().size() + static_cast<std::size_t>(spaces)));
  return Value::String(ExpandTabs(call.text(), size));
}

Result Format(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(std::string text, FormatBraces(call.text(), call.arguments, call.runtime));
  return Value::String(std::move(text));
}

Result FormatMap(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"mapping"}));
  if (!bound[0] || !bound[0]->is_map()) {
    return absl::InvalidArgumentError("format_map needs a mapping");
  }
  Arguments named;
  for (const auto& [key, value] : bound[0]->as_map()->entries) {
    QUIRE_RETURN_IF_ERROR(call.runtime.Charge(1));
    if (key.is_string()) named.named.emplace_back(key.as_string(), value);
  }
  QUIRE_ASSIGN_OR_RETURN(std::string text, FormatBraces(call.text(), named, call.runtime));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> CodeOf(const Value& key) {
  if (key.is_int()) return key;
  if (key.is_string() && CountUtf8Characters(key.as_string()) == 1) {
    return Value::Int(static_cast<std::int64_t>(DecodeUtf8At(key.as_string(), 0).code_point));
  }
  return absl::InvalidArgumentError("keys of maketrans must be integers or single characters");
}

// Returns a table for translate: a mapping from code points to replacements.
Result MakeTrans(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"x", "y", "z"}));
  if (!bound[0]) return absl::InvalidArgumentError("maketrans needs an argument");
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeWalk(*bound[0]));
  MapBuilder table;
  if (!bound[1]) {
    if (!bound[0]->is_map()) return WrongArgument(call, "a mapping", *bound[0]);
    for (const auto& [key, value] : bound[0]->as_map()->entries) {
      QUIRE_ASSIGN_OR_RETURN(const Value code, CodeOf(key));
      QUIRE_RETURN_IF_ERROR(table.Set(code, value));
    }
    return std::move(table).Build();
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string from, TextArgument(call, bound[0]));
  QUIRE_ASSIGN_OR_RETURN(const std::string to, TextArgument(call, bound[1]));
  std::string removed;
  if (bound[2]) {
    QUIRE_ASSIGN_OR_RETURN(removed, TextArgument(call, bound[2]));
  }
  const std::vector<absl::string_view> keys = Characters(from);
  const std::vector<absl::string_view> values = Characters(to);
  QUIRE_RETURN_IF_ERROR(
      call.runtime.Charge(static_cast<std::int64_t>(keys.size() + removed.size())));
  if (keys.size() != values.size()) {
    return absl::InvalidArgumentError("the first two maketrans arguments must have equal length");
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const Value key, CodeOf(Value::String(keys[i])));
    QUIRE_ASSIGN_OR_RETURN(Value value, CodeOf(Value::String(values[i])));
    QUIRE_RETURN_IF_ERROR(table.Set(key, std::move(value)));
  }
  for (const absl::string_view character : Characters(removed)) {
    QUIRE_ASSIGN_OR_RETURN(const Value key, CodeOf(Value::String(character)));
    QUIRE_RETURN_IF_ERROR(table.Set(key, Value::None()));
  }
  return std::move(table).Build();
}

Result Translate(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"table"}));
  const bool is_table = bound[0] && (bound[0]->is_map() || bound[0]->is_sequence());
  if (!is_table)
    return absl::InvalidArgumentError("translate needs a table such as maketrans returns");
  std::string text;
  for (absl::string_view rest = call.text(); !rest.empty();) {
    const absl::string_view character = rest.substr(0, Utf8Length(rest[0]));
    rest.remove_prefix(character.size());
    QUIRE_RETURN_IF_ERROR(call.runtime.Charge(1));
    QUIRE_ASSIGN_OR_RETURN(const Value key, CodeOf(Value::String(character)));
    QUIRE_ASSIGN_OR_RETURN(const Value value, GetItem(*bound[0], key, call.runtime));
    if (value.is_undefined()) {
      absl::StrAppend(&text, character);
    } else if (value.is_string()) {
      QUIRE_RETURN_IF_ERROR(call.runtime.ChargeBytes(value.as_string().size()));
      absl::StrAppend(&text, value.as_string());
    } else if (value.is_int() && value.as_int() >= 0 && value.as_int() <= 0x10FFFF &&
               (value.as_int() < 0xD800 || value.as_int() > 0xDFFF)) {
      AppendUtf8(static_cast<char32_t>(value.as_int()), text);
    } else if (!value.is_none()) {
      return absl::InvalidArgumentError(
          "character mapping must return integer, None or a character");
    }
    if (static_cast<std::int64_t>(text.size()) > call.runtime.limits().max_bytes) break;
  }
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeText(text.size()));
  return Value::String(std::move(text));
}

Result JoinTexts(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"iterable"}));
  if (!bound[0]) return absl::InvalidArgumentError("join needs an argument");
  QUIRE_ASSIGN_OR_RETURN(Iteration items, Iteration::Over(*bound[0], call.runtime));
  std::string result;
  bool first = true;
  while (const Value* item = items.Next()) {
    if (!item->is_string()) return WrongArgument(call, "strings", *item);
    if (!first) result += call.text();
    first = false;
    result += item->as_string();
    QUIRE_RETURN_IF_ERROR(call.runtime.ChargeBytes(call.text().size() + item->as_string().size()));
    QUIRE_RETURN_IF_ERROR(call.runtime.Charge(1));
  }
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeText(result.size()));
  return Value::String(std::move(result));
}

Result RemoveAffix(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"affix"}));
  QUIRE_ASSIGN_OR_RETURN(const std::string part, TextArgument(call, bound[0]));
  return Value::String(call.name == "removeprefix" ? absl::StripPrefix(call.text(), part)
                                                   : absl::StripSuffix(call.text(), part));
}

Result Partition(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"sep"}));
  QUIRE_ASSIGN_OR_RETURN(const std::string part, TextArgument(call, bound[0]));
  if (part.empty()) return absl::InvalidArgumentError("empty separator");
  const absl::string_view text = call.text();
  const bool from_right = call.name == "rpartition";
  const std::size_t at = from_right ? FindLast(text, part) : FindFirst(text, part);
  std::vector<Value> items(3, Value::String(""));
  if (at == absl::string_view::npos) {
    items[from_right ? 2 : 0] = call.self;
  } else {
    items = {Value::String(text.substr(0, at)), Value::String(part),
             Value::String(text.substr(at + part.size()))};
  }
  return MakeSequence(SequenceKind::kTuple, std::move(items));
}

// Implements keys, values and items.
Result View(const Call& call) {
  QUIRE_RETURN_IF_ERROR(call.Bind({}).status());
  const auto& entries = call.self.as_map()->entries;
  QUIRE_RETURN_IF_ERROR(call.runtime.Charge(static_cast<std::int64_t>(entries.size())));
  const SequenceKind kind = call.name == "keys"     ? SequenceKind::kKeys
                            : call.name == "values" ? SequenceKind::kValues
                                                    : SequenceKind::kItems;
  std::vector<Value> items;
  for (const auto& [key, value] : entries) {
    if (kind == SequenceKind::kKeys) items.push_back(key);
    if (kind == SequenceKind::kValues) items.push_back(value);
    if (kind != SequenceKind::kItems) continue;
    QUIRE_ASSIGN_OR_RETURN(Value pair, MakeSequence(SequenceKind::kTuple, {key, value}));
    items.push_back(std::move(pair));
  }
  return MakeSequence(kind, std::move(items));
}

Result Get(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"key", "default"}));
  if (!bound[0]) return absl::InvalidArgumentError("get needs an argument");
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeKey(*bound[0]));
  if (!bound[0]->is_undefined()) QUIRE_RETURN_IF_ERROR(HashKey(*bound[0]).status());
  const Value* found = Find(*call.self.as_map(), *bound[0]);
  if (found != nullptr) return *found;
  return bound[1].value_or(Value::None());
}

// Values are immutable, so a copy of a map or a list is the value itself.
Result Copy(const Call& call) {
  QUIRE_RETURN_IF_ERROR(call.Bind({}).status());
  return call.self;
}

// Implements index and count of lists and tuples.
Result SearchItems(const Call& call) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, call.Bind({"value"}));
  if (!bound[0]) return absl::InvalidArgumentError(absl::StrCat(call.name, " needs an argument"));
  QUIRE_RETURN_IF_ERROR(call.runtime.ChargeWalk(call.self));
  const std::vector<Value>& items = call.self.as_sequence()->items;
  const auto equals = [&](const Value& item) { return Equals(item, *bound[0]); };
  if (call.name == "count") return Value::Int(std::count_if(items.begin(), items.end(), equals));
  const auto found = std::find_if(items.begin(), items.end(), equals);
  if (found == items.end()) return absl::InvalidArgumentError("the value is not in the list");
  return Value::Int(found - items.begin());
}

struct MethodRow {
  absl::string_view name;
  Result (*run)(const Call& call);
};

constexpr MethodRow kTextMethods[] = {
    {"split", Split},
    {"strip", Strip},
    {"lstrip", Strip},
    {"rstrip", Strip},
    {"startswith", StartsOrEnds},
    {"endswith", StartsOrEnds},
    {"upper", ChangeCase<ToUpper>},
    {"lower", ChangeCase<ToLower>},
    {"replace", Replace},
    {"title", ChangeCase<TitleCase>},
    {"capitalize", ChangeCase<Capitalize>},
    {"rsplit", Split},
    {"splitlines", SplitLines},
    {"find", Search},
    {"rfind", Search},
    {"index", Search},
    {"rindex", Search},
    {"count", Search},
    {"join", JoinTexts},
    {"removeprefix", RemoveAffix},
    {"removesuffix", RemoveAffix},
    {"partition", Partition},
    {"rpartition", Partition},
    {"swapcase", ChangeCase<SwapCase>},
    {"casefold", ChangeCase<CaseFold>},
    {"format", Format},
    {"format_map", FormatMap},
    {"ljust", Justify},
    {"rjust", Justify},
    {"center", Justify},
    {"zfill", ZeroFill},
    {"expandtabs", ExpandAllTabs},
    {"maketrans", MakeTrans},
    {"translate", Translate},
    {"isspace", TestCharacters<IsPythonSpace>},
    {"isalpha", TestCharacters<IsLetter>},
    {"isdigit", TestCharacters<IsDigit>},
    {"isalnum", TestCharacters<IsAlphanumeric>},
    {"islower", TestText<IsLowerCase>},
    {"isupper", TestText<IsUpperCase>},
    {"isdecimal", TestCharacters<IsDecimal>},
    {"isnumeric", TestCharacters<IsNumericValue>},
    {"isascii", TestCharacters<IsAscii, true>},
    {"isprintable", TestCharacters<IsPrintable, true>},
    {"istitle", TestText<IsTitleCase>},
    {"isidentifier", TestText<IsIdentifier>},
};
constexpr MethodRow kMapMethods[] = {
    {"items", View}, {"keys", View}, {"values", View}, {"get", Get}, {"copy", Copy}};
constexpr MethodRow kListMethods[] = {
    {"index", SearchItems}, {"count", SearchItems}, {"copy", Copy}};
constexpr MethodRow kTupleMethods[] = {{"index", SearchItems}, {"count", SearchItems}};

const MethodRow* FindMethod(const Value& self, absl::string_view name) {
  if (self.is_string()) return FindRow<MethodRow>(kTextMethods, name);
  if (self.is_map()) return FindRow<MethodRow>(kMapMethods, name);
  if (!self.is_sequence()) return nullptr;
  if (self.as_sequence()->kind == SequenceKind::kList)
    return FindRow<MethodRow>(kListMethods, name);
  return self.as_sequence()->kind == SequenceKind::kTuple ? FindRow<MethodRow>(kTupleMethods, name)
                                                          : nullptr;
}

}  // namespace

bool HasMethod(const Value& self, absl::string_view name) {
  return FindMethod(self, name) != nullptr;
}

absl::StatusOr<Value> CallMethod(const Value& self, absl::string_view name,
                                 const Arguments& arguments, Runtime& runtime) {
  QUIRE_RETURN_IF_ERROR(runtime.Charge(1));
  if (self.is_string()) QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(self.as_string().size()));
  return FindMethod(self, name)
      ->run(Call{.name = name, .self = self, .arguments = arguments, .runtime = runtime});
}

}  // namespace quire::text::jinja
