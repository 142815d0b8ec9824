// Configurations of each family: the spec as a golden text, equal specs for every form of the
// configuration, the meaning of absent, null and zero, and rejections by name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/families/registry.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json ConfigOf(const std::string& folder) {
  return json::parse(ReadTestFile("models/" + folder + "/config.json"));
}

absl::StatusOr<runtime::CheckedSpec> Read(const json& config,
                                          std::uint32_t max_context_tokens = 0) {
  EditableFiles files;
  files.Set("config.json", config.dump());
  return runtime::ReadModelSpec(files.Files(), DeviceKind::kCpu, max_context_tokens);
}

ModelSpec SpecOf(const json& config, std::uint32_t max_context_tokens = 0) {
  const auto read = Read(config, max_context_tokens);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->spec : ModelSpec();
}

std::string ErrorOf(const json& config) {
  const auto read = Read(config);
  EXPECT_FALSE(read.ok()) << config;
  return std::string(read.status().message());
}

json Without(json config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) config.erase(key);
  return config;
}

const char* const kFolders[] = {
    "mistral-window-bf16", "qwen2-bf16",    "qwen3-hd128-bf16", "smollm3-bf16",
    "granite-bf16",        "gemma2-bf16",   "gemma3-text-bf16", "phi3-bf16",
    "phi3-longrope-bf16",  "olmo2-bf16",    "ministral-bf16",   "phi4-mini-bf16",
    "olmo3-bf16",          "glm4-moe-bf16", "minimax-m2-bf16",  "llama4-bf16"};

struct Golden {
  const char* folder;
  const char* text;
};

const Golden kGoldens[] = {
    {"mistral-window-bf16",
     "model vocab 384 hidden 128 max_position 512 eos 1 bos 0\n"
     "rope 0: 16 entries 1 to 0.000177828 factor 1\n"
     "layers 0 to 1: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+32 window 32; attn_out none; mlp_in rms eps 1e-05; gated silu "
     "96; mlp_out none; group 0\n"
     "final norm rms eps 1e-05\n"},
    {"qwen2-bf16",
     "model vocab 384 hidden 128 max_position 512 tied eos 1 bos 0\n"
     "rope 0: 16 entries 1 to 2.37137e-06 factor 1\n"
     "layers 0 to 1: sequential; attn_in rms eps 1e-06; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+32 q_bias k_bias v_bias; attn_out none; mlp_in rms eps 1e-06; "
     "gated silu 128; mlp_out none; group 0\n"
     "final norm rms eps 1e-06\n"},
    {"qwen3-hd128-bf16",
     "model vocab 384 hidden 64 max_position 512 tied eos 1 bos 0\n"
     "rope 0: 64 entries 1 to 1.24094e-06 factor 1\n"
     "layers 0 to 1: sequential; attn_in rms eps 1e-06; heads 2 kv 1 size 128 v 128 scale "
     "0.0883883 rope 0 half 0+128 qk_norm rms eps 1e-06; attn_out none; mlp_in rms eps 1e-06; "
     "gated silu 160; mlp_out none; group 0\n"
     "final norm rms eps 1e-06\n"},
    {"smollm3-bf16",
     "model vocab 384 hidden 64 max_position 512 tied eos 1 bos 0 pad 2\n"
     "rope 0: 16 entries 1 to 5.24464e-07 factor 1\n"
     "layers 0 to 2: sequential; attn_in rms eps 1e-06; heads 2 kv 1 size 32 v 32 scale "
     "0.176777 rope 0 half 0+32; attn_out none; mlp_in rms eps 1e-06; gated silu 96; mlp_out "
     "none; group 0\n"
     "layers 3 to 3: sequential; attn_in rms eps 1e-06; heads 2 kv 1 size 32 v 32 scale "
     "0.176777 rope -1; attn_out none; mlp_in rms eps 1e-06; gated silu 96; mlp_out none; "
     "group 0\n"
     "final norm rms eps 1e-06\n"},
    {"granite-bf16",
     "model vocab 384 hidden 64 max_position 512 tied embed_scale 6 logit_scale 2 eos 1 bos "
     "0\n"
     "rope 0: 16 entries 1 to 0.000177828 factor 1\n"
     "layers 0 to 2: sequential; attn_in rms eps 1e-05; heads 2 kv 1 size 32 v 32 scale 0.3 "
     "rope 0 half 0+32; attn_out none; mlp_in rms eps 1e-05; gated silu 160; mlp_out none; "
     "group 0 residual_scale 0.6\n"
     "final norm rms eps 1e-05\n"},
    {"gemma2-bf16",
     "model vocab 384 hidden 64 max_position 512 tied embed_scale 8 logit_softcap 20 eos 1 "
     "bos 0 pad 2\n"
     "rope 0: 16 entries 1 to 0.000177828 factor 1\n"
     "layers 0 to 0: sequential; attn_in rms eps 1e-06 offset 1; heads 4 kv 2 size 32 v 32 "
     "scale 0.25 rope 0 half 0+32 softcap 6 window 32; attn_out rms eps 1e-06 offset 1; "
     "mlp_in rms eps 1e-06 offset 1; gated gelu_tanh 96; mlp_out rms eps 1e-06 offset 1; "
     "group 0\n"
     "layers 1 to 1: sequential; attn_in rms eps 1e-06 offset 1; heads 4 kv 2 size 32 v 32 "
     "scale 0.25 rope 0 half 0+32 softcap 6; attn_out rms eps 1e-06 offset 1; mlp_in rms eps "
     "1e-06 offset 1; gated gelu_tanh 96; mlp_out rms eps 1e-06 offset 1; group 1\n"
     "layers 2 to 2: sequential; attn_in rms eps 1e-06 offset 1; heads 4 kv 2 size 32 v 32 "
     "scale 0.25 rope 0 half 0+32 softcap 6 window 32; attn_out rms eps 1e-06 offset 1; "
     "mlp_in rms eps 1e-06 offset 1; gated gelu_tanh 96; mlp_out rms eps 1e-06 offset 1; "
     "group 0\n"
     "layers 3 to 3: sequential; attn_in rms eps 1e-06 offset 1; heads 4 kv 2 size 32 v 32 "
     "scale 0.25 rope 0 half 0+32 softcap 6; attn_out rms eps 1e-06 offset 1; mlp_in rms eps "
     "1e-06 offset 1; gated gelu_tanh 96; mlp_out rms eps 1e-06 offset 1; group 1\n"
     "final norm rms eps 1e-06 offset 1\n"},
    {"gemma3-text-bf16",
     "model vocab 384 hidden 64 max_position 512 tied embed_scale 8 eos 1 bos 0 pad 2\n"
     "rope 0: 16 entries 0.125 to 2.96422e-07 factor 1\n"
     "rope 1: 16 entries 1 to 0.000177828 factor 1\n"
     "layers 0 to 4: sequential; attn_in rms eps 1e-06 offset 1; heads 2 kv 1 size 32 v 32 "
     "scale 0.204124 rope 1 half 0+32 qk_norm rms eps 1e-06 offset 1 window 24; attn_out rms "
     "eps 1e-06 offset 1; mlp_in rms eps 1e-06 offset 1; gated gelu_tanh 96; mlp_out rms eps "
     "1e-06 offset 1; group 0\n"
     "layers 5 to 5: sequential; attn_in rms eps 1e-06 offset 1; heads 2 kv 1 size 32 v 32 "
     "scale 0.204124 rope 0 half 0+32 qk_norm rms eps 1e-06 offset 1; attn_out rms eps 1e-06 "
     "offset 1; mlp_in rms eps 1e-06 offset 1; gated gelu_tanh 96; mlp_out rms eps 1e-06 "
     "offset 1; group 1\n"
     "layers 6 to 6: sequential; attn_in rms eps 1e-06 offset 1; heads 2 kv 1 size 32 v 32 "
     "scale 0.204124 rope 1 half 0+32 qk_norm rms eps 1e-06 offset 1 window 24; attn_out rms "
     "eps 1e-06 offset 1; mlp_in rms eps 1e-06 offset 1; gated gelu_tanh 96; mlp_out rms eps "
     "1e-06 offset 1; group 0\n"
     "final norm rms eps 1e-06 offset 1\n"},
    {"phi3-bf16",
     "model vocab 384 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
     "rope 0: 16 entries 1 to 0.000177828 factor 1\n"
     "layers 0 to 2: sequential; attn_in rms eps 1e-05; heads 2 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+32 window 47; attn_out none; mlp_in rms eps 1e-05; gated silu "
     "160; mlp_out none; group 0\n"
     "final norm rms eps 1e-05\n"},
    {"phi3-longrope-bf16",
     "model vocab 384 hidden 128 max_position 560 tied eos 1 bos 0 pad 2\n"
     "rope 0: 24 entries 0.984155 to 2.38702e-05 factor 1.13161\n"
     "layers 0 to 1: sequential; attn_in rms eps 1e-05; heads 2 kv 1 size 64 v 64 scale 0.125 "
     "rope 0 half 0+48; attn_out none; mlp_in rms eps 1e-05; gated silu 128; "
     "mlp_out none; group 0\n"
     "final norm rms eps 1e-05\n"},
    {"olmo2-bf16",
     "model vocab 320 hidden 128 max_position 512 eos 1 bos 0 pad 2\n"
     "rope 0: 16 entries 1 to 4.54167e-06 factor 1\n"
     "layers 0 to 1: sequential; attn_in none; heads 4 kv 4 size 32 v 32 scale 0.176777 rope "
     "0 half 0+32 qk_norm rms eps 1e-06 whole; attn_out rms eps 1e-06; mlp_in none; gated "
     "silu 64; mlp_out rms eps 1e-06; group 0\n"
     "final norm rms eps 1e-06\n"},
    {"ministral-bf16",
     "model vocab 384 hidden 64 max_position 512 eos 1 bos 0\n"
     "rope 0: 16 entries 1 to 3.16228e-08 factor 1\n"
     "layers 0 to 0: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+32; attn_out none; mlp_in rms eps 1e-05; gated silu 96; mlp_out "
     "none; group 0\n"
     "layers 1 to 3: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+32 window 24; attn_out none; mlp_in rms eps 1e-05; gated silu "
     "96; mlp_out none; group 1\n"
     "layers 4 to 4: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+32; attn_out none; mlp_in rms eps 1e-05; gated silu 96; mlp_out "
     "none; group 0\n"
     "final norm rms eps 1e-05\n"},
    {"phi4-mini-bf16",
     "model vocab 384 hidden 96 max_position 1120 tied eos 1 bos 0 pad 2\n"
     "rope 0: 12 entries 1 to 1.34652e-05 factor 1.19197\n"
     "layers 0 to 2: sequential; attn_in rms eps 1e-05; heads 3 kv 1 size 32 v 32 scale "
     "0.176777 rope 0 half 0+24; attn_out none; mlp_in rms eps 1e-05; gated silu 128; mlp_out "
     "none; group 0\n"
     "final norm rms eps 1e-05\n"},
    {"olmo3-bf16",
     "model vocab 304 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
     "rope 0: 8 entries 1 to 1.28917e-06 factor 1.2\n"
     "rope 1: 8 entries 1 to 1.03134e-05 factor 1\n"
     "layers 0 to 2: sequential; attn_in none; heads 4 kv 2 size 16 v 16 scale 0.25 rope 1 "
     "half 0+16 qk_norm rms eps 1e-06 whole window 24; attn_out rms eps 1e-06; mlp_in none; "
     "gated silu 96; mlp_out rms eps 1e-06; group 0\n"
     "layers 3 to 3: sequential; attn_in none; heads 4 kv 2 size 16 v 16 scale 0.25 rope 0 "
     "half 0+16 qk_norm rms eps 1e-06 whole; attn_out rms eps 1e-06; mlp_in none; gated silu "
     "96; mlp_out rms eps 1e-06; group 1\n"
     "final norm rms eps 1e-06\n"},
    {"glm4-moe-bf16",
     "model vocab 304 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
     "rope 0: 8 entries 1 to 5.62341e-06 factor 1\n"
     "layers 0 to 0: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+16 q_bias k_bias v_bias qk_norm rms eps 1e-05; attn_out none; "
     "mlp_in rms eps 1e-05; gated silu 96; mlp_out none; group 0\n"
     "layers 1 to 2: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+16 q_bias k_bias v_bias qk_norm rms eps 1e-05; attn_out none; "
     "mlp_in rms eps 1e-05; experts 2 of 6 sigmoid gated silu 16 choice_bias renormalize eps "
     "1e-20 weight_scale 2.5 shared gated silu 16; mlp_out none; group 0\n"
     "final norm rms eps 1e-05\n"},
    {"minimax-m2-bf16",
     "model vocab 304 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
     "rope 0: 8 entries 1 to 1.37531e-06 factor 1\n"
     "layers 0 to 2: sequential; attn_in rms eps 1e-06; heads 4 kv 2 size 32 v 32 scale "
     "0.176777 rope 0 half 0+16 qk_norm rms eps 1e-06 whole; attn_out none; mlp_in rms eps "
     "1e-06; experts 2 of 6 sigmoid gated silu 16 choice_bias renormalize eps 0; mlp_out none; "
     "group 0\n"
     "final norm rms eps 1e-06\n"},
    {"llama4-bf16",
     "model vocab 304 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
     "rope 0: 16 entries 1 to 5.67709e-07 factor 1\n"
     "layers 0 to 0: sequential; attn_in rms eps 1e-05; heads 2 kv 1 size 32 v 32 scale "
     "0.176777 rope 0 interleaved 0+32 qk_norm rms eps 1e-05 no weight qk_norm_after_rope "
     "chunk 32; attn_out none; mlp_in rms eps 1e-05; gated silu 80; mlp_out none; group 0\n"
     "layers 1 to 1: sequential; attn_in rms eps 1e-05; heads 2 kv 1 size 32 v 32 scale "
     "0.176777 rope -1 position_scale 0.3 1/32; attn_out none; mlp_in rms eps 1e-05; experts 1 "
     "of 4 sigmoid_chosen gated silu 32 weight_on_input shared gated silu 32; mlp_out none; "
     "group 1\n"
     "layers 2 to 2: sequential; attn_in rms eps 1e-05; heads 2 kv 1 size 32 v 32 scale "
     "0.176777 rope 0 interleaved 0+32 qk_norm rms eps 1e-05 no weight qk_norm_after_rope "
     "chunk 32; attn_out none; mlp_in rms eps 1e-05; gated silu 80; mlp_out none; group 0\n"
     "layers 3 to 3: sequential; attn_in rms eps 1e-05; heads 2 kv 1 size 32 v 32 scale "
     "0.176777 rope -1 position_scale 0.3 1/32; attn_out none; mlp_in rms eps 1e-05; experts 1 "
     "of 4 sigmoid_chosen gated silu 32 weight_on_input shared gated silu 32; mlp_out none; "
     "group 1\n"
     "final norm rms eps 1e-05\n"}};

TEST(FamilyConfigTest, SpecsEqualTheGoldenTexts) {
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(golden.folder);
    EXPECT_EQ(DumpSpec(SpecOf(ConfigOf(golden.folder))), golden.text);
  }
}

// The configuration in the form of transformers 5: dtype, and rope_parameters with theta and the
// partial factor, per kind of layer where the family distinguishes them.
json NewForm(const json& old_form) {
  json config = Without(old_form, {"torch_dtype", "rope_theta", "rope_scaling",
                                   "partial_rotary_factor", "rope_local_base_freq"});
  config["dtype"] = old_form["torch_dtype"];
  json rope = {{"rope_type", "default"}};
  if (old_form.contains("rope_scaling") && old_form["rope_scaling"].is_object()) {
    rope = old_form["rope_scaling"];
    if (rope.contains("type")) rope["rope_type"] = rope["type"];
    rope.erase("type");
  }
  rope["rope_theta"] = old_form["rope_theta"];
  if (old_form.contains("partial_rotary_factor")) {
    rope["partial_rotary_factor"] = old_form["partial_rotary_factor"];
  }
  const bool by_type = old_form["model_type"] == "olmo3";
  if (!old_form.contains("rope_local_base_freq") && !by_type) {
    config["rope_parameters"] = rope;
    return config;
  }
  const json local_theta = old_form[by_type ? "rope_theta" : "rope_local_base_freq"];
  config["rope_parameters"] = {
      {"full_attention", rope},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local_theta}}}};
  return config;
}

TEST(FamilyConfigTest, OldAndNewFormsGiveEqualSpecs) {
  for (const char* folder : kFolders) {
    SCOPED_TRACE(folder);
    const json old_form = ConfigOf(folder);
    const json new_form = NewForm(old_form);
    ASSERT_NE(old_form, new_form);
    EXPECT_EQ(SpecOf(old_form), SpecOf(new_form));
    // Both forms together are valid if they agree.
    json both = old_form;
    both.update(new_form);
    EXPECT_EQ(SpecOf(old_form), SpecOf(both));
  }
}

TEST(FamilyConfigTest, LayerTypesGiveTheSameSpecAsTheRule) {
  json config = ConfigOf("gemma3-text-bf16");
  const ModelSpec by_rule = SpecOf(config);
  std::vector<std::string> types(7, "sliding_attention");
  types[5] = "full_attention";
  config["layer_types"] = types;
  EXPECT_EQ(SpecOf(config), by_rule);
  EXPECT_EQ(SpecOf(Without(config, {"sliding_window_pattern"})), by_rule);
  types[0] = "full_attention";
  config["layer_types"] = types;
  const ModelSpec other = SpecOf(config);
  EXPECT_EQ(other.layers[0].heads.window, 0u);
  EXPECT_EQ(other.layers[0].heads.rope, 0);
  EXPECT_EQ(other.layers[1].heads.window, 24u);
  EXPECT_EQ(other.layers[1].heads.rope, 1);
}

TEST(FamilyConfigTest, WindowsFollowEachRule) {
  const auto windows = [](const json& config) {
    std::vector<std::uint32_t> found;
    for (const LayerSpec& layer : SpecOf(config).layers) found.push_back(layer.heads.window);
    return found;
  };
  using Windows = std::vector<std::uint32_t>;
  json mistral = ConfigOf("mistral-window-bf16");
  EXPECT_EQ(windows(mistral), (Windows{32, 32}));
  mistral["max_position_embeddings"] = 8192;
  EXPECT_EQ(windows(Without(mistral, {"sliding_window"})), (Windows{4096, 4096}));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows(mistral), (Windows{0, 0}));

  json ministral = ConfigOf("ministral-bf16");
  EXPECT_EQ(windows(ministral), (Windows{0, 24, 24, 24, 0}));
  EXPECT_EQ(windows(Without(ministral, {"layer_types"})), (Windows(5, 24)));
  EXPECT_EQ(windows(Without(ministral, {"layer_types", "sliding_window"})), (Windows(5, 0)))
      << "4096 when absent, which is above all positions";
  // A Mistral with layer_types is a Ministral, as in AutoConfig.
  ministral["architectures"] = {"MistralForCausalLM"};
  ministral["model_type"] = "mistral";
  EXPECT_EQ(windows(ministral), (Windows{0, 24, 24, 24, 0}));

  json qwen = ConfigOf("qwen2-bf16");
  EXPECT_EQ(windows(qwen), (Windows{0, 0}));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(windows(qwen), (Windows{0, 32}));
  EXPECT_EQ(windows(Without(qwen, {"max_window_layers"})), (Windows{0, 0})) << "28 when absent";
  qwen["max_position_embeddings"] = 8192;
  EXPECT_EQ(windows(Without(qwen, {"sliding_window"})), (Windows{0, 4096}));

  json smollm = ConfigOf("smollm3-bf16");
  smollm.erase("layer_types");
  smollm["sliding_window"] = 16;
  EXPECT_EQ(windows(smollm), (Windows{0, 0, 0, 0}));
  smollm["use_sliding_window"] = true;
  EXPECT_EQ(windows(smollm), (Windows{0, 0, 0, 16})) << "layers without rope";

  json gemma2 = ConfigOf("gemma2-bf16");
  EXPECT_EQ(windows(gemma2), (Windows{32, 0, 32, 0}));
  gemma2["max_position_embeddings"] = 8192;
  EXPECT_EQ(windows(Without(gemma2, {"sliding_window"})), (Windows{4096, 0, 4096, 0}));
  json gemma3 = ConfigOf("gemma3-text-bf16");
  gemma3.erase("sliding_window_pattern");
  gemma3["_sliding_window_pattern"] = 3;
  EXPECT_EQ(windows(gemma3), (Windows{24, 24, 0, 24, 24, 0, 24}));

  json olmo3 = ConfigOf("olmo3-bf16");
  EXPECT_EQ(windows(olmo3), (Windows{24, 24, 24, 0}));
  EXPECT_EQ(windows(Without(olmo3, {"layer_types"})), (Windows{24, 24, 24, 0}));
  olmo3["max_position_embeddings"] = 8192;
  EXPECT_EQ(windows(Without(olmo3, {"sliding_window"})), (Windows{4096, 4096, 4096, 0}));

  json phi = ConfigOf("phi3-bf16");
  EXPECT_EQ(windows(phi), (Windows{47, 47, 47}));
  EXPECT_EQ(windows(Without(phi, {"sliding_window"})), (Windows{0, 0, 0}));
}

TEST(FamilyConfigTest, AbsentAndNullKeysHaveTheDefaultsOfTheFamily) {
  const auto heads = [](const std::string& folder, const char* key, const json& value) {
    json config = ConfigOf(folder);
    config["num_attention_heads"] = 64;
    config["hidden_size"] = 4096;
    config[key] = value;
    if (value == "absent") config.erase(key);
    return SpecOf(config).layers[0].heads;
  };
  const std::tuple<const char*, std::uint32_t> kv_heads[] = {
      {"mistral-window-bf16", 8}, {"qwen2-bf16", 32},   {"qwen3-hd128-bf16", 32},
      {"smollm3-bf16", 4},        {"gemma2-bf16", 4},   {"gemma3-text-bf16", 4},
      {"granite-bf16", 64},       {"phi3-bf16", 64},    {"olmo2-bf16", 64},
      {"olmo3-bf16", 64},         {"glm4-moe-bf16", 8}, {"minimax-m2-bf16", 8}};
  for (const auto& [folder, absent] : kv_heads) {
    SCOPED_TRACE(folder);
    EXPECT_EQ(heads(folder, "num_key_value_heads", "absent").num_kv_heads, absent);
    EXPECT_EQ(heads(folder, "num_key_value_heads", nullptr).num_kv_heads, 64u);
  }
  for (const auto& [folder, absent] : {std::pair{"qwen3-hd128-bf16", 128u},
                                       {"gemma2-bf16", 256u},
                                       {"gemma3-text-bf16", 256u},
                                       {"qwen2-bf16", 64u},
                                       {"glm4-moe-bf16", 64u}}) {
    SCOPED_TRACE(folder);
    EXPECT_EQ(heads(folder, "head_dim", "absent").head_size, absent);
    EXPECT_EQ(heads(folder, "head_dim", nullptr).head_size, 64u) << "hidden_size / heads";
  }
  json gemma = ConfigOf("gemma2-bf16");
  EXPECT_TRUE(SpecOf(gemma).tie_embeddings) << "the key is absent";
  gemma = Without(gemma, {"attn_logit_softcapping", "final_logit_softcapping",
                          "query_pre_attn_scalar", "hidden_activation"});
  EXPECT_EQ(SpecOf(gemma).layers[0].heads.softcap, 50);
  EXPECT_EQ(SpecOf(gemma).logit_softcap, 30);
  EXPECT_EQ(SpecOf(gemma).layers[0].heads.scale, 1.0f / 16);
  EXPECT_EQ(SpecOf(gemma).layers[0].dense.act, Activation::kGeluTanh);
  gemma["attn_logit_softcapping"] = nullptr;
  gemma["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(SpecOf(gemma).layers[0].heads.softcap, 0);
  EXPECT_EQ(SpecOf(gemma).logit_softcap, 0);
  const json granite = Without(
      ConfigOf("granite-bf16"),
      {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"});
  EXPECT_EQ(SpecOf(granite).layers[0].heads.scale, 1) << "not d^-0.5";
  EXPECT_EQ(SpecOf(granite).layers[0].residual_scale, 1);
  EXPECT_EQ(SpecOf(granite).embed_scale, 1);
  EXPECT_EQ(SpecOf(granite).logit_scale, 1);
  json smollm = Without(ConfigOf("smollm3-bf16"), {"no_rope_layers"});
  smollm["no_rope_layer_interval"] = 2;
  EXPECT_EQ(SpecOf(smollm).layers[0].heads.rope, 0);
  EXPECT_EQ(SpecOf(smollm).layers[1].heads.rope, -1);
  smollm.erase("no_rope_layer_interval");
  EXPECT_EQ(SpecOf(smollm).layers[1].heads.rope, 0);
  EXPECT_EQ(SpecOf(smollm).layers[3].heads.rope, -1);
}

TEST(FamilyConfigTest, ChunksAndScalesFollowTheKeysOfLlama4) {
  json config = ConfigOf("llama4-bf16");
  const auto chunks = [](const json& config) {
    std::vector<std::uint32_t> found;
    for (const LayerSpec& layer : SpecOf(config).layers) found.push_back(layer.heads.chunk);
    return found;
  };
  const auto is_moe = [](const json& config) {
    std::vector<bool> found;
    for (const LayerSpec& layer : SpecOf(config).layers)
      found.push_back(layer.mlp == MlpKind::kMoe);
    return found;
  };
  using Chunks = std::vector<std::uint32_t>;
  EXPECT_EQ(chunks(config), (Chunks{32, 0, 32, 0})) << "layers with rope";
  EXPECT_EQ(chunks(Without(config, {"attention_chunk_size"})), (Chunks{8192, 0, 8192, 0}));
  EXPECT_EQ(chunks(Without(config, {"no_rope_layers"})), (Chunks{32, 32, 32, 0}));
  json other = config;
  other["no_rope_layers"] = json::array();
  EXPECT_EQ(chunks(other), (Chunks{32, 32, 32, 0})) << "an empty list counts as absent";
  other["layer_types"] = {"full_attention", "chunked_attention", "full_attention",
                          "chunked_attention"};
  EXPECT_EQ(chunks(other), (Chunks{0, 32, 0, 32}));
  EXPECT_EQ(SpecOf(other).layers[0].heads.rope, 0) << "layer_types do not change rope";

  EXPECT_EQ(is_moe(config), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(is_moe(Without(config, {"interleave_moe_layer_step"})), std::vector<bool>(4, true));
  config["moe_layers"] = {0, 3};
  EXPECT_EQ(is_moe(config), (std::vector<bool>{true, false, false, true}));
  const ModelSpec spec = SpecOf(Without(config, {"intermediate_size_mlp"}));
  EXPECT_EQ(spec.layers[1].dense.intermediate, 16384u);
  EXPECT_EQ(spec.layers[0].moe.shared->intermediate, 32u) << "as wide as an expert";

  const auto scale = [](const json& config, std::size_t layer) {
    return SpecOf(config).layers[layer].heads.q_position_scale;
  };
  const PositionScale scaled{.beta = 0.3f, .period = 32, .offset = 1};
  EXPECT_EQ(scale(config, 1), scaled);
  EXPECT_EQ(scale(config, 0), PositionScale{}) << "layers with rope are not scaled";
  EXPECT_EQ(scale(Without(config, {"attn_scale", "floor_scale", "attn_temperature_tuning"}), 1),
            (PositionScale{.beta = 0.1f, .period = 8192, .offset = 1}));
  for (const json& on : {json(true), json(4), json(nullptr)}) {
    config["attn_temperature_tuning"] = on;
    EXPECT_EQ(scale(config, 1), scaled) << on;
  }
  for (const json& off : {json(false), json(0)}) {
    config["attn_temperature_tuning"] = off;
    EXPECT_EQ(scale(config, 1), PositionScale{}) << off;
  }
  const AttentionSpec heads = SpecOf(Without(config, {"use_qk_norm"})).layers[0].heads;
  EXPECT_EQ(heads.qk_norm.kind, NormKind::kRms) << "true when absent";
  EXPECT_FALSE(heads.qk_norm.has_weight);
  EXPECT_TRUE(heads.qk_norm_after_rope);
}

TEST(FamilyConfigTest, AbsentKeysOfSparseFamiliesHaveTheirDefaults) {
  const json glm = ConfigOf("glm4-moe-bf16");
  const auto heads = [](const json& config) { return SpecOf(config).layers[0].heads; };
  EXPECT_EQ(heads(Without(glm, {"partial_rotary_factor"})).rotary_size, 16u) << "half a head";
  EXPECT_EQ(heads(Without(glm, {"use_qk_norm"})).qk_norm, NormSpec{}) << "false when absent";
  EXPECT_FALSE(heads(Without(glm, {"attention_bias"})).q_bias);
  EXPECT_FALSE(heads(glm).o_bias);
  const json bare =
      Without(glm, {"n_routed_experts", "num_experts_per_tok", "n_shared_experts",
                    "moe_intermediate_size", "routed_scaling_factor", "norm_topk_prob",
                    "first_k_dense_replace", "n_group", "topk_group", "num_nextn_predict_layers"});
  const ModelSpec spec = SpecOf(bare);
  EXPECT_EQ(spec.layers[0].mlp, MlpKind::kDense);
  const MoeSpec& moe = spec.layers[1].moe;
  EXPECT_EQ(moe.num_experts, 128u);
  EXPECT_EQ(moe.top_k, 8u);
  EXPECT_EQ(moe.shared->intermediate, 1408u);
  EXPECT_EQ(moe.weight_scale, 1);
  EXPECT_TRUE(moe.renormalize);
  EXPECT_EQ(moe.groups, 1u);

  json minimax = ConfigOf("minimax-m2-bf16");
  EXPECT_EQ(heads(Without(minimax, {"rotary_dim"})).rotary_size, 32u) << "the whole head";
  minimax["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(heads(minimax).rotary_size, 16u);
  EXPECT_EQ(heads(Without(minimax, {"rotary_dim"})).rotary_size, 16u);
  minimax["use_routing_bias"] = false;
  EXPECT_FALSE(SpecOf(minimax).layers[0].moe.choice_bias);
  minimax.erase("use_routing_bias");
  EXPECT_TRUE(SpecOf(minimax).layers[0].moe.choice_bias);
  EXPECT_EQ(heads(Without(minimax, {"use_qk_norm"})).qk_norm.kind, NormKind::kRms);

  // A file of transformers 5 without settings for a kind of layer is an error.
  json olmo3 = ConfigOf("olmo3-bf16");
  EXPECT_FLOAT_EQ(SpecOf(Without(olmo3, {"rope_theta"})).rope_tables[1].inv_freq[1],
                  static_cast<float>(std::pow(500000.0, -2.0 / 16)));
  olmo3["rope_theta"] = 10000;
  EXPECT_FLOAT_EQ(SpecOf(olmo3).rope_tables[1].inv_freq[1],
                  static_cast<float>(std::pow(10000.0, -2.0 / 16)));
}

// sqrt(hidden_size) is rounded to the type of the weights before it multiplies. The sizes are
// published ones.
TEST(FamilyConfigTest, EmbeddingScaleIsRoundedToTheTrainedType) {
  json config = ConfigOf("gemma2-bf16");
  const auto scale = [&](std::uint32_t hidden, const char* dtype) {
    config["hidden_size"] = hidden;
    config["torch_dtype"] = dtype;
    return SpecOf(config).embed_scale;
  };
  EXPECT_EQ(scale(2304, "bfloat16"), 48);
  EXPECT_EQ(scale(3072, "bfloat16"), 55.5f);
  EXPECT_EQ(scale(3584, "bfloat16"), 59.75f);
  EXPECT_EQ(scale(5376, "bfloat16"), 73.5f);
  EXPECT_FLOAT_EQ(scale(3584, "float32"), 59.866518f);
}

TEST(FamilyConfigTest, ContextSelectsTheLongropeFactors) {
  const json config = ConfigOf("phi3-longrope-bf16");
  const auto table = [&](std::uint32_t context) { return SpecOf(config, context).rope_tables[0]; };
  EXPECT_EQ(table(140), table(1)) << "the original length itself is short";
  EXPECT_EQ(table(141), table(0)) << "without a limit it is max_position_embeddings, 560";
  EXPECT_NE(table(140), table(141));
  EXPECT_EQ(table(140).attention_factor, table(141).attention_factor);
  EXPECT_FLOAT_EQ(table(140).attention_factor, 1.1316065f);  // sqrt(1 + ln 4 / ln 140)
  EXPECT_FLOAT_EQ(table(140).inv_freq[0], 1 / 1.2719f);
  EXPECT_FLOAT_EQ(table(141).inv_freq[0], 1 / 1.0161f);
  for (const char* old_name : {"su", "yarn"}) {
    json old_form = config;
    old_form["rope_scaling"]["type"] = old_name;
    EXPECT_EQ(SpecOf(old_form), SpecOf(config)) << old_name;
  }
}

TEST(FamilyConfigTest, FingerprintIncludesTheLongropeFactors) {
  const TestBackend cpu;
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/phi3-longrope-bf16"));
  const auto fingerprint = [&](std::uint32_t context) {
    const auto model = runtime::LoadModel(*files, cpu.backend, {.max_context_tokens = context});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? (*model)->fingerprint : "";
  };
  EXPECT_EQ(fingerprint(100), fingerprint(140));
  EXPECT_EQ(fingerprint(141), fingerprint(0));
  EXPECT_NE(fingerprint(140), fingerprint(141));
}

// Random weights have the names and shapes that the family defines.
TEST(FamilyConfigTest, DummyWeightsHaveRealSizes) {
  const TestBackend cpu;
  std::vector<const char*> folders(std::begin(kFolders), std::end(kFolders));
  folders.insert(folders.end(), {"mixtral-bf16", "qwen3-moe-bf16", "gpt-oss-bf16",
                                 "deepseek-v2-bf16", "deepseek-v3-bf16", "deepseek-v3-noqlora-bf16",
                                 "glm4-moe-lite-bf16", "deepseek-v32-bf16", "glm-moe-dsa-bf16"});
  for (const char* folder : folders) {
    SCOPED_TRACE(folder);
    EditableFiles only_config;
    only_config.Set("config.json", ConfigOf(folder).dump());
    const auto dummy =
        runtime::LoadModel(only_config.Files(), cpu.backend, {.mode = runtime::LoadMode::kDummy});
    ASSERT_TRUE(dummy.ok()) << dummy.status();
    const auto files =
        formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("models/", folder)));
    const auto real = runtime::LoadModel(*files, cpu.backend, {});
    ASSERT_TRUE(real.ok()) << real.status();
    EXPECT_EQ((*dummy)->weight_bytes, (*real)->weight_bytes);
    EXPECT_EQ((*dummy)->parameter_count, (*real)->parameter_count);
  }
}

struct Refusal {
  const char* folder;
  const char* key;
  json value;
  std::vector<std::string> names;  // names that the message must contain
};

std::vector<Refusal> OfKeysNotRead() {
  return {
      {"mistral-window-bf16", "attention_bias", true, {"attention_bias true", "mistral"}},
      {"qwen2-bf16", "attention_bias", true, {"attention_bias true", "qwen2"}},
      {"qwen2-bf16",
       "dual_chunk_attention_config",
       json::object({{"chunk_size", 8}}),
       {"dual_chunk_attention_config", "qwen2"}},
      {"qwen3-hd128-bf16", "attn_logit_softcapping", 50.0, {"attn_logit_softcapping", "qwen3"}},
      {"gemma3-text-bf16", "attn_logit_softcapping", 50.0, {"attn_logit_softcapping", "gemma3"}},
      {"gemma2-bf16", "rope_local_base_freq", 1e4, {"rope_local_base_freq", "gemma2"}},
      {"granite-bf16", "sliding_window", 64, {"sliding_window 64", "granite"}},
      {"granite-bf16", "num_local_experts", 8, {"num_local_experts 8", "granite"}},
      {"olmo2-bf16", "sliding_window", 64, {"sliding_window 64", "olmo2"}},
      {"olmo2-bf16", "clip_qkv", 8.0, {"clip_qkv", "olmo2"}},
      {"smollm3-bf16", "partial_rotary_factor", 0.5, {"partial_rotary_factor", "supported: 1"}},
      {"olmo3-bf16", "sliding_window_pattern", 4, {"sliding_window_pattern 4", "olmo3"}},
      {"glm4-moe-bf16", "rotary_dim", 16, {"rotary_dim 16", "glm4_moe"}},
      {"glm4-moe-bf16", "mlp_layer_types", json::array({"dense"}), {"mlp_layer_types", "glm4_moe"}},
      {"minimax-m2-bf16", "attention_bias", true, {"attention_bias true", "minimax_m2"}},
      {"minimax-m2-bf16", "shared_intermediate_size", 64, {"shared_intermediate_size 64"}},
      {"minimax-m2-bf16", "layernorm_mlp_alpha", 3.5, {"layernorm_mlp_alpha 3.5", "minimax_m2"}},
      {"minimax-m2-bf16", "qk_norm_type", "per_head", {"qk_norm_type \"per_head\""}},
      {"minimax-m2-bf16", "attn_type_list", json::array({1, 0, 1}), {"attn_type_list [1,0,1]"}}};
}

std::vector<Refusal> OfValues() {
  return {
      {"gemma2-bf16",
       "hidden_activation",
       "silu",
       {"hidden_activation \"silu\"", "gemma2", "gelu"}},
      {"qwen3-hd128-bf16", "hidden_act", "gelu", {"hidden_act \"gelu\"", "qwen3", "silu"}},
      {"gemma2-bf16", "attn_logit_softcapping", 0, {"attn_logit_softcapping is 0", "or null"}},
      {"gemma2-bf16", "query_pre_attn_scalar", nullptr, {"query_pre_attn_scalar"}},
      {"gemma2-bf16", "query_pre_attn_scalar", -1, {"query_pre_attn_scalar is -1", "1e-06 to"}},
      {"gemma2-bf16", "use_bidirectional_attention", true, {"use_bidirectional_attention"}},
      {"granite-bf16", "attention_multiplier", 0.0, {"attention_multiplier is 0", "1e-06 to"}},
      {"granite-bf16", "logits_scaling", "eight", {"logits_scaling"}},
      {"smollm3-bf16", "no_rope_layers", json::array({1, 1, 1}), {"no_rope_layers has 3", "4"}},
      {"smollm3-bf16", "no_rope_layers", json::array({1, 1, 1, 2}), {"no_rope_layers", "entry 2"}},
      {"smollm3-bf16", "no_rope_layer_interval", 0, {"no_rope_layer_interval"}},
      {"mistral-window-bf16", "sliding_window", 0, {"sliding_window"}},
      {"phi3-bf16", "sliding_window", -47, {"sliding_window"}},
      {"phi3-longrope-bf16", "partial_rotary_factor", 1.5, {"partial_rotary_factor is 1.5"}},
      {"phi3-longrope-bf16", "partial_rotary_factor", 0.5, {"short_factor has 24", "16", "32"}},
      {"glm4-moe-bf16",
       "partial_rotary_factor",
       0.1,
       {"partial_rotary_factor is 0.1", "3 columns", "2 to 32"}},
      {"glm4-moe-bf16", "use_qk_norm", "yes", {"use_qk_norm"}},
      {"minimax-m2-bf16", "use_qk_norm", false, {"use_qk_norm false", "minimax_m2"}},
      {"minimax-m2-bf16", "rotary_dim", 15, {"rotary_dim is 15", "even"}},
      {"minimax-m2-bf16", "rotary_dim", 64, {"rotary_dim", "32"}},
      {"minimax-m2-bf16",
       "partial_rotary_factor",
       1.0,
       {"partial_rotary_factor is 1", "32 columns", "rotary_dim is 16"}},
      {"minimax-m2-bf16", "scoring_func", "softmax", {"scoring_func \"softmax\"", "sigmoid"}},
      {"minimax-m2-bf16", "use_routing_bias", 1, {"use_routing_bias"}}};
}

std::vector<Refusal> OfLayers() {
  return {
      {"gemma2-bf16", "layer_types", json::array({"full_attention"}), {"layer_types has 1", "4"}},
      {"gemma2-bf16",
       "layer_types",
       json(std::vector<std::string>(4, "chunked_attention")),
       {"layer_types[0] \"chunked_attention\"", "sliding_attention"}},
      {"qwen2-bf16",
       "layer_types",
       json(std::vector<std::string>(2, "sliding_attention")),
       {"sliding_window", "layer_types"}},
      {"gemma2-bf16", "sliding_window", nullptr, {"sliding_window", "gemma2"}},
      {"ministral-bf16", "sliding_window", nullptr, {"sliding_window", "layer_types"}},
      {"granite-bf16",
       "layer_types",
       json(std::vector<std::string>(3, "sliding_attention")),
       {"layer_types[0] \"sliding_attention\"", "granite"}},
      {"gemma3-text-bf16", "_sliding_window_pattern", 3, {"sliding_window_pattern is 6", "3"}},
      {"llama4-bf16",
       "layer_types",
       json(std::vector<std::string>(4, "sliding_attention")),
       {"layer_types[0] \"sliding_attention\"", "llama4", "chunked_attention"}},
      {"llama4-bf16", "attention_chunk_size", nullptr, {"attention_chunk_size is null", "llama4"}},
      {"llama4-bf16", "attention_chunk_size", 0, {"attention_chunk_size"}},
      {"llama4-bf16", "moe_layers", json::array({1, 4}), {"moe_layers has layer 4", "4"}},
      {"llama4-bf16", "no_rope_layers", json::array({1, 0, 2, 0}), {"no_rope_layers", "entry 2"}},
      {"llama4-bf16", "floor_scale", 0, {"floor_scale"}},
      {"llama4-bf16", "attn_scale", -1.0, {"attn_scale is -1"}},
      {"llama4-bf16", "attn_temperature_tuning", "yes", {"attn_temperature_tuning"}},
      {"olmo3-bf16", "attention_chunk_size", 64, {"attention_chunk_size 64", "olmo3"}},
      {"olmo3-bf16", "moe_layers", json::array({1}), {"moe_layers [1]", "olmo3"}}};
}

std::vector<Refusal> OfRope() {
  return {{"gemma3-text-bf16",
           "rope_parameters",
           json::object({{"rope_theta", 1e6}}),
           {"rope_parameters.rope_theta", "gemma3", "full_attention"}},
          {"gemma3-text-bf16",
           "rope_parameters",
           json::object({{"full_attention", {{"rope_type", "default"}}}}),
           {"rope_parameters.sliding_attention is missing"}},
          {"olmo3-bf16",
           "rope_parameters",
           json::object({{"rope_theta", 5e5}, {"rope_type", "default"}}),
           {"rope_parameters.rope_theta", "olmo3", "full_attention"}},
          {"olmo3-bf16",
           "rope_parameters",
           json::object({{"full_attention", {{"rope_type", "default"}}}}),
           {"rope_parameters.sliding_attention is missing"}},
          {"phi3-longrope-bf16",
           "rope_scaling",
           json::object({{"type", "linear"}}),
           {"rope_scaling.factor"}},
          {"phi3-longrope-bf16",
           "rope_scaling",
           json::object({{"type", "longrope"}, {"short_factor", json::array({1.0})}}),
           {"rope_scaling.short_factor has 1 entries", "24", "48", "64"}},
          {"phi3-longrope-bf16",
           "rope_scaling",
           json::object({{"type", "longrope"}, {"short_factor", std::vector<double>(24, 1)}}),
           {"rope_scaling.long_factor is missing"}},
          {"phi3-longrope-bf16",
           "rope_scaling",
           json::object({{"type", "longrope"},
                         {"short_factor", std::vector<double>(24, 0)},
                         {"long_factor", std::vector<double>(24, 1)}}),
           {"rope_scaling.short_factor", "entry 0", "above 0"}},
          {"phi3-longrope-bf16",
           "rope_scaling",
           json::object({{"type", "longrope"}, {"short_mscale", 1.2}}),
           {"rope_scaling.short_mscale", "phi3"}},
          {"qwen2-bf16",
           "rope_scaling",
           json::object({{"type", "mrope"}}),
           {"rope_scaling.rope_type \"mrope\"", "qwen2", "supported: default"}}};
}

TEST(FamilyConfigTest, NamesUnsupportedAndContradictingValues) {
  for (const auto& refusals : {OfKeysNotRead(), OfValues(), OfLayers(), OfRope()}) {
    for (const Refusal& refusal : refusals) {
      json config = ConfigOf(refusal.folder);
      config[refusal.key] = refusal.value;
      const std::string error = ErrorOf(config);
      EXPECT_THAT(error, HasSubstr("config.json: ")) << refusal.folder;
      for (const std::string& name : refusal.names) {
        EXPECT_THAT(error, HasSubstr(name)) << refusal.folder << " " << refusal.key;
      }
    }
  }
}

TEST(FamilyConfigTest, RejectsContradictingRopeForms) {
  json config = ConfigOf("gemma3-text-bf16");
  config["rope_parameters"] = NewForm(config)["rope_parameters"];
  EXPECT_TRUE(Read(config).ok());
  json other = config;
  other["rope_parameters"]["full_attention"]["factor"] = 4.0;
  EXPECT_THAT(ErrorOf(other), HasSubstr("rope_scaling"));
  other = config;
  other["rope_parameters"]["sliding_attention"]["rope_theta"] = 5000.0;
  EXPECT_THAT(ErrorOf(other), HasSubstr("rope_local_base_freq"));
  config = ConfigOf("phi3-longrope-bf16");
  config["rope_parameters"] = NewForm(config)["rope_parameters"];
  config["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(ErrorOf(config), HasSubstr("short_factor has 24"));
}

// Names must belong to one family only, and FindWeights must be able to use the tensor names.
TEST(FamilyConfigTest, FamiliesDoNotOverlap) {
  std::vector<absl::string_view> names;
  for (const Family* family : AllFamilies()) {
    names.push_back(family->name);
    EXPECT_EQ(&FamilyNamed(family->name), family);
    for (const absl::string_view architecture : family->architectures) {
      EXPECT_EQ(FindFamilyByArchitecture(architecture), family) << architecture;
    }
    for (const absl::string_view type : family->model_types) {
      EXPECT_EQ(FindFamilyByModelType(type), family) << type;
    }
    EXPECT_FALSE(family->architectures.empty()) << family->name;
    EXPECT_FALSE(family->model_types.empty()) << family->name;
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"llama", "mistral", "qwen2", "qwen3", "smollm3",
                                            "granite", "gemma2", "gemma3", "phi3", "olmo2", "olmo3",
                                            "glm4_moe", "glm4_moe_lite", "minimax_m2", "llama4"}));
}

TEST(FamilyConfigTest, GpusAcceptEveryFamily) {
  for (const char* folder : {"qwen2-bf16",         "mistral-window-bf16",
                             "qwen3-hd128-bf16",   "smollm3-bf16",
                             "granite-bf16",       "gemma2-bf16",
                             "gemma3-text-bf16",   "phi3-bf16",
                             "phi3-longrope-bf16", "olmo2-bf16",
                             "mixtral-bf16",       "qwen3-moe-bf16",
                             "gpt-oss-bf16",       "gpt-oss-mxfp4",
                             "deepseek-v2-bf16",   "deepseek-v2-lite-bf16",
                             "deepseek-v3-bf16",   "deepseek-v3-noqlora-bf16",
                             "olmo3-bf16",         "glm4-moe-bf16",
                             "minimax-m2-bf16",    "llama4-bf16"}) {
    const auto files =
        formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("models/", folder)));
    const auto read = runtime::ReadModelSpec(*files, DeviceKind::kCuda);
    EXPECT_TRUE(read.ok()) << folder << ": " << read.status();
  }
}

}  // namespace
}  // namespace quire::models
