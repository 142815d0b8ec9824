// Configurations of families with layers of different kinds: the spec as a golden text, the meaning
// of absent keys, rejections by name, and the names of all tensors.

#include "models/config/hybrid_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "models/families/read_model_config.h"
#include "models/families/registry.h"
#include "models/weights/weights.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json ConfigOf(const std::string& folder) {
  return json::parse(WithQuotedInfinity(ReadTestFile("models/" + folder + "/config.json")));
}

absl::StatusOr<ModelSpec> ReadText(const std::string& text) {
  EditableFiles files;
  files.Set("config.json", text);
  const auto config = ReadModelConfig(files.Files());
  if (!config.ok()) return config.status();
  absl::StatusOr<ModelSpec> spec = FamilyNamed(config->family).build_spec(*config);
  if (!spec.ok()) return spec;
  const absl::Status valid = ValidateSpec(*spec);
  if (!valid.ok()) return valid;
  return spec;
}

ModelSpec SpecOf(const json& config) {
  const auto spec = ReadText(config.dump());
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec();
}

std::string ErrorOf(const json& config) {
  const auto spec = ReadText(config.dump());
  EXPECT_FALSE(spec.ok()) << config;
  return std::string(spec.status().message());
}

// Returns the fixture's configuration with some keys changed, and those with a null removed.
json With(const std::string& folder, const json& changes) {
  json config = ConfigOf(folder);
  for (const auto& [key, value] : changes.items()) {
    config[key] = value;
    if (value.is_null()) config.erase(key);
  }
  return config;
}

struct Golden {
  const char* folder;
  const char* text;
};

const Golden kGoldens[] = {
    {"granite-hybrid-bf16",
     "model vocab 304 hidden 64 max_position 512 tied embed_scale 6 logit_scale 2 eos 1 bos 0 "
     "pad 2\n"
     "layers 0 to 1: sequential; attn_in rms eps 1e-05; ssd heads 4 keys 1 state 16 x 32 conv "
     "160 x 4 silu norm eps 1e-05 conv_bias skip norm_groups 1; attn_out none; mlp_in rms eps "
     "1e-05; experts 2 of 4 softmax_chosen gated silu 16 shared gated silu 32; mlp_out none; "
     "group 0 residual_scale 0.6\n"
     "layers 2 to 2: sequential; attn_in rms eps 1e-05; heads 2 kv 1 size 32 v 32 scale 0.25 "
     "rope -1; attn_out none; mlp_in rms eps 1e-05; experts 2 of 4 softmax_chosen gated silu "
     "16 shared gated silu 32; mlp_out none; group 1 residual_scale 0.6\n"
     "layers 3 to 3: sequential; attn_in rms eps 1e-05; ssd heads 4 keys 1 state 16 x 32 conv "
     "160 x 4 silu norm eps 1e-05 conv_bias skip norm_groups 1; attn_out none; mlp_in rms eps "
     "1e-05; experts 2 of 4 softmax_chosen gated silu 16 shared gated silu 32; mlp_out none; "
     "group 0 residual_scale 0.6\n"
     "final norm rms eps 1e-05\n"},
    {"nemotron-h-bf16",
     "model vocab 304 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
     "layers 0 to 0: sequential; attn_in rms eps 1e-05; ssd heads 4 keys 2 state 16 x 24 conv "
     "160 x 4 silu norm eps 1e-05 conv_bias skip norm_groups 2; attn_out none; mlp_in none; "
     "no mlp; mlp_out none; group 0\n"
     "layers 1 to 1: sequential; attn_in none; no attention; attn_out none; mlp_in rms eps "
     "1e-05; experts 2 of 6 sigmoid plain relu2 32 choice_bias renormalize eps 1e-20 "
     "weight_scale 2.5 latent 32 shared plain relu2 48; mlp_out none; group 1\n"
     "layers 2 to 2: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope -1; attn_out none; mlp_in none; no mlp; mlp_out none; group 2\n"
     "layers 3 to 3: sequential; attn_in none; no attention; attn_out none; mlp_in rms eps "
     "1e-05; plain relu2 96; mlp_out none; group 1\n"
     "layers 4 to 4: sequential; attn_in rms eps 1e-05; ssd heads 4 keys 2 state 16 x 24 conv "
     "160 x 4 silu norm eps 1e-05 conv_bias skip norm_groups 2; attn_out none; mlp_in none; "
     "no mlp; mlp_out none; group 0\n"
     "layers 5 to 5: sequential; attn_in none; no attention; attn_out none; mlp_in rms eps "
     "1e-05; experts 2 of 6 sigmoid plain relu2 32 choice_bias renormalize eps 1e-20 "
     "weight_scale 2.5 latent 32 shared plain relu2 48; mlp_out none; group 1\n"
     "final norm rms eps 1e-05\n"},
    {"lfm2-bf16",
     "model vocab 304 hidden 64 max_position 512 tied eos 1 bos 0 pad 2\n"
     "rope 0: 8 entries 1 to 5.62341e-06 factor 1\n"
     "layers 0 to 1: sequential; attn_in rms eps 1e-05; short conv 3; attn_out none; mlp_in "
     "rms eps 1e-05; gated silu 96; mlp_out none; group 0\n"
     "layers 2 to 2: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 16 v 16 scale 0.25 "
     "rope 0 half 0+16 qk_norm rms eps 1e-05; attn_out none; mlp_in rms eps 1e-05; gated silu "
     "96; mlp_out none; group 1\n"
     "layers 3 to 3: sequential; attn_in rms eps 1e-05; short conv 3; attn_out none; mlp_in "
     "rms eps 1e-05; gated silu 96; mlp_out none; group 0\n"
     "final norm rms eps 1e-05\n"},
    {"kimi-linear-bf16",
     "model vocab 304 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
     "layers 0 to 0: sequential; attn_in rms eps 1e-05; delta heads 4 keys 4 state 16 x 16 "
     "conv 192 x 4 norm sigmoid eps 1e-05 decay per channel qk_l2_eps 1e-06 decay_rank 16 "
     "gate_rank 16; attn_out none; mlp_in rms eps 1e-05; gated silu 96; mlp_out none; group "
     "0\n"
     "layers 1 to 2: sequential; attn_in rms eps 1e-05; delta heads 4 keys 4 state 16 x 16 "
     "conv 192 x 4 norm sigmoid eps 1e-05 decay per channel qk_l2_eps 1e-06 decay_rank 16 "
     "gate_rank 16; attn_out none; mlp_in rms eps 1e-05; experts 2 of 6 sigmoid gated silu 16 "
     "choice_bias renormalize eps 1e-20 weight_scale 2.446 shared gated silu 16; mlp_out "
     "none; group 0\n"
     "layers 3 to 3: sequential; attn_in rms eps 1e-05; mla heads 2 q_rank 0 rank 32 nope 32 "
     "rope 16 unrotated v 32 scale 0.144338 latent_eps 1e-06; attn_out none; mlp_in rms eps "
     "1e-05; experts 2 of 6 sigmoid gated silu 16 choice_bias renormalize eps 1e-20 "
     "weight_scale 2.446 shared gated silu 16; mlp_out none; group 1\n"
     "final norm rms eps 1e-05\n"},
};

TEST(HybridConfigTest, SpecsOfTheFixturesEqualTheGoldenTexts) {
  for (const Golden& golden : kGoldens) {
    EXPECT_EQ(DumpSpec(SpecOf(ConfigOf(golden.folder))), golden.text) << golden.folder;
  }
}

using Tensors = std::vector<formats::StoredTensor>;

// Finds the tensors that replace those of a fixture. FindWeights refuses missing tensors, other
// shapes and surplus tensors.
absl::Status FindReplaced(const std::string& folder,
                          const std::function<Tensors(const formats::StoredTensor&)>& replace) {
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/" + folder));
  EXPECT_TRUE(files.ok()) << files.status();
  const auto config = ReadModelConfig(*files);
  EXPECT_TRUE(config.ok()) << config.status();
  const auto spec = FamilyNamed(config->family).build_spec(*config);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const auto checkpoint = Checkpoint::Open(*files);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  Tensors tensors;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    for (formats::StoredTensor& replaced : replace(tensor)) tensors.push_back(std::move(replaced));
  }
  const Checkpoint edited = Checkpoint::FromTensors(std::move(tensors), nullptr);
  return FindWeights(*spec, TensorNamesOf(*config), edited, WeightTarget{}).status();
}

absl::Status FindAll(const std::string& folder,
                     const std::function<void(formats::StoredTensor&)>& edit) {
  return FindReplaced(folder, [&](formats::StoredTensor tensor) {
    edit(tensor);
    return Tensors{std::move(tensor)};
  });
}

// Finds the tensors of a fixture, where `from` in names becomes `to`.
absl::Status FindAll(const std::string& folder, const std::string& from, const std::string& to) {
  return FindAll(folder, [&](formats::StoredTensor& tensor) {
    tensor.name = absl::StrReplaceAll(tensor.name, {{from, to}});
  });
}

TEST(HybridConfigTest, EveryTensorOfTheFixturesHasItsPlace) {
  for (const Golden& golden : kGoldens) {
    const absl::Status found = FindAll(golden.folder, " ", " ");
    EXPECT_TRUE(found.ok()) << found;
  }
}

TEST(HybridConfigTest, DenseLayersOfKimiHaveTwoNames) {
  const absl::Status found = FindAll("kimi-linear-bf16", ".mlp.", ".block_sparse_moe.");
  EXPECT_TRUE(found.ok()) << found;
  EXPECT_THAT(std::string(FindAll("kimi-linear-bf16", ".mlp.", ".ffn.").message()),
              HasSubstr("model.layers.0.mlp.gate_proj.weight is missing"));
}

// Converters to quantized formats write one tensor per expert and part.
TEST(HybridConfigTest, ExpertsOfLlama4MayBeTensorsOfTheirOwn) {
  constexpr std::int64_t kHidden = 64, kInner = 32;
  const auto split = [](const formats::StoredTensor& stack, const std::string& skipped) {
    Tensors tensors;
    const bool is_gate_up = stack.name.ends_with(".experts.gate_up_proj");
    if (!is_gate_up && !stack.name.ends_with(".experts.down_proj")) return Tensors{stack};
    const std::string prefix = stack.name.substr(0, stack.name.rfind('.'));
    for (int expert = 0; expert < 4; ++expert) {
      for (const std::string part : {"gate", "up", "down"}) {
        if (is_gate_up == (part == "down") || part == skipped) continue;
        formats::StoredTensor tensor = stack;
        tensor.name = absl::StrCat(prefix, ".", expert, ".", part, "_proj.weight");
        tensor.shape = {kInner, kHidden};
        if (part == "down") tensor.shape = {kHidden, kInner};
        tensor.bytes = stack.bytes.first(kInner * kHidden * sizeof(std::uint16_t));
        tensors.push_back(tensor);
      }
    }
    return tensors;
  };
  const absl::Status found = FindReplaced(
      "llama4-bf16", [&](const formats::StoredTensor& tensor) { return split(tensor, ""); });
  EXPECT_TRUE(found.ok()) << found;
  const absl::Status missing = FindReplaced(
      "llama4-bf16", [&](const formats::StoredTensor& tensor) { return split(tensor, "up"); });
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("feed_forward.experts.0.up_proj.weight is missing"));
}

TEST(HybridConfigTest, RefusesQuantizedConvolutionsByName) {
  const absl::Status found = FindAll("kimi-linear-bf16", [](formats::StoredTensor& tensor) {
    if (tensor.name != "model.layers.0.self_attn.k_conv1d.weight") return;
    tensor.dtype = DType::kInvalid;
    tensor.type = "Q8_0";
    tensor.blocks = formats::GgmlType::kQ8_0;
  });
  EXPECT_EQ(found.code(), absl::StatusCode::kUnimplemented) << found;
  EXPECT_THAT(std::string(found.message()),
              HasSubstr("tensor model.layers.0.self_attn.k_conv1d.weight: type Q8_0"));
}

// One letter a layer: a attention, r recurrent or convolution, m MLP, e experts.
std::string Kinds(const ModelSpec& spec) {
  std::string kinds;
  for (const LayerSpec& layer : spec.layers) {
    const bool has_attention = layer.attention != AttentionKind::kNone;
    kinds += layer.has_kv() ? 'a' : has_attention ? 'r' : layer.mlp == MlpKind::kMoe ? 'e' : 'm';
  }
  return kinds;
}

TEST(HybridConfigTest, LayersAreListedInManyForms) {
  const auto kinds = [](const std::string& folder, const json& changes) {
    return Kinds(SpecOf(With(folder, changes)));
  };
  EXPECT_EQ(kinds("granite-hybrid-bf16", {}), "rrar");
  const json new_names = {"linear_attention", "full_attention", "linear_attention",
                          "full_attention"};
  EXPECT_EQ(kinds("granite-hybrid-bf16", {{"layer_types", new_names}}), "rara");
  EXPECT_EQ(
      kinds("granite-hybrid-bf16", {{"layer_types", nullptr}, {"layers_block_type", new_names}}),
      "rara");
  EXPECT_EQ(kinds("granite-hybrid-bf16", {{"layer_types", nullptr}}), "rrrr");
  EXPECT_EQ(kinds("nemotron-h-bf16", {}), "reamre");
  EXPECT_EQ(kinds("nemotron-h-bf16",
                  {{"layers_block_type", {"mlp", "moe", "attention", "mamba", "mamba", "mlp"}}}),
            "mearrm");
  EXPECT_EQ(kinds("lfm2-bf16", {}), "rrar");
  EXPECT_EQ(kinds("lfm2-bf16", {{"layer_types", nullptr}, {"full_attn_idxs", {0, 3}}}), "arra");
  EXPECT_EQ(kinds("lfm2-bf16", {{"layer_types", nullptr}}), "aaaa");
  // Numbers of Kimi-Linear count from 1.
  EXPECT_EQ(kinds("kimi-linear-bf16", {}), "rrra");
  json kda = ConfigOf("kimi-linear-bf16")["linear_attn_config"];
  kda["full_attn_layers"] = {2, 4};
  kda["kda_layers"] = {1, 3};
  EXPECT_EQ(kinds("kimi-linear-bf16", {{"layer_types", new_names}, {"linear_attn_config", kda}}),
            "rara");
  kda.erase("full_attn_layers");
  kda.erase("kda_layers");
  EXPECT_EQ(kinds("kimi-linear-bf16", {{"layer_types", new_names}, {"linear_attn_config", kda}}),
            "rara");
}

TEST(HybridConfigTest, RejectsLayersByName) {
  const auto kda = [](const json& changes) {
    json keys = ConfigOf("kimi-linear-bf16")["linear_attn_config"];
    keys.update(changes);
    return json{{"linear_attn_config", keys}};
  };
  const struct {
    const char* folder;
    json changes;
    const char* message;
  } refused[] = {
      {"granite-hybrid-bf16", {{"layer_types", {"mamba"}}}, "layer_types has 1 entries"},
      {"granite-hybrid-bf16",
       {{"layer_types", {"mamba", "mamba", "conv", "mamba"}}},
       "layer_types[2] \"conv\" is not supported by granite_hybrid"},
      {"nemotron-h-bf16", {{"hybrid_override_pattern", "ME*"}}, "hybrid_override_pattern has 3"},
      {"nemotron-h-bf16", {{"hybrid_override_pattern", "ME*-MX"}}, "the characters M * - E"},
      {"nemotron-h-bf16", {{"hybrid_override_pattern", nullptr}}, "layers_block_type are missing"},
      {"lfm2-bf16",
       {{"layer_types", nullptr}, {"full_attn_idxs", {4}}},
       "full_attn_idxs has layer 4, it must be 0 to 3"},
      {"kimi-linear-bf16", kda({{"full_attn_layers", {0}}}), "has layer 0, it must be 1 to 4"},
      {"kimi-linear-bf16", kda({{"full_attn_layers", {3, 4}}}), "must name layer 3 once"},
      {"kimi-linear-bf16", kda({{"kda_layers", {1, 2}}}), "must name layer 3 once"},
      {"kimi-linear-bf16", {{"linear_attn_config", nullptr}}, "linear_attn_config is missing"},
      {"kimi-linear-bf16",
       {{"linear_attn_config", nullptr},
        {"layer_types", json(std::vector<std::string>(4, "full_attention"))}},
       "linear_attn_config is missing"},
      {"kimi-linear-bf16", kda({{"chunk", 64}}), "linear_attn_config.chunk 64 is not supported"},
      {"kimi-linear-bf16",
       {{"layer_types",
         {"linear_attention", "full_attention", "linear_attention", "full_attention"}}},
       "layer_types[1] is full_attention, but linear_attn_config.kda_layers lists layer 2"},
      {"kimi-linear-bf16",
       {{"layer_types", json(std::vector<std::string>(4, "linear_attention"))}},
       "layer_types[3] is linear_attention, but linear_attn_config.full_attn_layers lists layer 4"},
  };
  for (const auto& c : refused) {
    EXPECT_THAT(ErrorOf(With(c.folder, c.changes)), HasSubstr(c.message));
  }
}

TEST(HybridConfigTest, RejectsUnsupportedKeysByKeyAndValue) {
  const struct {
    const char* folder;
    json changes;
    const char* message;
  } refused[] = {
      {"granite-hybrid-bf16", {{"mamba_proj_bias", true}}, "mamba_proj_bias true"},
      {"granite-hybrid-bf16", {{"mamba_n_groups", 3}}, "heads is 4"},
      {"granite-hybrid-bf16", {{"mamba_d_state", 257}}, "mamba_d_state is 257"},
      {"granite-hybrid-bf16", {{"mamba_d_head", "auto"}, {"mamba_n_heads", 3}}, "mamba_d_head is"},
      {"granite-hybrid-bf16", {{"time_step_limit", {0.1}}}, "time_step_limit is [0.1]"},
      {"granite-hybrid-bf16", {{"time_step_limit", {2, 1}}}, "time_step_limit is [2,1]"},
      {"granite-hybrid-bf16", {{"time_step_limit", {-1, 1}}}, "time_step_limit is [-1,1]"},
      {"granite-hybrid-bf16", {{"time_step_limit", {0, "x"}}}, "time_step_limit[1] must be a"},
      {"nemotron-h-bf16", {{"use_bias", true}}, "use_bias true"},
      {"nemotron-h-bf16", {{"mlp_hidden_act", "silu"}}, "mlp_hidden_act \"silu\""},
      {"nemotron-h-bf16", {{"n_shared_experts", 2}}, "n_shared_experts 2"},
      {"nemotron-h-bf16", {{"conv_kernel", 9}}, "conv_kernel is 9"},
      {"nemotron-h-bf16", {{"layer_norm_epsilon", 0}}, "layer_norm_epsilon is 0"},
      {"lfm2-bf16", {{"conv_bias", true}}, "conv_bias true"},
      {"lfm2-bf16", {{"conv_L_cache", 1}}, "conv_L_cache is 1"},
      {"lfm2-bf16", {{"block_ffn_dim_multiplier", 0}}, "block_ffn_dim_multiplier is 0"},
      {"kimi-linear-bf16", {{"mla_use_nope", false}}, "mla_use_nope false"},
      {"kimi-linear-bf16",
       {{"num_shared_experts", 4096}, {"moe_intermediate_size", 1 << 20}},
       "num_shared_experts is 4096"},
      {"kimi-linear-bf16",
       {{"moe_router_activation_func", "softmax"}},
       "activation_func \"softmax"},
  };
  for (const auto& c : refused) {
    EXPECT_THAT(ErrorOf(With(c.folder, c.changes)), HasSubstr(c.message));
  }
}

TEST(HybridConfigTest, TheLimitOfTimeStepsMayBeInfinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::string bare = ReadTestFile("models/nemotron-h-bf16/config.json");
  ASSERT_THAT(bare, HasSubstr(" Infinity\n"));
  for (const std::string& text : {bare, ConfigOf("nemotron-h-bf16").dump()}) {
    const auto spec = ReadText(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->layers[0].recurrent.dt_min, 0);
    EXPECT_EQ(spec->layers[0].recurrent.dt_max, kInfinity);
  }
  const ModelSpec spec = SpecOf(With("nemotron-h-bf16", {{"time_step_limit", {0.25, 2}}}));
  EXPECT_EQ(spec.layers[0].recurrent.dt_min, 0.25f);
  EXPECT_EQ(spec.layers[0].recurrent.dt_max, 2);
  // Numbers that f32 cannot represent are infinite.
  const ModelSpec wide = SpecOf(With("nemotron-h-bf16", {{"time_step_limit", {0, 1e300}}}));
  EXPECT_EQ(wide.layers[0].recurrent.dt_max, kInfinity);
  // Other keys must be JSON.
  json config = ConfigOf("nemotron-h-bf16");
  config["routed_scaling_factor"] = "@";
  std::string text = config.dump();
  text.replace(text.find("\"@\""), 3, "Infinity");
  EXPECT_FALSE(ReadText(text).ok());
}

TEST(HybridConfigTest, AbsentKeysHaveTheDefaultsOfTheFamily) {
  const json none = nullptr;
  const auto mamba = [](const ModelSpec& spec) { return spec.layers[0].recurrent; };
  EXPECT_EQ(mamba(SpecOf(With("granite-hybrid-bf16", {{"mamba_d_head", "auto"}}))).value_size, 32u);
  EXPECT_EQ(mamba(SpecOf(With("granite-hybrid-bf16", {{"mamba_d_head", none}}))).value_size, 32u);
  EXPECT_EQ(mamba(SpecOf(With("granite-hybrid-bf16", {{"mamba_d_state", none}}))).key_size, 256u);
  EXPECT_FALSE(mamba(SpecOf(With("granite-hybrid-bf16", {{"mamba_conv_bias", false}}))).conv_bias);
  EXPECT_TRUE(mamba(SpecOf(With("granite-hybrid-bf16", {{"mamba_conv_bias", none}}))).conv_bias);
  // The inner size does not follow from expand * hidden_size.
  EXPECT_EQ(mamba(SpecOf(With("nemotron-h-bf16", {{"expand", 4}}))).value_columns(), 4u * 24);
  EXPECT_EQ(SpecOf(With("nemotron-h-bf16", {{"moe_latent_size", none}})).layers[1].moe.latent, 0u);
  const json kimi = With("kimi-linear-bf16", {{"model_max_length", none}});
  EXPECT_EQ(SpecOf(kimi).max_position, 1048576u);
}

TEST(HybridConfigTest, OnlyNemotronNormalizesByGroup) {
  const ModelSpec granite = SpecOf(With("granite-hybrid-bf16", {{"mamba_n_groups", 2}}));
  EXPECT_EQ(granite.layers[0].recurrent.key_heads, 2u);
  EXPECT_EQ(granite.layers[0].recurrent.norm_groups, 1u);
  const ModelSpec nemotron = SpecOf(With("nemotron-h-bf16", {{"n_groups", 4}}));
  EXPECT_EQ(nemotron.layers[0].recurrent.key_heads, 4u);
  EXPECT_EQ(nemotron.layers[0].recurrent.norm_groups, 4u);
}

TEST(HybridConfigTest, GraniteRotatesOnlyIfAskedTo) {
  const auto rope = [](const json& type) {
    return SpecOf(With("granite-hybrid-bf16", {{"position_embedding_type", type}}));
  };
  EXPECT_EQ(rope("rope").layers[2].heads.rope, 0);
  EXPECT_EQ(rope("rope").rope_tables.size(), 1u);
  for (const json& type : {json("nope"), json(nullptr)}) {
    EXPECT_EQ(rope(type).layers[2].heads.rope, -1);
    EXPECT_TRUE(rope(type).rope_tables.empty());
  }
}

// Granite without experts has the shared MLP alone.
TEST(HybridConfigTest, GraniteMayHaveNoExperts) {
  const ModelSpec spec =
      SpecOf(With("granite-hybrid-bf16", {{"num_local_experts", 0}, {"num_experts_per_tok", 0}}));
  for (const LayerSpec& layer : spec.layers) {
    EXPECT_EQ(layer.mlp, MlpKind::kDense);
    EXPECT_EQ(layer.dense.intermediate, 32u);
  }
}

TEST(HybridConfigTest, Lfm2AdjustsTheWidthOfItsMlp) {
  const auto width = [](const json& changes) {
    return SpecOf(With("lfm2-bf16", changes)).layers[0].dense.intermediate;
  };
  const json none = nullptr;
  EXPECT_EQ(width({}), 96u) << "two thirds of 144";
  EXPECT_EQ(width({{"block_ffn_dim_multiplier", 1.3}}), 128u) << "124, rounded up to 8";
  EXPECT_EQ(width({{"block_ffn_dim_multiplier", none}, {"block_ff_dim", 145}}), 96u);
  EXPECT_EQ(width({{"block_auto_adjust_ff_dim", false}}), 144u);
  EXPECT_EQ(width({{"block_multiple_of", none}}), 256u);
  EXPECT_EQ(width({{"intermediate_size", 300}}), 96u) << "block_ff_dim takes precedence";
  EXPECT_EQ(width({{"intermediate_size", 300}, {"block_ff_dim", none}}), 200u);
  EXPECT_TRUE(SpecOf(ConfigOf("lfm2-bf16")).tie_embeddings);
  EXPECT_FALSE(SpecOf(With("lfm2-bf16", {{"tie_embedding", false}})).tie_embeddings);
  EXPECT_FALSE(SpecOf(With("lfm2-bf16", {{"tie_word_embeddings", false}})).tie_embeddings);
}

}  // namespace
}  // namespace quire::models
