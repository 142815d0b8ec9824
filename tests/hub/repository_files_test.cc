#include "hub/repository_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace quire::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kCommit(40, 'c');
const std::string kGit(40, 'a');
const std::string kSha(64, 'b');

std::string Answer(absl::string_view siblings) {
  return absl::StrCat(R"({"id":"org/name","sha":")", kCommit, R"(","siblings":[)", siblings, "]}");
}

std::vector<RepositoryFile> Files(const std::vector<std::string>& names) {
  std::vector<RepositoryFile> files;
  files.reserve(names.size());
  for (const std::string& name : names)
    files.push_back({.name = name, .size_bytes = 1, .hash = kSha});
  return files;
}

std::vector<std::string> Select(const std::vector<std::string>& names,
                                const std::string& gguf = "") {
  const auto selected = SelectFiles(Files(names), {"org/name", "", gguf});
  EXPECT_TRUE(selected.ok()) << selected.status();
  std::vector<std::string> result;
  if (selected.ok()) {
    for (const RepositoryFile& file : *selected) result.push_back(file.name);
  }
  return result;
}

TEST(ParseListingTest, ReadsHashesAndSizes) {
  const auto listing = ParseListing(Answer(
      absl::StrCat(R"({"rfilename":"config.json","size":12,"blobId":")", kGit, R"("},)",
                   R"({"rfilename":"model.safetensors","size":134,"blobId":")", kGit,
                   R"(","lfs":{"sha256":")", kSha, R"(","size":5000000000,"pointerSize":134}},)",
                   R"({"rfilename":"1_Pooling/config.json"})")));
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->commit, kCommit);
  ASSERT_EQ(listing->files.size(), 3U);
  EXPECT_EQ(listing->files[0].hash, kGit);
  EXPECT_EQ(listing->files[0].size_bytes, 12);
  EXPECT_EQ(listing->files[1].hash, kSha);
  EXPECT_EQ(listing->files[1].size_bytes, 5'000'000'000);
  EXPECT_EQ(listing->files[2].hash, "");
}

TEST(ParseListingTest, RefusesHostileAnswers) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "not JSON"},
      {"[]", "object"},
      {R"({"siblings":[]})", "sha"},
      {R"({"sha":"main","siblings":[]})", "sha"},
      {absl::StrCat(R"({"sha":")", kCommit, R"(","siblings":{}})"), "siblings"},
      {Answer("1"), "siblings[0]"},
      {Answer(R"({"name":"x"})"), "rfilename"},
      {Answer(R"({"rfilename":"../../.bashrc"})"), "../../.bashrc"},
      {Answer(R"({"rfilename":"/etc/passwd"})"), "/etc/passwd"},
      {Answer(R"({"rfilename":"a\\b"})"), "relative path"},
      {Answer(R"({"rfilename":"a\u0000b"})"), "relative path"},
      {Answer(R"({"rfilename":"a","size":-1})"), "size"},
      {Answer(R"({"rfilename":"a","size":1e300})"), "size"},
      {Answer(R"({"rfilename":"a","size":99999999999999999})"), "size"},
      {Answer(R"({"rfilename":"a","size":1,"blobId":"../x"})"), "hash"},
      {Answer(R"({"rfilename":"a","lfs":3})"), "lfs"},
      {Answer(R"({"rfilename":"a"},{"rfilename":"a"})"), "twice"}};
  for (const auto& [json, expected] : cases) {
    const absl::Status status = ParseListing(json).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected)) << json;
  }
}

TEST(ParseListingTest, LimitsTheNumberOfFilesAndBytes) {
  std::string many;
  for (std::size_t i = 0; i <= kMaxListedFiles; ++i) {
    absl::StrAppend(&many, i == 0 ? "" : ",", R"({"rfilename":"f)", i, R"("})");
  }
  EXPECT_THAT(std::string(ParseListing(Answer(many)).status().message()), HasSubstr("100000"));
  EXPECT_FALSE(ParseListing(std::string(kMaxListingBytes + 1, ' ')).ok());
}

TEST(ParseListingTest, SurvivesDamagedAnswers) {
  const std::string sound = Answer(absl::StrCat(
      R"({"rfilename":"model.safetensors","size":134,"lfs":{"sha256":")", kSha, R"(","size":9}})"));
  for (std::size_t size = 0; size < sound.size(); ++size) {
    EXPECT_FALSE(ParseListing(sound.substr(0, size)).ok());
  }
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = sound;
    char& byte = damaged[random() % damaged.size()];
    byte = static_cast<char>(byte ^ (1 << (random() % 8)));
    const auto listing = ParseListing(damaged);
    if (!listing.ok()) continue;
    EXPECT_TRUE(IsCommit(listing->commit));
    for (const RepositoryFile& file : listing->files) EXPECT_TRUE(CheckFileName(file.name).ok());
  }
}

TEST(SelectFilesTest, TakesWhatQuiredReads) {
  EXPECT_THAT(
      Select({".gitattributes",
              "README.md",
              "config.json",
              "generation_config.json",
              "model-00001-of-00002.safetensors",
              "model-00002-of-00002.safetensors",
              "model.safetensors.index.json",
              "pytorch_model.bin",
              "pytorch_model.bin.index.json",
              "onnx/model.onnx",
              "tf_model.h5",
              "original/consolidated.00.pth",
              "tokenizer.json",
              "tokenizer_config.json",
              "special_tokens_map.json",
              "chat_template.jinja",
              "additional_chat_templates/tool_use.jinja",
              "consolidated.safetensors",
              "training_args.bin",
              "model.Q4_K_M.gguf"}),
      ElementsAre("config.json", "generation_config.json", "model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                  "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                  "chat_template.jinja", "additional_chat_templates/tool_use.jinja"));
}

TEST(SelectFilesTest, TakesTheSingleFileInPlaceOfShards) {
  EXPECT_THAT(Select({"model-00001-of-00001.safetensors", "model.fp16.safetensors",
                      "model.safetensors", "model.safetensors.index.json"}),
              ElementsAre("model.safetensors", "model.safetensors.index.json"));
  EXPECT_THAT(
      Select({"adapter_model.safetensors", "model.safetensors.index.json", "part-1.safetensors"}),
      ElementsAre("model.safetensors.index.json", "part-1.safetensors"));
}

TEST(SelectFilesTest, TakesModulesOfSentenceTransformers) {
  EXPECT_THAT(
      Select({"1_Pooling/config.json", "2_Dense/model.safetensors", "2_Normalize/config.json",
              "config.json", "config_sentence_transformers.json", "model.safetensors",
              "modules.json", "openvino/config.json", "sentence_bert_config.json"}),
      ElementsAre("1_Pooling/config.json", "2_Normalize/config.json", "config.json",
                  "config_sentence_transformers.json", "model.safetensors", "modules.json",
                  "sentence_bert_config.json"));
}

TEST(SelectFilesTest, TakesOneGgufFileWithItsShards) {
  const std::vector<std::string> names = {"a-00001-of-00002.gguf", "a-00002-of-00002.gguf",
                                          "b.gguf", "config.json"};
  EXPECT_THAT(Select(names, "b.gguf"), ElementsAre("b.gguf"));
  EXPECT_THAT(Select(names, "a-00001-of-00002.gguf"),
              ElementsAre("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"));
  const absl::Status absent = SelectFiles(Files(names), {"org/name", "", "c.gguf"}).status();
  EXPECT_TRUE(absl::IsNotFound(absent));
  EXPECT_THAT(std::string(absent.message()),
              HasSubstr("\n  a-00001-of-00002.gguf (2 B)\n  b.gguf"));
}

TEST(SelectFilesTest, ListsGgufFilesIfThereIsNothingElse) {
  const absl::Status status =
      SelectFiles(Files({"README.md", "x.Q4.gguf", "x.Q8.gguf"}), {"org/name", "", ""}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("choose one with --gguf FILE:\n  x.Q4.gguf (1 B)\n  x.Q8.gguf (1 B)"));
}

TEST(SelectFilesTest, NamesWeightsThatAreNotRead) {
  const absl::Status other =
      SelectFiles(Files({"config.json", "pytorch_model.bin"}), {"org/name", "", ""}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other));
  EXPECT_THAT(std::string(other.message()), HasSubstr("pytorch_model.bin"));
  const absl::Status adapter =
      SelectFiles(Files({"adapter_model.safetensors"}), {"org/name", "", ""}).status();
  EXPECT_THAT(std::string(adapter.message()), HasSubstr("such as adapter_model.safetensors"));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(SelectFiles(Files({"README.md"}), {"org/name", "", ""}).status()));
}

}  // namespace
}  // namespace quire::hub
