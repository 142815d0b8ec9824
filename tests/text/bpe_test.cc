#include "text/subword/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/text/testdata.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

absl::StatusOr<Bpe> MakeBpe(const json& model) {
  const auto document = formats::JsonDocument::Parse(model.dump());
  EXPECT_TRUE(document.ok()) << document.status();
  return Bpe::FromJson(document->root());
}

Ids Encode(const Bpe& bpe, absl::string_view piece, BpeScratch& scratch) {
  std::vector<ModelToken> tokens;
  bpe.Encode(piece, scratch, tokens);
  Ids ids;
  for (const ModelToken& token : tokens) ids.push_back(token.id);
  return ids;
}

// A random vocabulary over a few letters: merges of random known tokens, with random ranks.
json RandomModel(std::mt19937& random) {
  json vocabulary;
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  json merges = json::array();
  for (int i = 0; i < 40; ++i) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 12) continue;
    merges.push_back({left, right});
    if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end()) {
      tokens.push_back(left + right);
    }
  }
  std::shuffle(merges.begin(), merges.end(), random);
  for (std::size_t i = 0; i < tokens.size(); ++i) vocabulary[tokens[i]] = i;
  return {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}};
}

// The definition: repeatedly merges the leftmost pair of lowest rank. Of duplicate merges the last
// rank counts.
Ids MergeByDefinition(const json& model, absl::string_view piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  while (true) {
    std::size_t best = parts.size();
    std::size_t best_rank = model["merges"].size();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      for (std::size_t rank = model["merges"].size(); rank-- > 0;) {
        const json& merge = model["merges"][rank];
        if (merge[0] != parts[i] || merge[1] != parts[i + 1]) continue;
        if (rank < best_rank) {
          best = i;
          best_rank = rank;
        }
        break;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(model["vocab"][part]);
  return ids;
}

// Short pieces are merged by scanning and long ones with the heap. A second call hits the cache.
TEST(BpeTest, ScanHeapAndCacheEqualTheDefinition) {
  std::mt19937 random(11);
  int merged = 0;
  for (int round = 0; round < 20; ++round) {
    const json model = RandomModel(random);
    const auto bpe = MakeBpe(model);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    BpeScratch cached(1000);
    BpeScratch uncached(0);
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      const std::size_t size = 1 + random() % 90;
      while (piece.size() < size) piece.push_back(static_cast<char>('a' + random() % 4));
      const Ids expected = MergeByDefinition(model, piece);
      merged += expected.size() < piece.size() ? 1 : 0;
      ASSERT_EQ(Encode(*bpe, piece, uncached), expected) << piece;
      ASSERT_EQ(Encode(*bpe, piece, cached), expected) << piece;
      ASSERT_EQ(Encode(*bpe, piece, cached), expected) << piece;
    }
  }
  EXPECT_GT(merged, 300);
}

TEST(BpeTest, FullCacheEvictsAndContinues) {
  std::mt19937 random(12);
  const json model = RandomModel(random);
  const auto bpe = MakeBpe(model);
  ASSERT_TRUE(bpe.ok());
  BpeScratch small(2);
  for (int i = 0; i < 200; ++i) {
    const std::string piece = absl::StrCat(i % 2 == 0 ? "abab" : "cdcd", i % 3 == 0 ? "a" : "d");
    ASSERT_EQ(Encode(*bpe, piece, small), MergeByDefinition(model, piece));
  }
}

// The cache of a scratch has the pieces of one model.
TEST(BpeDeathTest, ScratchServesOneModelOnly) {
  const json model = {{"vocab", {{"a", 0}}}, {"merges", json::array()}};
  const auto bpe = MakeBpe(model);
  const auto other = MakeBpe(model);
  ASSERT_TRUE(bpe.ok() && other.ok());
  BpeScratch scratch(10);
  EXPECT_EQ(Encode(*bpe, "a", scratch), (Ids{0}));
  EXPECT_DEATH(Encode(*other, "a", scratch), "check failed");
}

TEST(BpeTest, WholePieceWinsWithIgnoreMerges) {
  json model = {{"type", "BPE"},
                {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}}},
                {"merges", json::array({json::array({"a", "b"})})}};
  BpeScratch scratch(10);
  EXPECT_EQ(Encode(*MakeBpe(model), "aba", scratch), (Ids{2, 0}));
  model["ignore_merges"] = true;
  BpeScratch other(10);
  EXPECT_EQ(Encode(*MakeBpe(model), "aba", other), (Ids{3}));
}

TEST(BpeTest, ReadsBothFormsOfMergesAndTheVersionLine) {
  json model = {{"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}},
                {"merges", json::array({"#version: 0.2", "a b"})}};
  BpeScratch scratch(0);
  EXPECT_EQ(Encode(*MakeBpe(model), "ab", scratch), (Ids{2}));
}

TEST(BpeTest, RejectsByteFallbackWithoutAllBytesOrUnk) {
  json model = {{"type", "BPE"},
                {"vocab", {{"a", 0}, {"<0x00>", 1}}},
                {"merges", json::array()},
                {"byte_fallback", true}};
  const auto bpe = MakeBpe(model);
  EXPECT_TRUE(absl::StrContains(bpe.status().message(), "model.byte_fallback") ||
              absl::StrContains(bpe.status().message(), "byte_fallback is true"))
      << bpe.status();
  model["unk_token"] = "a";
  EXPECT_TRUE(MakeBpe(model).ok());
}

TEST(BpeTest, AcceptsOnlyZeroDropout) {
  json model = {
      {"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", json::array()}, {"dropout", 0.0}};
  EXPECT_TRUE(MakeBpe(model).ok());
  model["dropout"] = 0.1;
  EXPECT_TRUE(absl::StrContains(MakeBpe(model).status().message(), "dropout is 0.1"));
}

}  // namespace
}  // namespace quire::text
