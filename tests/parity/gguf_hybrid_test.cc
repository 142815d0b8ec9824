// GGUF files of hybrid and sparse families. Fixtures are written as llama.cpp's converter writes
// them (gguf_conversion.h). They must compute the same as Hugging Face transformers with the
// originals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "models/families/read_model_config.h"
#include "models/weights/checkpoint.h"
#include "runtime/model.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/fp8_fixture.h"
#include "tests/parity/gguf_conversion.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

struct Case {
  const char* folder;
  const char* architecture;
};

void PrintTo(const Case& fixture, std::ostream* stream) {
  *stream << fixture.folder;
}

constexpr Case kCases[] = {{"qwen3-next-bf16", "qwen3next"},
                           {"qwen35-bf16", "qwen35"},
                           {"qwen35-moe-bf16", "qwen35moe"},
                           {"granite-hybrid-bf16", "granitehybrid"},
                           {"nemotron-h-bf16", "nemotron_h_moe"},
                           {"lfm2-bf16", "lfm2"},
                           {"gemma4-bf16", "gemma4"},
                           {"gemma4-moe-bf16", "gemma4"},
                           {"llama4-bf16", "llama4"},
                           {"glm4-moe-bf16", "glm4moe"},
                           {"minimax-m2-bf16", "minimax-m2"},
                           {"olmo2-bf16", "olmo2"},
                           {"olmo3-bf16", "olmo2"},
                           {"deepseek-v2-bf16", "deepseek2"},
                           {"deepseek-v2-lite-bf16", "deepseek2"},
                           {"deepseek-v3-bf16", "deepseek2"},
                           {"glm4-moe-lite-bf16", "deepseek2"},
                           {"deepseek-v32-bf16", "deepseek32"},
                           {"glm-moe-dsa-bf16", "glm-dsa"},
                           {"kimi-linear-bf16", "kimi-linear"}};

formats::ModelFiles FilesOf(const std::string& file) {
  return formats::ModelFiles::FromMemory(
      "written", {{"model.gguf", std::as_bytes(std::span(file.data(), file.size()))}});
}

// Values that no key stores, since all published models have the same. Those of fixtures differ.
void SetUnstored(const std::string& folder, const ModelSpec& original, ModelSpec* spec) {
  if (folder == "deepseek-v2-bf16") spec->rope_tables = original.rope_tables;  // mscale
  if (folder != "llama4-bf16") return;
  for (std::size_t i = 0; i < spec->layers.size(); ++i) {
    const AttentionSpec& heads = original.layers[i].heads;
    spec->layers[i].heads.rope = heads.rope;
    spec->layers[i].heads.chunk = heads.chunk;
    spec->layers[i].heads.qk_norm = heads.qk_norm;
    spec->layers[i].heads.qk_norm_after_rope = heads.qk_norm_after_rope;
    spec->layers[i].heads.q_position_scale = heads.q_position_scale;
  }
  AssignCacheGroups(spec);
}

class GgufHybridTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto read = runtime::ReadModelSpec(fixture_.Files(), DeviceKind::kCpu);
    ASSERT_TRUE(read.ok()) << read.status();
    original_ = read->spec;
  }

  std::string Converted(const GgufOptions& options = {}) {
    return ConvertToGguf(fixture_, GetParam().architecture, options).File();
  }
  absl::StatusOr<std::vector<ReplayedPrompt>> ReplayFile(const std::string& file,
                                                         const Reference& reference,
                                                         ReplayOptions options) {
    options.edit_spec = [&](ModelSpec* spec) { SetUnstored(GetParam().folder, original_, spec); };
    return Replay(FilesOf(file), reference, options);
  }

  EditedFixture fixture_{GetParam().folder};
  ModelSpec original_;
};

TEST_P(GgufHybridTest, ComputesTheSameAsTheOriginal) {
  const auto reference = ReadReference(GetParam().folder);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto got =
      ReplayFile(Converted(), *reference, {.threads = 2, .quantization = Quantization::kNone});
  ASSERT_TRUE(got.ok()) << got.status();
  const Deviation deviation = CompareLogits(*got, *reference);
  std::printf("%s as GGUF: logits differ by %.2e relative, %.2e at most\n", GetParam().folder,
              deviation.relative, deviation.max_abs);
  EXPECT_LE(deviation.relative, kMaxRelative);
  EXPECT_LE(deviation.max_abs, kMaxAbsolute);
  EXPECT_EQ(CountTokenMismatches(*got, *reference), 0u);
}

TEST_P(GgufHybridTest, SpecEqualsTheOriginal) {
  const std::string file = Converted();
  const auto config = ReadModelConfig(FilesOf(file));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->warnings, testing::IsEmpty());
  auto got = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
  ASSERT_TRUE(got.ok()) << got.status();
  SetUnstored(GetParam().folder, original_, &got->spec);
  ModelSpec want = original_;
  // Norm weights already include the added 1. Token ids are absent, because the file has no
  // tokenizer. The converter writes another context length where rope does not limit it. Cache
  // groups follow from the other fields.
  want.final_norm.weight_offset = 0;
  for (std::size_t i = 0; i < want.layers.size(); ++i) {
    LayerSpec& layer = want.layers[i];
    for (NormSpec* norm :
         {&layer.attn_in, &layer.attn_out, &layer.mlp_in, &layer.mlp_out, &layer.heads.qk_norm}) {
      norm->weight_offset = 0;
    }
    const bool is_reordered = absl::StartsWith(GetParam().architecture, "qwen35");
    layer.recurrent.tiles_key_heads =
        is_reordered && layer.recurrent.heads != layer.recurrent.key_heads;
  }
  want.eos_ids.clear();
  want.bos_id.reset();
  want.pad_id.reset();
  for (ModelSpec* spec : {&got->spec, &want}) {
    spec->max_position = 0;
    AssignCacheGroups(spec);
  }
  EXPECT_EQ(DumpSpec(got->spec), DumpSpec(want));
}

// Random weights have the names and shapes of the files.
TEST_P(GgufHybridTest, DummyWeightsHaveRealSizes) {
  ThreadPool threads(2);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  const std::string file = Converted();
  const auto real = runtime::LoadModel(FilesOf(file), *backend, {});
  const auto dummy =
      runtime::LoadModel(FilesOf(file), *backend, {.mode = runtime::LoadMode::kDummy});
  ASSERT_TRUE(real.ok()) << real.status();
  ASSERT_TRUE(dummy.ok()) << dummy.status();
  EXPECT_EQ((*dummy)->weight_bytes, (*real)->weight_bytes);
  EXPECT_EQ((*dummy)->parameter_count, (*real)->parameter_count);
}

// Rows of quantization blocks are cut and reordered like others.
TEST_P(GgufHybridTest, QuantizedMatricesEqualTheirValues) {
  const auto reference = ReadReference(GetParam().folder);
  ASSERT_TRUE(reference.ok()) << reference.status();
  ReplayOptions options = {.threads = 2,
                           .feed_reference = true,
                           .only = {3},
                           .generated = 8,
                           .quantization = Quantization::kNone};
  const auto want = ReplayFile(
      Converted({.type = formats::GgmlType::kQ8_0, .is_dequantized = true}), *reference, options);
  const std::string file = Converted({.type = formats::GgmlType::kQ8_0});
  const auto got = ReplayFile(file, *reference, options);
  ASSERT_TRUE(want.ok()) << want.status();
  ASSERT_TRUE(got.ok()) << got.status();
  for (std::size_t i = 0; i < want->size(); ++i) {
    const Deviation deviation = Compare((*got)[i].logits, (*want)[i].logits);
    EXPECT_LE(deviation.relative, kMaxRelative);
  }
  // Products of integers.
  options.quantization = Quantization::kAuto;
  const auto integers = ReplayFile(file, *reference, options);
  ASSERT_TRUE(integers.ok()) << integers.status();
  for (std::size_t i = 0; i < want->size(); ++i) {
    const Deviation deviation = Compare((*integers)[i].logits, (*want)[i].logits);
    std::printf("%s in Q8_0: logits differ by %.2e relative\n", GetParam().folder,
                deviation.relative);
    EXPECT_GT(deviation.relative, kMaxRelative);
    EXPECT_LT(deviation.relative, 0.5);  // unrelated logits differ by about 1.4
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufHybridTest, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.folder;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Little-endian bytes of a key with a 32-bit value, as in the file.
std::string Number(const std::string& key, std::uint32_t value) {
  const std::uint32_t type = 4;
  std::string bytes = key;
  for (const std::uint32_t number : {type, value}) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return bytes;
}
std::string Float(float value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A change of a file's bytes, and the required text of the message.
struct BrokenFile {
  const char* name;
  const char* folder;
  const char* architecture;
  std::string from;
  std::string to;
  const char* message;
};
void PrintTo(const BrokenFile& broken, std::ostream* stream) {
  *stream << broken.name;
}

class GgufHybridRefusalTest : public testing::TestWithParam<BrokenFile> {};

TEST_P(GgufHybridRefusalTest, NamesTheKeyOrTensor) {
  const BrokenFile& broken = GetParam();
  EditedFixture fixture(broken.folder);
  std::string file = ConvertToGguf(fixture, broken.architecture).File();
  const std::size_t at = file.find(broken.from);
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(broken.from.size(), broken.to.size());
  file.replace(at, broken.to.size(), broken.to);
  const auto read = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(std::string(read.status().message()), testing::HasSubstr(broken.message));
}

INSTANTIATE_TEST_SUITE_P(
    Files, GgufHybridRefusalTest,
    testing::Values(
        BrokenFile{"EarlyMla", "deepseek-v3-bf16", "deepseek2", "attention.key_length_mla",
                   "attention.key_length_old",
                   "deepseek2.attention.key_length_mla is missing; reconvert the model"},
        BrokenFile{"RotatedColumns", "deepseek-v3-bf16", "deepseek2",
                   Number("rope.dimension_count", 16), Number("rope.dimension_count", 48),
                   "deepseek2.rope.dimension_count is 48, it must be even and less than "
                   "deepseek2.attention.key_length_mla 48"},
        BrokenFile{"DenseLayers", "glm4-moe-bf16", "glm4moe",
                   Number("leading_dense_block_count", 1), Number("leading_dense_block_count", 2),
                   "glm4moe.leading_dense_block_count is 2, but block 1 has a tensor "
                   "ffn_gate_inp.weight"},
        BrokenFile{"GatingFunction", "glm4-moe-bf16", "glm4moe", Number("expert_gating_func", 2),
                   Number("expert_gating_func", 3),
                   "glm4moe.expert_gating_func 3 is not supported (supported: 1 for softmax, 2 "
                   "for sigmoid)"},
        BrokenFile{"ArrayLength", "lfm2-bf16", "lfm2", Number("block_count", 4),
                   Number("block_count", 5),
                   "lfm2.attention.head_count_kv has 4 elements, lfm2.block_count is 5"},
        BrokenFile{"InnerSize", "granite-hybrid-bf16", "granitehybrid",
                   Number("ssm.inner_size", 128), Number("ssm.inner_size", 130),
                   "granitehybrid.ssm.inner_size is 130, it must be a multiple of "
                   "granitehybrid.ssm.time_step_rank 4 and at most 256 times as large"},
        BrokenFile{"Predicted", "qwen35-bf16", "qwen35", Number("nextn_predict_layers", 1),
                   Number("nextn_predict_layers", 5),
                   "qwen35.nextn_predict_layers is 5, it must be 0 to 4"},
        BrokenFile{"RopeFactors", "gemma4-bf16", "gemma4", Float(1e30f), Float(2),
                   "tensor rope_freqs.weight has element 8 of value 2, but gemma4 supports only "
                   "the factor 1"},
        BrokenFile{"RopeFactorsAfterHuge", "gemma4-bf16", "gemma4", Float(1e30f) + Float(1e30f),
                   Float(1e30f) + Float(2),
                   "tensor rope_freqs.weight has element 9 of value 2, but gemma4 supports only "
                   "the factor 1"}),
    [](const testing::TestParamInfo<BrokenFile>& info) { return std::string(info.param.name); });

// Files may lack the arrays of newer writers, and state further keys and tensors.
TEST(GgufHybridKeysTest, ReadsWhatOtherWritersState) {
  const auto error = [](const char* folder, const char* architecture,
                        const std::function<void(GgufWriter*)>& add) {
    EditedFixture fixture(folder);
    GgufWriter writer = ConvertToGguf(fixture, architecture);
    add(&writer);
    const std::string file = writer.File();
    const auto read = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
    if (!read.ok()) return std::string(read.status().message());
    const auto checkpoint = Checkpoint::Open(FilesOf(file));
    return checkpoint.ok() ? std::string() : std::string(checkpoint.status().message());
  };
  EXPECT_THAT(
      error("llama4-bf16", "llama4",
            [](GgufWriter* writer) { writer->Integer("llama4.attention.sliding_window", 0); }),
      testing::HasSubstr("llama4.attention.sliding_window 0 is not supported (supported: "
                         "none, or 8192)"));
  EXPECT_EQ(
      error("llama4-bf16", "llama4",
            [](GgufWriter* writer) { writer->Integer("llama4.attention.sliding_window", 8192); }),
      "");
  EXPECT_THAT(
      error("minimax-m2-bf16", "minimax-m2",
            [](GgufWriter* writer) { writer->Integer("minimax-m2.expert_group_count", 2); }),
      testing::HasSubstr("minimax-m2.expert_group_count 2 is not supported by minimax_m2"));
  EXPECT_THAT(error("qwen35-bf16", "qwen35",
                    [](GgufWriter* writer) {
                      writer->Floats("blk.9.ssm_a", {-1, 0.5});
                    }),
              testing::HasSubstr("tensor blk.9.ssm_a has element 1 of value 0.5, it must be "
                                 "negative and finite"));
  EXPECT_THAT(error("qwen35-bf16", "qwen35",
                    [](GgufWriter* writer) {
                      const std::uint16_t half = 0xbc00;
                      writer->Tensor("blk.9.ssm_a", {1}, 1, &half, sizeof(half));
                    }),
              testing::HasSubstr("tensor blk.9.ssm_a has type F16, which is not supported "
                                 "(supported: F32)"));
  EXPECT_THAT(error("qwen35-bf16", "lfm2moe", [](GgufWriter*) {}),
              testing::HasSubstr("general.architecture \"lfm2moe\" is not supported"));
}

// Expects that a GGUF file and the fixture give equal logits for a prompt of the reference. Returns
// those of the file, or an empty vector after a failure.
std::vector<float> LogitsEqualToFixture(const std::string& file, EditedFixture& fixture,
                                        const Reference& reference) {
  const ReplayOptions options{.threads = 2, .only = {3}, .generated = 4};
  const auto got = Replay(FilesOf(file), reference, options);
  const auto want = Replay(fixture.Files(), reference, options);
  EXPECT_TRUE(got.ok() && want.ok()) << got.status() << want.status();
  if (!got.ok() || !want.ok()) return {};
  EXPECT_LE(Compare((*got)[0].logits, (*want)[0].logits).relative, kMaxRelative);
  return (*got)[0].logits;
}

// Files of Llama 4 do not state chunks, layers without rope, position scale and QK norm. A
// config.json without these keys has the same defaults.
TEST(GgufHybridKeysTest, Llama4HasTheValuesOfPublishedModels) {
  EditedFixture fixture("llama4-bf16");
  for (const char* key : {"attention_chunk_size", "attn_scale", "attn_temperature_tuning",
                          "floor_scale", "no_rope_layers", "use_qk_norm"}) {
    ASSERT_EQ(fixture.config().erase(key), 1u);
  }
  std::string file = ConvertToGguf(fixture, "llama4").File();
  const auto read = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
  const auto original = runtime::ReadModelSpec(fixture.Files(), DeviceKind::kCpu);
  ASSERT_TRUE(read.ok() && original.ok()) << read.status() << original.status();
  ASSERT_EQ(read->spec.layers.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const AttentionSpec& heads = read->spec.layers[i].heads;
    EXPECT_TRUE(heads == original->spec.layers[i].heads) << i;
    const bool has_rope = i != 3;
    EXPECT_EQ(heads.rope >= 0, has_rope);
    EXPECT_EQ(heads.chunk, has_rope ? 8192u : 0u);
    EXPECT_EQ(heads.qk_norm.kind, has_rope ? NormKind::kRms : NormKind::kNone);
    EXPECT_EQ(heads.q_position_scale, has_rope ? PositionScale{} : (PositionScale{0.1f, 8192, 1}));
  }

  const auto reference = ReadReference("llama4-bf16");
  ASSERT_TRUE(reference.ok()) << reference.status();
  const std::vector<float> logits = LogitsEqualToFixture(file, fixture, *reference);
  ASSERT_FALSE(logits.empty());
  EXPECT_GT(Compare(logits, reference->prompts[3].logits).relative, 0.01);

  // The model with 128 experts has no QK norm.
  const std::string experts = Number("llama4.expert_count", 4);
  const std::size_t at = file.find(experts);
  ASSERT_NE(at, std::string::npos);
  file.replace(at, experts.size(), Number("llama4.expert_count", 128));
  const auto large = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
  ASSERT_TRUE(large.ok()) << large.status();
  for (const LayerSpec& layer : large->spec.layers) {
    EXPECT_EQ(layer.heads.qk_norm.kind, NormKind::kNone);
  }
}

// Files without experts have an architecture of their own.
TEST(GgufHybridKeysTest, NemotronWithoutExpertsComputesTheSame) {
  EditedFixture fixture("nemotron-h-bf16");
  const auto checkpoint = Checkpoint::Open(fixture.Files());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  // Drops the layers with experts.
  const std::map<std::string, std::string> layers = {
      {"0", "0"}, {"2", "1"}, {"3", "2"}, {"4", "3"}};
  std::vector<FileTensor> tensors;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    std::vector<std::string> words = absl::StrSplit(tensor.name, '.');
    if (words[1] == "layers") {
      const auto layer = layers.find(words[2]);
      if (layer == layers.end()) continue;
      words[2] = layer->second;
    }
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()),
                            tensor.bytes.size());
    tensors.push_back({absl::StrJoin(words, "."), tensor.type, bytes, tensor.shape});
  }
  fixture.Text("model.safetensors") = SafetensorsOf(tensors);
  nlohmann::json& config = fixture.config();
  config["hybrid_override_pattern"] = "M*-M";
  config["num_hidden_layers"] = 4;
  for (const char* key : {"moe_intermediate_size", "moe_latent_size", "n_routed_experts",
                          "moe_shared_expert_intermediate_size", "n_shared_experts", "n_group",
                          "topk_group", "num_experts_per_tok", "norm_topk_prob"}) {
    ASSERT_EQ(config.erase(key), 1u) << key;
  }
  const std::string file = ConvertToGguf(fixture, "nemotron_h").File();
  const auto reference = ReadReference("nemotron-h-bf16");
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_FALSE(LogitsEqualToFixture(file, fixture, *reference).empty());
}

}  // namespace
}  // namespace quire::models::parity
