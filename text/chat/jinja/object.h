#pragma once

// Objects that belong to one rendering and are compared by identity: namespaces, macros, loops,
// functions and so on.
//
// Place:      between the values and the interpreter.
// Threads:    the rendering thread.
// Lifetime:   the Runtime of the rendering owns them; the templates that the objects refer to must
//             outlive the Runtime.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "text/chat/jinja/ast.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

class Runtime;  // runtime.h

// Iterates over anything that Python can iterate over: elements, the keys of a map, the characters
// of a string. An undefined value has no elements, and neither has a default-constructed Iteration.
// Reading elements of a one-shot iterator consumes them for every user of that iterator.
class Iteration {
 public:
  // Returns INVALID_ARGUMENT for values that cannot be iterated over.
  static absl::StatusOr<Iteration> Over(const Value& value, Runtime& runtime);
  // Returns null at the end.
  const Value* Next();
  // Returns the remaining elements.
  std::vector<Value> Rest();

 private:
  std::shared_ptr<Sequence> sequence_;
  std::size_t position_ = 0;
};

// The names of one block. A name is looked up here and then in the parents.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;
  bool captured = false;  // a macro looks up names here, so the scope is not reused
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Macro {
  const Stmt* definition = nullptr;
  Scope* scope = nullptr;  // the scope in which the macro was defined
};

// The variable `loop` and the state of its for statement.
struct Loop {
  const Stmt* statement = nullptr;
  Scope* outer = nullptr;
  Iteration source;
  // Elements that were fetched early, because the template read loop.last or similar.
  std::vector<Value> prefetched;
  std::size_t prefetched_begin = 0;
  std::int64_t index0 = -1;
  std::optional<Value> previous, current;
  std::optional<std::vector<Value>> changed;  // arguments of the last call of loop.changed
  bool escaped = false;                       // another variable may refer to the loop
};

struct Cycler {
  std::vector<Value> items;
  std::size_t position = 0;
};

struct Joiner {
  Value separator;
  bool was_called = false;
};

// A function that every template can call (functions.h).
struct Function {
  absl::StatusOr<Value> (*run)(const Arguments& arguments, Runtime& runtime);
};

// A method and the value that it belongs to.
struct BoundMethod {
  Value self;
  std::string name;
};

struct Object {
  std::variant<Namespace, Macro, Loop, Cycler, Joiner, Function, BoundMethod> data;
};

// Returns the object of the value if it is a T, otherwise null.
template <typename T>
T* ObjectAs(const Value& value) {
  return value.is_object() ? std::get_if<T>(&value.as_object()->data) : nullptr;
}

}  // namespace quire::text::jinja
