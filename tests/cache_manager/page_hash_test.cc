#include "cache_manager/prefix/page_hash.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"
#include "tests/cache_manager/cache_test_util.h"

namespace quire::cache {
namespace {

const HashKey kKey{{11, 22, 33, 44}};

TEST(PageHashTest, KnownAnswers) {
  // The answers were recorded once. Keys may outlive the process, so they must not change by
  // accident.
  const Hash128 root = HashRoot(kKey, {.tenant = "a", .fingerprint = "f", .salt = "s"});
  const PageKey page = HashPage(kKey, root, Count(16));
  EXPECT_EQ(root, (Hash128{0x6ce5b54f8f1a4b4c, 0xbed682651af73875}));
  EXPECT_EQ(page, (Hash128{0xd66d2be887ed565a, 0x1524bf46308a0363}));
}

TEST(PageHashTest, RootDependsOnEveryFieldAndItsBoundaries) {
  const PrefixScope scopes[] = {
      {"tenant", "model", "salt"}, {"tenan", "tmodel", "salt"}, {"tenantm", "odel", "salt"},
      {"tenant", "model", ""},     {"tenant", "modelsalt", ""}, {"", "model", "salt"},
      {"tenant", "", "salt"},      {"other", "model", "salt"},
  };
  std::set<std::pair<std::uint64_t, std::uint64_t>> roots;
  for (const PrefixScope& scope : scopes) {
    const Hash128 root = HashRoot(kKey, scope);
    EXPECT_EQ(root, HashRoot(kKey, scope));
    roots.insert({root.lo, root.hi});
  }
  EXPECT_EQ(roots.size(), std::size(scopes));
  EXPECT_NE(HashRoot(kKey, scopes[0]), HashRoot(HashKey{{11, 22, 33, 45}}, scopes[0]));
}

TEST(PageHashTest, PageDependsOnKeyParentAndEachToken) {
  const Hash128 root{7, 8};
  const Tokens tokens = Count(16);
  std::set<std::pair<std::uint64_t, std::uint64_t>> keys;
  const auto add = [&](const PageKey& key) { return keys.insert({key.lo, key.hi}).second; };
  EXPECT_TRUE(add(HashPage(kKey, root, tokens)));
  EXPECT_TRUE(add(HashPage(HashKey{{11, 22, 33, 0}}, root, tokens)));
  EXPECT_TRUE(add(HashPage(kKey, Hash128{8, 7}, tokens)));
  for (std::size_t at = 0; at < tokens.size(); ++at) {
    Tokens other = tokens;
    other[at] = -1;
    EXPECT_TRUE(add(HashPage(kKey, root, other))) << at;
  }
}

TEST(PageHashTest, KeysOfFullPagesAreAChain) {
  const Hash128 root{1, 2};
  const Tokens tokens = Count(50);
  const auto keys = HashPages(kKey, root, tokens, 16);
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[0], HashPage(kKey, root, Count(16)));
  EXPECT_EQ(keys[1], HashPage(kKey, keys[0], Count(16, 16)));
  EXPECT_EQ(keys[2], HashPage(kKey, keys[1], Count(16, 32)));
  EXPECT_EQ(HashPages(kKey, root, Count(48), 16), keys);
  EXPECT_EQ(HashPages(kKey, root, Count(47), 16).size(), 2u);
  EXPECT_TRUE(HashPages(kKey, root, Count(15), 16).empty());
  EXPECT_TRUE(HashPages(kKey, root, {}, 16).empty());
  Tokens changed = tokens;
  changed[0] = 99;
  const auto others = HashPages(kKey, root, changed, 16);
  for (std::size_t page = 0; page < 3; ++page) EXPECT_NE(keys[page], others[page]);
}

}  // namespace
}  // namespace quire::cache
