#include "base/hash_map.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(HashMapTest, TextsAreFoundHoweverTheyAreStored) {
  HashMap<std::string, int> map;
  map.emplace("one", 1);
  map.try_emplace("two", 2);
  const char* const text = "a two";
  const auto found = map.find(absl::string_view(text).substr(2));
  ASSERT_NE(found, map.end());
  EXPECT_EQ(found->second, 2);
  EXPECT_TRUE(map.contains("one"));
  EXPECT_FALSE(map.contains(absl::string_view("one").substr(1)));
}

TEST(HashMapTest, KeysThatAreNoTextsAreDistinct) {
  HashSet<std::int32_t> seen;
  EXPECT_TRUE(seen.insert(7).second);
  EXPECT_FALSE(seen.insert(7).second);
  EXPECT_TRUE(seen.insert(-7).second);
  EXPECT_EQ(seen.size(), 2);
}

}  // namespace
}  // namespace quire
