#include "text/tools/argument_schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "text/tools/json_tracker.h"
#include "text/tools/python_call.h"

namespace quire::text {
namespace {

using formats::JsonDocument;
using nlohmann::json;

constexpr int kMaxSchemaDepth = 64;
// Maximum number of schemas, enum values and items that are visited for one value.
constexpr std::int64_t kMaxSteps = 100'000;

// Bits for the types of JSON Schema; an integer is a number.
enum Types : unsigned {
  kNone = 0,
  kString = 1,
  kNumber = 2,
  kBoolean = 4,
  kNull = 8,
  kArray = 16,
  kObject = 32,
  kAny = 63,
};

unsigned TypeOf(const json& value) {
  if (value.is_string()) return kString;
  if (value.is_number()) return kNumber;
  if (value.is_boolean()) return kBoolean;
  if (value.is_null()) return kNull;
  return value.is_array() ? kArray : kObject;
}

// Returns the bit of a type name; an unknown name allows every type.
unsigned TypeNamed(const json& name) {
  constexpr std::pair<absl::string_view, Types> kNames[] = {
      {"string", kString}, {"number", kNumber}, {"integer", kNumber}, {"boolean", kBoolean},
      {"null", kNull},     {"array", kArray},   {"object", kObject}};
  for (const auto& [known, type] : kNames) {
    if (name == std::string(known)) return type;
  }
  return kAny;
}

bool IsInteger(const json& value) {
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

const json* Find(const json& object, absl::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() ? nullptr : &*found;
}

// Returns the schemas of a list keyword; an empty list if it is absent.
const json& ListOf(const json& schema, absl::string_view keyword) {
  static const json kEmpty = json::array();
  const json* const list = Find(schema, keyword);
  return list != nullptr && list->is_array() ? *list : kEmpty;
}

// The schemas of one argument. A value must match at least one schema of each group.
using Groups = std::vector<std::vector<const json*>>;

class Evaluator {
 public:
  explicit Evaluator(const json& root) : root_(root) {}

  Groups SchemasOf(const std::string& argument) {
    Groups groups;
    Collect(root_, argument, 0, &groups);
    return groups;
  }

  bool Accepts(const Groups& groups, const json& value) {
    return std::ranges::all_of(groups, [&](const auto& group) {
      return std::ranges::any_of(group,
                                 [&](const json* schema) { return Accepts(*schema, value, 0); });
    });
  }

  unsigned TypesOf(const Groups& groups) {
    unsigned types = kAny;
    for (const auto& group : groups) {
      unsigned any = kNone;
      for (const json* const schema : group) any |= TypesOf(*schema, 0);
      types &= any;
    }
    return types;
  }

 private:
  // Returns false if a limit is exceeded. The caller then assumes that the schema allows
  // everything.
  bool Enter(int depth) { return Spend(1) && depth < kMaxSchemaDepth; }
  bool Spend(std::size_t steps) {
    steps_left_ -= static_cast<std::int64_t>(steps);
    return steps_left_ > 0;
  }

  // Returns the schema that a reference into this document names, or null.
  const json* Resolve(const json& schema) {
    const json* const reference = Find(schema, "$ref");
    if (reference == nullptr || !reference->is_string()) return nullptr;
    absl::string_view pointer = reference->get_ref<const std::string&>();
    if (!Spend(1 + pointer.size() / 16) || !absl::ConsumePrefix(&pointer, "#")) return nullptr;
    const json* at = &root_;
    if (pointer.empty()) return at;
    if (!absl::ConsumePrefix(&pointer, "/")) return nullptr;
    for (const absl::string_view step : absl::StrSplit(pointer, '/')) {
      const std::string key = absl::StrReplaceAll(step, {{"~1", "/"}, {"~0", "~"}});
      std::size_t index = 0;
      if (at->is_array() && absl::SimpleAtoi(key, &index) && index < at->size()) {
        at = &(*at)[index];
      } else {
        at = Find(*at, key);
      }
      if (at == nullptr) return nullptr;
    }
    return at;
  }

  // Adds the schemas that `schema`, which describes all arguments, has for one argument. Branches
  // of anyOf and oneOf that do not declare the argument are skipped.
  void Collect(const json& schema, const std::string& argument, int depth, Groups* groups) {
    if (!schema.is_object() || !Enter(depth)) return;
    const json* const properties = Find(schema, "properties");
    const json* const own_schema = properties == nullptr ? nullptr : Find(*properties, argument);
    const json* const additional_schema = Find(schema, "additionalProperties");
    if (own_schema != nullptr) {
      groups->push_back({own_schema});
    } else if (additional_schema != nullptr && additional_schema->is_object() &&
               Find(schema, "patternProperties") == nullptr) {
      groups->push_back({additional_schema});
    }
    if (const json* const target = Resolve(schema)) Collect(*target, argument, depth + 1, groups);
    for (const json& part : ListOf(schema, "allOf")) Collect(part, argument, depth + 1, groups);
    for (const absl::string_view keyword : {"anyOf", "oneOf"}) {
      std::vector<const json*> any;
      for (const json& branch : ListOf(schema, keyword)) {
        Groups declared;
        Collect(branch, argument, depth + 1, &declared);
        for (const auto& group : declared) any.insert(any.end(), group.begin(), group.end());
      }
      if (!any.empty()) groups->push_back(std::move(any));
    }
  }

  // Returns a superset of the types that the schema allows.
  unsigned TypesOf(const json& schema, int depth) {
    if (schema.is_boolean()) return schema.get<bool>() ? kAny : kNone;
    if (!schema.is_object() || !Enter(depth)) return kAny;
    unsigned types = kAny;
    if (const json* const type = Find(schema, "type")) {
      unsigned named = type->is_array() ? unsigned{kNone} : TypeNamed(*type);
      if (type->is_array()) {
        for (const json& name : *type) named |= TypeNamed(name);
      }
      types &= named;
    }
    if (const json* const value = Find(schema, "const")) types &= TypeOf(*value);
    if (const json* const values = Find(schema, "enum"); values != nullptr && values->is_array()) {
      if (!Spend(values->size())) return kAny;
      unsigned listed = kNone;
      for (const json& value : *values) listed |= TypeOf(value);
      types &= listed;
    }
    if (const json* const target = Resolve(schema)) types &= TypesOf(*target, depth + 1);
    for (const json& part : ListOf(schema, "allOf")) types &= TypesOf(part, depth + 1);
    for (const absl::string_view keyword : {"anyOf", "oneOf"}) {
      const json& branches = ListOf(schema, keyword);
      unsigned any = kNone;
      for (const json& branch : branches) any |= TypesOf(branch, depth + 1);
      if (!branches.empty()) types &= any;
    }
    return types;
  }

  bool Accepts(const json& schema, const json& value, int depth) {
    if (schema.is_boolean()) return schema.get<bool>();
    if (!schema.is_object() || !Enter(depth)) return true;
    if (!AcceptsType(schema, value)) return false;
    const json* const constant = Find(schema, "const");
    if (constant != nullptr && *constant != value) return false;
    const json* const values = Find(schema, "enum");
    if (values != nullptr && values->is_array()) {
      if (!Spend(values->size())) return true;
      if (std::ranges::find(*values, value) == values->end()) return false;
    }
    if (!AcceptsParts(schema, value, depth + 1)) return false;
    if (value.is_number()) return AcceptsNumber(schema, value);
    if (value.is_string()) {
      const std::int64_t length = CountUtf8Characters(value.get_ref<const std::string&>());
      return HasCount(schema, "minLength", "maxLength", static_cast<std::size_t>(length));
    }
    if (value.is_array()) return AcceptsArray(schema, value, depth + 1);
    return !value.is_object() || AcceptsObject(schema, value, depth + 1);
  }

  static bool AcceptsType(const json& schema, const json& value) {
    const json* const type = Find(schema, "type");
    if (type == nullptr) return true;
    const auto is = [&](const json& name) {
      return name == "integer" ? value.is_number() && IsInteger(value)
                               : (TypeNamed(name) & TypeOf(value)) != 0;
    };
    return type->is_array() ? std::ranges::any_of(*type, is) : is(*type);
  }

  // Evaluates the keywords that apply other schemas to the same value.
  bool AcceptsParts(const json& schema, const json& value, int depth) {
    const auto accepts = [&](const json& part) { return Accepts(part, value, depth); };
    if (const json* const target = Resolve(schema); target != nullptr && !accepts(*target)) {
      return false;
    }
    if (!std::ranges::all_of(ListOf(schema, "allOf"), accepts)) return false;
    const json& any = ListOf(schema, "anyOf");
    if (!any.empty() && std::ranges::none_of(any, accepts)) return false;
    const json& one = ListOf(schema, "oneOf");
    if (!one.empty() && std::ranges::count_if(one, accepts) != 1) return false;
    if (const json* const excluded = Find(schema, "not");
        excluded != nullptr && accepts(*excluded)) {
      return false;
    }
    const json* const condition = Find(schema, "if");
    if (condition == nullptr) return true;
    const json* const branch = Find(schema, accepts(*condition) ? "then" : "else");
    return branch == nullptr || accepts(*branch);
  }

  // Returns whether `compare(value, bound)` is true for the number under `keyword`, or if there is
  // no such number.
  template <typename Compare>
  static bool MeetsBound(const json& schema, absl::string_view keyword, const json& value,
                         Compare compare) {
    const json* const bound = Find(schema, keyword);
    return bound == nullptr || !bound->is_number() || compare(value, *bound);
  }

  static bool AcceptsNumber(const json& schema, const json& value) {
    const auto is_multiple = [](const json& number, const json& divisor) {
      const double quotient = number.get<double>() / divisor.get<double>();
      return std::abs(quotient - std::round(quotient)) < 1e-9 * std::max(1.0, std::abs(quotient));
    };
    return MeetsBound(schema, "minimum", value, std::greater_equal<>()) &&
           MeetsBound(schema, "maximum", value, std::less_equal<>()) &&
           MeetsBound(schema, "exclusiveMinimum", value, std::greater<>()) &&
           MeetsBound(schema, "exclusiveMaximum", value, std::less<>()) &&
           MeetsBound(schema, "multipleOf", value, is_multiple);
  }

  static bool HasCount(const json& schema, absl::string_view min, absl::string_view max,
                       std::size_t count) {
    return MeetsBound(schema, min, json(count), std::greater_equal<>()) &&
           MeetsBound(schema, max, json(count), std::less_equal<>());
  }

  bool AcceptsArray(const json& schema, const json& value, int depth) {
    if (!HasCount(schema, "minItems", "maxItems", value.size())) return false;
    const json* const unique = Find(schema, "uniqueItems");
    if (unique != nullptr && *unique == true) {
      if (!Spend(8 * value.size())) return true;
      std::vector<json> items(value.begin(), value.end());
      std::ranges::sort(items, std::less<>());
      if (std::ranges::adjacent_find(items) != items.end()) return false;
    }
    // Up to draft 2019-09, `items` itself may be the list of schemas.
    const json* items = Find(schema, "items");
    const json* prefix = Find(schema, "prefixItems");
    if (items != nullptr && items->is_array()) {
      prefix = std::exchange(items, Find(schema, "additionalItems"));
    }
    const std::size_t num_prefix = prefix != nullptr && prefix->is_array() ? prefix->size() : 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const json* const item_schema = i < num_prefix ? &(*prefix)[i] : items;
      if (item_schema != nullptr && !Accepts(*item_schema, value[i], depth)) return false;
    }
    return true;
  }

  bool AcceptsObject(const json& schema, const json& value, int depth) {
    if (!HasCount(schema, "minProperties", "maxProperties", value.size())) return false;
    const json& required = ListOf(schema, "required");
    if (!Spend(required.size() + value.size())) return true;
    for (const json& name : required) {
      if (name.is_string() && !value.contains(name.get_ref<const std::string&>())) return false;
    }
    const json* const properties = Find(schema, "properties");
    const json* additional_schema = Find(schema, "additionalProperties");
    if (Find(schema, "patternProperties") != nullptr) additional_schema = nullptr;
    for (const auto& [name, member] : value.items()) {
      const json* member_schema = properties == nullptr ? nullptr : Find(*properties, name);
      if (member_schema == nullptr) member_schema = additional_schema;
      if (member_schema != nullptr && !Accepts(*member_schema, member, depth)) return false;
    }
    return true;
  }

  const json& root_;
  std::int64_t steps_left_ = kMaxSteps;
};

// Returns infinity for a JSON number beyond the range of double; nullopt if the text is not a JSON
// number.
std::optional<json> ReadLargeNumber(absl::string_view text) {
  const auto skip_digits = [&text] {
    const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const json value = absl::ConsumePrefix(&text, "-") ? -infinity : infinity;
  if (!absl::ConsumePrefix(&text, "0") && skip_digits() == 0) return std::nullopt;
  if (absl::ConsumePrefix(&text, ".") && skip_digits() == 0) return std::nullopt;
  if (absl::ConsumePrefix(&text, "e") || absl::ConsumePrefix(&text, "E")) {
    if (!absl::ConsumePrefix(&text, "+")) absl::ConsumePrefix(&text, "-");
    if (skip_digits() == 0) return std::nullopt;
  }
  return text.empty() ? std::optional(value) : std::nullopt;
}

// Returns the JSON text of a Python literal; nullopt if the text is not one.
std::optional<std::string> ConvertPythonToJson(absl::string_view text) {
  const auto call = ReadPythonCall(absl::StrCat("f(v=", text, ")"));
  if (!call.ok()) return std::nullopt;
  const auto members = JsonMembers(call->second);
  if (members.size() != 1) return std::nullopt;
  return std::string(members[0].second);
}

}  // namespace

std::string ArgumentSchema::JsonOf(absl::string_view argument, absl::string_view text) const {
  Evaluator evaluator(parameters_.root().raw());
  const Groups schemas = evaluator.SchemasOf(std::string(argument));
  if (schemas.empty()) return JsonQuoted(text);
  const unsigned types = evaluator.TypesOf(schemas);
  const bool is_valid_text = evaluator.Accepts(schemas, json(std::string(text)));
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  const auto document = JsonDocument::Parse(trimmed);
  std::optional<json> large;
  if (!document.ok()) large = ReadLargeNumber(trimmed);
  if (document.ok() || large) {
    const json& value = large ? *large : document->root().raw();
    const bool is_valid_value = evaluator.Accepts(schemas, value);
    const bool is_text_alone = (types & ~unsigned{kNull}) == kString;
    bool is_text = is_valid_text;
    if (is_valid_text == is_valid_value) {
      is_text = is_valid_text ? is_text_alone && !value.is_null() : (types & kString) != 0;
    }
    return is_text ? JsonQuoted(text) : trimmed;
  }
  if (is_valid_text) return JsonQuoted(text);
  const std::optional<std::string> python = ConvertPythonToJson(trimmed);
  if (!python) return JsonQuoted(text);
  const auto read = JsonDocument::Parse(*python);
  const bool is_valid = read.ok() && evaluator.Accepts(schemas, read->root().raw());
  return is_valid ? *python : JsonQuoted(text);
}

}  // namespace quire::text
