#pragma once

// What one rendering may use up, and what belongs to it alone.
//
// Place:      below interpreter, filters, tests and methods of the template engine, which charge
//             their work here.
// Invariants: a step is a statement, a call, a filter, a test or an element that is handled; every
//             kBytesPerStep bytes of text that are made count one too. So time and memory of a
//             rendering are bounded by max_steps, whatever the template does.
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
#include "absl/time/time.h"
#include "models/text/jinja_object.h"
#include "models/text/jinja_value.h"

namespace quire::text::jinja {

struct RenderLimits {
  std::int64_t max_bytes = 16 << 20;
  std::int64_t max_steps = 1000000;
};

class Runtime {
 public:
  static constexpr std::int64_t kBytesPerStep = 128;

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

  // Never null.
  template <typename T>
  Value MakeObject(T data) {
    objects_.push_back(std::make_unique<Object>(Object{std::move(data)}));
    return Value::Of(objects_.back().get());
  }

  // Keeps what somebody may still name.
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
