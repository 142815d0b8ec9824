// Broken tokenizer.json files are rejected with a message that names the field. Truncations and
// flipped bits of good files give an error or a working tokenizer.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tests/text/testdata.h"
#include "text/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {
namespace {

using nlohmann::json;

std::filesystem::path Malformed() {
  return TokenizerData() / "malformed";
}

constexpr absl::string_view kSample = "Hello world, 123 \xE6\xBC\xA2\xF0\x9F\x98\x80 <s>A\n";

// A loaded tokenizer must encode, decode and stream without a crash.
void Exercise(const Tokenizer& tokenizer) {
  const auto ids = tokenizer.Encode(kSample, {});
  if (!ids.ok()) return;
  const auto pieces = tokenizer.EncodeWithPieces(kSample, {});
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  EXPECT_EQ(pieces->size(), ids->size());
  const auto text = tokenizer.Decode(*ids, false);
  ASSERT_TRUE(text.ok()) << text.status();
  Detokenizer detokenizer(tokenizer, false);
  std::string streamed;
  for (const std::int32_t id : *ids) streamed += detokenizer.Push(id);
  streamed += detokenizer.Finish();
  EXPECT_EQ(streamed, *text);
  EXPECT_FALSE(FirstInvalidUtf8(streamed).has_value());
}

class MalformedTest : public testing::TestWithParam<std::string> {};

TEST_P(MalformedTest, IsRejectedWithTheField) {
  const json index = json::parse(ReadTestFile(Malformed() / "index.json"));
  const std::string config = ReadTestFile(Malformed() / "base" / "tokenizer_config.json");
  for (const json& entry : index.at("cases")) {
    if (entry.at("file") != GetParam()) continue;
    const auto loaded = Tokenizer::FromJson(ReadTestFile(Malformed() / GetParam()), config);
    if (loaded.ok()) {
      EXPECT_EQ(entry.at("accept"), "either") << "was accepted: " << entry.at("why");
      Exercise(**loaded);
      return;
    }
    const std::string message(loaded.status().message());
    EXPECT_TRUE(absl::StartsWith(message, "tokenizer.json: ")) << message;
    if (!entry.at("field").is_null()) {
      EXPECT_TRUE(absl::StrContains(message, entry["field"].get<std::string>())) << message;
    }
    return;
  }
  FAIL() << GetParam() << " is not in index.json";
}

std::vector<std::string> MalformedFiles() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Malformed())) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "index.json") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedTest, testing::ValuesIn(MalformedFiles()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
                           return name;
                         });

TEST(MalformedFilesTest, AllFilesExistAndTheBaseLoads) {
  EXPECT_EQ(MalformedFiles().size(), 52U);
  const auto loaded = Tokenizer::Load(Malformed() / "base");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Exercise(**loaded);
}

TEST(MalformedFilesTest, BrokenConfigNamesItsFileAndField) {
  const std::string good = ReadTestFile(Malformed() / "base" / "tokenizer.json");
  for (const auto& [config, field] : std::vector<std::pair<std::string, std::string>>{
           {"{", "tokenizer_config.json: the document is not JSON"},
           {"[]", "tokenizer_config.json: the document is an array"},
           {R"({"eos_token": 3})", "tokenizer_config.json: eos_token is a number"},
           {R"({"bos_token": {}})", "tokenizer_config.json: bos_token.content is missing"}}) {
    const auto loaded = Tokenizer::FromJson(good, config);
    EXPECT_TRUE(absl::StrContains(loaded.status().message(), field)) << loaded.status();
  }
}

TEST(MalformedFilesTest, FolderWithoutTokenizerIsNotFound) {
  const auto loaded = Tokenizer::Load(Malformed() / "base" / "nothing");
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kNotFound);
}

// Uses the smallest file of each style of component.
const char* const kReaders[] = {"llama2-style", "deepseek-style", "metaspace-first-normalized",
                                "template-many-ids", "decoder-strip-per-token"};

TEST(MalformedFilesTest, RejectsEveryTruncation) {
  for (const char* name : kReaders) {
    const std::string good = ReadTestFile(TokenizerData() / "cases" / name / "tokenizer.json");
    const std::size_t end = good.find_last_of('}');
    for (std::size_t size = 0; size <= end; size += 1 + end / 150) {
      EXPECT_FALSE(Tokenizer::FromJson(good.substr(0, size), "").ok()) << name << " " << size;
    }
  }
}

TEST(MalformedFilesTest, SurvivesFlippedBits) {
  std::mt19937 random(20240607);
  int refused = 0;
  int loaded_count = 0;
  for (const char* name : kReaders) {
    const std::string good = ReadTestFile(TokenizerData() / "cases" / name / "tokenizer.json");
    // Most of a file is vocabulary, so half of the flips go to the pipeline before it.
    const std::size_t pipeline = good.find("\"vocab\"");
    for (int round = 0; round < 120; ++round) {
      std::string bad = good;
      const std::size_t range = round % 2 == 0 ? std::min(pipeline, good.size()) : good.size();
      for (int flips = 1 + round % 3; flips > 0; --flips) {
        bad[random() % range] ^= static_cast<char>(1U << (random() % 8));
      }
      const auto loaded = Tokenizer::FromJson(bad, "");
      loaded.ok() ? ++loaded_count : ++refused;
      if (loaded.ok()) Exercise(**loaded);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(loaded_count, 10);
}

// Replaces each component by random pieces of JSON.
TEST(MalformedFilesTest, SurvivesSwappedValues) {
  const json good =
      json::parse(ReadTestFile(TokenizerData() / "cases" / "llama2-style" / "tokenizer.json"));
  const std::vector<json> values = {nullptr,
                                    true,
                                    -1,
                                    0,
                                    1e300,
                                    "",
                                    "\xE2\x96\x81",
                                    json::array(),
                                    json::object(),
                                    json::array({json::object()}),
                                    18446744073709551615ULL};
  std::vector<json::json_pointer> places;  // all values outside vocabulary and merges
  const json flat = good.flatten();
  for (const auto& [path, value] : flat.items()) {
    if (absl::StrContains(path, "/vocab/") || absl::StrContains(path, "/merges/")) continue;
    for (json::json_pointer place(path); !place.empty(); place.pop_back()) {
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
  }
  int refused = 0;
  for (const json::json_pointer& place : places) {
    for (const json& value : values) {
      json bad = good;
      bad[place] = value;
      const auto loaded = Tokenizer::FromJson(bad.dump(), "");
      if (loaded.ok()) {
        Exercise(**loaded);
      } else {
        EXPECT_FALSE(loaded.status().message().empty());
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace quire::text
