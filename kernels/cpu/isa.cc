#include "kernels/cpu/isa.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "hwy/highway.h"

namespace quire::kernels::internal {
namespace {

// What Highway's levels do not tell.
bool HasVnni() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}
bool Always() {
  return true;
}
// Levels without kernels of their own in this build.
bool Never() {
  return false;
}

struct Level {
  absl::string_view name;
  std::int64_t target;               // of Highway
  bool (*available)();               // besides that target
  const IntLinearKernels* integers;  // null: those of the next level
};

// Best first; a level may use itself and everything after it.
constexpr std::array<Level, 8> kLevels = {{
    {"amx", 0, Never, nullptr},
    {"avx512_bf16", 0, Never, nullptr},
    {"avx512_vnni", HWY_AVX3, HasVnni, nullptr},
    {"avx512", HWY_AVX3, Always, nullptr},
    {"avx2", HWY_AVX2, Always, &kIntLinearAvx2},
    {"sse4", HWY_SSE4, Always, &kIntLinearSse4},
    {"neon", HWY_NEON, Always, nullptr},
    {"scalar", HWY_EMU128 | HWY_SCALAR, Always, &kIntLinearScalar},
}};

bool IsUsable(const Level& level, std::int64_t targets) {
  return (targets & level.target) != 0 && level.available();
}

// The best level of this CPU and build.
std::size_t BestLevel() {
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    if (IsUsable(kLevels[i], targets)) return i;
  }
  return kLevels.size() - 1;
}

// The chosen level; the size of kLevels until somebody asks.
std::atomic<std::size_t> chosen_level{kLevels.size()};

const Level& Chosen() {
  std::size_t level = chosen_level.load(std::memory_order_relaxed);
  if (level == kLevels.size()) {
    level = BestLevel();
    chosen_level.store(level, std::memory_order_relaxed);
  }
  return kLevels[level];
}

}  // namespace

absl::string_view ChosenIsa() {
  return Chosen().name;
}

const IntLinearKernels& ChosenIntLinear() {
  const Level* level = &Chosen();
  while (level->integers == nullptr || level->integers->linear == nullptr) ++level;
  return *level->integers;
}

absl::Status ChooseIsa(absl::string_view isa) {
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  std::size_t choice = isa == "auto" ? BestLevel() : 0;
  while (isa != "auto" && choice < kLevels.size() && kLevels[choice].name != isa) ++choice;
  if (choice == kLevels.size()) {
    std::string known = "auto";
    for (const Level& level : kLevels) absl::StrAppend(&known, ", ", level.name);
    return absl::InvalidArgumentError(
        absl::StrCat("instruction set ", isa, " is not one of ", known));
  }
  if (isa != "auto" && !IsUsable(kLevels[choice], usable)) {
    return absl::FailedPreconditionError(
        absl::StrCat("instruction set ", isa, " is not available on this CPU or in this build"));
  }
  std::int64_t allowed = 0;
  for (std::size_t i = choice; i < kLevels.size(); ++i) allowed |= usable & kLevels[i].target;
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  chosen_level.store(choice, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace quire::kernels::internal
