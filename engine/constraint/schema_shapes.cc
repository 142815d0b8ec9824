// Intersects the nodes of a schema, one keyword at a time.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "engine/constraint/schema_nodes.h"

namespace quire::engine {

namespace {

constexpr std::int64_t kMaxPropertyStates = 8192;  // states for counting properties
constexpr std::int64_t kStepsOfCopiedPart = 64;    // for each part of a copied expression
// Maximum number of transitions in UniqueItems. A transition adds one item to the set of items so
// far.
constexpr std::size_t kMaxUniqueTransitions = 1 << 14;
// Minimum number of characters for each of several repetitions that share a maximum length.
constexpr std::int64_t kMinShare = 24;

std::optional<std::int64_t> SmallerLimit(std::optional<std::int64_t> a,
                                         std::optional<std::int64_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

std::int64_t CountParts(const Regex& regex) {
  std::int64_t parts = 1;
  for (const Regex& part : regex.parts) parts += CountParts(part);
  return parts;
}

// Unwraps choices and sequences that have only one part.
Regex* Unwrap(Regex* regex) {
  while ((regex->kind == Regex::Kind::kSequence || regex->kind == Regex::Kind::kChoice) &&
         regex->parts.size() == 1) {
    regex = regex->parts.data();
  }
  return regex;
}

// Returns the parts of a sequence, or the expression itself.
std::vector<Regex*> PartsInOrder(Regex* regex) {
  Regex* whole = Unwrap(regex);
  std::vector<Regex*> parts = {whole};
  if (whole->kind == Regex::Kind::kSequence) {
    parts.clear();
    for (Regex& part : whole->parts) parts.push_back(Unwrap(&part));
  }
  return parts;
}

bool ShareLength(std::int64_t max, Regex* regex);

// Gives each part its minimum length, and divides the rest among the parts that can be longer.
bool ShareAmong(std::int64_t max, std::vector<Regex>* parts) {
  // The parts of variable length, each with its maximum minus its minimum length.
  std::vector<std::pair<std::int64_t, Regex*>> longer_parts;
  for (Regex& part : *parts) {
    const TextLength own = LengthOf(part);
    max -= own.min;
    const std::int64_t extra = own.max ? *own.max - own.min : INT64_MAX;
    if (extra > 0) longer_parts.emplace_back(extra, &part);
  }
  if (max < 0) return false;
  std::ranges::sort(longer_parts, {}, [](const auto& part) { return part.first; });
  const auto num_long =
      std::ranges::count_if(longer_parts, [](const auto& part) { return part.first > kMinShare; });
  for (std::size_t i = 0; i < longer_parts.size(); ++i) {
    const auto& [extra, part] = longer_parts[i];
    const std::int64_t share =
        std::min(extra, max / static_cast<std::int64_t>(longer_parts.size() - i));
    if (num_long > 1 && share < std::min(extra, kMinShare)) return false;
    max -= share;
    if (!ShareLength(LengthOf(*part).min + share, part)) return false;
  }
  return true;
}

// Shortens repetitions until no text of the language exceeds `max` characters. Returns false if one
// of several repetitions would get less than kMinShare, or if a repetition cannot be shortened.
bool ShareLength(std::int64_t max, Regex* regex) {
  const TextLength own = LengthOf(*regex);
  if (own.min > max) return false;
  if (own.max && *own.max <= max) return true;
  switch (regex->kind) {
    case Regex::Kind::kCharacter:
      return true;
    case Regex::Kind::kSequence:
      return ShareAmong(max, &regex->parts);
    case Regex::Kind::kChoice:
      std::erase_if(regex->parts, [&](const Regex& part) { return LengthOf(part).min > max; });
      return std::ranges::all_of(regex->parts,
                                 [&](Regex& part) { return ShareLength(max, &part); });
    case Regex::Kind::kRepeat:
      break;
  }
  Regex& body = regex->parts[0];
  const TextLength once = LengthOf(body);
  if (regex->max == 1 && once.min > max) {
    regex->max = 0;  // drops the optional part, which is longer than `max`
    return true;
  }
  if (regex->max == 1) return ShareLength(max, &body);
  if (!once.max) return false;
  if (body.kind == Regex::Kind::kCharacter) {
    regex->max = max;
    return true;
  }
  if (regex->min > 0 || regex->max || max < *once.max) return false;
  regex->max_chars = max;
  return true;
}

}  // namespace

bool ClampLength(const TextLength& length, Regex* regex) {
  Regex* repeat = nullptr;
  std::int64_t fixed = 0;
  bool has_one_repeat = true;
  for (Regex* part : PartsInOrder(regex)) {
    const TextLength own = LengthOf(*part);
    if (own.max == own.min) {
      fixed += own.min;
    } else if (repeat == nullptr && part->kind == Regex::Kind::kRepeat &&
               Unwrap(part->parts.data())->kind == Regex::Kind::kCharacter) {
      repeat = part;
    } else {
      has_one_repeat = false;
    }
  }
  if (!has_one_repeat) {
    return length.max && LengthOf(*regex).min >= length.min && ShareLength(*length.max, regex);
  }
  if (repeat == nullptr) return false;
  repeat->min = std::max(repeat->min, length.min - fixed);
  if (length.max) repeat->max = SmallerLimit(repeat->max, *length.max - fixed);
  return !repeat->max || *repeat->max >= repeat->min;
}

const ShapeBuilder::Node& ShapeBuilder::NodeWith(const char* keyword) const {
  for (const Node* node : nodes_) {
    if (node->json->is_object() && node->json->contains(keyword)) return *node;
  }
  return *nodes_[0];
}

bool ShapeBuilder::AppliesUnevaluated(std::size_t index, const char* keyword) {
  if (!one_seed_ || index > 0) {
    document_.LeaveOut(*nodes_[index], keyword, "is not supported within an intersection");
    return false;
  }
  // An unevaluated keyword of another node evaluates all remaining items or properties, so the
  // keyword of this node is then not enforced.
  const bool is_known = std::ranges::none_of(nodes_, [&](const Node* node) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    const bool evaluates_rest =
        keywords.unevaluated != nullptr || keywords.unevaluated_items != nullptr;
    return keywords.hides_evaluation || (node != nodes_[index] && evaluates_rest);
  });
  if (!is_known) document_.ListUnenforced(*nodes_[index], keyword);
  return is_known;
}

std::optional<Shape> ShapeBuilder::Build() {
  std::uint8_t types = kAllTypes;
  bool integers = false;
  const std::vector<OrderedJson>* listed = nullptr;
  for (const Node* node : nodes_) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    if (keywords.is_unsatisfiable) return std::nullopt;
    types &= keywords.types;
    integers |= keywords.integers;
    if (keywords.values && (listed == nullptr || keywords.values->size() < listed->size())) {
      listed = &*keywords.values;
    }
  }
  Shape shape;
  shape.null = (types & kNull) != 0;
  shape.boolean = (types & kBoolean) != 0;
  if (types & kNumber) AddNumber(integers, &shape);
  if (types & kString) AddString(&shape);
  if (types & kArray) AddArray(&shape);
  if (types & kObject) AddObject(&shape);
  return listed == nullptr ? shape : ShapeOfListed(*listed, shape);
}

std::optional<Shape> ShapeBuilder::ShapeOfListed(const std::vector<OrderedJson>& listed,
                                                 const Shape& shape) {
  std::int64_t steps = 0;
  for (const Node* node : nodes_) steps += document_.OwnKeywordsOf(*node).value_steps;
  if (!document_.Spend(steps)) return std::nullopt;
  Shape values;
  std::set<OrderedJson> known;
  for (const OrderedJson& value : listed) {
    const bool in_all = std::all_of(nodes_.begin(), nodes_.end(), [&](const Node* node) {
      const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
      return !keywords.values || keywords.value_set.contains(value);
    });
    if (in_all && known.insert(value).second && document_.Accepts(shape, value)) {
      values.values.push_back(value);
    }
  }
  if (values.values.empty()) return std::nullopt;
  return values;
}

void ShapeBuilder::AddNumber(bool integers, Shape* shape) {
  NumberShape number{.integers = integers, .range = {}, .multiple = {}, .multiples = {}};
  for (const Node* node : nodes_) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    const auto tighter = [](const std::optional<Bound>& a, const std::optional<Bound>& b,
                            int sign) {
      if (!a || !b) return a ? a : b;
      const int order = sign * Compare(a->value, b->value);
      return order > 0 || (order == 0 && a->exclusive) ? a : b;
    };
    number.range.low = tighter(number.range.low, keywords.range.low, 1);
    number.range.high = tighter(number.range.high, keywords.range.high, -1);
    if (!keywords.multiple) continue;
    const auto both =
        number.multiple ? number.multiple->Intersect(*keywords.multiple) : keywords.multiple;
    if (both) {
      number.multiple = both;
    } else {
      document_.LeaveOut(*node, "multipleOf",
                         "cannot be combined with another multipleOf in an intersection");
    }
  }
  if (number.range.empty()) return;
  if (number.multiple && number.integers) number.multiple = number.multiple->Integers();
  if (number.multiple && number.multiple->places == 0) {
    number.integers = true;
    if (number.multiple->units == 1) number.multiple.reset();
  }
  if (number.multiple) {
    std::int64_t steps = document_.steps_left_;
    auto multiples = MultiplesWithin(*number.multiple, number.range, &steps);
    if (!document_.Spend(document_.steps_left_ - steps)) return;
    if (!multiples) {
      document_.LeaveOut(NodeWith("multipleOf"), "multipleOf",
                         absl::StrCat("needs an automaton of more than ",
                                      NumberAutomaton::kMaxStates, " states within the range"));
      number.multiple.reset();
    } else if (multiples->states.empty()) {
      return;
    } else {
      number.multiples = std::make_shared<const NumberAutomaton>(*std::move(multiples));
    }
  }
  const bool any = number.multiple || (number.integers ? IntegersWithin(number.range).has_value()
                                                       : NumbersWithin(number.range).has_value());
  if (any) shape->number = std::move(number);
}

void ShapeBuilder::AddString(Shape* shape) {
  StringShape string;
  const std::pair<std::string, std::shared_ptr<const Regex>>* pattern = nullptr;
  for (const Node* node : nodes_) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    string.min = std::max(string.min, keywords.min_length);
    string.max = SmallerLimit(string.max, keywords.max_length);
    for (const auto& own : keywords.patterns) {
      if (pattern != nullptr && pattern->first != own.first) {
        document_.LeaveOut(*node, own.first.starts_with("format ") ? "format" : "pattern",
                           "cannot be combined with another pattern or format");
        continue;
      }
      pattern = &own;
    }
  }
  if (string.max && *string.max < string.min) return;
  if (pattern != nullptr) {
    string.pattern = pattern->second;
    if (!CutPattern(&string)) return;
  }
  shape->string = std::move(string);
}

bool ShapeBuilder::CutPattern(StringShape* string) {
  const std::int64_t parts = CountParts(*string->pattern);
  if (!document_.Spend(parts)) return false;
  const TextLength own = LengthOf(*string->pattern);
  if (own.max && *own.max < string->min) return false;
  if (string->max && own.min > *string->max) return false;
  if (own.min >= string->min && (!string->max || (own.max && *own.max <= *string->max))) {
    return true;
  }
  if (!document_.Spend(kStepsOfCopiedPart * parts)) return false;
  auto clamped = std::make_shared<Regex>(*string->pattern);
  if (ClampLength({string->min, string->max}, clamped.get())) {
    string->pattern = std::move(clamped);
    return true;
  }
  const auto leave_out = [&](const char* keyword) {
    document_.LeaveOut(
        NodeWith(keyword), keyword,
        absl::StrCat("cannot be combined with an expression whose texts have ", own.min, " to ",
                     own.max ? absl::StrCat(*own.max) : "any number of", " characters"));
  };
  if (own.min < string->min) leave_out("minLength");
  if (string->max && (!own.max || *own.max > *string->max)) leave_out("maxLength");
  return true;
}

SchemaId ShapeBuilder::ItemsAt(std::size_t index) {
  Nodes nodes;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*nodes_[n]);
    if (index < keywords.prefix.size()) {
      nodes.push_back(keywords.prefix[index]);
    } else if (keywords.items != nullptr) {
      nodes.push_back(keywords.items);
    } else if (keywords.unevaluated_items != nullptr) {
      const bool evaluated = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* other) {
        const OwnKeywords& other_keywords = document_.OwnKeywordsOf(*other);
        return other_keywords.items != nullptr || index < other_keywords.prefix.size();
      });
      if (AppliesUnevaluated(n, "unevaluatedItems") && !evaluated) {
        nodes.push_back(keywords.unevaluated_items);
      }
    }
  }
  return document_.Intern(std::move(nodes));
}

void ShapeBuilder::AddArray(Shape* shape) {
  ArrayShape array{.prefix = {}, .items = {}, .max = {}, .unique = {}};
  std::size_t prefix = 0;
  bool unique = false;
  const Node* unique_node = nodes_.empty() ? nullptr : nodes_[0];
  for (const Node* node : nodes_) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    prefix = std::max(prefix, keywords.prefix.size());
    array.min = std::max(array.min, keywords.min_items);
    array.max = SmallerLimit(array.max, keywords.max_items);
    if (keywords.unique_items) {
      unique = true;
      unique_node = node;
    }
  }
  if (array.max && *array.max < array.min) return;
  for (std::size_t i = 0; i < prefix && (!array.max || i < static_cast<std::size_t>(*array.max));
       ++i) {
    array.prefix.push_back(ItemsAt(i));
  }
  array.items = ItemsAt(prefix);
  if (unique && (!array.max || *array.max > 1) && !AddUniqueItems(*unique_node, &array)) return;
  shape->array = std::move(array);
}

namespace {

// The input of StatesOf.
struct ItemSets {
  // The values at each position. The last entry applies to all later positions.
  std::vector<std::vector<std::size_t>> values_at;
  std::size_t min = 0, max = 0;  // number of items
};

// Returns one state for each set of items that an array can begin with. Returns nullopt if the
// states have more than kMaxUniqueTransitions transitions.
std::optional<std::vector<UniqueItems::State>> StatesOf(const ItemSets& items,
                                                        std::size_t* num_transitions) {
  std::vector<UniqueItems::State> states(1);
  // Sets of one size; their items are in ascending order.
  std::map<std::vector<std::size_t>, std::size_t> known;
  std::vector<std::pair<std::vector<std::size_t>, std::size_t>> sets = {{{}, 0}}, next;
  for (std::size_t size = 0; !sets.empty(); ++size, sets = std::exchange(next, {})) {
    known.clear();
    for (const auto& [set, state] : sets) {
      states[state].may_end = size >= items.min;
      if (size == items.max) continue;
      for (const std::size_t value : items.values_at[std::min(size, items.values_at.size() - 1)]) {
        const auto at = std::ranges::lower_bound(set, value);
        if (at != set.end() && *at == value) continue;
        if (++*num_transitions > kMaxUniqueTransitions) return std::nullopt;
        std::vector<std::size_t> extended(set.begin(), at);
        extended.push_back(value);
        extended.insert(extended.end(), at, set.end());
        const auto [entry, added] = known.emplace(std::move(extended), states.size());
        if (added) {
          states.emplace_back();
          next.emplace_back(entry->first, entry->second);
        }
        states[state].transitions.emplace_back(value, entry->second);
      }
    }
  }
  return states;
}

}  // namespace

bool ShapeBuilder::AddUniqueItems(const Node& node, ArrayShape* array) {
  const auto leave_out = [&](absl::string_view why) {
    document_.LeaveOut(node, "uniqueItems", std::string(why));
    return true;
  };
  // One map per position, keyed by value, because items of different positions may be equal.
  std::vector<std::map<nlohmann::json, OrderedJson>> values_at;
  std::vector<SchemaId> positions = array->prefix;
  positions.push_back(array->items);
  for (const SchemaId id : positions) {
    if (!document_.AddValues(id, kMaxUniqueTransitions, &values_at.emplace_back())) {
      return leave_out(
          "is supported only with maxItems of at most 1, or if each item is null, a boolean, an "
          "integer of a small range or a value of enum or const");
    }
  }
  auto unique = std::make_shared<UniqueItems>();
  std::map<nlohmann::json, std::size_t> index;
  ItemSets items{.values_at = {}, .min = static_cast<std::size_t>(array->min)};
  for (const auto& values : values_at) {
    std::vector<std::size_t>& at = items.values_at.emplace_back();
    for (const auto& [key, value] : values) {
      if (!document_.Spend(16)) return false;
      const auto [entry, added] = index.emplace(key, index.size());
      if (added) unique->values.push_back(value);
      at.push_back(entry->second);
    }
  }
  items.max = std::min(index.size(), static_cast<std::size_t>(array->max.value_or(INT64_MAX)));
  std::size_t num_transitions = 0;
  auto states = StatesOf(items, &num_transitions);
  if (!document_.Spend(static_cast<std::int64_t>(16 * num_transitions))) return false;
  if (!states) {
    return leave_out(absl::StrCat("needs more than ", kMaxUniqueTransitions, " transitions for ",
                                  index.size(), " different items"));
  }
  // A state has a higher index than its predecessors, so this loop visits successors first.
  std::vector<bool> is_dead(states->size());
  for (std::size_t i = states->size(); i-- > 0;) {
    UniqueItems::State& state = (*states)[i];
    std::erase_if(state.transitions,
                  [&](const auto& transition) { return is_dead[transition.second]; });
    is_dead[i] = !state.may_end && state.transitions.empty();
  }
  if (is_dead[0]) return false;
  unique->states = *std::move(states);
  array->unique = std::move(unique);
  return true;
}

std::optional<std::vector<std::string>> ShapeBuilder::ListedNames(const OwnKeywords& keywords) {
  const std::vector<Shape>* shapes = document_.Read(document_.Intern({keywords.names}));
  if (shapes == nullptr) return std::nullopt;
  std::vector<std::string> names;
  for (const Shape& shape : *shapes) {
    if (shape.string) return std::nullopt;
    if (!document_.Spend(static_cast<std::int64_t>(4 * shape.values.size()))) return std::nullopt;
    for (const OrderedJson& value : shape.values) {
      if (value.is_string()) names.push_back(value.get<std::string>());
    }
  }
  return names;
}

std::vector<std::string> ShapeBuilder::DeclaredNames() {
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const Node* node : nodes_) {
    for (const auto& [name, schema] : document_.OwnKeywordsOf(*node).properties) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  for (const Node* node : nodes_) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    document_.Spend(
        static_cast<std::int64_t>(keywords.properties.size() + keywords.required.size()));
    for (const std::string& name : keywords.required) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  for (const Node* node : nodes_) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    if (keywords.names == nullptr) continue;
    for (const std::string& name : ListedNames(keywords).value_or(std::vector<std::string>())) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  return names;
}

ObjectShape::Property ShapeBuilder::PropertyNamed(const std::string& name) {
  ObjectShape::Property property{.name = name, .schema = {}};
  Nodes nodes;
  const auto declares = [&](const OwnKeywords& keywords) -> const Node* {
    for (const auto& [own, schema] : keywords.properties) {
      if (own == name) return schema;
    }
    return nullptr;
  };
  if (!document_.Spend(4 + static_cast<std::int64_t>(name.size() / 8))) return property;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*nodes_[n]);
    if (!document_.Spend(
            1 + static_cast<std::int64_t>(keywords.properties.size() + keywords.required.size()))) {
      return property;
    }
    property.required |= std::find(keywords.required.begin(), keywords.required.end(), name) !=
                         keywords.required.end();
    const Node* own = declares(keywords);
    bool evaluated = own != nullptr;
    if (own != nullptr) nodes.push_back(own);
    for (const auto& [regex, schema] : keywords.pattern_properties) {
      if (!document_.Matches(*regex, name)) continue;
      nodes.push_back(schema);
      evaluated = true;
    }
    if (!evaluated && keywords.additional != nullptr) {
      if (keywords.leaves_out_patterns) {
        document_.ListUnenforced(*nodes_[n], "additionalProperties");
      } else {
        nodes.push_back(keywords.additional);
      }
    }
    if (keywords.unevaluated != nullptr && AppliesUnevaluated(n, "unevaluatedProperties")) {
      const bool is_evaluated_elsewhere =
          std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* other) {
            const OwnKeywords& other_keywords = document_.OwnKeywordsOf(*other);
            document_.Spend(static_cast<std::int64_t>(other_keywords.properties.size()));
            return declares(other_keywords) != nullptr || other_keywords.additional != nullptr ||
                   !other_keywords.pattern_properties.empty();
          });
      if (!is_evaluated_elsewhere) nodes.push_back(keywords.unevaluated);
    }
    if (keywords.names != nullptr &&
        !document_.Accepts(document_.Intern({keywords.names}), OrderedJson(name))) {
      document_.rewritten_json_.push_back(std::make_unique<OrderedJson>(false));
      nodes.push_back(document_.NodeAt(*document_.rewritten_json_.back(), keywords.names, ""));
    }
  }
  property.schema = document_.Intern(std::move(nodes));
  return property;
}

bool ShapeBuilder::RestrictNames(const Regex& names, const std::vector<std::string>& declared,
                                 ObjectShape* object) {
  const std::int64_t parts = CountParts(names);
  if (!document_.Spend(kStepsOfCopiedPart * parts)) return false;
  std::vector<CodePoints::Range> excluded;
  bool excludes_empty = false;
  for (const std::string& name : declared) {
    if (!document_.Matches(names, name)) continue;
    excludes_empty |= name.empty();
    if (name.empty()) continue;
    const char32_t first = DecodeUtf8At(name, 0).code_point;
    excluded.emplace_back(first, first);
  }
  auto others = std::make_shared<Regex>(names);
  if (!excluded.empty() || excludes_empty) {
    auto without = ExcludeFirst(names, CodePoints(std::move(excluded)), !excludes_empty);
    if (!without) return false;
    *others = *std::move(without);
  }
  object->names = std::move(others);
  return true;
}

bool ShapeBuilder::ReadNames(const Node& node, const std::vector<std::string>& declared,
                             ObjectShape* object) {
  const OwnKeywords& keywords = document_.OwnKeywordsOf(node);
  if (ListedNames(keywords)) return false;  // the names are declared
  const std::vector<Shape>* shapes = document_.Read(document_.Intern({keywords.names}));
  const StringShape* own = shapes != nullptr && shapes->size() == 1 && (*shapes)[0].string
                               ? &*(*shapes)[0].string
                               : nullptr;
  if (own != nullptr && !own->pattern && own->min == 0 && !own->max) return true;
  if (own == nullptr || object->names) {
    document_.LeaveOut(
        node, "propertyNames",
        own == nullptr ? "is supported only with an enum, one pattern, one format or length limits"
                       : "cannot be combined with another set of names");
    return true;
  }
  if (own->pattern) return RestrictNames(*own->pattern, declared, object);
  return RestrictNames(AnyText(own->min, own->max), declared, object);
}

// Sets the pattern and the schema of undeclared names. With patternProperties, only names that
// match the pattern are generated, although the schema may allow others.
void ShapeBuilder::SetOtherNames(const std::vector<std::string>& declared, ObjectShape* object) {
  Nodes nodes;
  const bool any_closed = std::ranges::any_of(nodes_, [&](const Node* node) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    return keywords.additional != nullptr && keywords.additional->is_false() &&
           keywords.pattern_properties.empty() && !keywords.leaves_out_patterns;
  });
  bool has_others = true;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*nodes_[n]);
    if (keywords.unevaluated != nullptr && AppliesUnevaluated(n, "unevaluatedProperties")) {
      const bool evaluated = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* other) {
        const OwnKeywords& other_keywords = document_.OwnKeywordsOf(*other);
        return other_keywords.additional != nullptr || !other_keywords.pattern_properties.empty();
      });
      if (!evaluated) nodes.push_back(keywords.unevaluated);
    }
    if (keywords.leaves_out_patterns) {
      if (keywords.additional != nullptr) {
        document_.ListUnenforced(*nodes_[n], "additionalProperties");
      }
    } else if (keywords.pattern_properties.empty()) {
      if (keywords.additional != nullptr) nodes.push_back(keywords.additional);
    } else if (any_closed) {
      // Undeclared names are forbidden, so the pattern allows no more names.
    } else if (keywords.pattern_properties.size() > 1 || object->names) {
      document_.LeaveOut(*nodes_[n], "patternProperties",
                         object->names ? "cannot be combined with another set of names"
                                       : "is supported only with one expression");
      if (keywords.additional != nullptr) {
        document_.ListUnenforced(*nodes_[n], "additionalProperties");
      }
    } else {
      has_others &= RestrictNames(*keywords.pattern_properties[0].first, declared, object);
      nodes.push_back(keywords.pattern_properties[0].second);
    }
    if (keywords.names != nullptr && !any_closed) {
      has_others &= ReadNames(*nodes_[n], declared, object);
    }
  }
  if (!has_others) {
    document_.rewritten_json_.push_back(std::make_unique<OrderedJson>(false));
    nodes.push_back(document_.NodeAt(*document_.rewritten_json_.back(), nodes_[0], ""));
  }
  object->additional = document_.Intern(std::move(nodes));
}

void ShapeBuilder::SetCounts(std::int64_t required, std::int64_t declared, ObjectShape* object) {
  if (object->min <= required) object->min = 0;
  if (object->min > declared) {
    document_.LeaveOut(NodeWith("minProperties"), "minProperties",
                       absl::StrCat("only ", declared,
                                    " properties are declared, and other names could be "
                                    "repeated"));
    object->min = 0;
  }
  if (declared * std::max(object->min, object->max.value_or(0)) <= kMaxPropertyStates) return;
  const auto leave_out = [&](const char* keyword) {
    document_.LeaveOut(NodeWith(keyword), keyword,
                       absl::StrCat("cannot be enforced with ", declared,
                                    " declared properties, because counting them needs more than ",
                                    kMaxPropertyStates, " states"));
  };
  if (object->min > 0) leave_out("minProperties");
  if (object->max) leave_out("maxProperties");
  object->min = 0;
  object->max.reset();
}

void ShapeBuilder::AddObject(Shape* shape) {
  ObjectShape object{.properties = {}, .additional = {}, .names = {}, .max = {}};
  for (const Node* node : nodes_) {
    const OwnKeywords& keywords = document_.OwnKeywordsOf(*node);
    object.min = std::max(object.min, keywords.min_properties);
    object.max = SmallerLimit(object.max, keywords.max_properties);
  }
  const std::vector<std::string> declared = DeclaredNames();
  if (declared.size() > kMaxSchemaProperties) {
    return document_.Refuse(
        NodeWith("properties"), "properties",
        absl::StrCat("declares ", declared.size(), " names, the limit is ", kMaxSchemaProperties));
  }
  std::int64_t required = 0;
  for (const std::string& name : declared) {
    object.properties.push_back(PropertyNamed(name));
    required += object.properties.back().required;
  }
  SetOtherNames(declared, &object);
  if (object.max && *object.max < std::max(required, object.min)) return;
  SetCounts(required, static_cast<std::int64_t>(declared.size()), &object);
  shape->object = std::move(object);
}

}  // namespace quire::engine
