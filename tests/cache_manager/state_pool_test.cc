#include "cache_manager/pool/state_pool.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/cache_test_util.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StatePoolTest : public ::testing::Test {
 protected:
  StatePoolTest() {
    pool_.SetEvictionHandler([this](StateSlot slot) {
      evicted_.push_back(slot);
      pool_.DetachNode(slot);
    });
  }
  ~StatePoolTest() override { EXPECT_EQ(pool_.CheckIntegrity(), absl::OkStatus()); }

  // Returns a snapshot without readers.
  StateSlot Cache() {
    const StateSlot slot = pool_.Allocate();
    pool_.Freeze(slot, 16);
    pool_.AttachNode(slot, NodeId{slot.value()});
    pool_.DropReader(slot);
    return slot;
  }

  StatePool pool_{5};
  std::vector<StateSlot> evicted_;
};

TEST_F(StatePoolTest, AModelWithoutStatesHasNoSlots) {
  StatePool none(0);
  EXPECT_EQ(none.usable(), 0u);
  EXPECT_EQ(none.available(), 0u);
  EXPECT_EQ(none.Allocate(), kNullSlot);
  EXPECT_EQ(none.CheckIntegrity(), absl::OkStatus());
}

TEST_F(StatePoolTest, AllocatesEverySlotButTheNullSlot) {
  EXPECT_EQ(pool_.state(kNullSlot), SlotState::kNull);
  std::vector<StateSlot> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(pool_.Allocate());
  EXPECT_THAT(slots, ElementsAre(StateSlot{1}, StateSlot{2}, StateSlot{3}, StateSlot{4}));
  EXPECT_EQ(pool_.state(slots[0]), SlotState::kLive);
  EXPECT_EQ(pool_.Allocate(), kNullSlot);
  pool_.Free(slots[2]);
  EXPECT_EQ(pool_.Allocate(), slots[2]);
  EXPECT_EQ(pool_.num_uses(slots[2]), 2u);
}

TEST_F(StatePoolTest, EvictsTheColdestSnapshotWithoutReaders) {
  const StateSlot first = Cache(), second = Cache(), third = Cache(), fourth = Cache();
  EXPECT_EQ(pool_.num_snapshots(), 4u);
  pool_.Touch(first);
  pool_.AddReader(second);
  EXPECT_THAT(pool_.EvictionOrder(), ElementsAre(third, fourth, first));
  EXPECT_EQ(pool_.Allocate(), third);
  EXPECT_EQ(pool_.Allocate(), fourth);
  EXPECT_EQ(pool_.Allocate(), first);
  EXPECT_EQ(pool_.Allocate(), kNullSlot);
  EXPECT_THAT(evicted_, ElementsAre(third, fourth, first));
  EXPECT_EQ(pool_.state(second), SlotState::kFrozen);
}

TEST_F(StatePoolTest, AFrozenSlotWithoutNodeIsFreeAfterItsLastReader) {
  const StateSlot slot = pool_.Allocate();
  pool_.Freeze(slot, 16);
  pool_.AddReader(slot);
  pool_.DropReader(slot);
  EXPECT_EQ(pool_.state(slot), SlotState::kFrozen);
  pool_.DropReader(slot);
  EXPECT_EQ(pool_.state(slot), SlotState::kFree);
}

TEST_F(StatePoolTest, ASnapshotThatLosesItsNodeStaysWhileItIsRead) {
  const StateSlot slot = Cache();
  pool_.AddReader(slot);
  pool_.DetachNode(slot);
  EXPECT_EQ(pool_.state(slot), SlotState::kFrozen);
  pool_.DropReader(slot);
  EXPECT_EQ(pool_.state(slot), SlotState::kFree);
}

TEST_F(StatePoolTest, QuarantinedSlotsAreNotAllocated) {
  const StateSlot slot = pool_.Allocate();
  pool_.Quarantine(slot);
  EXPECT_EQ(pool_.state(slot), SlotState::kQuarantined);
  EXPECT_EQ(pool_.available(), 3u);
  const std::uint64_t returned = pool_.num_returned();
  pool_.FreeQuarantined();
  EXPECT_EQ(pool_.available(), 4u);
  EXPECT_EQ(pool_.num_returned(), returned + 1);
}

TEST_F(StatePoolTest, TheProofEndsWithTheUse) {
  const StateSlot slot = Cache();
  pool_.SetProvenFinite(slot);
  EXPECT_TRUE(pool_.is_proven_finite(slot));
  pool_.DetachNode(slot);
  EXPECT_EQ(pool_.Allocate(), slot);
  EXPECT_FALSE(pool_.is_proven_finite(slot));
}

// A list of slots per state, searched linearly.
class StatePoolModelTest : public ::testing::Test {
 protected:
  struct Slot {
    SlotState state = SlotState::kFree;
    std::uint32_t readers = 0;
    bool has_node = false;
  };

  StatePoolModelTest() : pool_(9) {
    for (std::uint32_t slot = 8; slot > 0; --slot) free_.push_back(slot);
    for (std::uint32_t slot = 1; slot < 9; ++slot) model_[slot] = Slot{};
    pool_.SetEvictionHandler([this](StateSlot slot) { pool_.DetachNode(slot); });
  }

  void Allocate() {
    const StateSlot slot = pool_.Allocate();
    std::uint32_t expected = 0;
    if (!free_.empty()) {
      expected = free_.back();
      free_.pop_back();
    } else if (!cached_.empty()) {
      expected = cached_.front();
      cached_.erase(cached_.begin());
    }
    ASSERT_EQ(slot.value(), expected);
    if (expected != 0) model_[expected] = {.state = SlotState::kLive};
  }

  void Settle(std::uint32_t id) {
    Slot& slot = model_[id];
    if (slot.readers > 0) return;
    if (slot.has_node) return cached_.push_back(id);
    slot.state = SlotState::kFree;
    free_.push_back(id);
  }

  void Change(std::uint32_t id) {
    const StateSlot slot{id};
    Slot& expected = model_[id];
    const std::uint32_t choice = random_.Below(4);
    if (expected.state == SlotState::kLive) {
      if (choice == 0) {
        pool_.Free(slot);
        Settle(id);
      } else if (choice == 1) {
        pool_.Quarantine(slot);
        expected.state = SlotState::kQuarantined;
        quarantined_.push_back(id);
      } else {
        pool_.Freeze(slot, 16);
        expected = {.state = SlotState::kFrozen, .readers = 1};
      }
    } else if (expected.state == SlotState::kFrozen) {
      if (choice == 0) {
        pool_.AddReader(slot);
        std::erase(cached_, id);
        ++expected.readers;
      } else if (choice == 1 && expected.readers > 0) {
        pool_.DropReader(slot);
        --expected.readers;
        Settle(id);
      } else if (choice == 2 && expected.readers > 0 && !expected.has_node) {
        pool_.AttachNode(slot, NodeId{id});
        expected.has_node = true;
      } else if (choice == 3 && expected.has_node) {
        const bool was_cached = std::erase(cached_, id) > 0;
        if (random_.OneIn(2)) {
          pool_.Touch(slot);
          if (was_cached) cached_.push_back(id);
          return;
        }
        pool_.DetachNode(slot);
        expected.has_node = false;
        Settle(id);
      }
    }
  }

  Random random_;
  StatePool pool_;
  std::map<std::uint32_t, Slot> model_;
  std::vector<std::uint32_t> free_;    // the last slot is taken first
  std::vector<std::uint32_t> cached_;  // the first slot is evicted first
  std::vector<std::uint32_t> quarantined_;
};

TEST_F(StatePoolModelTest, MatchesASimpleModel) {
  SCOPED_TRACE(::testing::Message() << "seed " << random_.seed());
  std::uint64_t evictions = 0;
  for (int operation = 0; operation < 50000; ++operation) {
    if (random_.OneIn(4)) {
      evictions += free_.empty() && !cached_.empty();
      ASSERT_NO_FATAL_FAILURE(Allocate()) << "operation " << operation;
    } else if (random_.OneIn(20)) {
      pool_.FreeQuarantined();
      for (const std::uint32_t slot : quarantined_) Settle(slot);
      quarantined_.clear();
    } else {
      Change(random_.Below(8) + 1);
    }
    ASSERT_EQ(pool_.CheckIntegrity(), absl::OkStatus()) << "operation " << operation;
    ASSERT_EQ(pool_.num_free(), free_.size());
    ASSERT_TRUE(std::ranges::equal(pool_.EvictionOrder(), cached_, {}, &StateSlot::value));
    for (const auto& [id, slot] : model_) {
      ASSERT_EQ(pool_.state(StateSlot{id}), slot.state) << "operation " << operation;
      ASSERT_EQ(pool_.readers(StateSlot{id}), slot.readers);
    }
  }
  EXPECT_GT(evictions, 20u);
}

TEST(StatePoolIntegrityTest, ReportsBrokenInvariants) {
  using Peer = StatePoolPeer;
  // Slot 1 is live, slot 2 read, slot 3 a cached snapshot, slot 4 free.
  const auto broken = [](auto breakage) {
    StatePool pool(5);
    for (int i = 0; i < 3; ++i) EXPECT_NE(pool.Allocate(), kNullSlot);
    pool.Freeze(StateSlot{2}, 16);
    pool.Freeze(StateSlot{3}, 16);
    pool.AttachNode(StateSlot{3}, NodeId{0});
    pool.DropReader(StateSlot{3});
    EXPECT_TRUE(pool.CheckIntegrity().ok());
    breakage(pool);
    const absl::Status status = pool.CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  EXPECT_THAT(broken([](StatePool& pool) { Peer::slot(pool, 1).readers = 1; }),
              HasSubstr("slot 1 is in several states"));
  EXPECT_THAT(broken([](StatePool& pool) { Peer::slot(pool, 1).is_live = false; }),
              HasSubstr("slot 1 is free but in no list"));
  EXPECT_THAT(broken([](StatePool& pool) { Peer::slot(pool, 3).readers = 1; }),
              HasSubstr("slot 3 is frozen but in a list"));
  EXPECT_THAT(broken([](StatePool& pool) { Peer::slot(pool, 2).node = NodeId{7}; }),
              HasSubstr("and 1 snapshots, but has 1, 1, 0 and 2"));
  EXPECT_THAT(broken([](StatePool& pool) { Peer::slot(pool, 0).is_live = true; }),
              HasSubstr("the null slot is in use"));
  EXPECT_THAT(broken([](StatePool& pool) { Peer::slot(pool, 4).is_quarantined = true; }),
              HasSubstr("slot 4 is quarantined but in the free list"));
}

TEST(StatePoolDeathTest, BrokenContracts) {
  StatePool pool(3);
  const StateSlot slot = pool.Allocate();
  EXPECT_DEATH(StatePool(1), "check failed");
  EXPECT_DEATH(pool.Free(kNullSlot), "check failed");
  EXPECT_DEATH(pool.Free(StateSlot{2}), "check failed");
  EXPECT_DEATH(pool.AddReader(slot), "check failed");  // a live slot may change
  EXPECT_DEATH(pool.DropReader(slot), "check failed");
  EXPECT_DEATH(pool.AttachNode(slot, NodeId{0}), "check failed");
  EXPECT_DEATH(pool.Freeze(slot, 0), "check failed");
  pool.Freeze(slot, 16);
  EXPECT_DEATH(pool.Freeze(slot, 16), "check failed");
  EXPECT_DEATH(pool.Free(slot), "check failed");
  EXPECT_DEATH(pool.Quarantine(slot), "check failed");
  EXPECT_DEATH(pool.DetachNode(slot), "check failed");
}

}  // namespace
}  // namespace quire::cache
