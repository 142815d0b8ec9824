// The tensors of a layer: their names and shapes in published checkpoints, their labels, and their
// order in memory.

#include "models/config/tensor_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/families/registry.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/packed_file.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kHeads = 4;
constexpr NormSpec kNorm{.kind = NormKind::kRms, .eps = 1e-5f};

// Shapes by name, without the prefix of the layer.
using Tensors = std::map<std::string, std::vector<std::int64_t>>;

// Two layers of hidden size 40.
ModelSpec SpecOf(const LayerSpec& layer) {
  ModelSpec spec;
  spec.vocab_size = 32;
  spec.hidden = 40;
  spec.max_position = 64;
  spec.layers.assign(2, layer);
  spec.final_norm = kNorm;
  return spec;
}

// 4 heads and 2 KV heads of size 16, and an MLP of 96.
LayerSpec HeadsLayer() {
  LayerSpec layer;
  layer.attn_in = layer.mlp_in = kNorm;
  layer.heads.num_heads = kHeads;
  layer.heads.num_kv_heads = 2;
  layer.heads.head_size = layer.heads.v_head_size = 16;
  layer.dense.intermediate = 96;
  return layer;
}

LayerSpec MlaLayer() {
  LayerSpec layer = HeadsLayer();
  layer.attention = AttentionKind::kMla;
  layer.mla = {.num_heads = kHeads,
               .q_lora_rank = 28,
               .kv_lora_rank = 20,
               .nope_size = 8,
               .rope_size = 4,
               .v_size = 16};
  return layer;
}

// Two experts of 24.
LayerSpec MoeLayer() {
  LayerSpec layer = HeadsLayer();
  layer.mlp = MlpKind::kMoe;
  layer.moe.num_experts = 2;
  layer.moe.top_k = 1;
  layer.moe.expert = {.intermediate = 24};
  return layer;
}

// The tensors of attention and norms that most families have.
Tensors AttentionTensors() {
  return {{"input_layernorm.weight", {40}},      {"post_attention_layernorm.weight", {40}},
          {"self_attn.q_proj.weight", {64, 40}}, {"self_attn.k_proj.weight", {32, 40}},
          {"self_attn.v_proj.weight", {32, 40}}, {"self_attn.o_proj.weight", {40, 64}}};
}

// Returns `tensors` and those of a dense MLP.
Tensors WithMlp(Tensors tensors) {
  tensors.insert({{"mlp.gate_proj.weight", {96, 40}},
                  {"mlp.up_proj.weight", {96, 40}},
                  {"mlp.down_proj.weight", {40, 96}}});
  return tensors;
}

Tensors Join(Tensors tensors, const Tensors& more) {
  tensors.insert(more.begin(), more.end());
  return tensors;
}

// Expects that layer 1 of made-up weights has exactly these tensors. FindWeights refuses missing
// tensors, other shapes and surplus tensors, so it must accept the made-up weights.
void ExpectTensors(const LayerSpec& layer, const TensorNames& names, const Tensors& expected) {
  const ModelSpec spec = SpecOf(layer);
  const auto dummy = DummyCheckpoint(ModelConfig{}, spec, names, /*with_values=*/false);
  ASSERT_TRUE(dummy.ok()) << dummy.status();
  Tensors found;
  for (const formats::StoredTensor& tensor : dummy->tensors()) {
    absl::string_view name = tensor.name;
    if (absl::ConsumePrefix(&name, LayerPrefix(names, 1))) {
      found[std::string(name)] = {tensor.shape.begin(), tensor.shape.end()};
    }
  }
  EXPECT_EQ(found, expected);
  const auto slots = FindWeights(spec, names, *dummy, WeightTarget{});
  ASSERT_TRUE(slots.ok()) << slots.status();
  EXPECT_EQ(slots->layers.size(), 2u);
}

TEST(TensorTableTest, LlamaHasNormsProjectionsAndOptionalBiases) {
  LayerSpec layer = HeadsLayer();
  ExpectTensors(layer, LlamaFamily().names, WithMlp(AttentionTensors()));
  layer.heads.q_bias = layer.heads.k_bias = layer.heads.v_bias = layer.heads.o_bias = true;
  layer.dense.gate_bias = layer.dense.up_bias = layer.dense.down_bias = true;
  ExpectTensors(layer, LlamaFamily().names,
                Join(WithMlp(AttentionTensors()), {{"self_attn.q_proj.bias", {64}},
                                                   {"self_attn.k_proj.bias", {32}},
                                                   {"self_attn.v_proj.bias", {32}},
                                                   {"self_attn.o_proj.bias", {40}},
                                                   {"mlp.gate_proj.bias", {96}},
                                                   {"mlp.up_proj.bias", {96}},
                                                   {"mlp.down_proj.bias", {40}}}));
}

TEST(TensorTableTest, Qwen2HasBiasesOfQKAndV) {
  LayerSpec layer = HeadsLayer();
  layer.heads.q_bias = layer.heads.k_bias = layer.heads.v_bias = true;
  ExpectTensors(layer, Qwen2Family().names,
                Join(WithMlp(AttentionTensors()), {{"self_attn.q_proj.bias", {64}},
                                                   {"self_attn.k_proj.bias", {32}},
                                                   {"self_attn.v_proj.bias", {32}}}));
}

TEST(TensorTableTest, Qwen3NormsEachHead) {
  LayerSpec layer = HeadsLayer();
  layer.heads.qk_norm = kNorm;
  ExpectTensors(layer, Qwen3Family().names,
                Join(WithMlp(AttentionTensors()),
                     {{"self_attn.q_norm.weight", {16}}, {"self_attn.k_norm.weight", {16}}}));
}

TEST(TensorTableTest, Olmo2NormsOutputsAndWholeRows) {
  LayerSpec layer = HeadsLayer();
  layer.attn_in = layer.mlp_in = NormSpec{};
  layer.attn_out = layer.mlp_out = layer.heads.qk_norm = kNorm;
  layer.heads.qk_norm_scope = QkNormScope::kWhole;
  Tensors expected = WithMlp(AttentionTensors());
  expected.erase("input_layernorm.weight");
  ExpectTensors(layer, Olmo2Family().names,
                Join(expected, {{"post_feedforward_layernorm.weight", {40}},
                                {"self_attn.q_norm.weight", {64}},
                                {"self_attn.k_norm.weight", {32}}}));
}

TEST(TensorTableTest, Gemma2NormsInputsAndOutputs) {
  LayerSpec layer = HeadsLayer();
  layer.attn_out = layer.mlp_out = kNorm;
  ExpectTensors(layer, Gemma2Family().names,
                Join(WithMlp(AttentionTensors()), {{"pre_feedforward_layernorm.weight", {40}},
                                                   {"post_feedforward_layernorm.weight", {40}}}));
}

TEST(TensorTableTest, Phi3FusesProjections) {
  ExpectTensors(HeadsLayer(), Phi3Family().names,
                {{"input_layernorm.weight", {40}},
                 {"post_attention_layernorm.weight", {40}},
                 {"self_attn.qkv_proj.weight", {128, 40}},
                 {"self_attn.o_proj.weight", {40, 64}},
                 {"mlp.gate_up_proj.weight", {192, 40}},
                 {"mlp.down_proj.weight", {40, 96}}});
}

// DeepSeek-V2-Lite.
TEST(TensorTableTest, MlaWithoutQueryRankHasOneQueryMatrix) {
  LayerSpec layer = MlaLayer();
  layer.mla.q_lora_rank = 0;
  ExpectTensors(layer, DeepseekV2Family().names,
                WithMlp({{"input_layernorm.weight", {40}},
                         {"post_attention_layernorm.weight", {40}},
                         {"self_attn.q_proj.weight", {48, 40}},
                         {"self_attn.kv_a_proj_with_mqa.weight", {24, 40}},
                         {"self_attn.kv_a_layernorm.weight", {20}},
                         {"self_attn.kv_b_proj.weight", {96, 20}},
                         {"self_attn.o_proj.weight", {40, 64}}}));
}

TEST(TensorTableTest, DeepseekV3HasMlaAndSharedExperts) {
  LayerSpec layer = MlaLayer();
  layer.mla.qa_bias = layer.mla.kva_bias = layer.mla.o_bias = true;
  layer.mlp = MlpKind::kMoe;
  layer.moe = MoeLayer().moe;
  layer.moe.choice_bias = true;
  layer.moe.shared = MlpSpec{.intermediate = 48};
  ExpectTensors(layer, DeepseekV3Family().names,
                {{"input_layernorm.weight", {40}},
                 {"post_attention_layernorm.weight", {40}},
                 {"self_attn.q_a_proj.weight", {28, 40}},
                 {"self_attn.q_a_proj.bias", {28}},
                 {"self_attn.q_a_layernorm.weight", {28}},
                 {"self_attn.q_b_proj.weight", {48, 28}},
                 {"self_attn.kv_a_proj_with_mqa.weight", {24, 40}},
                 {"self_attn.kv_a_proj_with_mqa.bias", {24}},
                 {"self_attn.kv_a_layernorm.weight", {20}},
                 {"self_attn.kv_b_proj.weight", {96, 20}},
                 {"self_attn.o_proj.weight", {40, 64}},
                 {"self_attn.o_proj.bias", {40}},
                 {"mlp.gate.weight", {2, 40}},
                 {"mlp.gate.e_score_correction_bias", {2}},
                 {"mlp.experts.0.gate_proj.weight", {24, 40}},
                 {"mlp.experts.0.up_proj.weight", {24, 40}},
                 {"mlp.experts.0.down_proj.weight", {40, 24}},
                 {"mlp.experts.1.gate_proj.weight", {24, 40}},
                 {"mlp.experts.1.up_proj.weight", {24, 40}},
                 {"mlp.experts.1.down_proj.weight", {40, 24}},
                 {"mlp.shared_experts.gate_proj.weight", {48, 40}},
                 {"mlp.shared_experts.up_proj.weight", {48, 40}},
                 {"mlp.shared_experts.down_proj.weight", {40, 48}}});
}

TEST(TensorTableTest, MixtralNumbersTheMatricesOfExperts) {
  ExpectTensors(MoeLayer(), MixtralFamily().names,
                Join(AttentionTensors(), {{"block_sparse_moe.gate.weight", {2, 40}},
                                          {"block_sparse_moe.experts.0.w1.weight", {24, 40}},
                                          {"block_sparse_moe.experts.0.w2.weight", {40, 24}},
                                          {"block_sparse_moe.experts.0.w3.weight", {24, 40}},
                                          {"block_sparse_moe.experts.1.w1.weight", {24, 40}},
                                          {"block_sparse_moe.experts.1.w2.weight", {40, 24}},
                                          {"block_sparse_moe.experts.1.w3.weight", {24, 40}}}));
}

// The names of Qwen2-MoE, the only published ones with a gate of the shared expert.
TEST(TensorTableTest, ASharedExpertMayHaveAGate) {
  LayerSpec layer = MoeLayer();
  layer.moe.num_experts = 1;
  layer.moe.shared = MlpSpec{.intermediate = 48};
  layer.moe.shared_gate = true;
  const TensorNames names{.shared = "shared_expert", .shared_gate = "shared_expert_gate"};
  ExpectTensors(layer, names,
                Join(AttentionTensors(), {{"mlp.gate.weight", {1, 40}},
                                          {"mlp.experts.0.gate_proj.weight", {24, 40}},
                                          {"mlp.experts.0.up_proj.weight", {24, 40}},
                                          {"mlp.experts.0.down_proj.weight", {40, 24}},
                                          {"mlp.shared_expert.gate_proj.weight", {48, 40}},
                                          {"mlp.shared_expert.up_proj.weight", {48, 40}},
                                          {"mlp.shared_expert.down_proj.weight", {40, 48}},
                                          {"mlp.shared_expert_gate.weight", {1, 40}}}));
}

// The names of Nemotron 3: experts behind a latent projection, no gates.
TEST(TensorTableTest, ExpertsMayBeLatentAndWithoutGate) {
  LayerSpec layer = MoeLayer();
  layer.moe.latent = 12;
  layer.moe.expert.gated = false;
  layer.moe.shared = MlpSpec{.gated = false, .intermediate = 48};
  const TensorNames names{
      .latent_in = "fc1_latent_proj", .latent_out = "fc2_latent_proj", .shared = "shared_experts"};
  ExpectTensors(layer, names,
                Join(AttentionTensors(), {{"mlp.gate.weight", {2, 40}},
                                          {"mlp.fc1_latent_proj.weight", {12, 40}},
                                          {"mlp.experts.0.up_proj.weight", {24, 12}},
                                          {"mlp.experts.0.down_proj.weight", {12, 24}},
                                          {"mlp.experts.1.up_proj.weight", {24, 12}},
                                          {"mlp.experts.1.down_proj.weight", {12, 24}},
                                          {"mlp.fc2_latent_proj.weight", {40, 12}},
                                          {"mlp.shared_experts.up_proj.weight", {48, 40}},
                                          {"mlp.shared_experts.down_proj.weight", {40, 48}}}));
  layer = HeadsLayer();
  layer.dense.gated = false;
  layer.dense.up_bias = true;
  ExpectTensors(layer, LlamaFamily().names,
                Join(AttentionTensors(), {{"mlp.up_proj.weight", {96, 40}},
                                          {"mlp.up_proj.bias", {96}},
                                          {"mlp.down_proj.weight", {40, 96}}}));
}

// The names of Granite: stacks with the rows of gate and up, and a shared expert beside them.
TEST(TensorTableTest, StacksMayFuseGateAndUp) {
  LayerSpec layer = MoeLayer();
  layer.moe.shared = MlpSpec{.intermediate = 48};
  const TensorNames names{.moe = "",
                          .router = "block_sparse_moe.router.layer",
                          .gate_up_stack = "block_sparse_moe.input_linear",
                          .down_stack = "block_sparse_moe.output_linear",
                          .shared = "shared_mlp",
                          .shared_mlp_gate_up = "input_linear",
                          .shared_mlp_down = "output_linear"};
  ExpectTensors(layer, names,
                Join(AttentionTensors(), {{"block_sparse_moe.router.layer.weight", {2, 40}},
                                          {"block_sparse_moe.input_linear.weight", {2, 48, 40}},
                                          {"block_sparse_moe.output_linear.weight", {2, 40, 24}},
                                          {"shared_mlp.input_linear.weight", {96, 40}},
                                          {"shared_mlp.output_linear.weight", {40, 48}}}));
}

TEST(TensorTableTest, GptOssHasSinksAndTransposedStacks) {
  LayerSpec layer = MoeLayer();
  layer.heads.has_sinks = true;
  layer.heads.q_bias = layer.heads.k_bias = layer.heads.v_bias = layer.heads.o_bias = true;
  layer.moe.router_bias = true;
  layer.moe.expert = {.intermediate = 24, .gate_bias = true, .up_bias = true, .down_bias = true};
  EXPECT_EQ(ExpertStorageOf(GptOssFamily().names), ExpertStorage::kTransposedStacks);
  ExpectTensors(layer, GptOssFamily().names,
                Join(AttentionTensors(), {{"self_attn.q_proj.bias", {64}},
                                          {"self_attn.k_proj.bias", {32}},
                                          {"self_attn.v_proj.bias", {32}},
                                          {"self_attn.o_proj.bias", {40}},
                                          {"self_attn.sinks", {4}},
                                          {"mlp.router.weight", {2, 40}},
                                          {"mlp.router.bias", {2}},
                                          {"mlp.experts.gate_up_proj", {2, 40, 48}},
                                          {"mlp.experts.gate_up_proj_bias", {2, 48}},
                                          {"mlp.experts.down_proj", {2, 24, 40}},
                                          {"mlp.experts.down_proj_bias", {2, 40}}}));
}

TEST(TensorTableTest, Llama4HasNormsWithoutWeightsAndTransposedStacks) {
  LayerSpec layer = MoeLayer();
  layer.heads.qk_norm = kNorm;
  layer.heads.qk_norm.has_weight = false;
  layer.moe.expert = {.intermediate = 24};
  layer.moe.shared = layer.moe.expert;
  EXPECT_EQ(ExpertStorageOf(Llama4Family().names), ExpertStorage::kTransposedStacks);
  ExpectTensors(
      layer, Llama4Family().names,
      Join(AttentionTensors(), {{"feed_forward.router.weight", {2, 40}},
                                {"feed_forward.experts.gate_up_proj", {2, 40, 48}},
                                {"feed_forward.experts.down_proj", {2, 24, 40}},
                                {"feed_forward.shared_expert.gate_proj.weight", {24, 40}},
                                {"feed_forward.shared_expert.up_proj.weight", {24, 40}},
                                {"feed_forward.shared_expert.down_proj.weight", {40, 24}}}));
}

TEST(TensorTableTest, GgufStacksExperts) {
  LayerSpec layer = MoeLayer();
  layer.heads.qk_norm = kNorm;
  const TensorNames& names = Qwen3MoeFamily().gguf_names;
  EXPECT_EQ(ExpertStorageOf(names), ExpertStorage::kStacks);
  ExpectTensors(layer, names,
                {{"attn_norm.weight", {40}},
                 {"ffn_norm.weight", {40}},
                 {"attn_q.weight", {64, 40}},
                 {"attn_k.weight", {32, 40}},
                 {"attn_v.weight", {32, 40}},
                 {"attn_q_norm.weight", {16}},
                 {"attn_k_norm.weight", {16}},
                 {"attn_output.weight", {40, 64}},
                 {"ffn_gate_inp.weight", {2, 40}},
                 {"ffn_gate_exps.weight", {2, 24, 40}},
                 {"ffn_up_exps.weight", {2, 24, 40}},
                 {"ffn_down_exps.weight", {2, 40, 24}}});
}

// Packed files store norms, other vectors and biases in the order of the tables and do not name
// them. A change of the order makes old files wrong, so it requires a new version.
TEST(TensorTableTest, OrderInMemoryIsThatOfTheVersionOfPackedFiles) {
  EXPECT_EQ(runtime::kPackedFileVersion, 7);
  const TensorNames names{.attn_out = "attn_out",
                          .mlp_in = "mlp_in",
                          .mlp_out = "mlp_out",
                          .dense_out = "dense_out",
                          .moe_in = "moe_in",
                          .moe_out = "moe_out",
                          .output_scale = "output_scale",
                          .input_out_norm = "input_out_norm",
                          .q_norm = "q_norm",
                          .k_norm = "k_norm",
                          .sinks = "sinks",
                          .conv = "conv",
                          .conv_bias = "conv_bias",
                          .a_log = "a_log",
                          .dt_bias = "dt_bias",
                          .skip = "skip",
                          .gate_norm = "gate_norm",
                          .short_conv = "short_conv",
                          .choice_bias = "choice_bias",
                          .router_norm = "router_norm",
                          .expert_scale = "expert_scale"};
  std::vector<std::string> order;
  ForEachTensor([&](BlockKind, const TensorInfo& info) {
    order.emplace_back(info.is_vector() ? names.*info.parts[0].name : info.label);
  });
  const std::vector<std::string> expected = {
      // norms
      "input_layernorm", "attn_out", "mlp_in", "mlp_out", "dense_out", "moe_in", "moe_out",
      "output_scale",
      // attention; norms of q and k have a row for each scope
      "qkv", "q_norm", "q_norm", "k_norm", "k_norm", "sinks", "o",
      // MLA; q has a row with and a row without a rank
      "q_a", "self_attn.q_a_layernorm", "q", "q", "kv_a", "self_attn.kv_a_layernorm", "to_latent",
      "from_latent", "index_q", "index_k", "self_attn.indexer.k_norm",
      "self_attn.indexer.k_norm.bias", "index_weights", "o",
      // recurrent
      "recurrent_in", "recurrent_gate", "recurrent_decay", "conv", "conv_bias", "a_log", "dt_bias",
      "skip", "gate_norm", "recurrent_out", "short_conv_in", "short_conv", "short_conv_out",
      // MLP; the first product has a row with and a row without a gate, also in MoE
      "gate_up", "gate_up", "down",
      // MoE
      "router", "choice_bias", "router_norm", "expert_scale", "latent_in", "gate_up", "gate_up",
      "down", "latent_out", "shared_gate_up", "shared_gate_up", "shared_down", "shared_gate",
      // inputs per layer
      "input_gate", "input_out", "input_out_norm"};
  EXPECT_EQ(order, expected);
}

LayerSpec RecurrentLayer() {
  LayerSpec layer = HeadsLayer();
  layer.attention = AttentionKind::kRecurrent;
  layer.recurrent = {.conv_width = 4,
                     .conv_channels = 2 * 2 * 8 + 4 * 6,
                     .heads = 4,
                     .key_heads = 2,
                     .key_size = 8,
                     .value_size = 6};
  return layer;
}

TEST(TensorTableTest, InputsOfARecurrentLayerAreOneTensorOrSeveral) {
  TensorNames names{.in_qkv = "qkv",
                    .in_z = "z",
                    .in_b = "b",
                    .in_a = "a",
                    .conv = "conv.weight",
                    .a_log = "A_log",
                    .dt_bias = "dt_bias",
                    .gate_norm = "norm.weight",
                    .recurrent_out = "out"};
  const Tensors common = WithMlp({{"input_layernorm.weight", {40}},
                                  {"post_attention_layernorm.weight", {40}},
                                  {"conv.weight", {56, 4}},
                                  {"A_log", {4}},
                                  {"dt_bias", {4}},
                                  {"norm.weight", {6}},
                                  {"out.weight", {40, 24}}});
  LayerSpec layer = RecurrentLayer();
  ExpectTensors(layer, names,
                Join(common, {{"qkv.weight", {56, 40}},
                              {"z.weight", {24, 40}},
                              {"b.weight", {4, 40}},
                              {"a.weight", {4, 40}}}));
  names.in_qkv = names.in_z = names.in_b = names.in_a = "";
  names.in_qkvz = "qkvz";
  names.in_ba = "ba";
  ExpectTensors(layer, names, Join(common, {{"qkvz.weight", {80, 40}}, {"ba.weight", {8, 40}}}));
}

// The rows of a key head are q, k, then v and z of its two heads.
TEST(TensorTableTest, RowsByKeyHeadAreReordered) {
  const auto numbers = [](const std::vector<RowRange>& ranges) {
    std::vector<std::pair<std::int64_t, std::int64_t>> rows;
    for (const RowRange& range : ranges) rows.emplace_back(range.first, range.count);
    return rows;
  };
  using Rows = std::vector<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(numbers(RowsOfQkvz(RecurrentLayer())),
            (Rows{{0, 8}, {40, 8}, {8, 8}, {48, 8}, {16, 12}, {56, 12}, {28, 12}, {68, 12}}));
  EXPECT_EQ(numbers(RowsOfBa(RecurrentLayer())), (Rows{{0, 2}, {4, 2}, {2, 2}, {6, 2}}));
}

// The gate of a head follows the rows of its query.
TEST(TensorTableTest, OutputGatesLieBetweenTheRowsOfQueries) {
  LayerSpec layer = HeadsLayer();
  ASSERT_EQ(QueryRows(layer).size(), 1u);
  EXPECT_EQ(QueryRows(layer)[0].count, 64);
  EXPECT_TRUE(GateRows(layer).empty());
  layer.heads.output_gate = true;
  EXPECT_EQ(ExtentOf(Dim::kQueryRows, 40, layer).size, 128);
  ASSERT_EQ(QueryRows(layer).size(), 4u);
  EXPECT_EQ(QueryRows(layer)[3].first, 96);
  ASSERT_EQ(GateRows(layer).size(), 4u);
  EXPECT_EQ(GateRows(layer)[3].first, 112);
  EXPECT_EQ(GateRows(layer)[3].count, 16);
}

TEST(TensorTableTest, LabelsOfABlockAreDistinctAndVectorsHaveNone) {
  LayerSpec moe = MoeLayer();
  moe.moe.shared = MlpSpec{.intermediate = 48};
  moe.moe.shared_gate = true;
  for (const LayerSpec& layer : {HeadsLayer(), MlaLayer(), RecurrentLayer(), moe}) {
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
