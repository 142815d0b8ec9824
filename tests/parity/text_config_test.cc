// A text model wrapped in a multimodal configuration computes the same as the text model alone. The
// fixture's keys are moved into text_config and its tensors renamed as in published files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

}  // namespace
}  // namespace quire::models::parity
