#pragma once

// A 128-bit hash that a caller without the key cannot steer into a collision: HighwayHash-128. Its
// result is the same on every instruction set; where the processor has AVX2 the four lanes are
// mixed at once.
//
// Source: Alakuijala, Cox, Wassenberg, "Fast keyed hash/pseudo-random function using SIMD multiply
// and permute", arXiv:1612.06257; the tests carry the published known answers.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"

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

// Hashes a stream: any split of the same bytes into Updates gives the same result. A
// variable-length field must be preceded by its length, else two different lists of fields may be
// one stream.
//
// Threads: not thread-safe. Copyable: a copy continues from the same prefix.
class KeyedHasher {
 public:
  // Without `vectors` the lanes are mixed one by one, which every processor can.
  explicit KeyedHasher(const HashKey& key, bool vectors = HasVectors());
  static bool HasVectors();

  KeyedHasher& Update(std::span<const std::byte> bytes);
  KeyedHasher& Update(absl::string_view text);

  // The value's own bytes. Only for types whose equal values have equal bytes (no padding).
  template <typename T>
  requires std::has_unique_object_representations_v<T> KeyedHasher& UpdateValue(const T& value) {
    return Update(std::as_bytes(std::span<const T, 1>(&value, 1)));
  }

  // The hash of everything so far; more may follow.
  Hash128 Finish() const;

 private:
  struct State {
    std::array<std::uint64_t, 4> v0, v1, mul0, mul1;
  };
  // Whole packets of 32 bytes.
  void MixPackets(const std::byte* packets, std::size_t count);

  bool vectors_;
  State state_;
  std::array<std::byte, 32> pending_{};  // the first num_pending_ bytes wait for a full packet
  std::size_t num_pending_ = 0;
};

Hash128 KeyedHash(const HashKey& key, std::span<const std::byte> bytes);

}  // namespace quire
