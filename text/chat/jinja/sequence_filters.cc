#include "text/chat/jinja/sequence_filters.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "text/chat/jinja/operators.h"
#include "text/chat/jinja/strings.h"
#include "text/chat/jinja/tests.h"

namespace quire::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Bound = std::vector<std::optional<Value>>;

// Returns the elements of a value and charges one step for each.
absl::StatusOr<std::vector<Value>> Elements(Runtime& runtime, const Value& value) {
  QUIRE_ASSIGN_OR_RETURN(Iteration iteration, Iteration::Over(value, runtime));
  std::vector<Value> items = iteration.Rest();
  QUIRE_RETURN_IF_ERROR(runtime.Charge(static_cast<std::int64_t>(items.size())));
  return items;
}

Result Iterator(std::vector<Value> items) {
  return MakeSequence(SequenceKind::kIterator, std::move(items));
}

// Returns item.a.0.b for the attribute "a.0.b", or the item itself without an attribute.
Result Attribute(Runtime& runtime, const Value& item, const std::optional<Value>& attribute,
                 const std::optional<Value>& absent = std::nullopt) {
  if (!attribute || attribute->is_none()) return item;
  if (!attribute->is_string()) return GetItem(item, *attribute, runtime);
  Value value = item;
  for (const absl::string_view part : absl::StrSplit(attribute->as_string(), '.')) {
    QUIRE_RETURN_IF_ERROR(runtime.Charge(1));
    std::int64_t index = 0;
    const bool is_index = !part.empty() &&
                          part.find_first_not_of("0123456789") == absl::string_view::npos &&
                          absl::SimpleAtoi(part, &index);
    QUIRE_ASSIGN_OR_RETURN(
        value, GetItem(value, is_index ? Value::Int(index) : Value::String(part), runtime));
    if (value.is_undefined() && absent) value = *absent;
  }
  return value;
}

// Returns the key that sort, unique, min and max compare. Strings are lower-cased unless
// `case_sensitive`.
Result SortKey(Runtime& runtime, const Value& item, const std::optional<Value>& attribute,
               bool case_sensitive) {
  QUIRE_ASSIGN_OR_RETURN(const Value key, Attribute(runtime, item, attribute));
  if (case_sensitive || !key.is_string()) return key;
  QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(key.as_string().size()));
  return Value::String(ToLower(key.as_string()));
}

struct KeyedItem {
  Value key;
  Value item;
};

// Returns the items, sorted stably by their keys. Charges about log n steps for each of the n
// items, times the weight of the key.
Result SortByKey(Runtime& runtime, bool reverse, std::vector<KeyedItem> keyed) {
  std::int64_t rounds = 1;
  for (std::size_t n = keyed.size(); n > 1; n /= 2) ++rounds;
  for (const KeyedItem& entry : keyed) {
    QUIRE_RETURN_IF_ERROR(runtime.Charge(
        rounds * std::min<std::int64_t>(WeightOf(entry.key), runtime.limits().max_steps)));
  }
  absl::Status failure;
  std::stable_sort(keyed.begin(), keyed.end(), [&](const KeyedItem& a, const KeyedItem& b) {
    const absl::StatusOr<bool> less = reverse ? Less(b.key, a.key, "<") : Less(a.key, b.key, "<");
    failure.Update(less.status());
    return less.ok() && *less;
  });
  QUIRE_RETURN_IF_ERROR(failure);
  std::vector<Value> sorted;
  for (KeyedItem& entry : keyed) sorted.push_back(std::move(entry.item));
  return MakeList(std::move(sorted));
}

bool IsTrueArgument(const std::optional<Value>& value) {
  return value && IsTrue(*value);
}

// Returns a list with the values of the attributes "a,b", or a list with the item itself if there
// is no attribute. Comparing lists skips equal elements. Undefined values are equal, so a
// comparison fails only between an undefined and another value.
Result SortKeys(Runtime& runtime, const Value& item, const std::optional<Value>& attribute,
                bool case_sensitive) {
  std::vector<std::optional<Value>> attributes = {attribute};
  if (attribute && attribute->is_string()) {
    attributes.clear();
    for (const absl::string_view part : absl::StrSplit(attribute->as_string(), ',')) {
      attributes.push_back(Value::String(part));
    }
  }
  std::vector<Value> keys;
  for (const std::optional<Value>& part : attributes) {
    QUIRE_ASSIGN_OR_RETURN(Value key, SortKey(runtime, item, part, case_sensitive));
    keys.push_back(std::move(key));
  }
  return MakeList(std::move(keys));
}

Result Sort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(
      const Bound bound,
      BindArguments("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(runtime, value));
  std::vector<KeyedItem> keyed;
  keyed.reserve(items.size());
  for (Value& item : items) {
    QUIRE_ASSIGN_OR_RETURN(Value key, SortKeys(runtime, item, bound[2], IsTrueArgument(bound[1])));
    keyed.push_back({std::move(key), std::move(item)});
  }
  return SortByKey(runtime, IsTrueArgument(bound[0]), std::move(keyed));
}

Result DictSort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  if (!value.is_map()) return absl::InvalidArgumentError("dictsort needs a mapping");
  const std::string by = bound[1] && bound[1]->is_string() ? bound[1]->as_string() : "key";
  if (by != "key" && by != "value") {
    return absl::InvalidArgumentError("argument 'by' of dictsort must be 'key' or 'value'");
  }
  std::vector<KeyedItem> keyed;
  for (const auto& [key, entry] : value.as_map()->entries) {
    QUIRE_ASSIGN_OR_RETURN(Value pair, MakeSequence(SequenceKind::kTuple, {key, entry}));
    QUIRE_ASSIGN_OR_RETURN(Value sort_key, SortKey(runtime, by == "key" ? key : entry, std::nullopt,
                                                   IsTrueArgument(bound[0])));
    keyed.push_back({std::move(sort_key), std::move(pair)});
  }
  return SortByKey(runtime, IsTrueArgument(bound[2]), std::move(keyed));
}

Result Unique(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("unique", arguments, {"case_sensitive", "attribute"}));
  QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(runtime, value));
  absl::flat_hash_set<std::string> seen;
  std::vector<Value> kept;
  for (Value& item : items) {
    QUIRE_ASSIGN_OR_RETURN(const Value key,
                           SortKey(runtime, item, bound[1], IsTrueArgument(bound[0])));
    QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(key));
    QUIRE_RETURN_IF_ERROR(runtime.ChargeKey(key));
    QUIRE_ASSIGN_OR_RETURN(std::string hash, HashKey(key));
    if (seen.insert(std::move(hash)).second) kept.push_back(std::move(item));
  }
  return Iterator(std::move(kept));
}

template <bool wants_max>
Result FindExtreme(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, BindArguments(wants_max ? "max" : "min", arguments,
                                                          {"case_sensitive", "attribute"}));
  QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(runtime, value));
  if (items.empty()) {
    return Value::UndefinedBecause("No aggregated item, sequence was empty.");
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    QUIRE_ASSIGN_OR_RETURN(Value key, SortKey(runtime, item, bound[1], IsTrueArgument(bound[0])));
    keys.push_back(std::move(key));
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < keys.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(keys[i]));
    QUIRE_ASSIGN_OR_RETURN(const bool better, wants_max ? Less(keys[best], keys[i], ">")
                                                        : Less(keys[i], keys[best], "<"));
    if (better) best = i;
  }
  return std::move(items[best]);
}

Result Sum(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                         BindArguments("sum", arguments, {"attribute", "start"}));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(runtime, value));
  Value sum = bound[1].value_or(Value::Int(0));
  if (sum.is_string())
    return absl::InvalidArgumentError("sum cannot add strings; use the filter join");
  for (const Value& item : items) {
    QUIRE_ASSIGN_OR_RETURN(const Value part, Attribute(runtime, item, bound[0]));
    QUIRE_ASSIGN_OR_RETURN(sum, Combine(Operator::kAdd, sum, part, runtime));
  }
  return sum;
}

Result Join(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_ASSIGN_OR_RETURN(const Bound bound, BindArguments("join", arguments, {"d", "attribute"}));
  const Value separator = bound[0].value_or(Value::String(""));
  QUIRE_ASSIGN_OR_RETURN(const std::string between, runtime.Print(separator));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(runtime, value));
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const Value part, Attribute(runtime, items[i], bound[1]));
    QUIRE_RETURN_IF_ERROR(runtime.ChargeBytes(between.size()));
    QUIRE_ASSIGN_OR_RETURN(const std::string shown, runtime.Print(part));
    absl::StrAppend(&text, i > 0 ? between : "", shown);
    QUIRE_RETURN_IF_ERROR(runtime.ChargeText(shown.size() + between.size()));
  }
  QUIRE_RETURN_IF_ERROR(runtime.ChargeText(text.size()));
  return Value::String(std::move(text));
}

Result List(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("list", arguments, {}).status());
  QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(runtime, value));
  return MakeList(std::move(items));
}

Result Items(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("items", arguments, {}).status());
  std::vector<Value> items;
  if (value.is_undefined()) return Iterator(std::move(items));
  if (!value.is_map()) {
    return absl::InvalidArgumentError("Can only get item pairs from a mapping.");
  }
  for (const auto& [key, entry] : value.as_map()->entries) {
    QUIRE_ASSIGN_OR_RETURN(Value pair, MakeSequence(SequenceKind::kTuple, {key, entry}));
    items.push_back(std::move(pair));
    QUIRE_RETURN_IF_ERROR(runtime.Charge(1));
  }
  return Iterator(std::move(items));
}

Result First(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("first", arguments, {}).status());
  QUIRE_ASSIGN_OR_RETURN(Iteration items, Iteration::Over(value, runtime));
  const Value* first = items.Next();
  if (first != nullptr) return *first;
  return Value::UndefinedBecause("No first item, sequence was empty.");
}

Result Last(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("last", arguments, {}).status());
  if (value.is_sequence() && value.as_sequence()->kind == SequenceKind::kIterator) {
    return absl::InvalidArgumentError(
        "the filter 'last' does not accept an iterator; apply the filter 'list' before it");
  }
  QUIRE_ASSIGN_OR_RETURN(Iteration items, Iteration::Over(value, runtime));
  const Value* last = nullptr;
  while (const Value* item = items.Next()) last = item;
  QUIRE_RETURN_IF_ERROR(runtime.ChargeWalk(value));
  if (last != nullptr) return *last;
  return Value::UndefinedBecause("No last item, sequence was empty.");
}

Result Reverse(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_RETURN_IF_ERROR(BindArguments("reverse", arguments, {}).status());
  QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(runtime, value));
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return Iterator(std::move(items));
  std::string text;
  for (const Value& character : items) text += character.as_string();
  return Value::String(std::move(text));
}

// Returns whether `value` passes the named test. Without a name, returns whether `value` is true.
absl::StatusOr<bool> PassesTest(Runtime& runtime, const Value& value, const Arguments& rest) {
  QUIRE_RETURN_IF_ERROR(runtime.Charge(1));
  if (rest.positional.empty()) {
    if (!rest.named.empty())
      return absl::InvalidArgumentError("the name of a test must come before named arguments");
    return IsTrue(value);
  }
  const Value& name = rest.positional.front();
  const TestRow* test = name.is_string() ? FindTest(name.as_string()) : nullptr;
  if (test == nullptr) {
    if (!name.is_string()) return absl::InvalidArgumentError("the name of a test must be a string");
    return absl::UnimplementedError(
        absl::StrCat("the test '", name.as_string(), "' is not supported"));
  }
  Arguments arguments = rest;
  arguments.positional.erase(arguments.positional.begin());
  return test->run(runtime, value, arguments);
}

// Implements select, reject, selectattr and rejectattr.
template <bool keeps, bool by_attribute>
Result Filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  // Like jinja2, these filters treat none, undefined, 0 and "" as empty.
  if (!IsTrue(value)) return Iterator({});
  Arguments rest = arguments;
  std::optional<Value> attribute;
  if (by_attribute) {
    if (rest.positional.empty()) {
      return absl::InvalidArgumentError("the filter needs the name of an attribute");
    }
    attribute = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
  }
  QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(runtime, value));
  std::vector<Value> kept;
  for (Value& item : items) {
    QUIRE_ASSIGN_OR_RETURN(const Value tested, Attribute(runtime, item, attribute));
    QUIRE_ASSIGN_OR_RETURN(const bool passes, PassesTest(runtime, tested, rest));
    if (passes == keeps) kept.push_back(std::move(item));
  }
  return Iterator(std::move(kept));
}

// Implements map('filter', ...) and map(attribute='a', default=...).
Result MapOver(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!IsTrue(value)) return Iterator({});
  QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(runtime, value));
  if (arguments.positional.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const Bound bound,
                           BindArguments("map", arguments, {"attribute", "default"}));
    if (!bound[0]) return absl::InvalidArgumentError("map needs a filter or an attribute");
    for (Value& item : items) {
      QUIRE_ASSIGN_OR_RETURN(item, Attribute(runtime, item, bound[0], bound[1]));
    }
    return Iterator(std::move(items));
  }
  const Value& name = arguments.positional.front();
  const FilterRow* filter = name.is_string() ? FindFilter(name.as_string()) : nullptr;
  // Jinja2 looks up the filter per element, so an empty input gives no error.
  if (items.empty()) return Iterator({});
  if (!name.is_string()) return absl::InvalidArgumentError("the name of a filter must be a string");
  if (filter == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the filter '", name.as_string(), "' is not supported"));
  }
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (Value& item : items) {
    QUIRE_RETURN_IF_ERROR(runtime.Charge(1));
    QUIRE_ASSIGN_OR_RETURN(item, filter->run(runtime, item, rest));
  }
  return Iterator(std::move(items));
}

constexpr FilterRow kFilters[] = {
    {"items", Items},
    {"join", Join},
    {"list", List},
    {"map", MapOver},
    {"select", Filter<true, false>},
    {"reject", Filter<false, false>},
    {"selectattr", Filter<true, true>},
    {"rejectattr", Filter<false, true>},
    {"first", First},
    {"last", Last},
    {"reverse", Reverse},
    {"sort", Sort},
    {"dictsort", DictSort},
    {"unique", Unique},
    {"min", FindExtreme<false>},
    {"max", FindExtreme<true>},
    {"sum", Sum},
};

}  // namespace

std::span<const FilterRow> SequenceFilters() {
  return kFilters;
}

}  // namespace quire::text::jinja
