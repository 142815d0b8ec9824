#include "text/chat/jinja/functions.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "text/chat/jinja/runtime.h"

namespace quire::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Bound = std::vector<std::optional<Value>>;

// Implements dict(mapping or pairs, name=value, ...).
Result MakeDict(const Arguments& arguments, Runtime& runtime) {
  MapBuilder map;
  if (arguments.positional.size() > 1) {
    return absl::InvalidArgumentError("dict takes at most one positional argument");
  }
  for (const Value& source : arguments.positional) {
    QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(source));
    if (source.is_map()) {
      for (const auto& [key, value] : source.as_map()->entries) {
        QUIRE_RETURN_IF_ERROR(runtime.ChargeKey(key));
        QUIRE_RETURN_IF_ERROR(map.Set(key, value));
      }
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(Iteration pairs, Iteration::Over(source, runtime));
    while (const Value* pair = pairs.Next()) {
      QUIRE_ASSIGN_OR_RETURN(Iteration parts, Iteration::Over(*pair, runtime));
      std::vector<Value> both = parts.Rest();
      if (both.size() != 2) {
        return absl::InvalidArgumentError("dict needs a mapping or a list of (key, value) pairs");
      }
      QUIRE_RETURN_IF_ERROR(runtime.ChargeKey(both[0]));
      QUIRE_RETURN_IF_ERROR(map.Set(both[0], std::move(both[1])));
    }
  }
  for (const auto& [name, value] : arguments.named) {
    QUIRE_RETURN_IF_ERROR(map.Set(name, value));
  }
  return std::move(map).Build();
}

Result MakeNamespace(const Arguments& arguments, Runtime& runtime) {
  QUIRE_ASSIGN_OR_RETURN(const Value dict, MakeDict(arguments, runtime));
  Namespace names;
  for (const auto& [key, value] : dict.as_map()->entries) {
    if (!key.is_string()) return absl::InvalidArgumentError("names in a namespace must be strings");
    names.attributes.emplace_back(key.as_string(), value);
  }
  return runtime.MakeObject(std::move(names));
}

// Returns the number of elements of range(start, stop, step). REQUIRES: step is not 0.
std::uint64_t RangeCount(std::int64_t start, std::int64_t stop, std::int64_t step) {
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const auto low = static_cast<std::uint64_t>(step > 0 ? start : stop);
  const auto high = static_cast<std::uint64_t>(step > 0 ? stop : start);
  const std::uint64_t stride =
      step > 0 ? static_cast<std::uint64_t>(step) : ~static_cast<std::uint64_t>(step) + 1;
  return (high - low - 1) / stride + 1;
}

Result RangeOf(const Arguments& arguments, Runtime& runtime) {
  constexpr std::uint64_t kMaxRange = 100000;  // the limit of jinja2's sandbox
  const std::vector<Value>& parts = arguments.positional;
  if (!arguments.named.empty() || parts.empty() || parts.size() > 3) {
    return absl::InvalidArgumentError("range takes one to three integers");
  }
  std::vector<std::int64_t> numbers;
  for (const Value& part : parts) {
    if (part.is_undefined()) return part.UndefinedError();
    const std::optional<std::int64_t> number = part.ToInteger();
    if (!number) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", TypeName(part), "' object cannot be interpreted as an integer"));
    }
    numbers.push_back(*number);
  }
  const std::int64_t start = numbers.size() > 1 ? numbers[0] : 0;
  const std::int64_t stop = numbers.size() > 1 ? numbers[1] : numbers[0];
  const std::int64_t step = numbers.size() > 2 ? numbers[2] : 1;
  if (step == 0) return absl::InvalidArgumentError("range() arg 3 must not be zero");
  const std::uint64_t count = RangeCount(start, stop, step);
  if (count > kMaxRange) {
    return absl::InvalidArgumentError(absl::StrCat("range has more than ", kMaxRange, " elements"));
  }
  QUIRE_RETURN_IF_ERROR(runtime.Charge(static_cast<std::int64_t>(count)));
  return MakeRange(start, stop, step);
}

Result MakeJoiner(const Arguments& arguments, Runtime& runtime) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, BindArguments("joiner", arguments, {"sep"}));
  return runtime.MakeObject(Joiner{.separator = bound[0].value_or(Value::String(", "))});
}

Result MakeCycler(const Arguments& arguments, Runtime& runtime) {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    return absl::InvalidArgumentError("cycler needs at least one item");
  }
  return runtime.MakeObject(Cycler{.items = arguments.positional});
}

Result RaiseException(const Arguments& arguments, Runtime& runtime) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("raise_exception", arguments, {"message"}));
  if (!bound[0]) return absl::InvalidArgumentError("raise_exception needs a message");
  QUIRE_ASSIGN_OR_RETURN(const std::string message, runtime.Print(*bound[0]));
  return absl::InvalidArgumentError(message);
}

Result StrftimeNow(const Arguments& arguments, Runtime& runtime) {
  constexpr std::size_t kMaxFormat = 256;
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, BindArguments("strftime_now", arguments, {"format"}));
  if (!bound[0] || !bound[0]->is_string() || bound[0]->as_string().size() > kMaxFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("strftime_now needs a format of at most ", kMaxFormat, " bytes"));
  }
  return Value::String(
      absl::FormatTime(bound[0]->as_string(), runtime.now(), absl::LocalTimeZone()));
}

constexpr std::pair<absl::string_view, Function> kBuiltins[] = {
    {"namespace", {MakeNamespace}},
    {"range", {RangeOf}},
    {"dict", {MakeDict}},
    {"joiner", {MakeJoiner}},
    {"cycler", {MakeCycler}},
    {"raise_exception", {RaiseException}},
    {"strftime_now", {StrftimeNow}},
};

}  // namespace

std::span<const std::pair<absl::string_view, Function>> Builtins() {
  return kBuiltins;
}

}  // namespace quire::text::jinja
