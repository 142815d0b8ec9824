#pragma once

// Reads a JSON Schema into shapes that a grammar can enforce exactly, or says why it cannot: every
// keyword is enforced, rewritten, an annotation, or a reason to refuse the schema
// (docs/structured_output.md has the table). With UnenforcedPolicy::kAnnotate a keyword that cannot
// be enforced is left out and listed instead; limits and malformed keywords are still refused.
//
// Place:      above regex and number_grammar; below schema_grammar, which writes what is read here.
// Invariants: a schema is the intersection of a list of nodes of the document, named by a SchemaId;
//             references and allOf add nodes to it, anyOf and its kin multiply its shapes. So equal
//             intersections, also recursive ones, are one SchemaId, and there are finitely many.
//             Nothing is fetched. Reading takes at most kMaxSchemaSteps, and calls itself at most
//             kMaxSchemaNesting deep, whatever references lead to; what is kept is in proportion to
//             the document and the steps.
// Threads:    one at a time.
// Lifetime:   keeps the document.

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/constraint.h"
#include "engine/constraint/multiples.h"
#include "engine/constraint/number_grammar.h"
#include "engine/constraint/regex.h"

namespace quire::engine {

using OrderedJson = nlohmann::ordered_json;

inline constexpr int kMaxSchemaDepth = 128;
inline constexpr std::size_t kMaxSchemaMembers = 4096;    // of one object of the document
inline constexpr std::size_t kMaxSchemaProperties = 512;  // that one schema declares
inline constexpr std::size_t kMaxSchemaAnchors = 256;
inline constexpr int kMaxSchemaNesting = 256;             // of references, branches and values
inline constexpr std::int64_t kMaxSchemaSteps = 8 << 20;  // names, values and nodes looked at
inline constexpr std::size_t kMaxSchemaReasons = 20;
inline constexpr std::size_t kMaxUnenforcedKeywords = 256;    // of one constraint
inline constexpr std::size_t kMaxUnenforcedBytes = 16 << 10;  // of their pointers

// Whether a keyword says nothing of a value.
bool IsSchemaAnnotation(absl::string_view keyword);

// Why a schema is refused.
struct SchemaReason {
  std::string pointer;  // JSON pointer to the keyword
  std::string keyword;
  std::string text;
};

// BAD_CONSTRAINT, stage `compile`, with `pointer` and `keyword` of the first of them. REQUIRES:
// there is one.
absl::Status SchemaRefused(const std::vector<SchemaReason>& reasons);

// A name as a step of a JSON pointer, with the slash before it.
std::string PointerStep(absl::string_view name);

// A JSON pointer as a URI fragment (RFC 6901, section 6), with the # before it.
std::string PointerFragment(absl::string_view pointer);

enum class SchemaId : std::int32_t {};

struct StringShape {
  std::int64_t min = 0;  // in code points
  std::optional<std::int64_t> max;
  std::shared_ptr<const Regex> pattern;  // its texts have the lengths above; null: none
};

struct NumberShape {
  bool integers = false;
  NumberRange range;
  std::optional<MultipleOf> multiple;
  std::shared_ptr<const NumberAutomaton> multiples;  // within the range; null: no multiple
};

// All arrays without equal items, where the items are from a finite set.
struct UniqueItems {
  struct State {
    // Pairs of an item (an index into `values`) and the next state, which has a higher index.
    std::vector<std::pair<std::size_t, std::size_t>> moves;
    bool may_end = false;
  };
  std::vector<OrderedJson> values;
  std::vector<State> states;  // the first one is the start
};

struct ArrayShape {
  std::vector<SchemaId> prefix;
  SchemaId items;  // behind the prefix
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
  std::shared_ptr<const UniqueItems> unique;  // all that the above allows; null: items may be equal
};

struct ObjectShape {
  struct Property {
    std::string name;
    SchemaId schema;
    bool required = false;
  };
  std::vector<Property> properties;    // in the order in which they are produced
  SchemaId additional;                 // of all other names
  std::shared_ptr<const Regex> names;  // other names are of this language; null: any name
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
};

// A set of values: those that are listed, and those of any of the kinds.
struct Shape {
  std::vector<OrderedJson> values;
  bool null = false, boolean = false;
  std::optional<NumberShape> number;
  std::optional<StringShape> string;
  std::optional<ArrayShape> array;
  std::optional<ObjectShape> object;
};

class SchemaDocument {
 public:
  // BAD_CONSTRAINT for text that is no JSON, nested too deep or with too many members, or a schema
  // that is no object or boolean.
  static absl::StatusOr<std::unique_ptr<SchemaDocument>> Parse(absl::string_view text);

  ~SchemaDocument();

  // Reads everything that the root reaches. BAD_CONSTRAINT with `pointer` and `keyword` of the
  // first reason and `reasons` of all, at most kMaxSchemaReasons. What they repeat of the document
  // is cut.
  absl::Status Check(UnenforcedPolicy policy = UnenforcedPolicy::kRefuse);

  // After Check. The values of the schema are those of any of its shapes; none: there is no value.
  SchemaId root() const { return root_; }
  const std::vector<Shape>& ShapesOf(SchemaId id) const;
  // Whether the schema has a value at all.
  bool HasValue(SchemaId id) const;

  const std::vector<SchemaReason>& reasons() const { return reasons_; }

  // After Check with kAnnotate: pointers to the keywords that are not enforced, as URI fragments. A
  // `$ref` to one of them finds it.
  const std::vector<std::string>& unenforced() const { return unenforced_; }

 private:
  struct Node;
  struct Local;
  using Nodes = std::vector<const Node*>;
  friend class NodeReader;  // of schema_nodes.h, as the next
  friend class ShapeBuilder;

  SchemaDocument();

  const Node* NodeAt(const OrderedJson& json, const Node* parent, std::string path);
  // Steps that are about to be taken. False: there are none left, and the schema is refused.
  bool Spend(std::int64_t steps);
  bool is_spent() const { return steps_left_ < 0; }
  // False: one more level is too much, and the schema is refused.
  bool Descend(const Node* node);
  const Node* Resolve(const Node& from, absl::string_view reference);
  const Local& LocalOf(const Node& node);
  SchemaId Intern(Nodes nodes);
  // Null: it is being read, or needs a node that is, or the schema is refused.
  const std::vector<Shape>* Read(SchemaId id);
  std::vector<Shape> ReadShapes(Nodes seeds);
  // The ways in which values can meet all of the node: for each, the nodes whose own keywords they
  // meet.
  std::vector<Nodes> Expand(const Node& node, std::vector<const Node*>* path);
  // Each of `ways` with each of `more`.
  std::vector<Nodes> Combined(const Node& node, const std::vector<Nodes>& ways,
                              const std::vector<Nodes>& more);
  void CheckDisjoint(const Node& node, const std::vector<const Node*>& branches);
  bool Disjoint(const Shape& a, const Shape& b, int depth);
  bool ObjectsDisjoint(const ObjectShape& a, const ObjectShape& b, int depth);
  bool Accepts(SchemaId id, const OrderedJson& value);
  bool Accepts(const Shape& shape, const OrderedJson& value);
  bool AcceptsArray(const ArrayShape& shape, const OrderedJson& value);
  bool AcceptsObject(const ObjectShape& shape, const OrderedJson& value);
  bool AcceptsString(const StringShape& shape, const OrderedJson& value);
  // Adds the values of the schema to `values`, where equal values are one. Returns false if they
  // are more than `max` or not finitely many.
  bool AddValues(SchemaId id, std::size_t max, std::map<nlohmann::json, OrderedJson>* values);
  bool Matches(const Regex& regex, const std::string& text);
  void FindValues();
  void IndexAnchors(const OrderedJson& json, std::string* pointer);
  void Refuse(const Node& node, absl::string_view keyword, std::string text);
  // Handles a keyword that cannot be enforced exactly: with kAnnotate it is listed, and the caller
  // leaves it out; with kRefuse the schema is refused.
  void LeaveOut(const Node& node, absl::string_view keyword, std::string why);
  // With kAnnotate, lists the keyword as not enforced. With kRefuse, does nothing.
  void Note(const Node& node, absl::string_view keyword);

  OrderedJson json_;
  bool references_stand_alone_ = false;  // up to draft 7 nothing beside a $ref counts
  std::string root_uri_;
  // By name; null: it stands at two places.
  std::map<std::string, std::pair<const OrderedJson*, std::string>, std::less<>> anchors_;
  std::map<const OrderedJson*, std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<OrderedJson>> made_;  // nodes that rewriting made
  std::map<Nodes, SchemaId> ids_;
  std::vector<Nodes> schemas_;                               // by SchemaId
  std::vector<std::unique_ptr<std::vector<Shape>>> shapes_;  // by SchemaId; null: not read
  std::vector<bool> has_value_;                              // by SchemaId
  std::set<SchemaId> reading_;                               // within Read
  bool is_incomplete_ = false;  // what is being read needs what is being read around it
  std::vector<SchemaReason> reasons_;
  UnenforcedPolicy policy_ = UnenforcedPolicy::kRefuse;
  std::vector<std::string> unenforced_;
  std::set<std::string> unenforced_set_;  // the same
  std::size_t unenforced_bytes_ = 0;
  std::int64_t steps_left_ = kMaxSchemaSteps;
  int nesting_ = 0;
  SchemaId root_{};
};

}  // namespace quire::engine
