#pragma once

// An integer that is comparable only with its own type, so that a BlockId cannot be used as a
// BatchRow.
//
//   using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
//   table[BatchRow{3}.value()]

#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace quire {

template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  explicit constexpr StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  template <typename H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  Rep value_{};
};

// One page of the KV pool; 0 is the null page.
using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
// The fixed index of a running sequence in the step arrays.
using BatchRow = StrongId<struct BatchRowTag, std::uint32_t>;

inline constexpr BlockId kNullBlock{0};

}  // namespace quire
