#include <cstdint>
#include <span>

#include "cache_manager/cache_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/cache_manager_fixture.h"

namespace quire::cache {
namespace {

// Starts a step over the tokens after `computed` of the row.
class StepsInFlightTest : public CacheManagerTest {
 protected:
  void Launch(BatchRow row, std::uint32_t computed, std::uint32_t new_tokens) {
    ASSERT_TRUE(cache_->Reserve(row, computed + new_tokens).ok());
    const RowStep step{row, computed, new_tokens};
    cache_->TakeClears();
    cache_->TakeCopies();
    cache_->PrepareStep(std::span(&step, 1));
  }
  void ExpectAvailable(std::uint32_t pages) {
    EXPECT_EQ(cache_->available_pages(), pages);
    EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  }
};

TEST_F(StepsInFlightTest, PagesOfAnEndedRowAreReleasedByTheLastStepNamingThem) {
  Start(kA, Count(20));
  Start(kB, Count(20, 100));
  Launch(kA, 20, 1);
  Launch(kA, 21, 1);
  cache_->Free(kA);
  EXPECT_EQ(cache_->num_pages(kA), 0u);
  ExpectAvailable(15);
  cache_->Free(kB);  // no step names the page
  ExpectAvailable(17);
  cache_->CompleteStep();
  EXPECT_EQ(cache_->steps_in_flight(), 1u);
  ExpectAvailable(17);
  cache_->CompleteStep();
  ExpectAvailable(19);
}

TEST_F(StepsInFlightTest, PinnedPagesAreMatchableButNotAllocated) {
  const Tokens prompt = Count(2 * kP + 5);
  StartAndPublish(kA, prompt);
  Launch(kA, 2 * kP + 5, 1);
  FreeKeepingTail(kA, prompt);
  EXPECT_EQ(MatchedTokens(prompt + Count(3, 500)), 2 * kP + 5);
  Fill(kB);
  EXPECT_EQ(cache_->num_pages(kB), 16u);
  cache_->CompleteStep();
  ExpectAvailable(3);
}

TEST_F(StepsInFlightTest, PinsTheTargetOfACopyInFlight) {
  Start(kA, Count(20));
  ASSERT_TRUE(cache_->Fork(kA, kB, 20).ok());
  Launch(kA, 20, 1);
  cache_->Free(kB);
  ExpectAvailable(16);
  cache_->CompleteStep();
  ExpectAvailable(17);
}

TEST_F(StepsInFlightTest, AbandonedCopyWithoutAStepIsNotPinned) {
  Start(kA, Count(20));
  Launch(kA, 20, 1);
  ASSERT_TRUE(cache_->Fork(kA, kB, 20).ok());
  cache_->Free(kB);
  EXPECT_FALSE(cache_->has_step_work());
  ExpectAvailable(17);
  cache_->CompleteStep();
}

TEST_F(StepsInFlightTest, AdoptionKeepsTheOwnPageUntilTheStepHasRun) {
  const Tokens tokens = Count(kP + 3);
  Start(kA, tokens);
  Start(kB, tokens);
  const BlockId own = PageOf(kB, 0);
  Publish(kA, tokens);
  Launch(kB, kP + 3, 1);
  Publish(kB, tokens);
  EXPECT_EQ(PageOf(kB, 0), PageOf(kA, 0));
  EXPECT_EQ(CacheManagerPeer::pool(*cache_).state(own), PageState::kInTransit);
  ExpectAvailable(15);
  cache_->CompleteStep();
  ExpectAvailable(16);
}

TEST_F(StepsInFlightTest, StepThatReadTheOwnPageDoesNotProveTheAdoptedOne) {
  const Tokens tokens = Count(kP + 3);
  Start(kA, tokens);
  Start(kB, tokens);
  Publish(kA, tokens);
  Launch(kB, kP + 3, 1);
  Publish(kB, tokens);
  EXPECT_EQ(PageOf(kB, 0), PageOf(kA, 0));
  cache_->CompleteStep();
  cache_->SetProven(kB, kP + 4);
  EXPECT_EQ(Match(tokens).proven_tokens, 0u);
  Launch(kB, kP + 4, 1);
  cache_->CompleteStep();
  cache_->SetProven(kB, kP + 5);
  EXPECT_EQ(Match(tokens).proven_tokens, kP);
}

TEST_F(StepsInFlightTest, EachStepCompletesItsOwnCopiesAndClears) {
  Start(kA, Count(20));
  Start(kB, Count(20, 100));
  cache_->Invalidate(kB, {}, {}, 0);
  Launch(kA, 20, 1);  // clears both pages of B
  ASSERT_TRUE(cache_->Fork(kA, kC, 20).ok());
  Launch(kA, 21, 1);  // copies the tail of A
  EXPECT_FALSE(cache_->has_step_work());
  ExpectAvailable(14);
  cache_->CompleteStep();
  ExpectAvailable(16);
  cache_->Free(kA);
  cache_->Free(kC);
  cache_->CompleteStep();
  ExpectAvailable(19);
}

TEST_F(StepsInFlightTest, PoisonedPagesAreClearedBeforeReuse) {
  const Tokens prompt = Count(kP + 5);
  StartAndPublish(kA, prompt);
  Launch(kA, kP + 5, 1);
  FreeKeepingTail(kA, prompt);
  cache_->CompleteStep(/*is_poisoned=*/true);
  EXPECT_EQ(MatchedTokens(prompt + Count(1)), kP) << "the step wrote the second page only";
  ExpectAvailable(18);
  EXPECT_EQ(cache_->TakeClears().size(), 1u);
  cache_->CompleteStep();
  ExpectAvailable(19);
}

TEST_F(StepsInFlightTest, EarlierStepPoisonsPagesPinnedForALaterOne) {
  const Tokens prompt = Count(kP + 5);
  StartAndPublish(kA, prompt);
  Start(kB, Count(20, 100));
  Launch(kA, kP + 5, 1);
  Launch(kB, 20, 1);
  FreeKeepingTail(kA, prompt);
  cache_->CompleteStep(/*is_poisoned=*/true);
  cache_->CompleteStep();
  EXPECT_EQ(MatchedTokens(prompt + Count(1)), kP);
  EXPECT_EQ(cache_->TakeClears().size(), 1u);
}

// Returns the number of nodes visited to insert the pages of an ended row into the eviction order.
std::uint64_t VisitsToRelease(std::uint32_t pages) {
  const CacheManagerOptions options = TinyOptions(2 * pages, 8, (pages + 1) * kP);
  const auto cache = MakeCache(options);
  PrefixCache& prefixes = CacheManagerPeer::prefixes(*cache);
  const Tokens tokens = Count(pages * kP + 1);
  const auto size = static_cast<std::uint32_t>(tokens.size());
  auto keys = KeysOf(options, kRoot, tokens);
  QUIRE_CHECK(cache->Attach(kA, {}, kRoot).ok() && cache->Reserve(kA, size).ok());
  cache->Publish(kA, tokens, &keys, size);
  const RowStep step{kA, size - 1, 1};
  cache->PrepareStep(std::span(&step, 1));
  cache->Free(kA);
  const std::uint64_t before = prefixes.num_visited();
  cache->CompleteStep();
  QUIRE_CHECK(cache->stats().cached_pages == pages && cache->CheckIntegrity().ok());
  return prefixes.num_visited() - before;
}

TEST(PinnedPagesTest, AreReleasedInLinearTime) {
  const std::uint64_t visits = VisitsToRelease(128);
  EXPECT_GE(visits, 127u);
  EXPECT_LE(visits, 256u);
  EXPECT_LE(VisitsToRelease(1024), 8 * visits + 8);
}

}  // namespace
}  // namespace quire::cache
