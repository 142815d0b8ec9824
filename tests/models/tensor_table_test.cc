#include "models/config/tensor_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/weights.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kHeads = 4;

ModelSpec SpecOf(const LayerSpec& layer) {
  ModelSpec spec;
  spec.vocab_size = 32;
  spec.hidden = 64;
  spec.max_position = 64;
  spec.layers.assign(2, layer);
  spec.final_norm = {.kind = NormKind::kRms, .eps = 1e-5f};
  return spec;
}

LayerSpec HeadsLayer() {
  LayerSpec layer;
  layer.attn_in = layer.mlp_in = {.kind = NormKind::kRms, .eps = 1e-5f};
  layer.heads.num_heads = kHeads;
  layer.heads.num_kv_heads = 2;
  layer.heads.head_size = layer.heads.v_head_size = 16;
  layer.heads.has_sinks = true;
  layer.heads.o_bias = true;
  layer.heads.qk_norm = layer.attn_in;
  layer.dense.intermediate = 96;
  layer.dense.down_bias = true;
  return layer;
}

LayerSpec MlaLayer() {
  LayerSpec layer = HeadsLayer();
  layer.attention = AttentionKind::kMla;
  layer.mla = {.num_heads = kHeads,
               .q_lora_rank = 24,
               .kv_lora_rank = 16,
               .nope_size = 8,
               .rope_size = 8,
               .v_size = 8,
               .qa_bias = true};
  return layer;
}

LayerSpec MoeLayer() {
  LayerSpec layer = HeadsLayer();
  layer.mlp = MlpKind::kMoe;
  layer.moe.num_experts = 4;
  layer.moe.top_k = 2;
  layer.moe.expert = {.intermediate = 32, .gate_bias = true, .up_bias = true, .down_bias = true};
  layer.moe.router_bias = true;
  layer.moe.choice_bias = true;
  layer.moe.shared = MlpSpec{.intermediate = 48};
  layer.moe.shared_gate = true;
  return layer;
}

constexpr TensorNames kNames{.q_norm = "q_norm",
                             .k_norm = "k_norm",
                             .sinks = "sinks",
                             .choice_bias = "choice_bias",
                             .shared = "shared",
                             .shared_gate = "shared_gate"};

// FindWeights refuses missing tensors, other shapes and surplus tensors, so that it accepts exactly
// the tensors of the table.
void ExpectFound(const LayerSpec& layer, const TensorNames& names) {
  const ModelSpec spec = SpecOf(layer);
  const auto dummy = DummyCheckpoint(ModelConfig{}, spec, names, /*with_values=*/false);
  ASSERT_TRUE(dummy.ok()) << dummy.status();
  const auto slots = FindWeights(spec, names, *dummy, WeightTarget{});
  ASSERT_TRUE(slots.ok()) << slots.status();
  EXPECT_EQ(slots->layers.size(), 2u);
}

TEST(TensorTableTest, DummyCheckpointsHoldTheTensorsThatWeightsAreMadeOf) {
  ExpectFound(HeadsLayer(), kNames);
  ExpectFound(MlaLayer(), kNames);
  ExpectFound(MoeLayer(), kNames);
}

TEST(TensorTableTest, FusedTensorsReplaceTheirParts) {
  TensorNames names = kNames;
  names.qkv = "qkv_proj";
  names.gate_up = "gate_up_proj";
  ExpectFound(HeadsLayer(), names);
}

TEST(TensorTableTest, ExpertsAreFoundInEveryStorage) {
  TensorNames stacks = kNames;
  stacks.split_gate = "gate_exps";
  stacks.split_up = "up_exps";
  stacks.split_down = "down_exps";
  EXPECT_EQ(ExpertStorageOf(stacks), ExpertStorage::kStacks);
  ExpectFound(MoeLayer(), stacks);
  TensorNames transposed = kNames;
  transposed.stacked_gate_up = "gate_up_proj";
  transposed.stacked_down = "down_proj";
  EXPECT_EQ(ExpertStorageOf(transposed), ExpertStorage::kTransposedStacks);
  ExpectFound(MoeLayer(), transposed);
}

TEST(TensorTableTest, LabelsOfABlockAreDistinctAndVectorsHaveNone) {
  for (const LayerSpec& layer : {HeadsLayer(), MlaLayer(), MoeLayer()}) {
    std::set<std::string> labels;
    ForEachTensor(layer, [&](BlockKind, const TensorInfo& info) {
      EXPECT_EQ(info.is_vector(), info.label.empty());
      if (info.is_vector()) return;
      const bool per_expert = info.kind == TensorKind::kExpertMatrices;
      EXPECT_TRUE(labels.insert(absl::StrCat(per_expert ? "experts." : "", info.label)).second)
          << info.label;
    });
  }
}

}  // namespace
}  // namespace quire::models
