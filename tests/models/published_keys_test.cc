// Keys of published models that the families' own libraries handle loosely, and their meaning here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json ConfigOf(const std::string& folder) {
  return json::parse(ReadTestFile("models/" + folder + "/config.json"));
}

absl::StatusOr<runtime::CheckedSpec> Read(const json& config) {
  EditableFiles files;
  files.Set("config.json", config.dump());
  return runtime::ReadModelSpec(files.Files(), DeviceKind::kCpu);
}

ModelSpec SpecOf(const json& config) {
  const auto read = Read(config);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->spec : ModelSpec();
}

std::string ErrorOf(const json& config) {
  const auto read = Read(config);
  EXPECT_FALSE(read.ok()) << config;
  return std::string(read.status().message());
}

// Phi-3-mini-128k has a window of 262144 for 131072 positions.
TEST(PublishedKeysTest, WindowsBeyondTheContextCountAsNone) {
  json phi = ConfigOf("phi3-bf16");
  const auto heads = [](const json& config, std::size_t layer) {
    return SpecOf(config).layers[layer].heads;
  };
  const auto positions = phi["max_position_embeddings"].get<std::uint32_t>();
  phi["sliding_window"] = positions - 1;
  EXPECT_EQ(heads(phi, 0).window, positions - 1);
  for (const std::uint32_t window : {positions, 2 * positions}) {
    phi["sliding_window"] = window;
    EXPECT_EQ(heads(phi, 0).window, 0u);
  }
  // Other properties of windowed layers remain: a rope table, and the rule for other layers.
  json gemma = ConfigOf("gemma3-text-bf16");
  gemma["sliding_window"] = gemma["max_position_embeddings"];
  EXPECT_EQ(heads(gemma, 0).window, 0u);
  EXPECT_EQ(heads(gemma, 0).rope, 1);
  EXPECT_EQ(heads(gemma, 5).rope, 0);
  EXPECT_EQ(SpecOf(gemma).layers[0].cache_group, SpecOf(gemma).layers[5].cache_group);
  // yarn extends the positions.
  json qwen = ConfigOf("qwen2-bf16");
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 0;
  qwen["sliding_window"] = 1024;
  EXPECT_EQ(heads(qwen, 0).window, 0u);
  qwen["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  EXPECT_EQ(heads(qwen, 0).window, 1024u);
}

// The keys occur in Qwen3-Coder-30B-A3B and DeepSeek-R1-0528-Qwen3-8B.
TEST(PublishedKeysTest, ReadsPublishedQwen3Keys) {
  for (const char* folder : {"qwen3-hd128-bf16", "qwen3-moe-bf16"}) {
    json config = ConfigOf(folder);
    const ModelSpec plain = SpecOf(config);
    for (const json& value : {json(true), json(nullptr)}) {
      config["use_qk_norm"] = value;
      const auto read = Read(config);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->spec, plain);
      for (const std::string& warning : read->config.warnings) {
        EXPECT_THAT(warning, testing::Not(HasSubstr("use_qk_norm")));
      }
    }
    config["use_qk_norm"] = false;
    EXPECT_THAT(ErrorOf(config), HasSubstr("use_qk_norm false is not supported by qwen3"));
  }
  json config = ConfigOf("qwen3-hd128-bf16");
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const ModelSpec without = SpecOf(config);
  config["rope_scaling"]["attn_factor"] = 0.8782488562869419;
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->spec, without);
  EXPECT_FLOAT_EQ(read->spec.rope_tables[0].attention_factor, 1.1386294f);  // 0.1 ln 4 + 1
  EXPECT_THAT(read->config.warnings,
              testing::Contains(testing::AllOf(HasSubstr("rope_scaling.attn_factor 0.878"),
                                               HasSubstr("another reader"))));
  config["rope_scaling"]["rope_type"] = "linear";
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.attn_factor"));
}

}  // namespace
}  // namespace quire::models
