// The configuration of Gemma 4: what its keys mean, which values are refused, and that GPUs refuse
// the family by the name of an option.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "formats/model_files.h"
#include "models/weights/weights.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kDense = "gemma4-bf16";
constexpr const char* kMoe = "gemma4-moe-bf16";

json ConfigOf(const std::string& folder) {
  return json::parse(ReadTestFile("models/" + folder + "/config.json"));
}

absl::StatusOr<runtime::CheckedSpec> Read(const json& config,
                                          DeviceKind device = DeviceKind::kCpu) {
  EditableFiles files;
  files.Set("config.json", config.dump());
  return runtime::ReadModelSpec(files.Files(), device);
}

ModelSpec SpecOf(const json& config) {
  const auto read = Read(config);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->spec : ModelSpec();
}

TEST(Gemma4ConfigTest, FullLayersHaveTheirOwnHeadsAndRope) {
  const ModelSpec spec = SpecOf(ConfigOf(kDense));
  ASSERT_EQ(spec.layers.size(), 5u);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& heads = spec.layers[i].heads;
    const bool is_full = i == 2 || i == 4;
    EXPECT_EQ(heads.window, is_full ? 0u : 24u);
    EXPECT_EQ(heads.head_size, is_full ? 64u : 32u);
    EXPECT_EQ(heads.v_head_size, heads.head_size);
    EXPECT_EQ(heads.rotary_size, heads.head_size);
    EXPECT_EQ(heads.rope, is_full ? 0 : 1);
    EXPECT_EQ(heads.scale, 1);
    EXPECT_FALSE(heads.v_norm.has_weight);
    EXPECT_FALSE(heads.v_from_k);
    EXPECT_TRUE(spec.layers[i].has_output_scale);
  }
  // A quarter of the pairs rotates, with exponents over the whole head.
  const std::vector<float>& full = spec.rope_tables[0].inv_freq;
  ASSERT_EQ(full.size(), 32u);
  for (std::size_t i = 0; i < full.size(); ++i) {
    const double want = i < 8 ? std::pow(1e6, -static_cast<double>(i) / 32) : 0;
    EXPECT_NEAR(full[i], want, 1e-6 * want) << i;
  }
  EXPECT_EQ(spec.rope_tables[1].inv_freq.size(), 16u);
  EXPECT_EQ(spec.embed_scale, 8);
  EXPECT_EQ(spec.logit_softcap, 20);
  EXPECT_TRUE(spec.tie_embeddings);
}

TEST(Gemma4ConfigTest, LastLayersShareKeysAndHaveWiderMlps) {
  json config = ConfigOf(kDense);
  const ModelSpec spec = SpecOf(config);
  const std::vector<std::int32_t> sources = {-1, -1, -1, 1, 2};
  for (std::size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(spec.layers[i].kv_from_layer, sources[i]);
    EXPECT_EQ(spec.layers[i].dense.intermediate, sources[i] < 0 ? 40u : 80u);
  }
  config["use_double_wide_mlp"] = false;
  EXPECT_EQ(SpecOf(config).layers[4].dense.intermediate, 40u);
  config["num_kv_shared_layers"] = 0;
  EXPECT_EQ(SpecOf(config).layers[4].kv_from_layer, -1);
}

// A page has twice as many rows of scales in layers with half as many heads.
TEST(Gemma4ConfigTest, EveryGroupLimitsTheNumberOfPages) {
  const ModelSpec spec = SpecOf(ConfigOf(kMoe));
  const LayerGroups layers = PlanLayerGroups(spec);
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    auto pool = runtime::KvGeometryFor(spec, 16, dtype, 4);
    ASSERT_TRUE(pool.ok()) << pool.status();
    const std::int64_t most = runtime::MaxNumBlocks(spec, *pool);
    EXPECT_EQ(most < pool->max_num_blocks(), dtype == DType::kI8);
    bool exceeds = false;
    for (std::size_t group = 0; group < layers.groups.size(); ++group) {
      pool->num_blocks = static_cast<std::uint32_t>(most);
      EXPECT_TRUE(GroupGeometry(*pool, layers, group).Validate().ok()) << group;
      ++pool->num_blocks;
      exceeds |= !GroupGeometry(*pool, layers, group).Validate().ok();
    }
    EXPECT_TRUE(exceeds);
  }
}

TEST(Gemma4ConfigTest, LayersHaveInputsUnlessTheirSizeIsZero) {
  json config = ConfigOf(kDense);
  const ModelSpec spec = SpecOf(config);
  EXPECT_EQ(spec.layer_inputs.size, 16u);
  EXPECT_EQ(spec.layer_inputs.vocab, 304u);
  EXPECT_EQ(spec.layer_inputs.embed_scale, 4);
  EXPECT_EQ(spec.layer_inputs.projection_scale, 0.125f);
  EXPECT_EQ(spec.layers[3].input.size, 16u);
  for (const json& off : {json(0), json(nullptr)}) {
    config["hidden_size_per_layer_input"] = off;
    EXPECT_EQ(SpecOf(config).layer_inputs.size, 0u);
    EXPECT_EQ(SpecOf(config).layers[3].input.size, 0u);
  }
  config.erase("hidden_size_per_layer_input");
  config.erase("vocab_size_per_layer_input");
  EXPECT_EQ(SpecOf(config).layer_inputs.size, 256u);
  EXPECT_EQ(SpecOf(config).layer_inputs.vocab, 262144u);
}

TEST(Gemma4ConfigTest, MoeFormHasExpertsBesideADenseMlp) {
  json config = ConfigOf(kMoe);
  const ModelSpec spec = SpecOf(config);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    EXPECT_EQ(layer.mlp, MlpKind::kDenseAndMoe);
    EXPECT_EQ(layer.dense.intermediate, 48u);
    EXPECT_EQ(layer.moe.num_experts, 6u);
    EXPECT_EQ(layer.moe.top_k, 2u);
    EXPECT_EQ(layer.moe.expert.intermediate, 16u);
    EXPECT_TRUE(layer.moe.renormalize);
    EXPECT_TRUE(layer.moe.expert_scale);
    EXPECT_EQ(layer.moe.router_norm.weight_scale, 0.125f);
    EXPECT_EQ(layer.heads.num_kv_heads, i == 2 ? 1u : 2u);
    EXPECT_EQ(layer.heads.v_from_k, i == 2);
  }
  // num_global_key_value_heads applies only if attention_k_eq_v is true.
  config["attention_k_eq_v"] = false;
  EXPECT_EQ(SpecOf(config).layers[2].heads.num_kv_heads, 2u);
  EXPECT_FALSE(SpecOf(config).layers[2].heads.v_from_k);
  config["enable_moe_block"] = false;
  EXPECT_EQ(SpecOf(config).layers[0].mlp, MlpKind::kDense);
}

TEST(Gemma4ConfigTest, AbsentKeysHaveTheDefaultsOfTransformers) {
  json config = ConfigOf(kDense);
  const ModelSpec given = SpecOf(config);
  config.erase("rope_parameters");
  EXPECT_EQ(SpecOf(config), given);
  // Five of six layers have windows, and the last one never has.
  config["num_kv_shared_layers"] = 0;
  config.erase("layer_types");
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(read->spec.layers[i].heads.window, i == 4 ? 0u : 24u);
  }
  EXPECT_EQ(read->spec.layers[4].heads.head_size, 64u);
  EXPECT_THAT(read->config.warnings,
              testing::Contains(HasSubstr("the window of the last layer is ignored: gemma4 "
                                          "computes this layer with full attention")));
  config.erase("sliding_window");
  config["max_position_embeddings"] = 4096;
  EXPECT_EQ(SpecOf(config).layers[0].heads.window, 512u);
  config["use_bidirectional_attention"] = "vision";
  EXPECT_TRUE(Read(config).ok());
}

TEST(Gemma4ConfigTest, RejectsByName) {
  const struct {
    const char* folder;
    const char* key;
    json value;
    const char* message;
  } cases[] = {
      {kDense, "use_bidirectional_attention", "all",
       "use_bidirectional_attention \"all\" is not supported by gemma4"},
      {kDense, "global_head_dim", 63, "global_head_dim is 63, it must be even"},
      {kDense, "global_head_dim", 48, "not a multiple of the smallest one"},
      {kDense, "num_kv_shared_layers", 5, "num_kv_shared_layers"},
      {kDense, "num_kv_shared_layers", 3, "no layer before 2 has the attention type of layer 2"},
      {kDense, "vocab_size_per_layer_input", 303,
       "vocab_size_per_layer_input is 303, it must be at least vocab_size 304"},
      {kDense, "attention_bias", true, "attention_bias true is not supported by gemma4"},
      {kDense, "hidden_activation", "silu", "hidden_activation \"silu\""},
      {kMoe, "num_global_key_value_heads", 3, "num_global_key_value_heads is 3, it must divide"},
      {kMoe, "top_k_experts", 7, "top_k_experts"},
      {kMoe, "num_experts", nullptr, "num_experts"},
      {kMoe, "moe_intermediate_size", 0, "moe_intermediate_size"}};
  for (const auto& test : cases) {
    json config = ConfigOf(test.folder);
    config[test.key] = test.value;
    const auto read = Read(config);
    ASSERT_FALSE(read.ok()) << test.key << " " << test.value;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(test.message));
  }
  json config = ConfigOf(kDense);
  config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 1.5;
  EXPECT_THAT(std::string(Read(config).status().message()),
              HasSubstr("partial_rotary_factor is 1.5, it must be at most 1"));
}

TEST(Gemma4ConfigTest, OtherFamiliesRefuseItsKeys) {
  const std::pair<const char*, json> keys[] = {
      {"attention_k_eq_v", true},        {"enable_moe_block", true},
      {"global_head_dim", 64},           {"hidden_size_per_layer_input", 16},
      {"num_global_key_value_heads", 1}, {"num_kv_shared_layers", 2},
      {"use_double_wide_mlp", true},     {"top_k_experts", 2}};
  for (const auto& [key, value] : keys) {
    json config = ConfigOf("gemma3-text-bf16");
    config[key] = value;
    EXPECT_THAT(std::string(Read(config).status().message()), HasSubstr(key));
  }
  json config = ConfigOf("gemma3-text-bf16");
  config["rope_scaling"] = {{"rope_type", "proportional"}};
  EXPECT_THAT(std::string(Read(config).status().message()),
              HasSubstr("\"proportional\" is not supported by gemma3"));
}

TEST(Gemma4ConfigTest, GpusSupportIt) {
  for (const char* folder : {kDense, kMoe}) {
    const auto read = Read(ConfigOf(folder), DeviceKind::kCuda);
    EXPECT_TRUE(read.ok()) << folder << ": " << read.status();
  }
}

// The plan reads only headers and is exact to the byte, for stored and for made-up weights.
TEST(Gemma4ConfigTest, WeightPlanIsExact) {
  TestBackend cpu;
  for (const char* folder : {kDense, kMoe}) {
    const auto files =
        formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("models/", folder)));
    ASSERT_TRUE(files.ok()) << files.status();
    for (const runtime::LoadMode mode : {runtime::LoadMode::kReal, runtime::LoadMode::kDummy}) {
      const auto plan =
          runtime::PlanMemory(*files, {.page_size = 16,
                                       .num_blocks = 9,
                                       .load_mode = mode,
                                       .runner = {.max_rows = 4, .max_step_tokens = 32}});
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto model = runtime::LoadModel(*files, cpu.backend, {.mode = mode});
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ(plan->weight_bytes, (*model)->weights->size_bytes()) << folder;
    }
  }
}

}  // namespace
}  // namespace quire::models
