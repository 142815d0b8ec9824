#pragma once

// Which of the compiled instruction sets the kernels of this process use.

#include <cstddef>
#include <cstdint>

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

// Place: under backend.h, which documents all of these.
absl::string_view ChosenIsa();
CpuLevel ChosenLevel();
absl::Status ChooseIsa(absl::string_view isa);

}  // namespace quire::kernels::internal
