#include "cache_manager/pool/block_pool.h"

#include <algorithm>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/cache_test_util.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BlockPoolTest : public ::testing::Test {
 protected:
  BlockPoolTest() {
    pool_.SetEvictionHandler([this](BlockId page) {
      evicted_.push_back(page);
      pool_.DetachNode(page);
    });
  }
  ~BlockPoolTest() override { EXPECT_EQ(pool_.CheckIntegrity(), absl::OkStatus()); }

  BlockId Take() {
    std::array<BlockId, 1> page;
    QUIRE_CHECK(pool_.Allocate(page).ok());
    return page[0];
  }
  // Returns a page in state kCached.
  BlockId Cache() {
    const BlockId page = Take();
    pool_.AttachNode(page, NodeId{page.value()});
    pool_.DropRowRef(page);
    return page;
  }

  BlockPool pool_{6};
  std::vector<BlockId> evicted_;
};

TEST_F(BlockPoolTest, StartsWithEveryPageFree) {
  EXPECT_EQ(pool_.usable(), 5u);
  EXPECT_EQ(pool_.num_free(), 5u);
  EXPECT_EQ(pool_.state(kNullBlock), PageState::kNull);
  EXPECT_EQ(pool_.state(BlockId{5}), PageState::kFree);
}

TEST_F(BlockPoolTest, AllocateTakesAllOrNothing) {
  std::vector<BlockId> six(6);
  const absl::Status refused = pool_.Allocate(std::span(six));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "needs 6 pages, 5 available");
  EXPECT_EQ(pool_.available(), 5u);
  std::vector<BlockId> five(5);
  EXPECT_TRUE(pool_.Allocate(std::span(five)).ok());
  EXPECT_THAT(five, ElementsAre(BlockId{1}, BlockId{2}, BlockId{3}, BlockId{4}, BlockId{5}));
  EXPECT_EQ(pool_.available(), 0u);
}

TEST_F(BlockPoolTest, LastFreedIsTakenFirst) {
  const BlockId first = Take();
  const BlockId second = Take();
  pool_.DropRowRef(second);
  pool_.DropRowRef(first);
  EXPECT_EQ(Take(), first);
  EXPECT_EQ(Take(), second);
}

TEST_F(BlockPoolTest, KeepsCachedPageAfterLastReference) {
  const BlockId page = Cache();
  EXPECT_EQ(pool_.state(page), PageState::kCached);
  EXPECT_EQ(pool_.available(), 5u);
  pool_.AddRowRef(page);
  EXPECT_EQ(pool_.state(page), PageState::kPublished);
  EXPECT_EQ(pool_.available(), 4u);
  pool_.DropRowRef(page);
  EXPECT_EQ(pool_.node(page), NodeId{page.value()});
}

TEST_F(BlockPoolTest, EvictsColdestPageOnlyWhenNoPageIsFree) {
  const BlockId first = Take();
  const BlockId second = Take();
  for (const BlockId page : {first, second}) pool_.AttachNode(page, NodeId{page.value()});
  pool_.DropRowRef(second);
  pool_.DropRowRef(first);
  std::vector<BlockId> free(3);
  EXPECT_TRUE(pool_.Allocate(std::span(free)).ok());
  EXPECT_TRUE(evicted_.empty());
  EXPECT_EQ(Take(), second);
  EXPECT_EQ(Take(), first);
  EXPECT_THAT(evicted_, ElementsAre(second, first));
  EXPECT_EQ(pool_.num_detached(), 2u);
}

TEST_F(BlockPoolTest, FailedAllocationEvictsNothing) {
  Cache();
  std::vector<BlockId> six(6);
  EXPECT_FALSE(pool_.Allocate(std::span(six)).ok());
  EXPECT_TRUE(evicted_.empty());
  EXPECT_EQ(pool_.num_cached(), 1u);
}

TEST_F(BlockPoolTest, PageCanBeCachedBeforeAnother) {
  const BlockId first = Take();
  const BlockId second = Take();
  for (const BlockId page : {first, second}) pool_.AttachNode(page, NodeId{page.value()});
  pool_.DropRowRef(first);
  pool_.DropRowRef(second, first);
  EXPECT_THAT(pool_.EvictionOrder(), ElementsAre(second, first));
}

TEST_F(BlockPoolTest, HoldAloneKeepsPageInTransit) {
  const BlockId page = Take();
  pool_.AddHold(page);
  EXPECT_EQ(pool_.state(page), PageState::kActive);
  pool_.DropRowRef(page);
  EXPECT_EQ(pool_.state(page), PageState::kInTransit);
  EXPECT_EQ(pool_.available(), 4u);
  pool_.DropHold(page);
  EXPECT_EQ(pool_.state(page), PageState::kFree);
}

TEST_F(BlockPoolTest, DetachedCachedPageIsFree) {
  const BlockId page = Cache();
  pool_.DetachNode(page);
  EXPECT_EQ(pool_.state(page), PageState::kFree);
  EXPECT_EQ(Take(), page);
}

TEST_F(BlockPoolTest, PoisonedPageIsQuarantinedUntilItIsCleared) {
  const BlockId page = Take();
  pool_.AddRowRef(page);
  pool_.Poison(page);
  pool_.DropRowRef(page);
  EXPECT_EQ(pool_.state(page), PageState::kActive);
  pool_.DropRowRef(page);
  EXPECT_EQ(pool_.state(page), PageState::kQuarantined);
  EXPECT_EQ(pool_.available(), 4u);
  EXPECT_THAT(pool_.quarantined_pages(), ElementsAre(page));
  pool_.FreeQuarantined(page);
  EXPECT_EQ(pool_.state(page), PageState::kFree);
  EXPECT_FALSE(pool_.is_poisoned(page));
}

TEST_F(BlockPoolTest, ReturnsStateNames) {
  EXPECT_EQ(PageStateName(PageState::kInTransit), "in transit");
  EXPECT_EQ(PageStateName(PageState::kQuarantined), "quarantined");
}

// Compares the pool with a simple model: the reference counts of each page and the pool's lists in
// order.
class BlockPoolModelTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlocks = 12;
  struct Page {
    std::uint32_t row_refs = 0, holds = 0;
    bool node = false, poisoned = false;
    bool is_referenced() const { return row_refs + holds > 0; }
  };

  BlockPoolModelTest() : pool_(kBlocks) {
    for (std::uint32_t page = kBlocks - 1; page > 0; --page) free_.push_back(page);
    pool_.SetEvictionHandler([this](BlockId page) {
      evicted_.push_back(page.value());
      pool_.DetachNode(page);
    });
  }

  bool IsCached(std::uint32_t page) const { return std::ranges::count(cached_, page) > 0; }

  // Moves the page to the list that it belongs in if its last reference was dropped.
  void Settle(std::uint32_t page, std::uint32_t before) {
    const Page& state = model_[page];
    if (state.is_referenced()) return;
    if (state.poisoned) {
      quarantined_.push_back(page);
    } else if (!state.node) {
      free_.push_back(page);
    } else {
      cached_.insert(before == 0 ? cached_.end() : std::ranges::find(cached_, before), page);
    }
  }

  void Allocate() {
    std::vector<BlockId> out(random_.Below(4) + 1);
    const bool fits = out.size() <= free_.size() + cached_.size();
    evicted_.clear();
    ASSERT_EQ(pool_.Allocate(std::span(out)).ok(), fits);
    ASSERT_LE(evicted_.size(), fits ? cached_.size() : 0);
    ASSERT_TRUE(std::equal(evicted_.begin(), evicted_.end(), cached_.begin()));
    for (std::size_t i = 0; fits && i < out.size(); ++i) {
      if (free_.empty()) {
        model_[cached_.front()].node = false;
        free_.push_back(cached_.front());
        cached_.erase(cached_.begin());
      }
      ASSERT_EQ(out[i].value(), free_.back());
      model_[free_.back()].row_refs = 1;
      free_.pop_back();
    }
  }

  void AddReference(std::uint32_t page) {
    if (!model_[page].is_referenced() && !IsCached(page)) return;
    std::erase(cached_, page);
    if (random_.OneIn(2)) {
      pool_.AddRowRef(BlockId{page});
      ++model_[page].row_refs;
    } else {
      pool_.AddHold(BlockId{page});
      ++model_[page].holds;
    }
  }

  void DropRowRef(std::uint32_t page, std::uint32_t before) {
    if (model_[page].row_refs == 0) return;
    pool_.DropRowRef(BlockId{page}, BlockId{before});
    --model_[page].row_refs;
    Settle(page, before);
  }

  void DropHold(std::uint32_t page, std::uint32_t before) {
    if (model_[page].holds == 0) return;
    pool_.DropHold(BlockId{page}, BlockId{before});
    --model_[page].holds;
    Settle(page, before);
  }

  void AttachNode(std::uint32_t page) {
    Page& state = model_[page];
    if (!state.is_referenced() || state.node || state.poisoned) return;
    pool_.AttachNode(BlockId{page}, NodeId{page});
    state.node = true;
  }

  void DetachNode(std::uint32_t page) {
    if (!model_[page].node) return;
    pool_.DetachNode(BlockId{page});
    model_[page].node = false;
    if (std::erase(cached_, page) > 0) free_.push_back(page);
  }

  void PoisonOrFreeQuarantined(std::uint32_t page) {
    Page& state = model_[page];
    if (state.is_referenced() && !state.node && random_.OneIn(4)) {
      pool_.Poison(BlockId{page});
      state.poisoned = true;
    } else if (!quarantined_.empty()) {
      pool_.FreeQuarantined(BlockId{quarantined_.front()});
      model_[quarantined_.front()].poisoned = false;
      free_.push_back(quarantined_.front());
      quarantined_.erase(quarantined_.begin());
    }
  }

  void DoSomething() {
    const std::uint32_t page = random_.Below(kBlocks - 1) + 1;
    const std::uint32_t before =
        cached_.empty() || random_.OneIn(2) ? 0 : cached_[random_.Below(cached_.size())];
    switch (random_.Below(9)) {
      case 0:
        return Allocate();
      case 1:
      case 2:
        return AddReference(page);
      case 3:
      case 4:
        return DropRowRef(page, before);
      case 5:
        return DropHold(page, before);
      case 6:
        return AttachNode(page);
      case 7:
        return DetachNode(page);
      default:
        return PoisonOrFreeQuarantined(page);
    }
  }

  Random random_;
  BlockPool pool_;
  std::map<std::uint32_t, Page> model_;
  std::vector<std::uint32_t> free_;    // the last page is taken first
  std::vector<std::uint32_t> cached_;  // the first page is evicted first
  std::vector<std::uint32_t> quarantined_;
  std::vector<std::uint32_t> evicted_;  // by the last call of Allocate
};

TEST_F(BlockPoolModelTest, MatchesASimpleModel) {
  SCOPED_TRACE(::testing::Message() << "seed " << random_.seed());
  for (int operation = 0; operation < 50000; ++operation) {
    ASSERT_NO_FATAL_FAILURE(DoSomething()) << "operation " << operation;
    ASSERT_EQ(pool_.CheckIntegrity(), absl::OkStatus()) << "operation " << operation;
    ASSERT_EQ(pool_.num_free(), free_.size());
    ASSERT_EQ(pool_.num_quarantined(), quarantined_.size());
    ASSERT_TRUE(std::ranges::equal(pool_.EvictionOrder(), cached_, {}, &BlockId::value));
  }
}

TEST(BlockPoolIntegrityTest, ReportsBrokenInvariants) {
  using Peer = BlockPoolPeer;
  // Page 1 is active, page 2 published, page 3 cached, page 4 free.
  const auto broken = [](auto breakage) {
    BlockPool pool(5);
    std::vector<BlockId> pages(3);
    EXPECT_TRUE(pool.Allocate(std::span(pages)).ok());
    pool.AttachNode(BlockId{2}, NodeId{0});
    pool.AttachNode(BlockId{3}, NodeId{1});
    pool.DropRowRef(BlockId{3});
    EXPECT_TRUE(pool.CheckIntegrity().ok());
    breakage(pool);
    const absl::Status status = pool.CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::page(pool, 1).row_refs = 0; }),
              HasSubstr("page 1 is free but in no list"));
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::page(pool, 2).row_refs = 0; }),
              HasSubstr("page 2 is cached but in no list"));
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::page(pool, 3).node = kNoNode; }),
              HasSubstr("page 3 is free but in the cached list"));
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::page(pool, 4).holds = 1; }),
              HasSubstr("page 4 is in transit but in the free list"));
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::page(pool, 2).is_poisoned = true; }),
              HasSubstr("page 2 is poisoned but has a node"));
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::page(pool, 0).row_refs = 1; }),
              HasSubstr("null page"));
  EXPECT_THAT(
      broken([](BlockPool& pool) { Peer::free_list(pool).push_back(&Peer::page(pool, 1)); }),
      HasSubstr("page 1 is active but in the free list"));
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::cached_list(pool).erase(&Peer::page(pool, 3)); }),
              HasSubstr("page 3 is cached but in no list"));
  EXPECT_THAT(broken([](BlockPool& pool) { Peer::page(pool, 4).link.prev = &Peer::page(pool, 3); }),
              HasSubstr("the free list is broken at page 4"));
}

TEST(BlockPoolDeathTest, BrokenContracts) {
  BlockPool pool(4);
  std::array<BlockId, 1> page;
  ASSERT_TRUE(pool.Allocate(page).ok());
  EXPECT_DEATH(BlockPool(1), "check failed");
  EXPECT_DEATH(pool.Allocate({}).IgnoreError(), "check failed");
  EXPECT_DEATH(pool.EvictColdest(), "check failed");  // nothing is cached
  EXPECT_DEATH(pool.AddRowRef(kNullBlock), "check failed");
  EXPECT_DEATH(pool.AddRowRef(BlockId{4}), "check failed");
  EXPECT_DEATH(pool.AddRowRef(BlockId{3}), "check failed");  // free
  EXPECT_DEATH(pool.DropRowRef(BlockId{3}), "check failed");
  EXPECT_DEATH(pool.DropHold(page[0]), "check failed");
  EXPECT_DEATH(pool.AttachNode(BlockId{3}, NodeId{0}), "check failed");
  EXPECT_DEATH(pool.DetachNode(page[0]), "check failed");
  EXPECT_DEATH(pool.FreeQuarantined(page[0]), "check failed");
  pool.AttachNode(page[0], NodeId{0});
  EXPECT_DEATH(pool.AttachNode(page[0], NodeId{1}), "check failed");
  EXPECT_DEATH(pool.Poison(page[0]), "check failed");
  EXPECT_DEATH(pool.DropRowRef(page[0], BlockId{2}), "check failed");  // 2 is not cached
}

}  // namespace
}  // namespace quire::cache
