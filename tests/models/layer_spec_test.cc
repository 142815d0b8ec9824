#include "models/config/layer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>

#include "runtime/memory_plan.h"

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

LayerSpec RecurrentLayer(const ModelSpec& spec) {
  LayerSpec layer = spec.layers[0];
  layer.attention = AttentionKind::kRecurrent;
  layer.heads = {};
  layer.recurrent = {.conv_width = 4,
                     .conv_channels = 2 * 2 * 8 + 4 * 6,
                     .heads = 4,
                     .key_heads = 2,
                     .key_size = 8,
                     .value_size = 6};
  return layer;
}

NormSpec WithoutWeight(NormSpec norm) {
  norm.has_weight = false;
  return norm;
}

// Gives layer 2 experts.
MoeSpec& Moe(ModelSpec& spec) {
  spec.layers[2].mlp = MlpKind::kMoe;
  return spec.layers[2].moe;
}

constexpr DeviceKind kDevices[] = {DeviceKind::kCpu, DeviceKind::kCuda};

TEST(LayerSpecTest, LlamaIsValidAndSupported) {
  EXPECT_TRUE(ValidateSpec(LlamaSpec()).ok()) << ValidateSpec(LlamaSpec());
  for (const DeviceKind device : kDevices) {
    EXPECT_TRUE(CheckSupported(LlamaSpec(), device).ok()) << CheckSupported(LlamaSpec(), device);
  }
}

TEST(LayerSpecTest, RejectsContradictions) {
  const std::pair<const char*, std::function<void(ModelSpec&)>> cases[] = {
      {"num_heads is 3", [](ModelSpec& s) { s.layers[1].heads.num_heads = 3; }},
      {"rotary_size 3", [](ModelSpec& s) { s.layers[1].heads.rotary_size = 3; }},
      {"rotary_size 4 from column 2", [](ModelSpec& s) { s.layers[1].heads.rotary_first = 2; }},
      {"rope table is 1", [](ModelSpec& s) { s.layers[1].heads.rope = 1; }},
      {"rope table 0 has 1 entries", [](ModelSpec& s) { s.rope_tables[0].inv_freq.resize(1); }},
      {"softcap and has_sinks",
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
      {"neither attention nor an MLP",
       [](ModelSpec& s) {
         s.layers[1].attention = AttentionKind::kNone;
         s.layers[1].mlp = MlpKind::kNone;
       }},
      {"short_conv width is 1, it must be 2 to 8",
       [](ModelSpec& s) {
         s.layers[1].attention = AttentionKind::kShortConv;
         s.layers[1].short_conv.width = 1;
       }},
      {"attn_in is set, it must be kNone",
       [](ModelSpec& s) { s.layers[1].attention = AttentionKind::kNone; }},
      {"mlp_in is set, it must be kNone", [](ModelSpec& s) { s.layers[1].mlp = MlpKind::kNone; }},
      {"limit 7 and up_offset 0 must be 0 in an MLP without gate",
       [](ModelSpec& s) {
         s.layers[1].dense.gated = false;
         s.layers[1].dense.limit = 7;
       }},
  };
  for (const auto& [message, change] : cases) {
    ModelSpec spec = LlamaSpec();
    change(spec);
    const absl::Status status = ValidateSpec(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(LayerSpecTest, RejectsSharedKeysOfOtherPositionsOrMasks) {
  const std::pair<const char*, std::function<void(ModelSpec&)>> cases[] = {
      {"chunk is 8, it must be 0 as in layer 0, which is its kv_from_layer",
       [](ModelSpec& s) {
         s.layers[0].heads.window = 8;
         s.layers[1].heads.chunk = 8;
       }},
      {"rope is -1, it must be 0 as in layer 0",
       [](ModelSpec& s) {
         s.layers[1].heads.rope = -1;
         s.layers[1].heads.rotary_size = 0;
       }},
      {"rope_style is 1, it must be 0 as in layer 0",
       [](ModelSpec& s) { s.layers[1].heads.rope_style = RopeStyle::kInterleaved; }},
  };
  for (const auto& [message, change] : cases) {
    ModelSpec spec = LlamaSpec();
    spec.layers[1].kv_from_layer = 0;
    EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
    change(spec);
    EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr(message));
  }
}

TEST(LayerSpecTest, RejectsContradictionsOfRecurrentLayers) {
  const std::pair<const char*, std::function<void(RecurrentSpec&)>> cases[] = {
      {"conv_width is 9", [](RecurrentSpec& r) { r.conv_width = 9; }},
      {"recurrent heads is 3", [](RecurrentSpec& r) { r.heads = 3; }},
      {"recurrent key_size is 257", [](RecurrentSpec& r) { r.key_size = 257; }},
      {"recurrent value_size is 0", [](RecurrentSpec& r) { r.value_size = 0; }},
      {"conv_channels is 57, it must be 56", [](RecurrentSpec& r) { r.conv_channels = 57; }},
      {"decay is per channel, it must be per head",
       [](RecurrentSpec& r) {
         r.delta = false;
         r.decay = DecayKind::kPerChannel;
       }},
      {"dt_min is 1, it must be at most dt_max 0.5",
       [](RecurrentSpec& r) {
         r.dt_min = 1;
         r.dt_max = 0.5f;
       }},
      {"norm_groups is 5", [](RecurrentSpec& r) { r.norm_groups = 5; }}};
  for (const auto& [message, change] : cases) {
    ModelSpec spec = LlamaSpec();
    spec.layers[1] = RecurrentLayer(spec);
    EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
    change(spec.layers[1].recurrent);
    const absl::Status status = ValidateSpec(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

// An option of some layer or of the whole model, and its name.
struct Knob {
  const char* name;
  std::function<void(ModelSpec&)> turn;
};

void PlainNormAfterRope(ModelSpec& spec) {
  AttentionSpec& heads = spec.layers[2].heads;
  heads.qk_norm.kind = NormKind::kRms;
  heads.qk_norm.has_weight = false;
  heads.qk_norm_after_rope = true;
}

absl::Status Checked(const Knob& knob, DeviceKind device) {
  ModelSpec spec = LlamaSpec();
  knob.turn(spec);
  return CheckSupported(spec, device);
}

// Each listed option that is not implemented is rejected by name, on any layer.
TEST(LayerSpecTest, RejectsUnimplementedOptionsByName) {
  const Knob knobs[] = {
      {"attn_in LayerNorm", [](ModelSpec& s) { s.layers[2].attn_in.kind = NormKind::kLayer; }},
      {"mlp_in without weight", [](ModelSpec& s) { s.layers[2].mlp_in.has_weight = false; }},
      {"attn_out LayerNorm", [](ModelSpec& s) { s.layers[2].attn_out.kind = NormKind::kLayer; }},
      {"final without weight or with bias", [](ModelSpec& s) { s.final_norm.has_bias = true; }},
      {"head geometry", [](ModelSpec& s) { s.layers[1].attention = AttentionKind::kMla; }},
      {"qk_norm LayerNorm",
       [](ModelSpec& s) { s.layers[2].heads.qk_norm.kind = NormKind::kLayer; }},
      {"qk_norm_after_rope with weights",
       [](ModelSpec& s) {
         s.layers[2].heads.qk_norm.kind = NormKind::kRms;
         s.layers[2].heads.qk_norm_after_rope = true;
       }},
      {"qk_norm_after_rope with weights or with an attention factor",
       [](ModelSpec& s) {
         PlainNormAfterRope(s);
         s.rope_tables[0].attention_factor = 1.2f;
       }},
      {"v_norm", [](ModelSpec& s) { s.layers[2].heads.v_norm.kind = NormKind::kRms; }},
      {"no layer with keys and values",
       [](ModelSpec& s) { s.layers.assign(3, RecurrentLayer(s)); }},
      {"v_head_size", [](ModelSpec& s) { s.layers[2].heads.v_head_size = 8; }},
      {"q_bias", [](ModelSpec& s) { s.layers[2].heads.q_bias = true; }},
      {"v_from_k with an output_gate",
       [](ModelSpec& s) {
         s.layers[2].heads.v_from_k = true;
         s.layers[2].heads.output_gate = true;
       }},
      {"router_norm without weight",
       [](ModelSpec& s) { Moe(s).router_norm = WithoutWeight(s.final_norm); }},
  };
  for (const Knob& knob : knobs) {
    const absl::Status status = Checked(knob, DeviceKind::kCpu);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << knob.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(knob.name));
    EXPECT_EQ(Checked(knob, DeviceKind::kCuda).code(), absl::StatusCode::kUnimplemented);
    ModelSpec spec = LlamaSpec();
    knob.turn(spec);
    EXPECT_NE(DumpSpec(spec), DumpSpec(LlamaSpec())) << knob.name << " does not show in the dump";
  }
}

// CUDA rejects the knobs by name, and the CPU accepts them.
void ExpectCpuOnly(std::span<const Knob> knobs) {
  for (const Knob& knob : knobs) {
    const absl::Status status = Checked(knob, DeviceKind::kCuda);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << knob.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(knob.name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("on a GPU"));
    ModelSpec spec = LlamaSpec();
    knob.turn(spec);
    AssignCacheGroups(&spec);
    EXPECT_TRUE(CheckSupported(spec, DeviceKind::kCpu).ok())
        << CheckSupported(spec, DeviceKind::kCpu);
    EXPECT_NE(DumpSpec(spec), DumpSpec(LlamaSpec())) << knob.name << " does not show in the dump";
  }
}

TEST(LayerSpecTest, HeadsOfOtherLayersDoNotCount) {
  ModelSpec spec = LlamaSpec();
  spec.layers[2] = RecurrentLayer(spec);
  spec.layers[2].heads.v_head_size = 8;
  EXPECT_TRUE(CheckSupported(spec, DeviceKind::kCpu).ok());
}

// CUDA rejects by name the options that only the CPU implements, and never computes them wrongly.
TEST(LayerSpecTest, RejectsCpuOnlyOptionsOnAGpu) {
  const auto heads_of = [](ModelSpec& s, std::uint32_t size) {
    for (LayerSpec& layer : s.layers) layer.heads.head_size = layer.heads.v_head_size = size;
  };
  const auto latent = [](ModelSpec& s, MlaSpec mla) {
    for (LayerSpec& layer : s.layers) {
      layer.attention = AttentionKind::kMla;
      layer.mla = mla;
    }
  };
  const auto sizes = [](std::uint32_t rank, std::uint32_t rope, std::uint32_t nope) {
    MlaSpec mla;
    mla.num_heads = 4;
    mla.kv_lora_rank = rank;
    mla.rope_size = rope;
    mla.nope_size = nope;
    mla.v_size = 64;
    mla.rope = 0;
    return mla;
  };
  const Knob knobs[] = {
      {"head_size above 512", [&](ModelSpec& s) { heads_of(s, 516); }},
      {"not a multiple of 4", [&](ModelSpec& s) { heads_of(s, 62); }},
      {"more than 576 columns", [&](ModelSpec& s) { latent(s, sizes(520, 64, 64)); }},
      {"qk_rope_head_dim above 128", [&](ModelSpec& s) { latent(s, sizes(64, 136, 64)); }},
      {"an MLA rank or head dim that is not a multiple of 8",
       [&](ModelSpec& s) { latent(s, sizes(512, 64, 60)); }},
  };
  ExpectCpuOnly(knobs);
}

void ExpectBothDevices(std::span<const Knob> knobs) {
  for (const Knob& knob : knobs) {
    ModelSpec spec = LlamaSpec();
    knob.turn(spec);
    AssignCacheGroups(&spec);
    for (const DeviceKind device : kDevices) {
      EXPECT_TRUE(CheckSupported(spec, device).ok())
          << knob.name << ": " << CheckSupported(spec, device);
    }
    EXPECT_NE(DumpSpec(spec), DumpSpec(LlamaSpec())) << knob.name << " does not show in the dump";
  }
}

// Rare options that both devices implement.
TEST(LayerSpecTest, AcceptsOptionsOfBothDevices) {
  const NormSpec norm = LlamaSpec().final_norm;
  const Knob knobs[] = {
      {"a mixture of experts", [](ModelSpec& s) { s.layers[2].mlp = MlpKind::kMoe; }},
      {"latent attention",
       [](ModelSpec& s) {
         for (LayerSpec& layer : s.layers) {
           layer.attention = AttentionKind::kMla;
           layer.mla.rope = 0;
         }
       }},
      {"latent attention without rope",
       [](ModelSpec& s) {
         for (LayerSpec& layer : s.layers) {
           layer.attention = AttentionKind::kMla;
           layer.mla.rope = -1;
         }
       }},
      {"recurrent layers", [](ModelSpec& s) { s.layers[2] = RecurrentLayer(s); }},
      {"short convolutions",
       [](ModelSpec& s) { s.layers[2].attention = AttentionKind::kShortConv; }},
      {"no attention", [](ModelSpec& s) { s.layers[2].attention = AttentionKind::kNone; }},
      {"no MLP", [](ModelSpec& s) { s.layers[2].mlp = MlpKind::kNone; }},
      {"an MLP without gate", [](ModelSpec& s) { s.layers[2].dense.gated = false; }},
      {"experts behind a latent projection", [](ModelSpec& s) { Moe(s).latent = 32; }},
      {"output_gate in the query projection",
       [](ModelSpec& s) { s.layers[2].heads.output_gate = true; }},
      {"attn_out", [&](ModelSpec& s) { s.layers[2].attn_out = norm; }},
      {"mlp_out", [&](ModelSpec& s) { s.layers[2].mlp_out = norm; }},
      {"attn_in", [](ModelSpec& s) { s.layers[2].attn_in = {}; }},
      {"mlp_in", [](ModelSpec& s) { s.layers[2].mlp_in = {}; }},
      {"residual_scale", [](ModelSpec& s) { s.layers[2].residual_scale = 0.5f; }},
      {"output_scale", [](ModelSpec& s) { s.layers[2].output_scale = 0.5f; }},
      {"qk_norm", [&](ModelSpec& s) { s.layers[2].heads.qk_norm = norm; }},
      {"without rope", [](ModelSpec& s) { s.layers[2].heads.rope = -1; }},
      {"interleaved", [](ModelSpec& s) { s.layers[2].heads.rope_style = RopeStyle::kInterleaved; }},
      {"partial", [](ModelSpec& s) { s.layers[2].heads.rotary_size = 2; }},
      {"softcap", [](ModelSpec& s) { s.layers[2].heads.softcap = 50; }},
      {"window", [](ModelSpec& s) { s.layers[2].heads.window = 32; }},
      {"sinks", [](ModelSpec& s) { s.layers[2].heads.has_sinks = true; }},
      {"silu", [](ModelSpec& s) { s.layers[2].dense.act = Activation::kGeluErf; }},
      {"clamped", [](ModelSpec& s) { s.layers[2].dense.limit = 7; }},
      {"embed_scale", [](ModelSpec& s) { s.embed_scale = 2; }},
      {"logit_scale", [](ModelSpec& s) { s.logit_scale = 2; }},
      {"logit_softcap", [](ModelSpec& s) { s.logit_softcap = 30; }},
  };
  ExpectBothDevices(knobs);
}

// Options of layers that differ from others, and of attention and MLPs that few families have.
TEST(LayerSpecTest, AcceptsUnusualLayersOnBothDevices) {
  const Knob knobs[] = {
      {"plain", [](ModelSpec& s) { s.layers[2].dense.gated = false; }},
      {"output_gate", [](ModelSpec& s) { s.layers[2].heads.output_gate = true; }},
      {"position_scale",
       [](ModelSpec& s) { s.layers[2].heads.q_position_scale = {.beta = 0.1f, .period = 8}; }},
      {"chunk", [](ModelSpec& s) { s.layers[2].heads.chunk = 32; }},
      {"qk_norm without weight", PlainNormAfterRope},
      {"head size",
       [](ModelSpec& s) { s.layers[2].heads.head_size = s.layers[2].heads.v_head_size = 512; }},
      {"KV heads", [](ModelSpec& s) { s.layers[2].heads.num_kv_heads = 4; }},
      {"kv_from_layer", [](ModelSpec& s) { s.layers[2].kv_from_layer = 0; }},
      {"v_norm", [](ModelSpec& s) { s.layers[2].heads.v_norm = WithoutWeight(s.final_norm); }},
      {"v_from_k", [](ModelSpec& s) { s.layers[2].heads.v_from_k = true; }},
      {"has_output_scale", [](ModelSpec& s) { s.layers[2].has_output_scale = true; }},
      {"a dense MLP and experts", [](ModelSpec& s) { s.layers[2].mlp = MlpKind::kDenseAndMoe; }},
      {"weight_on_input", [](ModelSpec& s) { Moe(s).weight_on_input = true; }},
      {"router_norm", [](ModelSpec& s) { Moe(s).router_norm = s.final_norm; }},
      {"expert_scale", [](ModelSpec& s) { Moe(s).expert_scale = true; }},
      {"input", [](ModelSpec& s) { s.layers[2].input.size = 8; }},
  };
  ExpectBothDevices(knobs);
}

// Offsets of norms are folded into the weights.
TEST(LayerSpecTest, WeightOffsetIsSupportedEverywhere) {
  ModelSpec spec = LlamaSpec();
  spec.layers[2].mlp_in.weight_offset = 1;
  for (const DeviceKind device : kDevices) EXPECT_TRUE(CheckSupported(spec, device).ok());
  EXPECT_NE(DumpSpec(spec), DumpSpec(LlamaSpec()));
}

TEST(LayerSpecTest, GroupsThatDifferInTheirWindowShareAPool) {
  ModelSpec spec = LlamaSpec();
  spec.layers[1].heads.window = 32;
  AssignCacheGroups(&spec);
  const auto geometry = runtime::KvGeometryFor(spec, 16, DType::kF32, 4);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->num_layers, 1u) << "of one group, its pages are those of all";
  spec.layers[2].heads.head_size = 6;
  spec.layers[2].heads.v_head_size = 6;
  const auto other = runtime::KvGeometryFor(spec, 16, DType::kF32, 4);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("layer 2"));
}

TEST(LayerSpecTest, RejectsContradictingMasks) {
  ModelSpec spec = LlamaSpec();
  spec.layers[1].heads.window = 32;
  spec.layers[1].heads.chunk = 16;
  EXPECT_THAT(std::string(ValidateSpec(spec).message()),
              HasSubstr("layer 1: window is 32 and chunk is 16, one of them must be 0"));
  spec.layers[1].heads.window = 0;
  EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
  spec.layers[1].heads.q_position_scale.beta = 0.1f;
  EXPECT_THAT(std::string(ValidateSpec(spec).message()),
              HasSubstr("layer 1: period of q_position_scale is 0"));
}

TEST(LayerSpecTest, WindowedLayersGetTheirOwnCacheGroup) {
  ModelSpec spec = LlamaSpec();
  spec.layers[1].heads.chunk = 32;
  AssignCacheGroups(&spec);
  EXPECT_EQ(spec.layers[1].cache_group, 1);
  EXPECT_EQ(spec.layers[2].cache_group, 0);
  spec.layers[1].heads.chunk = 0;
  spec.layers[1].heads.window = 32;
  AssignCacheGroups(&spec);
  EXPECT_EQ(spec.layers[0].cache_group, 0);
  EXPECT_EQ(spec.layers[1].cache_group, 1);
  EXPECT_EQ(spec.layers[2].cache_group, 0);
}

}  // namespace
}  // namespace quire::models
