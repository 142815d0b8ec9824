// A text model wrapped in a multimodal configuration computes the same as the text model alone. The
// fixture's keys are moved into text_config and its tensors renamed as in published files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/model.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Wraps gemma3-text-bf16 as Gemma 3 does.
void Wrap(EditedFixture* fixture) {
  json inner = fixture->config();
  inner.erase("architectures");
  json outer = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                {"model_type", "gemma3"},
                {"boi_token_index", 5},
                {"eoi_token_index", 6},
                {"image_token_index", 7},
                {"mm_tokens_per_image", 256},
                {"vision_config", {{"hidden_size", 1152}, {"model_type", "siglip_vision_model"}}}};
  for (const char* key : {"eos_token_id", "torch_dtype", "transformers_version"}) {
    outer[key] = inner[key];
    inner.erase(key);
  }
  outer["text_config"] = inner;
  fixture->config() = outer;
  fixture->RenameTensors(
      [](const std::string& name) { return absl::StrCat("language_model.", name); },
      {"vision_tower.vision_model.embeddings.patch_embedding.bias",
       "multi_modal_projector.mm_soft_emb_norm.weight"});
}

TEST(TextConfigTest, ComputesTheSameAsTheTextModel) {
  const auto reference = ReadReference("gemma3-text-bf16");
  ASSERT_TRUE(reference.ok()) << reference.status();
  EditedFixture fixture("gemma3-text-bf16");
  Wrap(&fixture);
  const auto got = Replay(fixture.Files(), *reference, {.threads = 2});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(Passes(*got, *reference));
}

// Wraps qwen35-bf16 as Qwen3.5 does.
void WrapQwen(EditedFixture* fixture) {
  json inner = fixture->config();
  inner.erase("architectures");
  fixture->config() = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                       {"model_type", "qwen3_5"},
                       {"image_token_id", 310},
                       {"tie_word_embeddings", true},
                       {"text_config", inner},
                       {"vision_config", {{"depth", 1}, {"model_type", "qwen3_5"}}}};
  fixture->RenameTensors(
      [](const std::string& name) {
        return absl::StrCat("model.language_model.", absl::StripPrefix(name, "model."));
      },
      {"model.visual.patch_embed.proj.bias", "mtp.norm.weight"});
}

// Makes the text model of qwen35-moe-bf16 a model of its own.
void UnwrapQwen(EditedFixture* fixture) {
  json inner = fixture->config()["text_config"];
  inner["architectures"] = {"Qwen3_5MoeForCausalLM"};
  fixture->config() = inner;
  fixture->RenameTensors(
      [](absl::string_view name) {
        return absl::ConsumePrefix(&name, "model.language_model.")
                   ? absl::StrCat("model.", name)
                   : absl::StrCat(absl::StartsWith(name, "model.visual.") ? "mtp." : "", name);
      },
      {});
}

TEST(TextConfigTest, QwenIsTheSameWithAndWithoutItsWrapper) {
  const struct {
    const char* folder;
    void (*edit)(EditedFixture*);
    const char* family;
  } cases[] = {{"qwen35-bf16", WrapQwen, "qwen3_5_vision"},
               {"qwen35-moe-bf16", UnwrapQwen, "qwen3_5_moe"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.folder);
    const auto reference = ReadReference(c.folder);
    ASSERT_TRUE(reference.ok()) << reference.status();
    EditedFixture plain(c.folder), edited(c.folder);
    c.edit(&edited);
    const auto want = runtime::ReadModelSpec(plain.Files(), DeviceKind::kCpu);
    const auto read = runtime::ReadModelSpec(edited.Files(), DeviceKind::kCpu);
    ASSERT_TRUE(want.ok()) << want.status();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->config.family, c.family);
    EXPECT_EQ(read->spec, want->spec);
    const auto got = Replay(edited.Files(), *reference, {.threads = 2});
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(Passes(*got, *reference));
  }
}

// Wraps llama4-bf16 as Llama 4 does.
void WrapLlama4(EditedFixture* fixture) {
  json inner = fixture->config();
  inner.erase("architectures");
  fixture->config() = {{"architectures", {"Llama4ForConditionalGeneration"}},
                       {"model_type", "llama4"},
                       {"boi_token_index", 5},
                       {"eoi_token_index", 6},
                       {"image_token_index", 7},
                       {"tie_word_embeddings", false},
                       {"text_config", inner},
                       {"vision_config", {{"model_type", "llama4_vision_model"}}}};
  fixture->RenameTensors(
      [](const std::string& name) { return absl::StrCat("language_model.", name); },
      {"vision_model.class_embedding", "multi_modal_projector.linear_1.weight"});
}

TEST(TextConfigTest, Llama4ComputesTheSameAsItsTextModel) {
  const auto reference = ReadReference("llama4-bf16");
  ASSERT_TRUE(reference.ok()) << reference.status();
  EditedFixture fixture("llama4-bf16");
  const auto want = runtime::ReadModelSpec(fixture.Files(), DeviceKind::kCpu);
  WrapLlama4(&fixture);
  const auto spec = runtime::ReadModelSpec(fixture.Files(), DeviceKind::kCpu);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->spec, want->spec);
  EXPECT_THAT(spec->config.warnings, testing::IsEmpty());
  const auto got = Replay(fixture.Files(), *reference, {.threads = 2});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(Passes(*got, *reference));
}

TEST(TextConfigTest, SpecEqualsTheTextModel) {
  EditedFixture plain("gemma3-text-bf16");
  EditedFixture wrapped("gemma3-text-bf16");
  Wrap(&wrapped);
  const auto want = runtime::ReadModelSpec(plain.Files(), DeviceKind::kCpu);
  const auto got = runtime::ReadModelSpec(wrapped.Files(), DeviceKind::kCpu);
  ASSERT_TRUE(want.ok()) << want.status();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->spec, want->spec);
  // Published files omit unchanged values.
  json& inner = wrapped.config()["text_config"];
  for (const char* key : {"num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
                          "query_pre_attn_scalar"}) {
    inner.erase(key);
  }
  const auto defaulted = runtime::ReadModelSpec(wrapped.Files(), DeviceKind::kCpu);
  ASSERT_TRUE(defaulted.ok()) << defaulted.status();
  EXPECT_EQ(defaulted->spec.vocab_size, 262208u);
  EXPECT_EQ(defaulted->spec.layers[0].heads.num_heads, 8u);
  EXPECT_EQ(defaulted->spec.layers[0].heads.num_kv_heads, 4u);
  EXPECT_EQ(defaulted->spec.layers[0].heads.head_size, 256u);
  EXPECT_EQ(defaulted->spec.layers[0].heads.scale, 1.0f / 16);
}

TEST(TextConfigTest, RejectsBrokenWrappersByName) {
  const auto error = [](const auto& edit) {
    EditedFixture fixture("gemma3-text-bf16");
    Wrap(&fixture);
    edit(fixture.config());
    const auto read = runtime::ReadModelSpec(fixture.Files(), DeviceKind::kCpu);
    EXPECT_FALSE(read.ok());
    return std::string(read.status().message());
  };
  EXPECT_THAT(error([](json& config) { config.erase("text_config"); }),
              HasSubstr("text_config is missing"));
  EXPECT_THAT(error([](json& config) { config["text_config"] = 3; }), HasSubstr("text_config"));
  EXPECT_THAT(error([](json& config) { config["text_config"]["model_type"] = "llama"; }),
              HasSubstr("text_config.model_type \"llama\""));
  EXPECT_THAT(error([](json& config) { config["text_config"]["hidden_size"] = 0; }),
              HasSubstr("config.json with text_config: hidden_size"));
  EXPECT_THAT(error([](json& config) { config["text_config"]["attn_logit_softcapping"] = 50.0; }),
              HasSubstr("attn_logit_softcapping 50.0 is not supported by gemma3_vision"));
  EXPECT_THAT(error([](json& config) { config["architectures"] = {"Gemma3ForCausalLM"}; }),
              HasSubstr("model_type \"gemma3\""));
}

// Wraps a Gemma 4 as published files do.
void WrapGemma4(EditedFixture* fixture) {
  json inner = fixture->config();
  inner.erase("architectures");
  json outer = {{"architectures", {"Gemma4ForConditionalGeneration"}},
                {"model_type", "gemma4"},
                {"audio_config", {{"hidden_size", 1024}, {"model_type", "gemma4_audio"}}},
                {"vision_config", {{"hidden_size", 768}, {"model_type", "gemma4_vision"}}},
                {"tie_word_embeddings", true}};
  for (const char* key :
       {"audio_token_id", "boa_token_id", "boi_token_id", "eoa_token_id", "eoa_token_index",
        "eoi_token_id", "image_token_id", "video_token_id", "vision_soft_tokens_per_image"}) {
    outer[key] = 280;
  }
  inner["use_bidirectional_attention"] = "vision";
  outer["text_config"] = inner;
  fixture->config() = outer;
  fixture->RenameTensors(
      [](const std::string& name) { return absl::StrCat("model.language_", name); },
      {"model.vision_tower.patch_embedder.input_proj.weight", "model.audio_tower.output_proj.bias",
       "model.embed_vision.embedding_projection.weight",
       "model.embed_audio.embedding_projection.weight",
       // Published files also have the projections that shared layers do not use.
       "model.language_model.layers.4.self_attn.k_proj.weight",
       "model.language_model.layers.4.self_attn.v_proj.weight",
       "model.language_model.layers.4.self_attn.k_norm.weight"});
}

TEST(TextConfigTest, Gemma4ComputesTheSameAsItsTextModel) {
  const auto reference = ReadReference("gemma4-bf16");
  ASSERT_TRUE(reference.ok()) << reference.status();
  EditedFixture fixture("gemma4-bf16");
  WrapGemma4(&fixture);
  const auto got = Replay(fixture.Files(), *reference, {.threads = 2});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(Passes(*got, *reference));
}

TEST(TextConfigTest, Gemma4SpecEqualsItsTextModel) {
  for (const char* folder : {"gemma4-bf16", "gemma4-moe-bf16"}) {
    EditedFixture plain(folder);
    EditedFixture wrapped(folder);
    WrapGemma4(&wrapped);
    const auto want = runtime::ReadModelSpec(plain.Files(), DeviceKind::kCpu);
    const auto got = runtime::ReadModelSpec(wrapped.Files(), DeviceKind::kCpu);
    ASSERT_TRUE(want.ok()) << want.status();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->spec, want->spec);
    EXPECT_THAT(got->config.warnings, testing::IsEmpty());
  }
}

}  // namespace
}  // namespace quire::models::parity
