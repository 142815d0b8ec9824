#pragma once

// A 128-bit hash that a caller without the key cannot steer into a collision: HighwayHash-128, of
// Debian's libhighwayhash. Its result is the same on every instruction set; the library takes the
// best one that the processor has.
//
// Source: Alakuijala, Cox, Wassenberg, "Fast keyed hash/pseudo-random function using SIMD multiply
// and permute", arXiv:1612.06257; the tests carry the published known answers.

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

// The hash of the fragments one after the other: any split of the same bytes gives the same. A
// fragment of variable length must be preceded by its length, else two different lists of them may
// be one stream.
//
// Threads: any.
Hash128 KeyedHash(const HashKey& key, std::span<const std::span<const std::byte>> fragments);

// The same of one or two, without a list on the heap.
Hash128 KeyedHash(const HashKey& key, std::span<const std::byte> bytes,
                  std::span<const std::byte> more = {});

}  // namespace quire
