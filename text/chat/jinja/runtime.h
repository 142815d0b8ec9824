#pragma once

// What one rendering may use up, and what belongs to it alone.
//
// Place:      below interpreter, filters, tests and methods of the template engine, which charge
//             their work here.
// Invariants: a step is a statement, a call, a filter, a test, an element that is handled or made,
//             kEvalsPerStep expressions or kNamesPerStep names that are compared; every
//             kBytesPerStep bytes of text that are read, made or used as a key count one too. What
//             searches or prints takes time linear in what it charges. So time and memory of a
//             rendering are bounded by max_steps and max_bytes, whatever the template does; what
//             its variables take is bounded by the caller that makes them.
// Threads:    one.
// Lifetime:   of the rendering; owns its objects.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

  // INVALID_ARGUMENT once the rendering has used up its steps.
  absl::Status Charge(std::int64_t steps);
  absl::Status ChargeBytes(std::size_t bytes) {
    return Charge(static_cast<std::int64_t>(bytes) / kBytesPerStep);
  }
  // Text about to be made. RESOURCE_EXHAUSTED when it is longer than max_bytes; then nothing may be
  // allocated.
  absl::Status ChargeText(std::size_t bytes);
  // Of a walk through all of the value.
  absl::Status ChargeWalk(const Value& value) { return Charge(WeightOf(value)); }

  // Of writing the key out, as HashKey does: parts of tuples once for each level around them.
  absl::Status ChargeKey(const Value& key);
  // Of a search through so many names.
  absl::Status ChargeNames(std::size_t names) {
    return Charge(static_cast<std::int64_t>(names) / kNamesPerStep);
  }
  // str(value), charged. Errors: those of ToText.
  absl::StatusOr<std::string> Print(const Value& value);
  // repr(value), charged.
  absl::StatusOr<std::string> PrintRepr(const Value& value);

  // Never null.
  template <typename T>
  Value MakeObject(T data) {
    objects_.push_back(std::make_unique<Object>(Object{std::move(data)}));
    return Value::Of(objects_.back().get());
  }

  // Keeps an object that a value may still name.
  void Adopt(std::unique_ptr<Object> object) { objects_.push_back(std::move(object)); }

 private:
  const RenderLimits limits_;
  const absl::Time now_;
  std::int64_t steps_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

// Arguments by name. `names` are those of the parameters; the result has as many entries, absent
// where the call gave none. INVALID_ARGUMENT, naming `callee`, for unknown, double and surplus
// arguments.
absl::StatusOr<std::vector<std::optional<Value>>> BindArguments(
    absl::string_view callee, const Arguments& arguments,
    const std::vector<absl::string_view>& names);

}  // namespace quire::text::jinja
