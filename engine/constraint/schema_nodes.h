#pragma once

// Internals of SchemaDocument: its nodes, the meaning of one node's keywords, and the classes that
// read them.
//
// Place:      only for the sources of schema_check.
// Invariants: OwnKeywords describes the keywords of one node, without the nodes that it refers to.
// Threads:    one thread at a time for each SchemaDocument.
// Lifetime:   nodes live as long as their document.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/constraint/schema_check.h"

namespace quire::engine {

enum SchemaType : std::uint8_t {
  kNull = 1,
  kBoolean = 2,
  kNumber = 4,
  kString = 8,
  kArray = 16,
  kObject = 32,
  kAllTypes = 63,
};

struct SchemaDocument::Node {
  const OrderedJson* json = nullptr;
  const Node* parent = nullptr;           // null: `path` starts at the root of the document
  std::string path;                       // relative to the parent; the end of a JSON pointer
  std::unique_ptr<OwnKeywords> keywords;  // null until the node has been read
  bool is_being_read = false;

  std::string Pointer() const;
  // Returns whether the schema is `false`, which accepts no value.
  bool is_false() const { return json->is_boolean() && !json->get<bool>(); }
};

struct SchemaDocument::OwnKeywords {
  bool is_unsatisfiable = false;  // no value is valid
  std::uint8_t types = kAllTypes;
  bool integers = false;
  std::optional<std::vector<OrderedJson>> values;
  std::set<OrderedJson> value_set;  // the elements of `values`
  std::int64_t value_steps = 0;     // cost of comparing all values
  NumberRange range;
  std::optional<MultipleOf> multiple;
  std::int64_t min_length = 0;
  std::optional<std::int64_t> max_length;
  // Expressions, each with its text or the name of its format.
  std::vector<std::pair<std::string, std::shared_ptr<const Regex>>> patterns;
  std::vector<const Node*> prefix;
  const Node* items = nullptr;
  const Node* unevaluated_items = nullptr;
  std::int64_t min_items = 0;
  std::optional<std::int64_t> max_items;
  bool unique_items = false;
  std::vector<std::pair<std::string, const Node*>> properties;
  std::vector<std::string> required;
  const Node* additional = nullptr;
  const Node* unevaluated = nullptr;
  const Node* names = nullptr;
  std::vector<std::pair<std::shared_ptr<const Regex>, const Node*>> pattern_properties;
  bool leaves_out_patterns = false;  // a pattern of patternProperties is not supported
  // True if a keyword that may apply schemas is ignored. It is then unknown which items and
  // properties the node evaluates.
  bool hides_evaluation = false;
  std::int64_t min_properties = 0;
  std::optional<std::int64_t> max_properties;
  // Other nodes that a value must satisfy: all nodes in `all`, and one node of each list in
  // `unions`.
  std::vector<const Node*> all;
  std::vector<std::vector<const Node*>> unions;
};

// Reads the keywords of one node.
class NodeReader {
 public:
  using Node = SchemaDocument::Node;
  using OwnKeywords = SchemaDocument::OwnKeywords;

  NodeReader(SchemaDocument* document, const Node& node)
      : document_(*document), node_(node), keywords_(std::make_unique<OwnKeywords>()) {}
  std::unique_ptr<OwnKeywords> Read();

 private:
  using Handler = void (NodeReader::*)(const OrderedJson& value);
  struct Keyword {
    Handler read;                         // null: an annotation
    const char* reject_reason = nullptr;  // null: the keyword is supported
  };
  static const std::map<std::string, Keyword, std::less<>>& Keywords();

  void ReadObject();
  void RejectUnknown(const std::string& keyword);
  template <const Node* OwnKeywords::*kSchema>
  void ReadSchema(const OrderedJson& value) {
    (*keywords_).*kSchema = Child(value);
  }
  template <std::int64_t OwnKeywords::*kMinimum>
  void ReadMinimum(const OrderedJson& value) {
    (*keywords_).*kMinimum = ReadCount(value).value_or(0);
  }
  template <std::optional<std::int64_t> OwnKeywords::*kMaximum>
  void ReadMaximum(const OrderedJson& value) {
    (*keywords_).*kMaximum = ReadCount(value);
  }
  void Type(const OrderedJson& value);
  void Nullable(const OrderedJson& value);
  void Enum(const OrderedJson& value);
  void Const(const OrderedJson& value);
  void Minimum(const OrderedJson& value);
  void Maximum(const OrderedJson& value);
  void ExclusiveMinimum(const OrderedJson& value);
  void ExclusiveMaximum(const OrderedJson& value);
  void MultipleOf(const OrderedJson& value);
  void MinLength(const OrderedJson& value);
  void Pattern(const OrderedJson& value);
  void Format(const OrderedJson& value);
  void Items(const OrderedJson& value);
  void PrefixItems(const OrderedJson& value);
  void AdditionalItems(const OrderedJson& value);
  void UniqueItems(const OrderedJson& value);
  void Properties(const OrderedJson& value);
  void Required(const OrderedJson& value);
  void PatternProperties(const OrderedJson& value);
  void AllOf(const OrderedJson& value);
  void AnyOf(const OrderedJson& value);
  void OneOf(const OrderedJson& value);
  void Not(const OrderedJson& value);
  void Ref(const OrderedJson& value);
  void Id(const OrderedJson& value);
  void Dialect(const OrderedJson& value);
  void DependentRequired(const OrderedJson& value);

  void Refuse(std::string text) { document_.Refuse(node_, keyword_, std::move(text)); }
  void LeaveOut(std::string why) { document_.LeaveOut(node_, keyword_, std::move(why)); }
  // Returns the subschema at `value`, or the subschemas of an array.
  const Node* Child(const OrderedJson& value, const std::string& step = "");
  std::vector<const Node*> Children(const OrderedJson& value);
  std::optional<std::int64_t> ReadCount(const OrderedJson& value);
  std::optional<Decimal> ReadNumber(const OrderedJson& value);
  void RaiseMinimum(const Bound& bound);
  void LowerMaximum(const Bound& bound);
  void RaiseMinimum(const OrderedJson& value, bool exclusive);
  void LowerMaximum(const OrderedJson& value, bool exclusive);
  const OrderedJson* Sibling(const char* keyword) const;

  SchemaDocument& document_;
  const Node& node_;
  std::unique_ptr<OwnKeywords> keywords_;
  std::string keyword_;  // the keyword that is being read
};

// Intersects several nodes into one shape.
class ShapeBuilder {
 public:
  using Node = SchemaDocument::Node;
  using OwnKeywords = SchemaDocument::OwnKeywords;
  using Nodes = SchemaDocument::Nodes;

  // If `one_seed` is true, all nodes result from expanding the first one.
  ShapeBuilder(SchemaDocument* document, const Nodes& nodes, bool one_seed)
      : document_(*document), nodes_(nodes), one_seed_(one_seed) {}
  // Returns nullopt when no value satisfies all nodes.
  std::optional<Shape> Build();

 private:
  void AddNumber(bool integers, Shape* shape);
  void AddString(Shape* shape);
  // Restricts the pattern to the lengths of the shape. Returns false if no string matches both.
  bool CutPattern(StringShape* string);
  void AddArray(Shape* shape);
  // Sets `unique`, or leaves out uniqueItems if it cannot be enforced. Returns false if no array is
  // valid.
  bool AddUniqueItems(const Node& node, ArrayShape* array);
  void AddObject(Shape* shape);
  // Returns the values that all nodes list and the shape accepts.
  std::optional<Shape> ShapeOfListed(const std::vector<OrderedJson>& listed, const Shape& shape);
  ObjectShape::Property PropertyNamed(const std::string& name);
  void SetOtherNames(const std::vector<std::string>& declared, ObjectShape* object);
  // Restricts undeclared names to matches of `names`. Their first character must differ from the
  // first character of every declared name that matches `names`. Returns false if there is no such
  // name.
  bool RestrictNames(const Regex& names, const std::vector<std::string>& declared,
                     ObjectShape* object);
  // Restricts undeclared names to those that propertyNames of the node allows. Returns false if
  // there is no such name.
  bool ReadNames(const Node& node, const std::vector<std::string>& declared, ObjectShape* object);
  // Returns the names that propertyNames of the node lists, or nullopt if it does not list names.
  std::optional<std::vector<std::string>> ListedNames(const OwnKeywords& keywords);
  std::vector<std::string> DeclaredNames();
  void SetCounts(std::int64_t required, std::int64_t declared, ObjectShape* object);
  SchemaId ItemsAt(std::size_t index);
  // Returns whether `keyword`, unevaluatedItems or unevaluatedProperties, is enforced for the node
  // at `index`. All other nodes must result from expanding this node; otherwise the keyword is left
  // out (SchemaDocument::LeaveOut). It must also be known which items and properties these nodes
  // evaluate; otherwise the keyword is ignored.
  bool AppliesUnevaluated(std::size_t index, const char* keyword);
  // Returns the first node that has the keyword.
  const Node& NodeWith(const char* keyword) const;

  SchemaDocument& document_;
  const Nodes& nodes_;
  const bool one_seed_;
};

// Restricts `regex` to matches of the given lengths. If its only part of variable length repeats
// one character, the result is exact. Otherwise divides the maximum length among the repetitions;
// matches in which a repetition exceeds its share are left out. Returns false if neither is
// possible.
bool ClampLength(const TextLength& length, Regex* regex);

// Returns the regular expression of a string `format`, or "" if it has none.
absl::string_view FormatPattern(absl::string_view format);
// Returns the range of an integer `format`.
std::optional<NumberRange> FormatRange(absl::string_view format);
// Returns whether a `format` does not restrict values.
bool IsFreeFormat(absl::string_view format);

}  // namespace quire::engine
