#include "engine/masks/repeat_penalty.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/allocation_count.h"
#include "tests/testing/paths.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<std::int32_t>;
using Texts = std::vector<std::string>;

std::shared_ptr<const TokenTexts> Share(const Texts& texts) {
  return std::make_shared<const TokenTexts>(texts);
}

std::map<std::int32_t, double> Read(RepeatPenalty& repeats) {
  std::map<std::int32_t, double> penalties;
  std::int32_t last = -1;
  for (const kernels::LogitBias& penalty : repeats.Penalties()) {
    EXPECT_GT(penalty.token, last) << "not in order of ids";
    last = penalty.token;
    penalties[penalty.token] = -static_cast<double>(penalty.bias);
  }
  return penalties;
}

void ExpectPenalties(RepeatPenalty& repeats, const std::map<std::int32_t, double>& expected) {
  const absl::Status integrity = repeats.CheckIntegrity();
  ASSERT_TRUE(integrity.ok()) << integrity;
  const std::map<std::int32_t, double> got = Read(repeats);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [token, penalty] : expected) {
    ASSERT_TRUE(got.contains(token)) << token;
    EXPECT_NEAR(got.at(token), penalty, 2e-6 * penalty) << token;
  }
}

// The definition: iterates over each occurring token, each of its positions and each length.
class Definition {
 public:
  Definition(const DryParams& params, Texts texts) : params_(params), texts_(std::move(texts)) {}

  std::map<std::int32_t, double> Penalties(const Tokens& all) const {
    const auto window = static_cast<std::size_t>(params_.window_tokens);
    const std::size_t begin = window == 0 || all.size() <= window ? 0 : all.size() - window;
    std::size_t unbroken = 0;
    while (unbroken < all.size() && !Breaks(all, all.size() - 1 - unbroken)) ++unbroken;
    std::map<std::int32_t, std::size_t> longest;
    for (std::size_t at = begin; at < all.size(); ++at) {
      std::size_t length = 0;
      while (length < unbroken && begin + length < at &&
             all[at - 1 - length] == all[all.size() - 1 - length]) {
        ++length;
      }
      longest[all[at]] = std::max(longest[all[at]], length);
    }
    std::map<std::int32_t, double> penalties;
    for (const auto& [token, length] : longest) {
      Tokens more = all;
      more.push_back(token);
      const auto allowed = static_cast<std::size_t>(params_.allowed_length);
      if (length < allowed || Breaks(more, all.size())) continue;
      penalties[token] = params_.multiplier * std::pow(params_.base, length - allowed);
    }
    return penalties;
  }

 private:
  // Returns whether a breaker ends in the text of the token at a position.
  bool Breaks(const Tokens& all, std::size_t place) const {
    std::string text;
    for (std::size_t i = 0; i < place; ++i) text += texts_[static_cast<std::size_t>(all[i])];
    const std::string& own = texts_[static_cast<std::size_t>(all[place])];
    const std::size_t before = text.size();
    text += own;
    return own.empty() || std::ranges::any_of(params_.breakers, [&](const std::string& breaker) {
             const std::size_t first =
                 before + 1 < breaker.size() ? 0 : before + 1 - breaker.size();
             return text.find(breaker, first) != std::string::npos;
           });
  }

  const DryParams params_;
  const Texts texts_;
};

TEST(RepeatPenaltyTest, AgreesWithLlamaCpp) {
  std::ifstream file(paths::TestData("sampling/llama_cpp.json"));
  ASSERT_TRUE(file.good());
  const nlohmann::json cases = nlohmann::json::parse(file);
  const Texts texts(12, "x");
  int penalized = 0;
  for (const nlohmann::json& of : cases.at("dry")) {
    const DryParams params{.multiplier = of.at("multiplier").get<float>(),
                           .base = of.at("base").get<float>(),
                           .allowed_length = of.at("allowed_length").get<std::int32_t>(),
                           .window_tokens = of.at("window").get<std::int32_t>(),
                           .breakers = {}};
    std::map<std::int32_t, double> expected;
    for (const auto& [token, penalty] :
         of.at("penalties").get<std::vector<std::pair<std::int32_t, double>>>()) {
      expected[token] = penalty;
    }
    penalized += !expected.empty();
    const auto tokens = of.at("tokens").get<Tokens>();
    // Uses the whole text as prompt, as output, and half of it as each.
    for (const std::size_t prompt : {tokens.size(), std::size_t{0}, tokens.size() / 2}) {
      RepeatPenalty repeats(params, Share(texts), std::span(tokens).first(prompt));
      for (const std::int32_t token : std::span(tokens).subspan(prompt)) repeats.Append(token);
      ExpectPenalties(repeats, expected);
    }
  }
  EXPECT_GT(penalized, 150);
}

// QUIRE_REPEAT_ROUNDS (default 60) sets the number of rounds.
TEST(RepeatPenaltyTest, AgreesWithTheDefinitionOnRandomTexts) {
  const char* const asked = std::getenv("QUIRE_REPEAT_ROUNDS");
  const std::uint64_t rounds = asked == nullptr ? 60 : std::strtoull(asked, nullptr, 10);
  const std::uint64_t first = std::random_device{}();
  std::size_t penalized = 0;
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    Texts texts(2 + below(8));
    for (std::string& text : texts) {
      for (std::size_t i = below(4); i > 0; --i) text += static_cast<char>('a' + below(3));
    }
    DryParams params{.multiplier = 0.5f + static_cast<float>(below(4)),
                     .base = 1 + static_cast<float>(below(100)) / 100,
                     .allowed_length = 1 + static_cast<std::int32_t>(below(4)),
                     .window_tokens = static_cast<std::int32_t>(below(2) * (1 + below(60))),
                     .breakers = {}};
    for (std::size_t i = below(3); i > 0; --i) {
      std::string& breaker = params.breakers.emplace_back();
      for (std::size_t k = 1 + below(4); k > 0; --k) {
        breaker += static_cast<char>('a' + below(3));
      }
    }
    const Definition definition(params, texts);
    Tokens tokens;
    const auto more = [&] {
      // Half of the tokens repeat those at a fixed distance before.
      const std::size_t back = 1 + below(7);
      const bool repeats = back <= tokens.size() && below(4) != 0;
      tokens.push_back(repeats ? tokens[tokens.size() - back]
                               : static_cast<std::int32_t>(below(texts.size())));
    };
    for (std::size_t i = below(50); i > 0; --i) more();
    const RepeatPenalty of_prompt(params, Share(texts), tokens);
    RepeatPenalty repeats = of_prompt;  // the copy that a choice starts with
    for (int i = 0; i < 40; ++i) {
      const std::map<std::int32_t, double> expected = definition.Penalties(tokens);
      penalized += expected.size();
      ASSERT_NO_FATAL_FAILURE(ExpectPenalties(repeats, expected));
      more();
      repeats.Append(tokens.back());
    }
    EXPECT_TRUE(of_prompt.CheckIntegrity().ok());
  }
  EXPECT_GT(penalized, 10 * rounds);
}

TEST(RepeatPenaltyTest, BreakersMatchBytesAcrossTokens) {
  //                    0    1    2    3     4    5
  const Texts texts = {"a", "b", "c", "x:", "x", ": "};
  const DryParams params{.multiplier = 1, .base = 2, .allowed_length = 2, .breakers = {"x:"}};
  const auto after = [&](const Tokens& tokens) {
    RepeatPenalty repeats(params, Share(texts), tokens);
    return Read(repeats);
  };
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  using ::testing::Pair;
  EXPECT_THAT(after({0, 1, 2, 0, 1}), ElementsAre(Pair(2, 1)));
  EXPECT_THAT(after({2, 0, 1, 2, 2, 0, 1}), ElementsAre(Pair(2, 2)));
  // One token, or the second of two, ends the breaker. The match starts after it.
  EXPECT_THAT(after({3, 1, 2, 3, 1}), IsEmpty());
  EXPECT_THAT(after({4, 5, 1, 2, 4, 5, 1}), IsEmpty());
  EXPECT_THAT(after({4, 5, 1, 2, 0, 4, 5, 1, 2}), ElementsAre(Pair(0, 1)));
  // The start of a breaker without its end is ordinary text.
  EXPECT_THAT(after({4, 1, 2, 4, 1}), ElementsAre(Pair(2, 1)));
  // The token that ends a breaker is never penalized. Elsewhere the same token is.
  EXPECT_THAT(after({0, 4, 5, 0, 4}), IsEmpty());
  EXPECT_THAT(after({0, 1, 5, 0, 1}), ElementsAre(Pair(5, 1)));
}

TEST(RepeatPenaltyTest, TokensWithoutTextBreakAndAreNotPenalized) {
  const Texts texts = {"a", "b", "", "c"};
  const DryParams params{.multiplier = 1, .base = 2, .allowed_length = 2, .breakers = {}};
  const Tokens breaking = {0, 2, 1, 3, 0, 2, 1};
  RepeatPenalty broken(params, Share(texts), breaking);
  EXPECT_THAT(Read(broken), ::testing::IsEmpty());
  const Tokens next = {0, 1, 2, 0, 1};
  RepeatPenalty spared(params, Share(texts), next);
  EXPECT_THAT(Read(spared), ::testing::IsEmpty());
}

TEST(RepeatPenaltyTest, VeryLongMatchHasAFinitePenalty) {
  const DryParams params{.multiplier = 100, .base = 100, .breakers = {}};
  const Tokens tokens(5000, 0);
  RepeatPenalty repeats(params, Share({"a"}), tokens);
  EXPECT_THAT(Read(repeats), ::testing::ElementsAre(::testing::Pair(
                                 0, static_cast<double>(RepeatPenalty::kMaxPenalty))));
}

// "a b x" and "c a b y" occur for far more tokens than may have a penalty. Longer matches come
// first, then lower ids.
TEST(RepeatPenaltyTest, KeepsTheLongestMatchesAboveTheLimit) {
  constexpr std::int32_t kOfEach = 3000;
  const Texts texts(3 + 2 * kOfEach, "x");
  Tokens tokens;
  for (std::int32_t i = 0; i < kOfEach; ++i) {
    tokens.insert(tokens.end(), {0, 1, 3 + i});
    tokens.insert(tokens.end(), {2, 0, 1, 3 + kOfEach + i});
  }
  tokens.insert(tokens.end(), {2, 0, 1});
  const DryParams params{.multiplier = 1, .base = 2, .allowed_length = 2, .breakers = {}};
  RepeatPenalty repeats(params, Share(texts), tokens);
  const std::map<std::int32_t, double> got = Read(repeats);
  ASSERT_EQ(got.size(), kMaxDryTokens);
  EXPECT_EQ(got.begin()->first, 3);
  const auto shorter = static_cast<std::int32_t>(kMaxDryTokens) - kOfEach;
  for (std::int32_t i = 0; i < kOfEach; ++i) {
    EXPECT_EQ(got.contains(3 + i), i < shorter) << i;
    EXPECT_EQ(got.at(3 + kOfEach + i), 2) << i;
  }
}

// MaskPool computes penalties for each step of each row.
TEST(RepeatPenaltyTest, PenaltiesDoNotAllocatePerToken) {
  const DryParams params{.multiplier = 1, .base = 2, .allowed_length = 2, .breakers = {}};
  RepeatPenalty repeats(params, Share({"a", "b", "c"}), Tokens{});
  const auto append = [&](std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) {
      repeats.Append(i % 3);
      repeats.Penalties();
    }
  };
  append(300);
  const std::uint64_t before = NumAllocations();
  append(300);
  EXPECT_LT(NumAllocations() - before, 10u) << "only the lists of tokens may grow";
}

}  // namespace
}  // namespace quire::engine
