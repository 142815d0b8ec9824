#pragma once

// Defines for host and device which keys a query sees. Positions are absolute, so a mask does not
// depend on the chunking of a prompt. A score is scaled, then soft-capped, then masked. A sink is
// added to the denominator at the end.

#include <cstdint>

#include "base/host_device.h"

namespace quire::kernels {

// True if the query at position i sees the key at position j.
QUIRE_HOST_DEVICE constexpr bool CausalVisible(std::uint32_t i, std::uint32_t j) {
  return j <= i;
}

// Returns the first key in the window of position i. The window includes the token itself: key j is
// visible if 0 <= i - j < window. REQUIRES: window > 0.
QUIRE_HOST_DEVICE constexpr std::uint32_t WindowBegin(std::uint32_t i, std::uint32_t window) {
  return i >= window ? i - window + 1 : 0;
}

// Returns the first key in the chunk of position i. REQUIRES: chunk > 0.
QUIRE_HOST_DEVICE constexpr std::uint32_t ChunkBegin(std::uint32_t i, std::uint32_t chunk) {
  return i / chunk * chunk;
}

// Returns the first key that position i sees. A window or chunk of 0 is not used. REQUIRES: window
// == 0 || chunk == 0.
QUIRE_HOST_DEVICE constexpr std::uint32_t FirstVisible(std::uint32_t i, std::uint32_t window,
                                                       std::uint32_t chunk) {
  if (chunk != 0) return ChunkBegin(i, chunk);
  return window == 0 ? 0 : WindowBegin(i, window);
}

// The consecutive keys that a query sees.
struct VisibleKeys {
  std::uint32_t first;
  std::uint32_t others;  // number of keys minus 1

  QUIRE_HOST_DEVICE constexpr bool Has(std::uint32_t j) const { return j - first <= others; }
};

// Returns the keys from `first` to i, which the query at position i sees. REQUIRES: first <= i.
QUIRE_HOST_DEVICE constexpr VisibleKeys VisibleFrom(std::uint32_t first, std::uint32_t i) {
  return {first, i - first};
}

}  // namespace quire::kernels
