#pragma once

// Collectives of a warp: convergence, shuffles and votes.

#include <cstdint>
#include <cstring>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

enum class ShuffleKind : std::uint8_t { kXor, kLane, kUp };

void SyncWarp(const char* name, std::uint32_t mask);
std::uint32_t Ballot(bool value, std::uint32_t mask);
// Returns the value of the lane selected by `kind` and `operand`. A lane that did not take part
// gives all bits set.
std::uint64_t ShuffleBits(std::uint64_t value, ShuffleKind kind, std::uint32_t operand,
                          std::uint32_t mask);

template <typename T>
T Shuffle(T value, ShuffleKind kind, std::uint32_t operand, std::uint32_t mask) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ShuffleBits(bits, kind, operand, mask);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace quire::cuda_emulator
