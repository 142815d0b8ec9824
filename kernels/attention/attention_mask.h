#pragma once

// Which keys a query sees, one definition for host and device. Positions are absolute, so a mask
// does not depend on how a prompt was cut into steps. The order of what is done to a score is
// fixed: scale, softcap, mask; a sink joins the denominator at the end.

#include <cstdint>

#include "base/host_device.h"

namespace quire::kernels {

// Query at position i, key at position j.
QUIRE_HOST_DEVICE constexpr bool CausalVisible(std::uint32_t i, std::uint32_t j) {
  return j <= i;
}

// The window counts the token itself: 0 <= i - j < window.
QUIRE_HOST_DEVICE constexpr bool WindowVisible(std::uint32_t i, std::uint32_t j,
                                               std::uint32_t window) {
  return CausalVisible(i, j) && i - j < window;
}

// First key that a window lets position i see. REQUIRES: window > 0.
QUIRE_HOST_DEVICE constexpr std::uint32_t WindowBegin(std::uint32_t i, std::uint32_t window) {
  return i >= window ? i - window + 1 : 0;
}

}  // namespace quire::kernels
