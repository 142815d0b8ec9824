#pragma once

// The resource limits and the objects of one rendering.
//
// Place:      below interpreter, filters, tests and methods of the template engine, which charge
//             their work here.
// Invariants: one step is a statement, a call, a filter, a test, or an element that is processed or
//             created. For smaller work, one step is kEvalsPerStep expressions, kNamesPerStep
//             compared names, or kBytesPerStep bytes of text that are read, created or used as a
//             key. The time of searching or printing is linear in the charged steps. max_steps and
//             max_bytes therefore bound the time and memory of every rendering. The caller bounds
//             the size of the variables.
// Threads:    one thread.
// Lifetime:   one rendering; owns its objects.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "text/chat/jinja/object.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

struct RenderLimits {
  std::int64_t max_bytes = 16 << 20;
  std::int64_t max_steps = 1000000;
};

class Runtime {
 public:
  static constexpr std::int64_t kBytesPerStep = 128;
  static constexpr std::int64_t kEvalsPerStep = 8;
  static constexpr std::int64_t kNamesPerStep = 16;

  Runtime(const RenderLimits& limits, absl::Time now) : limits_(limits), now_(now) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const RenderLimits& limits() const { return limits_; }
  absl::Time now() const { return now_; }

  // Returns INVALID_ARGUMENT once the rendering has used up its steps.
  absl::Status Charge(std::int64_t steps);
  absl::Status ChargeBytes(std::size_t bytes) {
    return Charge(static_cast<std::int64_t>(bytes) / kBytesPerStep);
  }
  // Charges for a text before it is created. If the text is longer than max_bytes, returns
  // RESOURCE_EXHAUSTED, and the caller must not allocate the text.
  absl::Status ChargeText(std::size_t bytes);
  // Charges for a traversal of the whole value.
  absl::Status ChargeWalk(const Value& value) { return Charge(WeightOf(value)); }

  // Charges for HashKey. The charge of a tuple is multiplied by its nesting depth, because HashKey
  // copies the key of a nested tuple once per level.
  absl::Status ChargeKey(const Value& key);
  // Charges for a search through `names` names.
  absl::Status ChargeNames(std::size_t names) {
    return Charge(static_cast<std::int64_t>(names) / kNamesPerStep);
  }
  // Return str(value) or repr(value) and charge for it. Also return the errors of ToRepr.
  absl::StatusOr<std::string> Print(const Value& value);
  absl::StatusOr<std::string> PrintRepr(const Value& value);

  // Creates an object that this Runtime owns.
  template <typename T>
  Value MakeObject(T data) {
    objects_.push_back(std::make_unique<Object>(Object{std::move(data)}));
    return Value::Of(objects_.back().get());
  }

  // Takes ownership of an object that a value may still refer to.
  void Adopt(std::unique_ptr<Object> object) { objects_.push_back(std::move(object)); }

 private:
  const RenderLimits limits_;
  const absl::Time now_;
  std::int64_t steps_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

// Returns the row with this name, or null.
template <typename Row>
const Row* FindRow(std::span<const Row> rows, absl::string_view name) {
  const auto found = std::ranges::find(rows, name, &Row::name);
  return found == rows.end() ? nullptr : &*found;
}

// Assigns arguments to the parameters `names`. The result has one entry per parameter, nullopt
// where the call passed no argument. Returns INVALID_ARGUMENT, with a message that contains
// `callee`, for unknown, duplicate or too many arguments.
absl::StatusOr<std::vector<std::optional<Value>>> BindArguments(
    absl::string_view callee, const Arguments& arguments,
    const std::vector<absl::string_view>& names);

}  // namespace quire::text::jinja
