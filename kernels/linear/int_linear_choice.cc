// Chooses the integer matrix kernels for the instruction set of this process.

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <cstddef>

#include "kernels/backend/isa.h"
#include "kernels/linear/int_linear.h"

namespace quire::kernels::internal {
namespace {

// True if the CPU has the dot product instructions that the kernels of "neon" need. Not every
// 64-bit ARM CPU has them.
bool HasDotProducts() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}
bool Always() {
  return true;
}

struct Entry {
  const IntLinearKernels* kernels;
  bool (*is_available)() = Always;  // checked in addition to the level
};

// Sorted by CpuLevel.
constexpr std::array<Entry, kNumCpuLevels> kEntries = {{{&kIntLinearAmx},
                                                        {&kIntLinearAvx512Vnni},
                                                        {&kIntLinearAvx512},
                                                        {&kIntLinearAvxVnni},
                                                        {&kIntLinearAvx2},
                                                        {&kIntLinearSse4},
                                                        {&kIntLinearNeon, HasDotProducts},
                                                        {&kIntLinearScalar}}};

}  // namespace

const IntLinearKernels& ChosenIntLinear() {
  std::size_t level = static_cast<std::size_t>(ChosenLevel());
  while (kEntries[level].kernels->linear == nullptr || !kEntries[level].is_available()) ++level;
  return *kEntries[level].kernels;
}

}  // namespace quire::kernels::internal
