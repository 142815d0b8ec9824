#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "models/families/read_model_config.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json BaseConfig() {
  return json::parse(ReadTestFile("models/tiny_base/config.json"));
}

absl::StatusOr<ModelConfig> Read(const json& config, const json& generation = nullptr) {
  EditableFiles files;
  files.Set("config.json", config.dump());
  if (!generation.is_null()) files.Set("generation_config.json", generation.dump());
  return ReadModelConfig(files.Files());
}

std::string DumpOf(const json& config) {
  EditableFiles files;
  files.Set("config.json", config.dump());
  const auto checked = runtime::ReadModelSpec(files.Files(), DeviceKind::kCpu);
  EXPECT_TRUE(checked.ok()) << checked.status();
  return checked.ok() ? DumpSpec(checked->spec) : "";
}

std::string ErrorOf(const json& config) {
  const auto read = Read(config);
  EXPECT_FALSE(read.ok());
  return std::string(read.status().message());
}

TEST(ModelConfigTest, SpecEqualsTheGoldenText) {
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/llama-newstyle-bf16"));
  const auto checked = runtime::ReadModelSpec(*files, DeviceKind::kCpu);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(DumpSpec(checked->spec),
            "model vocab 384 hidden 128 max_position 512 tied eos 1 bos 0 pad 2\n"
            "rope 0: 16 entries 1 to 1.41927e-07 factor 1\n"
            "layers 0 to 1: sequential; attn_in rms eps 1e-05; heads 4 kv 2 size 32 v 32 scale "
            "0.176777 rope 0 half 0+32; attn_out none; mlp_in rms eps 1e-05; gated silu 128; "
            "mlp_out none; group 0\n"
            "final norm rms eps 1e-05\n");
}

TEST(ModelConfigTest, BiasesAppearInTheSpec) {
  json config = BaseConfig();
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  EXPECT_THAT(DumpOf(config), HasSubstr("q_bias k_bias v_bias o_bias"));
  EXPECT_THAT(DumpOf(config), HasSubstr("gate_bias up_bias down_bias"));
}

// Both forms of each rope kind give the same spec.
TEST(ModelConfigTest, OldAndNewRopeFormsAgree) {
  const json kinds[] = {
      {{"rope_type", "linear"}, {"factor", 2.5}},
      {{"rope_type", "dynamic"}, {"factor", 2.0}},
      {{"rope_type", "llama3"},
       {"factor", 8.0},
       {"low_freq_factor", 1.0},
       {"high_freq_factor", 4.0},
       {"original_max_position_embeddings", 32}},
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}};
  std::vector<std::string> dumps;
  for (const json& kind : kinds) {
    json old_form = BaseConfig();
    old_form["rope_theta"] = 50000.0;
    old_form["rope_scaling"] = kind;
    json oldest_form = old_form;
    oldest_form["rope_scaling"].erase("rope_type");
    oldest_form["rope_scaling"]["type"] = kind["rope_type"];
    json new_form = BaseConfig();
    new_form.erase("rope_theta");
    new_form.erase("rope_scaling");
    new_form["rope_parameters"] = kind;
    new_form["rope_parameters"]["rope_theta"] = 50000.0;
    json both = old_form;
    both["rope_parameters"] = new_form["rope_parameters"];
    dumps.push_back(DumpOf(old_form));
    EXPECT_EQ(DumpOf(oldest_form), dumps.back()) << kind;
    EXPECT_EQ(DumpOf(new_form), dumps.back()) << kind;
    EXPECT_EQ(DumpOf(both), dumps.back()) << kind;
    EXPECT_EQ(Read(old_form)->rope, Read(new_form)->rope);
  }
  // The theta of 50000 reaches the table, and the kinds differ.
  EXPECT_NE(dumps[0], dumps[2]);
  EXPECT_NE(dumps[2], dumps[3]);
}

TEST(ModelConfigTest, RejectsContradictingRopeForms) {
  json config = BaseConfig();
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling"));
  // A theta in rope_parameters only would otherwise be lost.
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 777.0}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("contradict each other"));
  config["rope_scaling"] = {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2.0}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.rope_type"));
}

TEST(ModelConfigTest, ThetaHasThreeSources) {
  json config = BaseConfig();
  config["rope_theta"] = 3000.0;
  config["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_EQ(Read(config)->rope.theta, 3000);
  config["rope_parameters"]["rope_theta"] = 4000.0;
  EXPECT_EQ(Read(config)->rope.theta, 4000);
  config.erase("rope_theta");
  config.erase("rope_parameters");
  const auto defaulted = Read(config);
  EXPECT_EQ(defaulted->rope.theta, 10000);
  EXPECT_THAT(defaulted->warnings, testing::Contains(HasSubstr("rope_theta")));
}

TEST(ModelConfigTest, TopLevelOriginalLengthWins) {
  json config = BaseConfig();
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  EXPECT_EQ(Read(config)->rope.original_max_position, 32u);
  config["original_max_position_embeddings"] = 16;
  EXPECT_EQ(Read(config)->rope.original_max_position, 16u);
  config.erase("original_max_position_embeddings");
  config["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(Read(config)->rope.original_max_position, 64u) << "max_position_embeddings";
  // A null factor is the ratio of the lengths.
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 32}};
  EXPECT_EQ(Read(config)->rope.factor, 2);
}

TEST(ModelConfigTest, AbsentAndNullKeysTakeTheirDefaults) {
  json config = BaseConfig();
  for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act",
                          "attention_bias", "mlp_bias", "tie_word_embeddings", "torch_dtype",
                          "bos_token_id", "eos_token_id", "max_position_embeddings"}) {
    config.erase(key);
  }
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->num_key_value_heads, 2u);
  EXPECT_EQ(read->head_dim, 4u);
  EXPECT_FLOAT_EQ(read->rms_norm_eps, 1e-6f);
  EXPECT_EQ(read->hidden_act, "silu");
  EXPECT_FALSE(read->tie_word_embeddings);
  EXPECT_EQ(read->dtype, DType::kBF16);
  EXPECT_EQ(read->max_position_embeddings, 2048u);
  EXPECT_TRUE(read->eos_ids.empty());
  config["num_key_value_heads"] = nullptr;
  config["head_dim"] = nullptr;
  EXPECT_EQ(Read(config)->num_key_value_heads, 2u);
  EXPECT_EQ(Read(config)->head_dim, 4u);
}

TEST(ModelConfigTest, NewDTypeKeyWins) {
  json config = BaseConfig();
  config["torch_dtype"] = "float16";
  EXPECT_EQ(Read(config)->dtype, DType::kF16);
  config["dtype"] = "float32";
  EXPECT_EQ(Read(config)->dtype, DType::kF32);
}

TEST(ModelConfigTest, GenerationConfigWinsKeyByKey) {
  json config = BaseConfig();
  config["eos_token_id"] = 5;
  config["bos_token_id"] = 6;
  config["pad_token_id"] = -1;
  const json generation = {{"eos_token_id", {1, 3, 4}},
                           {"temperature", 0.6},
                           {"top_k", 40},
                           {"top_p", 0.9},
                           {"do_sample", true}};
  const auto read = Read(config, generation);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->eos_ids, testing::ElementsAre(1, 3, 4));
  EXPECT_EQ(read->bos_id, 6);
  EXPECT_EQ(read->pad_id, std::nullopt);
  EXPECT_EQ(read->generation.do_sample, true);
  EXPECT_FLOAT_EQ(*read->generation.temperature, 0.6f);
  EXPECT_EQ(read->generation.top_k, 40);
  EXPECT_FLOAT_EQ(*read->generation.top_p, 0.9f);
  EXPECT_EQ(read->generation.min_p, std::nullopt);
  for (const json& broken :
       {json{{"top_p", 0.0}}, json{{"top_k", -1}}, json{{"temperature", -0.5}}, json{{"min_p", 2}},
        json{{"repetition_penalty", 0}}, json{{"temperature", "hot"}}}) {
    const auto refused = Read(config, broken);
    ASSERT_FALSE(refused.ok()) << broken;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("generation_config.json"));
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(broken.begin().key()));
  }
}

TEST(ModelConfigTest, EosOutsideTheVocabularyWarns) {
  json config = BaseConfig();
  config["eos_token_id"] = {267, 9999};
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->warnings, testing::Contains(HasSubstr("eos_token_id 9999")));
}

TEST(ModelConfigTest, FamilyIsFoundByEitherName) {
  json config = BaseConfig();
  config.erase("architectures");
  EXPECT_EQ(Read(config)->architecture, "LlamaForCausalLM");
  config["architectures"] = {"LlamaForCausalLM"};
  config.erase("model_type");
  EXPECT_EQ(Read(config)->model_type, "llama");
  config.erase("architectures");
  EXPECT_THAT(ErrorOf(config), HasSubstr("architectures"));
  config["architectures"] = {"LlamaForCausalLM"};
  config["model_type"] = "mistral";
  EXPECT_THAT(ErrorOf(config), HasSubstr("model_type \"mistral\""));
}

TEST(ModelConfigTest, RejectsOtherFamiliesByName) {
  std::size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TestDataPath("models/other_families"))) {
    ++count;
    const json config =
        json::parse(ReadTestFile("models/other_families/" + entry.path().filename().string()));
    const std::string error = ErrorOf(config);
    EXPECT_THAT(error, HasSubstr(config["architectures"][0].get<std::string>()));
    EXPECT_THAT(error, HasSubstr("supported: LlamaForCausalLM"));
    EXPECT_EQ(Read(config).status().code(), absl::StatusCode::kUnimplemented);
  }
  EXPECT_GT(count, 0u);
}

// Keys that would change the mathematics are never ignored.
TEST(ModelConfigTest, RejectsComputationKeysUnlessNeutral) {
  const std::pair<const char*, json> refused[] = {
      {"sliding_window", 4096},
      {"logit_scale", 0.0625},
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"clip_qkv", 8.0},
      {"attention_multiplier", 0.01},
      {"embedding_multiplier", 12},
      {"residual_multiplier", 0.2},
      {"logits_scaling", 8.0},
      {"num_local_experts", 8},
      {"n_routed_experts", 64},
      {"is_encoder_decoder", true},
      {"position_embedding_type", "alibi"},
      {"use_bidirectional_attention", true},
      {"partial_rotary_factor", 0.5},
      {"layer_types", json::array({"sliding_attention"})},
      {"query_pre_attn_scalar", 256},
      {"hidden_activation", "gelu"},
      {"text_config", json::object({{"hidden_size", 8}})}};
  for (const auto& [key, value] : refused) {
    json config = BaseConfig();
    config[key] = value;
    const auto read = Read(config);
    ASSERT_FALSE(read.ok()) << key;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(key));
  }
  const std::pair<const char*, json> neutral[] = {{"sliding_window", nullptr},
                                                  {"logits_scaling", 1.0},
                                                  {"clip_qkv", nullptr},
                                                  {"is_encoder_decoder", false},
                                                  {"num_local_experts", 0},
                                                  {"partial_rotary_factor", 1.0},
                                                  {"position_embedding_type", "rope"},
                                                  {"layer_types", json::array({"full_attention"})}};
  for (const auto& [key, value] : neutral) {
    json config = BaseConfig();
    config[key] = value;
    EXPECT_TRUE(Read(config).ok()) << key << ": " << Read(config).status();
  }
}

TEST(ModelConfigTest, WarnsOnceAboutUnknownKeys) {
  json config = BaseConfig();
  config["colour"] = "blue";
  config["pretraining_tp"] = 2;
  const auto read = Read(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->warnings, testing::ElementsAre(HasSubstr("not read: colour")));
}

TEST(ModelConfigTest, RejectsRopeKeysOfOtherKinds) {
  json config = BaseConfig();
  config["rope_scaling"] = {
      {"rope_type", "linear"}, {"factor", 2.0}, {"short_factor", json::array({1.0})}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.short_factor"));
  config["rope_scaling"] = {{"rope_type", "axial"}, {"factor", 2.0}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("\"axial\" is not supported by llama (supported: "));
}

TEST(ModelConfigTest, NamesAMissingFile) {
  EditableFiles files;
  const auto message = [&] {
    return std::string(ReadModelConfig(files.Files()).status().message());
  };
  EXPECT_THAT(message(), HasSubstr("config.json: no such file"));
  files.Set("params.json", "{}");
  EXPECT_THAT(message(), HasSubstr("params.json is not supported"));
  files.Set("snapshots", "");
  EXPECT_THAT(message(), HasSubstr("set the model path to a directory in snapshots"));
}

}  // namespace
}  // namespace quire::models
