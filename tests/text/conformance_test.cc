// Compares ids, decoded text and stream of every recorded case of every tokenizer with the
// reference.

#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/text/testdata.h"
#include "text/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr std::size_t kTokenizers = 92;

std::vector<std::string> AllEscaped(const std::vector<std::string>& texts) {
  std::vector<std::string> escaped;
  for (const std::string& text : texts) escaped.push_back(Escaped(text));
  return escaped;
}

// quire's results for one case, as one value to compare and print.
struct Outcome {
  Ids ids;
  std::string decode;
  std::string decode_skip;
  std::vector<std::string> stream;
  std::vector<std::string> stream_skip;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << "ids " << testing::PrintToString(outcome.ids) << "\ndecode "
             << Escaped(outcome.decode) << "\nskip   " << Escaped(outcome.decode_skip)
             << "\nstream " << testing::PrintToString(AllEscaped(outcome.stream))
             << "\nstream_skip " << testing::PrintToString(AllEscaped(outcome.stream_skip)) << "\n";
}

std::vector<std::string> Stream(const Tokenizer& tokenizer, const Ids& ids, bool skip) {
  Detokenizer detokenizer(tokenizer, skip);
  std::vector<std::string> steps;
  for (const std::int32_t id : ids) steps.push_back(detokenizer.Push(id));
  steps.push_back(detokenizer.Finish());
  return steps;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += part;
  return joined;
}

Outcome Expected(const json& recorded) {
  Outcome expected;
  expected.ids = recorded.at("ids").get<Ids>();
  expected.decode = recorded.contains("decode") ? recorded["decode"].get<std::string>()
                                                : recorded.at("text").get<std::string>();
  expected.decode_skip = recorded.value("decode_skip", expected.decode);
  if (recorded.contains("stream")) {
    expected.stream = recorded["stream"].get<std::vector<std::string>>();
    expected.stream_skip = recorded.value("stream_skip", expected.stream);
  }
  return expected;
}

class ConformanceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = TokenizerData() / "cases" / GetParam();
    auto loaded = Tokenizer::Load(folder_);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
  }

  // An unknown id is an error, whatever the reference package does with it.
  void CheckError(const json& recorded) {
    const auto ids = recorded.at("ids").get<std::vector<std::int64_t>>();
    Ids narrow;
    for (const std::int64_t id : ids) narrow.push_back(static_cast<std::int32_t>(id));
    EXPECT_EQ(tokenizer_->Decode(narrow, false).status().code(), absl::StatusCode::kInvalidArgument)
        << recorded.at("name");
  }

  Outcome Actual(const json& recorded) {
    Outcome actual;
    if (recorded.contains("text")) {
      const std::string text = recorded["text"];
      const EncodeOptions options{.add_special_tokens = recorded.at("add_special_tokens")};
      auto ids = tokenizer_->Encode(text, options);
      EXPECT_TRUE(ids.ok()) << ids.status();
      if (ids.ok()) actual.ids = *ids;
    } else {
      actual.ids = recorded.at("ids").get<Ids>();
    }
    // Decoding starts from the recorded ids, so that one error is reported once.
    const Ids ids = recorded.at("ids").get<Ids>();
    auto decode = tokenizer_->Decode(ids, false);
    auto decode_skip = tokenizer_->Decode(ids, true);
    EXPECT_TRUE(decode.ok() && decode_skip.ok()) << decode.status();
    actual.decode = decode.value_or("");
    actual.decode_skip = decode_skip.value_or("");
    const auto stream = Stream(*tokenizer_, ids, false);
    const auto stream_skip = Stream(*tokenizer_, ids, true);
    EXPECT_EQ(Join(stream), actual.decode);
    EXPECT_EQ(Join(stream_skip), actual.decode_skip);
    if (recorded.contains("stream")) {
      actual.stream = stream;
      actual.stream_skip = stream_skip;
    }
    return actual;
  }

  std::filesystem::path folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(ConformanceTest, EqualsReference) {
  const std::vector<json> cases = ReadJsonLines(folder_ / "cases.jsonl");
  ASSERT_GE(cases.size(), 50U);
  int required = 0;
  int newer_unicode_differs = 0;
  for (const json& recorded : cases) {
    SCOPED_TRACE(absl::StrCat("case ", recorded.at("name").get<std::string>()));
    if (recorded.contains("error")) {
      CheckError(recorded);
      ++required;
      continue;
    }
    const Outcome actual = Actual(recorded);
    const Outcome expected = Expected(recorded);
    if (recorded.value("unicode_data_differs", false)) {
      newer_unicode_differs += actual == expected ? 0 : 1;
      continue;
    }
    EXPECT_EQ(actual, expected);
    ++required;
  }
  EXPECT_GE(required, 40);
  RecordProperty("cases", required);
  RecordProperty("differ_by_unicode_version", newer_unicode_differs);
  if (newer_unicode_differs > 0) {
    std::cout << GetParam() << ": " << newer_unicode_differs
              << " cases differ because the reference has other Unicode data\n";
  }
}

// Tokens that represent input text cover it from left to right with whole characters.
TEST_P(ConformanceTest, PiecesHaveTheIdsAndOrderedSpans) {
  for (const json& recorded : ReadJsonLines(folder_ / "cases.jsonl")) {
    if (!recorded.contains("text")) continue;
    const std::string text = recorded["text"];
    const EncodeOptions options{.add_special_tokens = recorded.at("add_special_tokens")};
    const auto ids = tokenizer_->Encode(text, options);
    const auto pieces = tokenizer_->EncodeWithPieces(text, options);
    ASSERT_TRUE(ids.ok() && pieces.ok());
    ASSERT_EQ(ids->size(), pieces->size());
    if (const auto longest = tokenizer_->max_token_bytes()) {
      EXPECT_LE(text.size(), ids->size() * *longest) << recorded.at("name");
    }
    std::int32_t last_begin = 0;
    for (std::size_t i = 0; i < pieces->size(); ++i) {
      const TokenPiece& piece = (*pieces)[i];
      EXPECT_EQ(piece.id, (*ids)[i]);
      EXPECT_EQ(piece.piece, tokenizer_->TokenBytes(piece.id));
      EXPECT_EQ(piece.special, tokenizer_->IsSpecial(piece.id));
      if (piece.start_byte < 0) {
        EXPECT_EQ(piece.end_byte, -1);
        EXPECT_TRUE(options.add_special_tokens);
        continue;
      }
      EXPECT_GE(piece.start_byte, last_begin) << recorded.at("name");
      EXPECT_GE(piece.end_byte, piece.start_byte) << recorded.at("name");
      EXPECT_LE(static_cast<std::size_t>(piece.end_byte), text.size());
      last_begin = piece.start_byte;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, ConformanceTest,
                         testing::ValuesIn(FolderNames(TokenizerData() / "cases")),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(ConformanceFoldersTest, AllTokenizersExist) {
  EXPECT_EQ(FolderNames(TokenizerData() / "cases").size(), kTokenizers);
}

TEST(ConformanceFoldersTest, EveryKindExists) {
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"gpt2-bytelevel", "BPE (tokenizer.json)"},
      {"unigram-byte-fallback", "Unigram (tokenizer.json)"},
      {"llama2-sentencepiece", "SentencePiece BPE (tokenizer.model)"},
      {"unigram-nmt-nfkc-sentencepiece", "SentencePiece unigram (tokenizer.model)"},
      {"tekken-file", "byte ranks (tekken.json)"},
      {"tiktoken-cl100k", "byte ranks (tokenizer.tiktoken)"},
  };
  for (const auto& [folder, kind] : kinds) {
    const auto loaded = Tokenizer::Load(TokenizerData() / "cases" / folder);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->kind(), kind);
  }
}

}  // namespace
}  // namespace quire::text
