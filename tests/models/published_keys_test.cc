// Keys of published models that the families' own libraries handle loosely, and their meaning here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
                                               HasSubstr("other programs"))));
  config["rope_scaling"]["rope_type"] = "linear";
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.attn_factor"));
}

// Keys of zai-org/GLM-4.6. GLM-4.5-Air differs in its sizes and has no norms of q and k.
TEST(PublishedKeysTest, ReadsPublishedGlmKeys) {
  json config = json::parse(R"({
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338], "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "partial_rotary_factor": 0.5,
    "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 202752,
    "model_type": "glm4_moe", "moe_intermediate_size": 1536, "norm_topk_prob": true,
    "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 160,
    "n_shared_experts": 1, "routed_scaling_factor": 2.5, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "num_hidden_layers": 92, "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 1000000, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": true,
    "vocab_size": 151552})");
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->config.warnings, testing::IsEmpty());
  const ModelSpec& spec = read->spec;
  ASSERT_EQ(spec.layers.size(), 92u);
  EXPECT_EQ(spec.layers[2].mlp, MlpKind::kDense);
  EXPECT_EQ(spec.layers[3].mlp, MlpKind::kMoe);
  const AttentionSpec& heads = spec.layers[0].heads;
  EXPECT_EQ(heads.rotary_size, 64u);
  EXPECT_EQ(heads.qk_norm.eps, 1e-5f);
  EXPECT_TRUE(heads.q_bias && heads.k_bias && heads.v_bias && !heads.o_bias);
  config["use_qk_norm"] = false;
  EXPECT_EQ(SpecOf(config).layers[0].heads.qk_norm, NormSpec{});
}

// Keys of zai-org/GLM-4.7-Flash.
TEST(PublishedKeysTest, ReadsPublishedGlmFlashKeys) {
  json config = json::parse(R"({
    "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "pad_token_id": 154820, "eos_token_id": [154820, 154827, 154829], "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 10240, "max_position_embeddings": 202752,
    "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536, "topk_method": "noaux_tc",
    "norm_topk_prob": true, "num_attention_heads": 20, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 1, "routed_scaling_factor": 1.8,
    "num_experts_per_tok": 4, "first_k_dense_replace": 1, "num_hidden_layers": 47,
    "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
    "tie_word_embeddings": false, "dtype": "bfloat16", "transformers_version": "5.0.0",
    "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "v_head_dim": 256, "vocab_size": 154880})");
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->config.warnings, testing::IsEmpty());
  const LayerSpec& dense = read->spec.layers[0];
  EXPECT_EQ(dense.mlp, MlpKind::kDense);
  EXPECT_EQ(dense.attention, AttentionKind::kMla);
  EXPECT_EQ(dense.attn_in.eps, 1e-5f);
  EXPECT_EQ(dense.mla.latent_eps, 1e-6f);
  EXPECT_EQ(dense.mla.scale, 1.0f / 16);
  EXPECT_EQ(dense.mla.rope_style, RopeStyle::kInterleaved);
  const MoeSpec& moe = read->spec.layers[1].moe;
  EXPECT_EQ(moe.score, RouterScore::kSigmoid);
  EXPECT_TRUE(moe.choice_bias);
  EXPECT_EQ(moe.shared->intermediate, 1536u);
  EXPECT_EQ(moe.weight_scale, 1.8f);
  // transformers 5 lists the kinds of layers. Everything else has the same default.
  for (const char* key : {"topk_method", "norm_topk_prob", "n_group", "topk_group",
                          "n_routed_experts", "n_shared_experts", "routed_scaling_factor",
                          "num_experts_per_tok", "first_k_dense_replace", "moe_intermediate_size",
                          "num_nextn_predict_layers", "partial_rotary_factor", "rms_norm_eps"}) {
    config.erase(key);
  }
  EXPECT_EQ(SpecOf(config), read->spec);
  std::vector<std::string> types(47, "sparse");
  types[0] = "dense";
  config["mlp_layer_types"] = types;
  EXPECT_EQ(SpecOf(config), read->spec);
  config["scoring_func"] = "softmax";
  EXPECT_THAT(ErrorOf(config), HasSubstr("scoring_func \"softmax\" is not supported by "
                                         "glm4_moe_lite (supported: sigmoid)"));
}

// Keys of MiniMaxAI/MiniMax-M2.
TEST(PublishedKeysTest, ReadsPublishedMiniMaxKeys) {
  json config = json::parse(R"({
    "architectures": ["MiniMaxM2ForCausalLM"], "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_minimax_m2.MiniMaxM2Config"}, "bos_token_id": null,
    "eos_token_id": null, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 1536, "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 196608, "model_type": "minimax_m2", "mtp_transformer_layers": 1,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
    "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3,
    "output_router_logits": false, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
    "rope_theta": 5000000, "rotary_dim": 64, "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid", "sliding_window": null, "tie_word_embeddings": false,
    "transformers_version": "4.46.1", "use_cache": true, "use_mtp": true, "use_qk_norm": true,
    "use_routing_bias": true, "vocab_size": 200064})");
  config["attn_type_list"] = std::vector<int>(62, 1);
  config["quantization_config"] = {
      {"quant_method", "fp8"},
      {"fmt", "float8_e4m3fn"},
      {"activation_scheme", "dynamic"},
      {"weight_block_size", {128, 128}},
      {"modules_to_not_convert", {"gate", "e_score_correction_bias", "lm_head"}}};
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->config.warnings, testing::IsEmpty());
  const LayerSpec& layer = read->spec.layers[61];
  EXPECT_EQ(layer.heads.rotary_size, 64u);
  EXPECT_EQ(layer.heads.qk_norm_scope, QkNormScope::kWhole);
  EXPECT_EQ(layer.moe.expert.intermediate, 1536u);
  EXPECT_TRUE(layer.moe.choice_bias && layer.moe.renormalize && !layer.moe.shared);
}

// Keys of allenai/Olmo-3-7B-Instruct.
TEST(PublishedKeysTest, ReadsPublishedOlmo3Keys) {
  json config = json::parse(R"({
    "architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pad_token_id": 100277, "rms_norm_eps": 1e-06,
    "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1,
                     "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"},
    "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.57.0", "use_cache": true,
    "vocab_size": 100278})");
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->config.warnings, testing::IsEmpty());
  const ModelSpec& spec = read->spec;
  EXPECT_EQ(spec.max_position, 65536u);
  EXPECT_FLOAT_EQ(spec.rope_tables[0].attention_factor, 1.2079442f);
  EXPECT_FLOAT_EQ(spec.rope_tables[1].attention_factor, 1);
  for (std::size_t i = 0; i < 32; ++i) {
    const bool is_full = i % 4 == 3;
    EXPECT_EQ(spec.layers[i].heads.window, is_full ? 0u : 4096u) << i;
    EXPECT_EQ(spec.layers[i].heads.rope, is_full ? 0 : 1) << i;
  }
}

// Keys of meta-llama/Llama-4-Scout-17B-16E-Instruct, without those of images.
TEST(PublishedKeysTest, ReadsPublishedLlama4Keys) {
  json config = json::parse(R"({
    "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080,
    "eoi_token_index": 200081, "image_token_index": 200092, "model_type": "llama4",
    "text_config": {
      "attention_bias": false, "attention_chunk_size": 8192, "attention_dropout": 0.0,
      "attn_scale": 0.1, "attn_temperature_tuning": 4, "bos_token_id": 200000,
      "eos_token_id": [200001, 200007, 200008], "floor_scale": 8192, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
      "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
      "max_position_embeddings": 10485760, "model_type": "llama4_text", "no_rope_layers": [],
      "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
      "num_key_value_heads": 8, "num_local_experts": 16, "output_router_logits": false,
      "pad_token_id": 200018, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                       "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
      "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": true, "vocab_size": 202048},
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0.dev0",
    "vision_config": {"hidden_size": 1408, "model_type": "llama4_vision_model"}})");
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->config.warnings, testing::IsEmpty());
  const ModelSpec& spec = read->spec;
  EXPECT_EQ(spec.max_position, 10485760u);
  for (std::size_t i = 0; i < 48; ++i) {
    const AttentionSpec& heads = spec.layers[i].heads;
    const bool has_rope = i % 4 != 3;
    EXPECT_EQ(heads.rope, has_rope ? 0 : -1) << i;
    EXPECT_EQ(heads.chunk, has_rope ? 8192u : 0u) << i;
    EXPECT_EQ(heads.q_position_scale.beta, has_rope ? 0 : 0.1f) << i;
    EXPECT_EQ(spec.layers[i].mlp, MlpKind::kMoe) << i;
  }
  // Equal borders leave two kinds of frequencies.
  const std::vector<float>& frequencies = spec.rope_tables[0].inv_freq;
  config["text_config"]["rope_scaling"]["factor"] = 1.0;
  const ModelSpec unscaled = SpecOf(config);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float plain = unscaled.rope_tables[0].inv_freq[i];
    const bool is_long = 2 * 3.14159265f / plain > 8192;
    EXPECT_FLOAT_EQ(frequencies[i], is_long ? plain / 16 : plain) << i;
  }
}

}  // namespace
}  // namespace quire::models
