#include "cache_manager/cache_manager.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/allocation_count.h"
#include "tests/cache_manager/cache_manager_fixture.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CacheManagerCreateTest, RejectsInvalidOptions) {
  CacheManagerOptions options = TinyOptions(8);
  options.geometry.num_blocks = 1;
  EXPECT_EQ(CacheManager::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = TinyOptions(8, 0);
  EXPECT_THAT(CacheManager::Create(options).status().message(), HasSubstr("max_rows is 0"));
  options = TinyOptions(8, 1, 0);
  EXPECT_THAT(CacheManager::Create(options).status().message(),
              HasSubstr("max_context_tokens is 0"));
}

TEST_F(CacheManagerTest, ReportsPageSizeAndPageCounts) {
  EXPECT_EQ(cache_->page_size(), kP);
  EXPECT_EQ(cache_->usable_pages(), 19u);
  EXPECT_EQ(cache_->available_pages(), 19u);
  EXPECT_EQ(cache_->hash_key(), options_.hash_key);
}

TEST_F(CacheManagerTest, NeverMatchesTheWholePrompt) {
  for (const std::uint32_t pages : {1u, 2u, 5u}) {
    const Tokens stored = Count(pages * kP + 1);
    StartAndPublish(kA, stored);
    options_.partial_page_reuse = false;
    const auto full_pages = [&](std::uint32_t size) { return Match(Count(size)).pages.size(); };
    EXPECT_EQ(full_pages(pages * kP - 1), pages - 1);
    EXPECT_EQ(full_pages(pages * kP), pages - 1);
    EXPECT_EQ(full_pages(pages * kP + 1), pages);
    // The partial match may not include the last token either.
    EXPECT_EQ(MatchedTokens(Count(pages * kP)), pages * kP - 1);
    cache_->Free(kA);
  }
}

TEST_F(CacheManagerTest, MatchReportsProvenTokens) {
  const Tokens stored = Count(3 * kP + 5);
  StartAndPublish(kA, Count(2 * kP));
  EXPECT_EQ(Match(stored).num_tokens, 2 * kP);
  EXPECT_EQ(Match(stored).proven_tokens, 0u);
  cache_->SetProven(kA, 2 * kP);
  EXPECT_EQ(Match(stored).proven_tokens, 2 * kP);
  // Another row continues after these pages. Its page is not proven before its own logits are.
  StartAndPublish(kB, stored);
  EXPECT_EQ(Match(stored).proven_tokens, 2 * kP);
  FreeKeepingTail(kB, stored);
  PrefixMatch match = Match(stored + Count(1));
  EXPECT_EQ(match.partial_rows, 5u);
  EXPECT_FALSE(match.is_partial_proven);
  EXPECT_EQ(match.proven_tokens, 2 * kP);
  Start(kB, stored);
  cache_->SetProven(kB, 3 * kP + 5);
  Publish(kB, stored);
  FreeKeepingTail(kB, stored);
  match = Match(stored + Count(1));
  EXPECT_EQ(match.proven_tokens, 3 * kP);
}

// The row that owns the page proves it, not another row that has computed the same tokens.
TEST_F(CacheManagerTest, AdoptedPageIsProvenByItsLaterReaders) {
  const Tokens stored = Count(2 * kP + 1);
  Start(kA, stored);
  Start(kB, stored);
  Publish(kA, stored);
  Publish(kB, stored);
  EXPECT_EQ(PageOf(kA, 0), PageOf(kB, 0));
  cache_->SetProven(kB, 2 * kP + 1);
  EXPECT_EQ(Match(stored).proven_tokens, 0u);
  const RowStep step{kB, 2 * kP + 1, 1};
  cache_->PrepareStep(std::span(&step, 1));
  cache_->CompleteStep();
  cache_->SetProven(kB, 2 * kP + 2);
  EXPECT_EQ(Match(stored).proven_tokens, 2 * kP);
}

// A's page could contain NaN, which would fail B, although B's own page is valid.
TEST_F(CacheManagerTest, ProvenPageIsNotReplacedByAnEqualPageThatIsNotProven) {
  const Tokens stored = Count(3 * kP + 1);
  const std::vector<PageKey> keys = KeysOf(options_, kRoot, stored);
  Start(kA, stored);
  Start(kB, stored);
  Publish(kA, stored);
  const BlockId own = PageOf(kB, 0);
  cache_->SetProven(kB, 3 * kP + 1);
  Publish(kB, stored);
  EXPECT_EQ(PageOf(kB, 0), own);
  EXPECT_EQ(cache_->proven_tokens(kB), 3 * kP + 1);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  // B keeps its page later, too: B publishes nothing more, while A publishes all its tokens.
  cache_->SetProven(kA, 3 * kP + 1);
  Publish(kB, stored);
  EXPECT_EQ(PageOf(kB, 0), own);
  EXPECT_EQ(Match(stored).proven_tokens, 3 * kP);
  cache_->Invalidate(kA, stored, keys, 0);
  FreeKeepingTail(kB, stored);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
}

// A row is admitted before the pages that it matched are proven. Other rows prove them while it
// runs.
TEST_F(CacheManagerTest, InvalidateKeepsPagesProvenByOtherRows) {
  const Tokens prompt = Count(2 * kP);
  const Tokens sick = prompt + Count(kP + 1, 200);
  const auto keys = KeysOf(options_, kRoot, sick);
  StartAndPublish(kA, prompt + Count(1, 100));
  StartAndPublish(kB, sick);
  cache_->SetProven(kA, 2 * kP + 1);
  cache_->Invalidate(kB, sick, keys, 0);
  EXPECT_EQ(MatchedTokens(sick), 2 * kP);
  // The result is the same for a row that ended before its step reported non-finite logits.
  RunStepWork();
  StartAndPublish(kB, sick);
  cache_->Free(kB);
  EXPECT_EQ(MatchedTokens(sick), 3 * kP);
  cache_->Invalidate(kRoot, sick, keys, 0);
  EXPECT_EQ(MatchedTokens(sick), 2 * kP);
}

TEST_F(CacheManagerTest, MaxTokensBoundsFullAndPartialPages) {
  StartAndPublish(kA, Count(3 * kP));
  const Tokens prompt = Count(3 * kP);
  const auto keys = KeysOf(options_, kRoot, prompt);
  for (std::uint32_t limit = 0; limit <= 3 * kP; ++limit) {
    const PrefixMatch match = cache_->Match(prompt, keys, kRoot, limit);
    EXPECT_EQ(match.pages.size(), limit / kP);
    const std::uint32_t rest = limit % kP;
    EXPECT_EQ(match.partial_rows, rest >= kP / 8 ? rest : 0u) << limit;
    EXPECT_EQ(match.partial_sources.size(), match.partial_rows > 0 ? 1u : 0u);
  }
  EXPECT_EQ(cache_->Match(prompt, std::span(keys).first(1), kRoot, 3 * kP).pages.size(), 1u);
}

TEST_F(CacheManagerTest, MatchNeitherReferencesNorCountsPages) {
  StartAndPublish(kA, Count(2 * kP + 1));
  cache_->Free(kA);
  const CacheStats before = cache_->stats();
  EXPECT_EQ(MatchedTokens(Count(40)), 32u);
  const CacheStats after = cache_->stats();
  EXPECT_EQ(after.free_pages, before.free_pages);
  EXPECT_EQ(after.cached_pages, before.cached_pages);
  EXPECT_EQ(after.hit_tokens, before.hit_tokens);
}

TEST_F(CacheManagerTest, HitsAreCountedOnRequest) {
  StartAndPublish(kA, Count(2 * kP + 1));
  EXPECT_EQ(cache_->stats().queried_tokens, 2 * kP + 1u);
  const Tokens prompt = Count(40);
  ASSERT_TRUE(cache_->Attach(kB, Match(prompt), kRoot).ok());
  cache_->Free(kB);
  ASSERT_TRUE(cache_->Attach(kB, Match(prompt), kRoot).ok());
  EXPECT_EQ(cache_->stats().hit_tokens, 0u);
  cache_->CountLookup(Match(prompt), 40);
  EXPECT_EQ(cache_->stats().hit_tokens, 32u);
  EXPECT_EQ(cache_->stats().queried_tokens, 2 * kP + 41u);
}

TEST_F(CacheManagerTest, FreedPagesMatchUntilTheyAreAllocated) {
  StartAndPublish(kA, Count(2 * kP + 1));
  const BlockId first = PageOf(kA, 0);
  cache_->Free(kA);
  EXPECT_EQ(cache_->stats().cached_pages, 2u);
  EXPECT_EQ(cache_->available_pages(), 19u);
  EXPECT_EQ(Start(kB, Count(2 * kP + 1)), 2 * kP);
  EXPECT_EQ(PageOf(kB, 0), first);
  cache_->Free(kB);
  ASSERT_TRUE(cache_->Reserve(kC, 256).ok());
  ASSERT_TRUE(cache_->Reserve(kB, 2 * kP).ok());
  // One of three tails is evicted, which is the second of the two pages.
  EXPECT_EQ(cache_->stats().evicted_pages, 1u);
  EXPECT_EQ(MatchedTokens(Count(2 * kP + 1)), kP);
}

TEST_F(CacheManagerTest, ScopesDoNotShare) {
  StartAndPublish(kA, Count(40));
  EXPECT_EQ(MatchedTokens(Count(40), kOtherRoot), 0u);
  EXPECT_EQ(StartAndPublish(kB, Count(40), kOtherRoot), 0u);
  EXPECT_NE(PageOf(kA, 0), PageOf(kB, 0));
}

TEST_F(CacheManagerTest, PartialPageIsCopiedFromOneEighthOn) {
  StartAndPublish(kA, Count(kP));
  for (std::uint32_t common = 0; common < kP; ++common) {
    const Tokens prompt = Count(common) + Count(30, 500);
    const PrefixMatch match = Match(prompt);
    EXPECT_TRUE(match.pages.empty());
    EXPECT_EQ(match.num_tokens, common >= 2 ? common : 0);
    EXPECT_EQ(match.partial_sources,
              common >= 2 ? std::vector{PageOf(kA, 0)} : std::vector<BlockId>{});
  }
}

TEST_F(CacheManagerTest, AttachQueuesTheCopyAndPinsItsSource) {
  StartAndPublish(kA, Count(kP));
  const BlockId source = PageOf(kA, 0);
  cache_->Free(kA);
  const Tokens prompt = Count(10) + Count(10, 500);
  ASSERT_TRUE(cache_->Attach(kB, Match(prompt), kRoot).ok());
  EXPECT_TRUE(cache_->has_step_work());
  const auto copies = cache_->TakeCopies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].source, source);
  EXPECT_EQ(copies[0].target, PageOf(kB, 0));
  EXPECT_EQ(copies[0].num_rows, 10u);
  EXPECT_FALSE(cache_->has_step_work());
  EXPECT_THAT(cache_->TakeCopies(), IsEmpty());
  EXPECT_EQ(cache_->available_pages(), 17u);
  cache_->CompleteStep();
  EXPECT_EQ(cache_->available_pages(), 18u);
  EXPECT_EQ(cache_->stats().cached_pages, 1u);
}

TEST_F(CacheManagerTest, FreeCancelsQueuedCopies) {
  StartAndPublish(kA, Count(kP));
  const Tokens prompt = Count(10) + Count(10, 500);
  ASSERT_TRUE(cache_->Attach(kB, Match(prompt), kRoot).ok());
  // The copies form a chain: C's tail is copied from B's tail, which is not yet copied itself.
  ASSERT_TRUE(cache_->Fork(kB, kC, 10).ok());
  cache_->Free(kB);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  EXPECT_TRUE(cache_->has_step_work());
  cache_->Free(kC);
  EXPECT_FALSE(cache_->has_step_work());
  EXPECT_EQ(cache_->available_pages(), 18u);
}

TEST_F(CacheManagerTest, AttachWithoutAPageForTheCopyDoesNothing) {
  StartAndPublish(kA, Count(2 * kP));
  cache_->Free(kA);
  ASSERT_TRUE(cache_->Reserve(kC, 256).ok());  // 16 of 19
  ASSERT_TRUE(cache_->Reserve(kA, kP).ok());
  ASSERT_EQ(cache_->available_pages(), 2u);  // both are cached and matched
  const PrefixMatch match = Match(Count(2 * kP));
  ASSERT_EQ(match.num_tokens, 2 * kP - 1);
  const absl::Status status = cache_->Attach(kB, match, kRoot);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "needs 1 pages, 0 available");
  EXPECT_EQ(cache_->num_pages(kB), 0u);
  EXPECT_EQ(cache_->stats().cached_pages, 2u);
  EXPECT_EQ(cache_->stats().hit_tokens, 0u);
}

TEST_F(CacheManagerTest, OutdatedMatchIsRejected) {
  StartAndPublish(kA, Count(40));
  const PrefixMatch match = Match(Count(40));
  const PrefixMatch miss = Match(Count(40, 500));
  Publish(kA, Count(40));
  EXPECT_TRUE(cache_->Attach(kB, match, kRoot).ok());
  cache_->Free(kB);
  cache_->Flush();
  EXPECT_EQ(cache_->Attach(kB, match, kRoot).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(cache_->num_pages(kB), 0u);
  EXPECT_TRUE(cache_->Attach(kB, miss, kRoot).ok());  // an empty match cannot be outdated
  EXPECT_TRUE(cache_->Attach(kC, PrefixMatch{}, kRoot).ok());
}

TEST_F(CacheManagerTest, ReserveIsAllOrNothing) {
  StartAndPublish(kA, Count(2 * kP));
  cache_->Free(kA);
  ASSERT_TRUE(cache_->Reserve(kC, 10 * kP).ok());
  const absl::Status status = cache_->Reserve(kB, 10 * kP);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "needs 10 pages, 9 available");
  EXPECT_EQ(cache_->num_pages(kB), 0u);
  EXPECT_EQ(cache_->stats().evicted_pages, 0u);
  EXPECT_TRUE(cache_->Reserve(kB, 9 * kP).ok());
  EXPECT_EQ(cache_->available_pages(), 0u);
  EXPECT_TRUE(cache_->Reserve(kB, 9 * kP).ok());
  EXPECT_TRUE(cache_->Reserve(kB, 1).ok());
  EXPECT_EQ(cache_->num_pages(kB), 9u);
}

TEST_F(CacheManagerTest, EqualPagesOfOneStepAreMerged) {
  for (const bool first_ends_first : {true, false}) {
    const Tokens prompt = Count(2 * kP + 3, first_ends_first ? 0 : 1000);
    EXPECT_EQ(Start(kA, prompt), 0u);
    EXPECT_EQ(Start(kB, prompt), 0u);
    const std::uint32_t available = cache_->available_pages();
    Publish(kA, prompt);
    Publish(kB, prompt);
    EXPECT_EQ(cache_->available_pages(), available + 2);
    EXPECT_EQ(PageOf(kA, 0), PageOf(kB, 0));
    EXPECT_EQ(PageOf(kA, 1), PageOf(kB, 1));
    EXPECT_NE(PageOf(kA, 2), PageOf(kB, 2));
    EXPECT_EQ(cache_->num_private_pages(kA), 1u);
    EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
    cache_->Free(first_ends_first ? kA : kB);
    EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
    EXPECT_EQ(MatchedTokens(prompt), 2 * kP);
    cache_->Free(first_ends_first ? kB : kA);
    EXPECT_EQ(MatchedTokens(prompt), 2 * kP);
    EXPECT_EQ(cache_->available_pages(), 19u);
  }
}

TEST_F(CacheManagerTest, ForksAdoptThePublishedEqualPage) {
  const Tokens prompt = Count(2 * kP + 3);
  Start(kA, prompt);
  Start(kB, prompt);
  ASSERT_TRUE(cache_->Fork(kB, kC, 2 * kP + 3).ok());
  RunStepWork();
  Publish(kA, prompt);
  Publish(kB, prompt);
  EXPECT_EQ(PageOf(kC, 0), PageOf(kA, 0));
  EXPECT_EQ(PageOf(kC, 1), PageOf(kA, 1));
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  cache_->Free(kA);
  cache_->Free(kB);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
}

TEST_F(CacheManagerTest, PublishAppendsMissingKeysAndOnlyFullPages) {
  const Tokens prompt = Count(2 * kP + 3);
  Start(kA, prompt);
  std::vector<PageKey> keys;
  cache_->Publish(kA, prompt, &keys, kP - 1);
  EXPECT_TRUE(keys.empty());
  cache_->Publish(kA, prompt, &keys, kP);
  EXPECT_EQ(keys, KeysOf(options_, kRoot, Count(kP)));
  EXPECT_EQ(Match(prompt).pages.size(), 1u);
  cache_->Publish(kA, prompt, &keys, 2 * kP + 3);
  EXPECT_EQ(keys, KeysOf(options_, kRoot, prompt));
  EXPECT_EQ(Match(prompt).pages.size(), 2u);
}

TEST_F(CacheManagerTest, RowsMayBePrivate) {
  const Tokens prompt = Count(40);
  ASSERT_TRUE(cache_->Reserve(kA, 40).ok());  // never attached
  Publish(kA, prompt);
  cache_->SetPublish(kB, false);
  Start(kB, prompt);
  Publish(kB, prompt);
  FreeKeepingTail(kB, prompt);
  EXPECT_EQ(MatchedTokens(prompt), 0u);
  EXPECT_EQ(StartAndPublish(kB, prompt), 0u);  // freeing the row switched publishing on again
  EXPECT_EQ(MatchedTokens(prompt), 2 * kP);
}

TEST_F(CacheManagerTest, ForkSharesFullPagesAndCopiesTheRest) {
  StartAndPublish(kA, Count(2 * kP + 5));
  ASSERT_TRUE(cache_->Fork(kA, kB, 2 * kP + 5).ok());
  EXPECT_EQ(PageOf(kA, 1), PageOf(kB, 1));
  const auto copies = cache_->TakeCopies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].source, PageOf(kA, 2));
  EXPECT_EQ(copies[0].target, PageOf(kB, 2));
  EXPECT_EQ(copies[0].num_rows, 5u);
  // The parent may write its tail in the step that copies it.
  const RowStep steps[] = {{kA, 2 * kP + 5, 1}, {kB, 2 * kP + 5, 1}};
  cache_->PrepareStep(steps);
  cache_->CompleteStep();
  ASSERT_TRUE(cache_->Fork(kA, kC, 2 * kP).ok());
  EXPECT_EQ(cache_->num_pages(kC), 2u);
  EXPECT_FALSE(cache_->has_step_work());
}

TEST_F(CacheManagerTest, ForkBeforeTheEndOfItsParentPublishesItsOwnPages) {
  StartAndPublish(kA, Count(3 * kP));
  ASSERT_TRUE(cache_->Fork(kA, kB, kP + 4).ok());
  EXPECT_EQ(cache_->num_pages(kB), 2u);
  RunStepWork();
  const Tokens own = Count(kP + 4) + Count(kP - 4, 900);
  Publish(kB, own);
  EXPECT_EQ(Match(own + Count(1)).pages.size(), 2u);
  EXPECT_EQ(Match(Count(3 * kP + 1)).pages.size(), 3u);
}

TEST_F(CacheManagerTest, ForkWithoutAPageForTheTailDoesNothing) {
  StartAndPublish(kA, Count(2 * kP + 5));
  ASSERT_TRUE(cache_->Reserve(kC, 16 * kP).ok());
  const absl::Status status = cache_->Fork(kA, kB, 2 * kP + 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->num_pages(kB), 0u);
  EXPECT_TRUE(cache_->Fork(kA, kB, 2 * kP).ok());
}

TEST_F(CacheManagerTest, EightForksMayEndInAnyOrder) {
  std::array<std::uint32_t, 8> order{0, 1, 2, 3, 4, 5, 6, 7};
  const Tokens prompt = Count(2 * kP + 5);
  std::uint32_t orders = 0;
  do {
    StartAndPublish(kA, prompt);
    for (std::uint32_t child = 1; child < 8; ++child) {
      ASSERT_TRUE(cache_->Fork(kA, BatchRow{child}, 2 * kP + 5).ok());
    }
    RunStepWork();
    ASSERT_EQ(cache_->stats().used_pages, 2u + 8);
    const bool is_checked = orders % 97 == 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      cache_->Free(BatchRow{order[i]});
      ASSERT_EQ(cache_->stats().used_pages, i + 1 == order.size() ? 0 : 2 + 8 - (i + 1));
      if (is_checked) {
        ASSERT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
      }
    }
    ASSERT_EQ(MatchedTokens(prompt), 2 * kP);
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 40320u);
}

TEST_F(CacheManagerTest, NextTurnContinuesInTheKeptTail) {
  const Tokens turn = Count(kP + 7);
  Start(kA, turn);
  const BlockId tail = PageOf(kA, 1);
  FreeKeepingTail(kA, turn);  // publishes the full page too
  EXPECT_EQ(cache_->stats().cached_pages, 2u);
  const PrefixMatch match = Match(turn + Count(20, 900));
  EXPECT_EQ(match.pages.size(), 1u);
  EXPECT_THAT(match.partial_sources, ElementsAre(tail));
  EXPECT_EQ(match.partial_rows, 7u);
  // The tail is evicted first.
  ASSERT_TRUE(cache_->Reserve(kB, 16 * kP).ok());
  ASSERT_TRUE(cache_->Reserve(kC, 2 * kP).ok());
  EXPECT_EQ(Match(turn + Count(20, 900)).num_tokens, kP);
}

TEST_F(CacheManagerTest, KeepsNoTailWhoseCopyHasNotRun) {
  StartAndPublish(kA, Count(kP));
  const Tokens prompt = Count(10) + Count(10, 500);
  ASSERT_TRUE(cache_->Attach(kB, Match(prompt), kRoot).ok());
  FreeKeepingTail(kB, Count(10));
  EXPECT_FALSE(cache_->has_step_work());
  EXPECT_EQ(cache_->stats().cached_pages, 0u);
  EXPECT_THAT(Match(prompt).partial_sources, ElementsAre(PageOf(kA, 0)));
}

TEST_F(CacheManagerTest, KeepsNoTailThatIsCachedOrTooShort) {
  const Tokens turn = Count(kP + 7);
  StartAndPublish(kA, turn);
  FreeKeepingTail(kA, turn);
  Start(kA, turn);
  FreeKeepingTail(kA, turn);
  EXPECT_EQ(cache_->stats().cached_pages, 2u);
  StartAndPublish(kA, Count(1, 700));
  FreeKeepingTail(kA, Count(1, 700));
  EXPECT_EQ(cache_->stats().cached_pages, 2u);
}

TEST_F(CacheManagerTest, FlushKeepsPagesOfLiveRows) {
  const Tokens live = Count(2 * kP + 1);
  const Tokens dead = Count(3 * kP, 500);
  StartAndPublish(kA, live);
  StartAndPublish(kB, dead);
  FreeKeepingTail(kB, dead);
  const FlushCounts counts = cache_->Flush();
  EXPECT_EQ(counts.freed_pages, 3u);
  EXPECT_EQ(counts.retained_pages, 2u);
  EXPECT_EQ(cache_->stats().cached_pages, 0u);
  EXPECT_EQ(MatchedTokens(live), 0u);
  EXPECT_EQ(cache_->num_pages(kA), 3u);
  // Pages computed before the flush are not published again by the live row.
  Publish(kA, live);
  ASSERT_TRUE(cache_->Fork(kA, kC, 2 * kP + 1).ok());
  RunStepWork();
  Publish(kC, live);
  FreeKeepingTail(kA, live);
  EXPECT_EQ(MatchedTokens(live), 0u);
  EXPECT_EQ(StartAndPublish(kB, live), 0u);
  EXPECT_EQ(MatchedTokens(live), 2 * kP);
}

TEST_F(CacheManagerTest, InvalidatedPagesAreClearedBeforeReuse) {
  const Tokens prompt = Count(2 * kP + 5);
  StartAndPublish(kA, prompt);
  const BlockId bad[] = {PageOf(kA, 2), PageOf(kA, 1)};
  Invalidate(kA, kP);
  EXPECT_EQ(cache_->num_pages(kA), 0u);
  EXPECT_EQ(MatchedTokens(prompt), kP);
  EXPECT_EQ(cache_->available_pages(), 17u);
  EXPECT_TRUE(cache_->has_step_work());
  EXPECT_THAT(cache_->TakeClears(), ElementsAre(bad[0], bad[1]));
  EXPECT_THAT(cache_->TakeClears(), IsEmpty());
  EXPECT_FALSE(cache_->has_step_work());
  EXPECT_EQ(cache_->available_pages(), 17u);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  cache_->CompleteStep();
  EXPECT_EQ(cache_->available_pages(), 19u);
  cache_->Free(kA);  // the pages are free already and stay free
}

TEST_F(CacheManagerTest, InvalidateUnpublishesSharedPagesAndStopsTheirRowsPublishing) {
  const Tokens shared = Count(2 * kP);
  const Tokens longer = Count(4 * kP);
  StartAndPublish(kA, Count(2 * kP + 1));
  EXPECT_EQ(StartAndPublish(kB, longer), 2 * kP);
  const BlockId bad = PageOf(kA, 1);
  Invalidate(kA, kP);
  EXPECT_EQ(MatchedTokens(longer), kP);        // B's own pages continued the invalid one
  EXPECT_EQ(cache_->TakeClears().size(), 1u);  // A's tail
  cache_->CompleteStep();
  ASSERT_TRUE(cache_->Reserve(kB, 5 * kP).ok());
  Publish(kB, Count(5 * kP));
  EXPECT_EQ(MatchedTokens(Count(5 * kP)), kP);
  cache_->Free(kB);
  EXPECT_THAT(cache_->TakeClears(), ElementsAre(bad));
}

TEST_F(CacheManagerTest, PoisonedPageThatWasNeverPublishedStaysUnpublished) {
  const Tokens prompt = Count(2 * kP);
  Start(kA, prompt);
  ASSERT_TRUE(cache_->Fork(kA, kB, 2 * kP).ok());
  Invalidate(kA, kP);
  EXPECT_EQ(cache_->available_pages(), 17u);
  Publish(kB, prompt);
  EXPECT_EQ(Match(prompt + Count(1)).pages.size(), 1u);
  const BlockId bad = PageOf(kB, 1);
  cache_->Free(kB);
  EXPECT_THAT(cache_->TakeClears(), ElementsAre(bad));
}

TEST_F(CacheManagerTest, PrepareStepFillsTheStepInputs) {
  const KvStepInputs& inputs = cache_->PrepareStep({}).front();
  EXPECT_EQ(inputs.lookup_stride, 16u + 16u);
  EXPECT_EQ(inputs.max_rows, 8u);
  EXPECT_EQ(inputs.max_cache_length, 0u);
  const std::uint32_t* table = inputs.lookup_table;
  ASSERT_TRUE(cache_->Reserve(kA, 40).ok());
  ASSERT_TRUE(cache_->Reserve(kC, 20).ok());
  const RowStep steps[] = {{kC, 7, 13}, {kA, 32, 1}};
  cache_->PrepareStep(steps);
  EXPECT_EQ(inputs.max_seq_length, 13u);
  EXPECT_EQ(inputs.max_cache_length, 33u);
  EXPECT_EQ(inputs.max_history_length, 32u);
  EXPECT_THAT(std::span(inputs.cache_lengths, 8), ElementsAre(32, 0, 7, 0, 0, 0, 0, 0));
  EXPECT_EQ(table[2], PageOf(kA, 2).value());
  EXPECT_EQ(table[3], 0u);
  EXPECT_EQ(table[2 * inputs.lookup_stride + 1], PageOf(kC, 1).value());
  cache_->PrepareStep(std::span(steps, 1));
  EXPECT_THAT(std::span(inputs.cache_lengths, 8), ElementsAre(0, 0, 7, 0, 0, 0, 0, 0));
  EXPECT_EQ(inputs.max_seq_length, 13u);
  EXPECT_EQ(inputs.max_history_length, 7u);
  cache_->Free(kC);
  EXPECT_EQ(inputs.cache_lengths[2], 0u);
  EXPECT_EQ(inputs.lookup_table, table);
}

TEST_F(CacheManagerTest, DecodingAllocatesNothing) {
  const Tokens tokens = Count(60);
  StartAndPublish(kA, Count(33));
  auto keys = KeysOf(options_, kRoot, Count(33));
  ASSERT_TRUE(cache_->Reserve(kA, 34).ok());
  const std::uint64_t before = NumAllocations();
  for (std::uint32_t length = 33; length < 47; ++length) {
    const bool reserved = cache_->Reserve(kA, length + 1).ok();
    const RowStep step{kA, length, 1};
    cache_->PrepareStep(std::span(&step, 1));
    const bool idle = cache_->TakeClears().empty() && cache_->TakeCopies().empty();
    cache_->CompleteStep();
    cache_->Publish(kA, tokens, &keys, length + 1);
    if (!reserved || !idle) std::abort();
  }
  EXPECT_EQ(NumAllocations(), before);
}

// Compares pools with contexts of two lengths. Apart from the nodes, only lookup tables and scratch
// memory grow as much.
TEST(PrefixIndexBytesTest, CountsTheNodesWithoutPagesOfWindows) {
  const auto index = [](std::initializer_list<std::uint32_t> windows, std::uint32_t context) {
    return CacheManager::PrefixIndexBytes(WithWindows(TinyOptions(65, 8, context), windows));
  };
  const auto held = [](std::initializer_list<std::uint32_t> windows, std::uint32_t context) {
    const CacheManagerOptions options = WithWindows(TinyOptions(65, 8, context), windows);
    const std::uint64_t before = BytesAllocated();
    const auto cache = CacheManager::Create(options);
    QUIRE_CHECK(cache.ok());
    return static_cast<std::int64_t>(BytesAllocated() - before);
  };
  constexpr std::uint32_t kLong = 1 << 16;
  EXPECT_EQ(index({0, 48}, 256), index({0, 48}, kLong));
  const std::int64_t empty_nodes = index({48}, kLong) - index({48}, 256);
  EXPECT_GT(empty_nodes, 8 * ((kLong - 256) / kTestPageSize) * 4 * kTestPageSize);
  // A longer context also needs longer lookup tables and more scratch memory, with or without
  // windows.
  const std::int64_t tables = held({0}, kLong) - held({0}, 256);
  EXPECT_LE(held({48}, kLong) - held({48}, 256) - tables, empty_nodes + 4096);
  EXPECT_GE(held({48}, kLong) - held({48}, 256) - tables, empty_nodes - 4096);
}

class PrefixCachingOffTest : public CacheManagerTest {
 protected:
  static CacheManagerOptions Options() {
    CacheManagerOptions options = TinyOptions(20);
    options.prefix_caching = false;
    return options;
  }
  PrefixCachingOffTest() : CacheManagerTest(Options()) {}
};

TEST_F(PrefixCachingOffTest, MatchesAndKeepsNothing) {
  StartAndPublish(kA, Count(40));
  EXPECT_EQ(MatchedTokens(Count(40)), 0u);
  FreeKeepingTail(kA, Count(40));
  EXPECT_EQ(cache_->stats().cached_pages, 0u);
  EXPECT_EQ(cache_->stats().free_pages, 19u);
}

class WeakKeyTest : public CacheManagerTest {
 protected:
  static CacheManagerOptions Options() {
    CacheManagerOptions options = TinyOptions(20);
    options.page_hash = &WeakPageHash;
    return options;
  }
  WeakKeyTest() : CacheManagerTest(Options()) {}
};

TEST_F(WeakKeyTest, PrefixWithACollidingKeyIsNotPublished) {
  const Tokens first = Count(kP);
  Tokens second = Count(3 * kP, 1000);
  const auto key_of = [&](const Tokens& tokens) { return KeysOf(options_, kRoot, tokens)[0]; };
  while (key_of(second) != key_of(first)) ++second[0];
  StartAndPublish(kA, first);
  const PrefixMatch match = Match(second);
  EXPECT_EQ(match.num_tokens, 0u);
  EXPECT_TRUE(match.collision);
  StartAndPublish(kB, second);
  EXPECT_EQ(cache_->stats().collisions, 2u);  // at admission and at publishing
  EXPECT_EQ(MatchedTokens(second), 0u);
  cache_->Free(kB);
  EXPECT_EQ(cache_->stats().cached_pages, 0u);
  EXPECT_EQ(MatchedTokens(first + Count(1)), kP);
}

}  // namespace
}  // namespace quire::cache
