// Random operations on a cache with one group and no window. cache_groups_random_test.cc covers
// others.

#include "gtest/gtest.h"
#include "tests/cache_manager/cache_storm.h"

namespace quire::cache {
namespace {

TEST(CacheManagerRandomTest, FollowsTheModelOver100000Operations) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Storm storm(StormOptions(), seed);
  storm.Run(100000);
  const Coverage& seen = storm.coverage();
  EXPECT_GT(seen.exhausted, 100u);
  EXPECT_GT(seen.outdated, 10u);
  EXPECT_GT(seen.shared_pages, 1000u);
  EXPECT_GT(seen.partial_copies, 1000u);
  EXPECT_GT(seen.adopted, 100u);
  EXPECT_GT(seen.forks, 100u);
  EXPECT_GT(seen.cleared, 100u);
  EXPECT_GT(seen.cancelled_copies, 50u);
  EXPECT_GT(seen.flushes, 50u);
  EXPECT_GT(seen.kept_tails, 100u);
  EXPECT_GT(seen.proven, 1000u);
  EXPECT_GT(storm.stats().evicted_pages, 1000u);
  EXPECT_EQ(storm.stats().collisions, 0u);
}

TEST(CacheManagerRandomTest, TwoStepsInFlightFollowTheModel) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Storm storm(StormOptions(), seed, /*max_in_flight=*/2);
  storm.Run(50000);
  const Coverage& seen = storm.coverage();
  EXPECT_GT(seen.shared_pages, 500u);
  EXPECT_GT(seen.partial_copies, 500u);
  EXPECT_GT(seen.adopted, 50u);
  EXPECT_GT(seen.cleared, 50u);
  EXPECT_GT(seen.kept_tails, 50u);
  EXPECT_GT(seen.held, 1000u);
  EXPECT_GT(seen.poisoned, 50u);
  EXPECT_GT(seen.proven, 1000u);
  EXPECT_GT(storm.stats().evicted_pages, 500u);
}

// A slot for each row and a few for snapshots, so that most snapshots are evicted.
CacheManagerOptions StateOptions() {
  CacheManagerOptions options = StormOptions();
  options.num_state_slots = 1 + options.max_rows + 4;
  options.state_interval_tokens = 3 * kTestPageSize;
  return options;
}

TEST(CacheManagerRandomTest, StatesFollowTheModelOver100000Operations) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Storm storm(StateOptions(), seed);
  storm.Run(100000);
  const Coverage& seen = storm.coverage();
  EXPECT_GT(seen.exhausted, 100u);
  EXPECT_GT(seen.outdated, 10u);
  EXPECT_GT(seen.shared_pages, 1000u);
  EXPECT_GT(seen.adopted, 100u);
  EXPECT_GT(seen.forks, 100u);
  EXPECT_GT(seen.flushes, 50u);
  EXPECT_GT(seen.kept_tails, 100u);
  EXPECT_GT(seen.state_hits, 1000u);
  EXPECT_GT(seen.partial_states, 50u);
  EXPECT_GT(seen.tokens_without_state, 1000u);
  EXPECT_GT(seen.snapshots, 1000u);
  EXPECT_GT(seen.evicted_states, 100u);
  EXPECT_GT(seen.shared_states, 50u);
}

TEST(CacheManagerRandomTest, StatesWithRoomForAll) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  CacheManagerOptions options = StateOptions();
  options.num_state_slots = 100;
  options.state_interval_tokens = 0;
  Storm storm(options, seed);
  storm.Run(30000);
  EXPECT_GT(storm.coverage().state_hits, 500u);
  EXPECT_GT(storm.coverage().partial_states, 50u);
}

TEST(CacheManagerRandomTest, StatesWithoutPartialPages) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  CacheManagerOptions options = StateOptions();
  options.partial_page_reuse = false;
  Storm storm(options, seed);
  storm.Run(20000);
  EXPECT_GT(storm.coverage().state_hits, 500u);
  EXPECT_EQ(storm.coverage().partial_states, 0u);
}

TEST(CacheManagerRandomTest, StatesWithoutPrefixCaching) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  CacheManagerOptions options = StateOptions();
  options.prefix_caching = false;
  Storm storm(options, seed);
  storm.Run(20000);
  EXPECT_EQ(storm.coverage().state_hits, 0u);
  EXPECT_EQ(storm.coverage().snapshots, 0u);
  EXPECT_GT(storm.coverage().forks, 50u);
}

TEST(CacheManagerRandomTest, CollidingKeysNeverShareAWrongPage) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  CacheManagerOptions options = StormOptions();
  options.page_hash = &WeakPageHash;
  Storm storm(options, seed);
  storm.Run(30000);
  EXPECT_GT(storm.stats().collisions, 1000u);
  EXPECT_GT(storm.coverage().shared_pages, 100u);
}

TEST(CacheManagerRandomTest, WithoutPartialPages) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  CacheManagerOptions options = StormOptions();
  options.partial_page_reuse = false;
  Storm storm(options, seed);
  storm.Run(20000);
  EXPECT_GT(storm.coverage().shared_pages, 1000u);
}

TEST(CacheManagerRandomTest, WithoutPrefixCaching) {
  const std::uint32_t seed = Random().seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  CacheManagerOptions options = StormOptions();
  options.prefix_caching = false;
  Storm storm(options, seed);
  storm.Run(20000);
  EXPECT_EQ(storm.coverage().shared_pages, 0u);
  EXPECT_EQ(storm.stats().cached_pages, 0u);
}

TEST(CacheManagerRandomTest, EqualOperationsTakeAndEvictEqualPages) {
  Storm first(StormOptions(), 12345);
  Storm second(StormOptions(), 12345);
  first.Run(3000);
  second.Run(3000);
  EXPECT_GT(first.stats().evicted_pages, 100u);
  EXPECT_EQ(first.trace(), second.trace());
}

}  // namespace
}  // namespace quire::cache
