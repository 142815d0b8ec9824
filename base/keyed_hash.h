#pragma once

// A 128-bit keyed hash: HighwayHash-128 from Debian's libhighwayhash. A client that does not know
// the key cannot construct collisions. The result is the same on every instruction set. The library
// uses the fastest instruction set that the processor supports.
//
// Source: Alakuijala, Cox, Wassenberg, "Fast keyed hash/pseudo-random function using SIMD multiply
// and permute", arXiv:1612.06257; the tests contain the published test vectors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace quire {

struct Hash128 {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;

  friend constexpr bool operator==(const Hash128&, const Hash128&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Hash128& hash) {
    return H::combine(std::move(state), hash.lo, hash.hi);
  }
};

struct HashKey {
  std::array<std::uint64_t, 4> words{};

  friend constexpr bool operator==(const HashKey&, const HashKey&) = default;
};

// Hashes the concatenation of the fragments, so any split of the same bytes gives the same hash. A
// fragment of variable length must be preceded by its length; otherwise different lists of
// fragments may have the same concatenation.
//
// Threads: any.
Hash128 KeyedHash(const HashKey& key, std::span<const std::span<const std::byte>> fragments);

// Hashes one or two fragments without allocating a list.
Hash128 KeyedHash(const HashKey& key, std::span<const std::byte> bytes,
                  std::span<const std::byte> more = {});

}  // namespace quire
