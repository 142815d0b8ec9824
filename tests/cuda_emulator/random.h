#pragma once

// The emulator's random numbers: small, fast, and equal on every machine.

#include <cstdint>

namespace quire::cuda_emulator {

class Random {
 public:
  explicit Random(std::uint64_t seed = 0) : state_(seed) {}

  // SplitMix64 (Steele, Lea and Flood).
  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n). REQUIRES: n > 0.
  std::uint32_t Below(std::uint32_t n) {
    return static_cast<std::uint32_t>(((Next() >> 32) * n) >> 32);
  }

 private:
  std::uint64_t state_;
};

}  // namespace quire::cuda_emulator
