#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace quire::text {
namespace {

// Table 3-7 of the Unicode standard, row by row. It is slow and obviously correct.
std::size_t WellFormedLength(absl::string_view text) {
  struct Row {
    int low[4];
    int high[4];
    std::size_t size;
  };
  static const Row kRows[] = {
      {{0x00}, {0x7F}, 1},
      {{0xC2, 0x80}, {0xDF, 0xBF}, 2},
      {{0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}, 3},
      {{0xE1, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}, 3},
      {{0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}, 3},
      {{0xEE, 0x80, 0x80}, {0xEF, 0xBF, 0xBF}, 3},
      {{0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}, 4},
      {{0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}, 4},
      {{0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}, 4},
  };
  for (const Row& row : kRows) {
    if (text.size() < row.size) continue;
    bool fits = true;
    for (std::size_t i = 0; i < row.size; ++i) {
      const int byte = static_cast<unsigned char>(text[i]);
      fits = fits && byte >= row.low[i] && byte <= row.high[i];
    }
    if (fits) return row.size;
  }
  return 0;
}

std::optional<std::size_t> SlowFirstInvalid(absl::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = WellFormedLength(text.substr(i));
    if (size == 0) return i;
    i += size;
  }
  return std::nullopt;
}

// Bytes at the boundaries of table 3-7, so that random strings exercise every rule.
std::string RandomBytes(std::mt19937& random, std::size_t size) {
  static const unsigned char kBytes[] = {'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                         0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF,
                                         0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF, 0x80, 0xBF};
  std::string text;
  while (text.size() < size) text.push_back(static_cast<char>(kBytes[random() % sizeof(kBytes)]));
  return text;
}

TEST(Utf8Test, FirstInvalidAgreesWithTheTable) {
  std::mt19937 random(1);
  int invalid = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = RandomBytes(random, random() % 6);
    ASSERT_EQ(FirstInvalidUtf8(text), SlowFirstInvalid(text)) << testing::PrintToString(text);
    invalid += FirstInvalidUtf8(text).has_value() ? 1 : 0;
  }
  EXPECT_GT(invalid, 5000);
  EXPECT_LT(invalid, 19000);
}

TEST(Utf8Test, NamesTheByteOfATruncatedCharacter) {
  EXPECT_EQ(FirstInvalidUtf8("ab\xE2\x82"), 2U);
  EXPECT_EQ(FirstInvalidUtf8("ab\xE2\x82\xAC"), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("\xED\xA0\x80"), 0U);
  EXPECT_EQ(FirstInvalidUtf8("x\xC0\x80"), 1U);
  EXPECT_EQ(FirstInvalidUtf8(absl::string_view("\0a", 2)), std::nullopt);
}

TEST(Utf8Test, EveryScalarValueRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text = "x";
    AppendUtf8(c, text);
    ASSERT_EQ(FirstInvalidUtf8(text), std::nullopt);
    ASSERT_EQ(DecodeUtf8At(text, 1).code_point, c);
    ASSERT_EQ(DecodeUtf8Before(text, text.size()).code_point, c);
    ASSERT_EQ(DecodeUtf8At(text, 1).size_bytes, text.size() - 1);
  }
}

std::string Repair(absl::string_view text, std::mt19937* random) {
  Utf8Repairer repairer;
  std::string out;
  while (!text.empty()) {
    const std::size_t size = random == nullptr ? text.size() : 1 + (*random)() % text.size();
    repairer.Push(text.substr(0, size), out);
    text.remove_prefix(size);
  }
  repairer.Finish(out);
  return out;
}

TEST(Utf8RepairerTest, SubstitutesMaximalParts) {
  const std::string r(kReplacementCharacter);
  // Table 3-8 of the Unicode standard, and similar cases.
  EXPECT_EQ(Repair("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", nullptr),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Repair("\xED\xA0\x80\xED\xBF\xBF\x41", nullptr), r + r + r + r + r + r + "A");
  EXPECT_EQ(Repair("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", nullptr),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(Repair("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", nullptr), r + r + r + r + "A");
  EXPECT_EQ(Repair("\xF0\x9F\x98", nullptr), r);
}

TEST(Utf8RepairerTest, SplitsDoNotMatterAndOutputIsUtf8) {
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = RandomBytes(random, random() % 12);
    const std::string whole = Repair(text, nullptr);
    ASSERT_EQ(Repair(text, &random), whole);
    ASSERT_EQ(FirstInvalidUtf8(whole), std::nullopt);
    if (!FirstInvalidUtf8(text)) {
      ASSERT_EQ(whole, text);
    }
  }
}

TEST(Utf8RepairerTest, WaitsForThreeBytesAtMost) {
  Utf8Repairer repairer;
  std::string out;
  repairer.Push("\xF0\x9F\x98", out);
  EXPECT_EQ(out, "");
  repairer.Push("\x80", out);
  EXPECT_EQ(out, "\xF0\x9F\x98\x80");
}

}  // namespace
}  // namespace quire::text
