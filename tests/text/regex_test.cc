#include "text/unicode/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "formats/json_value.h"
#include "tests/text/testdata.h"
#include "text/tokenizer/splitter.h"

namespace quire::text {
namespace {

using Matches = std::vector<std::pair<std::size_t, std::size_t>>;

Matches AllMatches(const Regex& regex, absl::string_view text, bool use_jit = true) {
  RegexScratch scratch(use_jit);
  Matches matches;
  const absl::Status status = regex.ForEachMatch(
      text, scratch, [&](std::size_t begin, std::size_t end) { matches.emplace_back(begin, end); });
  EXPECT_TRUE(status.ok()) << status;
  return matches;
}

std::vector<std::string> MatchTexts(absl::string_view pattern, absl::string_view text) {
  const auto regex = Regex::FromOniguruma(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> texts;
  if (!regex.ok()) return texts;
  for (const auto& [begin, end] : AllMatches(*regex, text)) {
    texts.emplace_back(text.substr(begin, end - begin));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(RegexTest, SpaceIsWhiteSpaceWithoutMongolianVowelSeparator) {
  const std::string text =
      "a\xE1\xA0\x8E\xE3\x80\x80"
      "b";  // U+180E, U+3000
  EXPECT_EQ(MatchTexts(R"(\s)", text), Texts({"\xE3\x80\x80"}));
  EXPECT_EQ(MatchTexts(R"(\S+)", text), Texts({"a\xE1\xA0\x8E", "b"}));
  EXPECT_EQ(MatchTexts(R"([\sb])", text), Texts({"\xE3\x80\x80", "b"}));
  EXPECT_EQ(MatchTexts(R"([^\S]+)", text), Texts({"\xE3\x80\x80"}));
}

TEST(RegexTest, IntervalPlusIsNotPossessive) {
  EXPECT_EQ(MatchTexts(R"(\d{1,3}+)", "12345"), Texts({"12345"}));
  EXPECT_EQ(MatchTexts(R"((?:ab){1,2}+)", "abababab"), Texts({"abababab"}));
  EXPECT_EQ(MatchTexts(R"([0-9]{2}+x)", "1234x"), Texts({"1234x"}));
  EXPECT_EQ(MatchTexts("a++ab|c", "aaabc"), Texts({"c"}));  // plain ++ stays possessive
}

// The expected behaviour is that of the Rust crate fancy-regex, which tiktoken uses.
TEST(RegexTest, RustPatternsArePossessiveAndEndWithTheText) {
  const auto texts = [](absl::string_view pattern, absl::string_view text) {
    const auto regex = Regex::FromRust(pattern);
    EXPECT_TRUE(regex.ok()) << regex.status();
    Texts found;
    for (const auto& [begin, end] : AllMatches(*regex, text)) {
      found.emplace_back(text.substr(begin, end - begin));
    }
    return found;
  };
  EXPECT_EQ(texts(R"(\d{1,3}+)", "12345"), Texts({"123", "45"}));
  EXPECT_EQ(texts(R"(\d{1,3}+3|x)", "123x"), Texts({"x"}));
  EXPECT_EQ(texts("a$", "a\nba\na\n"), Texts({}));
  EXPECT_EQ(texts("^a", "a\na"), Texts({"a"}));
  EXPECT_EQ(texts(R"(\w+)", "a\xE2\x80\x8D!\xC2\xB2"), Texts({"a\xE2\x80\x8D"}));
  EXPECT_EQ(texts(R"(\s)", "\xE1\xA0\x8E\xE3\x80\x80"), Texts({"\xE3\x80\x80"}));
}

TEST(RegexTest, DollarAndCaretMatchAtLines) {
  EXPECT_EQ(MatchTexts("a$", "a\nba\na"), Texts({"a", "a", "a"}));
  EXPECT_EQ(MatchTexts("^b", "b\nb"), Texts({"b", "b"}));
}

TEST(RegexTest, RewritesDifferingSyntax) {
  EXPECT_EQ(MatchTexts(R"(\h+)", "zz09af zz"), Texts({"09af"}));
  EXPECT_EQ(MatchTexts(R"(\v)", "\n\x0B"), Texts({"\x0B"}));
  EXPECT_EQ(MatchTexts(R"(\p{Han}+)", "\xE3\x80\x81\xE6\xBC\xA2"), Texts({"\xE6\xBC\xA2"}));
  EXPECT_EQ(MatchTexts(R"(\p{^Han}+)", "ab\xE6\xBC\xA2"), Texts({"ab"}));
  EXPECT_EQ(MatchTexts(R"(\u0041)", "A"), Texts({"A"}));
  // U+2460 is not a word character, U+0301 is one, and U+00B2 is one outside of brackets only.
  EXPECT_EQ(MatchTexts(R"(\w+)", "a\xE2\x91\xA0 e\xCC\x81"), Texts({"a", "e\xCC\x81"}));
  EXPECT_EQ(MatchTexts(R"(\w+)", "a\xC2\xB2"), Texts({"a\xC2\xB2"}));
  EXPECT_EQ(MatchTexts(R"([\w]+)", "a\xC2\xB2"), Texts({"a"}));
  EXPECT_EQ(MatchTexts(R"(\bb\b)", "ab b cb"), Texts({"b"}));
  EXPECT_EQ(MatchTexts("a{b}", "a{b}"), Texts({"a{b}"}));
}

TEST(RegexTest, CaseFoldingOfApostropheSReachesLongS) {
  EXPECT_EQ(MatchTexts("(?i:'s)", "'S '\xC5\xBF"), Texts({"'S", "'\xC5\xBF"}));
}

TEST(RegexTest, EmptyMatchesAreNotRepeated) {
  const auto star = Regex::FromOniguruma("x*");
  ASSERT_TRUE(star.ok());
  EXPECT_EQ(AllMatches(*star, "axb"), Matches({{0, 0}, {1, 2}, {3, 3}}));
  const auto ahead = Regex::FromOniguruma("(?=b)");
  ASSERT_TRUE(ahead.ok());
  EXPECT_EQ(AllMatches(*ahead, "abab"), Matches({{1, 1}, {3, 3}}));
  const auto nothing = Regex::FromLiteral("");
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(AllMatches(*nothing, "\xC3\xA9z"), Matches({{0, 0}, {2, 2}, {3, 3}}));
  EXPECT_EQ(AllMatches(*nothing, ""), Matches({{0, 0}}));
}

TEST(RegexTest, EscapesLiterals) {
  const auto dot = Regex::FromLiteral("a.[");
  ASSERT_TRUE(dot.ok());
  EXPECT_EQ(AllMatches(*dot, "axa.["), Matches({{2, 5}}));
}

TEST(RegexTest, RejectsUntranslatablePatterns) {
  for (const char* pattern : {"[a&&b]",
                              "[[:punct:]]",
                              "[a[bc]]",
                              R"(\p{Punct})",
                              R"(\p{Nonsense})",
                              "(?m:.)",
                              "(?s)a",
                              "(?x) a",
                              "(?P<n>x)",
                              "(?<n>x)",
                              "x{,3}",
                              "x{3}?",
                              R"(\K)",
                              R"(\R)",
                              R"(\X)",
                              R"(\1)",
                              "[]a]",
                              "[a",
                              "(a",
                              "a)",
                              "a**",
                              "(?<=a*)b",
                              "a{2,1}",
                              R"([\p{L}--[a-z]])",
                              R"(\u12)",
                              R"(\p)",
                              "\\",
                              "(*UCP)a",
                              "(?i"}) {
    const auto regex = Regex::FromOniguruma(pattern);
    EXPECT_EQ(regex.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_TRUE(absl::StrContains(regex.status().message(), "regular expression")) << pattern;
  }
}

TEST(RegexTest, BoundsNestingAndLength) {
  EXPECT_FALSE(Regex::FromOniguruma(std::string(5000, '(') + std::string(5000, ')')).ok());
  EXPECT_FALSE(Regex::FromOniguruma(std::string(100000, 'a')).ok());
}

// The pattern exceeds the largest JIT stack, so the interpreter takes over without an overflow.
TEST(RegexTest, DeepBacktrackingFallsBackToTheInterpreter) {
  const auto regex = Regex::FromOniguruma("(?:a|b|ab)*c");
  ASSERT_TRUE(regex.ok());
  const std::string text = std::string(400000, 'a') + "c";
  EXPECT_EQ(AllMatches(*regex, text), Matches({{0, text.size()}}));
}

// PCRE2's default match limit of ten million would end this.
TEST(RegexTest, LongRunsExceedNoLimit) {
  const auto regex = Regex::FromOniguruma(R"(\s*[\r\n]+|\s+(?!\S)|\s+)");
  ASSERT_TRUE(regex.ok());
  const std::string text = std::string(12000000, ' ') + "x";
  const Matches expected = {{0, text.size() - 2}, {text.size() - 2, text.size() - 1}};
  EXPECT_EQ(AllMatches(*regex, text, true), expected);
  EXPECT_EQ(AllMatches(*regex, text, false), expected);
}

// Matches all texts of the recorded cases with each family's own pattern.
TEST(RegexTest, JitEqualsInterpreter) {
  std::vector<std::string> texts;
  for (const auto& recorded :
       ReadJsonLines(TokenizerData() / "cases" / "llama3-style" / "cases.jsonl")) {
    if (recorded.contains("text")) texts.push_back(recorded["text"]);
  }
  ASSERT_GT(texts.size(), 100U);
  for (const char* family : {"llama3-style", "qwen2-style", "qwen35-style", "deepseek-style",
                             "o200k-style", "tekken-style", "cl100k-pattern"}) {
    const auto parsed =
        nlohmann::json::parse(ReadTestFile(TokenizerData() / "cases" / family / "tokenizer.json"));
    int patterns = 0;
    for (const auto& part : parsed.at("pre_tokenizer").at("pretokenizers")) {
      if (part.at("type") != "Split") continue;
      const auto regex = Regex::FromOniguruma(part.at("pattern").at("Regex").get<std::string>());
      ASSERT_TRUE(regex.ok()) << regex.status();
      ++patterns;
      for (const std::string& text : texts) {
        ASSERT_EQ(AllMatches(*regex, text, true), AllMatches(*regex, text, false))
            << family << " " << Escaped(text);
      }
    }
    EXPECT_GE(patterns, 1) << family;
  }
}

}  // namespace
}  // namespace quire::text
