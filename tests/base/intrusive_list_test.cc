#include "base/intrusive_list.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

struct Item {
  int id = 0;
  IntrusiveNode<Item> node{};
  IntrusiveNode<Item> other{};
};
using List = IntrusiveList<Item, &Item::node>;

std::vector<int> Ids(const List& list) {
  std::vector<int> ids, backwards;
  for (Item* item = list.front(); item != nullptr; item = List::next(item)) ids.push_back(item->id);
  for (Item* item = list.back(); item != nullptr; item = List::prev(item)) {
    backwards.push_back(item->id);
  }
  std::reverse(backwards.begin(), backwards.end());
  EXPECT_EQ(ids, backwards);
  EXPECT_EQ(ids.size(), list.size());
  EXPECT_EQ(ids.empty(), list.empty());
  return ids;
}

TEST(IntrusiveListTest, MatchesAVectorUnderRandomOperations) {
  std::vector<Item> items(20);
  for (std::size_t i = 0; i < items.size(); ++i) items[i].id = static_cast<int>(i);
  List list;
  std::vector<int> model;
  std::mt19937 random(1);
  for (int step = 0; step < 20000; ++step) {
    Item& item = items[random() % items.size()];
    const auto at = std::find(model.begin(), model.end(), item.id);
    ASSERT_EQ(List::is_linked(&item), at != model.end());
    if (at != model.end()) {
      model.erase(at);
      list.erase(&item);
    } else if (const auto kind = random() % 3; kind == 0) {
      model.insert(model.begin(), item.id);
      list.push_front(&item);
    } else if (kind == 1 || model.empty()) {
      model.push_back(item.id);
      list.push_back(&item);
    } else {
      const auto position = model.begin() + static_cast<std::ptrdiff_t>(random() % model.size());
      Item* const before = &items[static_cast<std::size_t>(*position)];
      model.insert(position, item.id);
      list.InsertBefore(before, &item);
    }
    ASSERT_EQ(Ids(list), model);
  }
}

TEST(IntrusiveListTest, PopsFromTheFront) {
  Item a{.id = 1}, b{.id = 2};
  List list;
  EXPECT_EQ(list.pop_front(), nullptr);
  list.push_back(&a);
  list.push_back(&b);
  EXPECT_EQ(list.pop_front(), &a);
  EXPECT_EQ(list.pop_front(), &b);
  EXPECT_TRUE(list.empty());
}

TEST(IntrusiveListTest, ItemMayBeInOneListPerNode) {
  Item item;
  List list;
  IntrusiveList<Item, &Item::other> other;
  list.push_back(&item);
  other.push_back(&item);
  list.erase(&item);
  EXPECT_EQ(other.front(), &item);
}

TEST(IntrusiveListTest, CopiesOfItemsAreNotLinked) {
  Item item;
  List list;
  list.push_back(&item);
  const Item copy = item;
  EXPECT_FALSE(List::is_linked(&copy));
  EXPECT_TRUE(List::is_linked(&item));
}

TEST(IntrusiveListDeathTest, RejectsDoubleInsertAndStrayErase) {
  Item item;
  List list;
  EXPECT_DEATH(list.erase(&item), "check failed");
  list.push_back(&item);
  EXPECT_DEATH(list.push_back(&item), "check failed");
}

}  // namespace
}  // namespace quire
