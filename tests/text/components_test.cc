// Cases of normalizer, added tokens, decoder and post-processor that the recorded cases do not
// cover.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tests/text/testdata.h"
#include "text/sentencepiece/precompiled_map.h"
#include "text/subword/prefix_trie.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/encoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/splitter.h"
#include "text/tokenizer/token_model.h"
#include "text/unicode/normal_form.h"
#include "text/unicode/unicode.h"

namespace quire::text {
namespace {

using nlohmann::json;

formats::JsonDocument Parsed(const json& value) {
  auto document = formats::JsonDocument::Parse(value.dump());
  EXPECT_TRUE(document.ok()) << document.status();
  return *std::move(document);
}

// Prints each character with its input span, for example "é[0,3)".
std::string Spans(const AlignedText& text) {
  std::string out;
  for (std::size_t i = 0; i < text.text().size(); ++i) {
    if (i > 0 && (static_cast<unsigned char>(text.text()[i]) & 0xC0) == 0x80) continue;
    absl::StrAppend(&out, i > 0 ? " " : "", text.span(i).begin, "-", text.span(i).end);
  }
  return out;
}

AlignedText Normalized(const json& config, absl::string_view input, std::int32_t offset = 0) {
  const formats::JsonDocument document = Parsed(config);
  const auto normalizer = Normalizer::FromJson(document.root());
  EXPECT_TRUE(normalizer.ok()) << normalizer.status();
  AlignedText text(input, offset, true);
  RegexScratch scratch;
  EXPECT_TRUE(normalizer->Apply(text, scratch).ok());
  return text;
}

TEST(NormalizerTest, CharactersKeepTheirInputSpans) {
  AlignedText text = Normalized({{"type", "NFC"}}, "ae\xCC\x81z", 10);
  EXPECT_EQ(text.text(), "a\xC3\xA9z");
  EXPECT_EQ(Spans(text), "10-11 11-14 14-15");
  text =
      Normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}, " \xC2\xA0x ");
  EXPECT_EQ(text.text(), "x");
  EXPECT_EQ(Spans(text), "3-4");
  text =
      Normalized({{"type", "Replace"}, {"pattern", {{"String", "bb"}}}, {"content", "c"}}, "bbx");
  EXPECT_EQ(text.text(), "cx");
  EXPECT_EQ(Spans(text), "1-2 2-3");
  text = Normalized({{"type", "Prepend"}, {"prepend", "_-"}}, "xy");
  EXPECT_EQ(Spans(text), "0-1 0-1 0-1 1-2");
}

TEST(NormalizerTest, HangulAndHalfWidthMarksComposeAcrossCharacters) {
  // U+1112 U+1161 U+11AB; U+FF76 U+FF9E (its compatibility form is a mark).
  EXPECT_EQ(Normalized({{"type", "NFC"}}, "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB").text(),
            "\xED\x95\x9C");
  EXPECT_EQ(Normalized({{"type", "NFKC"}}, "\xEF\xBD\xB6\xEF\xBE\x9E").text(), "\xE3\x82\xAC");
}

// Marks of two classes alternate. Reordering them by swapping neighbours would take minutes.
TEST(NormalizerTest, LongRunsOfMarksTakeLinearTime) {
  std::string marks = "a";
  for (int i = 0; i < 300000; ++i) marks += "\xCC\x81\xCC\xA3";  // U+0301 U+0323
  for (const NormalForm form :
       {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd}) {
    const auto begin = std::chrono::steady_clock::now();
    const AlignedText result = ToNormalForm(AlignedText(marks, 0, false), form);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    EXPECT_GT(result.text().size(), 1000000U);
  }
}

TEST(PrecompiledMapTest, EqualsTheReference) {
  const std::filesystem::path folder = TokenizerData() / "cases" / "unigram-nmt-nfkc";
  const json tokenizer = json::parse(ReadTestFile(folder / "tokenizer.json"));
  const json& precompiled = tokenizer.at("normalizer").at("normalizers").at(0);
  ASSERT_EQ(precompiled.at("type"), "Precompiled");
  const formats::JsonDocument document = Parsed(precompiled);
  const auto normalizer = Normalizer::FromJson(document.root());
  ASSERT_TRUE(normalizer.ok()) << normalizer.status();
  RegexScratch scratch;
  int changed = 0;
  for (const json& recorded : ReadJsonLines(folder / "precompiled.jsonl")) {
    const std::string text = recorded.at("text");
    AlignedText normalized(text, 0, true);
    ASSERT_TRUE(normalizer->Apply(normalized, scratch).ok());
    EXPECT_EQ(normalized.text(), recorded.at("normalized").get<std::string>()) << Escaped(text);
    changed += normalized.text() != text ? 1 : 0;
  }
  EXPECT_GT(changed, 150);
}

TEST(PrecompiledMapTest, HostileMapsStayInBounds) {
  EXPECT_FALSE(PrecompiledMap::FromBase64("****").ok());
  EXPECT_FALSE(PrecompiledMap::FromBase64("AAAA").ok());
  EXPECT_FALSE(PrecompiledMap::FromBase64("/////w==").ok());
  // The map has one unit of all ones, so every offset points outside.
  const auto map = PrecompiledMap::FromBase64("BAAAAP////8=");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->Apply(AlignedText("abc", 0, false)).text(), "abc");
}

TEST(UnicodeTest, ByteTableIsABijection) {
  for (int byte = 0; byte < 256; ++byte) {
    const absl::string_view character = ByteToUtf8(static_cast<std::uint8_t>(byte));
    EXPECT_EQ(CharToByte(DecodeUtf8At(character, 0).code_point), static_cast<std::uint8_t>(byte));
  }
  EXPECT_EQ(ByteToUtf8(' '), "\u0120");
  EXPECT_EQ(CharToByte(U' '), std::nullopt);
  EXPECT_EQ(CharToByte(U'\u6F22'), std::nullopt);
}

TEST(PrefixTrieTest, FindsLeftmostThenLongest) {
  const PrefixTrie trie({{"ab", 0}, {"abcd", 1}, {"bcde", 2}});
  const auto longest = trie.Find("xabcde", 0);
  ASSERT_TRUE(longest.has_value());
  EXPECT_EQ(longest->begin, 1U);
  EXPECT_EQ(longest->end, 5U);
  EXPECT_EQ(longest->value, 1);
  EXPECT_EQ(trie.Find("xabcxx", 0)->end, 3U);
  EXPECT_EQ(trie.Find("xabcde", 2)->value, 2);
  EXPECT_FALSE(trie.Find("bcd", 0).has_value());
}

std::vector<TokenText> Tokens(const std::vector<std::string>& texts) {
  std::vector<TokenText> tokens;
  for (const std::string& text : texts) tokens.push_back({text, true, false});
  return tokens;
}

std::string DecodeAll(const Decoder& decoder) {
  DecoderStream stream(decoder, false);
  std::string out;
  for (std::int32_t id = 0; id < decoder.size(); ++id) stream.Push(id, out);
  stream.Finish(out);
  return out;
}

json Sequence(const std::vector<json>& parts) {
  return {{"type", "Sequence"}, {"decoders", parts}};
}

json StripOf(absl::string_view content, int start, int stop) {
  return {{"type", "Strip"}, {"content", std::string(content)}, {"start", start}, {"stop", stop}};
}

TEST(DecoderTest, StripsAMultiByteCharacterAcrossTokens) {
  // U+2581 is three byte tokens and is stripped once. The second one stays.
  const formats::JsonDocument config = Parsed(
      Sequence({{{"type", "ByteFallback"}}, {{"type", "Fuse"}}, StripOf("\xE2\x96\x81", 1, 0)}));
  const std::vector<std::string> sign = {"<0xE2>", "<0x96>", "<0x81>"};
  std::vector<std::string> twice = sign;
  twice.insert(twice.end(), sign.begin(), sign.end());
  EXPECT_EQ(DecodeAll(*Decoder::FromJson(config.root(), Tokens(twice))), "\xE2\x96\x81");
  // An incomplete prefix of U+2581 is emitted after all.
  EXPECT_EQ(DecodeAll(*Decoder::FromJson(config.root(), Tokens({"<0xE2>", "<0x96>", "x"}))),
            "\xE2\x96x");
  EXPECT_EQ(DecodeAll(*Decoder::FromJson(config.root(), Tokens({"<0xE2>", "<0x96>"}))), "\xE2\x96");
}

TEST(DecoderTest, StripPerTokenStripsBothEnds) {
  const formats::JsonDocument config = Parsed(Sequence({StripOf("_", 1, 2)}));
  EXPECT_EQ(DecodeAll(*Decoder::FromJson(config.root(), Tokens({"__a___", "_", "", "b_"}))),
            "_a_b");
}

TEST(DecoderTest, RejectsDecodersThatCannotBeStreamed) {
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}};
  for (const auto& [parts, field] : std::vector<std::pair<std::vector<json>, std::string>>{
           {{{{"type", "Fuse"}}, replace}, "decoder.decoders[1].type"},
           {{{{"type", "ByteFallback"}}, replace}, "decoder.decoders[1].type"},
           {{{{"type", "Fuse"}}, StripOf(" ", 0, 1)}, "decoder.decoders[1].stop"},
           {{{{"type", "Fuse"}}, StripOf(" ", 1, 0), StripOf(" ", 1, 0)},
            "decoder.decoders[2].type"},
           {{{{"type", "CTC"}}}, "decoder.decoders[0].type"}}) {
    const formats::JsonDocument document = Parsed({{"decoder", Sequence(parts)}});
    const auto decoder = Decoder::FromJson(*document.root().Find("decoder"), Tokens({"a"}));
    EXPECT_EQ(decoder.status().code(), absl::StatusCode::kUnimplemented) << field;
    EXPECT_TRUE(absl::StrContains(decoder.status().message(), field)) << decoder.status();
  }
}

TEST(PostProcessorTest, RejectsASecondTemplate) {
  const json one = {{"type", "TemplateProcessing"},
                    {"single", json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
                    {"special_tokens", json::object()}};
  const formats::JsonDocument document =
      Parsed({{"type", "Sequence"}, {"processors", json::array({one, one})}});
  const auto processor =
      PostProcessor::FromJson(document.root(), [](std::int32_t) { return true; });
  EXPECT_TRUE(absl::StrContains(processor.status().message(), "processors[1] is a second"))
      << processor.status();
}

TEST(EncoderTest, KeepsWorkingWhenMovedAfterUse) {
  const formats::JsonDocument null = Parsed(nullptr);
  const formats::JsonDocument bpe = Parsed({{"type", "BPE"},
                                            {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}},
                                            {"merges", json::array({json::array({"a", "b"})})}});
  auto added = AddedTokens::FromTokens({});
  auto normalizer = Normalizer::FromJson(null.root());
  auto splitter = Splitter::FromJson(null.root());
  auto model = TokenModel::FromJson(bpe.root());
  ASSERT_TRUE(added.ok() && normalizer.ok() && splitter.ok() && model.ok()) << model.status();
  Encoder first({.added = *std::move(added),
                 .normalizer = *std::move(normalizer),
                 .splitter = *std::move(splitter),
                 .model = *std::move(model),
                 .post_processor = PostProcessor::Around({}, {})},
                10);
  ASSERT_TRUE(first.Encode("ab", {}, false).ok());
  const Encoder second = std::move(first);
  const auto tokens = second.Encode("ab", {}, false);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_EQ(tokens->size(), 1u);
  EXPECT_EQ(tokens->front().id, 2);
}

TEST(SplitterTest, OldFormWithoutPrefixMeansNever) {
  const formats::JsonDocument document =
      Parsed({{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}});
  EXPECT_FALSE(Splitter::FromJson(document.root()).ok());
}

TEST(JsonValueTest, BoundsDepthAndRejectsDuplicates) {
  const std::string deep(100, '[');
  EXPECT_TRUE(absl::StrContains(formats::JsonDocument::Parse(deep).status().message(),
                                "nests more than 64"));
  EXPECT_TRUE(formats::JsonDocument::Parse(std::string(64, '[') + std::string(64, ']')).ok());
  const auto twice = formats::JsonDocument::Parse(R"({"a":{"b":[0,{"c":1,"c":2}]}})");
  EXPECT_TRUE(absl::StrContains(twice.status().message(), "a.b[1] has the key \"c\" twice"))
      << twice.status();
  const auto third = formats::JsonDocument::Parse("[[[]]]", {.max_depth = 2});
  EXPECT_TRUE(absl::StrContains(third.status().message(), "nests more than 2")) << third.status();
  EXPECT_FALSE(formats::JsonDocument::Parse("[NaN]").ok());
  EXPECT_FALSE(formats::JsonDocument::Parse("[1e999]").ok());
  EXPECT_FALSE(formats::JsonDocument::Parse("[1] x").ok());
}

TEST(JsonValueTest, BoundsKeysAndValuesExceptNumbers) {
  const auto parse = [](const char* text) {
    return formats::JsonDocument::Parse(text, {.max_nodes = 4}).status();
  };
  EXPECT_TRUE(parse(R"({"a": [{}]})").ok());
  EXPECT_TRUE(parse(R"({"a": [[1, 2, 3, 4, 5, 6.5, -7]]})").ok());
  for (const char* const text :
       {R"({"a": [{}, {}]})", R"({"a": {"b": ""}})", R"([[], "", null, true])"}) {
    EXPECT_TRUE(absl::StrContains(parse(text).message(), "exceeds the limit of 4 keys and values"))
        << text;
  }
}

}  // namespace
}  // namespace quire::text
