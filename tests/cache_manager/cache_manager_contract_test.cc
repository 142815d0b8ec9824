// Breaks every invariant of CacheManager on purpose, and every precondition.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/cache_manager_fixture.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

class CacheManagerIntegrityTest : public CacheManagerTest {
 protected:
  CacheManagerIntegrityTest() {
    StartAndPublish(kA, Count(2 * kP + 5));
    EXPECT_EQ(StartAndPublish(kB, Count(kP) + Count(kP, 700)), kP);
  }
  ~CacheManagerIntegrityTest() override { cache_ = MakeCache(options_); }
  CacheManagerPeer::State& state() { return CacheManagerPeer::state(*cache_); }
  void ExpectReport(const char* text) const {
    const absl::Status status = cache_->CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
};

TEST_F(CacheManagerIntegrityTest, IntactInitially) {
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
}

TEST_F(CacheManagerIntegrityTest, RequestCount) {
  state().pool.AddRequest(PageOf(kA, 0));
  ExpectReport(
      "counts 3 requests and 0 transfers, but 2 columns and 0 copies and steps in flight name it");
}

TEST_F(CacheManagerIntegrityTest, TransferCount) {
  state().pool.AddTransfer(PageOf(kA, 0));
  ExpectReport("1 transfers");
}

TEST_F(CacheManagerIntegrityTest, ColumnWithoutReference) {
  state().tables[0].Append(kC, PageOf(kA, 2));
  ExpectReport("counts 1 requests and 0 transfers, but 2 columns");
}

TEST_F(CacheManagerIntegrityTest, PageOutOfRange) {
  state().tables[0].Append(kC, BlockId{20});
  ExpectReport("row 2 names page 20 of 20");
}

TEST_F(CacheManagerIntegrityTest, RowThatDoesNotContinueItsPrefix) {
  const BlockId first = PageOf(kA, 0);
  const BlockId second = PageOf(kA, 1);
  state().tables[0].Replace(kA, 0, second);
  state().tables[0].Replace(kA, 1, first);
  ExpectReport("row 0 column 0 does not continue the prefix before it");
}

TEST_F(CacheManagerIntegrityTest, RowOfAnotherScope) {
  state().rows[0].root = kOtherRoot;
  ExpectReport("row 0 column 0 does not continue the prefix before it");
}

TEST_F(CacheManagerIntegrityTest, PublishedPageAfterAPrivateOne) {
  const BlockId tail = PageOf(kA, 2);
  const BlockId second = PageOf(kA, 1);
  state().tables[0].Replace(kA, 1, tail);
  state().tables[0].Replace(kA, 2, second);
  ExpectReport("row 0 column 2 does not continue the prefix before it");
}

TEST_F(CacheManagerIntegrityTest, CopyIntoAFreePage) {
  state().QueueCopy(PageOf(kA, 0), BlockId{19}, 3);
  ExpectReport("a copy of 3 rows into page 19 has no purpose");
}

TEST_F(CacheManagerIntegrityTest, ClearOfAPageThatIsNotQuarantined) {
  state().taken.clears.push_back(PageOf(kA, 2));
  ExpectReport("1 pages are being cleared that are not the first of 0 quarantined ones");
  state().taken.clears.clear();
  state().num_clears_taken = 1;
  ExpectReport("0 pages are being cleared that are not the first of 0 quarantined ones");
}

TEST_F(CacheManagerIntegrityTest, PagesOfStepsInFlight) {
  const RowStep step{kA, 40, 1};
  cache_->PrepareStep(std::span(&step, 1));
  const BlockId page = PageOf(kA, 2);
  state().in_flight[0].held.push_back(page);
  ExpectReport("counts 1 requests and 0 transfers, but 1 columns and 1 copies and steps in flight");
  state().in_flight[0].held.clear();
  state().pool.AddTransfer(PageOf(kA, 0));
  state().in_flight[0].copies.push_back({PageOf(kA, 0), BlockId{19}, 3});
  ExpectReport("page 19 was let go while a step in flight copies into it");
}

TEST_F(CacheManagerIntegrityTest, ReportsDamageOfTheParts) {
  BlockPoolPeer::page(state().pool, 19).requests = 1;
  ExpectReport("page 19 is active but in the free list");
  BlockPoolPeer::page(state().pool, 19).requests = 0;
  LookupTablePeer::entry(state().tables[0], 5, 2) = 3;
  ExpectReport("row 5 column 2 holds page 3");
  LookupTablePeer::entry(state().tables[0], 5, 2) = 0;
  ++PrefixCachePeer::token(state().prefixes, state().pool.node(PageOf(kA, 1)), 0);
  ExpectReport("key of other tokens");
}

using CacheManagerDeathTest = CacheManagerTest;

TEST_F(CacheManagerDeathTest, BrokenContracts) {
  StartAndPublish(kA, Count(40));
  auto keys = KeysOf(options_, kRoot, Count(40));
  EXPECT_DEATH(cache_->Attach(kA, {}, kRoot).IgnoreError(), "check failed");
  EXPECT_DEATH(cache_->Reserve(kA, 257).IgnoreError(), "check failed");
  EXPECT_DEATH(cache_->Reserve(BatchRow{8}, 1).IgnoreError(), "check failed");
  EXPECT_DEATH(cache_->Publish(kA, Count(40), &keys, 41), "check failed");
  EXPECT_DEATH(cache_->Publish(kB, Count(40), &keys, 40), "check failed");
  EXPECT_DEATH(cache_->Fork(kA, kA, 1).IgnoreError(), "check failed");
  EXPECT_DEATH(cache_->Fork(kA, kB, 49).IgnoreError(), "check failed");
  EXPECT_DEATH(cache_->Fork(kB, kA, 0).IgnoreError(), "check failed");
  EXPECT_DEATH(cache_->FreeKeepingTail(kA, Count(3), keys, 4), "check failed");
  EXPECT_DEATH(cache_->Free(BatchRow{8}), "check failed");
  EXPECT_DEATH(cache_->SetPublish(BatchRow{8}, false), "check failed");
}

TEST_F(CacheManagerDeathTest, RejectsInvalidSteps) {
  const auto prepare = [&](std::vector<RowStep> steps) { cache_->PrepareStep(steps); };
  StartAndPublish(kA, Count(40));
  EXPECT_DEATH(prepare({{kA, 40, 0}}), "check failed");               // no token
  EXPECT_DEATH(prepare({{kA, 40, 9}}), "check failed");               // no page
  EXPECT_DEATH(prepare({{kA, 31, 1}}), "check failed");               // writes to a published page
  EXPECT_DEATH(prepare({{kA, 40, 1}, {kA, 41, 1}}), "check failed");  // the row occurs twice
  EXPECT_DEATH(prepare({{kA, 40, 0xffffffff}}), "check failed");
  EXPECT_DEATH(prepare({{BatchRow{8}, 0, 1}}), "check failed");
  cache_->SetPublish(kB, false);
  Start(kB, Count(40, 500));
  ASSERT_TRUE(cache_->Fork(kB, kC, 2 * kP).ok());
  EXPECT_DEATH(prepare({{kC, 2 * kP - 1, 1}}), "check failed");  // writes to a shared page
  prepare({{kA, 40, 1}, {kB, 40, 1}});
}

}  // namespace
}  // namespace quire::cache
