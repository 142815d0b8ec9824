#include "kernels/backend/isa.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
bool HasAvxVnni() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avxvnni") != 0;
#else
  return false;
#endif
}
// The kernel lends a process the tiles on request only.
bool HasAmx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return HasVnni() && __builtin_cpu_supports("amx-tile") != 0 &&
         __builtin_cpu_supports("amx-int8") != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
bool Always() {
  return true;
}

struct Level {
  absl::string_view name;
  std::int64_t target;  // of Highway
  bool (*available)();  // besides that target
  // Its tests have run on such a machine; otherwise it is chosen by name only.
  bool proven = true;
};

// In the order of CpuLevel, best first; a level may use itself and everything after it.
constexpr std::array<Level, kNumCpuLevels> kLevels = {{
    {"amx", HWY_AVX3, HasAmx, false},
    {"avx512_vnni", HWY_AVX3, HasVnni},
    {"avx512", HWY_AVX3, Always},
    {"avx_vnni", HWY_AVX2, HasAvxVnni},
    {"avx2", HWY_AVX2, Always},
    {"sse4", HWY_SSE4, Always},
    {"neon", HWY_NEON, Always},
    {"scalar", HWY_EMU128 | HWY_SCALAR, Always},
}};

bool IsUsable(const Level& level, std::int64_t targets) {
  return (targets & level.target) != 0 && level.available();
}

// The best proven level of this CPU and build.
std::size_t BestLevel() {
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i].proven && IsUsable(kLevels[i], targets)) return i;
  }
  return kLevels.size() - 1;
}

// The chosen level; the size of kLevels until a caller asks.
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

CpuLevel ChosenLevel() {
  return static_cast<CpuLevel>(&Chosen() - kLevels.data());
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
