// Unigram models, tokenizer.model, tekken.json and tokenizer.tiktoken beyond the recorded cases of
// conformance_test: other settings, broken files, hostile sizes, special tokens of templates.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tests/text/model_bytes.h"
#include "tests/text/testdata.h"
#include "text/detokenizer.h"
#include "text/subword/prefix_trie.h"
#include "text/subword/viterbi.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Loaded = absl::StatusOr<std::unique_ptr<Tokenizer>>;

std::string CaseFile(absl::string_view folder, absl::string_view file) {
  return ReadTestFile(TokenizerData() / "cases" / std::string(folder) / std::string(file));
}

void ExpectError(const Loaded& loaded, absl::string_view words) {
  ASSERT_FALSE(loaded.ok()) << "was accepted, but must name: " << words;
  EXPECT_TRUE(absl::StrContains(loaded.status().message(), words)) << loaded.status();
}

// A loaded tokenizer must encode, decode and stream without a crash.
void Exercise(const Tokenizer& tokenizer) {
  for (const absl::string_view text :
       {"Hello world, 123 \xE6\xBC\xA2\xF0\x9F\x98\x80 <s>A\n", "  "}) {
    const auto ids = tokenizer.Encode(text, {});
    if (!ids.ok()) continue;
    const auto pieces = tokenizer.EncodeWithPieces(text, {.from_template = true});
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    const auto decoded = tokenizer.Decode(*ids, false);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    Detokenizer detokenizer(tokenizer, false);
    std::string streamed;
    for (const std::int32_t id : *ids) streamed += detokenizer.Push(id);
    streamed += detokenizer.Finish();
    EXPECT_EQ(streamed, *decoded);
    EXPECT_FALSE(FirstInvalidUtf8(streamed).has_value());
  }
}

// tokenizer.model

Loaded FromModel(absl::string_view model, absl::string_view config = "") {
  return Tokenizer::FromSentencePiece(model, config);
}

class SentencePieceVariantTest : public testing::TestWithParam<std::string> {};

TEST_P(SentencePieceVariantTest, EqualsTheLibrary) {
  const std::filesystem::path folder = TokenizerData() / "sentencepiece" / GetParam();
  const Loaded tokenizer = FromModel(ReadTestFile(folder / "tokenizer.model"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  int cases = 0;
  for (const json& recorded : ReadJsonLines(folder / "cases.jsonl")) {
    const std::string text = recorded.at("text");
    const auto ids = (*tokenizer)->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, recorded.at("ids").get<Ids>()) << Escaped(text);
    const Ids recorded_ids = recorded["ids"];
    EXPECT_EQ(*(*tokenizer)->Decode(recorded_ids, true), recorded.at("decode").get<std::string>())
        << Escaped(text);
    ++cases;
  }
  EXPECT_GE(cases, 100);
}

INSTANTIATE_TEST_SUITE_P(Variants, SentencePieceVariantTest,
                         testing::ValuesIn(FolderNames(TokenizerData() / "sentencepiece")),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(SentencePieceVariantsTest, AllVariantsExist) {
  EXPECT_EQ(FolderNames(TokenizerData() / "sentencepiece").size(), 7U);
}

TEST(SentencePieceFileTest, SmallestModelWorks) {
  const Loaded tokenizer = FromModel(SmallModel());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("abba", {}), (Ids{1, 0, 4, 3, 2}));  // U+2581 is unknown
  EXPECT_EQ((*tokenizer)->bos_token_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_token_id(), std::nullopt);
  EXPECT_TRUE((*tokenizer)->IsSpecial(1));
}

TEST(SentencePieceFileTest, BrokenFilesNameTheField) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Positions where SmallModel inserts further pieces, and the start of a piece that is truncated.
  const std::size_t at = SmallModel().find(Bytes(2, Number(3, 2)));
  const std::string cut_piece = Bytes(1, Number(9, 1) + "\x0A\x05" + "ab");
  const std::vector<std::pair<std::string, std::string>> files = {
      {"", "pieces has no piece of type NORMAL"},
      {"no protobuf",
       "tokenizer.model: the file is not a valid message: malformed field at byte 0"},
      {SmallModel().substr(0, 40), "malformed field at byte"},
      {SmallModel(cut_piece), absl::StrCat("malformed field at byte ", at + 4, " of ")},
      {SmallModel().substr(0, at) + cut_piece.substr(0, 3),
       absl::StrCat("malformed field at byte ", at, " of ", at + 3)},
      {Number(1, 7), "pieces has the wire type 0, must have 2"},
      {SmallModel(Bytes(1, Number(1, 3))), "pieces[5].piece has the wire type 0"},
      {SmallModel(Bytes(1, Bytes(2, "x"))), "pieces[5].score has the wire type 2"},
      {SmallModel(Piece("c", nan, 1)), "pieces[5].score is nan, must be finite"},
      {SmallModel(Piece("", 0, 1)), "pieces[5].piece is empty"},
      {SmallModel(Piece("\xFF", 0, 1)), "pieces[5].piece is not UTF-8 at byte 0"},
      {SmallModel(Piece("a", 0, 1)),
       "pieces[5].piece is \"a\", which is already used by pieces[2]; pieces must be unique"},
      {SmallModel(Piece("c", 0, 7)), "pieces[5].type is 7, must be in [1, 6]"},
      {SmallModel(Piece("c", 0, 2)), "pieces[5].type is UNKNOWN, but pieces[0] already is"},
      {SmallModel(Piece(std::string(513, 'c'), 0, 1)), "has 513 bytes, the limit is 512"},
      {SmallModel(Piece(std::string(513, 'c'), 0, 3)),
       "tokenizer.model: pieces[5].piece has 513 bytes, the limit is 512"},
      {SmallModel(Piece("<0x00>", 0, 6)), "pieces[5].type is BYTE, but"},
      {SmallModel(Piece("<0x00>", 0, 6), Number(35, 1)),
       "byte_fallback is true, but no piece is <0x01>"},
      {SmallModel(Piece("<0xzz>", 0, 6), Number(35, 1)), "must be <0x00> to <0xFF>"},
      {Piece("a", 0, 1), "pieces has no piece of type UNKNOWN"},
      {SmallModel("", "", Bytes(2, "\x03\x01")),
       "precompiled_charsmap is too short for the size of its trie"},
      {SmallModel("", "", Bytes(2, std::string("\x04\0\0\0\0\0\0\0\xFF", 9))), "not UTF-8"},
  };
  for (const auto& [file, words] : files) {
    ExpectError(FromModel(file), words);
    EXPECT_EQ(FromModel(file).status().code(), absl::StatusCode::kInvalidArgument) << words;
  }
}

TEST(SentencePieceFileTest, RejectsUnsupportedSettingsByName) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {SmallModel("", Number(3, 4)), "trainer_spec.model_type is 4"},
      {SmallModel("", Number(24, 1)), "trainer_spec.treat_whitespace_as_suffix is true"},
      {SmallModel() + Bytes(5, Bytes(2, "xyz")),
       "denormalizer_spec.precompiled_charsmap is 3 bytes"},
      {SmallModel(Piece("ba", 0, 5)), "pieces[5] (\"ba\") has type UNUSED"},
  };
  for (const auto& [file, words] : files) {
    ExpectError(FromModel(file), words);
    EXPECT_EQ(FromModel(file).status().code(), absl::StatusCode::kUnimplemented) << words;
  }
}

TEST(SentencePieceFileTest, ConfigurationIsChecked) {
  ExpectError(FromModel(SmallModel(), R"({"add_eos_token": true})"),
              "tokenizer_config.json: add_eos_token is true, but tokenizer.model has no control "
              "piece \"</s>\"");
  ExpectError(FromModel(SmallModel(), R"({"add_bos_token": "yes"})"),
              "tokenizer_config.json: add_bos_token is a string");
  ExpectError(FromModel(SmallModel(), R"({"added_tokens_decoder": {"5": {"content": "<pad>"}}})"),
              "tokenizer_config.json: added_tokens_decoder.5 is \"<pad>\", but tokenizer.model "
              "does not have this token");
  ExpectError(FromModel(SmallModel(), R"({"added_tokens_decoder": {"2": {"content": "<s>"}}})"),
              "but tokenizer.model gives this token the id 1");
  const Loaded without = FromModel(SmallModel(), R"({"add_bos_token": false})");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(*(*without)->Encode("b", {}), (Ids{0, 3}));
}

// Text that spells a special token is plain text unless a template printed it.
TEST(TemplateTextTest, OnlyTemplatesCreateControlTokens) {
  for (const char* folder :
       {"llama2-sentencepiece", "unigram-nmt-nfkc-sentencepiece", "tekken-file"}) {
    const Loaded tokenizer = Tokenizer::Load(TokenizerData() / "cases" / folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::int32_t bos = *(*tokenizer)->TokenToId("<s>");
    const std::int32_t eos = *(*tokenizer)->TokenToId("</s>");
    const std::string text = "<s>Hello</s>";
    const Ids plain = *(*tokenizer)->Encode(text, {.add_special_tokens = false});
    EXPECT_EQ(std::count(plain.begin(), plain.end(), bos), 0) << folder;
    Ids expected = *(*tokenizer)->Encode("Hello", {.add_special_tokens = false});
    expected.insert(expected.begin(), bos);
    expected.push_back(eos);
    EXPECT_EQ(*(*tokenizer)->Encode(text, {.add_special_tokens = false, .from_template = true}),
              expected)
        << folder;
    const std::vector<ByteRange> literal = {{0, 3}};
    const Ids kept =
        *(*tokenizer)
             ->Encode(text,
                      {.add_special_tokens = false, .from_template = true, .literal = literal});
    EXPECT_EQ(std::count(kept.begin(), kept.end(), bos), 0) << folder;
    EXPECT_EQ(kept.back(), eos) << folder;
    EXPECT_EQ(*(*tokenizer)
                   ->Encode(text, {.add_special_tokens = false,
                                   .parse_special_tokens = false,
                                   .from_template = true}),
              plain)
        << folder;
  }
}

// tekken.json

json Tekken() {
  return json::parse(CaseFile("tekken-file", "tekken.json"));
}

TEST(TekkenTest, BrokenFilesNameTheField) {
  const std::vector<std::pair<json, std::string>> patches = {
      {{{"op", "remove"}, {"path", "/config"}}, "config is missing"},
      {{{"op", "replace"}, {"path", "/config/pattern"}, {"value", "(a"}},
       "config.pattern: regular"},
      {{{"op", "replace"}, {"path", "/config/default_vocab_size"}, {"value", 793}},
       "config.default_vocab_size is 793, must be in [32, 792]"},
      {{{"op", "replace"}, {"path", "/config/default_vocab_size"}, {"value", 31}},
       "is 31, must be in"},
      {{{"op", "replace"}, {"path", "/config/default_num_special_tokens"}, {"value", 3}},
       "special_tokens has 20 tokens, but config.default_num_special_tokens is 3"},
      {{{"op", "replace"}, {"path", "/vocab/7/rank"}, {"value", 8}},
       "vocab[7].rank is 8, must be 7"},
      {{{"op", "replace"}, {"path", "/vocab/7/token_bytes"}, {"value", "?"}},
       "vocab[7].token_bytes is not Base64"},
      {{{"op", "replace"}, {"path", "/vocab/7/token_bytes"}, {"value", ""}},
       "vocab[7].token_bytes is empty"},
      {{{"op", "replace"}, {"path", "/vocab/300/token_bytes"}, {"value", "AA=="}},
       "vocab[300].token_bytes has the same bytes as another"},
      {{{"op", "replace"}, {"path", "/vocab/7/token_bytes"}, {"value", "AAAA"}},
       "has no token for the byte 07"},
      {{{"op", "replace"}, {"path", "/special_tokens/2/rank"}, {"value", 3}},
       "special_tokens[2].rank is 3"},
      {{{"op", "replace"}, {"path", "/special_tokens/2/token_str"}, {"value", "<s>"}},
       "special_tokens[2].token_str has \"<s>\", which occurs twice"},
      {{{"op", "replace"},
        {"path", "/special_tokens/2/token_str"},
        {"value", std::string(513, 'x')}},
       "special_tokens[2].token_str has 513 bytes, the limit is 512"},
      {{{"op", "replace"}, {"path", "/special_tokens"}, {"value", 1}},
       "special_tokens is a number"},
      {{{"op", "replace"}, {"path", "/vocab/3"}, {"value", 1}}, "vocab[3]"},
  };
  for (const auto& [patch, words] : patches) {
    const json bad = Tekken().patch(json::array({patch}));
    ExpectError(Tokenizer::FromTekken(bad.dump(), ""), words);
    ExpectError(Tokenizer::FromTekken(bad.dump(), ""), "tekken.json: ");
  }
  ExpectError(Tokenizer::FromTekken(Tekken().dump(), R"({"bos_token": "<bos>"})"),
              "tokenizer_config.json: add_bos_token is true, but bos_token is \"<bos>\"");
}

TEST(TekkenTest, WorksWithoutConfiguration) {
  const Loaded tokenizer = Tokenizer::FromTekken(Tekken().dump(), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_token_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_token_id(), 2);
  EXPECT_EQ((*tokenizer)->pad_token_id(), 11);
  EXPECT_EQ((*tokenizer)->Encode("a", {})->front(), 1);
}

// tokenizer.tiktoken

TEST(TiktokenTest, BrokenFilesNameTheLine) {
  const std::string good = CaseFile("tiktoken-cl100k", "tokenizer.tiktoken");
  const std::string config = CaseFile("tiktoken-cl100k", "tokenizer_config.json");
  const std::vector<std::pair<std::string, std::string>> files = {
      {"", "has no token for the byte 00"},
      {"AA==\n", "line 1 is \"AA==\", must be Base64, a space and a number below"},
      {good + "AAAA x\n", "line 701 is \"AAAA x\""},
      {good + "?? 705\n", "line 701 is"},
      {good + "AAAA -1\n", "line 701 is"},
      {good + "AAAA 4194304\n", "line 701 is"},
      {good + "AAAA 5\n",
       "token 701 has the rank 5, which is already used by another token; ranks must be unique"},
      {good + "AA== 900\n", "token 701 has the same bytes as another token"},
      {good + absl::StrCat(absl::Base64Escape(std::string(513, 'x')), " 900\n"),
       "token 701 has 513 bytes"},
  };
  for (const auto& [file, words] : files) {
    ExpectError(Tokenizer::FromTiktoken(file, config), words);
    ExpectError(Tokenizer::FromTiktoken(file, config), "tokenizer.tiktoken: ");
  }
  const std::vector<std::pair<std::string, std::string>> configs = {
      {"", "pattern is missing"},
      {R"({"pattern": "(a"})", "pattern: regular expression"},
      {R"({"pattern": "a", "special_tokens": {"<x>": 5}})",
       "special_tokens.<x> is 5, which is already used by another token; ids must be unique"},
      {R"({"pattern": "a", "special_tokens": []})", "special_tokens is an array"},
      {R"({"pattern": "a", "special_tokens": {"": 900}})",
       "special_tokens has a token with empty text"},
      {absl::StrCat(R"({"pattern": "a", "special_tokens": {")", std::string(513, 'x'),
                    R"(": 900}})"),
       "special_tokens has a token of 513 bytes, the limit is 512"},
      {R"({"pattern": "a", "add_bos_token": true})", "bos_token is missing"},
  };
  for (const auto& [bad, words] : configs) {
    ExpectError(Tokenizer::FromTiktoken(good, bad), words);
    ExpectError(Tokenizer::FromTiktoken(good, bad), "tokenizer_config.json: ");
  }
}

// Unigram of tokenizer.json

json UnigramModel() {
  return {{"type", "Unigram"},
          {"unk_id", 0},
          {"vocab", json::array({{"<unk>", 0.0}, {"a", -1.0}, {"b", -2.0}, {"ab", -2.5}})}};
}

TEST(UnigramTest, BrokenModelsNameTheField) {
  const std::vector<std::pair<json, std::string>> patches = {
      {{{"op", "replace"}, {"path", "/vocab"}, {"value", 3}}, "model.vocab is a number"},
      {{{"op", "replace"}, {"path", "/vocab"}, {"value", json::array()}},
       "model.vocab has no tokens"},
      {{{"op", "replace"}, {"path", "/vocab/1"}, {"value", "a"}}, "model.vocab[1] is a string"},
      {{{"op", "add"}, {"path", "/vocab/1/2"}, {"value", 1}}, "model.vocab[1] has 3 elements"},
      {{{"op", "replace"}, {"path", "/vocab/1/0"}, {"value", 1}}, "model.vocab[1][0] is a number"},
      {{{"op", "replace"}, {"path", "/vocab/1/1"}, {"value", "x"}},
       "model.vocab[1][1] must be a finite"},
      {{{"op", "replace"}, {"path", "/vocab/1/0"}, {"value", std::string(513, 'x')}},
       "model.vocab[1][0] has 513 bytes"},
      {{{"op", "replace"}, {"path", "/unk_id"}, {"value", 4}}, "model.unk_id"},
      {{{"op", "replace"}, {"path", "/unk_id"}, {"value", nullptr}},
       "model.unk_id is missing, which is not supported"},
      {{{"op", "add"}, {"path", "/byte_fallback"}, {"value", 1}},
       "model.byte_fallback is a number"},
  };
  for (const auto& [patch, words] : patches) {
    const json file = {{"model", UnigramModel().patch(json::array({patch}))}};
    ExpectError(Tokenizer::FromJson(file.dump(), ""), absl::StrCat("tokenizer.json: ", words));
  }
  const json file = {{"model", UnigramModel()}};
  const Loaded tokenizer = Tokenizer::FromJson(file.dump(), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("abxyb<unk>a", {}), (Ids{3, 0, 2, 0, 1}));
}

TEST(UnigramTest, AddedTokensAreLimited) {
  const auto load = [](std::size_t size) {
    const json token = {{"id", 4},
                        {"content", std::string(size, 'x')},
                        {"lstrip", false},
                        {"rstrip", false},
                        {"special", true},
                        {"normalized", false},
                        {"single_word", false}};
    const json file = {{"model", UnigramModel()}, {"added_tokens", json::array({token})}};
    return Tokenizer::FromJson(file.dump(), "");
  };
  ExpectError(load(513), "tokenizer.json: added_tokens[0].content has 513 bytes, the limit is 512");
  const Loaded tokenizer = load(512);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("a" + std::string(512, 'x'), {}), (Ids{1, 4}));
}

// Tries all segmentations of a text and sums each from left to right. Scores are random, because
// the choice among equal sums is not defined.
double BestSum(const std::vector<std::pair<std::string, double>>& vocabulary, double unknown,
               absl::string_view text) {
  std::vector<double> best(text.size() + 1, -std::numeric_limits<double>::infinity());
  best[0] = 0;
  for (std::size_t end = 1; end <= text.size(); ++end) {
    for (const auto& [token, score] : vocabulary) {
      if (!absl::EndsWith(text.substr(0, end), token)) continue;
      best[end] = std::max(best[end], best[end - token.size()] + score);
    }
    const bool is_known = std::any_of(vocabulary.begin(), vocabulary.end(), [&](const auto& entry) {
      return entry.first == text.substr(end - 1, 1);
    });
    if (!is_known) best[end] = std::max(best[end], best[end - 1] + unknown);
  }
  return best.back();
}

TEST(ViterbiTest, FindsTheBestSum) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<std::string, double>> vocabulary;
    for (int i = 0; i < 12; ++i) {
      std::string token;
      for (std::size_t size = 1 + random() % 4; size > 0; --size) {
        token.push_back(static_cast<char>('a' + random() % 3));
      }
      const bool is_new = std::none_of(vocabulary.begin(), vocabulary.end(),
                                       [&](const auto& entry) { return entry.first == token; });
      if (is_new)
        vocabulary.emplace_back(token, -1 - static_cast<double>(random() % 100000) / 7919);
    }
    std::vector<std::pair<absl::string_view, std::int32_t>> entries;
    std::vector<double> scores;
    for (const auto& [token, score] : vocabulary) {
      entries.emplace_back(token, static_cast<std::int32_t>(scores.size()));
      scores.push_back(score);
    }
    constexpr double kUnknown = -40;
    const Viterbi viterbi(PrefixTrie(entries), scores, {.unk_id = 99, .unk_score = kUnknown});
    std::string text;
    for (std::size_t size = random() % 30; size > 0; --size) {
      text.push_back(static_cast<char>('a' + random() % 4));
    }
    ViterbiScratch scratch;
    std::vector<ModelToken> tokens;
    viterbi.Segment(text, scratch, tokens);
    std::string joined;
    double sum = 0;
    std::size_t at = 0;
    for (const ModelToken& token : tokens) {
      const bool is_unknown = token.id == 99;
      sum += is_unknown ? kUnknown : scores[static_cast<std::size_t>(token.id)];
      joined +=
          is_unknown ? text.substr(at, 1) : vocabulary[static_cast<std::size_t>(token.id)].first;
      at += token.size_bytes;
    }
    EXPECT_EQ(joined, text);
    EXPECT_NEAR(sum, BestSum(vocabulary, kUnknown, text), 1e-9) << text;
  }
}

TEST(PrefixTrieTest, FindsEveryPrefixAndTheLastOfEqualStrings) {
  const PrefixTrie trie({{"b", 0}, {"abc", 1}, {"a", 2}, {"abd", 3}, {"", 4}, {"a", 5}});
  std::vector<std::pair<std::size_t, std::int32_t>> found;
  trie.ForEachPrefix(
      "abdx", [&](std::size_t size, std::int32_t value) { found.emplace_back(size, value); });
  EXPECT_EQ(found, (std::vector<std::pair<std::size_t, std::int32_t>>{{1, 5}, {3, 3}}));
  EXPECT_EQ(trie.Longest("abc").second, 1);
  EXPECT_EQ(trie.Longest("cab"), (std::pair<std::size_t, std::int32_t>{0, -1}));
  EXPECT_EQ(trie.Longest(""), (std::pair<std::size_t, std::int32_t>{0, -1}));
  EXPECT_EQ(PrefixTrie().Longest("a").second, -1);
}

// Random damage gives an error or a working tokenizer.

Loaded LoadAs(absl::string_view file, absl::string_view contents, absl::string_view config) {
  if (file == "tokenizer.model") return Tokenizer::FromSentencePiece(contents, config);
  if (file == "tekken.json") return Tokenizer::FromTekken(contents, config);
  if (file == "tokenizer.tiktoken") return Tokenizer::FromTiktoken(contents, config);
  return Tokenizer::FromJson(contents, config);
}

const std::pair<const char*, const char*> kReaders[] = {
    {"llama2-sentencepiece", "tokenizer.model"},
    {"unigram-byte-fallback-sentencepiece", "tokenizer.model"},
    {"unigram-byte-fallback", "tokenizer.json"},
    {"tekken-file", "tekken.json"},
    {"tiktoken-cl100k", "tokenizer.tiktoken"},
};

TEST(BrokenKindsTest, SurvivesTruncationsAndFlippedBits) {
  std::mt19937 random(8);
  int refused = 0;
  int loaded_count = 0;
  for (const auto& [folder, file] : kReaders) {
    const std::string good = CaseFile(folder, file);
    const std::string config = CaseFile(folder, "tokenizer_config.json");
    const auto check = [&, file = file](const std::string& bad) {
      const Loaded loaded = LoadAs(file, bad, config);
      loaded.ok() ? ++loaded_count : ++refused;
      if (loaded.ok()) Exercise(**loaded);
    };
    for (std::size_t size = 0; size < good.size(); size += 1 + good.size() / 40) {
      check(good.substr(0, size));
    }
    for (int round = 0; round < 100; ++round) {
      std::string bad = good;
      // Half of the changes go to the end, where a tokenizer.model has its settings and map.
      const std::size_t tail = std::min<std::size_t>(good.size(), 1200);
      const std::size_t begin = round % 2 == 0 ? good.size() - tail : 0;
      for (int flips = 1 + round % 3; flips > 0; --flips) {
        bad[begin + random() % (good.size() - begin)] ^= static_cast<char>(1U << (random() % 8));
      }
      check(bad);
    }
  }
  EXPECT_GT(refused, 150);
  EXPECT_GT(loaded_count, 50);
}

// Nested tokens of maximum length, a cyclic map, and text without any boundary.
TEST(BrokenKindsTest, HostileSizesTakeLinearTime) {
  json vocabulary = json::array({{"<unk>", 0.0}});
  for (int size = 1; size <= 512; ++size)
    vocabulary.push_back({std::string(size, 'a'), -1.0 * size});
  const json file = {{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocabulary}}}};
  std::string pieces;
  for (int size = 3; size <= 512; ++size) pieces += Piece(std::string(size, 'a'), -1, 1);
  // With these two units every lookup of 'a' returns to itself without an entry.
  std::string map("\x00\x04\x00\x00", 4);
  for (int unit = 0; unit < 256; ++unit) {
    const std::uint32_t bits = unit == 0 ? 0x61U << 10 | 0x61U : 0x61U;
    for (int k = 0; k < 4; ++k) map.push_back(static_cast<char>(bits >> (8 * k)));
  }
  const std::string text(1 << 17, 'a');
  // The text seems to start a control token at each position.
  const std::string control = std::string(511, 'a') + "b";
  ExpectError(FromModel(SmallModel(Piece(std::string(1 << 20, 'a'), 0, 3))),
              "pieces[5].piece has 1048576 bytes, the limit is 512");
  for (const Loaded& tokenizer :
       {Tokenizer::FromJson(file.dump(), ""), FromModel(SmallModel(pieces)),
        FromModel(SmallModel(pieces, Number(3, 1))), FromModel(SmallModel(Piece(control, 0, 3))),
        FromModel(SmallModel("", "", Bytes(2, map)))}) {
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE((*tokenizer)->Encode(text, {}).ok());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

TEST(LoadTest, RejectsAuxiliaryFilesWithoutATokenizer) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "quire-model-kinds";
  std::filesystem::create_directories(folder);
  const std::filesystem::path from = TokenizerData() / "cases" / "llama2-sentencepiece";
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(from / "tokenizer.model", folder / "tokenizer.model", overwrite);
  EXPECT_TRUE(Tokenizer::Load(folder).ok());
  std::filesystem::copy_file(from / "tokenizer_config.json", folder / "added_tokens.json",
                             overwrite);
  ExpectError(Tokenizer::Load(folder),
              "added_tokens.json is supported only together with tokenizer.json");
  std::filesystem::remove(folder / "added_tokens.json");
  std::filesystem::rename(folder / "tokenizer.model", folder / "spiece.model");
  ExpectError(Tokenizer::Load(folder),
              "has spiece.model (a SentencePiece model under another name");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quire::text
