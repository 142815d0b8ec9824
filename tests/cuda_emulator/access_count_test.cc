#include "tests/cuda_emulator/access_count.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace quire::cuda_emulator {
namespace {

constexpr std::uint32_t kAllLanes = 0xffffffffu;

// Returns the passes, and the passes due to conflicts. Lane i accesses address i * stride.
std::pair<std::uint32_t, std::uint32_t> PassesOf(std::uint32_t stride, std::uint32_t bytes,
                                                 std::uint32_t lanes = kAllLanes) {
  std::uint64_t addresses[32];
  for (std::uint64_t lane = 0; lane < 32; ++lane) addresses[lane] = 64 + lane * stride;
  std::uint32_t least = 0;
  const std::uint32_t passes = SharedPasses(addresses, lanes, bytes, &least);
  return {passes, least};
}

TEST(SharedPassesTest, CountsWordsOfOneBank) {
  using Counts = std::pair<std::uint32_t, std::uint32_t>;
  EXPECT_EQ(PassesOf(4, 4), Counts(1, 1));
  EXPECT_EQ(PassesOf(0, 4), Counts(1, 1));     // all lanes read the same word
  EXPECT_EQ(PassesOf(1, 1), Counts(1, 1));     // four lanes per word
  EXPECT_EQ(PassesOf(8, 4), Counts(2, 1));     // every second bank
  EXPECT_EQ(PassesOf(128, 4), Counts(32, 1));  // one bank
  EXPECT_EQ(PassesOf(132, 4), Counts(1, 1));   // rows padded by one word
  EXPECT_EQ(PassesOf(8, 8), Counts(2, 2));
  EXPECT_EQ(PassesOf(16, 16), Counts(4, 4));
  EXPECT_EQ(PassesOf(128, 16), Counts(32, 4));  // rows of an unswizzled tile
  EXPECT_EQ(PassesOf(144, 16), Counts(4, 4));
  EXPECT_EQ(PassesOf(128, 4, 0x3), Counts(2, 1));
  EXPECT_EQ(PassesOf(128, 4, 0), Counts(0, 0));
}

TEST(SectorsTest, CountsThirtyTwoBytes) {
  const auto sectors = [](std::uint32_t first, std::uint32_t stride, std::uint32_t bytes) {
    std::uint64_t addresses[32];
    for (std::uint64_t lane = 0; lane < 32; ++lane) addresses[lane] = first + lane * stride;
    std::uint32_t distinct = 0;
    const std::uint32_t count = Sectors(addresses, kAllLanes, bytes, &distinct);
    return std::pair(count, distinct);
  };
  using Counts = std::pair<std::uint32_t, std::uint32_t>;
  EXPECT_EQ(sectors(0, 4, 4), Counts(4, 128));
  EXPECT_EQ(sectors(4, 4, 4), Counts(5, 128));
  EXPECT_EQ(sectors(0, 16, 16), Counts(16, 512));
  EXPECT_EQ(sectors(0, 64, 4), Counts(32, 128));
  EXPECT_EQ(sectors(0, 0, 4), Counts(1, 4));
}

}  // namespace
}  // namespace quire::cuda_emulator
