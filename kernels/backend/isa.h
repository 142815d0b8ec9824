#pragma once

// Selects which of the compiled instruction sets the kernels of this process use.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quire::kernels::internal {

// The compiled instruction sets, best first.
enum class CpuLevel : std::uint8_t {
  kAmx,
  kAvx512Vnni,
  kAvx512,
  kAvxVnni,
  kAvx2,
  kSse4,
  kNeon,
  kScalar,
};
inline constexpr std::size_t kNumCpuLevels = 8;

// An instruction set and the conditions under which this process can use it.
struct IsaLevel {
  absl::string_view name;
  std::int64_t target;     // the Highway target that the level needs
  bool (*has_features)();  // true if the CPU and the build have all other features
  // Requests registers that Linux enables for a process only on request. Returns 0, or an errno if
  // Linux denies the request. Null if the level needs no such registers.
  int (*request_registers)() = nullptr;
};

// Checks that `targets`, a set of Highway targets, and the CPU support `level`, then requests its
// registers. Returns FAILED_PRECONDITION with the cause if the level cannot be used.
absl::Status CheckLevel(const IsaLevel& level, std::int64_t targets);
// Returns the index of the first level that CheckLevel accepts, or of the last level if it accepts
// none.
std::size_t BestLevel(std::span<const IsaLevel> levels, std::int64_t targets);

// These functions implement Backend::isa, SelectCpuIsa and AvailableCpuIsas (backend.h).
// kernels/linear uses ChosenLevel.
absl::string_view ChosenIsa();
CpuLevel ChosenLevel();
absl::Status ChooseIsa(absl::string_view isa);
std::vector<std::string> AvailableIsas();
// Chooses a level without checking that the machine supports it. Tests use it with instructions
// that run in software.
void SetLevel(CpuLevel level);

}  // namespace quire::kernels::internal
