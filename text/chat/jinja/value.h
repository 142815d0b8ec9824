#pragma once

// What a template computes with: the values of Python that Jinja shows, and their rules of truth,
// equality, order and printing.
//
// Place:      bottom of the template engine.
// Invariants: strings are UTF-8. Sequences and maps never change once they are in a Value, but for
//             how far a one-shot sequence was read; so there are no cycles, and nothing is nested
//             deeper than kMaxValueDepth. Integers have 64 bits; what would overflow is an error.
// Threads:    values without one-shot sequences and objects may be shared.
// Lifetime:   an Object belongs to the rendering that made it; everything else is counted.
// Source:     the behaviour of jinja2 3.1.6 on CPython 3.11, by experiment.

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
// This much text weighs as one value.
inline constexpr std::int64_t kBytesPerWeight = 128;

struct Object;  // jinja_object.h
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
  Value() : data_(Undefined{}) {}  // undefined, for no known reason
  static Value None() { return Value(Data(NoneType{})); }
  static Value Bool(bool value) { return Value(Data(value)); }
  static Value Int(std::int64_t value) { return Value(Data(value)); }
  static Value Float(double value) { return Value(Data(value)); }
  static Value String(std::string text) {
    return Value(Data(std::make_shared<const std::string>(std::move(text))));
  }
  static Value String(absl::string_view text) { return String(std::string(text)); }
  static Value String(const char* text) { return String(std::string(text)); }
  // `hint` is the error that a use of the value gives: "'x' is undefined".
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
  bool is_int() const { return kind() == Kind::kInt; }  // not a bool
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_sequence() const { return kind() == Kind::kSequence; }
  bool is_map() const { return kind() == Kind::kMap; }
  bool is_object() const { return kind() == Kind::kObject; }

  // Each REQUIRES the kind it names.
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

  // An integer or a bool, which counts as 0 or 1.
  std::optional<std::int64_t> ToInteger() const;
  // Any number. REQUIRES: is_number().
  double ToDouble() const;
  // The error of using an undefined value. REQUIRES: is_undefined().
  absl::Status UndefinedError() const;

 private:
  struct Undefined {
    std::shared_ptr<const std::string> hint;
  };
  struct NoneType {};
  // In the order of Kind.
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
  kIterator,  // one-shot: what filters such as map and select give
  kKeys,      // views of a map
  kValues,
  kItems
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  std::size_t taken = 0;  // elements that an iterator has given away
  int depth = 1;
  std::int64_t weight = 1;
  std::string range_text;  // of a range: how it prints
};

// A map in order of insertion. Keys are texts, numbers, none and tuples of them; 1, 1.0 and True
// are one key, as in Python.
struct Map {
  std::vector<std::pair<Value, Value>> entries;
  absl::flat_hash_map<std::string, std::size_t> index;  // of every key's HashKey
  int depth = 1;
  std::int64_t weight = 1;
};

// Equal for equal keys, different for others. INVALID_ARGUMENT for values that cannot be keys.
absl::StatusOr<std::string> HashKey(const Value& key);

// INVALID_ARGUMENT when the nesting would exceed kMaxValueDepth.
absl::StatusOr<Value> MakeSequence(SequenceKind kind, std::vector<Value> items);
inline absl::StatusOr<Value> MakeList(std::vector<Value> items) {
  return MakeSequence(SequenceKind::kList, std::move(items));
}

// REQUIRES: step is not 0, and the range has few enough elements to be held.
absl::StatusOr<Value> MakeRange(std::int64_t start, std::int64_t stop, std::int64_t step);

class MapBuilder {
 public:
  MapBuilder() : map_(std::make_shared<Map>()) {}
  // A key that is there already keeps its place and gets the new value.
  absl::Status Set(const Value& key, Value value);
  absl::Status Set(absl::string_view key, Value value) {
    return Set(Value::String(key), std::move(value));
  }
  Value Build() && { return Value::Of(std::shared_ptr<const Map>(std::move(map_))); }

 private:
  std::shared_ptr<Map> map_;
};

// The value at `key`; null when there is none or it cannot be a key.
const Value* Find(const Map& map, const Value& key);

// How much work it is to walk through the value: the number of values in it, with what is there
// twice counted twice, and of pieces of text. Saturates.
std::int64_t WeightOf(const Value& value);

// bool(value).
bool IsTrue(const Value& value);
// left == right.
bool Equals(const Value& left, const Value& right);
// left < right; INVALID_ARGUMENT, naming both types and `symbol`, where Python has no order.
absl::StatusOr<bool> Less(const Value& left, const Value& right, absl::string_view symbol);

// str(value). RESOURCE_EXHAUSTED soon after a text that has to be made has more than `max_bytes`;
// INVALID_ARGUMENT for what cannot be printed.
absl::StatusOr<std::string> ToText(const Value& value, std::size_t max_bytes);
// repr(value). Errors as those of ToText.
absl::StatusOr<std::string> ToRepr(const Value& value, std::size_t max_bytes);
// repr of a float: the shortest digits that give it back.
std::string FloatText(double value);

// "dict", "str", "NoneType": for messages.
absl::string_view TypeName(const Value& value);

// len(value); INVALID_ARGUMENT for values without a length.
absl::StatusOr<std::int64_t> Length(const Value& value);

}  // namespace quire::text::jinja
