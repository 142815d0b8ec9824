#include "text/chat/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/chat/jinja/object.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

// Maximum weight of a key. Keys are serialized to be compared, and shared parts are serialized once
// per occurrence.
constexpr std::int64_t kMaxKeyWeight = 10000;
// Maximum depth of printing. Objects may refer to each other, so kMaxValueDepth does not bound this
// depth.
constexpr int kMaxPrintDepth = 2 * kMaxValueDepth;

absl::Status NotHashable(const Value& key) {
  return absl::InvalidArgumentError(absl::StrCat("unhashable type: '", TypeName(key), "'"));
}

int DepthOf(const Value& value) {
  if (value.is_sequence()) return value.as_sequence()->depth;
  if (value.is_map()) return value.as_map()->depth;
  return 0;
}

std::int64_t AddWeights(std::int64_t a, std::int64_t b) {
  return std::min(a + b, std::int64_t{1} << 60);
}

absl::Status CheckDepth(int depth) {
  if (depth <= kMaxValueDepth) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a value is nested more than ", kMaxValueDepth, " deep"));
}

bool EqualSequences(const Sequence& left, const Sequence& right) {
  if (left.kind != right.kind) return false;
  if (&left == &right) return true;
  if (left.kind == SequenceKind::kIterator || left.kind == SequenceKind::kValues) return false;
  return std::equal(left.items.begin(), left.items.end(), right.items.begin(), right.items.end(),
                    Equals);
}

bool EqualMaps(const Map& left, const Map& right) {
  if (&left == &right) return true;
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [hash, place] : left.index) {
    const auto other = right.index.find(hash);
    if (other == right.index.end()) return false;
    if (!Equals(left.entries[place].second, right.entries[other->second].second)) return false;
  }
  return true;
}

// Output of repr. The size limit also bounds the time of repr. Namespaces that refer to a value
// several times print it several times, but every value prints at least one byte.
struct ReprOutput {
  std::string text;
  std::size_t max_bytes;
};

absl::Status AppendRepr(const Value& value, int depth, ReprOutput& out);

absl::Status AppendSequence(const Sequence& sequence, int depth, ReprOutput& out) {
  if (sequence.kind == SequenceKind::kRange) {
    out.text += sequence.range_text;
    return absl::OkStatus();
  }
  if (sequence.kind == SequenceKind::kIterator) {
    return absl::InvalidArgumentError("an iterator cannot be printed; use the filter list");
  }
  // Indexed by SequenceKind.
  constexpr absl::string_view kOpening[] = {
      "[", "(", "", "", "dict_keys([", "dict_values([", "dict_items(["};
  constexpr absl::string_view kClosing[] = {"]", ")", "", "", "])", "])", "])"};
  const auto index = static_cast<std::size_t>(sequence.kind);
  static_assert(std::size(kOpening) == static_cast<std::size_t>(SequenceKind::kItems) + 1);
  static_assert(std::size(kClosing) == std::size(kOpening));
  absl::StrAppend(&out.text, kOpening[index]);
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out.text += ", ";
    QUIRE_RETURN_IF_ERROR(AppendRepr(sequence.items[i], depth + 1, out));
  }
  const bool is_single_tuple = sequence.kind == SequenceKind::kTuple && sequence.items.size() == 1;
  absl::StrAppend(&out.text, is_single_tuple ? "," : "", kClosing[index]);
  return absl::OkStatus();
}

absl::Status AppendObject(const Object& object, int depth, ReprOutput& out) {
  if (const auto* macro = std::get_if<Macro>(&object.data)) {
    out.text += absl::StrCat("<Macro '", macro->definition->text, "'>");
    return absl::OkStatus();
  }
  const auto* names = std::get_if<Namespace>(&object.data);
  if (names == nullptr) {
    return absl::InvalidArgumentError("functions, methods and loops cannot be printed");
  }
  out.text += "<Namespace {";
  for (std::size_t i = 0; i < names->attributes.size(); ++i) {
    const auto& [name, value] = names->attributes[i];
    if (i > 0) out.text += ", ";
    AppendStringRepr(name, out.text);
    out.text += ": ";
    QUIRE_RETURN_IF_ERROR(AppendRepr(value, depth + 1, out));
  }
  out.text += "}>";
  return absl::OkStatus();
}

absl::Status AppendRepr(const Value& value, int depth, ReprOutput& out) {
  if (depth > kMaxPrintDepth) {
    return absl::InvalidArgumentError(
        "a value that contains itself, or is nested too deep, cannot be printed");
  }
  if (out.text.size() > out.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a value prints as more than ", out.max_bytes,
                                                     " bytes (chat.max_render_bytes)"));
  }
  switch (value.kind()) {
    case Kind::kUndefined:
      out.text += "Undefined";
      break;
    case Kind::kNone:
      out.text += "None";
      break;
    case Kind::kBool:
      out.text += value.as_bool() ? "True" : "False";
      break;
    case Kind::kInt:
      absl::StrAppend(&out.text, value.as_int());
      break;
    case Kind::kFloat:
      out.text += FloatText(value.as_float());
      break;
    case Kind::kString:
      AppendStringRepr(value.as_string(), out.text);
      break;
    case Kind::kSequence:
      return AppendSequence(*value.as_sequence(), depth, out);
    case Kind::kObject:
      return AppendObject(*value.as_object(), depth, out);
    case Kind::kMap: {
      out.text += "{";
      bool first = true;
      for (const auto& [key, entry] : value.as_map()->entries) {
        if (!first) out.text += ", ";
        first = false;
        QUIRE_RETURN_IF_ERROR(AppendRepr(key, depth + 1, out));
        out.text += ": ";
        QUIRE_RETURN_IF_ERROR(AppendRepr(entry, depth + 1, out));
      }
      out.text += "}";
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LessSequences(const Sequence& left, const Sequence& right,
                                   absl::string_view symbol) {
  const std::size_t common = std::min(left.items.size(), right.items.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (!Equals(left.items[i], right.items[i])) {
      return Less(left.items[i], right.items[i], symbol);
    }
  }
  return left.items.size() < right.items.size();
}

}  // namespace

std::optional<std::int64_t> Value::ToInteger() const {
  if (is_int()) return as_int();
  if (is_bool()) return as_bool() ? 1 : 0;
  return std::nullopt;
}

double Value::ToDouble() const {
  if (is_float()) return as_float();
  return static_cast<double>(*ToInteger());
}

absl::Status Value::UndefinedError() const {
  const auto& hint = std::get<Undefined>(data_).hint;
  return absl::InvalidArgumentError(hint != nullptr ? *hint : "a value is undefined");
}

absl::StatusOr<std::string> HashKey(const Value& key) {
  switch (key.kind()) {
    case Kind::kNone:
      return std::string("n");
    case Kind::kBool:
    case Kind::kInt:
      return absl::StrCat("i", *key.ToInteger());
    case Kind::kString:
      return absl::StrCat("s", key.as_string());
    case Kind::kFloat: {
      const double value = key.as_float();
      const bool is_whole = std::abs(value) < 9e18 && value == std::floor(value);
      if (is_whole) return absl::StrCat("i", static_cast<std::int64_t>(value));
      return absl::StrCat("f", FloatText(value));
    }
    case Kind::kSequence: {
      if (key.as_sequence()->kind != SequenceKind::kTuple) return NotHashable(key);
      if (WeightOf(key) > kMaxKeyWeight) {
        return absl::InvalidArgumentError("a tuple is too large to be a key");
      }
      std::string hash = "t";
      for (const Value& item : key.as_sequence()->items) {
        QUIRE_ASSIGN_OR_RETURN(const std::string part, HashKey(item));
        absl::StrAppend(&hash, part.size(), ":", part);
      }
      return hash;
    }
    default:
      return NotHashable(key);
  }
}

std::int64_t WeightOf(const Value& value) {
  if (value.is_string()) {
    return 1 + static_cast<std::int64_t>(value.as_string().size()) / kBytesPerWeight;
  }
  if (value.is_sequence()) return value.as_sequence()->weight;
  if (value.is_map()) return value.as_map()->weight;
  return 1;
}

absl::StatusOr<Value> MakeSequence(SequenceKind kind, std::vector<Value> items) {
  int depth = 1;
  std::int64_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, 1 + DepthOf(item));
    weight = AddWeights(weight, WeightOf(item));
  }
  QUIRE_RETURN_IF_ERROR(CheckDepth(depth));
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  sequence->items = std::move(items);
  sequence->depth = depth;
  sequence->weight = weight;
  return Value::Of(std::move(sequence));
}

absl::StatusOr<Value> MakeRange(std::int64_t start, std::int64_t stop, std::int64_t step) {
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = SequenceKind::kRange;
  sequence->items = std::move(items);
  sequence->weight = 1 + static_cast<std::int64_t>(sequence->items.size());
  sequence->range_text =
      absl::StrCat("range(", start, ", ", stop, step == 1 ? "" : absl::StrCat(", ", step), ")");
  return Value::Of(std::move(sequence));
}

absl::Status MapBuilder::Set(const Value& key, Value value) {
  QUIRE_ASSIGN_OR_RETURN(std::string hash, HashKey(key));
  const int depth = 1 + std::max(DepthOf(value), DepthOf(key));
  QUIRE_RETURN_IF_ERROR(CheckDepth(depth));
  map_->depth = std::max(map_->depth, depth);
  map_->weight = AddWeights(map_->weight, AddWeights(WeightOf(key), WeightOf(value)));
  const auto [place, is_new] = map_->index.try_emplace(std::move(hash), map_->entries.size());
  if (is_new) {
    map_->entries.emplace_back(key, std::move(value));
  } else {
    map_->entries[place->second].second = std::move(value);
  }
  return absl::OkStatus();
}

const Value* Find(const Map& map, const Value& key) {
  const absl::StatusOr<std::string> hash = HashKey(key);
  if (!hash.ok()) return nullptr;
  const auto place = map.index.find(*hash);
  return place == map.index.end() ? nullptr : &map.entries[place->second].second;
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.as_bool();
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
      return !value.as_string().empty();
    case Kind::kMap:
      return !value.as_map()->entries.empty();
    case Kind::kSequence:
      return value.as_sequence()->kind == SequenceKind::kIterator ||
             !value.as_sequence()->items.empty();
    case Kind::kObject:
      return true;
  }
  return true;
}

bool Equals(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (!left.is_float() && !right.is_float()) return left.ToInteger() == right.ToInteger();
    return left.ToDouble() == right.ToDouble();
  }
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kString:
      return left.as_string() == right.as_string();
    case Kind::kSequence:
      return EqualSequences(*left.as_sequence(), *right.as_sequence());
    case Kind::kMap:
      return EqualMaps(*left.as_map(), *right.as_map());
    case Kind::kObject:
      return left.as_object() == right.as_object();
    default:
      return true;  // undefined and none
  }
}

absl::StatusOr<bool> Less(const Value& left, const Value& right, absl::string_view symbol) {
  if (left.is_undefined()) return left.UndefinedError();
  if (right.is_undefined()) return right.UndefinedError();
  if (left.is_number() && right.is_number()) {
    if (!left.is_float() && !right.is_float()) return *left.ToInteger() < *right.ToInteger();
    return left.ToDouble() < right.ToDouble();
  }
  // Bytewise order of UTF-8 equals the order of code points.
  if (left.is_string() && right.is_string()) return left.as_string() < right.as_string();
  if (IsListOrTuple(left) && IsListOrTuple(right) &&
      left.as_sequence()->kind == right.as_sequence()->kind) {
    return LessSequences(*left.as_sequence(), *right.as_sequence(), symbol);
  }
  return absl::InvalidArgumentError(absl::StrCat("'", symbol,
                                                 "' not supported between instances of '",
                                                 TypeName(left), "' and '", TypeName(right), "'"));
}

absl::StatusOr<std::string> ToRepr(const Value& value, std::size_t max_bytes) {
  ReprOutput out{.text = {}, .max_bytes = max_bytes};
  QUIRE_RETURN_IF_ERROR(AppendRepr(value, 0, out));
  return std::move(out.text);
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const absl::string_view text(buffer, static_cast<std::size_t>(end.ptr - buffer));
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* first = text.data() + e + 1 + (text[e + 1] == '+' ? 1 : 0);
  std::from_chars(first, text.data() + text.size(), exponent);
  // CPython's repr uses plain notation for exponents from -4 to 15.
  if (exponent < -4 || exponent >= 16) {
    const absl::string_view sign = exponent < 0 ? "-" : "+";
    const int magnitude = std::abs(exponent);
    return absl::StrCat(text.substr(0, e), "e", sign, magnitude < 10 ? "0" : "", magnitude);
  }
  const auto plain =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string out(buffer, plain.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

absl::string_view TypeName(const Value& value) {
  // Indexed by Kind and SequenceKind.
  constexpr absl::string_view kTypes[] = {"Undefined", "NoneType", "bool", "int",   "float",
                                          "str",       "",         "dict", "object"};
  constexpr absl::string_view kSequenceTypes[] = {
      "list", "tuple", "range", "generator", "dict_keys", "dict_values", "dict_items"};
  static_assert(std::size(kTypes) == static_cast<std::size_t>(Kind::kObject) + 1);
  static_assert(std::size(kSequenceTypes) == static_cast<std::size_t>(SequenceKind::kItems) + 1);
  if (!value.is_sequence()) return kTypes[static_cast<std::size_t>(value.kind())];
  return kSequenceTypes[static_cast<std::size_t>(value.as_sequence()->kind)];
}

bool IsListOrTuple(const Value& value) {
  return value.is_sequence() && (value.as_sequence()->kind == SequenceKind::kList ||
                                 value.as_sequence()->kind == SequenceKind::kTuple);
}

absl::StatusOr<std::int64_t> Length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return CountUtf8Characters(value.as_string());
  if (value.is_map()) return static_cast<std::int64_t>(value.as_map()->entries.size());
  if (value.is_sequence() && value.as_sequence()->kind != SequenceKind::kIterator) {
    return static_cast<std::int64_t>(value.as_sequence()->items.size());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("object of type '", TypeName(value), "' has no len()"));
}

}  // namespace quire::text::jinja
