#pragma once

// Philox 4x32-10, a counter-based random number generator. The same key and counter give the same
// four words on every device and in any order, without state.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011,
// section 3.3; the tests contain the test vectors published with it.

#include <array>
#include <cstdint>

#include "base/host_device.h"

namespace quire {

// Returns four uniform 32-bit words. The low half of `key` is the first key word.
QUIRE_HOST_DEVICE constexpr std::array<std::uint32_t, 4> Philox4x32(
    std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  std::uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;  // the golden ratio
    k1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return {c0, c1, c2, c3};
}

}  // namespace quire
