// Reading of the sentence-transformers files of a model, compared with recorded cases.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "models/families/read_model_config.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;

const char* NameOf(PoolingMode mode) {
  switch (mode) {
    case PoolingMode::kLast:
      return "last";
    case PoolingMode::kMean:
      return "mean";
    case PoolingMode::kCls:
      return "cls";
  }
  return "";
}

json ReadJson(const std::string& path) {
  return json::parse(ReadTestFile("embeddings/" + path));
}

EditableFiles FilesOf(const json& one) {
  EditableFiles files;
  json config = ReadJson("models/qwen3-embed-last-bf16/config.json");
  if (one.contains("config_changes")) config.update(one["config_changes"]);
  files.Set("config.json", config.dump());
  for (const auto& [name, content] : one["files"].items()) {
    files.Set(name, content.is_string() ? content.get<std::string>() : content.dump());
  }
  return files;
}

TEST(PoolingConfigTest, EqualsTheRecordingOrNamesTheUnsupportedPart) {
  const json cases = ReadJson("pooling_configs.json")["cases"];
  EXPECT_EQ(cases.size(), 34u);
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const EditableFiles files = FilesOf(one);
    const auto config = ReadModelConfig(files.Files());
    const json& expect = one["expect"];
    if (expect.contains("pooling")) {
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(NameOf(config->pooling.mode), expect["pooling"].get<std::string>());
      EXPECT_EQ(config->pooling.normalize, expect["normalize"].get<bool>());
      continue;
    }
    ASSERT_FALSE(config.ok());
    const json& names = expect["error_names_one_of"];
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const json& name) {
      return absl::StrContains(config.status().message(), name.get<std::string>());
    })) << config.status();
  }
}

TEST(PoolingConfigTest, RejectsSettingsThatChangeTheText) {
  json one = {{"files", {{"1_Pooling/config.json", {{"pooling_mode", "mean"}}}}}};
  EXPECT_TRUE(ReadModelConfig(FilesOf(one).Files()).ok());
  one["files"]["config_sentence_transformers.json"] = {{"default_prompt_name", "query"}};
  EXPECT_TRUE(absl::StrContains(ReadModelConfig(FilesOf(one).Files()).status().message(),
                                "default_prompt_name \"query\" is not supported"));
  one["files"]["config_sentence_transformers.json"] = {{"default_prompt_name", nullptr}};
  one["files"]["sentence_bert_config.json"] = {{"do_lower_case", true}};
  EXPECT_TRUE(absl::StrContains(ReadModelConfig(FilesOf(one).Files()).status().message(),
                                "do_lower_case true is not supported"));
}

TEST(PoolingConfigTest, ReadsTheTokensOfAYesNoReranker) {
  const EditableFiles flat("embeddings/models/qwen3-rerank-yesno-bf16");
  EditableFiles files = flat;
  files.Set("1_LogitScore/config.json", R"({"true_token_id": 263, "false_token_id": 262})");
  const auto config = ReadModelConfig(files.Files());
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->pooling.logit_score.has_value());
  EXPECT_EQ(config->pooling.logit_score->true_token_id, 263);
  EXPECT_EQ(config->pooling.logit_score->false_token_id, 262);
  files.Set("1_LogitScore/config.json", R"({"true_token_id": 263, "false_token_id": 352})");
  EXPECT_TRUE(absl::StrContains(ReadModelConfig(files.Files()).status().message(),
                                "1_LogitScore/config.json: false_token_id is 352"));
  files.Set("1_LogitScore/config.json", R"({"true_token_id": 263, "false_token_id": null})");
  EXPECT_TRUE(absl::StrContains(ReadModelConfig(files.Files()).status().message(),
                                "false_token_id null is not supported"));
}

TEST(PoolingConfigTest, SupportsHeadlessDecodersAndClassifiers) {
  const auto read = [](const std::string& folder) {
    return runtime::ReadModelSpec(EditableFiles("embeddings/models/" + folder).Files(),
                                  DeviceKind::kCpu);
  };
  const auto bare = read("mistral-embed-plain-f16");
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->config.output, ModelOutput::kHidden);
  EXPECT_FALSE(bare->spec.has_head);
  const auto labels = read("llama-classify3-bf16");
  ASSERT_TRUE(labels.ok()) << labels.status();
  EXPECT_EQ(labels->config.labels, (std::vector<std::string>{"calm", "angry", "sad"}));
  EXPECT_EQ(labels->spec.num_labels, 3u);
  EXPECT_FALSE(labels->spec.has_head);
}

TEST(PoolingConfigTest, RejectsInconsistentLabels) {
  const auto error_with = [](const json& changes) {
    EditableFiles files;
    json config = ReadJson("models/llama-classify3-bf16/config.json");
    config.merge_patch(changes);
    files.Set("config.json", config.dump());
    return std::string(ReadModelConfig(files.Files()).status().message());
  };
  EXPECT_EQ(error_with(json::object()), "");
  EXPECT_TRUE(absl::StrContains(error_with({{"num_labels", 2}}),
                                "num_labels is 2, id2label has 3 entries"));
  EXPECT_TRUE(absl::StrContains(error_with({{"num_labels", 0}}), "num_labels"));
  EXPECT_TRUE(absl::StrContains(error_with({{"id2label", {{"1", nullptr}, {"5", "x"}}}}),
                                "id2label.1 is missing"));
}

}  // namespace
}  // namespace quire::models
