// Tests of MLA apart from its numerics, which tests/parity compares: accepted and rejected DeepSeek
// configurations, and the bytes of a token in the KV cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/weights/weights.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Reads a fixture's config.json with some keys changed. A null is written as null and removes no
// key.
absl::StatusOr<runtime::CheckedSpec> Read(const std::string& folder, const json& changes,
                                          DeviceKind device = DeviceKind::kCpu) {
  EditableFiles files("models/" + folder);
  json config = json::parse(files.Get("config.json"));
  for (const auto& [key, value] : changes.items()) config[key] = value;
  files.Set("config.json", config.dump());
  return runtime::ReadModelSpec(files.Files(), device);
}

// Returns the DumpSpec line of the last layers, starting at the attention.
std::string LastLayers(const std::string& folder) {
  const auto checked = Read(folder, json::object());
  EXPECT_TRUE(checked.ok()) << checked.status();
  const std::string dump = DumpSpec(checked->spec);
  const std::size_t begin = dump.rfind("mla ");
  return dump.substr(begin, dump.find("; mlp_out", begin) - begin);
}

TEST(MlaSpecTest, SpecsOfTheFixturesEqualTheGoldenTexts) {
  EXPECT_EQ(LastLayers("deepseek-v2-bf16"),
            "mla heads 2 q_rank 0 rank 32 nope 32 rope 16 interleaved v 32 scale 0.210607 "
            "latent_eps 1e-06; attn_out none; mlp_in rms eps 1e-06; experts 3 of 8 softmax_all "
            "gated silu 32 weight_scale 2.5 shared gated silu 64");
  EXPECT_EQ(LastLayers("deepseek-v2-lite-bf16"),
            "mla heads 4 q_rank 0 rank 64 nope 16 rope 8 interleaved v 16 scale 0.324481 "
            "latent_eps 1e-06; attn_out none; mlp_in rms eps 1e-06; experts 4 of 16 softmax_all "
            "gated silu 24 shared gated silu 48");
  EXPECT_EQ(LastLayers("deepseek-v3-bf16"),
            "mla heads 2 q_rank 48 rank 32 nope 32 rope 16 interleaved v 64 scale 0.18713 "
            "latent_eps 1e-06; attn_out none; mlp_in rms eps 1e-06; experts 3 of 8 sigmoid "
            "gated silu 32 choice_bias groups 2 of 4 by top2_sum renormalize eps 1e-20 "
            "weight_scale 2.5 shared gated silu 32");
}

TEST(MlaSpecTest, DenseLayersAreTheFirstOrListed) {
  const auto kinds = [](const json& changes) {
    const auto checked = Read("deepseek-v3-bf16", changes);
    EXPECT_TRUE(checked.ok()) << checked.status();
    std::string text;
    for (const LayerSpec& layer : checked->spec.layers) {
      text += layer.mlp == MlpKind::kMoe ? 'm' : 'd';
    }
    return text;
  };
  EXPECT_EQ(kinds(json::object()), "dmm");
  EXPECT_EQ(kinds({{"first_k_dense_replace", 0}}), "mmm");
  EXPECT_EQ(kinds({{"mlp_layer_types", {"dense", "sparse", "dense"}}}), "dmd");
}

TEST(MlaSpecTest, RejectsUnsupportedKeysByKeyAndValue) {
  const struct {
    const char* folder;
    json changes;
    const char* message;
  } refused[] = {
      {"deepseek-v2-bf16", {{"scoring_func", "sigmoid"}}, "scoring_func \"sigmoid\""},
      {"deepseek-v2-bf16", {{"topk_method", "noaux_tc"}}, "topk_method \"noaux_tc\""},
      {"deepseek-v3-bf16", {{"scoring_func", "softmax"}}, "scoring_func \"softmax\""},
      {"deepseek-v3-bf16", {{"topk_method", "greedy"}}, "topk_method \"greedy\""},
      {"deepseek-v3-bf16", {{"moe_layer_freq", 2}}, "moe_layer_freq 2"},
      {"deepseek-v3-bf16", {{"qk_rope_head_dim", 15}}, "qk_rope_head_dim is 15"},
      {"deepseek-v3-bf16", {{"kv_lora_rank", nullptr}}, "kv_lora_rank"},
      {"deepseek-v3-bf16",
       {{"n_shared_experts", 4096}, {"moe_intermediate_size", 1 << 20}},
       "n_shared_experts is 4096"},
      {"deepseek-v3-bf16", {{"n_group", 3}}, "groups is 3"},
      {"deepseek-v3-bf16", {{"topk_group", 1}}, "top_k is 3"},
      {"deepseek-v3-bf16", {{"index_topk", 2048}}, "index_topk 2048"},
      {"deepseek-v3-bf16", {{"mlp_layer_types", {"dense"}}}, "mlp_layer_types has 1 entries"},
      {"deepseek-v3-bf16", {{"routed_scaling_factor", 0}}, "routed_scaling_factor is 0"}};
  for (const auto& c : refused) {
    const auto checked = Read(c.folder, c.changes);
    ASSERT_FALSE(checked.ok()) << c.message;
    EXPECT_THAT(std::string(checked.status().message()), HasSubstr(c.message));
  }
  const auto group_limited =
      Read("deepseek-v2-bf16",
           {{"topk_method", "group_limited_greedy"}, {"n_group", 4}, {"topk_group", 2}});
  ASSERT_TRUE(group_limited.ok()) << group_limited.status();
  EXPECT_EQ(group_limited->spec.layers[1].moe.groups, 4u);
  EXPECT_EQ(group_limited->spec.layers[1].moe.group_score, GroupScore::kMax);
}

TEST(MlaSpecTest, GpusRejectRowsThatTheirKernelsDoNotSupport) {
  EXPECT_TRUE(Read("deepseek-v3-bf16", json::object(), DeviceKind::kCuda).ok());
  const auto checked = Read("deepseek-v3-bf16", {{"kv_lora_rank", 1024}}, DeviceKind::kCuda);
  EXPECT_EQ(checked.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(checked.status().message()), HasSubstr("kv_lora_rank"));
}

// Three layers of 32 + 16 columns take one row each, and a spare row makes the number even.
TEST(MlaSpecTest, ATokenTakesOneRowOfEachLayer) {
  const auto checked = Read("deepseek-v3-bf16", json::object());
  ASSERT_TRUE(checked.ok()) << checked.status();
  const auto geometry = runtime::KvGeometryFor(checked->spec, 16, DType::kBF16, 4);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->page_bytes(), 16 * 4 * (32 + 16) * 2);
}

TEST(MlaWeightsTest, RejectsMissingAndMisshapenTensorsByName) {
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/deepseek-v3-bf16"));
  const auto checked = runtime::ReadModelSpec(*files, DeviceKind::kCpu);
  ASSERT_TRUE(checked.ok()) << checked.status();
  const auto checkpoint = Checkpoint::Open(*files);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const char* name : {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}) {
    const std::string full = std::string("model.layers.1.self_attn.") + name + ".weight";
    std::vector<formats::StoredTensor> without;
    std::vector<formats::StoredTensor> turned;
    for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
      turned.push_back(tensor);
      if (tensor.name == full) {
        std::swap(turned.back().shape[0], turned.back().shape[1]);
      } else {
        without.push_back(tensor);
      }
    }
    const auto error = [&](std::vector<formats::StoredTensor> tensors) {
      const Checkpoint changed = Checkpoint::FromTensors(std::move(tensors), nullptr);
      const auto slots =
          FindWeights(checked->spec, TensorNamesOf(checked->config), changed, WeightTarget{});
      return std::string(slots.status().message());
    };
    EXPECT_THAT(error(std::move(without)), HasSubstr(full + " is missing"));
    EXPECT_THAT(error(std::move(turned)), HasSubstr(full + ": shape is"));
  }
}

}  // namespace
}  // namespace quire::models
