// Tests of MLA apart from its numerics, which tests/parity compares: accepted and rejected DeepSeek
// configurations, and the bytes of a token in the KV cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/blocks/layer_groups.h"
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
  EXPECT_EQ(LastLayers("deepseek-v32-bf16"),
            "mla heads 2 q_rank 48 rank 32 nope 32 rope 16 interleaved v 32 scale 0.18713 "
            "latent_eps 1e-06 index top 24 by 16 heads of 24 half eps 1e-06; attn_out none; "
            "mlp_in rms eps 1e-06; experts 3 of 8 sigmoid gated silu 16 choice_bias groups 2 of 4 "
            "by top2_sum renormalize eps 1e-20 weight_scale 2.5 shared gated silu 16");
  EXPECT_EQ(LastLayers("glm-moe-dsa-bf16"),
            "mla heads 2 q_rank 32 rank 32 nope 24 rope 16 interleaved v 40 scale 0.158114 "
            "latent_eps 1e-06 index top 24 by 14 heads of 32 interleaved eps 1e-06; attn_out none; "
            "mlp_in rms eps 1e-05; experts 2 of 6 sigmoid gated silu 16 choice_bias renormalize "
            "eps 1e-20 weight_scale 2.5 shared gated silu 16");
}

// F: the layer has its own indexer. A digit: the layer takes the selection of that layer.
std::string Selections(const json& changes) {
  const auto checked = Read("glm-moe-dsa-bf16", changes);
  EXPECT_TRUE(checked.ok()) << checked.status();
  std::string text;
  if (!checked.ok()) return text;
  for (const LayerSpec& layer : checked->spec.layers) {
    const std::int32_t from = layer.mla.index->from_layer;
    text += from < 0 ? 'F' : static_cast<char>('0' + from);
  }
  return text;
}

TEST(MlaSpecTest, SelectionsAreSharedByTypesPatternOrFrequency) {
  EXPECT_EQ(Selections(json::object()), "F0F");
  EXPECT_EQ(Selections({{"index_topk_freq", 1}}), "FFF");
  EXPECT_EQ(Selections({{"index_skip_topk_offset", nullptr}}), "FF1");
  EXPECT_EQ(Selections({{"index_topk_freq", nullptr}}), "FFF");
  EXPECT_EQ(Selections({{"index_topk_pattern", "FFS"}}), "FF1");
  EXPECT_EQ(
      Selections({{"index_topk_pattern", "FFF"}, {"indexer_types", {"full", "shared", "shared"}}}),
      "F00");
}

TEST(MlaSpecTest, AbsentIndexKeysHaveTheDefaultsOfTheFamily) {
  const auto index = [](const std::string& folder) {
    const auto checked = Read(folder, {{"index_topk", nullptr},
                                       {"index_n_heads", nullptr},
                                       {"index_head_dim", nullptr},
                                       {"indexer_rope_interleave", nullptr}});
    EXPECT_TRUE(checked.ok()) << checked.status();
    return checked.ok() ? *checked->spec.layers[0].mla.index : IndexSpec{};
  };
  EXPECT_EQ(index("deepseek-v32-bf16"),
            (IndexSpec{.heads = 64, .size = 128, .topk = 2048, .rope_style = RopeStyle::kHalf}));
  EXPECT_EQ(
      index("glm-moe-dsa-bf16"),
      (IndexSpec{.heads = 32, .size = 128, .topk = 2048, .rope_style = RopeStyle::kInterleaved}));
}

TEST(MlaSpecTest, RejectsIndexKeysByKeyAndValue) {
  const struct {
    const char* folder;
    json changes;
    const char* message;
  } refused[] = {
      {"glm-moe-dsa-bf16", {{"index_topk", 0}}, "index_topk is 0"},
      {"glm-moe-dsa-bf16", {{"index_n_heads", 5000}}, "index_n_heads is 5000"},
      {"glm-moe-dsa-bf16",
       {{"index_head_dim", 8}},
       "index size is 8, it must be at least the rope size 16"},
      {"glm-moe-dsa-bf16", {{"index_topk_pattern", "FS"}}, "index_topk_pattern has 2 entries"},
      {"glm-moe-dsa-bf16", {{"index_topk_pattern", "FXF"}}, "index_topk_pattern has \"X\""},
      {"glm-moe-dsa-bf16",
       {{"indexer_types", {"shared", "full", "full"}}},
       "indexer_types begins with a layer that shares"},
      {"glm-moe-dsa-bf16", {{"index_skip_topk_offset", 0}}, "index_skip_topk_offset is 0"},
      {"glm-moe-dsa-bf16", {{"q_lora_rank", nullptr}}, "q_lora_rank is 0"},
      {"deepseek-v32-bf16", {{"index_topk_pattern", "FS"}}, "index_topk_pattern \"FS\""},
      {"deepseek-v32-bf16", {{"indexer_types", {"full", "full"}}}, "indexer_types"}};
  for (const auto& c : refused) {
    const auto checked = Read(c.folder, c.changes);
    ASSERT_FALSE(checked.ok()) << c.message;
    EXPECT_THAT(std::string(checked.status().message()), HasSubstr(c.message));
  }
}

TEST(MlaSpecTest, GpusAcceptIndexersWithinTheLimitsOfTheirKernels) {
  for (const char* folder : {"deepseek-v32-bf16", "glm-moe-dsa-bf16"}) {
    const auto checked = Read(folder, json::object(), DeviceKind::kCuda);
    EXPECT_TRUE(checked.ok()) << checked.status();
    const struct {
      json changes;
      const char* message;
    } refused[] = {
        {{{"index_n_heads", 65}},
         "layer 0 with an indexer of more than 64 heads or more than 128 columns is not supported"},
        {{{"index_head_dim", 136}},
         "layer 0 with an indexer of more than 64 heads or more than 128 columns is not supported"},
        {{{"index_head_dim", 28}},
         "layer 0 with an index_head_dim that is not a multiple of 8 is not supported"}};
    for (const auto& c : refused) {
      const auto wide = Read(folder, c.changes, DeviceKind::kCuda);
      EXPECT_EQ(wide.status().code(), absl::StatusCode::kUnimplemented) << c.changes;
      EXPECT_THAT(std::string(wide.status().message()), HasSubstr(c.message));
      EXPECT_TRUE(Read(folder, c.changes).ok()) << c.changes;
    }
  }
}

TEST(MlaSpecTest, SpecsWithContradictingSelectionsAreInvalid) {
  const auto checked = Read("glm-moe-dsa-bf16", json::object());
  ASSERT_TRUE(checked.ok()) << checked.status();
  const struct {
    std::size_t layer;
    IndexSpec index;
    const char* message;
  } cases[] = {
      {0, {.heads = 14, .size = 32, .topk = 24, .from_layer = 1}, "index from_layer is 1"},
      {2, {.heads = 14, .size = 32, .topk = 24, .from_layer = 1}, "index from_layer is 1"},
      {1,
       {.heads = 14, .size = 32, .topk = 8, .from_layer = 0},
       "must be equal except for from_layer"},
      {0, {.heads = 14, .size = 32, .topk = 0}, "index topk is 0, both must be at least 1"},
      {0, {.heads = 0, .size = 32, .topk = 24}, "index heads is 0"},
      {0, {.heads = 14, .size = 0, .topk = 24}, "index size is 0"}};
  for (const auto& c : cases) {
    ModelSpec spec = checked->spec;
    spec.layers[c.layer].mla.index = c.index;
    EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr(c.message));
  }
  ModelSpec spec = checked->spec;
  spec.layers[2].mla.rope = -1;
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("layer 2: MLA rope is -1"));
  spec = checked->spec;
  spec.layers[2].attention = AttentionKind::kRecurrent;
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("layer 2: mla.index is set"));
  spec = checked->spec;
  spec.layers[2].mla.index->size = 48;
  EXPECT_TRUE(ValidateSpec(spec).ok());
  EXPECT_THAT(std::string(CheckSupported(spec, DeviceKind::kCpu).message()),
              HasSubstr("layer 2 with another index size"));
}

TEST(MlaSpecTest, LayersWithoutIndexerHaveNoIndexRows) {
  const auto checked = Read("glm-moe-dsa-bf16", json::object());
  ASSERT_TRUE(checked.ok()) << checked.status();
  const LayerGroups layers = PlanLayerGroups(checked->spec);
  EXPECT_EQ(DescribeLayerGroups(layers),
            "3 layers per page; 3 without a window; index rows of 2 layers");
  EXPECT_EQ(layers.places[0].index_slot, 0u);
  EXPECT_EQ(layers.places[2].index_slot, 1u);
}

// Latent rows of 32 + 16 columns in two layers, then index rows of 24 columns. The distance between
// pages is a multiple of both rows.
TEST(MlaSpecTest, IndexRowsLieBehindTheRowsOfAPage) {
  const auto checked = Read("deepseek-v32-bf16", json::object());
  ASSERT_TRUE(checked.ok()) << checked.status();
  const struct {
    DType dtype;
    std::int64_t row;
    std::int64_t index_row;
  } cases[] = {{DType::kBF16, 96, 48}, {DType::kF32, 192, 96}, {DType::kI8, 48, 48}};
  for (const auto& c : cases) {
    const auto geometry = runtime::KvGeometryFor(checked->spec, 16, c.dtype, 4);
    ASSERT_TRUE(geometry.ok()) << geometry.status();
    const auto index = runtime::IndexRowsFor(checked->spec, *geometry);
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(index->offset_bytes, 2 * 16 * c.row);
    EXPECT_EQ(geometry->block_stride() * DTypeSize(c.dtype), 2 * 16 * (c.row + c.index_row));
    EXPECT_EQ(index->geometry.block_stride() * DTypeSize(index->geometry.dtype),
              2 * 16 * (c.row + c.index_row));
    EXPECT_EQ(index->geometry.dtype, c.dtype == DType::kF32 ? DType::kF32 : DType::kBF16);
    // A selected row has one number for elements and scales.
    if (!geometry->quantized()) continue;
    EXPECT_EQ(geometry->rows_per_block(), geometry->scale_rows_per_block());
  }
}

// A page spans more index rows than MLA rows if index rows are shorter.
TEST(MlaSpecTest, IndexRowsLimitTheNumberOfPages) {
  const auto checked = Read("deepseek-v32-bf16", json::object());
  ASSERT_TRUE(checked.ok()) << checked.status();
  auto geometry = runtime::KvGeometryFor(checked->spec, 16, DType::kBF16, 4);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  const std::int64_t most = runtime::MaxNumBlocks(checked->spec, *geometry);
  EXPECT_LT(most, geometry->max_num_blocks());
  geometry->num_blocks = static_cast<std::uint32_t>(most);
  EXPECT_TRUE(runtime::IndexRowsFor(checked->spec, *geometry).ok());
  ++geometry->num_blocks;
  EXPECT_THAT(std::string(runtime::IndexRowsFor(checked->spec, *geometry).status().message()),
              HasSubstr("exceeds 2^31"));

  const auto other = Read("deepseek-v3-bf16", json::object());
  ASSERT_TRUE(other.ok()) << other.status();
  const auto plain = runtime::KvGeometryFor(other->spec, 16, DType::kBF16, 4);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(runtime::MaxNumBlocks(other->spec, *plain), plain->max_num_blocks());
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
