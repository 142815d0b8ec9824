#include "models/layer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace quire::models {
namespace {

using testing::HasSubstr;

ModelSpec LlamaSpec() {
  ModelSpec spec;
  spec.vocab_size = 32;
  spec.hidden = 16;
  spec.max_position = 64;
  spec.final_norm.kind = NormKind::kRms;
  spec.final_norm.eps = 1e-5f;
  spec.rope_tables.push_back({.inv_freq = {1, 0.1f}, .attention_factor = 1});
  LayerSpec layer;
  layer.attn_in = spec.final_norm;
  layer.mlp_in = spec.final_norm;
  layer.heads.num_heads = 4;
  layer.heads.num_kv_heads = 2;
  layer.heads.head_size = 4;
  layer.heads.v_head_size = 4;
  layer.heads.rope = 0;
  layer.heads.rotary_size = 4;
  layer.heads.scale = 0.5f;
  layer.dense.intermediate = 24;
  spec.layers.assign(3, layer);
  return spec;
}

TEST(LayerSpecTest, LlamaIsValidAndBuilt) {
  EXPECT_TRUE(ValidateSpec(LlamaSpec()).ok()) << ValidateSpec(LlamaSpec());
  EXPECT_TRUE(CheckBuilt(LlamaSpec()).ok()) << CheckBuilt(LlamaSpec());
}

TEST(LayerSpecTest, ContradictionsAreRefused) {
  const std::pair<const char*, std::function<void(ModelSpec&)>> cases[] = {
      {"num_heads is 3", [](ModelSpec& s) { s.layers[1].heads.num_heads = 3; }},
      {"rotary_size 3", [](ModelSpec& s) { s.layers[1].heads.rotary_size = 3; }},
      {"rotary_size 4 from column 2", [](ModelSpec& s) { s.layers[1].heads.rotary_first = 2; }},
      {"rope table is 1", [](ModelSpec& s) { s.layers[1].heads.rope = 1; }},
      {"rope table 0 has 1 entries", [](ModelSpec& s) { s.rope_tables[0].inv_freq.resize(1); }},
      {"softcap and sinks",
       [](ModelSpec& s) {
         s.layers[1].heads.softcap = 50;
         s.layers[1].heads.has_sinks = true;
       }},
      {"groups is 3",
       [](ModelSpec& s) {
         s.layers[1].mlp = MlpKind::kMoe;
         s.layers[1].moe.num_experts = 8;
         s.layers[1].moe.groups = 3;
       }},
      {"top_k is 5",
       [](ModelSpec& s) {
         s.layers[1].mlp = MlpKind::kMoe;
         s.layers[1].moe.num_experts = 8;
         s.layers[1].moe.groups = 4;
         s.layers[1].moe.groups_kept = 2;
         s.layers[1].moe.top_k = 5;
       }},
      {"kv_from_layer is 1", [](ModelSpec& s) { s.layers[1].kv_from_layer = 1; }},
      {"intermediate is 0", [](ModelSpec& s) { s.layers[1].dense.intermediate = 0; }},
  };
  for (const auto& [message, change] : cases) {
    ModelSpec spec = LlamaSpec();
    change(spec);
    const absl::Status status = ValidateSpec(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

// Each knob that is drawn but not built is refused by its name, on whichever layer it stands.
TEST(LayerSpecTest, UnbuiltKnobsAreRefusedByName) {
  const std::pair<const char*, std::function<void(ModelSpec&)>> cases[] = {
      {"parallel", [](ModelSpec& s) { s.layers[2].order = LayerOrder::kParallel; }},
      {"LayerNorm", [](ModelSpec& s) { s.layers[2].attn_in.kind = NormKind::kLayer; }},
      {"weight_offset", [](ModelSpec& s) { s.layers[2].mlp_in.weight_offset = 1; }},
      {"attn_out", [](ModelSpec& s) { s.layers[2].attn_out.kind = NormKind::kRms; }},
      {"mlp_out", [](ModelSpec& s) { s.layers[2].mlp_out.kind = NormKind::kRms; }},
      {"residual_scale", [](ModelSpec& s) { s.layers[2].residual_scale = 0.5f; }},
      {"output_scale", [](ModelSpec& s) { s.layers[2].output_scale = 0.5f; }},
      {"attention other", [](ModelSpec& s) { s.layers[2].attention = AttentionKind::kMla; }},
      {"not dense", [](ModelSpec& s) { s.layers[2].mlp = MlpKind::kMoe; }},
      {"clip_qkv", [](ModelSpec& s) { s.layers[2].heads.clip_qkv = 8; }},
      {"qk_norm", [](ModelSpec& s) { s.layers[2].heads.qk_norm.kind = NormKind::kRms; }},
      {"v_norm", [](ModelSpec& s) { s.layers[2].heads.v_norm.kind = NormKind::kRms; }},
      {"without rope", [](ModelSpec& s) { s.layers[2].heads.rope = -1; }},
      {"interleaved", [](ModelSpec& s) { s.layers[2].heads.rope_style = RopeStyle::kInterleaved; }},
      {"partial", [](ModelSpec& s) { s.layers[2].heads.rotary_size = 2; }},
      {"q_position_scale", [](ModelSpec& s) { s.layers[2].heads.q_position_scale.beta = 0.1f; }},
      {"softcap", [](ModelSpec& s) { s.layers[2].heads.softcap = 50; }},
      {"window", [](ModelSpec& s) { s.layers[2].heads.window = 32; }},
      {"chunk", [](ModelSpec& s) { s.layers[2].heads.chunk = 32; }},
      {"sinks", [](ModelSpec& s) { s.layers[2].heads.has_sinks = true; }},
      {"value_scale", [](ModelSpec& s) { s.layers[2].heads.value_scale = 0.7f; }},
      {"output_gate", [](ModelSpec& s) { s.layers[2].heads.output_gate = GateKind::kSigmoid; }},
      {"v_head_size", [](ModelSpec& s) { s.layers[2].heads.v_head_size = 8; }},
      {"q_bias", [](ModelSpec& s) { s.layers[2].heads.q_bias = true; }},
      {"gate", [](ModelSpec& s) { s.layers[2].dense.gated = false; }},
      {"silu", [](ModelSpec& s) { s.layers[2].dense.act = Activation::kGeluErf; }},
      {"clamped", [](ModelSpec& s) { s.layers[2].dense.limit = 7; }},
      {"kv_from_layer", [](ModelSpec& s) { s.layers[2].kv_from_layer = 0; }},
      {"head geometry", [](ModelSpec& s) { s.layers[2].heads.num_kv_heads = 4; }},
      {"embed_scale", [](ModelSpec& s) { s.embed_scale = 2; }},
      {"logit_scale", [](ModelSpec& s) { s.logit_scale = 2; }},
      {"logit_softcap", [](ModelSpec& s) { s.logit_softcap = 30; }},
      {"head_bias", [](ModelSpec& s) { s.head_bias = true; }},
  };
  for (const auto& [message, change] : cases) {
    ModelSpec spec = LlamaSpec();
    change(spec);
    const absl::Status status = CheckBuilt(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_NE(DumpSpec(spec), DumpSpec(LlamaSpec())) << message << " does not show in the dump";
  }
}

TEST(LayerSpecTest, WindowedLayersGetTheirOwnCacheGroup) {
  ModelSpec spec = LlamaSpec();
  spec.layers[1].heads.window = 32;
  AssignCacheGroups(&spec);
  EXPECT_EQ(spec.layers[0].cache_group, 0);
  EXPECT_EQ(spec.layers[1].cache_group, 1);
  EXPECT_EQ(spec.layers[2].cache_group, 0);
}

}  // namespace
}  // namespace quire::models
