#include "base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace quire {
namespace {

struct Anchor {
  absl::Time wall = absl::Now();
  std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
};

}  // namespace

absl::Time MonotonicNow() {
  static const Anchor anchor;
  return anchor.wall + absl::FromChrono(std::chrono::steady_clock::now() - anchor.steady);
}

absl::Time MachineClock::WallNow() const {
  return absl::Now();
}

}  // namespace quire
