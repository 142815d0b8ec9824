#include "base/closest_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire {
namespace {

const std::vector<absl::string_view> kCommands = {"list", "rm", "stats", "requests", "max_tokens"};

TEST(ClosestNameTest, CountsInsertedRemovedReplacedAndSwappedBytesAsOneEdit) {
  EXPECT_EQ(ClosestName("statss", kCommands), "stats");
  EXPECT_EQ(ClosestName("stts", kCommands), "stats");
  EXPECT_EQ(ClosestName("stads", kCommands), "stats");
  EXPECT_EQ(ClosestName("lsit", kCommands), "list");
  EXPECT_EQ(ClosestName("reqeusst", kCommands), "requests");
}

TEST(ClosestNameTest, IgnoresCase) {
  EXPECT_EQ(ClosestName("LIST", kCommands), "list");
  EXPECT_EQ(ClosestName("maxTokens", kCommands), "max_tokens");
}

TEST(ClosestNameTest, SuggestsNothingForDistantNames) {
  EXPECT_EQ(ClosestName("request_count", kCommands), "");
  EXPECT_EQ(ClosestName("", kCommands), "");
  EXPECT_EQ(ClosestName("stats", {}), "");
}

TEST(ClosestNameTest, AllowsOneEditOfShortNames) {
  EXPECT_EQ(ClosestName("run", kCommands), "");
  EXPECT_EQ(ClosestName("rem", kCommands), "rm");
  EXPECT_EQ(ClosestName("trim", kCommands), "");
  const std::vector<absl::string_view> single = {"n"};
  EXPECT_EQ(ClosestName("x", single), "");
  EXPECT_EQ(ClosestName("N", single), "n");
  EXPECT_EQ(ClosestName("nn", single), "n");
}

TEST(ClosestNameTest, PrefersTheFewestEditsAndThenTheFirst) {
  const std::vector<absl::string_view> known = {"min_tokens", "top_logprob", "top_logprobs"};
  EXPECT_EQ(ClosestName("top_logprobz", known), "top_logprob");
  EXPECT_EQ(ClosestName("Top_Logprobs", known), "top_logprobs");
}

TEST(ClosestNameTest, SuggestsNothingForLongNames) {
  const std::string name(64, 'a');
  const std::string longer(65, 'a');
  EXPECT_EQ(ClosestName(longer, std::vector<absl::string_view>{name}), "");
  EXPECT_EQ(ClosestName(name, std::vector<absl::string_view>{longer, name}), name);
}

}  // namespace
}  // namespace quire
