#pragma once

// The passes of the sampler that touch a whole row of the vocabulary, one function each, compiled
// per instruction set. Results do not depend on the width of a register.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/sampling/sigma.h"

namespace quire::kernels::internal {

struct LogitScan {
  float max;        // -infinity when there is nothing else; unspecified when non_finite
  bool non_finite;  // NaN or +infinity is present
};
LogitScan ScanLogits(const float* z, std::size_t count);

// sum exp(z - max) in parts of 4096 with 16 virtual lanes, parts added in f64 in order.
double SumOfExp(const float* z, std::size_t count, float max);

// x = x * factor, kept finite unless x was -infinity; returns the largest.
float ScaleLogits(float* x, std::size_t count, float factor);

// In the order of sigma.h.
Moments MomentsOf(const float* x, std::size_t count);

// The first index with x == value; count when there is none.
std::size_t FindFirst(const float* x, std::size_t count, float value);

// How many x are larger than `value`, those that are equal and stand before `before` included.
std::size_t CountBefore(const float* x, std::size_t count, float value, std::size_t before);

// Values in [low, high) of `values`, in order, with their ids; returns how many. `ids` null: the
// places of the values, counted from `first_id`. The outputs may be the inputs, and need room for
// `count`.
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

// Sums of floor(exp(x - max) * 2^40) over the x at or above each cut. REQUIRES: max is the largest
// x.
inline constexpr std::size_t kMassCuts = 4;
using MassCuts = std::array<float, kMassCuts>;
using Masses = std::array<std::uint64_t, kMassCuts>;
Masses MassesAtLeast(const float* x, std::size_t count, float max, const MassCuts& cuts);

// w = exp(x - max).
void ExpMinus(const float* x, std::size_t count, float max, float* w);

// The first tokens in order of (x descending, id ascending).
struct Prefix {
  float x;                                                           // everything above is in,
  std::int32_t last_tie = std::numeric_limits<std::int32_t>::max();  // and equal ones up to this id
};

// Step 10 of sampling.h among the tokens of the prefix. REQUIRES: there are some, prefix.x is
// finite, and max is the largest x.
struct RaceKey {
  std::uint64_t seed;
  std::uint32_t position;
  std::uint32_t choice;
};
std::int32_t Race(const float* x, std::size_t count, float max, const Prefix& prefix,
                  const RaceKey& key);
// The same among `from`, ids ascending and not null, which holds the whole prefix. A token costs
// four times as much here, since four neighbours of a row share their random words.
std::int32_t RaceAmong(const IdsAndValues& from, float max, const Prefix& prefix,
                       const RaceKey& key);

}  // namespace quire::kernels::internal
