// The whole tokenizer: options, errors, real prompts, properties, threads and time.

#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "base/utf8.h"
#include "tests/testing/paths.h"
#include "tests/text/testdata.h"
#include "text/detokenizer.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::unique_ptr<Tokenizer> LoadFrom(const std::filesystem::path& folder,
                                    const TokenizerOptions& options = {}) {
  auto loaded = Tokenizer::Load(folder, options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

std::unique_ptr<Tokenizer> LoadCase(absl::string_view name, const TokenizerOptions& options = {}) {
  return LoadFrom(TokenizerData() / "cases" / std::string(name), options);
}

Ids EncodeOk(const Tokenizer& tokenizer, absl::string_view text,
             const EncodeOptions& options = {}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(Ids{});
}

// Any scalar value. Significant ones are more frequent.
std::string RandomText(std::mt19937& random, std::size_t characters) {
  static const char32_t kOften[] = {U' ',  U'\n',  U'\r',   U'\t',  U'\'',  U's',   U'1',   U'.',
                                    0x301, 0x200D, 0x1F600, 0x6F22, 0xAC00, 0x180E, 0x2029, 0xE9};
  std::string text;
  for (std::size_t i = 0; i < characters; ++i) {
    char32_t c = 0;
    switch (random() % 4) {
      case 0:
        c = kOften[random() % std::size(kOften)];
        break;
      case 1:
        c = static_cast<char32_t>(random() % 0x110000);
        break;
      case 2:
        c = static_cast<char32_t>(random() % 0x3000);
        break;
      default:
        c = static_cast<char32_t>(0x20 + random() % 0x5F);
    }
    if (c >= 0xD800 && c <= 0xDFFF) c = 0xFFFD;
    AppendUtf8(c, text);
  }
  return text;
}

TEST(TokenizerTest, NamesTheByteOfInvalidUtf8) {
  const auto tokenizer = LoadCase("llama3-style");
  const auto ids = tokenizer->Encode("abc\xE2\x82xyz", {});
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ids.status().message(), "text is not valid UTF-8 at byte 3");
  EXPECT_EQ(tokenizer->EncodeWithPieces("\xFF", {}).status().message(),
            "text is not valid UTF-8 at byte 0");
}

TEST(TokenizerTest, SpecialTokensAreTextUnlessParsed) {
  const auto tokenizer = LoadCase("llama3-style");
  const std::string text = "a<|begin_of_text|>b";
  const auto bos = tokenizer->TokenToId("<|begin_of_text|>");
  ASSERT_TRUE(bos.has_value());
  EXPECT_TRUE(tokenizer->IsSpecial(*bos));
  const Ids parsed = EncodeOk(*tokenizer, text, {.add_special_tokens = false});
  const Ids literal =
      EncodeOk(*tokenizer, text, {.add_special_tokens = false, .parse_special_tokens = false});
  EXPECT_NE(std::find(parsed.begin(), parsed.end(), *bos), parsed.end());
  EXPECT_EQ(std::find(literal.begin(), literal.end(), *bos), literal.end());
  EXPECT_EQ(*tokenizer->Decode(literal, false), text);
}

TEST(TokenizerTest, PromptPiecesHaveBytesAndPositions) {
  const auto tokenizer = LoadCase("llama3-style");
  const auto pieces = tokenizer->EncodeWithPieces("\xE6\xBC\xA2 <|begin_of_text|>", {});
  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(pieces->front().start_byte, -1);
  EXPECT_EQ(pieces->front().end_byte, -1);
  EXPECT_TRUE(pieces->front().special);
  EXPECT_EQ(pieces->back().start_byte, 4);
  EXPECT_EQ(pieces->back().end_byte, 21);
  std::string bytes;
  for (std::size_t i = 1; i + 1 < pieces->size(); ++i) bytes += (*pieces)[i].piece;
  EXPECT_EQ(bytes, "\xE6\xBC\xA2 ");
}

TEST(TokenizerTest, IdsWithoutTextAreErrorsOfDecode) {
  const auto tokenizer = LoadCase("qwen2-style");
  for (const std::int32_t id : {-1, tokenizer->vocab_size(), 2147483647}) {
    EXPECT_FALSE(tokenizer->HasText(id));
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    const Ids ids = {0, id};
    EXPECT_EQ(tokenizer->Decode(ids, false).status().code(), absl::StatusCode::kInvalidArgument);
    Detokenizer detokenizer(*tokenizer, false);
    EXPECT_EQ(detokenizer.Push(id), "");
  }
}

TEST(TokenizerTest, VocabularyGapsHaveNoText) {
  const auto tokenizer = Tokenizer::FromJson(
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":2},"merges":[]},"decoder":{"type":"Fuse"}})",
      "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 3);
  EXPECT_TRUE((*tokenizer)->HasText(2));
  EXPECT_FALSE((*tokenizer)->HasText(1));
}

TEST(TokenizerTest, ConfigurationNamesTheSpecialIds) {
  const auto tokenizer = LoadFrom(TokenizerData() / "malformed" / "base");
  const json config =
      json::parse(ReadTestFile(TokenizerData() / "malformed" / "base" / "tokenizer_config.json"));
  EXPECT_EQ(tokenizer->bos_token_id(),
            tokenizer->TokenToId(config.at("bos_token").get<std::string>()));
  EXPECT_EQ(tokenizer->eos_token_id(),
            tokenizer->TokenToId(config.at("eos_token").get<std::string>()));
  EXPECT_TRUE(tokenizer->bos_token_id().has_value());
}

TEST(TokenizerTest, FingerprintDependsOnBothFiles) {
  const std::string good = ReadTestFile(TokenizerData() / "malformed" / "base" / "tokenizer.json");
  const auto a = Tokenizer::FromJson(good, "");
  const auto b = Tokenizer::FromJson(good, "{}");
  const auto c = Tokenizer::FromJson(good + " ", "");
  EXPECT_EQ((*a)->sha256().size(), 64U);
  EXPECT_EQ((*a)->sha256(), (*Tokenizer::FromJson(good, ""))->sha256());
  EXPECT_NE((*a)->sha256(), (*b)->sha256());
  EXPECT_NE((*a)->sha256(), (*c)->sha256());
}

// Prompts of the small Llama models and of the embedded model, with the ids of Hugging Face
// tokenizers.
TEST(TokenizerTest, ModelPromptsHaveTheRecordedIds) {
  const std::filesystem::path story = paths::Source("assets/story");
  int models = 0;
  for (const std::string& name : FolderNames(TokenizerData() / "models")) {
    const std::filesystem::path prompts = TokenizerData() / "models" / name;
    const std::filesystem::path folder = name == "story" ? story : prompts;
    // The embedded model is in assets/. A source tree without it tests the others.
    if (!std::filesystem::exists(folder / "tokenizer.json")) continue;
    const auto tokenizer = LoadFrom(folder);
    for (const json& prompt : ReadJsonLines(prompts / "prompts.jsonl")) {
      const std::string text = prompt.at("text");
      EXPECT_EQ(EncodeOk(*tokenizer, text), prompt.at("token_ids").get<Ids>())
          << name << " " << text;
    }
    ++models;
  }
  EXPECT_GE(models, 2);
}

TEST(TokenizerPropertyTest, ByteLevelModelsRoundTrip) {
  std::mt19937 random(31);
  for (const char* name : {"gpt2-bytelevel", "llama3-style", "deepseek-style", "o200k-style",
                           "tekken-style", "cl100k-pattern"}) {
    const auto tokenizer = LoadCase(name);
    for (int round = 0; round < 300; ++round) {
      const std::string text = RandomText(random, random() % 40);
      const Ids ids = EncodeOk(*tokenizer, text, {.add_special_tokens = false});
      ASSERT_EQ(*tokenizer->Decode(ids, false), text) << name << " " << Escaped(text);
    }
  }
}

// If a token may represent any number of bytes (unknown characters, swallowed spaces), the length
// of a text does not bound its tokens.
TEST(TokenizerTest, ByteLevelModelsKnowTheLongestToken) {
  for (const char* name : {"gpt2-bytelevel", "llama3-style", "tekken-style"}) {
    const auto tokenizer = LoadCase(name);
    std::size_t longest = 0;
    for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      longest = std::max(longest, tokenizer->TokenBytes(id).size());
    }
    EXPECT_EQ(tokenizer->max_token_bytes(), longest) << name;
  }
  EXPECT_EQ(LoadCase("llama2-sentencepiece")->max_token_bytes(), std::nullopt);
  EXPECT_EQ(LoadCase("unigram-byte-fallback")->max_token_bytes(), std::nullopt);
}

TEST(TokenizerPropertyTest, StreamEqualsWholeForRandomIds) {
  std::mt19937 random(32);
  for (const std::string& name : FolderNames(TokenizerData() / "cases")) {
    const auto tokenizer = LoadCase(name);
    for (int round = 0; round < 40; ++round) {
      Ids ids;
      for (std::size_t size = random() % 30; size > 0; --size) {
        const auto id = static_cast<std::int32_t>(
            random() % static_cast<std::uint32_t>(tokenizer->vocab_size()));
        if (tokenizer->HasText(id)) ids.push_back(id);
      }
      for (const bool skip : {false, true}) {
        Detokenizer detokenizer(*tokenizer, skip);
        std::string streamed;
        for (const std::int32_t id : ids) {
          const std::string step = detokenizer.Push(id);
          ASSERT_FALSE(FirstInvalidUtf8(step).has_value());
          streamed += step;
        }
        streamed += detokenizer.Finish();
        ASSERT_EQ(streamed, *tokenizer->Decode(ids, skip)) << name;
      }
    }
  }
}

TEST(TokenizerPropertyTest, CacheAndThreadsDoNotChangeIds) {
  std::mt19937 random(33);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(RandomText(random, 30));
  for (const char* name : {"llama3-style", "llama2-style", "metaspace-first-split",
                           "unigram-nmt-nfkc", "llama2-sentencepiece", "tekken-file"}) {
    const auto cached = LoadCase(name, {.piece_cache_entries = 64});
    const auto uncached = LoadCase(name, {.piece_cache_entries = 0});
    std::vector<Ids> expected;
    for (const std::string& text : texts) expected.push_back(EncodeOk(*uncached, text));
    std::vector<std::vector<Ids>> results(4);
    std::vector<std::thread> threads;
    for (auto& result : results) {
      threads.emplace_back([&] {
        for (const std::string& text : texts) result.push_back(*cached->Encode(text, {}));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& result : results) EXPECT_EQ(result, expected) << name;
  }
}

// 256 KiB cost 68 billion steps in a stage with quadratic time, and some milliseconds in a linear
// one. The bound distinguishes them on any machine.
TEST(TokenizerTimeTest, LongRunsOfOneKindTakeLinearTime) {
  constexpr std::size_t kBytes = 1 << 18;
  std::vector<std::string> texts;
  for (const absl::string_view unit : {"a", " ", "!", "\n", "\xE6\xBC\xA2", "Aa", "1", "a ",
                                       "\xCC\x81", "ab", "\xF0\x9F\x98\x80", "<", "\t\n", "'s"}) {
    std::string text;
    while (text.size() < kBytes) text.append(unit.data(), unit.size());
    texts.push_back(std::move(text));
  }
  std::mt19937 random(34);
  std::string letters;
  while (letters.size() < kBytes) letters.push_back(static_cast<char>('a' + random() % 26));
  texts.push_back(std::move(letters));
  for (const char* name :
       {"llama2-style", "llama3-style", "qwen2-style", "gemma-style", "deepseek-style",
        "metaspace-first-split", "bpe-unk-fused", "unigram-nmt-nfkc", "llama2-sentencepiece",
        "unigram-nmt-nfkc-sentencepiece", "tekken-file", "tiktoken-cl100k"}) {
    const auto tokenizer = LoadCase(name);
    for (const std::string& text : texts) {
      const auto begin = std::chrono::steady_clock::now();
      const Ids ids = EncodeOk(*tokenizer, text);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30))
          << name << " " << Escaped(absl::string_view(text).substr(0, 8));
      EXPECT_FALSE(ids.empty());
    }
  }
}

// SentencePiece-style models process the whole text as one piece.
TEST(TokenizerTimeTest, TokenizesAWordOfAMegabyte) {
  const auto tokenizer = LoadCase("llama2-style");
  std::mt19937 random(35);
  std::string word;
  while (word.size() < (1U << 20)) word.push_back(static_cast<char>('a' + random() % 26));
  const auto begin = std::chrono::steady_clock::now();
  const Ids ids = EncodeOk(*tokenizer, word, {.add_special_tokens = false});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(*tokenizer->Decode(ids, false), word);
}

}  // namespace
}  // namespace quire::text
