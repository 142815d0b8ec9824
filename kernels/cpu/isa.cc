#include "kernels/cpu/isa.h"

#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "hwy/highway.h"

namespace quire::kernels::internal {
namespace {

struct Level {
  absl::string_view name;
  std::int64_t target;
};

// Best first; a level may use itself and everything after it.
constexpr std::array<Level, 5> kLevels = {{{"avx512", HWY_AVX3},
                                           {"avx2", HWY_AVX2},
                                           {"sse4", HWY_SSE4},
                                           {"neon", HWY_NEON},
                                           {"scalar", HWY_EMU128 | HWY_SCALAR}}};

}  // namespace

absl::string_view ChosenIsa() {
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (const Level& level : kLevels) {
    if ((usable & level.target) != 0) return level.name;
  }
  return "scalar";
}

absl::Status ChooseIsa(absl::string_view isa) {
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  std::int64_t allowed = isa == "auto" ? usable : 0;
  bool known = allowed != 0;
  for (const Level& level : kLevels) {
    if (level.name == isa) {
      known = true;
      if ((usable & level.target) == 0) {
        return absl::FailedPreconditionError(absl::StrCat(
            "instruction set ", isa, " is not available on this CPU or in this build"));
      }
      allowed |= usable & level.target;
    } else if (allowed != 0) {
      allowed |= usable & level.target;
    }
  }
  if (!known) {
    return absl::InvalidArgumentError(absl::StrCat(
        "instruction set ", isa, " is not one of auto, avx512, avx2, sse4, neon, scalar"));
  }
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return absl::OkStatus();
}

}  // namespace quire::kernels::internal
