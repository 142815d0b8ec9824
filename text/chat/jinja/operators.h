#pragma once

// The operators of expressions, and what stands behind a dot or in brackets.
//
// Place:      between values and the interpreter.
// Invariants: as CPython computes; integers that leave 64 bits and texts beyond the limits of the
//             rendering are errors.
// Threads:    those of the rendering.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/ast.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

// Errors: INVALID_ARGUMENT for types that do not go together, and the use of undefined values.

// Arithmetic. REQUIRES: `op` is one of kAdd to kPower.
absl::StatusOr<Value> Combine(Operator op, const Value& left, const Value& right, Runtime& runtime);
// -value, +value.
absl::StatusOr<Value> Negate(const Value& value);
absl::StatusOr<Value> Plus(const Value& value);

// REQUIRES: `op` is one of kEqual to kNotIn.
absl::StatusOr<bool> Compare(Operator op, const Value& left, const Value& right, Runtime& runtime);
// item in container.
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Runtime& runtime);

// value.name: a method or attribute first, then an item; undefined when there is neither.
absl::StatusOr<Value> GetAttribute(const Value& value, absl::string_view name, Runtime& runtime);
// value[key]: an item first, then a method or attribute.
absl::StatusOr<Value> GetItem(const Value& value, const Value& key, Runtime& runtime);

// value[start:stop:step]; none stands for a part that is not given.
struct SliceParts {
  Value start = Value::None();
  Value stop = Value::None();
  Value step = Value::None();
};
absl::StatusOr<Value> GetSlice(const Value& value, const SliceParts& parts, Runtime& runtime);

}  // namespace quire::text::jinja
