// Reads the keywords of JSON Schema, one at a time.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/closest_name.h"
#include "engine/constraint/schema_nodes.h"

namespace quire::engine {

namespace {

constexpr std::int64_t kMaxCount = 1'000'000'000;
constexpr std::size_t kMaxDependentRequired = 4;
constexpr std::size_t kMaxValues = 4096;

// Keywords that do not restrict values. `then` and `else` have no effect without `if`, which is not
// supported.
constexpr const char* kAnnotations[] = {"then",
                                        "else",
                                        "$anchor",
                                        "$defs",
                                        "definitions",
                                        "title",
                                        "description",
                                        "default",
                                        "examples",
                                        "deprecated",
                                        "readOnly",
                                        "writeOnly",
                                        "$comment",
                                        "contentEncoding",
                                        "contentMediaType",
                                        "contentSchema",
                                        "example",
                                        "xml",
                                        "externalDocs",
                                        "discriminator",
                                        "markdownDescription"};
constexpr const char* kNotSupported[] = {"contains",         "minContains",      "maxContains",
                                         "dependentSchemas", "$dynamicRef",      "$dynamicAnchor",
                                         "$recursiveRef",    "$recursiveAnchor", "$vocabulary"};

// Substrings of the supported values of `$schema`; the last one means the newest draft.
constexpr const char* kDialects[] = {
    "json-schema.org/draft-04/",      "json-schema.org/draft-06/",      "json-schema.org/draft-07/",
    "json-schema.org/draft/2019-09/", "json-schema.org/draft/2020-12/", "json-schema.org/schema"};

std::uint8_t TypeBit(const std::string& name) {
  static const std::map<std::string, std::uint8_t> kTypes = {
      {"null", kNull},     {"boolean", kBoolean}, {"number", kNumber}, {"integer", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject},
  };
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? 0 : found->second;
}

// Returns the cost of comparing or copying the value.
std::int64_t StepsOf(const OrderedJson& value) {
  std::int64_t steps = 8;
  if (value.is_string()) {
    steps += static_cast<std::int64_t>(value.get_ref<const std::string&>().size() / 4);
  }
  if (value.is_structured()) {
    for (const OrderedJson& part : value) steps += StepsOf(part);
  }
  return steps;
}

}  // namespace

bool IsSchemaAnnotation(absl::string_view keyword) {
  return std::ranges::find(kAnnotations, keyword) != std::end(kAnnotations);
}

const std::map<std::string, NodeReader::Keyword, std::less<>>& NodeReader::Keywords() {
  using R = NodeReader;
  static const auto* keywords = [] {
    auto* map = new std::map<std::string, Keyword, std::less<>>{
        {"type", {&R::Type}},
        {"nullable", {&R::Nullable}},
        {"enum", {&R::Enum}},
        {"const", {&R::Const}},
        {"minimum", {&R::Minimum}},
        {"maximum", {&R::Maximum}},
        {"exclusiveMinimum", {&R::ExclusiveMinimum}},
        {"exclusiveMaximum", {&R::ExclusiveMaximum}},
        {"multipleOf", {&R::MultipleOf}},
        {"minLength", {&R::MinLength}},
        {"maxLength", {&R::ReadMaximum<&OwnKeywords::max_length>}},
        {"pattern", {&R::Pattern}},
        {"format", {&R::Format}},
        {"items", {&R::Items}},
        {"prefixItems", {&R::PrefixItems}},
        {"additionalItems", {&R::AdditionalItems}},
        {"unevaluatedItems", {&R::ReadSchema<&OwnKeywords::unevaluated_items>}},
        {"minItems", {&R::ReadMinimum<&OwnKeywords::min_items>}},
        {"maxItems", {&R::ReadMaximum<&OwnKeywords::max_items>}},
        {"uniqueItems", {&R::UniqueItems}},
        {"properties", {&R::Properties}},
        {"required", {&R::Required}},
        {"additionalProperties", {&R::ReadSchema<&OwnKeywords::additional>}},
        {"unevaluatedProperties", {&R::ReadSchema<&OwnKeywords::unevaluated>}},
        {"propertyNames", {&R::ReadSchema<&OwnKeywords::names>}},
        {"patternProperties", {&R::PatternProperties}},
        {"minProperties", {&R::ReadMinimum<&OwnKeywords::min_properties>}},
        {"maxProperties", {&R::ReadMaximum<&OwnKeywords::max_properties>}},
        {"allOf", {&R::AllOf}},
        {"anyOf", {&R::AnyOf}},
        {"oneOf", {&R::OneOf}},
        {"not", {&R::Not}},
        {"$schema", {&R::Dialect}},
        {"$ref", {&R::Ref}},
        {"$id", {&R::Id}},
        {"id", {&R::Id}},
        {"dependentRequired", {&R::DependentRequired}},
        {"dependencies", {&R::DependentRequired}},
    };
    for (const char* keyword : kAnnotations) map->emplace(keyword, Keyword{nullptr});
    // `if` without `then` and `else` still affects which parts count as evaluated.
    map->emplace("if", Keyword{nullptr, "is not supported; write the cases as anyOf"});
    for (const char* keyword : kNotSupported) {
      map->emplace(keyword, Keyword{nullptr, "is not supported"});
    }
    return map;
  }();
  return *keywords;
}

std::unique_ptr<NodeReader::OwnKeywords> NodeReader::Read() {
  const OrderedJson& json = *node_.json;
  if (json.is_boolean()) {
    keywords_->is_unsatisfiable = !json.get<bool>();
  } else if (json.is_object()) {
    ReadObject();
  } else {
    Refuse("a schema must be an object or a boolean");
  }
  return std::move(keywords_);
}

void NodeReader::ReadObject() {
  const OrderedJson& json = *node_.json;
  if (document_.ignores_ref_siblings_ && json.contains("$ref")) {
    keyword_ = "$ref";
    Ref(json["$ref"]);
    return;
  }
  for (const auto& [keyword, value] : json.items()) {
    if (document_.reasons_.size() >= kMaxSchemaReasons) return;
    keyword_ = keyword;
    const auto found = Keywords().find(keyword);
    if (found == Keywords().end()) {
      RejectUnknown(keyword);
    } else if (found->second.reject_reason != nullptr) {
      LeaveOut(found->second.reject_reason);
      keywords_->hides_evaluation = true;
    } else if (found->second.read != nullptr) {
      (this->*found->second.read)(value);
    }
  }
}

void NodeReader::RejectUnknown(const std::string& keyword) {
  if (keyword.starts_with("x-")) return;
  std::vector<absl::string_view> names;
  names.reserve(Keywords().size());
  for (const auto& [known, how] : Keywords()) names.emplace_back(known);
  const absl::string_view nearest = ClosestName(keyword, names);
  LeaveOut(nearest.empty() ? "is not a known keyword"
                           : absl::StrCat("is not a known keyword; did you mean ", nearest, "?"));
}

const NodeReader::Node* NodeReader::Child(const OrderedJson& value, const std::string& step) {
  std::string path = PointerStep(keyword_);
  if (!step.empty()) absl::StrAppend(&path, PointerStep(step));
  return document_.NodeAt(value, &node_, std::move(path));
}

std::vector<const NodeReader::Node*> NodeReader::Children(const OrderedJson& value) {
  std::vector<const Node*> out;
  if (!value.is_array() || value.empty()) {
    Refuse("must be a list of at least one schema");
    return out;
  }
  for (std::size_t i = 0; i < value.size(); ++i) out.push_back(Child(value[i], absl::StrCat(i)));
  return out;
}

std::optional<std::int64_t> NodeReader::ReadCount(const OrderedJson& value) {
  const bool is_whole = value.is_number() && value.get<double>() == std::floor(value.get<double>());
  if (!is_whole || value.get<double>() < 0 || value.get<double>() > kMaxCount) {
    Refuse(absl::StrCat("must be a whole number from 0 to ", kMaxCount));
    return std::nullopt;
  }
  return static_cast<std::int64_t>(value.get<double>());
}

std::optional<Decimal> NodeReader::ReadNumber(const OrderedJson& value) {
  if (!value.is_number()) {
    Refuse("must be a number");
    return std::nullopt;
  }
  // JSON readers convert longer numbers to double and lose digits.
  constexpr std::size_t kMaxDoubleDigits = 17;
  auto decimal = Decimal::Parse(value.dump());
  if (!decimal.ok()) {
    LeaveOut(std::string(decimal.status().message()));
    return std::nullopt;
  }
  if (value.is_number_float() && decimal->whole.size() > kMaxDoubleDigits) {
    LeaveOut(absl::StrCat(value.dump(), " has more than ", kMaxDoubleDigits,
                          " digits before the point"));
    return std::nullopt;
  }
  return *std::move(decimal);
}

const OrderedJson* NodeReader::Sibling(const char* keyword) const {
  const auto found = node_.json->find(keyword);
  return found == node_.json->end() ? nullptr : &*found;
}

void NodeReader::Type(const OrderedJson& value) {
  std::vector<std::string> names;
  if (value.is_string()) names.push_back(value.get<std::string>());
  if (value.is_array()) {
    for (const OrderedJson& name : value) {
      names.push_back(name.is_string() ? name.get<std::string>() : "");
    }
  }
  std::uint8_t types = 0;
  bool integers = false, numbers = false;
  for (const std::string& name : names) {
    if (TypeBit(name) == 0) return Refuse(absl::StrCat("there is no type \"", name, "\""));
    types |= TypeBit(name);
    integers |= name == "integer";
    numbers |= name == "number";
  }
  if (types == 0) return Refuse("must be a type or a list of at least one type");
  keywords_->integers |= integers && !numbers;  // Format may also set the flag
  const OrderedJson* nullable = Sibling("nullable");
  if (nullable != nullptr && nullable->is_boolean() && nullable->get<bool>()) types |= kNull;
  keywords_->types &= types;
}

void NodeReader::Nullable(const OrderedJson& value) {
  if (!value.is_boolean()) Refuse("must be true or false");  // read by Type
}

void NodeReader::Enum(const OrderedJson& value) {
  if (!value.is_array()) return Refuse("must be a list of values");
  if (value.size() > kMaxValues) {
    return Refuse(absl::StrCat("has ", value.size(), " values, the limit is ", kMaxValues));
  }
  std::set<OrderedJson> values(value.begin(), value.end());
  if (keywords_->values) {  // `enum` and `const` occur together
    std::erase_if(*keywords_->values, [&](const OrderedJson& v) { return !values.contains(v); });
    std::erase_if(keywords_->value_set, [&](const OrderedJson& v) { return !values.contains(v); });
  } else {
    keywords_->values.emplace(value.begin(), value.end());
    keywords_->value_set = std::move(values);
  }
  keywords_->value_steps = StepsOf(value);
}

void NodeReader::Const(const OrderedJson& value) {
  OrderedJson only = OrderedJson::array();
  only.push_back(value);
  Enum(only);
}

void NodeReader::RaiseMinimum(const Bound& bound) {
  const int order = keywords_->range.low ? Compare(bound.value, keywords_->range.low->value) : 1;
  if (order > 0 || (order == 0 && bound.exclusive)) keywords_->range.low = bound;
}

void NodeReader::LowerMaximum(const Bound& bound) {
  const int order = keywords_->range.high ? Compare(bound.value, keywords_->range.high->value) : -1;
  if (order < 0 || (order == 0 && bound.exclusive)) keywords_->range.high = bound;
}

void NodeReader::RaiseMinimum(const OrderedJson& value, bool exclusive) {
  if (const auto bound = ReadNumber(value)) RaiseMinimum(Bound{*bound, exclusive});
}

void NodeReader::LowerMaximum(const OrderedJson& value, bool exclusive) {
  if (const auto bound = ReadNumber(value)) LowerMaximum(Bound{*bound, exclusive});
}

void NodeReader::Minimum(const OrderedJson& value) {
  const OrderedJson* draft4 = Sibling("exclusiveMinimum");
  RaiseMinimum(value, draft4 != nullptr && draft4->is_boolean() && draft4->get<bool>());
}

void NodeReader::Maximum(const OrderedJson& value) {
  const OrderedJson* draft4 = Sibling("exclusiveMaximum");
  LowerMaximum(value, draft4 != nullptr && draft4->is_boolean() && draft4->get<bool>());
}

void NodeReader::ExclusiveMinimum(const OrderedJson& value) {
  if (!value.is_boolean()) RaiseMinimum(value, true);
}

void NodeReader::ExclusiveMaximum(const OrderedJson& value) {
  if (!value.is_boolean()) LowerMaximum(value, true);
}

void NodeReader::MultipleOf(const OrderedJson& value) {
  const auto divisor = ReadNumber(value);
  if (!divisor) return;
  if (divisor->negative || (divisor->whole == "0" && divisor->fraction.empty())) {
    return Refuse(absl::StrCat("is ", divisor->ToString(), ", it must be above 0"));
  }
  using Multiple = engine::MultipleOf;
  keywords_->multiple = Multiple::Parse(*divisor);
  if (keywords_->multiple) return;
  LeaveOut(absl::StrCat(
      "is ", divisor->ToString(), "; the supported numbers have at most ", Multiple::kMaxPlaces,
      " decimal places and, without the point, are at most ", Multiple::kMaxUnits));
}

void NodeReader::MinLength(const OrderedJson& value) {
  constexpr std::int64_t kLimit = 1024;
  const auto count = ReadCount(value);
  if (!count) return;
  if (*count > kLimit) {
    return LeaveOut(absl::StrCat("is ", *count, ", the limit is ", kLimit));
  }
  keywords_->min_length = *count;
}

void NodeReader::Pattern(const OrderedJson& value) {
  if (!value.is_string()) return Refuse("must be a regular expression");
  const auto text = value.get<std::string>();
  auto regex = ParseRegex(text, RegexMeaning::kContains);
  if (!regex.ok()) return LeaveOut(std::string(regex.status().message()));
  keywords_->patterns.emplace_back(text, std::make_shared<const Regex>(*std::move(regex)));
}

// Formats without an expression or a range are annotations, as the standard requires.
void NodeReader::Format(const OrderedJson& value) {
  if (!value.is_string()) return Refuse("must be the name of a format");
  const auto name = value.get<std::string>();
  if (const std::optional<NumberRange> range = FormatRange(name)) {
    RaiseMinimum(*range->low);
    LowerMaximum(*range->high);
    keywords_->integers = true;
    const OrderedJson* type = Sibling("type");
    if (type != nullptr && *type == "string") document_.ListUnenforced(node_, keyword_);
    return;
  }
  const absl::string_view pattern = FormatPattern(name);
  if (pattern.empty()) {
    if (!IsFreeFormat(name)) document_.ListUnenforced(node_, keyword_);
    return;
  }
  auto regex = ParseRegex(pattern, RegexMeaning::kWhole);
  if (!regex.ok()) return Refuse(std::string(regex.status().message()));
  keywords_->patterns.emplace_back(absl::StrCat("format ", name),
                                   std::make_shared<const Regex>(*std::move(regex)));
}

void NodeReader::Items(const OrderedJson& value) {
  if (!value.is_array()) {
    keywords_->items = Child(value);
    return;
  }
  for (std::size_t i = 0; i < value.size(); ++i) {  // up to draft 2019-09
    keywords_->prefix.push_back(Child(value[i], absl::StrCat(i)));
  }
}

void NodeReader::PrefixItems(const OrderedJson& value) {
  keywords_->prefix = Children(value);
}

void NodeReader::AdditionalItems(const OrderedJson& value) {
  const OrderedJson* items = Sibling("items");
  if (items != nullptr && items->is_array()) keywords_->items = Child(value);
}

void NodeReader::UniqueItems(const OrderedJson& value) {
  if (!value.is_boolean()) return Refuse("must be true or false");
  keywords_->unique_items = value.get<bool>();
}

void NodeReader::Properties(const OrderedJson& value) {
  if (!value.is_object()) return Refuse("must be an object of schemas");
  for (const auto& [name, schema] : value.items()) {
    keywords_->properties.emplace_back(name, Child(schema, name));
  }
}

void NodeReader::Required(const OrderedJson& value) {
  if (value.is_boolean()) return Refuse("must be a list of names; true and false are from draft 3");
  if (!value.is_array()) return Refuse("must be a list of names");
  for (const OrderedJson& name : value) {
    if (!name.is_string()) return Refuse("must be a list of names");
    keywords_->required.push_back(name.get<std::string>());
  }
}

void NodeReader::PatternProperties(const OrderedJson& value) {
  if (!value.is_object()) return Refuse("must be an object of schemas");
  for (const auto& [pattern, schema] : value.items()) {
    auto regex = ParseRegex(pattern, RegexMeaning::kContains);
    if (!regex.ok()) {
      keywords_->leaves_out_patterns = keywords_->hides_evaluation = true;
      LeaveOut(std::string(regex.status().message()));
      continue;
    }
    keywords_->pattern_properties.emplace_back(std::make_shared<const Regex>(*std::move(regex)),
                                               Child(schema, pattern));
  }
}

void NodeReader::AllOf(const OrderedJson& value) {
  for (const Node* child : Children(value)) keywords_->all.push_back(child);
}

void NodeReader::AnyOf(const OrderedJson& value) {
  keywords_->unions.push_back(Children(value));
}

void NodeReader::OneOf(const OrderedJson& value) {
  keywords_->unions.push_back(Children(value));
  document_.CheckDisjoint(node_, keywords_->unions.back());
}

// Supports only types, `true` and {}. Anything else would need the complement of a language.
void NodeReader::Not(const OrderedJson& value) {
  if (value.is_boolean() || (value.is_object() && value.empty())) {
    keywords_->is_unsatisfiable |= value.is_object() || value.get<bool>();
    return;
  }
  const auto type = value.is_object() ? value.find("type") : value.end();
  if (!value.is_object() || value.size() != 1 || type == value.end()) {
    return LeaveOut("is supported only with a type");
  }
  std::uint8_t types = 0;
  for (const OrderedJson& name : type->is_array() ? *type : OrderedJson::array({*type})) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text == "integer") return LeaveOut("is not supported for integers");
    if (TypeBit(text) == 0) return Refuse(absl::StrCat("there is no type \"", text, "\""));
    types |= TypeBit(text);
  }
  keywords_->types &= static_cast<std::uint8_t>(~types);
}

void NodeReader::Dialect(const OrderedJson& value) {
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  for (const char* known : kDialects) {
    if (absl::StrContains(name, known)) return;
  }
  Refuse("must be one of drafts 4, 6, 7, 2019-09 and 2020-12");
}

void NodeReader::Ref(const OrderedJson& value) {
  if (!value.is_string()) return Refuse("must be a reference");
  const auto text = value.get<std::string>();
  const Node* target = document_.Resolve(text);
  if (target == nullptr) {
    keywords_->hides_evaluation = true;
    return LeaveOut(absl::StrCat("\"", text.substr(0, 80),
                                 "\" is not in this document, or is an anchor that occurs twice "
                                 "in it; other documents are not fetched"));
  }
  keywords_->all.push_back(target);
}

void NodeReader::Id(const OrderedJson& value) {
  if (keyword_ == "id" && !value.is_string()) return RejectUnknown("id");
  if (!node_.Pointer().empty())
    Refuse("is supported only at the root, because it changes the meaning of references");
}

void NodeReader::DependentRequired(const OrderedJson& value) {
  if (!value.is_object()) return Refuse("must be an object of lists of names");
  if (value.size() > kMaxDependentRequired) {
    return LeaveOut(
        absl::StrCat("has ", value.size(), " names, the limit is ", kMaxDependentRequired));
  }
  const bool has_only_name_lists =
      std::ranges::all_of(value, [](const OrderedJson& names) { return names.is_array(); });
  if (!has_only_name_lists) {
    keywords_->hides_evaluation = true;
    return LeaveOut("is supported only with lists of names");
  }
  for (const auto& [trigger, names] : value.items()) {
    // Either the name and the required names are present, or the name is absent.
    OrderedJson with = {{"required", names}}, without;
    with["required"].push_back(trigger);
    without["properties"][trigger] = false;
    std::vector<const Node*> alternatives;
    for (OrderedJson* alternative : {&with, &without}) {
      document_.rewritten_json_.push_back(std::make_unique<OrderedJson>(std::move(*alternative)));
      alternatives.push_back(Child(*document_.rewritten_json_.back(), trigger));
    }
    // Both alternatives accept every value that is not an object.
    keywords_->unions.push_back(std::move(alternatives));
  }
}

}  // namespace quire::engine
