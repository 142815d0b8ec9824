#pragma once

// Defines for host and device which keys a query sees. Positions are absolute, so a mask does not
// depend on the chunking of a prompt. A score is scaled, then soft-capped, then masked; a sink is
// added to the denominator at the end.

#include <cstdint>

#include "base/host_device.h"

namespace quire::kernels {

// Query at position i, key at position j.
QUIRE_HOST_DEVICE constexpr bool CausalVisible(std::uint32_t i, std::uint32_t j) {
  return j <= i;
}

// The window includes the token itself: 0 <= i - j < window.
QUIRE_HOST_DEVICE constexpr bool WindowVisible(std::uint32_t i, std::uint32_t j,
                                               std::uint32_t window) {
  return CausalVisible(i, j) && i - j < window;
}

// Returns the first key in the window of position i. REQUIRES: window > 0.
QUIRE_HOST_DEVICE constexpr std::uint32_t WindowBegin(std::uint32_t i, std::uint32_t window) {
  return i >= window ? i - window + 1 : 0;
}

}  // namespace quire::kernels
