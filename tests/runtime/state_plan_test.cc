#include "runtime/state_plan.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::runtime {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;

// Qwen3.6-35B-A3B: 61.4 MiB of states, 20 KiB a token.
StatePlanRequest Request(std::uint32_t max_rows = 64) {
  return {.slot_bytes = 61 * kMiB,
          .kv_bytes = 10000 * kMiB,
          .share = 0.2,
          .max_rows = max_rows,
          .page_bytes = 64 * 20 * 1024,
          .page_size = 64};
}

TEST(StatePlanTest, ModelsWithoutStatesHaveNoSlots) {
  StatePlanRequest request = Request();
  request.slot_bytes = 0;
  const auto plan = PlanStateSlots(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_slots, 0u);
  EXPECT_EQ(plan->bytes(), 0);
}

TEST(StatePlanTest, CountsTheNullSlotTheRowsAndTheSnapshots) {
  const auto plan = PlanStateSlots(Request());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_snapshots, 32u);  // 2000 / 61
  EXPECT_EQ(plan->num_slots, 1u + 64 + 32);
  EXPECT_EQ(plan->bytes(), 97 * 61 * kMiB);
  EXPECT_EQ(plan->slot_tokens, 3123u);
  EXPECT_EQ(plan->interval_tokens, 4096u);
}

TEST(StatePlanTest, KeepsTwoSnapshotsAndNoMoreThanPages) {
  StatePlanRequest request = Request();
  request.share = 0;
  EXPECT_EQ(PlanStateSlots(request)->num_snapshots, 2u);
  request.slot_bytes = 80 * 1024;  // LFM2: a state is smaller than a page
  request.share = 0.5;
  EXPECT_EQ(PlanStateSlots(request)->num_snapshots, 10000u * 1024 / (64 * 20));
}

TEST(StatePlanTest, TheIntervalIsAWholeNumberOfPages) {
  StatePlanRequest request = Request(8);
  request.slot_bytes = 300 * kMiB + 1;
  const auto plan = PlanStateSlots(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->slot_tokens, 15360u);
  EXPECT_EQ(plan->interval_tokens, 15360u);
  request.slot_bytes += 20 * 1024;
  EXPECT_EQ(PlanStateSlots(request)->interval_tokens, 15360u + 64);
}

TEST(StatePlanTest, RefusesRowsThatTakeMoreThanHalf) {
  EXPECT_EQ(PlanStateSlots(Request(81))->max_rows, 81u);
  EXPECT_TRUE(PlanStateSlots(Request(81)).ok());
  const absl::Status refused = PlanStateSlots(Request(82)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("scheduler.max_running_sequences is 82, and the recurrent states of 82 "
                "sequences take 5244977152 bytes, more than half of the 10485760000 bytes"));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("lower scheduler.max_running_sequences to at most 81, or raise "
                        "kv_cache.capacity_bytes to at least "
                        "10489954304"));
  // One row fits, but not the slots that the snapshots and the null slot need besides.
  StatePlanRequest small = Request(1);
  small.kv_bytes = 244 * kMiB;
  EXPECT_THAT(std::string(PlanStateSlots(small).status().message()),
              HasSubstr("has 255852544 bytes, and 4 slots of recurrent states and two pages take"));
  small.kv_bytes += 2 * small.page_bytes;
  EXPECT_TRUE(PlanStateSlots(small).ok());
  StatePlanRequest request = Request(1);
  request.kv_bytes = 100 * kMiB;
  EXPECT_THAT(
      std::string(PlanStateSlots(request).status().message()),
      HasSubstr("raise kv_cache.capacity_bytes to at least " + std::to_string(small.kv_bytes)));
}

// The plan with lower rows is accepted without that permission, and one with a row more is not.
TEST(StatePlanTest, LowersRowsToTheLargestNumberThatFits) {
  for (const double share : {0.0, 0.2, 0.45, 0.5}) {
    for (const std::int64_t mib : {247, 300, 600, 1000, 9999}) {
      StatePlanRequest request = Request(256);
      request.share = share;
      request.kv_bytes = mib * kMiB;
      request.may_lower_rows = true;
      const auto lowered = PlanStateSlots(request);
      ASSERT_TRUE(lowered.ok()) << lowered.status();
      EXPECT_LT(lowered->max_rows, 256u);
      EXPECT_EQ(lowered->num_slots, 1 + lowered->max_rows + lowered->num_snapshots);
      request.may_lower_rows = false;
      request.max_rows = lowered->max_rows;
      EXPECT_EQ(PlanStateSlots(request)->num_slots, lowered->num_slots);
      ++request.max_rows;
      EXPECT_FALSE(PlanStateSlots(request).ok()) << share << ", " << mib;
    }
  }
}

TEST(StatePlanTest, KeepsRowsThatFitAndRefusesIfNoneDoes) {
  StatePlanRequest request = Request(64);
  request.may_lower_rows = true;
  EXPECT_EQ(PlanStateSlots(request)->max_rows, 64u);
  EXPECT_EQ(PlanStateSlots(request)->num_slots, PlanStateSlots(Request(64))->num_slots);
  request.kv_bytes = 100 * kMiB;
  const absl::Status refused = PlanStateSlots(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the recurrent states of one sequence take 63963136 bytes, more than half "
                        "of the 104857600 bytes of the KV cache; raise kv_cache.capacity_bytes"));
  request.slot_bytes = 0;
  EXPECT_EQ(PlanStateSlots(request)->max_rows, 64u);
}

}  // namespace
}  // namespace quire::runtime
