#pragma once

// Reads a JSON Schema into shapes that a grammar can enforce exactly, or reports why it cannot.
// Every keyword is enforced, rewritten, ignored as an annotation, or rejected
// (docs/structured_output.md has the table). With UnenforcedPolicy::kAnnotate, keywords that cannot
// be enforced are ignored and listed. Exceeded limits and malformed keywords are still errors.
//
// Place:      above regex and number_grammar; below schema_grammar, which writes the shapes.
// Invariants: a SchemaId identifies an intersection: a list of nodes of the document, all of which
//             a value must satisfy. $ref and allOf add nodes to the list. anyOf and similar
//             keywords add alternative shapes. Equal intersections, even recursive ones, have one
//             SchemaId, so the number of intersections is finite. Other documents are not fetched.
//             Reading takes at most kMaxSchemaSteps and recurses at most kMaxSchemaNesting deep,
//             for any references. Its memory is proportional to the document and the steps.
// Threads:    one thread at a time.
// Lifetime:   owns the document.

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
inline constexpr std::size_t kMaxSchemaMembers = 4096;    // members of one object of the document
inline constexpr std::size_t kMaxSchemaProperties = 512;  // properties that one schema declares
inline constexpr std::size_t kMaxSchemaAnchors = 256;
inline constexpr int kMaxSchemaNesting = 256;  // nesting of references, branches and values
// Maximum number of names, values and nodes that are visited.
inline constexpr std::int64_t kMaxSchemaSteps = 8 << 20;
inline constexpr std::size_t kMaxSchemaReasons = 20;
inline constexpr std::size_t kMaxUnenforcedKeywords = 256;    // keywords of one constraint
inline constexpr std::size_t kMaxUnenforcedBytes = 16 << 10;  // total size of their pointers

// Returns whether the keyword is an annotation, which does not restrict values.
bool IsSchemaAnnotation(absl::string_view keyword);

// The reason why a schema is rejected.
struct SchemaReason {
  std::string pointer;  // JSON pointer to the keyword
  std::string keyword;
  std::string text;
};

// Returns BAD_CONSTRAINT, stage `compile`, with `pointer` and `keyword` of the first reason.
// REQUIRES: reasons is not empty.
absl::Status SchemaError(const std::vector<SchemaReason>& reasons);

// Returns a name as a step of a JSON pointer, including the slash before it.
std::string PointerStep(absl::string_view name);

// Returns a JSON pointer as a URI fragment (RFC 6901, section 6), including the # before it.
std::string PointerFragment(absl::string_view pointer);

enum class SchemaId : std::int32_t {};

struct StringShape {
  std::int64_t min = 0;  // in code points
  std::optional<std::int64_t> max;
  std::shared_ptr<const Regex> pattern;  // matches only strings of these lengths; null: no pattern
};

struct NumberShape {
  bool integers = false;
  NumberRange range;
  std::optional<MultipleOf> multiple;
  // Multiples within the range; null: not restricted to multiples.
  std::shared_ptr<const NumberAutomaton> multiples;
};

// All arrays whose items are distinct and from a finite set.
struct UniqueItems {
  struct State {
    // Pairs of an item (an index into `values`) and the next state, which has a higher index.
    std::vector<std::pair<std::size_t, std::size_t>> transitions;
    bool may_end = false;
  };
  std::vector<OrderedJson> values;
  std::vector<State> states;  // the first is the start state
};

struct ArrayShape {
  std::vector<SchemaId> prefix;
  SchemaId items;  // items after the prefix
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
  std::shared_ptr<const UniqueItems> unique;  // all allowed arrays; null: items may be equal
};

struct ObjectShape {
  struct Property {
    std::string name;
    SchemaId schema;
    bool required = false;
  };
  // Returns the declared property, or null.
  const Property* Find(absl::string_view name) const;

  std::vector<Property> properties;    // in output order
  SchemaId additional;                 // schema of all other names
  std::shared_ptr<const Regex> names;  // pattern of the other names; null: any name
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
};

// A set of values: the values in `values`, and the values of every kind that is set below.
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
  // Returns BAD_CONSTRAINT for text that is not JSON, is nested too deeply or has too many members,
  // and for a schema that is neither an object nor a boolean.
  static absl::StatusOr<std::unique_ptr<SchemaDocument>> Parse(absl::string_view text);

  ~SchemaDocument();

  // Reads everything that the root refers to. Returns BAD_CONSTRAINT if the schema is rejected. The
  // metadata of this error contain `pointer` and `keyword` of the first reason, and in `reasons`
  // the first kMaxSchemaReasons reasons. Long excerpts of the document are truncated.
  absl::Status Check(UnenforcedPolicy policy = UnenforcedPolicy::kRefuse);

  // Valid after Check. A schema accepts the values of each of its shapes. A schema without shapes
  // accepts no value.
  SchemaId root() const { return root_; }
  const std::vector<Shape>& ShapesOf(SchemaId id) const;
  // Returns whether the schema accepts any value.
  bool HasValue(SchemaId id) const;

  // Valid after Check with kAnnotate. Returns pointers to the keywords that are not enforced, as
  // URI fragments that a `$ref` could contain.
  const std::vector<std::string>& unenforced() const { return unenforced_; }

 private:
  struct Node;
  struct OwnKeywords;
  using Nodes = std::vector<const Node*>;
  friend class NodeReader;  // NodeReader and ShapeBuilder are in schema_nodes.h
  friend class ShapeBuilder;

  SchemaDocument();

  const Node* NodeAt(const OrderedJson& json, const Node* parent, std::string path);
  // Subtracts `steps` from the remaining steps. If too few are left, rejects the schema and returns
  // false.
  bool Spend(std::int64_t steps);
  bool is_spent() const { return steps_left_ < 0; }
  // Enters one more level of nesting. If the limit is exceeded, rejects the schema and returns
  // false.
  bool Descend(const Node* node);
  const Node* Resolve(absl::string_view reference);
  const OwnKeywords& OwnKeywordsOf(const Node& node);
  SchemaId Intern(Nodes nodes);
  // Returns null if the schema is being read, refers to a node that is being read, or is rejected.
  const std::vector<Shape>* Read(SchemaId id);
  std::vector<Shape> ReadShapes(Nodes seeds);
  // Returns the alternatives in which a value can satisfy the node. Each is the list of nodes whose
  // own keywords the value must satisfy.
  std::vector<Nodes> Expand(const Node& node, std::vector<const Node*>* path);
  // Returns every combination of one entry of `alternatives` and one entry of `others`.
  std::vector<Nodes> Combine(const Node& node, const std::vector<Nodes>& alternatives,
                             const std::vector<Nodes>& others);
  void CheckDisjoint(const Node& node, const std::vector<const Node*>& branches);
  bool AreDisjoint(const Shape& a, const Shape& b, int depth);
  bool AreObjectsDisjoint(const ObjectShape& a, const ObjectShape& b, int depth);
  bool Accepts(SchemaId id, const OrderedJson& value);
  bool Accepts(const Shape& shape, const OrderedJson& value);
  bool AcceptsArray(const ArrayShape& shape, const OrderedJson& value);
  bool AcceptsObject(const ObjectShape& shape, const OrderedJson& value);
  bool AcceptsString(const StringShape& shape, const OrderedJson& value);
  // Adds all values that the schema accepts to `values`. Returns false if there are more than `max`
  // values or infinitely many.
  bool AddValues(SchemaId id, std::size_t max, std::map<nlohmann::json, OrderedJson>* values);
  bool Matches(const Regex& regex, const std::string& text);
  void FindValues();
  void IndexAnchors(const OrderedJson& json, std::string* pointer);
  void Refuse(const Node& node, absl::string_view keyword, std::string text);
  // Called for a keyword that cannot be enforced exactly. With kAnnotate, lists the keyword, which
  // the caller then ignores. With kRefuse, rejects the schema.
  void LeaveOut(const Node& node, absl::string_view keyword, std::string why);
  // With kAnnotate, lists the keyword as not enforced. With kRefuse, does nothing.
  void ListUnenforced(const Node& node, absl::string_view keyword);

  OrderedJson json_;
  bool ignores_ref_siblings_ = false;  // up to draft 7, keywords next to a $ref are ignored
  std::string root_uri_;
  // The node and the JSON pointer of each anchor. The node is null if two nodes have the anchor.
  std::map<std::string, std::pair<const OrderedJson*, std::string>, std::less<>> anchors_;
  std::map<const OrderedJson*, std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<OrderedJson>> rewritten_json_;  // created by rewriting keywords
  std::map<Nodes, SchemaId> ids_;
  std::vector<Nodes> schemas_;                               // indexed by SchemaId
  std::vector<std::unique_ptr<std::vector<Shape>>> shapes_;  // indexed by SchemaId; null: not read
  std::vector<bool> has_value_;                              // indexed by SchemaId
  std::set<SchemaId> schemas_being_read_;                    // schemas whose Read is in progress
  bool is_incomplete_ = false;  // the schema being read depends on one that is still being read
  std::vector<SchemaReason> reasons_;
  UnenforcedPolicy policy_ = UnenforcedPolicy::kRefuse;
  std::vector<std::string> unenforced_;
  std::set<std::string> unenforced_set_;  // the elements of unenforced_
  std::size_t unenforced_bytes_ = 0;
  std::int64_t steps_left_ = kMaxSchemaSteps;
  int nesting_ = 0;
  SchemaId root_{};
};

}  // namespace quire::engine
