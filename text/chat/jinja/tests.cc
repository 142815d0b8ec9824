#include "text/chat/jinja/tests.h"

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat/jinja/filters.h"
#include "text/chat/jinja/operators.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {
namespace {

using Answer = absl::StatusOr<bool>;

absl::StatusOr<Value> OneArgument(const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::optional<Value>> bound,
                         BindArguments("the test", arguments, {"other"}));
  if (!bound[0]) return absl::InvalidArgumentError("the test needs an argument");
  return *bound[0];
}

// A test without arguments whose result depends only on the value.
template <auto is>
Answer TestValue(Runtime&, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("the test", arguments, {}).status());
  return std::invoke(is, value);
}

template <Operator op>
Answer TestComparison(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Value other, OneArgument(arguments));
  return Compare(op, value, other, runtime);
}

bool IsIterable(const Value& value) {
  if (value.is_object()) return std::holds_alternative<Loop>(value.as_object()->data);
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is_map();
}

bool IsIndexable(const Value& value) {
  if (value.is_sequence()) {
    return IsListOrTuple(value) || value.as_sequence()->kind == SequenceKind::kRange;
  }
  return value.is_undefined() || value.is_string() || value.is_map();
}

bool IsCallable(const Value& value) {
  if (value.is_undefined()) return true;  // calling it reports what is undefined
  return value.is_object() && ObjectAs<Namespace>(value) == nullptr &&
         ObjectAs<Cycler>(value) == nullptr;
}

template <bool (*is)(absl::string_view)>
Answer TestText(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("the test", arguments, {}).status());
  QUIRE_ASSIGN_OR_RETURN(const std::string text, runtime.Print(value));
  return is(text);
}

// Tests identity: containers and objects must be the same one, not just equal. Other values must
// have the same kind and be equal.
Answer SameAs(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Value other, OneArgument(arguments));
  if (value.kind() != other.kind()) return false;
  if (value.is_sequence()) return value.as_sequence() == other.as_sequence();
  if (value.is_map()) return value.as_map() == other.as_map();
  return Compare(Operator::kEqual, value, other, runtime);
}

Answer HasRemainder(Runtime& runtime, const Value& value, const Value& divisor,
                    std::int64_t wanted) {
  QUIRE_ASSIGN_OR_RETURN(const Value rest, Combine(Operator::kModulo, value, divisor, runtime));
  return Equals(rest, Value::Int(wanted));
}

template <std::int64_t wanted>
Answer HasParity(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("the test", arguments, {}).status());
  return HasRemainder(runtime, value, Value::Int(2), wanted);
}

Answer DivisibleBy(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Value divisor, OneArgument(arguments));
  return HasRemainder(runtime, value, divisor, 0);
}

bool IsFilterName(const Value& value) {
  return value.is_string() && FindFilter(value.as_string()) != nullptr;
}
bool IsTestName(const Value& value) {
  return value.is_string() && FindTest(value.as_string()) != nullptr;
}

bool IsDefined(const Value& value) {
  return !value.is_undefined();
}
bool IsTrueValue(const Value& value) {
  return value.is_bool() && value.as_bool();
}
bool IsFalseValue(const Value& value) {
  return value.is_bool() && !value.as_bool();
}

constexpr TestRow kTests[] = {
    {"defined", TestValue<IsDefined>},
    {"undefined", TestValue<&Value::is_undefined>},
    {"none", TestValue<&Value::is_none>},
    {"string", TestValue<&Value::is_string>},
    {"mapping", TestValue<&Value::is_map>},
    {"iterable", TestValue<IsIterable>},
    {"sequence", TestValue<IsIndexable>},
    {"number", TestValue<&Value::is_number>},
    {"integer", TestValue<&Value::is_int>},
    {"float", TestValue<&Value::is_float>},
    {"boolean", TestValue<&Value::is_bool>},
    {"true", TestValue<IsTrueValue>},
    {"false", TestValue<IsFalseValue>},
    {"callable", TestValue<IsCallable>},
    {"filter", TestValue<IsFilterName>},
    {"test", TestValue<IsTestName>},
    {"lower", TestText<IsLowerCase>},
    {"upper", TestText<IsUpperCase>},
    {"sameas", SameAs},
    {"odd", HasParity<1>},
    {"even", HasParity<0>},
    {"divisibleby", DivisibleBy},
    {"in", TestComparison<Operator::kIn>},
    {"eq", TestComparison<Operator::kEqual>},
    {"equalto", TestComparison<Operator::kEqual>},
    {"==", TestComparison<Operator::kEqual>},
    {"ne", TestComparison<Operator::kNotEqual>},
    {"!=", TestComparison<Operator::kNotEqual>},
    {"lt", TestComparison<Operator::kLess>},
    {"lessthan", TestComparison<Operator::kLess>},
    {"<", TestComparison<Operator::kLess>},
    {"le", TestComparison<Operator::kLessEqual>},
    {"<=", TestComparison<Operator::kLessEqual>},
    {"gt", TestComparison<Operator::kGreater>},
    {"greaterthan", TestComparison<Operator::kGreater>},
    {">", TestComparison<Operator::kGreater>},
    {"ge", TestComparison<Operator::kGreaterEqual>},
    {">=", TestComparison<Operator::kGreaterEqual>},
};

}  // namespace

const TestRow* FindTest(absl::string_view name) {
  return FindRow<TestRow>(kTests, name);
}

}  // namespace quire::text::jinja
