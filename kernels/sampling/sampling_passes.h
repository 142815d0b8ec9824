#pragma once

// The passes of the sampler over a whole row, compiled once per instruction set. Results do not
// depend on the vector width.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/sampling/sigma.h"

namespace quire::kernels::internal {

struct LogitScan {
  float max;        // -infinity if all logits are -infinity; unspecified if non_finite
  bool non_finite;  // true if there is a NaN or +infinity
};
LogitScan ScanLogits(const float* z, std::size_t count);

// Computes the sum of exp(z - max) in the order of sampling.h.
double SumOfExp(const float* z, std::size_t count, float max);

// Computes x = x * factor, clamped to finite values unless x is -infinity. Returns the maximum.
float ScaleLogits(float* x, std::size_t count, float factor);

// Computes the moments in the order of sigma.h.
Moments MomentsOf(const float* x, std::size_t count);

// Returns the first index with x == value, or count.
std::size_t FindFirst(const float* x, std::size_t count, float value);

// Returns how many x are larger than `value`, plus how many are equal and have an index below
// `before`.
std::size_t CountBefore(const float* x, std::size_t count, float value, std::size_t before);

// Collects the values in [low, high) in order, with their ids, and returns how many there are. If
// `ids` is null, the id of a value is its index plus `first_id`. Outputs may alias inputs and must
// have room for `count` elements.
struct ValueRange {
  float low;
  float high = std::numeric_limits<float>::infinity();
};
struct IdsAndValues {
  const std::int32_t* ids;
  std::int32_t first_id;
  const float* values;
  std::size_t count;
};
std::size_t CollectBetween(const IdsAndValues& from, ValueRange range, std::int32_t* ids,
                           float* values);

// For each cut, sums floor(exp(x - max) * 2^40) over all x >= cut. REQUIRES: max is the largest x.
inline constexpr std::size_t kMassCuts = 4;
using MassCuts = std::array<float, kMassCuts>;
using Masses = std::array<std::uint64_t, kMassCuts>;
Masses MassesAtLeast(const float* x, std::size_t count, float max, const MassCuts& cuts);

// Computes w[i] = exp(x[i] - max).
void ExpMinus(const float* x, std::size_t count, float max, float* w);

// A prefix of the tokens in the order (x descending, id ascending). It contains the tokens with a
// value above `x`, and those with value `x` and an id of at most last_tie.
struct Prefix {
  float x;
  std::int32_t last_tie = std::numeric_limits<std::int32_t>::max();
};

// Runs step 10 of sampling.h among the tokens of the prefix. REQUIRES: the prefix is not empty,
// prefix.x is finite, and max is the largest x.
struct RaceKey {
  std::uint64_t seed;
  std::uint32_t position;
  std::uint32_t choice;
};
std::int32_t Race(const float* x, std::size_t count, float max, const Prefix& prefix,
                  const RaceKey& key);
// Runs step 10 like Race, but reads only the tokens of `from`. REQUIRES: from.ids is not null and
// ascending, and `from` contains the whole prefix. A token costs four times as much as in Race,
// where four adjacent tokens share a block of random words.
std::int32_t RaceAmong(const IdsAndValues& from, float max, const Prefix& prefix,
                       const RaceKey& key);

}  // namespace quire::kernels::internal
