// Tests of CacheManager with several layer groups: windows, released pages, and nodes that lack
// pages.

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/cache_manager_fixture.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CacheGroupsCreateTest, RejectsInvalidGroups) {
  CacheManagerOptions options = WithWindows(TinyOptions(8), {});
  EXPECT_THAT(CacheManager::Create(options).status().message(), HasSubstr("number of groups is 0"));
  options = WithWindows(TinyOptions(8), {0, 5});
  options.max_row_overlap_tokens = 0;
  EXPECT_THAT(CacheManager::Create(options).status().message(),
              HasSubstr("max_row_overlap_tokens is 0"));
  options = WithWindows(TinyOptions(8), {0, 0});
  options.max_row_overlap_tokens = 0;
  EXPECT_TRUE(CacheManager::Create(options).ok());
}

// The first group has no window, the second one has a window of kWindow tokens.
constexpr std::uint32_t kWindow = 2 * kP;

class CacheGroupsTest : public CacheManagerTest {
 protected:
  explicit CacheGroupsTest(CacheManagerOptions options = WithWindows(TinyOptions(40), {0, kWindow}))
      : CacheManagerTest(std::move(options)) {}

  LookupTable& table(std::size_t group) const { return CacheManagerPeer::table(*cache_, group); }
  PrefixCache& prefixes() { return CacheManagerPeer::prefixes(*cache_); }
  BlockPool& pool() { return CacheManagerPeer::pool(*cache_); }
  // Returns the columns of the last group in which the row has a page.
  std::vector<std::uint32_t> HeldColumns(BatchRow row) const {
    std::vector<std::uint32_t> held;
    const LookupTable& last = table(options_.groups.size() - 1);
    for (std::uint32_t column = 0; column < last.max_pages(); ++column) {
      if (last.has_page(row, column)) held.push_back(column);
    }
    return held;
  }
  void Release(BatchRow row, std::uint32_t computed) {
    cache_->ReleaseOutsideWindow(row, computed);
    EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  }
  // Computes, publishes and releases `tokens` one page at a time.
  void Run(BatchRow row, const Tokens& tokens) {
    const PrefixMatch match = Match(tokens);
    ASSERT_TRUE(cache_->Attach(row, match, kRoot).ok());
    auto keys = KeysOf(options_, kRoot, tokens);
    const auto size = static_cast<std::uint32_t>(tokens.size());
    for (std::uint32_t computed = match.num_tokens; computed < size;) {
      const std::uint32_t count = std::min(kP, size - computed);
      ASSERT_TRUE(cache_->Reserve(row, size, computed + count).ok());
      const RowStep step{row, computed, count};
      cache_->TakeCopies();
      cache_->PrepareStep(std::span(&step, 1));
      cache_->CompleteStep();
      computed += count;
      cache_->Publish(row, tokens, &keys, computed);
      Release(row, computed);
    }
  }
};

TEST_F(CacheGroupsTest, EachGroupHasItsOwnPagesOfOnePool) {
  StartAndPublish(kA, Count(40));
  EXPECT_EQ(cache_->num_groups(), 2u);
  EXPECT_EQ(cache_->num_pages(kA), 6u);
  EXPECT_EQ(cache_->num_private_pages(kA), 6u);
  EXPECT_EQ(cache_->reserved_tokens(kA), 48u);
  EXPECT_EQ(cache_->available_pages(), 33u);
  EXPECT_EQ(Start(kB, Count(40)), 2 * kP);
  EXPECT_EQ(PageOf(kB, 1, 0), PageOf(kA, 1, 0));
  EXPECT_EQ(PageOf(kB, 1, 1), PageOf(kA, 1, 1));
  EXPECT_NE(PageOf(kB, 1, 1), PageOf(kA, 1, 0));
  EXPECT_EQ(cache_->num_private_pages(kA), 2u);
}

TEST_F(CacheGroupsTest, ReserveTakesWindowPagesForTheStepOnly) {
  ASSERT_TRUE(cache_->Reserve(kA, 10 * kP, kP + 1).ok());
  EXPECT_EQ(cache_->num_pages(kA), 12u);
  EXPECT_EQ(cache_->reserved_tokens(kA), 2 * kP);
  ASSERT_TRUE(cache_->Reserve(kA, 10 * kP, 3 * kP).ok());
  EXPECT_EQ(cache_->num_pages(kA), 13u);
  const absl::Status status = cache_->Reserve(kB, 16 * kP, 11 * kP);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "needs 27 pages, 26 available");
  EXPECT_EQ(cache_->num_pages(kB), 0u);
  EXPECT_EQ(cache_->available_pages(), 26u);
  EXPECT_TRUE(cache_->Reserve(kB, 16 * kP, 10 * kP).ok());
}

TEST_F(CacheGroupsTest, StepInputsHaveNoPagesBeforeTheWindow) {
  Run(kA, Count(4 * kP));
  ASSERT_TRUE(cache_->Reserve(kA, 4 * kP + 3).ok());
  const RowStep step{kA, 4 * kP, 3};
  const auto inputs = cache_->PrepareStep(std::span(&step, 1));
  ASSERT_EQ(inputs.size(), 2u);
  for (std::uint32_t column = 0; column < 6; ++column) {
    const auto page = [&](std::size_t group) {
      return column < 5 && table(group).has_page(kA, column) ? PageOf(kA, column, group).value()
                                                             : 0;
    };
    EXPECT_EQ(inputs[0].lookup_table[column] != 0, column < 5);
    EXPECT_EQ(inputs[1].lookup_table[column] != 0, column >= 2 && column < 5);
    EXPECT_EQ(inputs[0].lookup_table[column], page(0));
    EXPECT_EQ(inputs[1].lookup_table[column], page(1));
  }
  for (const KvStepInputs& input : inputs) {
    EXPECT_EQ(input.cache_lengths[0], 4 * kP);
    EXPECT_EQ(input.max_seq_length, 3u);
    EXPECT_EQ(input.max_cache_length, 4 * kP + 3);
    EXPECT_EQ(input.max_history_length, 4 * kP);
  }
  cache_->CompleteStep();
}

TEST_F(CacheGroupsTest, ReleasedPagesCanBeMatchedAndAllocated) {
  const Tokens tokens = Count(6 * kP);
  StartAndPublish(kA, tokens);
  const std::uint32_t available = cache_->available_pages();
  Release(kA, 6 * kP);  // the next token reads 6 * kP - 31 and later tokens
  EXPECT_THAT(HeldColumns(kA), ElementsAre(4, 5));
  EXPECT_EQ(cache_->available_pages(), available + 4);
  EXPECT_EQ(cache_->stats().cached_pages, 4u);
  for (std::uint32_t pages = 1; pages <= 6; ++pages) {
    EXPECT_EQ(Match(Count(pages * kP + 1)).num_tokens, pages * kP);
  }
  // A shorter prompt needs released pages and reuses them.
  EXPECT_EQ(Start(kB, Count(3 * kP + 1)), 3 * kP);
  EXPECT_THAT(HeldColumns(kB), ElementsAre(1, 2, 3));
  EXPECT_EQ(cache_->stats().cached_pages, 2u);
}

TEST_F(CacheGroupsTest, ReleaseDoesNotWaitForStepsInFlight) {
  const Tokens tokens = Count(6 * kP);
  StartAndPublish(kA, tokens);
  ASSERT_TRUE(cache_->Reserve(kA, 6 * kP + 1).ok());
  const RowStep step{kA, 6 * kP, 1};
  cache_->PrepareStep(std::span(&step, 1));
  const std::uint32_t available = cache_->available_pages();
  Release(kA, 6 * kP);
  EXPECT_EQ(cache_->available_pages(), available + 4);
  cache_->CompleteStep(/*poison_held=*/true);
  EXPECT_EQ(MatchedTokens(tokens + Count(1)), 6 * kP);
}

TEST_F(CacheGroupsTest, EvictingAWindowPageKeepsTheOtherPages) {
  const Tokens tokens = Count(6 * kP);
  StartAndPublish(kA, tokens);
  Release(kA, 6 * kP);
  const NodeId first = pool().node(PageOf(kA, 0));
  ASSERT_TRUE(cache_->Reserve(kB, cache_->stats().free_pages / 2 * kP).ok());
  ASSERT_EQ(cache_->stats().free_pages, 1u);
  ASSERT_TRUE(cache_->Reserve(kC, kP).ok());  // takes the last free page and column 0
  EXPECT_EQ(cache_->stats().cached_pages, 3u);
  EXPECT_EQ(prefixes().pages(first)[0], PageOf(kA, 0));
  EXPECT_EQ(prefixes().pages(first)[1], kNullBlock);
  const auto full_pages = [&](std::uint32_t pages) {
    return Match(Count(pages * kP + 1)).num_tokens / kP;
  };
  EXPECT_EQ(full_pages(1), 0u);
  EXPECT_EQ(full_pages(2), 0u);  // token 2 * kP reads kP + 1 and token 1
  EXPECT_EQ(full_pages(3), 3u);
  EXPECT_EQ(full_pages(6), 6u);
}

TEST_F(CacheGroupsTest, EvictingAPageWithoutWindowFreesTheWindowPagesOfItsNode) {
  StartAndPublish(kA, Count(3 * kP));
  cache_->Free(kA);
  EXPECT_EQ(cache_->stats().cached_pages, 6u);
  ASSERT_TRUE(cache_->Reserve(kB, 16 * kP).ok());
  ASSERT_EQ(cache_->stats().free_pages, 1u);
  ASSERT_TRUE(cache_->Reserve(kC, kP).ok());
  EXPECT_EQ(cache_->stats().evicted_pages, 2u);
  EXPECT_EQ(cache_->stats().free_pages, 1u);  // the page of the window group
  EXPECT_EQ(MatchedTokens(Count(3 * kP)), 2 * kP);
}

TEST_F(CacheGroupsTest, PublishAddsMissingPagesToNodes) {
  const Tokens tokens = Count(6 * kP);
  StartAndPublish(kA, tokens);
  // Row B may not read the cache, so it computes the same tokens from the start.
  ASSERT_TRUE(cache_->Attach(kB, {}, kRoot).ok());
  ASSERT_TRUE(cache_->Reserve(kB, 6 * kP).ok());
  Release(kA, 6 * kP);
  for (std::uint32_t column = 0; column < 3; ++column) pool().EvictColdest();
  EXPECT_EQ(MatchedTokens(Count(3 * kP + 1)), 0u);
  const BlockId own[] = {PageOf(kB, 0, 0), PageOf(kB, 0, 1)};
  Publish(kB, tokens);
  EXPECT_EQ(PageOf(kB, 0, 0), PageOf(kA, 0, 0));  // B adopts A's equal page
  EXPECT_EQ(pool().state(own[0]), PageState::kFree);
  EXPECT_EQ(PageOf(kB, 0, 1), own[1]);
  EXPECT_EQ(MatchedTokens(Count(3 * kP + 1)), 3 * kP);
}

TEST_F(CacheGroupsTest, PageAddedToANodeLaterIsProvenByItsReaders) {
  const Tokens tokens = Count(2 * kP);
  StartAndPublish(kA, tokens);
  cache_->SetProven(kA, 2 * kP);
  EXPECT_EQ(Match(tokens + Count(1)).proven_tokens, 2 * kP);
  ASSERT_TRUE(cache_->Attach(kB, {}, kRoot).ok());
  ASSERT_TRUE(cache_->Reserve(kB, 2 * kP).ok());
  cache_->Free(kA);
  const PrefixMatch match = Match(tokens + Count(1));
  for (const std::uint32_t column : {0u, 1u}) pool().Evict(match.pages[column * 2 + 1]);
  EXPECT_EQ(MatchedTokens(tokens + Count(1)), 0u);
  Publish(kB, tokens);
  EXPECT_EQ(Match(tokens + Count(1)).num_tokens, 2 * kP);
  EXPECT_EQ(Match(tokens + Count(1)).proven_tokens, 0u);
  cache_->SetProven(kB, 2 * kP);
  EXPECT_EQ(Match(tokens + Count(1)).proven_tokens, 2 * kP);
}

// The model's last layers may have stored NaN in these pages, which no later token reads.
TEST_F(CacheGroupsTest, PagesOutsideOfTheWindowAreNotProven) {
  const Tokens tokens = Count(9 * kP);
  StartAndPublish(kA, tokens);
  cache_->SetProven(kA, 9 * kP);
  EXPECT_EQ(Match(tokens + Count(1)).num_tokens, 9 * kP);
  const PrefixMatch match = Match(Count(4 * kP + 1));
  EXPECT_EQ(match.num_tokens, 4 * kP);
  EXPECT_LT(match.proven_tokens, 4 * kP);
}

TEST_F(CacheGroupsTest, PreemptedRowMatchesItsWindowPages) {
  const Tokens tokens = Count(9 * kP + 3);
  Run(kA, tokens);
  cache_->FreeKeepingTail(kA, tokens, KeysOf(options_, kRoot, tokens), 9 * kP + 3);
  const PrefixMatch match = Match(tokens + Count(1));
  EXPECT_EQ(match.num_tokens, 9 * kP + 3);
  EXPECT_EQ(match.partial_sources.size(), 2u);
  ASSERT_TRUE(cache_->Attach(kA, match, kRoot).ok());
  EXPECT_THAT(HeldColumns(kA), ElementsAre(7, 8, 9));
  EXPECT_EQ(cache_->num_pages(kA), 13u);
  const auto copies = cache_->TakeCopies();
  ASSERT_EQ(copies.size(), 2u);
  for (std::size_t group = 0; group < 2; ++group) {
    EXPECT_EQ(copies[group].source, match.partial_sources[group]);
    EXPECT_EQ(copies[group].target, PageOf(kA, 9, group));
    EXPECT_EQ(copies[group].num_rows, 3u);
  }
  cache_->CompleteStep();
}

TEST_F(CacheGroupsTest, PartialTailIsDroppedWithAnyOfItsPages) {
  const Tokens tokens = Count(kP + 7);
  Start(kA, tokens);
  FreeKeepingTail(kA, tokens);
  EXPECT_EQ(MatchedTokens(tokens + Count(1)), kP + 7);
  EXPECT_EQ(cache_->stats().cached_pages, 4u);
  pool().EvictColdest();
  EXPECT_EQ(cache_->stats().cached_pages, 2u);
  EXPECT_EQ(MatchedTokens(tokens + Count(1)), kP);
}

TEST_F(CacheGroupsTest, AttachNeedsAPageForTheCopyOfEachGroup) {
  StartAndPublish(kA, Count(kP));
  ASSERT_TRUE(cache_->Reserve(kB, 16 * kP).ok());
  ASSERT_TRUE(cache_->Reserve(kC, 4 * kP, 0).ok());
  ASSERT_EQ(cache_->available_pages(), 1u);
  const absl::Status status = cache_->Attach(BatchRow{3}, Match(Count(kP)), kRoot);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "needs 2 pages, 1 available");
  EXPECT_EQ(cache_->num_pages(BatchRow{3}), 0u);
}

TEST_F(CacheGroupsTest, ForkSharesTheRemainingPagesOfItsParent) {
  const Tokens tokens = Count(6 * kP + 3);
  Run(kA, tokens);
  EXPECT_THAT(HeldColumns(kA), ElementsAre(4, 5, 6));
  ASSERT_TRUE(cache_->Fork(kA, kB, 6 * kP + 3).ok());
  EXPECT_THAT(HeldColumns(kB), ElementsAre(4, 5, 6));
  EXPECT_EQ(PageOf(kB, 5, 1), PageOf(kA, 5, 1));
  EXPECT_NE(PageOf(kB, 6, 1), PageOf(kA, 6, 1));
  EXPECT_EQ(cache_->TakeCopies().size(), 2u);
  cache_->CompleteStep();
  EXPECT_DEATH(cache_->Fork(kA, kC, 5 * kP).IgnoreError(), "check failed");
  cache_->Free(kA);
  Release(kB, 6 * kP + 3);
  EXPECT_THAT(HeldColumns(kB), ElementsAre(4, 5, 6));
}

TEST_F(CacheGroupsTest, RowThatMayNotPublishKeepsOnlyItsWindow) {
  cache_->SetPublish(kA, false);
  const Tokens tokens = Count(6 * kP);
  Start(kA, tokens);
  Release(kA, 6 * kP);
  EXPECT_THAT(HeldColumns(kA), ElementsAre(4, 5));
  EXPECT_EQ(cache_->stats().cached_pages, 0u);
  cache_->SetPublish(kA, true);
  Publish(kA, tokens);  // the row no longer has its first pages
  EXPECT_EQ(MatchedTokens(tokens), 0u);
}

TEST_F(CacheGroupsTest, PublishingRowKeepsUnpublishedPages) {
  Start(kA, Count(6 * kP));
  Release(kA, 6 * kP);
  EXPECT_EQ(HeldColumns(kA).size(), 6u);
  Publish(kA, Count(3 * kP));
  Release(kA, 6 * kP);
  EXPECT_THAT(HeldColumns(kA), ElementsAre(2, 3, 4, 5));
}

TEST_F(CacheGroupsTest, StepsMayNotReadReleasedPages) {
  Run(kA, Count(6 * kP));
  const auto prepare = [&](std::uint32_t begin) {
    const RowStep step{kA, begin, 1};
    cache_->PrepareStep(std::span(&step, 1));
  };
  EXPECT_DEATH(prepare(5 * kP), "check failed");
  EXPECT_DEATH(cache_->ReleaseOutsideWindow(kA, 7 * kP), "check failed");
  EXPECT_DEATH(cache_->Reserve(kA, kP, kP + 1).IgnoreError(), "check failed");
  ASSERT_TRUE(cache_->Reserve(kB, kP, 0).ok());
  EXPECT_DEATH(cache_->Attach(kB, {}, kRoot).IgnoreError(), "check failed");
}

// There is one group, with a window, and the cache does not keep the first pages of long sequences.
class WindowOnlyTest : public CacheGroupsTest {
 protected:
  explicit WindowOnlyTest(std::uint32_t num_blocks = 12)
      : CacheGroupsTest(WithWindows(TinyOptions(num_blocks, 8, 4096), {kWindow})) {}
};

TEST_F(WindowOnlyTest, LongContextRunsInAPoolThatFitsOnlyItsWindow) {
  const Tokens tokens = Count(2000);
  ASSERT_GT(2000u / kP, cache_->usable_pages());
  Run(kA, tokens);
  EXPECT_THAT(HeldColumns(kA), ElementsAre(123, 124));
  EXPECT_LE(cache_->num_pages(kA), cache_->demand().PagesFor(2000));
  EXPECT_LE(cache_->demand().PagesFor(2000), cache_->usable_pages());
}

TEST_F(WindowOnlyTest, LongSequencesOfAllRowsAreMatchedLater) {
  constexpr std::uint32_t kPages = 250;
  const BatchRow rows[] = {kA, kB, kC, BatchRow{3}};
  for (const BatchRow row : rows) {
    const auto first = static_cast<std::int32_t>(row.value()) * 10000;
    Run(row, Count(kPages * kP, first));
    EXPECT_EQ(cache_->stats().free_pages, 0u);
    EXPECT_EQ(cache_->stats().cached_pages, 11u - 2 * (row.value() + 1));
  }
  EXPECT_EQ(prefixes().num_nodes(), 4 * kPages);
  for (const BatchRow row : rows) {
    const auto first = static_cast<std::int32_t>(row.value()) * 10000;
    EXPECT_EQ(MatchedTokens(Count(kPages * kP + 1, first)), kPages * kP);
  }
}

class LargerWindowOnlyTest : public WindowOnlyTest {
 protected:
  LargerWindowOnlyTest() : WindowOnlyTest(60) {}
};

// Long sequences have lost their first pages. They must not hide a sequence that still has its
// first page.
TEST_F(LargerWindowOnlyTest, PartialMatchIgnoresChildrenWithoutPages) {
  StartAndPublish(kA, Count(kP, 9000));
  for (std::int32_t i = 0; i < 20; ++i) {
    StartAndPublish(kB, Count(2 * kP, i * 100));
    const BlockId first = PageOf(kB, 0);
    cache_->Free(kB);
    pool().Evict(first);
  }
  const PrefixMatch match = Match(Count(10, 9000) + Count(10));
  EXPECT_EQ(match.num_tokens, 10u);
  EXPECT_THAT(match.partial_sources, ElementsAre(PageOf(kA, 0)));
  // A page that was computed again is the most recently used one.
  ASSERT_TRUE(cache_->Attach(kC, {}, kRoot).ok());
  ASSERT_TRUE(cache_->Reserve(kC, kP).ok());
  Publish(kC, Count(kP, 500));
  EXPECT_EQ(Match(Count(9, 500) + Count(10)).num_tokens, 9u);
}

// The memory is sufficient for as many rows as there are pages for their windows.
TEST_F(WindowOnlyTest, MemoryForNodesFollowsFromWindowsAndRows) {
  const auto slots = [](std::initializer_list<std::uint32_t> windows, std::uint32_t max_rows,
                        bool prefix_caching = true) {
    CacheManagerOptions options = WithWindows(TinyOptions(41, max_rows, 100 * kP), windows);
    options.prefix_caching = prefix_caching;
    const auto cache = MakeCache(options);
    return PrefixCachePeer::num_slots(CacheManagerPeer::prefixes(*cache));
  };
  EXPECT_EQ(slots({0}, 8), 80u);
  EXPECT_EQ(slots({0, kP}, 8), 80u);
  EXPECT_EQ(slots({1}, 8), 80u + 8 * 100);
  EXPECT_EQ(slots({10 * kP + 1}, 8), 80u + 4 * 100);
  EXPECT_EQ(slots({10 * kP + 1, 1}, 8), 80u + 3 * 100);
  EXPECT_EQ(slots({100 * kP}, 8), 80u);
  EXPECT_EQ(slots({1}, 8, false), 80u);
}

TEST_F(WindowOnlyTest, RunningOutOfNodesStopsOnlyPublishing) {
  // The 22 slots are a root, 20 nodes, and a slot that a page of another scope would need for its
  // root.
  PrefixCachePeer::LimitSlots(prefixes(), 22);
  Run(kA, Count(30 * kP));
  EXPECT_EQ(prefixes().num_nodes(), 20u);
  EXPECT_EQ(PrefixCachePeer::num_unused(prefixes()), 1u);
  EXPECT_EQ(HeldColumns(kA).size(), 2u);
  EXPECT_EQ(cache_->stats().cached_pages, 8u);  // evicting them would not free a node
  cache_->Free(kA);
  EXPECT_EQ(cache_->available_pages(), 11u);
}

TEST_F(WindowOnlyTest, EvictsEndsOfColdSequencesToFreeNodes) {
  PrefixCachePeer::LimitSlots(prefixes(), 22);
  Run(kA, Count(20 * kP));
  cache_->Free(kA);
  const Tokens other = Count(2 * kP, 5000);
  Run(kB, other);
  EXPECT_EQ(MatchedTokens(other + Count(1)), 2 * kP);
  EXPECT_EQ(MatchedTokens(Count(20 * kP + 1)), 18 * kP);
  EXPECT_EQ(prefixes().num_nodes(), 20u);
}

TEST_F(WindowOnlyTest, NodesWithoutPagesAreDroppedWithTheirLastDescendantPage) {
  Run(kA, Count(10 * kP));
  while (cache_->stats().cached_pages > 0) pool().EvictColdest();
  EXPECT_EQ(prefixes().num_nodes(), 10u);
  EXPECT_EQ(MatchedTokens(Count(10 * kP + 1)), 10 * kP);
  EXPECT_EQ(MatchedTokens(Count(9 * kP + 1)), 0u);
  cache_->Free(kA);
  pool().EvictColdest();  // the last column
  EXPECT_EQ(prefixes().num_nodes(), 9u);
  pool().EvictColdest();
  EXPECT_EQ(prefixes().num_nodes(), 0u);
  EXPECT_EQ(prefixes().FindRoot(kRoot), kNoNode);
}

TEST_F(WindowOnlyTest, FlushDropsNodesWithoutPages) {
  Run(kA, Count(10 * kP));
  const FlushCounts counts = cache_->Flush();
  EXPECT_EQ(counts.retained_pages, 2u);
  EXPECT_EQ(counts.freed_pages, 8u);
  EXPECT_EQ(cache_->stats().evicted_pages, 10u);
  EXPECT_EQ(prefixes().num_nodes(), 0u);
}

TEST_F(WindowOnlyTest, InvalidateIncludesReleasedColumns) {
  const Tokens tokens = Count(10 * kP);
  Run(kA, tokens);
  cache_->Invalidate(kA, tokens, KeysOf(options_, kRoot, tokens), 0);
  EXPECT_EQ(prefixes().num_nodes(), 0u);
  EXPECT_EQ(cache_->TakeClears().size(), 2u);
  cache_->CompleteStep();
  EXPECT_EQ(cache_->available_pages(), 11u);
}

// The row no longer owns any page that it has published.
TEST_F(WindowOnlyTest, InvalidateIncludesColumnsOfARowThatStoppedPublishing) {
  const Tokens tokens = Count(10 * kP);
  const auto keys = KeysOf(options_, kRoot, tokens);
  for (const std::uint32_t first : {0u, 3 * kP}) {
    StartAndPublish(kA, Count(6 * kP));
    const BlockId last = PageOf(kA, 5);
    cache_->SetPublish(kA, false);
    ASSERT_TRUE(cache_->Reserve(kA, 10 * kP).ok());
    Release(kA, 10 * kP);
    pool().Evict(last);
    EXPECT_EQ(prefixes().num_nodes(), 5u);
    cache_->Invalidate(kA, tokens, keys, first);
    EXPECT_EQ(prefixes().num_nodes(), first / kP);
    RunStepWork();
    cache_->Flush();
  }
}

// Compares the matched prefixes with the definition when only some pages of a window group are
// cached. A prefix matches if its last token and every token that the next token reads are in
// cached pages.
TEST(CacheGroupsMatchTest, WindowsDetermineWhichPrefixesMatch) {
  constexpr std::uint32_t kPages = 8;
  for (const std::uint32_t window : {1u, 2u, kP - 1, kP, kP + 1, kP + 2, 3 * kP, 5 * kP, 999u}) {
    for (std::uint32_t present = 0; present < 1u << kPages; ++present) {
      CacheManagerOptions options = WithWindows(TinyOptions(40), {window});
      options.partial_page_reuse = false;
      const auto cache = MakeCache(options);
      const Tokens tokens = Count(kPages * kP + 1);
      auto keys = KeysOf(options, kRoot, tokens);
      ASSERT_TRUE(cache->Attach(kA, {}, kRoot).ok());
      ASSERT_TRUE(cache->Reserve(kA, kPages * kP).ok());
      cache->Publish(kA, tokens, &keys, kPages * kP);
      BlockPool& pool = CacheManagerPeer::pool(*cache);
      std::vector<BlockId> pages;
      for (std::uint32_t column = 0; column < kPages; ++column) {
        pages.push_back(CacheManagerPeer::page(*cache, kA, column));
        if ((present >> column & 1) != 0) pool.AddHold(pages.back());
      }
      cache->Free(kA);
      while (pool.num_cached() > 0) pool.EvictColdest();

      std::uint32_t expected = 0;
      for (std::uint32_t i = 1; i <= kPages; ++i) {
        bool is_hit = (present >> (i - 1) & 1) != 0;
        for (std::uint32_t token = 0; token < i * kP; ++token) {
          const bool is_read = token + window > i * kP;
          is_hit = is_hit && (!is_read || (present >> (token / kP) & 1) != 0);
        }
        if (is_hit) expected = i;
      }
      ASSERT_EQ(cache->Match(tokens, keys, kRoot, kPages * kP).num_tokens, expected * kP)
          << "window " << window << " pages " << present;
      for (std::uint32_t column = 0; column < kPages; ++column) {
        if ((present >> column & 1) != 0) pool.DropHold(pages[column]);
      }
    }
  }
}

class CacheGroupsIntegrityTest : public CacheGroupsTest {
 protected:
  CacheGroupsIntegrityTest() { Run(kA, Count(4 * kP)); }
  ~CacheGroupsIntegrityTest() override { cache_ = MakeCache(options_); }
  void ExpectReport(const char* text) const {
    const absl::Status status = cache_->CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
};

TEST_F(CacheGroupsIntegrityTest, ReportsRowWithoutItsFirstPage) {
  table(0).Append(kC, table(0).PopFront(kA));
  ExpectReport("row 0 begins at column 1 of group 0, which has no window");
}

TEST_F(CacheGroupsIntegrityTest, ReportsColumnOfTwoNodes) {
  const BlockId second = PageOf(kA, 2, 1);
  table(1).Replace(kA, 2, PageOf(kA, 3, 1));
  table(1).Replace(kA, 3, second);
  ExpectReport("row 0 column 2 has pages of different nodes");
}

TEST_F(CacheGroupsIntegrityTest, ReportsPagesOfAnotherGroup) {
  const BlockId page = PageOf(kA, 3, 0);
  table(0).Replace(kA, 3, PageOf(kA, 3, 1));
  table(1).Replace(kA, 3, page);
  ExpectReport("row 0 column 3 has a page of another group than 0");
}

TEST_F(CacheGroupsIntegrityTest, ReportsWindowGroupWithMoreColumnsThanOthers) {
  BlockId page;
  ASSERT_TRUE(pool().Allocate(std::span(&page, 1)).ok());
  table(1).Append(kA, page);
  ExpectReport("row 0 has 4 columns of group 0, but groups with a window have 4 and others 5");
}

TEST_F(CacheGroupsIntegrityTest, ReportsMorePublishedColumnsThanPages) {
  CacheManagerPeer::publication(*cache_, 0).num_published = 5;
  ExpectReport("row 0 has 5 published columns, but only 4 columns in group 0");
  CacheManagerPeer::publication(*cache_, 1).num_published = 1;
  CacheManagerPeer::publication(*cache_, 0).num_published = 4;
  ExpectReport("row 1 has 1 published columns, but only 0 columns in group 0");
}

TEST_F(CacheGroupsIntegrityTest, ReportsNodeWithAllPagesAfterNodeWithoutPages) {
  StartAndPublish(kB, Count(kP, 700));
  const NodeId newest = pool().node(PageOf(kB, 0));
  pool().DetachNode(PageOf(kB, 0, 1));
  PrefixCachePeer::page(prefixes(), newest, 1) = kNullBlock;
  ExpectReport("has all its pages but follows a sibling that does not");
}

class WindowsIntegrityTest : public CacheGroupsTest {
 protected:
  WindowsIntegrityTest() : CacheGroupsTest(WithWindows(TinyOptions(40), {kP, 3 * kP})) {
    Run(kA, Count(6 * kP));
  }
  ~WindowsIntegrityTest() override { cache_ = MakeCache(options_); }
};

TEST_F(WindowsIntegrityTest, ReportsGroupThatBeginsBeforeTheWidest) {
  for (int i = 0; i < 3; ++i) table(1).Append(kC, table(1).PopFront(kA));
  EXPECT_THAT(cache_->CheckIntegrity().message(),
              HasSubstr("row 0 begins at column 5 of group 0, before its first column of group 1"));
}

TEST_F(WindowsIntegrityTest, ReportsRowOfAnotherScopeWithoutItsFirstPages) {
  CacheManagerPeer::publication(*cache_, 0).root = kOtherRoot;
  EXPECT_THAT(cache_->CheckIntegrity().message(),
              HasSubstr("row 0 column 5 does not continue the prefix before it"));
}

TEST_F(WindowsIntegrityTest, ReportsPagesInOtherColumnsThanTheirNodes) {
  for (const std::size_t group : {0u, 1u}) {
    while (table(group).end_column(kC) < 4) table(group).Skip(kC);
    while (table(group).first_column(kA) < 5) pool().DropRowRef(table(group).PopFront(kA));
    table(group).Append(kC, table(group).PopFront(kA));
  }
  auto& copy = CacheManagerPeer::publication(*cache_, 2);
  copy = CacheManagerPeer::publication(*cache_, 0);
  copy.num_published = 0;
  EXPECT_THAT(cache_->CheckIntegrity().message(),
              HasSubstr("row 2 column 4 does not continue the prefix before it"));
}

TEST_F(CacheGroupsIntegrityTest, ReportsNodeWithoutARequiredPage) {
  const NodeId node = pool().node(PageOf(kA, 1));
  pool().DetachNode(PageOf(kA, 1));
  PrefixCachePeer::page(prefixes(), node, 0) = kNullBlock;
  ExpectReport("refers to page 0, which does not refer to the node");
}

TEST_F(CacheGroupsIntegrityTest, ReportsPageThatItsNodeDoesNotName) {
  PrefixCachePeer::page(prefixes(), pool().node(PageOf(kA, 3)), 1) = kNullBlock;
  ExpectReport("refers to a node that does not have it");
}

TEST_F(WindowOnlyTest, ReportsUnneededNode) {
  Run(kA, Count(2 * kP));
  const NodeId last = pool().node(PageOf(kA, 1));
  pool().DetachNode(PageOf(kA, 1));
  PrefixCachePeer::page(prefixes(), last) = kNullBlock;
  const absl::Status status = cache_->CheckIntegrity();
  EXPECT_THAT(status.message(), HasSubstr("has neither page nor child"));
  cache_ = MakeCache(options_);
}

}  // namespace
}  // namespace quire::cache
