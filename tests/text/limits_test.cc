// Bounds the memory that hostile models and long texts may use.

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "formats/json_value.h"
#include "tests/text/model_bytes.h"
#include "tests/text/testdata.h"
#include "text/subword/model_token.h"
#include "text/subword/prefix_trie.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Loaded = absl::StatusOr<std::unique_ptr<Tokenizer>>;

Loaded FromModel(absl::string_view model) {
  return Tokenizer::FromSentencePiece(model, "");
}

// Maps 'a' to 512 times "b".
std::string GrowingMap() {
  std::string map("\x00\x04\x00\x00", 4);
  for (std::uint32_t unit = 0; unit < 256; ++unit) {
    // The unit of 'a' has its label, a leaf flag, and the offset 1 to the value 0.
    const std::uint32_t bits = unit == 0x61 ? 0x61U | 1U << 8 | 1U << 10 : 0U;
    for (int k = 0; k < 4; ++k) map.push_back(static_cast<char>(bits >> (8 * k)));
  }
  return map + std::string(512, 'b') + std::string(1, '\0');
}

TEST(RewrittenTextTest, IsLimited) {
  const std::string map = GrowingMap();
  const json vocabulary = json::array({{"<unk>", 0.0}, {"b", -1.0}});
  const auto from_json = [&](const char* key, const json& component) {
    const json file = {{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocabulary}}},
                       {key, component}};
    return Tokenizer::FromJson(file.dump(), "");
  };
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const std::string long_text(1 << 15, 'a');
  for (const Loaded& tokenizer :
       {FromModel(SmallModel("", "", Bytes(2, map))),
        FromModel(SmallModel("", Number(3, 1), Bytes(2, map))),
        from_json("normalizer",
                  {{"type", "Precompiled"}, {"precompiled_charsmap", absl::Base64Escape(map)}}),
        from_json("normalizer", {{"type", "Replace"},
                                 {"pattern", {{"String", "a"}}},
                                 {"content", std::string(512, 'b')}})}) {
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto few = (*tokenizer)->Encode("aa", {.add_special_tokens = false});
    ASSERT_TRUE(few.ok()) << few.status();
    EXPECT_GE(few->size(), 1024U);
    const auto many = (*tokenizer)->Encode(long_text, {});
    EXPECT_EQ(many.status().code(), absl::StatusCode::kInvalidArgument) << many.status();
    EXPECT_TRUE(absl::StrContains(many.status().message(), "more than 589824 bytes"))
        << many.status();
  }
  // Forms of added tokens that are searched in normalized text have the same length limit as
  // others.
  const json token = {
      {"id", 2},          {"content", "aa"},    {"lstrip", false},     {"rstrip", false},
      {"special", false}, {"normalized", true}, {"single_word", false}};
  const json file = {
      {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocabulary}}},
      {"added_tokens", json::array({token})},
      {"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", absl::Base64Escape(map)}}}};
  const absl::Status refused = Tokenizer::FromJson(file.dump(), "").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "added_tokens[0] has content")) << refused;
  // A splitter doubles non-ASCII bytes each time.
  const Loaded doubling =
      from_json("pre_tokenizer",
                {{"type", "Sequence"}, {"pretokenizers", json(std::vector<json>(24, byte_level))}});
  ASSERT_TRUE(doubling.ok()) << doubling.status();
  EXPECT_EQ((*doubling)->Encode("\xC3\xA9", {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;  // the allocators of sanitizers retain freed memory
#else
constexpr bool kCountsMemory = true;
#endif

std::size_t UsedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(ScratchTest, LongTextRetainsNoMemory) {
  if (!kCountsMemory) GTEST_SKIP() << "memory is not counted here";
  const std::string text(1 << 20, 'b');
  for (const Loaded& tokenizer :
       {FromModel(SmallModel()), FromModel(SmallModel("", Number(3, 1)))}) {
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ASSERT_TRUE((*tokenizer)->Encode("b", {}).ok());
    const std::size_t before = UsedBytes();
    ASSERT_TRUE((*tokenizer)->Encode(text, {}).ok());
    EXPECT_LT(UsedBytes(), before + (std::size_t{4} << 20));
  }
}

// Returns the maximum resident size during `run`, minus the size before, or -1 if the system does
// not report it.
template <typename Run>
std::int64_t PeakBytesOf(Run run) {
  const auto field = [](const std::string& name) -> std::int64_t {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, name)) return std::stoll(line.substr(name.size())) * 1024;
    }
    return -1;
  };
  malloc_trim(0);
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  if (!reset.good()) return -1;
  const std::int64_t before = field("VmRSS:");
  run();
  const std::int64_t peak = field("VmHWM:");
  return before < 0 || peak < 0 ? -1 : peak - before;
}

TEST(PrefixTrieTest, ConstructionNeedsLittleExtraMemory) {
  std::mt19937 random(3);
  std::vector<std::string> strings(4096);
  for (std::string& text : strings) {
    for (int i = 0; i < 512; ++i) text.push_back(static_cast<char>(random()));
  }
  std::vector<std::pair<absl::string_view, std::int32_t>> entries;
  for (const std::string& text : strings) entries.emplace_back(text, 1);
  const std::int64_t peak = PeakBytesOf([&] { EXPECT_FALSE(PrefixTrie(entries).empty()); });
  if (peak < 0 || !kCountsMemory) GTEST_SKIP() << "memory is not counted here";
  // Each of the two million nodes takes 13 bytes, in vectors that double.
  EXPECT_LT(peak, std::int64_t{64} << 20);
}

// nlohmann::json would move the elements to a second array of 64 MiB first.
TEST(JsonDocumentTest, FreeingALargeArrayNeedsLittleExtraMemory) {
  std::string text = "[1";
  for (int i = 1; i < 1 << 22; ++i) text += ",1";
  auto document = formats::JsonDocument::Parse(text + "]");
  ASSERT_TRUE(document.ok()) << document.status();
  const std::int64_t peak = PeakBytesOf([&] { document = absl::NotFoundError("freed"); });
  if (peak < 0 || !kCountsMemory) GTEST_SKIP() << "memory is not counted here";
  EXPECT_LT(peak, std::int64_t{8} << 20);
}

TEST(SentencePieceFileTest, FileSizeIsLimited) {
  const Loaded tokenizer = FromModel(std::string((std::size_t{64} << 20) + 1, '\x0A'));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_TRUE(absl::StrContains(tokenizer.status().message(),
                                "the file has 67108865 bytes, the limit is 67108864"))
      << tokenizer.status();
}

TEST(SentencePieceFileTest, CountsPiecesBeforeBuildingThem) {
  std::string pieces;
  for (int i = 0; i <= kMaxTokenIds; ++i) pieces += std::string("\x0A\x00", 2);
  const std::int64_t peak = PeakBytesOf([&] {
    const Loaded tokenizer = FromModel(pieces);
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_TRUE(
        absl::StrContains(tokenizer.status().message(), "pieces has more than 4194304 entries"))
        << tokenizer.status();
  });
  if (peak < 0 || !kCountsMemory) GTEST_SKIP() << "memory is not counted here";
  EXPECT_LT(peak, std::int64_t{16} << 20);  // built, they take 80 bytes each
}

TEST(SentencePieceFileTest, TotalPieceSizeIsLimited) {
  std::string pieces;
  for (int i = 0; i < (1 << 16); ++i) {
    pieces += Piece(absl::StrCat(i, std::string(500, 'x')), -1, 1);
  }
  const Loaded tokenizer = FromModel(SmallModel(pieces));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_TRUE(
      absl::StrContains(tokenizer.status().message(), "pieces has more than 33554432 bytes"))
      << tokenizer.status();
}

}  // namespace
}  // namespace quire::text
