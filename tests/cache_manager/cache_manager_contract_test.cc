// Breaks each invariant and each precondition of CacheManager and checks that this is reported.

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
  BlockPool& pool() { return CacheManagerPeer::pool(*cache_); }
  LookupTable& table() { return CacheManagerPeer::table(*cache_, 0); }
  StepWork& work() { return CacheManagerPeer::step_work(*cache_); }
  void ExpectReport(const char* text) const {
    const absl::Status status = cache_->CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
};

TEST_F(CacheManagerIntegrityTest, ReportsNothingForAnIntactCache) {
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
}

TEST_F(CacheManagerIntegrityTest, ReportsWrongRequestCount) {
  pool().AddRowRef(PageOf(kA, 0));
  ExpectReport(
      "counts 3 row references and 0 holds, but 2 columns and 0 copies and steps in flight "
      "reference it");
}

TEST_F(CacheManagerIntegrityTest, ReportsWrongHoldCount) {
  pool().AddHold(PageOf(kA, 0));
  ExpectReport("1 holds");
}

TEST_F(CacheManagerIntegrityTest, ReportsColumnWithoutReference) {
  table().Append(kC, PageOf(kA, 2));
  ExpectReport("counts 1 row references and 0 holds, but 2 columns");
}

TEST_F(CacheManagerIntegrityTest, ReportsPageOutOfRange) {
  table().Append(kC, BlockId{20});
  ExpectReport("row 2 refers to page 20, the pool has 20 pages");
}

TEST_F(CacheManagerIntegrityTest, ReportsRowThatDoesNotContinueItsPrefix) {
  const BlockId first = PageOf(kA, 0);
  const BlockId second = PageOf(kA, 1);
  table().Replace(kA, 0, second);
  table().Replace(kA, 1, first);
  ExpectReport("row 0 column 0 does not continue the prefix before it");
}

TEST_F(CacheManagerIntegrityTest, ReportsRowOfAnotherScope) {
  CacheManagerPeer::publication(*cache_, 0).root = kOtherRoot;
  ExpectReport("row 0 column 0 does not continue the prefix before it");
}

TEST_F(CacheManagerIntegrityTest, ReportsPublishedPageAfterAPrivateOne) {
  const BlockId tail = PageOf(kA, 2);
  const BlockId second = PageOf(kA, 1);
  table().Replace(kA, 1, tail);
  table().Replace(kA, 2, second);
  ExpectReport("row 0 column 2 does not continue the prefix before it");
}

TEST_F(CacheManagerIntegrityTest, ReportsCopyIntoAFreePage) {
  work().QueueCopy(PageOf(kA, 0), BlockId{19}, 3);
  ExpectReport("invalid queued copy: 3 rows into page 19");
}

TEST_F(CacheManagerIntegrityTest, ReportsClearOfAPageThatIsNotQuarantined) {
  StepWorkPeer::taken(work()).clears.push_back(PageOf(kA, 2));
  ExpectReport("1 pages are being cleared, but they are not the first of 0 quarantined pages");
  StepWorkPeer::taken(work()).clears.clear();
  StepWorkPeer::num_clears_taken(work()) = 1;
  ExpectReport("0 pages are being cleared, but they are not the first of 0 quarantined pages");
}

TEST_F(CacheManagerIntegrityTest, ReportsWrongPagesOfStepsInFlight) {
  const RowStep step{kA, 40, 1};
  cache_->PrepareStep(std::span(&step, 1));
  const BlockId page = PageOf(kA, 2);
  StepWorkPeer::in_flight(work())[0].pinned.push_back(page);
  ExpectReport(
      "counts 1 row references and 0 holds, but 1 columns and 1 copies and steps in flight");
  StepWorkPeer::in_flight(work())[0].pinned.clear();
  pool().AddHold(PageOf(kA, 0));
  StepWorkPeer::in_flight(work())[0].copies.push_back({PageOf(kA, 0), BlockId{19}, 3});
  ExpectReport("page 19 was freed while a step in flight copies into it");
}

TEST_F(CacheManagerIntegrityTest, ReportsProofWithoutPages) {
  CacheManagerPeer::proof(*cache_, 1).proven_tokens = 2 * kP + 1;
  ExpectReport("row 1 has 33 proven tokens, but pages for 32");
}

TEST_F(CacheManagerIntegrityTest, ReportsProofOfAPageThatIsNotProven) {
  cache_->SetProven(kA, 2 * kP);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  CacheManagerPeer::proof(*cache_, 0).proven_tokens = 3 * kP;
  ExpectReport("row 0 has 48 proven tokens, but page 3 of column 2 is not proven finite");
}

TEST_F(CacheManagerIntegrityTest, ReportsErrorsOfItsComponents) {
  BlockPoolPeer::page(pool(), 19).row_refs = 1;
  ExpectReport("page 19 is active but in the free list");
  BlockPoolPeer::page(pool(), 19).row_refs = 0;
  LookupTablePeer::entry(table(), 5, 2) = 3;
  ExpectReport("row 5 column 2 holds page 3");
  LookupTablePeer::entry(table(), 5, 2) = 0;
  ++PrefixCachePeer::token(CacheManagerPeer::prefixes(*cache_), pool().node(PageOf(kA, 1)), 0);
  ExpectReport("has a key that does not match its tokens");
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

TEST_F(CacheManagerDeathTest, InvalidStepsAbort) {
  const auto prepare = [&](std::vector<RowStep> steps) { cache_->PrepareStep(steps); };
  StartAndPublish(kA, Count(40));
  EXPECT_DEATH(prepare({{kA, 40, 0}}), "check failed");  // no token
  EXPECT_DEATH(prepare({{kA, 40, 9}}), "check failed");  // no page
  EXPECT_DEATH(prepare({{kA, 31, 1}}), "check failed");  // writes into a published page
  EXPECT_DEATH(prepare({{kA, 40, 1}, {kA, 41, 1}}), "check failed");  // the row appears twice
  EXPECT_DEATH(prepare({{kA, 40, 0xffffffff}}), "check failed");
  EXPECT_DEATH(prepare({{BatchRow{8}, 0, 1}}), "check failed");
  cache_->SetPublish(kB, false);
  Start(kB, Count(40, 500));
  ASSERT_TRUE(cache_->Fork(kB, kC, 2 * kP).ok());
  EXPECT_DEATH(prepare({{kC, 2 * kP - 1, 1}}), "check failed");  // writes into a shared page
  prepare({{kA, 40, 1}, {kB, 40, 1}});
}

}  // namespace
}  // namespace quire::cache
