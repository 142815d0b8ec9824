#pragma once

// Operators of expressions, attribute access and subscripts.
//
// Place:      between values and the interpreter.
// Invariants: results are those of CPython, but integers beyond 64 bits and texts that exceed the
//             limits of the rendering are errors.
// Threads:    the rendering thread.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/ast.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// All functions return INVALID_ARGUMENT for incompatible types. Undefined operands are errors too,
// except in ==, !=, `in` and `not in`, in the arguments of a % that formats text, and in the key of
// GetItem.

// Arithmetic. REQUIRES: `op` is one of kAdd to kPower.
absl::StatusOr<Value> Combine(Operator op, const Value& left, const Value& right, Runtime& runtime);
// Implements -value and +value. REQUIRES: `sign` is kSubtract or kAdd.
absl::StatusOr<Value> ApplySign(Operator sign, const Value& value);

// REQUIRES: `op` is one of kEqual to kNotIn.
absl::StatusOr<bool> Compare(Operator op, const Value& left, const Value& right, Runtime& runtime);
// Implements `item in container`.
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Runtime& runtime);

// Implements value.name: looks for a method or attribute, then for an item. Returns undefined if
// there is neither.
absl::StatusOr<Value> GetAttribute(const Value& value, absl::string_view name, Runtime& runtime);
// Implements value[key]: looks for an item, then for a method or attribute.
absl::StatusOr<Value> GetItem(const Value& value, const Value& key, Runtime& runtime);

// The parts of value[start:stop:step]; none for a part that is omitted.
struct SliceParts {
  Value start = Value::None();
  Value stop = Value::None();
  Value step = Value::None();
};
absl::StatusOr<Value> GetSlice(const Value& value, const SliceParts& parts, Runtime& runtime);

}  // namespace quire::text::jinja
