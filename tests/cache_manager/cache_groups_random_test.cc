// Random operations on caches of several layer groups, whose windows end at page boundaries and
// next to them.

#include <initializer_list>

#include "gtest/gtest.h"
#include "tests/cache_manager/cache_storm.h"

namespace quire::cache {
namespace {

constexpr std::uint32_t kP = kTestPageSize;
constexpr Hash128 kRoot{1, 1};
constexpr std::uint32_t kLongerThanAll = 1000;
constexpr std::initializer_list<std::uint32_t> kWindowSets[] = {{1},
                                                                {kP - 1},
                                                                {kP},
                                                                {kP + 1},
                                                                {3 * kP},
                                                                {kLongerThanAll},
                                                                {0, kP},
                                                                {kP + 1, 0},
                                                                {0, 0, 40},
                                                                {3 * kP, 1},
                                                                {0, kP - 1, 3 * kP, kP + 1},
                                                                {0, 0},
                                                                {1, kP, kP + 1, 3 * kP}};

// The pool fits as many columns as in the tests with one group.
CacheManagerOptions OptionsOf(std::initializer_list<std::uint32_t> windows) {
  CacheManagerOptions options = WithWindows(StormOptions(), windows);
  options.geometry.num_blocks = 12 + 28 * static_cast<std::uint32_t>(windows.size());
  return options;
}

template <typename Change>
Coverage RunAll(int operations, std::size_t max_in_flight, Change change,
                std::size_t slots_per_page = 0) {
  Coverage all;
  const std::uint32_t seed = Random().seed();
  for (std::size_t set = 0; set < std::size(kWindowSets); ++set) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " set " << set);
    CacheManagerOptions options = OptionsOf(kWindowSets[set]);
    change(options);
    Storm storm(options, seed, max_in_flight, slots_per_page);
    storm.Run(operations);
    if (::testing::Test::HasFailure()) break;
    all += storm.coverage();
  }
  return all;
}

TEST(CacheGroupsRandomTest, FollowTheModel) {
  const Coverage seen = RunAll(5000, 1, [](CacheManagerOptions&) {});
  EXPECT_GT(seen.exhausted, 10u);
  EXPECT_GT(seen.outdated, 10u);
  EXPECT_GT(seen.shared_pages, 1000u);
  EXPECT_GT(seen.short_matches, 100u);
  EXPECT_GT(seen.partial_copies, 1000u);
  EXPECT_GT(seen.adopted, 100u);
  EXPECT_GT(seen.released, 1000u);
  EXPECT_GT(seen.empty_nodes, 1000u);
  EXPECT_GT(seen.completed_nodes, 10u);
  EXPECT_GT(seen.forks, 100u);
  EXPECT_GT(seen.cleared, 100u);
  EXPECT_GT(seen.cancelled_copies, 10u);
  EXPECT_GT(seen.flushes, 10u);
  EXPECT_GT(seen.kept_tails, 100u);
  EXPECT_GT(seen.proven, 1000u);
}

TEST(CacheGroupsRandomTest, TwoStepsInFlightFollowTheModel) {
  const Coverage seen = RunAll(3000, 2, [](CacheManagerOptions&) {});
  EXPECT_GT(seen.shared_pages, 500u);
  EXPECT_GT(seen.adopted, 50u);
  EXPECT_GT(seen.released, 500u);
  EXPECT_GT(seen.held, 1000u);
  EXPECT_GT(seen.poisoned, 20u);
  EXPECT_GT(seen.proven, 500u);
}

TEST(CacheGroupsRandomTest, CollidingKeysNeverShareAWrongPage) {
  const Coverage seen =
      RunAll(2000, 1, [](CacheManagerOptions& options) { options.page_hash = &WeakPageHash; });
  EXPECT_GT(seen.shared_pages, 100u);
  EXPECT_GT(seen.released, 100u);
}

TEST(CacheGroupsRandomTest, TinyPoolsRunOutOfNodes) {
  const auto make_tiny = [](CacheManagerOptions& options) {
    options.geometry.num_blocks = 2 + 8 * static_cast<std::uint32_t>(options.groups.size());
    options.max_rows = 3;
  };
  const Coverage seen = RunAll(3000, 1, make_tiny, /*slots_per_page=*/2);
  EXPECT_GT(seen.exhausted, 1000u);
  EXPECT_GT(seen.released, 500u);
  EXPECT_GT(seen.full_trees, 10u);
}

TEST(CacheGroupsRandomTest, WithoutPrefixCaching) {
  const Coverage seen =
      RunAll(1000, 2, [](CacheManagerOptions& options) { options.prefix_caching = false; });
  EXPECT_EQ(seen.shared_pages, 0u);
  EXPECT_GT(seen.released, 500u);
}

// Rows publish and release all they may, with as many tokens ahead as the options allow.
TEST(CacheGroupsRandomTest, RowsOwnAtMostTheirDemand) {
  Random random;
  SCOPED_TRACE(::testing::Message() << "seed " << random.seed());
  for (const std::initializer_list<std::uint32_t> windows : kWindowSets) {
    CacheManagerOptions options = WithWindows(TinyOptions(400, 2, 1024), windows);
    options.max_row_overlap_tokens = 1 + random.Below(50);
    const auto cache = MakeCache(options);
    std::uint32_t most = 0;
    for (int repeat = 0; repeat < 20; ++repeat) {
      const BatchRow row{0};
      Tokens tokens(900);
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.Below(2));
      auto keys = KeysOf(options, kRoot, tokens);
      const PrefixMatch match = cache->Match(tokens, keys, kRoot, random.Below(tokens.size()));
      ASSERT_TRUE(cache->Attach(row, match, kRoot).ok());
      std::uint32_t computed = match.num_tokens;
      while (computed < tokens.size()) {
        const auto left = static_cast<std::uint32_t>(tokens.size()) - computed;
        const std::uint32_t ahead =
            std::min(left, 1 + random.Below(options.max_row_overlap_tokens));
        ASSERT_TRUE(cache->Reserve(row, computed + ahead).ok());
        const std::uint32_t pages = cache->num_pages(row);
        ASSERT_LE(pages, cache->demand().PagesFor(computed + ahead));
        ASSERT_EQ(cache->reserved_tokens(row), (computed + ahead + kP - 1) / kP * kP);
        most = std::max(most, pages);
        cache->TakeCopies();
        const RowStep step{row, computed, ahead};
        cache->PrepareStep(std::span(&step, 1));
        cache->CompleteStep();
        computed += ahead;
        cache->Publish(row, tokens, &keys, computed);
        cache->ReleaseOutsideWindow(row, computed);
      }
      cache->Free(row);
    }
    EXPECT_LE(most, cache->demand().PagesFor(900));
    EXPECT_GE(most + options.groups.size(), cache->demand().PagesFor(900)) << "too cautious";
  }
}

}  // namespace
}  // namespace quire::cache
