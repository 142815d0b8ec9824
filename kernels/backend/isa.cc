#include "kernels/backend/isa.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "hwy/highway.h"

namespace quire::kernels::internal {
namespace {

// CPU features that Highway's targets do not cover.
bool HasVnni() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}
// HasAvxVnni and HasAmx read CPUID, because __builtin_cpu_supports of clang 14 knows neither
// AVX-VNNI nor AMX. Highway checks that the operating system saves AVX registers, and RequestTiles
// checks that it saves tiles.
bool HasAvxVnni() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
#else
  return false;
#endif
}
bool HasAmx() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!HasVnni() || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool has_tiles = (edx >> 24 & 1) != 0, has_int8_products = (edx >> 25 & 1) != 0;
  const bool has_bf16_products = (edx >> 22 & 1) != 0;
  return has_tiles && has_int8_products && has_bf16_products;
#else
  return false;
#endif
}
// Requests the tile registers, which Linux enables only on request, for all threads of the process.
int RequestTiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
#else
  return ENOTSUP;
#endif
}
bool Always() {
  return true;
}

// Levels in the order of CpuLevel, best first.
constexpr std::array<IsaLevel, kNumCpuLevels> kLevels = {{
    {"amx", HWY_AVX3, HasAmx, RequestTiles},
    {"avx512_vnni", HWY_AVX3, HasVnni},
    {"avx512", HWY_AVX3, Always},
    {"avx_vnni", HWY_AVX2, HasAvxVnni},
    {"avx2", HWY_AVX2, Always},
    {"sse4", HWY_SSE4, Always},
    {"neon", HWY_NEON, Always},
    {"scalar", HWY_EMU128 | HWY_SCALAR, Always},
}};

// Index of the chosen level. kLevels.size() means that no level was chosen yet.
std::atomic<std::size_t> chosen_level{kLevels.size()};

const IsaLevel& Chosen() {
  std::size_t level = chosen_level.load(std::memory_order_relaxed);
  if (level == kLevels.size()) {
    level = BestLevel(kLevels, hwy::SupportedTargets() & HWY_TARGETS);
    chosen_level.store(level, std::memory_order_relaxed);
  }
  return kLevels[level];
}

// Returns the Highway targets that the CPU and the build support. Removes the restriction to the
// targets of the chosen level.
std::int64_t UnrestrictedTargets() {
  hwy::SetSupportedTargetsForTest(0);
  return hwy::SupportedTargets() & HWY_TARGETS;
}

}  // namespace

absl::Status CheckLevel(const IsaLevel& level, std::int64_t targets) {
  if ((targets & level.target) == 0 || !level.has_features()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "instruction set ", level.name, " is not available on this CPU or in this build"));
  }
  const int error = level.request_registers == nullptr ? 0 : level.request_registers();
  if (error == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("instruction set ", level.name,
                   " is not available: the CPU has it, but the operating system denies this "
                   "process its registers (",
                   std::strerror(error), "); use auto"));
}

std::size_t BestLevel(std::span<const IsaLevel> levels, std::int64_t targets) {
  // Does not create a Status, because the first op of a process calls this function and must not
  // allocate.
  const auto can_use = [&](const IsaLevel& level) {
    return (targets & level.target) != 0 && level.has_features() &&
           (level.request_registers == nullptr || level.request_registers() == 0);
  };
  std::size_t best = 0;
  while (best + 1 < levels.size() && !can_use(levels[best])) ++best;
  return best;
}

absl::string_view ChosenIsa() {
  return Chosen().name;
}

CpuLevel ChosenLevel() {
  return static_cast<CpuLevel>(&Chosen() - kLevels.data());
}

std::vector<std::string> AvailableIsas() {
  const std::int64_t restricted = hwy::SupportedTargets();
  const std::int64_t usable = UnrestrictedTargets();
  hwy::SetSupportedTargetsForTest(restricted);
  std::vector<std::string> available;
  for (const IsaLevel& level : kLevels) {
    if (CheckLevel(level, usable).ok()) available.emplace_back(level.name);
  }
  return available;
}

void SetLevel(CpuLevel level) {
  const auto choice = static_cast<std::size_t>(level);
  const std::int64_t usable = UnrestrictedTargets();
  std::int64_t allowed = 0;
  for (std::size_t i = choice; i < kLevels.size(); ++i) allowed |= usable & kLevels[i].target;
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  chosen_level.store(choice, std::memory_order_relaxed);
}

absl::Status ChooseIsa(absl::string_view isa) {
  const std::int64_t usable = UnrestrictedTargets();
  std::size_t choice = isa == "auto" ? BestLevel(kLevels, usable) : 0;
  while (isa != "auto" && choice < kLevels.size() && kLevels[choice].name != isa) ++choice;
  if (choice == kLevels.size()) {
    std::string names = "auto";
    for (const IsaLevel& level : kLevels) absl::StrAppend(&names, ", ", level.name);
    return absl::InvalidArgumentError(
        absl::StrCat("instruction set ", isa, " is not one of ", names));
  }
  if (isa != "auto") QUIRE_RETURN_IF_ERROR(CheckLevel(kLevels[choice], usable));
  SetLevel(static_cast<CpuLevel>(choice));
  return absl::OkStatus();
}

}  // namespace quire::kernels::internal
