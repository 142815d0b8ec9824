// The intersection of what nodes say, keyword by keyword.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/constraint/schema_nodes.h"

namespace quire::engine {

namespace {

constexpr std::int64_t kMaxListedMultiples = 1000;
constexpr std::int64_t kMaxPropertyStates = 8192;  // of counted properties
constexpr std::int64_t kStepsOfCopiedPart = 64;    // of an expression

std::optional<std::int64_t> Least(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

std::int64_t PartsOf(const Regex& regex) {
  std::int64_t parts = 1;
  for (const Regex& part : regex.parts) parts += PartsOf(part);
  return parts;
}

// The one part of a choice or sequence of one, and of that in turn.
Regex* Unwrapped(Regex* regex) {
  while ((regex->kind == Regex::Kind::kSequence || regex->kind == Regex::Kind::kChoice) &&
         regex->parts.size() == 1) {
    regex = &regex->parts[0];
  }
  return regex;
}

}  // namespace

bool ClampLength(const TextLength& length, Regex* regex) {
  Regex* whole = Unwrapped(regex);
  std::vector<Regex*> parts = {whole};
  if (whole->kind == Regex::Kind::kSequence) {
    parts.clear();
    for (Regex& part : whole->parts) parts.push_back(Unwrapped(&part));
  }
  Regex* repeat = nullptr;
  std::int64_t fixed = 0;
  for (Regex* part : parts) {
    const TextLength own = LengthOf(*part);
    if (own.max == own.min) {
      fixed += own.min;
    } else if (repeat == nullptr && part->kind == Regex::Kind::kRepeat &&
               Unwrapped(&part->parts[0])->kind == Regex::Kind::kCharacter) {
      repeat = part;
    } else {
      return false;
    }
  }
  if (repeat == nullptr) return false;
  repeat->min = std::max(repeat->min, length.min - fixed);
  if (length.max) repeat->max = Least(repeat->max, *length.max - fixed);
  return !repeat->max || *repeat->max >= repeat->min;
}

std::optional<Shape> ShapeBuilder::Build() {
  std::uint8_t types = kAllTypes;
  bool integers = false;
  const std::vector<OrderedJson>* listed = nullptr;
  for (const Node* node : nodes_) {
    const Local& local = document_.LocalOf(*node);
    if (local.never) return std::nullopt;
    types &= local.types;
    integers |= local.integers;
    if (local.values && (listed == nullptr || local.values->size() < listed->size())) {
      listed = &*local.values;
    }
  }
  Shape shape;
  shape.null = (types & kNull) != 0;
  shape.boolean = (types & kBoolean) != 0;
  if (types & kNumber) AddNumber(integers, &shape);
  if (types & kString) AddString(&shape);
  if (types & kArray) AddArray(&shape);
  if (types & kObject) AddObject(&shape);
  return listed == nullptr ? shape : Listed(*listed, shape);
}

std::optional<Shape> ShapeBuilder::Listed(const std::vector<OrderedJson>& listed,
                                          const Shape& shape) {
  std::int64_t steps = 0;
  for (const Node* node : nodes_) steps += document_.LocalOf(*node).value_steps;
  if (!document_.Spend(steps)) return std::nullopt;
  Shape values;
  std::set<OrderedJson> known;
  for (const OrderedJson& value : listed) {
    const bool in_all = std::all_of(nodes_.begin(), nodes_.end(), [&](const Node* node) {
      const Local& local = document_.LocalOf(*node);
      return !local.values || local.value_set.contains(value);
    });
    if (in_all && known.insert(value).second && document_.Accepts(shape, value)) {
      values.values.push_back(value);
    }
  }
  if (values.values.empty()) return std::nullopt;
  return values;
}

void ShapeBuilder::AddNumber(bool integers, Shape* shape) {
  NumberShape number{.integers = integers, .range = {}, .divisor = {}, .fraction_digits = {}};
  for (const Node* node : nodes_) {
    const Local& local = document_.LocalOf(*node);
    const auto tighter = [](const std::optional<Bound>& a, const std::optional<Bound>& b,
                            int sign) {
      if (!a || !b) return a ? a : b;
      const int order = sign * Compare(a->value, b->value);
      return order > 0 || (order == 0 && a->exclusive) ? a : b;
    };
    number.range.low = tighter(number.range.low, local.range.low, 1);
    number.range.high = tighter(number.range.high, local.range.high, -1);
    if (local.divisor) {
      if (number.divisor && *number.divisor != *local.divisor) {
        return document_.Refuse(*node, "multipleOf", "beside another one in an intersection");
      }
      number.divisor = local.divisor;
    }
    if (local.fraction_digits) {
      number.fraction_digits =
          std::min(number.fraction_digits.value_or(*local.fraction_digits), *local.fraction_digits);
    }
  }
  if (number.divisor) number.integers = true;
  if (number.integers) number.fraction_digits.reset();
  if (number.divisor == 1) number.divisor.reset();
  const bool ranged = number.range.low || number.range.high;
  if (number.range.empty()) return;
  if (ranged && number.divisor) return AddMultiples(number, shape);
  if (ranged && number.fraction_digits) {
    return document_.Refuse(*nodes_[0], "multipleOf", "of a fraction beside a range");
  }
  const bool any = number.integers ? IntegersWithin(number.range).has_value()
                                   : NumbersWithin(number.range).has_value();
  if (any) shape->number = std::move(number);
}

// Multiples within bounds are listed, if they are few.
void ShapeBuilder::AddMultiples(const NumberShape& number, Shape* shape) {
  if (!document_.Spend(kMaxListedMultiples * 8)) return;
  const std::int64_t divisor = *number.divisor;
  const auto magnitude = [&](const std::optional<Bound>& bound) -> std::optional<std::int64_t> {
    if (!bound || bound->value.whole.size() > 15) return std::nullopt;
    return std::stoll(bound->value.whole) * (bound->value.negative ? -1 : 1);
  };
  const auto low = magnitude(number.range.low), high = magnitude(number.range.high);
  if (!low || !high || (*high - *low) / divisor > kMaxListedMultiples) {
    return document_.Refuse(
        *nodes_[0], "multipleOf",
        absl::StrCat("beside a range that has more than ", kMaxListedMultiples, " multiples"));
  }
  for (std::int64_t i = *low / divisor - 1; i <= *high / divisor + 1; ++i) {
    const auto value = Decimal::Parse(absl::StrCat(i * divisor));
    if (value.ok() && number.range.Contains(*value)) shape->values.emplace_back(i * divisor);
  }
}

void ShapeBuilder::AddString(Shape* shape) {
  StringShape string;
  const std::pair<std::string, std::shared_ptr<const Regex>>* pattern = nullptr;
  for (const Node* node : nodes_) {
    const Local& local = document_.LocalOf(*node);
    string.min = std::max(string.min, local.min_length);
    string.max = Least(string.max, local.max_length);
    for (const auto& own : local.patterns) {
      if (pattern != nullptr && pattern->first != own.first) {
        return document_.Refuse(*node, own.first.starts_with("format ") ? "format" : "pattern",
                                "beside another expression");
      }
      pattern = &own;
    }
  }
  if (string.max && *string.max < string.min) return;
  if (pattern != nullptr) {
    string.pattern = pattern->second;
    const std::int64_t parts = PartsOf(*string.pattern);
    if (!document_.Spend(parts)) return;
    const TextLength own = LengthOf(*string.pattern);
    const bool implied =
        own.min >= string.min && (!string.max || (own.max && *own.max <= *string.max));
    if (own.max && *own.max < string.min) return;
    if (string.max && own.min > *string.max) return;
    if (!implied) {
      if (!document_.Spend(kStepsOfCopiedPart * parts)) return;
      auto clamped = std::make_shared<Regex>(*string.pattern);
      if (!ClampLength({string.min, string.max}, clamped.get())) {
        return document_.Refuse(
            *nodes_[0], string.max ? "maxLength" : "minLength",
            absl::StrCat("beside an expression whose texts have ", own.min, " to ",
                         own.max ? absl::StrCat(*own.max) : "any number of", " characters"));
      }
      string.pattern = std::move(clamped);
    }
  }
  shape->string = std::move(string);
}

SchemaId ShapeBuilder::ItemsAt(std::size_t index) {
  Nodes nodes;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const Local& local = document_.LocalOf(*nodes_[n]);
    if (index < local.prefix.size()) {
      nodes.push_back(local.prefix[index]);
    } else if (local.items != nullptr) {
      nodes.push_back(local.items);
    } else if (local.unevaluated_items != nullptr) {
      const bool evaluated = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* other) {
        const Local& its = document_.LocalOf(*other);
        return its.items != nullptr || index < its.prefix.size();
      });
      if (!MayApplyUnevaluated(n)) {
        document_.Refuse(*nodes_[n], "unevaluatedItems", "within an intersection");
      }
      if (!evaluated) nodes.push_back(local.unevaluated_items);
    }
  }
  return document_.Intern(std::move(nodes));
}

void ShapeBuilder::AddArray(Shape* shape) {
  ArrayShape array{.prefix = {}, .items = {}, .max = {}};
  std::size_t prefix = 0;
  bool unique = false;
  const Node* where = nodes_.empty() ? nullptr : nodes_[0];
  for (const Node* node : nodes_) {
    const Local& local = document_.LocalOf(*node);
    prefix = std::max(prefix, local.prefix.size());
    array.min = std::max(array.min, local.min_items);
    array.max = Least(array.max, local.max_items);
    if (local.unique_items) {
      unique = true;
      where = node;
    }
  }
  if (array.max && *array.max < array.min) return;
  if (unique && (!array.max || *array.max > 1)) {
    return document_.Refuse(*where, "uniqueItems", "is supported with maxItems of at most 1");
  }
  for (std::size_t i = 0; i < prefix && (!array.max || i < static_cast<std::size_t>(*array.max));
       ++i) {
    array.prefix.push_back(ItemsAt(i));
  }
  array.items = ItemsAt(prefix);
  shape->array = std::move(array);
}

std::vector<std::string> ShapeBuilder::DeclaredNames() const {
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const Node* node : nodes_) {
    for (const auto& [name, schema] : document_.LocalOf(*node).properties) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  for (const Node* node : nodes_) {
    const Local& local = document_.LocalOf(*node);
    document_.Spend(static_cast<std::int64_t>(local.properties.size() + local.required.size()));
    for (const std::string& name : local.required) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  return names;
}

ObjectShape::Property ShapeBuilder::PropertyNamed(const std::string& name) {
  ObjectShape::Property property{.name = name, .schema = {}};
  Nodes nodes;
  const auto declares = [&](const Local& local) -> const Node* {
    for (const auto& [own, schema] : local.properties) {
      if (own == name) return schema;
    }
    return nullptr;
  };
  if (!document_.Spend(4 + static_cast<std::int64_t>(name.size() / 8))) return property;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const Local& local = document_.LocalOf(*nodes_[n]);
    if (!document_.Spend(
            1 + static_cast<std::int64_t>(local.properties.size() + local.required.size()))) {
      return property;
    }
    property.required |=
        std::find(local.required.begin(), local.required.end(), name) != local.required.end();
    const Node* own = declares(local);
    bool evaluated = own != nullptr;
    if (own != nullptr) nodes.push_back(own);
    for (const auto& [regex, schema] : local.pattern_properties) {
      if (!document_.Matches(*regex, name)) continue;
      nodes.push_back(schema);
      evaluated = true;
    }
    if (!evaluated && local.additional != nullptr) nodes.push_back(local.additional);
    if (local.unevaluated != nullptr) {
      const bool elsewhere = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* other) {
        const Local& its = document_.LocalOf(*other);
        document_.Spend(static_cast<std::int64_t>(its.properties.size()));
        return declares(its) != nullptr || its.additional != nullptr ||
               !its.pattern_properties.empty();
      });
      if (!elsewhere) nodes.push_back(local.unevaluated);
    }
    if (local.names != nullptr &&
        !document_.Accepts(document_.Intern({local.names}), OrderedJson(name))) {
      document_.made_.push_back(std::make_unique<OrderedJson>(false));
      nodes.push_back(document_.NodeAt(*document_.made_.back(), local.names, ""));
    }
  }
  property.schema = document_.Intern(std::move(nodes));
  return property;
}

// Which names may stand behind the declared ones, and their schema.
void ShapeBuilder::SetOtherNames(const std::vector<std::string>& declared, ObjectShape* object) {
  Nodes nodes;
  const auto closed = [](const Local& local) {
    return local.additional != nullptr && local.additional->json->is_boolean() &&
           !local.additional->json->get<bool>();
  };
  const auto restrict_to = [&](const Node& node, const char* keyword,
                               const std::shared_ptr<const Regex>& names) {
    if (object->names) return document_.Refuse(node, keyword, "beside another set of names");
    for (const std::string& name : declared) {
      if (document_.Matches(*names, name)) {
        return document_.Refuse(node, keyword,
                                absl::StrCat("also allows the declared name \"", name, "\""));
      }
    }
    object->names = names;
  };
  const bool any_closed = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* node) {
    const Local& local = document_.LocalOf(*node);
    return closed(local) && local.pattern_properties.empty();
  });
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const Local& local = document_.LocalOf(*nodes_[n]);
    if (local.unevaluated != nullptr) {
      const bool evaluated = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* other) {
        const Local& its = document_.LocalOf(*other);
        return its.additional != nullptr || !its.pattern_properties.empty();
      });
      if (!MayApplyUnevaluated(n)) {
        document_.Refuse(*nodes_[n], "unevaluatedProperties", "within an intersection");
      }
      if (!evaluated) nodes.push_back(local.unevaluated);
    }
    if (local.pattern_properties.empty()) {
      if (local.additional != nullptr) nodes.push_back(local.additional);
    } else if (any_closed) {
      // No other names: those that patterns would allow are not either.
    } else if (local.pattern_properties.size() > 1 || !closed(local)) {
      document_.Refuse(*nodes_[n], "patternProperties",
                       "is supported with one expression and additionalProperties of false");
    } else {
      restrict_to(*nodes_[n], "patternProperties", local.pattern_properties[0].first);
      nodes.push_back(local.pattern_properties[0].second);
    }
    if (local.names == nullptr || any_closed) continue;
    const std::vector<Shape>* shapes = document_.Read(document_.Intern({local.names}));
    const StringShape* own = shapes != nullptr && shapes->size() == 1 && (*shapes)[0].string
                                 ? &*(*shapes)[0].string
                                 : nullptr;
    if (own != nullptr && own->pattern) {
      restrict_to(*nodes_[n], "propertyNames", own->pattern);
    } else if (own == nullptr || own->min > 0 || own->max) {
      document_.Refuse(*nodes_[n], "propertyNames", "is supported with a pattern");
    }
  }
  object->additional = document_.Intern(std::move(nodes));
}

void ShapeBuilder::AddObject(Shape* shape) {
  ObjectShape object{.properties = {}, .additional = {}, .names = {}, .max = {}};
  for (const Node* node : nodes_) {
    const Local& local = document_.LocalOf(*node);
    object.min = std::max(object.min, local.min_properties);
    object.max = Least(object.max, local.max_properties);
  }
  const std::vector<std::string> declared = DeclaredNames();
  if (declared.size() > kMaxSchemaProperties) {
    return document_.Refuse(
        *nodes_[0], "properties",
        absl::StrCat("declares ", declared.size(), " names, the limit is ", kMaxSchemaProperties));
  }
  std::int64_t required = 0;
  for (const std::string& name : declared) {
    object.properties.push_back(PropertyNamed(name));
    required += object.properties.back().required;
  }
  SetOtherNames(declared, &object);
  if (object.min <= required) object.min = 0;
  const auto count = static_cast<std::int64_t>(declared.size());
  if (object.max && *object.max < std::max(required, object.min)) return;
  if (object.min > count) {
    return document_.Refuse(*nodes_[0], "minProperties",
                            absl::StrCat("only ", count,
                                         " properties are declared, and other "
                                         "names could be repeated"));
  }
  if (count * std::max(object.min, object.max.value_or(0)) > kMaxPropertyStates) {
    return document_.Refuse(*nodes_[0], object.max ? "maxProperties" : "minProperties",
                            "counts too many declared properties");
  }
  shape->object = std::move(object);
}

}  // namespace quire::engine
