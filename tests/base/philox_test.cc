#include "base/philox.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known results of the paper's library (Random123, kat_vectors, philox 4x32 10).
static_assert(Philox4x32({0, 0, 0, 0}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});

TEST(PhiloxTest, EqualsTheKnownResults) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, ~std::uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key words a4093822 299f31d0.
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EveryInputBitMatters) {
  const Words base = Philox4x32({1, 2, 3, 4}, 5);
  for (unsigned bit = 0; bit < 64; ++bit) {
    EXPECT_NE(Philox4x32({1, 2, 3, 4}, 5 ^ (std::uint64_t{1} << bit)), base);
  }
  for (std::size_t word = 0; word < 4; ++word) {
    for (unsigned bit = 0; bit < 32; ++bit) {
      Words counter = {1, 2, 3, 4};
      counter[word] ^= 1u << bit;
      EXPECT_NE(Philox4x32(counter, 5), base);
    }
  }
}

}  // namespace
}  // namespace quire
