#pragma once

// The threshold of top-n-sigma, with the same bits on host and device. The sums of a row have an
// order that both can follow, and each fused multiply-add is explicit.
//
// A row is split into kSigmaStripes stripes of kSigmaLanes lanes. Lane l adds, in f64, the finite
// values at l, l + kSigmaLanes, ... of its stripe. It also adds their squares, which f64 represents
// exactly. Each group of kSigmaGroup lanes is reduced by a butterfly from the highest bit on. Then
// the groups of a stripe are added in order, then the stripes.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace quire::kernels::internal {

inline constexpr std::uint32_t kSigmaStripes = 8;
inline constexpr std::uint32_t kSigmaLanes = 256;
inline constexpr std::uint32_t kSigmaGroup = 32;

// Returns the number of values per stripe, a multiple of 4. The last stripes may have fewer or
// none.
QUIRE_HOST_DEVICE constexpr std::uint32_t StripeLength(std::uint32_t vocab, std::uint32_t stripes) {
  return (vocab / (4 * stripes) + 1) * 4;
}

// Number, sum and sum of squares of the finite values of a stripe or a row.
struct Moments {
  double sum = 0;
  double squares = 0;
  std::uint64_t count = 0;
};

// Returns the smallest x that top-n-sigma keeps; `max` is the largest x. REQUIRES: count is not 0.
QUIRE_HOST_DEVICE inline float SigmaCutoff(const Moments& moments, float max, float n) {
  const double count = static_cast<double>(moments.count);
  const double mean = moments.sum / count;
  const double variance = fma(-mean, mean, moments.squares / count);
  const double sigma = variance > 0 ? sqrt(variance) : 0.0;
  const double cutoff = fma(-static_cast<double>(n), sigma, static_cast<double>(max));
  return cutoff > -3.4028234663852886e38 ? static_cast<float>(cutoff) : -3.4028234663852886e38f;
}

}  // namespace quire::kernels::internal
