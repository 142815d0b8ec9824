// Tokenizers from GGUF metadata: the recorded ids of llama.cpp and Hugging Face for GGUF
// vocabularies, the ids of tokenizer.json files converted to GGUF, and every rejection by name.

#include "text/tokenizer/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "formats/gguf.h"
#include "formats/gguf_splits.h"
#include "formats/json_value.h"
#include "tests/text/testdata.h"
#include "text/detokenizer.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/splitter.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr EncodeOptions kPlain{.add_special_tokens = false};

std::unique_ptr<Tokenizer> BuildOrFail(const GgufVocabulary& vocabulary) {
  auto built = Tokenizer::FromGguf(vocabulary);
  EXPECT_TRUE(built.ok()) << built.status();
  return built.ok() ? *std::move(built) : nullptr;
}

// ---- files --------------------------------------------------------------------------------------

class GgufFileTest : public testing::TestWithParam<std::string> {};

TEST_P(GgufFileTest, IdsAndTextEqualTheReference) {
  const std::filesystem::path folder = TokenizerData() / "gguf" / GetParam();
  const std::string bytes = ReadTestFile(folder / "header.gguf");
  const auto file = formats::GgufFile::Parse(std::as_bytes(std::span(bytes)), "header.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto vocabulary = ReadGgufVocabulary(*file);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  const auto tokenizer = BuildOrFail(*vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), static_cast<std::int32_t>(vocabulary->tokens.size()));
  EXPECT_EQ(tokenizer->bos_token_id(), vocabulary->bos_id);
  EXPECT_EQ(tokenizer->eos_token_id(), vocabulary->eos_id);
  EXPECT_TRUE(tokenizer->IsSpecial(*tokenizer->eos_token_id()));

  const std::vector<json> cases = ReadJsonLines(folder / "cases.jsonl");
  ASSERT_EQ(cases.size(), 19U);
  for (const json& recorded : cases) {
    const std::string text = recorded.at("text");
    SCOPED_TRACE(Escaped(text));
    const Ids expected = recorded.at("ids");
    const auto ids = tokenizer->Encode(text, kPlain);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected);
    const auto with_special = tokenizer->Encode(text, {});
    ASSERT_TRUE(with_special.ok());
    EXPECT_EQ(*with_special, recorded.at("ids_with_special").get<Ids>());
    const auto decoded = tokenizer->Decode(expected, false);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, recorded.at("decoded").get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, GgufFileTest,
                         testing::Values("gpt-2", "qwen2", "smollm", "llama-bpe", "sentencepiece"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- tokenizer.json in GGUF form ----------------------------------------------------------------

// Owns the strings of a vocabulary.
struct Converted {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  GgufVocabulary vocabulary;
};

std::string MergeLine(const json& merge) {
  if (merge.is_string()) return merge;
  return absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>());
}

void AddTokens(const json& file, Converted* c) {
  std::size_t size = 0;
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    size = std::max(size, id.get<std::size_t>() + 1);
  }
  for (const json& added : file["added_tokens"]) {
    size = std::max(size, added["id"].get<std::size_t>() + 1);
  }
  c->tokens.resize(size);
  std::vector<std::int32_t> types(size, static_cast<std::int32_t>(GgufTokenType::kUnused));
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    const bool is_byte = absl::StartsWith(token, "<0x");
    c->tokens[id.get<std::size_t>()] = token;
    types[id.get<std::size_t>()] =
        static_cast<std::int32_t>(is_byte ? GgufTokenType::kByte : GgufTokenType::kNormal);
  }
  const json& unk = file["model"]["unk_token"];
  for (const json& added : file["added_tokens"]) {
    const auto id = added["id"].get<std::size_t>();
    c->tokens[id] = added["content"];
    types[id] = static_cast<std::int32_t>(added["content"] == unk ? GgufTokenType::kUnknown
                                          : added["special"]      ? GgufTokenType::kControl
                                                                  : GgufTokenType::kUserDefined);
  }
  c->vocabulary.token_types = std::move(types);
}

// Returns the BOS token of the post-processor's template at any nesting depth.
std::optional<std::int32_t> BosOf(const json& processor) {
  if (!processor.is_object()) return std::nullopt;
  if (processor["type"] == "Sequence") {
    for (const json& part : processor["processors"]) {
      if (const auto id = BosOf(part)) return id;
    }
  }
  if (processor["type"] != "TemplateProcessing") return std::nullopt;
  const std::string name = processor["single"][0]["SpecialToken"]["id"];
  return processor["special_tokens"][name]["ids"][0].get<std::int32_t>();
}

std::unique_ptr<Converted> Convert(const json& file, absl::string_view model,
                                   absl::string_view pre) {
  auto c = std::make_unique<Converted>();
  AddTokens(file, c.get());
  GgufVocabulary& v = c->vocabulary;
  v.label = "converted";
  v.model = model;
  v.pre = pre;
  v.tokens.assign(c->tokens.begin(), c->tokens.end());
  v.bos_id = BosOf(file["post_processor"]);
  v.add_bos = v.bos_id.has_value();
  for (const json& merge : file["model"]["merges"]) c->merges.push_back(MergeLine(merge));
  if (model != "llama") {
    v.merges.emplace(c->merges.begin(), c->merges.end());
    return c;
  }
  // A piece's score is the negated rank of the first merge that creates it. In files made from
  // scores, all merges of one piece are consecutive.
  std::vector<float> scores(c->tokens.size());
  std::string last;
  for (std::size_t i = 0; i < c->merges.size(); ++i) {
    const std::string& line = c->merges[i];
    const std::size_t space = line.find(' ');
    const std::string joined = line.substr(0, space) + line.substr(space + 1);
    const auto id = file["model"]["vocab"][joined].get<std::size_t>();
    EXPECT_TRUE(joined == last || scores[id] == 0) << joined;
    if (scores[id] == 0) scores[id] = -1.0F - static_cast<float>(i);
    last = joined;
  }
  v.scores = std::move(scores);
  return c;
}

struct Family {
  const char* folder;
  const char* model;
  const char* pre;
};

class GgufConvertedTest : public testing::TestWithParam<Family> {};

TEST_P(GgufConvertedTest, IdsEqualThoseOfTokenizerJson) {
  const Family& family = GetParam();
  const std::filesystem::path folder = TokenizerData() / "cases" / family.folder;
  json file = json::parse(ReadTestFile(folder / "tokenizer.json"));
  const auto converted = Convert(file, family.model, family.pre);
  const auto tokenizer = BuildOrFail(converted->vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  // A GGUF file does not record that text is normalized to NFC.
  const bool drops_nfc = file["normalizer"] == json{{"type", "NFC"}};
  if (drops_nfc) file["normalizer"] = nullptr;
  const auto twin = Tokenizer::FromJson(file.dump(), "");
  ASSERT_TRUE(twin.ok()) << twin.status();
  EXPECT_EQ(tokenizer->vocab_size(), (*twin)->vocab_size());
  const auto original = Tokenizer::Load(folder);
  ASSERT_TRUE(original.ok()) << original.status();

  int compared = 0;
  int normalized = 0;  // cases that NFC changes
  for (const json& recorded : ReadJsonLines(folder / "cases.jsonl")) {
    if (!recorded.contains("text") || recorded.contains("error")) continue;
    SCOPED_TRACE(recorded.at("name").get<std::string>());
    const std::string text = recorded["text"];
    for (const bool parses_special : {true, false}) {
      const EncodeOptions options{.add_special_tokens = recorded.at("add_special_tokens"),
                                  .parse_special_tokens = parses_special};
      const auto ids = tokenizer->Encode(text, options);
      const auto expected = (*twin)->Encode(text, options);
      ASSERT_TRUE(ids.ok() && expected.ok());
      EXPECT_EQ(*ids, *expected) << Escaped(text);
      EXPECT_EQ(*tokenizer->Decode(*expected, false), *(*twin)->Decode(*expected, false));
      EXPECT_EQ(*tokenizer->Decode(*expected, true), *(*twin)->Decode(*expected, true));
      if (!parses_special || recorded.value("unicode_data_differs", false)) continue;
      if (drops_nfc && *(*original)->Encode(text, options) != *expected) {
        ++normalized;
        continue;
      }
      EXPECT_EQ(*ids, recorded.at("ids").get<Ids>()) << Escaped(text);
      ++compared;
    }
  }
  EXPECT_GE(compared, 100);
  EXPECT_LE(normalized, drops_nfc ? 20 : 0);
}

INSTANTIATE_TEST_SUITE_P(Families, GgufConvertedTest,
                         testing::Values(Family{"gpt2-bytelevel", "gpt2", "gpt-2"},
                                         Family{"llama3-style", "gpt2", "llama-bpe"},
                                         Family{"qwen2-style", "gpt2", "qwen2"},
                                         Family{"qwen35-style", "gpt2", "qwen35"},
                                         Family{"deepseek-style", "gpt2", "deepseek-v3"},
                                         Family{"o200k-style", "gpt2", "gpt-4o"},
                                         Family{"tekken-style", "gpt2", "tekken"},
                                         Family{"llama2-style", "llama", "default"},
                                         Family{"gemma-style", "gemma4", "default"}),
                         [](const testing::TestParamInfo<Family>& info) {
                           std::string name = info.param.folder;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GgufSplitsTest, FindsEveryListedName) {
  const std::string names = formats::GgufSplitNames();
  int count = 0;
  for (std::size_t begin = 0; begin < names.size(); ++count) {
    const std::size_t end = std::min(names.find(", ", begin), names.size());
    EXPECT_TRUE(formats::FindGgufSplit(names.substr(begin, end - begin)).has_value()) << names;
    begin = end + 2;
  }
  EXPECT_EQ(count, 31);
  EXPECT_FALSE(formats::FindGgufSplit("default").has_value());
  EXPECT_FALSE(formats::FindGgufSplit("").has_value());
}

// Returns the pieces before bytes are mapped to the byte-level alphabet.
std::vector<std::string> PiecesOf(absl::string_view pre, const std::string& text) {
  json config = json::parse(formats::FindGgufSplit(pre)->pre_tokenizer_json);
  EXPECT_EQ(config["pretokenizers"].back()["type"], "ByteLevel");
  config["pretokenizers"].erase(config["pretokenizers"].size() - 1);
  const std::string config_text = config.dump();
  const auto document = formats::JsonDocument::Parse(config_text);
  EXPECT_TRUE(document.ok()) << document.status();
  const auto splitter = Splitter::FromJson(document->root());
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  PieceList list{AlignedText(text, 0, /*tracked=*/false), {{0, text.size(), -1}}};
  RegexScratch scratch;
  EXPECT_TRUE(splitter->Split(list, scratch).ok());
  std::vector<std::string> pieces;
  for (const Piece& piece : list.pieces) {
    pieces.emplace_back(list.text.view(piece.begin, piece.end));
  }
  return pieces;
}

// Recorded with tokenizers 0.23.3 and the patterns of the published tokenizers.
TEST(GgufSplitsTest, PiecesEqualThoseOfPublishedPatterns) {
  struct Recorded {
    std::vector<std::string> kimi;
    std::vector<std::string> deepseek;
  };
  const Recorded kRecorded[] = {
      {{"Hello", ",", " world", "!"}, {"Hello", ",", " world", "!"}},
      {{"it's", " WE'LL", " don't"}, {"it", "'", "s", " WE", "'", "LL", " don", "'", "t"}},
      {{"Camel", "Case", "HTTPServer", "2", "go"}, {"CamelCaseHTTPServer", "2", "go"}},
      {{"中文字符", "abc", "漢字", "かな", " ", "123", "45"},
       {"中文字符", "abc", "漢字かな", " ", "1", "2", "3", "4", "5"}},
      {{"A", "中", "B", "漢", "C", "々", "〆", "〇", "X"},
       {"A", "中", "B", "漢", "C", "々〆", "〇", "X"}},
      {{"ÀÉî", " ßtraße", " Ǆǅǆ"}, {"ÀÉî", " ß", "tra", "ß", "e", " Ǆǅǆ"}},
      {{"한국어", " 텍스트", " カタカナー"}, {"한국어", " ", "텍스트", " ", "カタカナー"}},
      {{"e\u0301a\u0301", " \u0301", "中", "\u0301"},
       {"e", "\u0301", "a", "\u0301 \u0301", "中", "\u0301"}},
      {{" \t\n\n", " ", " x", "  \r\n", " y"},
       {" \t", "\n", "\n", " ", " x", "  ", "\r", "\n", " y"}},
      {{"3", ".", "141", "59", ",", " ", "²③", " ", "123", "456", "7"},
       {"3", ".", "1", "4", "1", "5", "9", ",", " ", "²", "③", " ", "1", "2", "3", "4", "5", "6",
        "7"}},
      {{"...//\n\n", "!?"}, {"...//", "\n", "\n", "!?"}},
      {{"，。！", " “", "x", "”", " —", " 。"},
       {"，", "。", "！", " ", "“", "x", "”", " ", "—", " ", "。"}},
      {{"def", " f", "(x", "):\n", "   ", " return", " x", "**", "2", "  \n"},
       {"def", " f", "(", "x", "):", "\n", "   ", " return", " x", "**", "2", "  ", "\n"}},
      {{"\U0001f600\U0001f44d\U0001f3fd", " a", "\U0001f600b"},
       {"\U0001f600\U0001f44d\U0001f3fd", " a", "\U0001f600", "b"}},
      {{"кириллица", " ΕΛΛ", " ελλ"}, {"кириллица", " ΕΛΛ", " ελλ"}},
      {{"देवनागरी", " ไทย"}, {"देवनागरी", " ", "ไทย"}},
      {{"a", " ", " b", "  ", " c", " "}, {"a", " ", " b", "  ", " c", " "}},
      {{"\U00020000\U0002a700", "z", " \U00010400\U00010428"},
       {"\U00020000\U0002a700", "z", " \U00010400\U00010428"}},
      {{"   "}, {"   "}},
      {{"\n"}, {"\n"}},
  };
  for (const Recorded& recorded : kRecorded) {
    const std::string text = absl::StrJoin(recorded.kimi, "");
    EXPECT_EQ(PiecesOf("kimi-k2", text), recorded.kimi);
    EXPECT_EQ(PiecesOf("deepseek-llm", text), recorded.deepseek);
  }
}

// ---- scores of a SentencePiece model ------------------------------------------------------------

std::uint64_t ReadVarint(absl::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// The pieces (field 1: text 1, score 2, type 3) of a tokenizer.model.
std::unique_ptr<Converted> ReadSentencePiece(absl::string_view model) {
  auto c = std::make_unique<Converted>();
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  while (!model.empty()) {
    const std::uint64_t key = ReadVarint(model);
    const std::uint64_t size = ReadVarint(model);
    EXPECT_EQ(key & 7, 2U);
    absl::string_view piece = model.substr(0, size);
    model.remove_prefix(size);
    if (key >> 3 != 1) continue;
    scores.push_back(0);
    types.push_back(1);
    while (!piece.empty()) {
      const std::uint64_t field = ReadVarint(piece) >> 3;
      if (field == 1) {
        const std::uint64_t bytes = ReadVarint(piece);
        c->tokens.emplace_back(piece.substr(0, bytes));
        piece.remove_prefix(bytes);
      } else if (field == 2) {
        std::memcpy(&scores.back(), piece.data(), sizeof(float));
        piece.remove_prefix(sizeof(float));
      } else {
        types.back() = static_cast<std::int32_t>(ReadVarint(piece));
      }
    }
  }
  GgufVocabulary& v = c->vocabulary;
  v.label = "tokenizer.model";
  v.model = "llama";
  v.tokens.assign(c->tokens.begin(), c->tokens.end());
  v.scores = std::move(scores);
  v.token_types = std::move(types);  // both formats use the same type numbers
  v.bos_id = 1;
  v.eos_id = 2;
  return c;
}

TEST(GgufSentencePieceTest, ModelFileScoresGiveTheRecordedIds) {
  const auto converted = ReadSentencePiece(
      ReadTestFile(TokenizerData() / "cases/llama2-sentencepiece/tokenizer.model"));
  ASSERT_EQ(converted->tokens.size(), 1000U);
  const auto tokenizer = BuildOrFail(converted->vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  int compared = 0;
  for (const json& recorded : ReadJsonLines(TokenizerData() / "cases/llama2-style/cases.jsonl")) {
    if (!recorded.contains("text")) continue;
    const EncodeOptions options{.add_special_tokens = recorded.at("add_special_tokens")};
    const auto ids = tokenizer->Encode(recorded["text"].get<std::string>(), options);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, recorded.at("ids").get<Ids>()) << recorded.at("name");
    ++compared;
  }
  EXPECT_GE(compared, 100);
}

// ---- small vocabularies -------------------------------------------------------------------------

GgufVocabulary SmallLlama() {
  GgufVocabulary v;
  v.label = "small.gguf";
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc", "abc"};
  v.scores = std::vector<float>{0, 0, 0, -9, -9, -9, -1, -1, -5};
  v.token_types = std::vector<std::int32_t>{2, 3, 3, 1, 1, 1, 1, 1, 1};
  v.bos_id = 1;
  v.eos_id = 2;
  v.add_space_prefix = false;
  return v;
}

GgufVocabulary SmallGpt2() {
  GgufVocabulary v;
  v.label = "small.gguf";
  v.model = "gpt2";
  v.pre = "llama-bpe";
  v.tokens = {"a", "b", "c", "ab", "abc", "<s>", "</s>", "<x>", ""};
  v.merges = std::vector<absl::string_view>{"a b", "ab c"};
  v.token_types = std::vector<std::int32_t>{1, 1, 1, 1, 1, 3, 3, 4, 5};
  v.bos_id = 5;
  v.eos_id = 6;
  return v;
}

Ids Encoded(const GgufVocabulary& v, absl::string_view text,
            const EncodeOptions& options = kPlain) {
  const auto tokenizer = BuildOrFail(v);
  if (tokenizer == nullptr) return {};
  return tokenizer->Encode(text, options).value_or(Ids{-1});
}

// "ab" and "bc" have equal scores, so the left one is merged, whatever their ids.
TEST(GgufSmallTest, EqualScoresMergeLeftmostFirst) {
  EXPECT_EQ(Encoded(SmallLlama(), "abc"), (Ids{8}));
  EXPECT_EQ(Encoded(SmallLlama(), "abcabcbc"), (Ids{8, 8, 7}));
  GgufVocabulary v = SmallLlama();
  v.tokens.pop_back();
  v.scores->pop_back();
  v.token_types->pop_back();
  EXPECT_EQ(Encoded(v, "abc"), (Ids{6, 5}));
  std::swap(v.tokens[6], v.tokens[7]);
  EXPECT_EQ(Encoded(v, "abc"), (Ids{7, 5}));
  // With a better score the right pair is first.
  (*v.scores)[6] = 1;
  EXPECT_EQ(Encoded(v, "abc"), (Ids{3, 6}));
  EXPECT_EQ(Encoded(v, "a?b"), (Ids{3, 0, 4}));
}

TEST(GgufSmallTest, DefaultsOfAbsentKeys) {
  // llama adds BOS. gpt2 adds it if its pre-tokenizer demands it and the file names a BOS token.
  EXPECT_EQ(Encoded(SmallLlama(), "a", {}), (Ids{1, 3}));
  EXPECT_EQ(Encoded(SmallGpt2(), "abc", {}), (Ids{5, 4}));
  GgufVocabulary v = SmallGpt2();
  v.pre = "qwen2";
  EXPECT_EQ(Encoded(v, "abc", {}), (Ids{4}));
  v.add_bos = true;
  v.add_eos = true;
  EXPECT_EQ(Encoded(v, "abc", {}), (Ids{5, 4, 6}));
  v = SmallGpt2();
  v.bos_id.reset();
  EXPECT_EQ(Encoded(v, "abc", {}), (Ids{4}));
  v.token_types.reset();
  EXPECT_EQ(Encoded(v, "abc", {}), (Ids{4}));
}

TEST(GgufSmallTest, TypesOfTokens) {
  GgufVocabulary v = SmallGpt2();
  const auto tokenizer = BuildOrFail(v);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(Encoded(v, "a<x>b<s>"), (Ids{0, 7, 1, 5}));
  EXPECT_EQ(Encoded(v, "a<x>b<s>", {.add_special_tokens = false, .parse_special_tokens = false}),
            (Ids{0, 7, 1}));  // the bytes of "<s>" are not tokens of this vocabulary
  EXPECT_TRUE(tokenizer->IsSpecial(5));
  EXPECT_FALSE(tokenizer->IsSpecial(7));
  EXPECT_FALSE(tokenizer->HasText(8));
  EXPECT_FALSE(tokenizer->Decode(Ids{8}, false).ok());
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->TokenToId("<x>"), 7);
}

// Runs of spaces, as current and earlier converters write them.
TEST(GgufSmallTest, UserDefinedSpaces) {
  GgufVocabulary v = SmallLlama();
  v.tokens[6] = "\xE2\x96\x81";
  for (const absl::string_view spaces : {"  ", "\xE2\x96\x81\xE2\x96\x81"}) {
    v.tokens[7] = spaces;
    (*v.token_types)[7] = 4;
    EXPECT_EQ(Encoded(v, "a  b c"), (Ids{3, 7, 4, 6, 5}));
    EXPECT_EQ(*BuildOrFail(v)->Decode(Ids{3, 7, 4, 6, 5}, false), "a  b c");
  }
}

// If special tokens are not parsed, a piece that equals a control token's text is plain text.
TEST(GgufSmallTest, ControlTokensAreNotMatchedAsPieces) {
  GgufVocabulary v = SmallGpt2();
  v.tokens[7] = "ba";
  (*v.token_types)[7] = 3;
  EXPECT_EQ(Encoded(v, "ba"), (Ids{7}));
  EXPECT_EQ(Encoded(v, "ba", {.add_special_tokens = false, .parse_special_tokens = false}),
            (Ids{1, 0}));
}

TEST(GgufSmallTest, DigestCoversEverythingThatDeterminesIds) {
  const std::string digest = BuildOrFail(SmallLlama())->sha256();
  EXPECT_EQ(digest.size(), 64U);
  EXPECT_EQ(digest, BuildOrFail(SmallLlama())->sha256());
  std::vector<GgufVocabulary> others(5, SmallLlama());
  others[0].tokens[5] = "d";
  (*others[1].scores)[6] = -2;
  others[2].add_bos = false;
  others[3].add_space_prefix = true;
  (*others[4].token_types)[2] = 4;
  for (const GgufVocabulary& other : others) EXPECT_NE(digest, BuildOrFail(other)->sha256());
}

// ---- rejections ---------------------------------------------------------------------------------

void ExpectRefused(const GgufVocabulary& v, absl::string_view field,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto built = Tokenizer::FromGguf(v);
  EXPECT_EQ(built.status().code(), code) << field;
  EXPECT_TRUE(absl::StartsWith(built.status().message(), "small.gguf: tokenizer.ggml."))
      << built.status();
  EXPECT_TRUE(absl::StrContains(built.status().message(), field)) << built.status();
}

TEST(GgufRefusalTest, Tokens) {
  GgufVocabulary v = SmallLlama();
  v.tokens[4] = "a";
  ExpectRefused(v, "tokens[4] is \"a\", which is already used by token 3; tokens must be unique");
  v = SmallLlama();
  v.tokens[4] = "\xFF";
  ExpectRefused(v, "tokens[4] is not UTF-8");
  v = SmallLlama();
  v.tokens.clear();
  v.token_types->clear();
  ExpectRefused(v, "tokens has no tokens");
  v = SmallLlama();
  const std::string longest(513, 'x');
  v.tokens[8] = longest;
  ExpectRefused(v, "tokens[8] has 513 bytes");
  v = SmallLlama();
  (*v.token_types)[8] = 6;
  ExpectRefused(v, "tokens[8] is \"abc\", must be \"<0x00>\"");
}

TEST(GgufRefusalTest, ScoresAndTypes) {
  GgufVocabulary v = SmallLlama();
  v.scores->pop_back();
  ExpectRefused(v, "scores has 8 elements");
  v = SmallLlama();
  (*v.scores)[7] = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(v, "scores[7] is nan");
  (*v.scores)[7] = -std::numeric_limits<float>::infinity();
  ExpectRefused(v, "scores[7] is -inf");
  v.scores.reset();
  ExpectRefused(v, "scores is missing");
  v = SmallLlama();
  (*v.token_types)[3] = 0;
  ExpectRefused(v, "token_type[3] is 0");
  (*v.token_types)[3] = 7;
  ExpectRefused(v, "token_type[3] is 7");
  v.token_types->push_back(1);
  ExpectRefused(v, "token_type has 10 elements");
  v.token_types.reset();
  ExpectRefused(v, "token_type is missing");
  v = SmallLlama();
  (*v.token_types)[0] = 3;
  ExpectRefused(v, "unknown_token_id is missing");
}

TEST(GgufRefusalTest, Merges) {
  GgufVocabulary v = SmallGpt2();
  v.merges.reset();
  ExpectRefused(v, "merges is missing");
  const std::pair<absl::string_view, absl::string_view> broken[] = {
      {"ab", "merges[1] is \"ab\", must be two parts"},
      {"a b c", "merges[1] is \"a b c\", must be two parts"},
      {"a xyz", "\"xyz\" is not in"},
      {"c b", "\"cb\" is not in"},
      {" a", "\"\" is not in"},
  };
  for (const auto& [merge, message] : broken) {
    v = SmallGpt2();
    (*v.merges)[1] = merge;
    ExpectRefused(v, message);
  }
}

TEST(GgufRefusalTest, ModelPreAndIds) {
  GgufVocabulary v = SmallGpt2();
  v.model = "bert";
  ExpectRefused(v, "model \"bert\" is not supported (supported: gpt2, llama, gemma4)",
                absl::StatusCode::kUnimplemented);
  v = SmallGpt2();
  v.pre = "no-such-split";
  ExpectRefused(v, "pre \"no-such-split\" is not supported (supported: gpt-2, ",
                absl::StatusCode::kUnimplemented);
  v.pre.reset();
  ExpectRefused(v, "pre is missing");
  v = SmallGpt2();
  v.add_space_prefix = true;
  ExpectRefused(v, "add_space_prefix is true", absl::StatusCode::kUnimplemented);
  v = SmallGpt2();
  v.bos_id = 8;
  ExpectRefused(v, "bos_token_id is 8, but no token with text has this id");
  v.bos_id.reset();
  v.add_bos = true;
  ExpectRefused(v, "bos_token_id is missing");
  v = SmallGpt2();
  v.add_eos = true;
  v.eos_id = 9;
  ExpectRefused(v, "eos_token_id is 9");
}

}  // namespace
}  // namespace quire::text
