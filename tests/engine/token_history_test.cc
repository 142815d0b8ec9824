#include "engine/request/token_history.h"

#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/allocation_count.h"

namespace quire::engine {
namespace {

// A plain map of counts, and its tokens in order of first occurrence.
class PlainHistory {
 public:
  void Add(std::int32_t token, std::int32_t count) {
    if (counts_.emplace(token, 0).second) order_.push_back(token);
    counts_[token] += count;
  }
  void ExpectEqual(const TokenHistory& history) const {
    const auto entries = history.entries();
    ASSERT_EQ(entries.size(), order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      ASSERT_EQ(entries[i].token, order_[i]);
      ASSERT_EQ(entries[i].output_count, counts_.at(order_[i])) << order_[i];
    }
  }

 private:
  std::map<std::int32_t, std::int32_t> counts_;
  std::vector<std::int32_t> order_;
};

TEST(TokenHistoryTest, AgreesWithAPlainMap) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    const auto vocab = static_cast<std::int32_t>(1 + random() % 5000);
    const auto any = [&] { return static_cast<std::int32_t>(random()) % vocab; };
    std::vector<std::int32_t> prompt(random() % 500);
    PlainHistory plain;
    for (std::int32_t& token : prompt) plain.Add(token = std::abs(any()), 0);
    TokenHistory history, copy;
    history.SetPrompt(prompt, random() % 100);
    plain.ExpectEqual(history);
    copy.CopyFrom(history);
    PlainHistory plain_copy = plain;
    for (int i = 0; i < 2000; ++i) {
      const std::int32_t token = std::abs(any()), other = std::abs(any());
      history.AddOutput(token);
      plain.Add(token, 1);
      copy.AddOutput(other);
      plain_copy.Add(other, 1);
    }
    plain.ExpectEqual(history);
    plain_copy.ExpectEqual(copy);
    history.SetPrompt({}, 0);
    EXPECT_TRUE(history.entries().empty());
  }
}

TEST(TokenHistoryTest, AllocatesNothingWithinItsCapacity) {
  const std::vector<std::int32_t> prompt = {7, 8, 7, 9};
  TokenHistory history, copy;
  history.SetPrompt(prompt, 1000);
  copy.CopyFrom(history);
  for (TokenHistory* one : {&history, &copy}) {
    const std::uint64_t before = NumAllocations();
    for (std::int32_t token = 0; token < 1000; ++token) one->AddOutput(3 * token);
    EXPECT_EQ(NumAllocations() - before, 0u);
    EXPECT_EQ(one->entries().size(), 1000 + 2);  // 9 occurs in both
  }
}

}  // namespace
}  // namespace quire::engine
