#pragma once

// Values with a life of their own during one rendering: what a template can call, step through or
// assign to.
//
// Place:      between the values and the interpreter.
// Threads:    those of the rendering.
// Lifetime:   owned by the Runtime of the rendering; the templates they point into outlive it.

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

class Runtime;  // jinja_runtime.h

// Goes through what Python can iterate: elements, keys of a map, characters of a text; nothing for
// undefined and for an Iteration over no value. What an iterator gave away is gone for everybody.
class Iteration {
 public:
  // INVALID_ARGUMENT for values that cannot be iterated.
  static absl::StatusOr<Iteration> Over(const Value& value, Runtime& runtime);
  // Null at the end.
  const Value* Next();
  // All that is left.
  std::vector<Value> Rest();

 private:
  std::shared_ptr<Sequence> sequence_;
  std::size_t position_ = 0;
};

// Names of one block. A name is looked for here, then in the parents.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;
  bool captured = false;  // a macro looks names up here, so it stays
};

// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Macro {
  const Stmt* definition = nullptr;
  Scope* scope = nullptr;  // where it was defined
};

// The variable `loop`, and where its for statement stands.
struct Loop {
  const Stmt* statement = nullptr;
  Scope* outer = nullptr;
  Iteration source;
  std::vector<Value> ahead;  // fetched already, since the template asked what comes
  std::size_t ahead_begin = 0;
  std::int64_t index0 = -1;
  std::optional<Value> previous, current;
  std::optional<std::vector<Value>> changed;  // arguments of the last loop.changed
  bool escaped = false;                       // some other variable may hold it
};

struct Cycler {
  std::vector<Value> items;
  std::size_t position = 0;
};

struct Joiner {
  Value separator;
  bool used = false;
};

enum class Builtin : std::uint8_t {
  kNamespace,
  kRange,
  kDict,
  kJoiner,
  kCycler,
  kRaiseException,
  kStrftimeNow
};

struct Function {
  Builtin builtin;
};

// A method with the value it belongs to.
struct BoundMethod {
  Value self;
  std::string name;
};

struct Object {
  std::variant<Namespace, Macro, Loop, Cycler, Joiner, Function, BoundMethod> data;
};

}  // namespace quire::text::jinja
