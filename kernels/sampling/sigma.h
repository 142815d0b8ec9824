#pragma once

// The border of top-n-sigma, with the same bits on host and device: the sums of a row run in an
// order that both can follow, and each fused multiply-add is written down.
//
// A row lies in kSigmaStripes stripes, of which each has kSigmaLanes lanes: lane l adds up, in f64,
// the finite values at l, l + kSigmaLanes, ... of its stripe, and their squares, which f64 holds
// exactly. Groups of kSigmaGroup lanes add up in pairs whose numbers differ in one bit, from the
// highest bit on, then the groups of a stripe in order, then the stripes in order.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace quire::kernels::internal {

inline constexpr std::uint32_t kSigmaStripes = 8;
inline constexpr std::uint32_t kSigmaLanes = 256;
inline constexpr std::uint32_t kSigmaGroup = 32;

// Values of one of `stripes` stripes: a multiple of 4, and the last ones may have fewer or none.
QUIRE_HOST_DEVICE constexpr std::uint32_t StripeLength(std::uint32_t vocab, std::uint32_t stripes) {
  return (vocab / (4 * stripes) + 1) * 4;
}

// Of the finite values of a stripe, or of a row.
struct Moments {
  double sum = 0;
  double squares = 0;
  std::uint64_t count = 0;
};

// The smallest x that top-n-sigma keeps, where max is the largest. REQUIRES: count is not 0.
QUIRE_HOST_DEVICE inline float SigmaBorder(const Moments& moments, float max, float n) {
  const double count = static_cast<double>(moments.count);
  const double mean = moments.sum / count;
  const double variance = fma(-mean, mean, moments.squares / count);
  const double sigma = variance > 0 ? sqrt(variance) : 0.0;
  const double border = fma(-static_cast<double>(n), sigma, static_cast<double>(max));
  return border > -3.4028234663852886e38 ? static_cast<float>(border) : -3.4028234663852886e38f;
}

}  // namespace quire::kernels::internal
