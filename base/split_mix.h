#pragma once

// The SplitMix64 generator, which maps adjacent inputs to unrelated outputs. It is used for
// reproducible dummy values and seeds, but not for secret keys.
//
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

#include <cstdint>

namespace quire {

// Constant that the generator adds to its state for each number.
inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

// Returns the first number of the generator that starts at `state`.
inline std::uint64_t SplitMix(std::uint64_t state) {
  state += kSplitMixStep;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

}  // namespace quire
