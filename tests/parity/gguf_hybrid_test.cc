// GGUF files of hybrid and sparse families. Fixtures are written as llama.cpp's converter writes
// them (gguf_conversion.h). They must compute the same as Hugging Face transformers with the
// originals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "models/families/read_model_config.h"
#include "runtime/model.h"
#include "tests/parity/edited_fixture.h"
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
                           {"lfm2-bf16", "lfm2"},
                           {"gemma4-bf16", "gemma4"},
                           {"gemma4-moe-bf16", "gemma4"},
                           {"llama4-bf16", "llama4"},
                           {"glm4-moe-bf16", "glm4moe"},
                           {"minimax-m2-bf16", "minimax-m2"},
                           {"olmo2-bf16", "olmo2"},
                           {"olmo3-bf16", "olmo2"}};

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

  std::string Converted(MatrixType type = MatrixType::kF32) {
    return ConvertToGguf(fixture_, GetParam().architecture, type).File();
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
  // Norms already include their 1, ids belong to the tokenizer, which this file lacks, and the
  // converter writes another context where rope does not limit it. Cache groups follow from the
  // other fields.
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
  const auto want = ReplayFile(Converted(MatrixType::kRoundedQ8), *reference, options);
  const std::string file = Converted(MatrixType::kQ8);
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
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufHybridTest, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.folder;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace quire::models::parity
