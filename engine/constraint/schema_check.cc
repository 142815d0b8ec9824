#include "engine/constraint/schema_check.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/thread_priority.h"
#include "base/utf8.h"
#include "engine/constraint/schema_nodes.h"

namespace quire::engine {

namespace {

constexpr std::size_t kMaxSchemas = 8192;       // per document, including intersections
constexpr std::size_t kMaxAlternatives = 1024;  // alternatives of one schema
constexpr std::size_t kMaxQuoted = 200;         // bytes of the document that one reason quotes
constexpr std::size_t kMaxReasons = 1200;       // total size of all reasons in bytes
// Number of steps charged for a schema or a shape, because these also use memory.
constexpr std::int64_t kStepsOfSchema = 64;
constexpr std::int64_t kStepsUntilYield = 1 << 12;  // about 0.1 ms

// Returns the reason why the text is too large to be parsed, or "" if it is within the limits. The
// limits bound the recursion over containers and linear searches for members.
std::string FindSizeError(absl::string_view text) {
  std::vector<std::size_t> members;  // number of members so far, per open container
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      members.push_back(0);
      if (members.size() > kMaxSchemaDepth) {
        return absl::StrCat("is nested deeper than ", kMaxSchemaDepth);
      }
    } else if ((c == ']' || c == '}') && !members.empty()) {
      members.pop_back();
    } else if (c == ':' && !members.empty() && ++members.back() > kMaxSchemaMembers) {
      return absl::StrCat("has an object of more than ", kMaxSchemaMembers, " members");
    }
  }
  return "";
}

// Decodes a step of a JSON pointer in a URI: first escapes such as %41, then ~0 and ~1.
std::string DecodedStep(absl::string_view step) {
  std::string out;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '%' && i + 2 < step.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(step[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(step[i + 2]))) {
      const std::string digits(step.substr(i + 1, 2));
      out.push_back(static_cast<char>(std::stoi(digits, nullptr, 16)));
      i += 2;
    } else {
      out.push_back(step[i]);
    }
  }
  std::string plain;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i] == '~' && i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1')) {
      plain.push_back(out[++i] == '0' ? '~' : '/');
    } else {
      plain.push_back(out[i]);
    }
  }
  return plain;
}

}  // namespace

absl::Status SchemaError(const std::vector<SchemaReason>& reasons) {
  std::string all;
  for (const SchemaReason& reason : reasons) {
    absl::StrAppend(&all, all.empty() ? "" : "; ", reason.pointer, ": ", reason.text);
  }
  all = Shorten(all, kMaxReasons);
  return WithReason(absl::InvalidArgumentError(absl::StrCat("constraint.json_schema: ", all)),
                    Reason::kBadConstraint,
                    {{"stage", "compile"},
                     {"pointer", reasons[0].pointer},
                     {"keyword", reasons[0].keyword},
                     {"reasons", all}});
}

std::string PointerStep(absl::string_view name) {
  return absl::StrCat("/", absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}}));
}

std::string PointerFragment(absl::string_view pointer) {
  constexpr absl::string_view kPlain = "/~$-._!&'()*+,;=:@";  // a subset of RFC 3986, section 3.5
  std::string out = "#";
  for (const char c : pointer) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains(kPlain, c)) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

const ObjectShape::Property* ObjectShape::Find(absl::string_view name) const {
  const auto found = std::ranges::find(properties, name, &Property::name);
  return found == properties.end() ? nullptr : &*found;
}

SchemaDocument::SchemaDocument() = default;

SchemaDocument::~SchemaDocument() = default;

absl::StatusOr<std::unique_ptr<SchemaDocument>> SchemaDocument::Parse(absl::string_view text) {
  const auto bad = [](absl::string_view why) {
    return BadConstraint("compile", absl::StrCat("constraint.json_schema: ", why));
  };
  if (FirstInvalidUtf8(text)) return bad("is not UTF-8");
  if (const std::string why = FindSizeError(text); !why.empty()) return bad(why);
  std::unique_ptr<SchemaDocument> document(new SchemaDocument);
  document->json_ = OrderedJson::parse(text.begin(), text.end(), nullptr, false);
  const OrderedJson& json = document->json_;
  if (json.is_discarded()) return bad("is not JSON");
  if (!json.is_object() && !json.is_boolean()) return bad("is neither an object nor a boolean");
  if (json.is_object()) {
    if (const auto dialect = json.find("$schema"); dialect != json.end()) {
      const std::string name = dialect->is_string() ? dialect->get<std::string>() : "";
      document->ignores_ref_siblings_ = absl::StrContains(name, "draft-04") ||
                                        absl::StrContains(name, "draft-06") ||
                                        absl::StrContains(name, "draft-07");
    }
    for (const char* key : {"$id", "id"}) {
      if (const auto id = json.find(key); id != json.end() && id->is_string()) {
        document->root_uri_ = id->get<std::string>();
      }
    }
  }
  std::string pointer;
  document->IndexAnchors(json, &pointer);
  if (document->anchors_.size() > kMaxSchemaAnchors) {
    return bad(absl::StrCat("has more than ", kMaxSchemaAnchors, " anchors"));
  }
  return document;
}

void SchemaDocument::IndexAnchors(const OrderedJson& json, std::string* pointer) {
  if (anchors_.size() > kMaxSchemaAnchors) return;
  const std::size_t size = pointer->size();
  if (json.is_object()) {
    if (const auto anchor = json.find("$anchor"); anchor != json.end() && anchor->is_string()) {
      // An `$anchor` inside a `const` is indexed too, although it is not an anchor. If a name
      // occurs twice, neither node is used.
      const auto [at, first] =
          anchors_.emplace(anchor->get<std::string>(), std::pair(&json, *pointer));
      if (!first) at->second.first = nullptr;
    }
    for (const auto& [key, value] : json.items()) {
      absl::StrAppend(pointer, PointerStep(key));
      IndexAnchors(value, pointer);
      pointer->resize(size);
    }
  } else if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); ++i) {
      absl::StrAppend(pointer, "/", i);
      IndexAnchors(json[i], pointer);
      pointer->resize(size);
    }
  }
}

absl::Status SchemaDocument::Check(UnenforcedPolicy policy) {
  policy_ = policy;
  root_ = Intern({NodeAt(json_, nullptr, "")});
  // Reading a schema may append more schemas.
  for (std::size_t i = 0; i < schemas_.size() && reasons_.size() < kMaxSchemaReasons && !is_spent();
       ++i) {
    if (Read(static_cast<SchemaId>(i)) == nullptr && reasons_.empty()) {
      Refuse(*schemas_[i][0], "", "the schema refers to itself in a way that cannot be resolved");
    }
  }
  if (!reasons_.empty()) return SchemaError(reasons_);
  FindValues();
  if (!HasValue(root_)) {
    return SchemaError({{.pointer = "", .keyword = "", .text = "no value is valid"}});
  }
  return absl::OkStatus();
}

void SchemaDocument::Refuse(const Node& node, absl::string_view keyword, std::string text) {
  if (reasons_.size() >= kMaxSchemaReasons) return;
  const std::string pointer = absl::StrCat(node.Pointer(), keyword.empty() ? "" : "/", keyword);
  // The pointer may be as long as the document.
  steps_left_ -= static_cast<std::int64_t>(pointer.size() / 16);
  SchemaReason reason{.pointer = Shorten(pointer, kMaxQuoted),
                      .keyword = Shorten(keyword, kMaxQuoted),
                      .text = Shorten(text, 2 * kMaxQuoted)};
  for (const SchemaReason& other : reasons_) {
    if (other.pointer == reason.pointer && other.text == reason.text) return;
  }
  reasons_.push_back(std::move(reason));
}

void SchemaDocument::LeaveOut(const Node& node, absl::string_view keyword, std::string why) {
  if (policy_ == UnenforcedPolicy::kRefuse) return Refuse(node, keyword, std::move(why));
  ListUnenforced(node, keyword);
}

void SchemaDocument::ListUnenforced(const Node& node, absl::string_view keyword) {
  if (policy_ == UnenforcedPolicy::kRefuse) return;
  std::string fragment = PointerFragment(absl::StrCat(node.Pointer(), PointerStep(keyword)));
  if (!Spend(static_cast<std::int64_t>(8 + fragment.size() / 4))) return;
  const auto [entry, added] = unenforced_set_.insert(std::move(fragment));
  if (!added) return;
  unenforced_bytes_ += entry->size();
  if (unenforced_.size() == kMaxUnenforcedKeywords || unenforced_bytes_ > kMaxUnenforcedBytes) {
    return Refuse(
        node, keyword,
        absl::StrCat("cannot be enforced, and the list of such keywords exceeds ",
                     kMaxUnenforcedKeywords, " entries or ", kMaxUnenforcedBytes, " bytes"));
  }
  unenforced_.push_back(*entry);
}

std::string SchemaDocument::Node::Pointer() const {
  std::string pointer;
  for (const Node* node = this; node != nullptr; node = node->parent) {
    pointer.insert(0, node->path);
  }
  return pointer;
}

const SchemaDocument::Node* SchemaDocument::NodeAt(const OrderedJson& json, const Node* parent,
                                                   std::string path) {
  std::unique_ptr<Node>& node = nodes_[&json];
  if (node == nullptr) {
    node = std::make_unique<Node>(Node{&json, parent, std::move(path), nullptr});
  }
  return node.get();
}

bool SchemaDocument::Spend(std::int64_t steps) {
  if (!is_spent()) {
    const std::int64_t before = std::exchange(steps_left_, steps_left_ - steps);
    if (before / kStepsUntilYield != steps_left_ / kStepsUntilYield) YieldAtLowPriority();
    if (is_spent()) {
      Refuse(*nodes_.at(&json_), "",
             absl::StrCat("reading the schema exceeds ", kMaxSchemaSteps, " steps"));
    }
  }
  return !is_spent();
}

bool SchemaDocument::Descend(const Node* node) {
  if (nesting_ < kMaxSchemaNesting) {
    ++nesting_;
    return true;
  }
  Refuse(node == nullptr ? *nodes_.at(&json_) : *node, "",
         absl::StrCat("references, alternatives and values are nested more than ",
                      kMaxSchemaNesting, " deep"));
  return false;
}

const SchemaDocument::Node* SchemaDocument::Resolve(absl::string_view reference) {
  if (!root_uri_.empty()) {
    const absl::string_view uri(root_uri_);
    absl::ConsumePrefix(&reference, absl::StripSuffix(uri, "#"));
  }
  if (reference.empty()) return NodeAt(json_, nullptr, "");
  if (!absl::ConsumePrefix(&reference, "#")) return nullptr;
  if (reference.empty()) return NodeAt(json_, nullptr, "");
  if (reference[0] != '/') {
    const auto found = anchors_.find(std::string(reference));
    if (found == anchors_.end() || found->second.first == nullptr) return nullptr;
    return NodeAt(*found->second.first, nullptr, found->second.second);
  }
  const OrderedJson* at = &json_;
  std::string pointer;
  while (absl::ConsumePrefix(&reference, "/")) {
    const absl::string_view raw = reference.substr(0, reference.find('/'));
    reference.remove_prefix(raw.size());
    const std::string step = DecodedStep(raw);
    absl::StrAppend(&pointer, PointerStep(step));
    if (at->is_object()) {
      const auto next = at->find(step);
      if (next == at->end()) return nullptr;
      at = &*next;
    } else if (at->is_array()) {
      const bool index = !step.empty() && step.size() < 10 &&
                         std::all_of(step.begin(), step.end(),
                                     [](unsigned char c) { return absl::ascii_isdigit(c); });
      if (!index || std::stoul(step) >= at->size()) return nullptr;
      at = &(*at)[std::stoul(step)];
    } else {
      return nullptr;
    }
  }
  return NodeAt(*at, nullptr, std::move(pointer));
}

const SchemaDocument::OwnKeywords& SchemaDocument::OwnKeywordsOf(const Node& node) {
  Node& own = *nodes_.at(node.json);
  if (own.keywords == nullptr) {
    // Reading can reach this node again through oneOf. Expand then returns without recursing.
    own.is_being_read = true;
    own.keywords = NodeReader(this, own).Read();
    own.is_being_read = false;
  }
  return *own.keywords;
}

SchemaId SchemaDocument::Intern(Nodes nodes) {
  // A schema that is `true` or {} allows everything.
  std::erase_if(nodes, [](const Node* node) {
    return (node->json->is_boolean() && node->json->get<bool>()) ||
           (node->json->is_object() && node->json->empty());
  });
  Nodes distinct;
  std::set<const Node*> known;
  for (const Node* node : nodes) {
    if (known.insert(node).second) distinct.push_back(node);
  }
  Spend(static_cast<std::int64_t>(4 * nodes.size()));
  const auto id = static_cast<SchemaId>(schemas_.size());
  const auto [entry, added] = ids_.emplace(distinct, id);
  if (!added) return entry->second;
  if (schemas_.size() >= kMaxSchemas) {
    Refuse(*distinct[0], "",
           absl::StrCat("there are more than ", kMaxSchemas, " intersections of schemas"));
    return SchemaId{0};
  }
  schemas_.push_back(std::move(distinct));
  shapes_.push_back(nullptr);
  return id;
}

const std::vector<Shape>& SchemaDocument::ShapesOf(SchemaId id) const {
  const auto& shapes = shapes_[static_cast<std::size_t>(id)];
  QUIRE_CHECK(shapes != nullptr);
  return *shapes;
}

bool SchemaDocument::HasValue(SchemaId id) const {
  return has_value_[static_cast<std::size_t>(id)];
}

const std::vector<Shape>* SchemaDocument::Read(SchemaId id) {
  const auto at = static_cast<std::size_t>(id);
  if (shapes_[at] != nullptr) return shapes_[at].get();
  if (schemas_being_read_.contains(id) || !Spend(kStepsOfSchema) ||
      !Descend(schemas_[at].empty() ? nullptr : schemas_[at][0])) {
    return nullptr;
  }
  schemas_being_read_.insert(id);
  const bool was_incomplete = std::exchange(is_incomplete_, false);
  std::vector<Shape> shapes = ReadShapes(schemas_[at]);
  if (!is_incomplete_) shapes_[at] = std::make_unique<std::vector<Shape>>(std::move(shapes));
  is_incomplete_ = was_incomplete;
  schemas_being_read_.erase(id);
  --nesting_;
  return shapes_[at].get();
}

std::vector<Shape> SchemaDocument::ReadShapes(Nodes seeds) {
  std::vector<Nodes> alternatives = {{}};
  for (const Node* seed : seeds) {
    std::vector<const Node*> path;
    alternatives = Combine(*seed, alternatives, Expand(*seed, &path));
  }
  std::vector<Shape> shapes;
  for (const Nodes& alternative : alternatives) {
    if (!Spend(kStepsOfSchema + static_cast<std::int64_t>(alternative.size()))) break;
    if (auto shape = ShapeBuilder(this, alternative, seeds.size() == 1).Build()) {
      shapes.push_back(*std::move(shape));
    }
  }
  return shapes;
}

std::vector<SchemaDocument::Nodes> SchemaDocument::Combine(const Node& node,
                                                           const std::vector<Nodes>& alternatives,
                                                           const std::vector<Nodes>& others) {
  if (alternatives.size() * others.size() > kMaxAlternatives) {
    Refuse(node, "",
           absl::StrCat("there are more than ", kMaxAlternatives, " combinations of alternatives"));
    return {};
  }
  std::vector<Nodes> both;
  for (const Nodes& alternative : alternatives) {
    for (const Nodes& next : others) {
      if (!Spend(1 + static_cast<std::int64_t>(alternative.size() + next.size()))) return {};
      both.push_back(alternative);
      both.back().insert(both.back().end(), next.begin(), next.end());
    }
  }
  return both;
}

std::vector<SchemaDocument::Nodes> SchemaDocument::Expand(const Node& node,
                                                          std::vector<const Node*>* path) {
  if (std::find(path->begin(), path->end(), &node) != path->end()) {
    Refuse(node, "$ref", "refers to itself without an enclosing object or array in between");
    return {};
  }
  if (node.is_being_read) {
    is_incomplete_ = true;
    return {};
  }
  if (!Spend(1) || !Descend(&node)) return {};
  path->push_back(&node);
  const OwnKeywords& keywords = OwnKeywordsOf(node);
  std::vector<Nodes> alternatives = {{&node}};
  for (const Node* other : keywords.all)
    alternatives = Combine(node, alternatives, Expand(*other, path));
  for (const auto& branches : keywords.unions) {
    std::vector<Nodes> any;
    for (const Node* branch : branches) {
      for (Nodes& alternative : Expand(*branch, path)) any.push_back(std::move(alternative));
    }
    alternatives = Combine(node, alternatives, any);
  }
  path->pop_back();
  --nesting_;
  return alternatives;
}

bool SchemaDocument::Accepts(SchemaId id, const OrderedJson& value) {
  if (!Descend(nullptr)) return false;
  const std::vector<Shape>* shapes = Read(id);
  is_incomplete_ |= shapes == nullptr;
  const bool accepts =
      shapes != nullptr && std::any_of(shapes->begin(), shapes->end(),
                                       [&](const Shape& shape) { return Accepts(shape, value); });
  --nesting_;
  return accepts;
}

namespace {

bool AcceptsNumber(const NumberShape& shape, const OrderedJson& value) {
  const auto decimal = Decimal::Parse(value.dump());
  if (!decimal.ok() || !shape.range.Contains(*decimal)) return false;
  if (shape.integers && !decimal->is_integer()) return false;
  return !shape.multiple || shape.multiple->Contains(*decimal);
}

}  // namespace

bool SchemaDocument::Matches(const Regex& regex, const std::string& text) {
  if (is_spent()) return false;
  std::int64_t steps = steps_left_;
  const std::optional<bool> matches = engine::Matches(regex, text, &steps);
  return Spend(steps_left_ - steps) && *matches;
}

bool SchemaDocument::AcceptsString(const StringShape& shape, const OrderedJson& value) {
  const auto& text = value.get_ref<const std::string&>();
  const std::int64_t length = CountUtf8Characters(text);
  return length >= shape.min && (!shape.max || length <= *shape.max) &&
         (!shape.pattern || Matches(*shape.pattern, text));
}

bool SchemaDocument::AcceptsArray(const ArrayShape& shape, const OrderedJson& value) {
  const auto size = static_cast<std::int64_t>(value.size());
  if (size < shape.min || (shape.max && size > *shape.max)) return false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (!Accepts(i < shape.prefix.size() ? shape.prefix[i] : shape.items, value[i])) return false;
  }
  if (shape.unique == nullptr) return true;
  std::set<nlohmann::json> distinct;
  return std::ranges::all_of(value,
                             [&](const OrderedJson& item) { return distinct.insert(item).second; });
}

bool SchemaDocument::AddValues(SchemaId id, std::size_t max,
                               std::map<nlohmann::json, OrderedJson>* values) {
  const std::vector<Shape>* shapes = Read(id);
  if (shapes == nullptr) return false;  // usually an array that contains itself
  const auto add = [&](const OrderedJson& value) {
    values->emplace(value, value);
    return Spend(16) && values->size() <= max;
  };
  for (const Shape& shape : *shapes) {
    if (shape.string || shape.array || shape.object) return false;
    if (!std::ranges::all_of(shape.values, add) || (shape.null && !add(nullptr))) return false;
    if (shape.boolean && !(add(false) && add(true))) return false;
    if (!shape.number) continue;
    const NumberRange& range = shape.number->range;
    // Bounds have few digits, so that their sums and differences do not overflow.
    const auto is_small = [](const std::optional<Bound>& bound) {
      return bound && bound->value.whole.size() <= 15;
    };
    if (!shape.number->integers || !is_small(range.low) || !is_small(range.high)) return false;
    const auto whole = [](const Decimal& bound) {
      return std::stoll(bound.whole) * (bound.negative ? -1 : 1);
    };
    const std::int64_t first = whole(range.low->value) - 1, last = whole(range.high->value) + 1;
    if (last - first > static_cast<std::int64_t>(2 * max + 2)) return false;
    for (std::int64_t i = first; i <= last; ++i) {
      if (!Spend(16) || (AcceptsNumber(*shape.number, i) && !add(i))) return false;
    }
  }
  return true;
}

bool SchemaDocument::AcceptsObject(const ObjectShape& shape, const OrderedJson& value) {
  const auto size = static_cast<std::int64_t>(value.size());
  if (size < shape.min || (shape.max && size > *shape.max)) return false;
  // The cost of looking up each name of one side among the names of the other side.
  if (!Spend(static_cast<std::int64_t>(2 * value.size() * shape.properties.size()))) return false;
  for (const auto& property : shape.properties) {
    if (property.required && !value.contains(property.name)) return false;
  }
  for (const auto& [name, member] : value.items()) {
    if (const ObjectShape::Property* const declared = shape.Find(name)) {
      if (!Accepts(declared->schema, member)) return false;
    } else if ((shape.names && !Matches(*shape.names, name)) ||
               !Accepts(shape.additional, member)) {
      return false;
    }
  }
  return true;
}

bool SchemaDocument::Accepts(const Shape& shape, const OrderedJson& value) {
  if (!Spend(1 + static_cast<std::int64_t>(shape.values.size()))) return false;
  if (std::find(shape.values.begin(), shape.values.end(), value) != shape.values.end()) return true;
  if (value.is_null()) return shape.null;
  if (value.is_boolean()) return shape.boolean;
  if (value.is_number()) return shape.number && AcceptsNumber(*shape.number, value);
  if (value.is_string()) return shape.string && AcceptsString(*shape.string, value);
  if (value.is_array()) return shape.array && AcceptsArray(*shape.array, value);
  return shape.object && AcceptsObject(*shape.object, value);
}

// Returns true only if it is certain that no value satisfies both shapes.
bool SchemaDocument::AreDisjoint(const Shape& a, const Shape& b, int depth) {
  if (!Spend(1)) return false;
  for (const OrderedJson& value : a.values) {
    if (Accepts(b, value)) return false;
  }
  for (const OrderedJson& value : b.values) {
    if (Accepts(a, value)) return false;
  }
  if ((a.null && b.null) || (a.boolean && b.boolean) || (a.string && b.string) ||
      (a.array && b.array)) {
    return false;
  }
  if (a.number && b.number) {
    const auto below = [](const NumberRange& x, const NumberRange& y) {
      return x.high && y.low && NumberRange{.low = y.low, .high = x.high}.empty();
    };
    if (!below(a.number->range, b.number->range) && !below(b.number->range, a.number->range)) {
      return false;
    }
  }
  return !a.object || !b.object || AreObjectsDisjoint(*a.object, *b.object, depth);
}

bool SchemaDocument::AreObjectsDisjoint(const ObjectShape& a, const ObjectShape& b, int depth) {
  constexpr int kMaxDepth = 4;
  const auto never = [&](SchemaId id) {
    const Nodes& nodes = schemas_[static_cast<std::size_t>(id)];
    return std::ranges::any_of(nodes, &Node::is_false);
  };
  if (!Spend(static_cast<std::int64_t>(2 * a.properties.size() * b.properties.size())))
    return false;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& property : one->properties) {
      if (!property.required) continue;
      const ObjectShape::Property* const match = other->Find(property.name);
      if (match == nullptr) {
        if (never(other->additional)) return true;
        continue;
      }
      if (never(match->schema)) return true;
      if (!match->required || depth >= kMaxDepth) continue;  // unknown
      const std::vector<Shape>* ours = Read(property.schema);
      const std::vector<Shape>* theirs = Read(match->schema);
      if (ours == nullptr || theirs == nullptr) continue;
      const bool is_disjoint = std::all_of(ours->begin(), ours->end(), [&](const Shape& x) {
        return std::all_of(theirs->begin(), theirs->end(),
                           [&](const Shape& y) { return AreDisjoint(x, y, depth + 1); });
      });
      if (is_disjoint) return true;
    }
  }
  return false;
}

void SchemaDocument::CheckDisjoint(const Node& node, const std::vector<const Node*>& branches) {
  const auto leave_out = [&](std::size_t i, std::size_t j) {
    LeaveOut(node, "oneOf",
             absl::StrCat("a value may match both branch ", i, " and branch ", j,
                          "; write anyOf, or distinguish them by a required property with const"));
  };
  const bool was_incomplete = std::exchange(is_incomplete_, false);
  std::vector<const std::vector<Shape>*> shapes;
  shapes.reserve(branches.size());
  for (const Node* branch : branches) shapes.push_back(Read(Intern({branch})));
  const auto are_disjoint = [&](std::size_t i, std::size_t j) {
    if (!Spend(1) || shapes[i] == nullptr || shapes[j] == nullptr) return false;
    return std::all_of(shapes[i]->begin(), shapes[i]->end(), [&](const Shape& a) {
      return std::all_of(shapes[j]->begin(), shapes[j]->end(),
                         [&](const Shape& b) { return AreDisjoint(a, b, 0) && !is_incomplete_; });
    });
  };
  bool is_ok = true;
  for (std::size_t i = 0; i < branches.size() && is_ok; ++i) {
    for (std::size_t j = i + 1; j < branches.size() && is_ok; ++j) {
      is_ok = are_disjoint(i, j);
      if (!is_ok) leave_out(i, j);
    }
  }
  is_incomplete_ = was_incomplete;
}

// Computes a least fixed point: a schema has a value if its parts have values. A schema that only
// contains itself has none.
void SchemaDocument::FindValues() {
  has_value_.assign(schemas_.size(), false);
  const auto shape_has_value = [&](const Shape& shape) {
    if (!shape.values.empty() || shape.null || shape.boolean || shape.number || shape.string) {
      return true;
    }
    if (shape.array) {
      const ArrayShape& array = *shape.array;
      bool has_all_items = true;
      if (array.unique != nullptr) return true;
      for (std::size_t i = 0; i < static_cast<std::size_t>(array.min) && has_all_items; ++i) {
        has_all_items = HasValue(i < array.prefix.size() ? array.prefix[i] : array.items);
        if (i >= array.prefix.size()) break;
      }
      if (has_all_items) return true;
    }
    if (!shape.object) return false;
    const ObjectShape& object = *shape.object;
    std::int64_t required = 0, possible = 0;
    for (const auto& property : object.properties) {
      if (property.required && !HasValue(property.schema)) return false;
      required += property.required;
      possible += HasValue(property.schema);
    }
    return possible >= object.min && (!object.max || required <= *object.max);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < schemas_.size(); ++i) {
      if (has_value_[i]) continue;
      const std::vector<Shape>& shapes = *shapes_[i];
      if (std::any_of(shapes.begin(), shapes.end(), shape_has_value)) {
        has_value_[i] = true;
        changed = true;
      }
    }
  }
}

}  // namespace quire::engine
