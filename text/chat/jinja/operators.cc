#include "text/chat/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/chat/jinja/format.h"
#include "text/chat/jinja/methods.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

absl::string_view Symbol(Operator op) {
  constexpr absl::string_view kSymbols[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<std::size_t>(op)];
}

absl::Status BadOperands(Operator op, const Value& left, const Value& right) {
  return absl::InvalidArgumentError(absl::StrCat("unsupported operand types for ", Symbol(op),
                                                 ": '", TypeName(left), "' and '", TypeName(right),
                                                 "'"));
}

absl::Status Overflow() {
  return absl::InvalidArgumentError("the result does not fit 64 bits");
}
absl::Status DivisionByZero() {
  return absl::InvalidArgumentError("division by zero");
}

absl::StatusOr<Value> FloatResult(double value) {
  if (std::isnan(value) || std::isinf(value)) {
    return absl::InvalidArgumentError("the result is not a finite number");
  }
  return Value::Float(value);
}

// Rounds towards minus infinity. REQUIRES: right is not 0.
absl::StatusOr<Value> FloorDivide(std::int64_t left, std::int64_t right) {
  if (left == std::numeric_limits<std::int64_t>::min() && right == -1) return Overflow();
  const std::int64_t quotient = left / right;
  const bool rounds_up = left % right != 0 && (left < 0) != (right < 0);
  return Value::Int(rounds_up ? quotient - 1 : quotient);
}

// The result has the sign of the divisor. REQUIRES: right is not 0.
Value Modulo(std::int64_t left, std::int64_t right) {
  if (right == -1) return Value::Int(0);
  const std::int64_t remainder = left % right;
  const bool has_wrong_sign = remainder != 0 && (remainder < 0) != (right < 0);
  return Value::Int(has_wrong_sign ? remainder + right : remainder);
}

absl::StatusOr<Value> IntegerPower(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result)) return Overflow();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> CombineIntegers(Operator op, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) return Overflow();
      return Value::Int(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) return Overflow();
      return Value::Int(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) return Overflow();
      return Value::Int(result);
    case Operator::kDivide:
      if (right == 0) return DivisionByZero();
      return FloatResult(static_cast<double>(left) / static_cast<double>(right));
    case Operator::kFloorDivide:
      if (right == 0) return DivisionByZero();
      return FloorDivide(left, right);
    case Operator::kModulo:
      if (right == 0) return DivisionByZero();
      return Modulo(left, right);
    default:
      break;
  }
  if (right >= 0) return IntegerPower(left, right);
  if (left == 0) return DivisionByZero();
  return FloatResult(std::pow(static_cast<double>(left), static_cast<double>(right)));
}

absl::StatusOr<Value> CombineFloats(Operator op, double left, double right) {
  switch (op) {
    case Operator::kAdd:
      return FloatResult(left + right);
    case Operator::kSubtract:
      return FloatResult(left - right);
    case Operator::kMultiply:
      return FloatResult(left * right);
    case Operator::kPower:
      if (left == 0 && right < 0) return DivisionByZero();
      return FloatResult(std::pow(left, right));
    default:
      break;
  }
  if (right == 0) return DivisionByZero();
  if (op == Operator::kDivide) return FloatResult(left / right);
  double remainder = std::fmod(left, right);
  if (remainder != 0 && (remainder < 0) != (right < 0)) remainder += right;
  if (op == Operator::kModulo) {
    return FloatResult(remainder == 0 ? std::copysign(0.0, right) : remainder);
  }
  return FloatResult(std::round((left - remainder) / right));
}

absl::StatusOr<Value> Repeat(const Value& value, std::int64_t count, Runtime& runtime) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (value.is_string()) {
    const std::string& text = value.as_string();
    const auto limit = static_cast<std::size_t>(runtime.limits().max_bytes);
    if (times > 0 && text.size() > limit / times) return runtime.ChargeText(limit + 1);
    QUIRE_RETURN_IF_ERROR(runtime.ChargeText(text.size() * times));
    std::string result;
    result.reserve(text.size() * times);
    for (std::size_t i = 0; i < times; ++i) result += text;
    return Value::String(std::move(result));
  }
  const Sequence& sequence = *value.as_sequence();
  const auto size = static_cast<std::int64_t>(sequence.items.size());
  const std::int64_t steps = runtime.limits().max_steps + 1;
  QUIRE_RETURN_IF_ERROR(runtime.Charge(
      size > 0 && count > steps / size ? steps : size * static_cast<std::int64_t>(times)));
  std::vector<Value> items;
  for (std::size_t i = 0; size > 0 && i < times; ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return MakeSequence(sequence.kind, std::move(items));
}

absl::StatusOr<Value> Join(const Value& left, const Value& right, Runtime& runtime) {
  if (left.is_string()) {
    const std::size_t size = left.as_string().size() + right.as_string().size();
    QUIRE_RETURN_IF_ERROR(runtime.ChargeText(size));
    return Value::String(absl::StrCat(left.as_string(), right.as_string()));
  }
  std::vector<Value> items = left.as_sequence()->items;
  const std::vector<Value>& right_items = right.as_sequence()->items;
  QUIRE_RETURN_IF_ERROR(
      runtime.Charge(static_cast<std::int64_t>(items.size() + right_items.size())));
  items.insert(items.end(), right_items.begin(), right_items.end());
  return MakeSequence(left.as_sequence()->kind, std::move(items));
}

// Resolves an index into a sequence of `length` elements. Negative indices count from the end.
std::optional<std::int64_t> ResolveIndex(std::int64_t index, std::int64_t length) {
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return index;
}

// Returns the element at an integer index, or nullopt if the value has no such element.
absl::StatusOr<std::optional<Value>> ElementAt(const Value& value, std::int64_t index,
                                               Runtime& runtime) {
  if (value.is_string()) {
    QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(value.as_string().size()));
    const auto resolved = ResolveIndex(index, CountUtf8Characters(value.as_string()));
    if (!resolved) return std::optional<Value>();
    return std::optional<Value>(
        Value::String(CharRange(value.as_string(), *resolved, *resolved + 1)));
  }
  if (!value.is_sequence()) return std::optional<Value>();
  const Sequence& sequence = *value.as_sequence();
  const bool indexable = IsListOrTuple(value) || sequence.kind == SequenceKind::kRange;
  const auto resolved = ResolveIndex(index, static_cast<std::int64_t>(sequence.items.size()));
  if (!indexable || !resolved) return std::optional<Value>();
  return std::optional<Value>(sequence.items[static_cast<std::size_t>(*resolved)]);
}

Value NoAttribute(const Value& value, absl::string_view name) {
  const absl::string_view type = value.is_none() ? "None" : TypeName(value);
  return Value::UndefinedBecause(absl::StrCat("'", type, value.is_none() ? "" : " object",
                                              "' has no attribute '", name.substr(0, 100), "'"));
}

// Returns a namespace's attribute, or null.
const Value* NamespaceAttribute(const Value& value, absl::string_view name) {
  const auto* names = ObjectAs<Namespace>(value);
  if (names == nullptr) return nullptr;
  for (const auto& [key, attribute] : names->attributes) {
    if (key == name) return &attribute;
  }
  return nullptr;
}

// Charges for looking up the name among attributes or keys.
absl::Status ChargeSearch(const Value& value, absl::string_view name, Runtime& runtime) {
  QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(name.size()));
  const auto* names = ObjectAs<Namespace>(value);
  return names == nullptr ? absl::OkStatus() : runtime.ChargeNames(names->attributes.size());
}

std::optional<Value> Method(const Value& value, absl::string_view name, Runtime& runtime) {
  if (!HasMethod(value, name)) return std::nullopt;
  return runtime.MakeObject(BoundMethod{value, std::string(name)});
}

// A resolved slice, as computed by CPython's PySlice_AdjustIndices.
struct Range {
  std::int64_t start, stop, step;
  std::int64_t count;
};

absl::StatusOr<std::optional<std::int64_t>> SlicePart(const Value& part) {
  if (part.is_none()) return std::optional<std::int64_t>();
  const std::optional<std::int64_t> number = part.ToInteger();
  if (number) return number;
  return absl::InvalidArgumentError(
      absl::StrCat("slice indices must be integers or none, not '", TypeName(part), "'"));
}

absl::StatusOr<Range> ResolveSlice(const SliceParts& parts, std::int64_t length) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> start, SlicePart(parts.start));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> stop, SlicePart(parts.stop));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> step, SlicePart(parts.step));
  Range range{.start = 0, .stop = 0, .step = step.value_or(1), .count = 0};
  if (range.step == 0) return absl::InvalidArgumentError("slice step cannot be zero");
  // A step that exceeds the length selects at most one element, so it can be clamped.
  range.step = std::clamp(range.step, -length - 1, length + 1);
  const bool forward = range.step > 0;
  const std::int64_t low = forward ? 0 : -1;
  const std::int64_t high = forward ? length : length - 1;
  const auto clamp_index = [&](std::optional<std::int64_t> part, std::int64_t absent) {
    if (!part) return absent;
    const std::int64_t place = *part < 0 ? *part + length : *part;
    return std::clamp(place, low, high);
  };
  range.start = clamp_index(start, forward ? low : high);
  range.stop = clamp_index(stop, forward ? high : low);
  if (forward && range.start < range.stop) {
    range.count = (range.stop - range.start - 1) / range.step + 1;
  } else if (!forward && range.stop < range.start) {
    range.count = (range.start - range.stop - 1) / -range.step + 1;
  }
  return range;
}

absl::StatusOr<Value> SliceText(const std::string& text, const SliceParts& parts,
                                Runtime& runtime) {
  QUIRE_RETURN_IF_ERROR(runtime.ChargeText(text.size()));
  QUIRE_ASSIGN_OR_RETURN(const Range range, ResolveSlice(parts, CountUtf8Characters(text)));
  if (range.count == 0) return Value::String("");
  if (range.step == 1) {
    return Value::String(CharRange(text, range.start, range.start + range.count));
  }
  QUIRE_RETURN_IF_ERROR(runtime.Charge(static_cast<std::int64_t>(text.size()) / 8));
  const std::vector<absl::string_view> characters = Characters(text);
  std::string result;
  for (std::int64_t i = 0; i < range.count; ++i) {
    const absl::string_view c = characters[static_cast<std::size_t>(range.start + i * range.step)];
    result.append(c.data(), c.size());
  }
  return Value::String(std::move(result));
}

}  // namespace

absl::StatusOr<Value> Combine(Operator op, const Value& left, const Value& right,
                              Runtime& runtime) {
  if (op == Operator::kModulo && left.is_string()) {
    QUIRE_ASSIGN_OR_RETURN(std::string text, FormatPercent(left.as_string(), right, runtime));
    return Value::String(std::move(text));
  }
  if (left.is_undefined()) return left.UndefinedError();
  if (right.is_undefined()) return right.UndefinedError();
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) {
      return CombineFloats(op, left.ToDouble(), right.ToDouble());
    }
    return CombineIntegers(op, *left.ToInteger(), *right.ToInteger());
  }
  if (op == Operator::kAdd) {
    const bool both_texts = left.is_string() && right.is_string();
    const bool both_sequences = IsListOrTuple(left) && IsListOrTuple(right) &&
                                left.as_sequence()->kind == right.as_sequence()->kind;
    if (both_texts || both_sequences) return Join(left, right, runtime);
  }
  if (op == Operator::kMultiply) {
    const bool left_repeats = left.is_string() || IsListOrTuple(left);
    const bool right_repeats = right.is_string() || IsListOrTuple(right);
    if (left_repeats && right.ToInteger()) return Repeat(left, *right.ToInteger(), runtime);
    if (right_repeats && left.ToInteger()) return Repeat(right, *left.ToInteger(), runtime);
  }
  return BadOperands(op, left, right);
}

absl::StatusOr<Value> ApplySign(Operator sign, const Value& value) {
  if (value.is_undefined()) return value.UndefinedError();
  const bool negates = sign == Operator::kSubtract;
  if (value.is_float()) return Value::Float(negates ? -value.as_float() : value.as_float());
  const std::optional<std::int64_t> number = value.ToInteger();
  if (number) return negates ? CombineIntegers(sign, 0, *number) : Value::Int(*number);
  return absl::InvalidArgumentError(
      absl::StrCat("bad operand type for unary ", Symbol(sign), ": '", TypeName(value), "'"));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Runtime& runtime) {
  if (container.is_undefined()) return false;
  QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(item));
  if (container.is_string()) {
    if (!item.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'in' a string requires a string as left operand, not '", TypeName(item), "'"));
    }
    QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(container.as_string().size()));
    return FindFirst(container.as_string(), item.as_string()) != absl::string_view::npos;
  }
  if (container.is_map()) {
    if (item.is_undefined()) return false;
    QUIRE_RETURN_IF_ERROR(runtime.ChargeKey(item));
    QUIRE_RETURN_IF_ERROR(HashKey(item).status());
    return Find(*container.as_map(), item) != nullptr;
  }
  if (!container.is_sequence()) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument of type '", TypeName(container), "' is not iterable"));
  }
  QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(container));
  QUIRE_ASSIGN_OR_RETURN(Iteration items, Iteration::Over(container, runtime));
  while (const Value* candidate = items.Next()) {
    if (Equals(*candidate, item)) return true;
  }
  return false;
}

absl::StatusOr<bool> Compare(Operator op, const Value& left, const Value& right, Runtime& runtime) {
  QUIRE_RETURN_IF_ERROR(runtime.Charge(std::min(WeightOf(left), WeightOf(right)) - 1));
  switch (op) {
    case Operator::kEqual:
      return Equals(left, right);
    case Operator::kNotEqual:
      return !Equals(left, right);
    case Operator::kLess:
      return Less(left, right, "<");
    case Operator::kGreater:
      return Less(right, left, ">");
    case Operator::kIn:
      return Contains(right, left, runtime);
    case Operator::kNotIn: {
      QUIRE_ASSIGN_OR_RETURN(const bool found, Contains(right, left, runtime));
      return !found;
    }
    default:
      break;
  }
  // a <= b is computed as a < b or a == b, so that it is false for NaN.
  const bool is_less_equal = op == Operator::kLessEqual;
  QUIRE_ASSIGN_OR_RETURN(const bool less,
                         is_less_equal ? Less(left, right, "<=") : Less(right, left, ">="));
  return less || Equals(left, right);
}

absl::StatusOr<Value> GetAttribute(const Value& value, absl::string_view name, Runtime& runtime) {
  if (value.is_undefined()) return value.UndefinedError();
  QUIRE_RETURN_IF_ERROR(ChargeSearch(value, name, runtime));
  if (const Value* attribute = NamespaceAttribute(value, name)) return *attribute;
  if (std::optional<Value> method = Method(value, name, runtime)) return *std::move(method);
  if (value.is_map()) {
    const Value* item = Find(*value.as_map(), Value::String(name));
    if (item != nullptr) return *item;
  }
  return NoAttribute(value, name);
}

absl::StatusOr<Value> GetItem(const Value& value, const Value& key, Runtime& runtime) {
  if (value.is_undefined()) return value.UndefinedError();
  if (value.is_map()) {
    QUIRE_RETURN_IF_ERROR(runtime.ChargeKey(key));
    const Value* item = Find(*value.as_map(), key);
    if (item != nullptr) return *item;
  } else if (const std::optional<std::int64_t> index = key.ToInteger()) {
    QUIRE_ASSIGN_OR_RETURN(std::optional<Value> element, ElementAt(value, *index, runtime));
    if (element) return *std::move(element);
  }
  if (key.is_string()) {
    QUIRE_RETURN_IF_ERROR(ChargeSearch(value, key.as_string(), runtime));
    if (const Value* attribute = NamespaceAttribute(value, key.as_string())) return *attribute;
    std::optional<Value> method = Method(value, key.as_string(), runtime);
    if (method) return *std::move(method);
    return NoAttribute(value, key.as_string());
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string printed, runtime.Print(key));
  return Value::UndefinedBecause(absl::StrCat(TypeName(value), " object has no element ",
                                              absl::string_view(printed).substr(0, 100)));
}

absl::StatusOr<Value> GetSlice(const Value& value, const SliceParts& parts, Runtime& runtime) {
  if (value.is_undefined()) return value.UndefinedError();
  if (value.is_string()) return SliceText(value.as_string(), parts, runtime);
  const bool is_range = value.is_sequence() && value.as_sequence()->kind == SequenceKind::kRange;
  if (!IsListOrTuple(value) && !is_range) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", TypeName(value), "' object cannot be sliced"));
  }
  const Sequence& sequence = *value.as_sequence();
  const auto length = static_cast<std::int64_t>(sequence.items.size());
  QUIRE_ASSIGN_OR_RETURN(const Range range, ResolveSlice(parts, length));
  QUIRE_RETURN_IF_ERROR(runtime.Charge(range.count));
  std::vector<Value> items;
  for (std::int64_t i = 0; i < range.count; ++i) {
    items.push_back(sequence.items[static_cast<std::size_t>(range.start + i * range.step)]);
  }
  // Unlike in Python, a slice of a range is a list.
  return MakeSequence(is_range ? SequenceKind::kList : sequence.kind, std::move(items));
}

}  // namespace quire::text::jinja
