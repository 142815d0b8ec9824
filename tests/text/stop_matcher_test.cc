#include "text/stop_matcher.h"

#include <random>

#include "gtest/gtest.h"

namespace quire::text {
namespace {

struct Found {
  std::string text;
  std::optional<std::int32_t> stop;
};

// Finds the earliest end, then the longest string, by checking every end and every string.
Found NaiveCut(const std::string& text, const std::vector<std::string>& stops,
               std::size_t first_end, bool include) {
  for (std::size_t end = first_end; end <= text.size(); ++end) {
    std::optional<std::int32_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (!best.has_value() || stop.size() > stops[static_cast<std::size_t>(*best)].size()) {
        best = static_cast<std::int32_t>(i);
      }
    }
    if (!best.has_value()) continue;
    const std::size_t length = stops[static_cast<std::size_t>(*best)].size();
    return {text.substr(0, include ? end : end - length), best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcherTest, EqualsNaiveSearchForRandomTextsAndPieces) {
  std::mt19937_64 random(1);
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    auto word = [&](std::size_t length, int letters) {
      std::string text;
      for (std::size_t i = 0; i < length; ++i) {
        text.push_back(static_cast<char>('a' + random() % static_cast<unsigned>(letters)));
      }
      return text;
    };
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& stop : stops) stop = word(1 + random() % 5, 3);
    const std::string text = word(random() % 40, 3);
    const std::size_t first_end = random() % 2 == 0 ? 1 : 1 + random() % 20;
    const bool include = random() % 2 == 0;
    const StopAutomaton automaton(stops);
    StopMatcher matcher(&automaton);
    Found found;
    std::size_t longest = 0;
    for (const std::string& stop : stops) longest = std::max(longest, stop.size());
    // Pieces end at `first_end` - 1, since a push is entirely before or entirely after min_tokens.
    for (std::size_t at = 0; at < text.size() && !found.stop.has_value();) {
      std::size_t length = std::min<std::size_t>(1 + random() % 6, text.size() - at);
      if (at + 1 < first_end) length = std::min(length, first_end - 1 - at);
      found.stop = matcher.Push(absl::string_view(text).substr(at, length), at + 1 >= first_end,
                                include, &found.text);
      at += length;
      if (!found.stop.has_value()) {
        ASSERT_LT(at - found.text.size(), longest) << "too much text is buffered";
      }
    }
    if (!found.stop.has_value()) matcher.Finish(&found.text);
    const Found expected = NaiveCut(text, stops, first_end, include);
    ASSERT_EQ(found.text, expected.text) << text;
    ASSERT_EQ(found.stop.has_value(), expected.stop.has_value());
    if (found.stop.has_value()) {
      ++matches;
      ASSERT_EQ(stops[static_cast<std::size_t>(*found.stop)],
                stops[static_cast<std::size_t>(*expected.stop)]);
    }
  }
  EXPECT_GT(matches, 5000);
}

TEST(StopMatcherTest, BuffersOnlyPossibleMatches) {
  const StopAutomaton automaton({"STOP", "TOP!"});
  StopMatcher matcher(&automaton);
  std::string out;
  EXPECT_FALSE(matcher.Push("xS", true, false, &out).has_value());
  EXPECT_EQ(out, "x");
  EXPECT_FALSE(matcher.Push("TO", true, false, &out).has_value());
  EXPECT_EQ(out, "x");
  EXPECT_FALSE(matcher.Push("y", true, false, &out).has_value());
  EXPECT_EQ(out, "xSTOy");
  EXPECT_FALSE(matcher.Push("TOP", true, false, &out).has_value());
  matcher.Finish(&out);
  EXPECT_EQ(out, "xSTOyTOP");
}

TEST(StopMatcherTest, WithoutStopsEverythingPasses) {
  StopMatcher matcher(nullptr);
  std::string out;
  EXPECT_FALSE(matcher.Push("abc", true, false, &out).has_value());
  EXPECT_EQ(out, "abc");
}

}  // namespace
}  // namespace quire::text
