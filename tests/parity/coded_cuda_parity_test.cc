// Quantized weights of 8 and 4 bits on an emulated GPU. One small model in every stored format is
// compared with logits that a separate program computed from the exact values. Fixtures with
// converted weights are compared with the CPU and with Hugging Face transformers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/linear/quantized_linear.h"
#include "models/weights/weights.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/format_model.h"
#include "tests/parity/fp8_fixture.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

void ExpectSameBits(const ReplayedPrompt& a, const ReplayedPrompt& b) {
  EXPECT_EQ(a.sampled, b.sampled);
  ASSERT_EQ(a.logits.size(), b.logits.size());
  EXPECT_EQ(std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)), 0);
}

// Device memory must be allocated as planned: one allocation for the matrices of each layer and of
// the head, one for the embedding and one for the vectors.
void ExpectHeldAsPlanned(const formats::ModelFiles& files, Quantization quantization,
                         bool fp8_activations = false) {
  const auto plan =
      runtime::PlanDeviceMemory(files, {.device_memory_bytes = std::int64_t{1} << 30,
                                        .quantization = quantization,
                                        .runner = {.max_rows = 4,
                                                   .max_step_tokens = 32,
                                                   .activation = DType::kBF16,
                                                   .fp8_activations = fp8_activations}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ThreadPool threads(2);
  const Stream stream = *Stream::Create(*OpenCudaDevice(0));
  const auto backend =
      kernels::Backend::CreateCuda(stream, kernels::Determinism::kBatchInvariant, &threads);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::uint64_t bytes = cuda_emulator::DeviceBytesAllocated();
  const std::uint64_t allocations = cuda_emulator::AllocationCount();
  const auto model = runtime::LoadModel(files, *backend,
                                        {.activation = DType::kBF16,
                                         .quantization = quantization,
                                         .fp8_activations = fp8_activations});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->weights->size_bytes(), plan->weight_bytes);
  if (!cuda_emulator::IsEmulated()) return;
  EXPECT_EQ(cuda_emulator::DeviceBytesAllocated() - bytes,
            static_cast<std::uint64_t>(plan->weight_bytes));
  // The staging memory of the upload is allocated and freed.
  EXPECT_EQ(cuda_emulator::AllocationCount() - allocations, (*model)->spec.layers.size() + 3 + 2);
}

class FormatCudaTest : public testing::TestWithParam<FormatCase> {
 protected:
  void SetUp() override { cuda_emulator::Reset(); }

  static absl::StatusOr<std::vector<ReplayedPrompt>> Run(const FormatModel& model, DType activation,
                                                         Quantization quantization,
                                                         std::uint32_t chunk = 64) {
    return Replay(model.Files(), model.reference(),
                  {.kv_dtype = activation,
                   .chunk = chunk,
                   .generated = 1,
                   .logprobs = false,
                   .cuda = true,
                   .activation = activation,
                   .quantization = quantization});
  }
};

// With f32 activations nothing is rounded, with bf16 only the activations.
TEST_P(FormatCudaTest, LogitsEqualTheExactValues) {
  const FormatModel model(GetParam().name);
  const auto exact = Run(model, DType::kF32, Quantization::kAuto);
  ASSERT_TRUE(exact.ok()) << exact.status();
  const Deviation deviation = CompareLogits(*exact, model.reference());
  EXPECT_LT(deviation.relative, kMaxRelative);
  EXPECT_LT(deviation.max_abs, kMaxAbsolute);
  const auto half = Run(model, DType::kBF16, Quantization::kAuto);
  ASSERT_TRUE(half.ok()) << half.status();
  const double divergence = Divergence(*half, model.reference());
  std::printf("%-26s f32 differs by %.1e, bf16 by %.1e relative, divergence %.1e\n",
              GetParam().name, deviation.relative, CompareLogits(*half, model.reference()).relative,
              divergence);
  EXPECT_LT(divergence, 1e-3);
  const auto chunked = Run(model, DType::kBF16, Quantization::kAuto, 5);
  ASSERT_TRUE(chunked.ok()) << chunked.status();
  for (std::size_t i = 0; i < half->size(); ++i) ExpectSameBits((*half)[i], (*chunked)[i]);
}

// model.fp8_activations compared with the CPU, which rounds the same rows, and with double
// precision and the same rounding. With bf16 on capability 9.0 the product is fp8 by fp8. A value
// near a rounding boundary may be rounded either way (stored_formats_test.cc).
TEST_P(FormatCudaTest, DynamicQuantizationGivesTheLogitsOfTheCpu) {
  if (std::string_view(GetParam().form).substr(0, 3) != "fp8") return;
  const FormatModel model(GetParam().name);
  ReplayOptions options{.chunk = 64, .generated = 1, .logprobs = false, .fp8_activations = true};
  const auto cpu = Replay(model.Files(), model.reference(), options);
  options.cuda = true;
  const auto exact = Replay(model.Files(), model.reference(), options);
  options.kv_dtype = options.activation = DType::kBF16;
  const std::uint64_t before = cuda_emulator::LaunchCount("linear fp8 sm_90a");
  const auto half = Replay(model.Files(), model.reference(), options);
  const bool has_fp8 = cuda_emulator::LaunchCount("linear fp8 sm_90a") > before;
  if (cuda_emulator::IsEmulated()) {
    EXPECT_TRUE(has_fp8) << "the portable kernel ran instead";
  }
  options.compute_capability = 80;
  const auto portable = Replay(model.Files(), model.reference(), options);
  options.compute_capability = 0;
  ASSERT_TRUE(cpu.ok() && exact.ok() && half.ok() && portable.ok()) << half.status();
  int alike = 0;
  for (std::size_t i = 0; i < cpu->size(); ++i) {
    const double relative = Compare((*exact)[i].logits, (*cpu)[i].logits).relative;
    alike += relative < kMaxRelative;
    EXPECT_LT(relative, 0.02) << i;
  }
  EXPECT_GE(alike, 5);
  // bf16 moves more values across a rounding boundary, with fp8 products or without.
  const double of_codes = Divergence(*half, model.rounded());
  const double of_portable = Divergence(*portable, model.rounded());
  std::printf(
      "%-26s rows rounded: %d of %zu prompts as on the CPU; bf16: divergence from rounded rows "
      "%.1e, portable %.1e, from exact values %.2e, portable %.2e\n",
      GetParam().name, alike, cpu->size(), of_codes, of_portable,
      Divergence(*half, model.reference()), Divergence(*portable, model.reference()));
  EXPECT_LT(of_codes, 5e-2);
  EXPECT_LT(of_portable, 5e-2);
  options.chunk = 5;
  const auto chunked = Replay(model.Files(), model.reference(), options);
  ASSERT_TRUE(chunked.ok()) << chunked.status();
  for (std::size_t i = 0; i < half->size(); ++i) ExpectSameBits((*half)[i], (*chunked)[i]);
  ExpectHeldAsPlanned(model.Files(), Quantization::kAuto, /*fp8_activations=*/true);
}

TEST_P(FormatCudaTest, PlanEqualsTheAllocations) {
  ExpectHeldAsPlanned(FormatModel(GetParam().name).Files(), Quantization::kAuto);
}

INSTANTIATE_TEST_SUITE_P(Formats, FormatCudaTest, testing::ValuesIn(kFormatCases),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Returns the warnings of a load with activation quantization that has no effect, on the device or
// one like 8.0.
std::vector<std::string> VainRounding(const formats::ModelFiles& files, DType activation,
                                      bool is_portable) {
  ThreadPool threads(2);
  Device device = *OpenCudaDevice(0);
  if (is_portable) device.compute_capability = 80;
  const Stream stream = *Stream::Create(device);
  const auto backend =
      kernels::Backend::CreateCuda(stream, kernels::Determinism::kBatchInvariant, &threads);
  EXPECT_TRUE(backend.ok()) << backend.status();
  const auto model =
      runtime::LoadModel(files, *backend, {.activation = activation, .fp8_activations = true});
  EXPECT_TRUE(model.ok()) << model.status();
  std::vector<std::string> found;
  for (const std::string& warning : (*model)->warnings) {
    if (absl::StrContains(warning, "model.fp8_activations")) found.push_back(warning);
  }
  return found;
}

TEST(RoundedModelCudaTest, WarnsAboutActivationQuantizationWithoutEffect) {
  cuda_emulator::Reset();
  const FormatModel model("fp8-block128");
  const auto all = testing::ElementsAre(testing::HasSubstr(
      "the inputs of 4 matrices, but 4 of them, such as model.layers.0.self_attn.q_proj.weight"));
  EXPECT_THAT(VainRounding(model.Files(), DType::kBF16, /*is_portable=*/true), all);
  EXPECT_THAT(VainRounding(model.Files(), DType::kF32, /*is_portable=*/false), all);
  if (OpenCudaDevice(0)->compute_capability != 90) GTEST_SKIP() << "needs capability 9.0";
  EXPECT_THAT(VainRounding(model.Files(), DType::kBF16, /*is_portable=*/false), testing::IsEmpty());
}

// The activations of experts are quantized and widened again, while the other matrices use fp8
// products. A row near a rounding boundary, or between two experts, may differ from the CPU's.
TEST(RoundedModelCudaTest, WidensExpertsNextToFp8Products) {
  cuda_emulator::Reset();
  const std::string folder = "qwen3-moe-bf16";
  EditedFixture fp8(folder), exact(folder);
  const std::vector<std::string> coded = MakeFp8(&fp8, &exact);
  const auto experts = std::count_if(coded.begin(), coded.end(), [](const std::string& name) {
    return absl::StrContains(name, ".experts.");
  });
  ASSERT_GT(experts, 0);
  const auto reference = ReadReference(folder);
  ASSERT_TRUE(reference.ok()) << reference.status();
  ReplayOptions options{.chunk = 64, .only = {4, 10}, .generated = 1, .logprobs = false};
  const auto unrounded = Replay(fp8.Files(), *reference, options);
  options.fp8_activations = true;
  const auto cpu = Replay(fp8.Files(), *reference, options);
  options.cuda = true;
  const auto there = Replay(fp8.Files(), *reference, options);
  options.kv_dtype = options.activation = DType::kBF16;
  const std::uint64_t before = cuda_emulator::LaunchCount("linear fp8 sm_90a");
  const auto half = Replay(fp8.Files(), *reference, options);
  const bool has_codes = cuda_emulator::LaunchCount("linear fp8 sm_90a") > before;
  if (cuda_emulator::IsEmulated()) {
    EXPECT_TRUE(has_codes) << "the portable kernel ran instead";
  }
  options.chunk = 5;
  const auto chunked = Replay(fp8.Files(), *reference, options);
  ASSERT_TRUE(unrounded.ok() && cpu.ok() && there.ok()) << cpu.status() << there.status();
  ASSERT_TRUE(half.ok() && chunked.ok()) << half.status() << chunked.status();
  for (std::size_t i = 0; i < cpu->size(); ++i) {
    const double rounding = Compare((*cpu)[i].logits, (*unrounded)[i].logits).relative;
    const double from_cpu = Compare((*there)[i].logits, (*cpu)[i].logits).relative;
    const double of_half = Compare((*half)[i].logits, (*cpu)[i].logits).relative;
    std::printf("experts, prompt %zu: rounding %.1e, f32 from the CPU %.1e, bf16 %.1e\n", i,
                rounding, from_cpu, of_half);
    EXPECT_GT(rounding, 1e-3) << "no row was rounded";
    EXPECT_LT(from_cpu, 0.02);
    EXPECT_LT(of_half, 0.2);
    ExpectSameBits((*half)[i], (*chunked)[i]);
  }
  ExpectHeldAsPlanned(fp8.Files(), Quantization::kAuto, /*fp8_activations=*/true);
  if (OpenCudaDevice(0)->compute_capability != 90) return;
  // Gate and up are one matrix. Besides the experts, there are q, k and v, and o, of two layers.
  const auto held = experts / 3 * 2;
  EXPECT_THAT(VainRounding(fp8.Files(), DType::kBF16, /*is_portable=*/false),
              testing::ElementsAre(testing::HasSubstr(
                  absl::StrCat("the inputs of ", 4 + held, " matrices, but ", held,
                               " of them, such as model.layers.0.mlp.experts.0."))));
}

struct ConvertedCase {
  const char* folder;
  Quantization quantization;
  double most;  // from transformers, as in quantized_test.cc
  bool has_experts = false;
};

void PrintTo(const ConvertedCase& converted, std::ostream* stream) {
  *stream << converted.folder << " " << QuantizationName(converted.quantization);
}

class ConvertedCudaTest : public testing::TestWithParam<ConvertedCase> {
 protected:
  void SetUp() override { cuda_emulator::Reset(); }
};

// The integers equal the CPU's, which also quantizes activations to int8: 0.03 to 0.04, or 0.08
// where a rounded router input selects another expert.
TEST_P(ConvertedCudaTest, LogitsAreCloseToTheCpuAndTheReference) {
  const auto read = ReadReference(GetParam().folder);
  ASSERT_TRUE(read.ok()) << read.status();
  Reference some = *read;
  const std::vector<std::size_t> only = {10, 4};
  some.prompts = {read->prompts[10], read->prompts[4]};
  const auto files = formats::ModelFiles::FromDirectory(FixturePath(GetParam().folder));
  ASSERT_TRUE(files.ok()) << files.status();
  ReplayOptions options{.chunk = 64,
                        .feed_reference = true,
                        .only = only,
                        .generated = 4,
                        .logprobs = false,
                        .quantization = GetParam().quantization};
  const auto here = Replay(*files, *read, options);
  options.cuda = true;
  const auto there = Replay(*files, *read, options);
  options.activation = options.kv_dtype = DType::kBF16;
  const auto half = Replay(*files, *read, options);
  options.chunk = 19;
  options.seed = 7;
  const auto chunked = Replay(*files, *read, options);
  ASSERT_TRUE(here.ok() && there.ok()) << here.status() << there.status();
  ASSERT_TRUE(half.ok() && chunked.ok()) << half.status() << chunked.status();
  Reference cpu = some;
  for (std::size_t i = 0; i < some.prompts.size(); ++i) cpu.prompts[i].logits = (*here)[i].logits;
  const double from_cpu = CompareLogits(*there, cpu).relative;
  const double from_reference = CompareLogits(*there, some).relative;
  const double half_from_reference = CompareLogits(*half, some).relative;
  std::printf("%s %s: f32 differs by %.1e from the CPU and %.1e from transformers, bf16 by %.1e\n",
              GetParam().folder, std::string(QuantizationName(GetParam().quantization)).c_str(),
              from_cpu, from_reference, half_from_reference);
  EXPECT_LT(from_cpu, GetParam().has_experts ? 0.11 : 0.06);
  EXPECT_GT(from_reference, 10 * kMaxRelative) << "nothing was rounded";
  EXPECT_LT(from_reference, GetParam().most);
  EXPECT_LT(half_from_reference, GetParam().most);
  for (std::size_t i = 0; i < half->size(); ++i) ExpectSameBits((*half)[i], (*chunked)[i]);
}

TEST_P(ConvertedCudaTest, PlanEqualsTheAllocations) {
  const auto files = formats::ModelFiles::FromDirectory(FixturePath(GetParam().folder));
  ASSERT_TRUE(files.ok()) << files.status();
  ExpectHeldAsPlanned(*files, GetParam().quantization);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, ConvertedCudaTest,
    testing::Values(ConvertedCase{"llama-bias-bf16", Quantization::kInt8, 0.1},
                    ConvertedCase{"llama-gqa-hd80-bf16", Quantization::kInt8G32, 0.1},
                    ConvertedCase{"llama-theta500k-multieos-bf16", Quantization::kInt8G128, 0.1},
                    ConvertedCase{"llama-gqa-hd80-bf16", Quantization::kInt4G32, 0.55},
                    ConvertedCase{"llama-theta500k-multieos-bf16", Quantization::kInt4G64, 0.55},
                    ConvertedCase{"llama-theta500k-multieos-bf16", Quantization::kInt4G128, 0.55},
                    ConvertedCase{"gpt-oss-bf16", Quantization::kInt8G32, 0.15, true},
                    ConvertedCase{"deepseek-v2-bf16", Quantization::kInt8G32, 0.15, true}),
    [](const auto& info) {
      std::string name(info.param.folder);
      for (char& c : name) c = c == '-' ? '_' : c;
      return name + "_" + std::string(QuantizationName(info.param.quantization));
    });

// The reference is the unquantized CPU path with the values that the integers represent.
TEST(ConvertedExactCudaTest, LogitsEqualTheValuesOfTheIntegers) {
  const auto read = ReadReference("llama-mha-f32");
  ASSERT_TRUE(read.ok()) << read.status();
  const auto original = formats::ModelFiles::FromDirectory(FixturePath("llama-mha-f32"));
  ASSERT_TRUE(original.ok()) << original.status();
  for (const auto& [quantization, format, group] :
       {std::tuple(Quantization::kInt8, WeightFormat::kInt8, 0u),
        std::tuple(Quantization::kInt8G32, WeightFormat::kInt8, 32u),
        std::tuple(Quantization::kInt4G32, WeightFormat::kInt4, 32u)}) {
    SCOPED_TRACE(QuantizationName(quantization));
    EditedFixture fixture("llama-mha-f32");
    // Rows of `inputs` values.
    const auto round = [](WeightFormat to, std::uint32_t size, std::size_t inputs) {
      if (size == 0) size = static_cast<std::uint32_t>(inputs);
      return [to, size, inputs](std::vector<float>& values) {
        std::vector<std::int8_t> q(inputs);
        std::vector<float> scales(inputs / size);
        for (std::size_t first = 0; first < values.size(); first += inputs) {
          const std::span<float> row(values.data() + first, inputs);
          kernels::QuantizeRow(to, size, row, {q, scales, {}});
          for (std::size_t i = 0; i < inputs; ++i) {
            row[i] = static_cast<float>(q[i]) * scales[i / size];
          }
        }
      };
    };
    fixture.EditTensors("(q|k|v|o|gate|up)_proj", round(format, group, 64));
    fixture.EditTensors("down_proj", round(format, group, 160));
    fixture.EditTensors("lm_head", round(WeightFormat::kInt8, 32, 64));
    ReplayOptions options{
        .chunk = 64, .feed_reference = true, .only = {10, 4}, .generated = 2, .logprobs = false};
    const auto want = Replay(fixture.Files(), *read, options);
    options.cuda = true;
    options.quantization = quantization;
    const auto got = Replay(*original, *read, options);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    for (std::size_t i = 0; i < got->size(); ++i) {
      EXPECT_LT(Compare((*got)[i].logits, (*want)[i].logits).relative, kMaxRelative);
    }
  }
}

struct BlocksCase {
  const char* folder;
  const char* form;  // of most weights
};

void PrintTo(const BlocksCase& blocks, std::ostream* stream) {
  *stream << blocks.folder;
}

class BlocksCudaTest : public testing::TestWithParam<BlocksCase> {
 protected:
  void SetUp() override { cuda_emulator::Reset(); }
};

// Only the embedding in GGML quantization blocks is rounded, to f16.
TEST_P(BlocksCudaTest, BlocksOfGgufFilesGiveTheReferenceLogits) {
  const auto read = ReadGgufReference(GetParam().folder);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto files =
      formats::ModelFiles::FromPath(GgufFixturePath(GetParam().folder) + "/model.gguf");
  ASSERT_TRUE(files.ok()) << files.status();
  const auto got = Replay(
      *files, *read,
      {.chunk = 64, .feed_reference = true, .generated = 2, .logprobs = false, .cuda = true});
  ASSERT_TRUE(got.ok()) << got.status();
  const double relative = CompareLogits(*got, *read).relative;
  std::printf("%s: f32 logits differ by %.1e\n", GetParam().folder, relative);
  EXPECT_LT(relative, 2e-3);
  ThreadPool threads(1);
  const Stream stream = *Stream::Create(*OpenCudaDevice(0));
  const auto backend =
      kernels::Backend::CreateCuda(stream, kernels::Determinism::kBatchInvariant, &threads);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto model = runtime::LoadModel(*files, *backend, {});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->quantization, GetParam().form);
}

INSTANTIATE_TEST_SUITE_P(Files, BlocksCudaTest,
                         testing::Values(BlocksCase{"llama-q8_0", "int8_g32"},
                                         BlocksCase{"llama-q4_0", "int4_g32"},
                                         BlocksCase{"llama-q5_0", "int8_g32"},
                                         BlocksCase{"llama-q4_k", "none"},
                                         BlocksCase{"llama-q6_k", "none"}),
                         [](const auto& info) {
                           std::string name(info.param.folder);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace quire::models::parity
