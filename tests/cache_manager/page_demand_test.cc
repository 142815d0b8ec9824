#include "cache_manager/pool/page_demand.h"

#include <vector>

#include "gtest/gtest.h"

namespace quire::cache {
namespace {

TEST(PageDemandTest, GroupsWithoutWindowNeedAPagePerPageOfTokens) {
  const PageDemand one(16, std::vector<CacheGroup>{{0}}, 0);
  const PageDemand three(16, std::vector<CacheGroup>(3), 0);
  for (const auto& [tokens, pages] :
       {std::pair{0u, 0u}, {1u, 1u}, {16u, 1u}, {17u, 2u}, {0xffffffffu, 1u << 28}}) {
    EXPECT_EQ(one.PagesFor(tokens), pages);
    EXPECT_EQ(three.PagesFor(tokens), 3 * pages);
  }
  EXPECT_EQ(one.SharedPagesFor(47), 2u);
  EXPECT_EQ(three.SharedPagesFor(47), 6u);
}

// Counts the maximum number of pages touched by any run of tokens that a row owns.
TEST(PageDemandTest, WindowGroupsNeedPagesOfTheWindowAndTokensAhead) {
  constexpr std::uint32_t kPage = 16;
  for (const std::uint32_t window : {1u, 2u, 15u, 16u, 17u, 18u, 33u, 48u, 100u}) {
    for (const std::uint32_t ahead : {1u, 2u, 15u, 16u, 17u, 64u}) {
      const PageDemand demand(kPage, std::vector<CacheGroup>{{window}}, ahead);
      std::uint32_t most = 0;
      for (std::uint32_t computed = 0; computed < 400; ++computed) {
        const std::uint32_t oldest = computed < window ? 0 : computed - window + 1;
        const std::uint32_t last_full = computed / kPage == 0 ? 0 : computed / kPage - 1;
        const std::uint32_t first = std::min(oldest / kPage, last_full);
        most = std::max(most, (computed + ahead - 1) / kPage - first + 1);
      }
      EXPECT_EQ(demand.PagesFor(400 + 64), most) << window << " " << ahead;
      EXPECT_EQ(demand.PagesFor(kPage), 1u);
      EXPECT_EQ(demand.SharedPagesFor(400), 0u);
    }
  }
}

TEST(PageDemandTest, GroupsAddUp) {
  const PageDemand demand(16, std::vector<CacheGroup>{{0}, {16}, {0}, {16}}, 1);
  EXPECT_EQ(demand.PagesFor(16), 4u);
  EXPECT_EQ(demand.PagesFor(1600), 2 * 100 + 2 * 2u);
  EXPECT_EQ(demand.SharedPagesFor(33), 4u);
  EXPECT_EQ(demand.HistoryPages(1601), 4 * 101u);
  EXPECT_EQ(demand.num_groups(), 4u);
  EXPECT_EQ(demand.num_window_groups(), 2u);
  EXPECT_TRUE(demand.has_windows());
  EXPECT_FALSE(PageDemand(16, std::vector<CacheGroup>{{0}, {0}}, 1).has_windows());
}

}  // namespace
}  // namespace quire::cache
