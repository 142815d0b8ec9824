#pragma once

// The values of templates: the Python types that Jinja exposes, and their truth, equality, order
// and printed form.
//
// Place:      bottom of the template engine.
// Invariants: strings are UTF-8. Sequences and maps in a Value are immutable, except for the
//             position of a one-shot iterator. Only objects can therefore close a cycle, and
//             without objects nesting is at most kMaxValueDepth. Integers have 64 bits; overflow is
//             an error.
// Threads:    a value may be shared between threads if it contains no one-shot iterator and no
//             object.
// Lifetime:   an Object belongs to the rendering that created it; everything else is reference
//             counted.
// Source:     the observed behaviour of jinja2 3.1.6 on CPython 3.11.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text::jinja {

inline constexpr int kMaxValueDepth = 100;
// Number of bytes of text that count as one value.
inline constexpr std::int64_t kBytesPerWeight = 128;

struct Object;  // object.h
struct Sequence;
struct Map;

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kMap,
  kObject
};

class Value {
 public:
  Value() : data_(Undefined{}) {}  // undefined, without a hint
  static Value None() { return Value(Data(NoneType{})); }
  static Value Bool(bool value) { return Value(Data(value)); }
  static Value Int(std::int64_t value) { return Value(Data(value)); }
  static Value Float(double value) { return Value(Data(value)); }
  static Value String(std::string text) {
    return Value(Data(std::make_shared<const std::string>(std::move(text))));
  }
  static Value String(absl::string_view text) { return String(std::string(text)); }
  static Value String(const char* text) { return String(std::string(text)); }
  // `hint` is the message of UndefinedError, such as "'x' is undefined".
  static Value UndefinedBecause(std::string hint) {
    return Value(Data(Undefined{std::make_shared<const std::string>(std::move(hint))}));
  }
  static Value Of(std::shared_ptr<Sequence> sequence) { return Value(Data(std::move(sequence))); }
  static Value Of(std::shared_ptr<const Map> map) { return Value(Data(std::move(map))); }
  static Value Of(Object* object) { return Value(Data(object)); }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_int() const { return kind() == Kind::kInt; }  // false for a bool
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_sequence() const { return kind() == Kind::kSequence; }
  bool is_map() const { return kind() == Kind::kMap; }
  bool is_object() const { return kind() == Kind::kObject; }

  // REQUIRES: the value has the kind that the name of the function contains.
  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_int() const { return std::get<std::int64_t>(data_); }
  double as_float() const { return std::get<double>(data_); }
  const std::string& as_string() const {
    return *std::get<std::shared_ptr<const std::string>>(data_);
  }
  const std::shared_ptr<Sequence>& as_sequence() const {
    return std::get<std::shared_ptr<Sequence>>(data_);
  }
  const std::shared_ptr<const Map>& as_map() const {
    return std::get<std::shared_ptr<const Map>>(data_);
  }
  Object* as_object() const { return std::get<Object*>(data_); }

  // Returns an integer, or a bool as 0 or 1; otherwise nullopt.
  std::optional<std::int64_t> ToInteger() const;
  // Converts any number. REQUIRES: is_number().
  double ToDouble() const;
  // Returns the error of using this undefined value. REQUIRES: is_undefined().
  absl::Status UndefinedError() const;

 private:
  struct Undefined {
    std::shared_ptr<const std::string> hint;
  };
  struct NoneType {};
  // The types are in the order of Kind.
  using Data = std::variant<Undefined, NoneType, bool, std::int64_t, double,
                            std::shared_ptr<const std::string>, std::shared_ptr<Sequence>,
                            std::shared_ptr<const Map>, Object*>;

  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kRange,
  kIterator,  // one-shot: the result of filters such as map and select
  kKeys,      // views of a map
  kValues,
  kItems
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  std::size_t num_returned = 0;  // elements that an iterator has already returned
  int depth = 1;                 // nesting depth, at most kMaxValueDepth
  std::int64_t weight = 1;       // the result of WeightOf
  std::string range_text;        // only for a range: its printed form
};

// A map in insertion order. Keys are strings, numbers, none and tuples of them. As in Python, 1,
// 1.0 and True are the same key.
struct Map {
  std::vector<std::pair<Value, Value>> entries;
  absl::flat_hash_map<std::string, std::size_t> index;  // position of each key, by its HashKey
  int depth = 1;                                        // nesting depth, at most kMaxValueDepth
  std::int64_t weight = 1;                              // the result of WeightOf
};

// Returns the same string for equal keys and different strings for different keys. Exception: an
// integer and an equal float of magnitude 9e18 or more have different strings. Returns
// INVALID_ARGUMENT for values that cannot be keys.
absl::StatusOr<std::string> HashKey(const Value& key);

// Returns INVALID_ARGUMENT when the nesting would exceed kMaxValueDepth.
absl::StatusOr<Value> MakeSequence(SequenceKind kind, std::vector<Value> items);
inline absl::StatusOr<Value> MakeList(std::vector<Value> items) {
  return MakeSequence(SequenceKind::kList, std::move(items));
}

// REQUIRES: step is not 0, and the caller has bounded the number of elements.
absl::StatusOr<Value> MakeRange(std::int64_t start, std::int64_t stop, std::int64_t step);

class MapBuilder {
 public:
  MapBuilder() : map_(std::make_shared<Map>()) {}
  // If the key exists, its value is replaced and its position is kept.
  absl::Status Set(const Value& key, Value value);
  absl::Status Set(absl::string_view key, Value value) {
    return Set(Value::String(key), std::move(value));
  }
  Value Build() && { return Value::Of(std::shared_ptr<const Map>(std::move(map_))); }

 private:
  std::shared_ptr<Map> map_;
};

// Returns the value at `key`; null when there is none or `key` cannot be a key.
const Value* Find(const Map& map, const Value& key);

// Returns the cost of traversing the value: the number of values in it, plus one for each
// kBytesPerWeight bytes of text. Shared values count once per occurrence. Saturates.
std::int64_t WeightOf(const Value& value);

// Implements bool(value).
bool IsTrue(const Value& value);
// Implements left == right.
bool Equals(const Value& left, const Value& right);
// Implements left < right. Returns INVALID_ARGUMENT, with both types and `symbol`, where Python
// defines no order.
absl::StatusOr<bool> Less(const Value& left, const Value& right, absl::string_view symbol);

// Implements repr(value). Returns RESOURCE_EXHAUSTED if the text exceeds `max_bytes`, and
// INVALID_ARGUMENT for values that cannot be printed.
absl::StatusOr<std::string> ToRepr(const Value& value, std::size_t max_bytes);
// Returns repr of a float: the shortest digits that convert back to the same value.
std::string FloatText(double value);

// Returns "dict", "str", "NoneType" and so on, for messages.
absl::string_view TypeName(const Value& value);

bool IsListOrTuple(const Value& value);

// Implements len(value). Returns INVALID_ARGUMENT for values without a length.
absl::StatusOr<std::int64_t> Length(const Value& value);

}  // namespace quire::text::jinja
