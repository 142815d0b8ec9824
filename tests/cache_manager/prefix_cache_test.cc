#include "cache_manager/prefix/prefix_cache.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/allocation_count.h"
#include "tests/cache_manager/cache_test_util.h"

namespace quire::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Hash128 kRoot{100, 200};
const HashKey kKey{{5, 6, 7, 8}};

// The prefix cache uses a pool of 15 pages of 4 tokens.
class PrefixCacheTest : public ::testing::Test {
 protected:
  explicit PrefixCacheTest(PageHashFunction page_hash = &HashPage)
      : page_hash_(page_hash),
        cache_({.page_size = 4, .hash_key = kKey, .page_hash = page_hash}, &pool_, &states_) {}
  ~PrefixCacheTest() override {
    EXPECT_EQ(pool_.CheckIntegrity(), absl::OkStatus());
    EXPECT_EQ(cache_.CheckIntegrity(), absl::OkStatus());
  }

  BlockId Take() {
    std::array<BlockId, 1> page;
    QUIRE_CHECK(pool_.Allocate(page).ok());
    return page[0];
  }
  PageKey KeyAfter(const Hash128& parent, const Tokens& tokens) const {
    return page_hash_(kKey, parent, tokens);
  }
  // Publishes one page of tokens as a child of the root or of a node. The page has one request
  // reference.
  NodeId Add(NodeId parent, const Hash128& parent_key, const Tokens& tokens) {
    return cache_.AddChild(parent, KeyAfter(parent_key, tokens), tokens, Pages(Take()));
  }
  NodeId AddFirst(const Tokens& tokens) { return Add(cache_.AddRoot(kRoot), kRoot, tokens); }
  BlockId PageOf(NodeId node) const { return cache_.pages(node)[0]; }
  void Drop(NodeId node) { cache_.DropRowRef(PageOf(node)); }

  PageHashFunction page_hash_;
  BlockPool pool_{16};
  StatePool states_{0};
  PrefixCache cache_;
};

TEST_F(PrefixCacheTest, FindsOnlyExactTokensUnderTheirParent) {
  const Tokens a = Count(4);
  const NodeId first = AddFirst(a);
  const PageKey first_key = KeyAfter(kRoot, a);
  const NodeId second = Add(first, first_key, Count(4, 4));
  const PageKey second_key = KeyAfter(first_key, Count(4, 4));
  const NodeId root = cache_.FindRoot(kRoot);
  EXPECT_EQ(cache_.FindRoot({1, 1}), kNoNode);
  EXPECT_EQ(cache_.FindChild(root, first_key, a).node, first);
  EXPECT_EQ(cache_.FindChild(first, second_key, Count(4, 4)).node, second);
  EXPECT_EQ(cache_.parent(second), first);
  EXPECT_TRUE(cache_.is_root(cache_.parent(first), kRoot));

  const auto absent = cache_.FindChild(root, {9, 9}, a);
  EXPECT_EQ(absent.node, kNoNode);
  EXPECT_FALSE(absent.collision);
  const auto other_tokens = cache_.FindChild(root, first_key, Count(4, 1));
  EXPECT_EQ(other_tokens.node, kNoNode);
  EXPECT_TRUE(other_tokens.collision);
  const auto other_parent = cache_.FindChild(second, first_key, a);
  EXPECT_EQ(other_parent.node, kNoNode);
  EXPECT_TRUE(other_parent.collision);
  EXPECT_TRUE(cache_.FindChild(kNoNode, first_key, a).collision);
}

TEST_F(PrefixCacheTest, LongestMatchWinsAndTiesGoToTheMostRecentChild) {
  const NodeId root = cache_.AddRoot(kRoot);
  const NodeId old = Add(root, kRoot, {1, 2, 9, 9});
  const NodeId recent = Add(root, kRoot, {1, 2, 8, 8});
  const NodeId longer = cache_.AddPartialChild(root, Tokens{1, 2, 3}, Pages(Take()));
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{1, 2, 3, 4}).node, longer);
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{1, 2, 3, 4}).num_tokens, 3u);
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{1, 2, 9}).node, old);
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{1, 2}).node, longer);
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{1, 2}).num_tokens, 2u);
  cache_.Touch(recent);
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{1, 2, 7}).node, recent);
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{7}).num_tokens, 0u);
  EXPECT_EQ(cache_.FindPartialMatch(root, {}).num_tokens, 0u);
  EXPECT_EQ(cache_.FindPartialMatch(kNoNode, Tokens{1}).num_tokens, 0u);
}

TEST_F(PrefixCacheTest, ComparesOnlyTheEightMostRecentChildren) {
  const NodeId root = cache_.AddRoot(kRoot);
  const NodeId oldest = Add(root, kRoot, {50, 1, 1, 1});
  for (std::int32_t i = 0; i < 8; ++i) Add(root, kRoot, {i, 0, 0, 0});
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{50}).num_tokens, 0u);
  cache_.Touch(oldest);
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{50}).node, oldest);
  // Evicted from the list in turn.
  EXPECT_EQ(cache_.FindPartialMatch(root, Tokens{0}).num_tokens, 0u);
}

TEST_F(PrefixCacheTest, PartialChildrenAreNotIndexed) {
  const NodeId root = cache_.AddRoot(kRoot);
  cache_.AddPartialChild(root, Tokens{1, 2, 3}, Pages(Take()));
  EXPECT_TRUE(PrefixCachePeer::index(cache_).empty());
  EXPECT_EQ(cache_.num_nodes(), 1u);
}

TEST_F(PrefixCacheTest, DropSubtreeDropsOnlyTheSubtree) {
  const PageKey first_key = KeyAfter(kRoot, Count(4));
  const NodeId first = AddFirst(Count(4));
  const NodeId left = Add(first, first_key, Count(4, 10));
  const NodeId right = Add(first, first_key, Count(4, 20));
  const PageKey left_key = KeyAfter(first_key, Count(4, 10));
  const NodeId leaf = Add(left, left_key, Count(4, 30));
  const BlockId leaf_page = PageOf(leaf);
  Drop(leaf);
  EXPECT_EQ(pool_.state(leaf_page), PageState::kCached);
  const std::uint64_t generation = cache_.generation();
  cache_.DropSubtree(left);
  EXPECT_GT(cache_.generation(), generation);
  EXPECT_EQ(cache_.num_nodes(), 2u);
  EXPECT_EQ(pool_.state(leaf_page), PageState::kFree);
  EXPECT_EQ(cache_.FindChild(first, left_key, Count(4, 10)).node, kNoNode);
  EXPECT_EQ(cache_.parent(right), first);
  EXPECT_EQ(cache_.CheckIntegrity(), absl::OkStatus());
  cache_.DropSubtree(first);
  EXPECT_EQ(cache_.num_nodes(), 0u);
  EXPECT_EQ(cache_.FindRoot(kRoot), kNoNode);
}

TEST_F(PrefixCacheTest, DropsALongPathWithoutRecursion) {
  BlockPool pool(200002);
  StatePool states{0};
  PrefixCache cache({.page_size = 1, .hash_key = kKey, .page_hash = &HashPage}, &pool, &states);
  NodeId node = cache.AddRoot(kRoot);
  Hash128 key = kRoot;
  for (std::int32_t token = 0; token < 200000; ++token) {
    std::array<BlockId, 1> page;
    ASSERT_TRUE(pool.Allocate(page).ok());
    key = HashPage(kKey, key, std::span(&token, 1));
    node = cache.AddChild(node, key, std::span(&token, 1), page);
  }
  cache.DropSubtree(pool.node(BlockId{1}));
  EXPECT_EQ(cache.num_nodes(), 0u);
}

TEST_F(PrefixCacheTest, EvictsLeavesFirstForAnyOrderOfRelease) {
  // The path is first - second - third. Pages are released from first to third, but each must be
  // evicted after its children.
  const PageKey first_key = KeyAfter(kRoot, Count(4));
  const PageKey second_key = KeyAfter(first_key, Count(4, 4));
  const NodeId first = AddFirst(Count(4));
  const NodeId second = Add(first, first_key, Count(4, 4));
  const NodeId third = Add(second, second_key, Count(4, 8));
  const std::vector<BlockId> pages = {PageOf(first), PageOf(second), PageOf(third)};
  // In-transit pages may remain after the references to their parents are dropped.
  for (const BlockId page : pages) pool_.AddHold(page);
  for (const BlockId page : pages) pool_.DropRowRef(page);
  cache_.DropHold(pages[0]);
  cache_.DropHold(pages[2]);
  EXPECT_EQ(cache_.CheckIntegrity(), absl::OkStatus());
  cache_.DropHold(pages[1]);
  EXPECT_THAT(pool_.EvictionOrder(), ElementsAre(pages[2], pages[1], pages[0]));
}

TEST_F(PrefixCacheTest, AllocatingACachedPageDropsItsNode) {
  const NodeId first = AddFirst(Count(4));
  const BlockId page = PageOf(first);
  Drop(first);
  std::vector<BlockId> all(15);
  ASSERT_TRUE(pool_.Allocate(std::span(all)).ok());
  EXPECT_EQ(all.back(), page);
  EXPECT_EQ(cache_.num_nodes(), 0u);
  EXPECT_EQ(cache_.FindRoot(kRoot), kNoNode);
}

class WeakHashTest : public PrefixCacheTest {
 protected:
  WeakHashTest() : PrefixCacheTest(&WeakPageHash) {}
};

TEST_F(WeakHashTest, CollidingKeysDoNotMatch) {
  AddFirst(Count(4));
  const PageKey key = KeyAfter(kRoot, Count(4));
  Tokens other = Count(4, 1);
  while (KeyAfter(kRoot, other) != key) ++other[3];
  const auto child = cache_.FindChild(cache_.FindRoot(kRoot), key, other);
  EXPECT_EQ(child.node, kNoNode);
  EXPECT_TRUE(child.collision);
}

class PrefixCacheIntegrityTest : public ::testing::Test {
 protected:
  // The tree has the paths first - second and first - tail, where tail is partial. The pages of
  // second and tail are cached, and first is referenced.
  struct Setup {
    BlockPool pool{8};
    StatePool states{0};
    PrefixCache cache{{.page_size = 4, .hash_key = kKey, .page_hash = &HashPage}, &pool, &states};
    NodeId root, first, second, tail;
    Setup() {
      std::vector<BlockId> pages(3);
      QUIRE_CHECK(pool.Allocate(std::span(pages)).ok());
      root = cache.AddRoot(kRoot);
      const PageKey key = HashPage(kKey, kRoot, Count(4));
      first = cache.AddChild(root, key, Count(4), Pages(pages[0]));
      second =
          cache.AddChild(first, HashPage(kKey, key, Count(4, 4)), Count(4, 4), Pages(pages[1]));
      tail = cache.AddPartialChild(first, Count(2), Pages(pages[2]));
      pool.DropRowRef(pages[1]);
      pool.DropRowRef(pages[2]);
    }
  };
  template <typename Breakage>
  static std::string Broken(Breakage breakage) {
    Setup setup;
    EXPECT_EQ(setup.cache.CheckIntegrity(), absl::OkStatus());
    breakage(setup);
    const absl::Status status = setup.cache.CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  }
};

TEST_F(PrefixCacheIntegrityTest, ReportsBrokenNodes) {
  using Peer = PrefixCachePeer;
  EXPECT_THAT(Broken([](Setup& s) { Peer::page(s.cache, s.second) = BlockId{7}; }),
              HasSubstr("refers to page 7"));
  EXPECT_THAT(Broken([](Setup& s) { Peer::node(s.cache, s.second).parent = kNoNode; }),
              HasSubstr("has a child whose parent is another"));
  EXPECT_THAT(Broken([](Setup& s) { ++Peer::node(s.cache, s.first).generation; }),
              HasSubstr("is partial or was freed"));
  EXPECT_THAT(Broken([](Setup& s) { Peer::node(s.cache, s.second).parent = s.tail; }),
              HasSubstr("has a child whose parent is another"));
  EXPECT_THAT(Broken([](Setup& s) { Peer::node(s.cache, s.tail).num_tokens = 4; }),
              HasSubstr("filled with 4 tokens of 4"));
  EXPECT_THAT(Broken([](Setup& s) { Peer::node(s.cache, s.second).num_tokens = 3; }),
              HasSubstr("filled with 3 tokens of 4"));
  EXPECT_THAT(Broken([](Setup& s) { ++Peer::token(s.cache, s.second, 2); }),
              HasSubstr("has a key that does not match its tokens"));
  EXPECT_THAT(Broken([](Setup& s) { s.pool.DetachNode(s.cache.pages(s.tail)[0]); }),
              HasSubstr("which does not refer to the node"));
}

TEST_F(PrefixCacheIntegrityTest, ReportsBrokenIndexAndTree) {
  using Peer = PrefixCachePeer;
  EXPECT_THAT(
      Broken([](Setup& s) { Peer::index(s.cache).erase(Peer::node(s.cache, s.second).key); }),
      HasSubstr("is not in the index"));
  EXPECT_THAT(Broken([](Setup& s) {
                Peer::index(s.cache).emplace(PageKey{1, 1}, s.tail);
              }),
              HasSubstr("prefix cache counts 3 keys"));
  EXPECT_THAT(Broken([](Setup& s) { Peer::roots(s.cache).clear(); }), HasSubstr("root node"));
  EXPECT_THAT(Broken([](Setup& s) { s.cache.AddRoot({3, 3}); }), HasSubstr("has no child"));
  EXPECT_THAT(Broken([](Setup& s) {
                Peer::node(s.cache, s.first).children.erase(&Peer::node(s.cache, s.tail));
              }),
              HasSubstr("children"));
  EXPECT_THAT(Broken([](Setup& s) {
                s.pool.AttachNode(
                    [&] {
                      std::array<BlockId, 1> page;
                      QUIRE_CHECK(s.pool.Allocate(page).ok());
                      return page[0];
                    }(),
                    s.first);
              }),
              HasSubstr("refers to a node that does not have it"));
}

TEST_F(PrefixCacheIntegrityTest, ReportsAWrongEvictionOrder) {
  // The parent becomes the coldest page although second and tail are its children.
  EXPECT_THAT(Broken([](Setup& s) {
                s.pool.DropRowRef(s.cache.pages(s.first)[0], s.pool.EvictionOrder().front());
              }),
              HasSubstr("would be evicted before page"));
  // The parent is released while a row still references its child.
  EXPECT_THAT(Broken([](Setup& s) {
                s.pool.AddRowRef(s.cache.pages(s.second)[0]);
                s.pool.DropRowRef(s.cache.pages(s.first)[0]);
              }),
              HasSubstr("would be evicted before page"));
}

TEST(PrefixCacheDeathTest, BrokenContracts) {
  BlockPool pool(8);
  StatePool states{0};
  PrefixCache cache({.page_size = 4, .hash_key = kKey, .page_hash = &HashPage}, &pool, &states);
  std::vector<BlockId> pages(3);
  ASSERT_TRUE(pool.Allocate(std::span(pages)).ok());
  const NodeId root = cache.AddRoot(kRoot);
  EXPECT_DEATH(cache.Touch(root), "check failed");
  EXPECT_DEATH(cache.AddChild(root, {1, 1}, Count(3), Pages(pages[0])), "check failed");
  EXPECT_DEATH(cache.AddPartialChild(root, Count(4), Pages(pages[0])), "check failed");
  EXPECT_DEATH(cache.AddPartialChild(root, {}, Pages(pages[0])), "check failed");
  EXPECT_DEATH(cache.AddChild(kNoNode, {1, 1}, Count(4), Pages(pages[0])), "check failed");
  cache.AddChild(root, {1, 1}, Count(4), Pages(pages[0]));
  EXPECT_DEATH(cache.AddChild(root, {1, 1}, Count(4, 9), Pages(pages[1])), "check failed");
  EXPECT_DEATH(cache.AddChild(root, {2, 2}, Count(4, 9), Pages(pages[0])), "check failed");
  EXPECT_DEATH(cache.AddChild(root, {2, 2}, Count(4, 9), Pages(BlockId{6})),
               "check failed");  // free
  const NodeId tail = cache.AddPartialChild(root, Count(2), Pages(pages[1]));
  EXPECT_DEATH(cache.AddChild(tail, {2, 2}, Count(4), Pages(pages[2])), "check failed");
  EXPECT_DEATH(cache.parent(NodeId{5}), "check failed");
}

// Every page has its own root, which is the maximum number of nodes of a tree. The loop fills the
// pool twice, so that the tables contain erased entries as well.
TEST(PrefixCacheBytesTest, BoundTheMemoryOfAFullPool) {
  const Tokens tokens = Count(64);
  for (const std::uint32_t num_blocks : {2u, 5u, 6u, 8u, 9u, 15u, 16u, 113u, 1000u, 4097u}) {
    for (const std::uint32_t num_groups : {1u, 3u}) {
      for (const std::uint32_t max_empty_nodes : {0u, 700u}) {
        if (num_blocks <= num_groups) continue;
        PrefixCacheOptions options{.page_size = 64, .hash_key = kKey};
        options.groups.assign(num_groups, CacheGroup{.window = 100});
        options.max_empty_nodes = max_empty_nodes;
        BlockPool pool(num_blocks);
        StatePool states{0};
        std::vector<BlockId> pages(num_groups);
        const std::uint64_t before = BytesAllocated();
        PrefixCache cache(options, &pool, &states);
        const std::uint64_t made = BytesAllocated();
        for (std::uint64_t root = 1; root <= 2 * (num_blocks / num_groups); ++root) {
          QUIRE_CHECK(pool.Allocate(pages).ok() && cache.MakeRoom());
          cache.AddChild(cache.AddRoot({root, 1}), {root, 2}, tokens, pages);
          for (const BlockId page : pages) cache.DropRowRef(page);
        }
        const auto held = static_cast<std::int64_t>(BytesAllocated() - before);
        const std::int64_t bound = PrefixCache::BytesFor(options, num_blocks);
        EXPECT_LE(held, bound) << num_blocks << ", " << num_groups << ", " << max_empty_nodes;
        // The bound counts nothing that is not allocated, except for tables of a few entries and
        // their growth.
        EXPECT_LE(bound, held + 2048) << num_blocks << ", " << num_groups;
        if (num_blocks > 8) {
          EXPECT_EQ(BytesAllocated(), made) << num_blocks << ", " << num_groups;
        }
        EXPECT_GE(cache.num_nodes(), (num_blocks - 1) / num_groups);
      }
    }
  }
}

TEST(PrefixCacheBytesTest, GrowWithThePool) {
  const PrefixCacheOptions options{.page_size = 64};
  for (std::uint32_t num_blocks = 2; num_blocks < 3000; ++num_blocks) {
    EXPECT_LT(PrefixCache::BytesFor(options, num_blocks),
              PrefixCache::BytesFor(options, num_blocks + 1));
  }
}

}  // namespace
}  // namespace quire::cache
