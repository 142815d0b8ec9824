// Tests of quantized weights: their formats, sizes and values, and rejected weights.

#include "models/weights/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cache_manager/pool/kv_pool.h"
#include "kernels/backend/isa.h"
#include "models/blocks/step_buffers.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/cpu_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using kernels::PackedLinear;
using testing::HasSubstr;

const char* const kFolders[] = {"llama-bias-bf16", "llama-gqa-hd80-bf16", "llama-mha-f32",
                                "llama-sharded-bf16", "llama-untied-f16"};

std::unique_ptr<runtime::Model> Load(const formats::ModelFiles& files, const TestBackend& cpu,
                                     Quantization quantization) {
  auto model = runtime::LoadModel(files, cpu.backend, {.quantization = quantization});
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

formats::ModelFiles Folder(absl::string_view name) {
  return *formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("models/", name)));
}

TEST(QuantizationTest, NamesRoundTrip) {
  for (const Quantization quantization : kAllQuantizations) {
    EXPECT_EQ(QuantizationFromName(QuantizationName(quantization)), quantization);
  }
  EXPECT_EQ(QuantizationFromName("int4"), std::nullopt);
}

// Expects every weight within a limit of steps from the original. The best step of a format is the
// largest magnitude of the group divided by 127, or by 7 for 4 bits.
void ExpectClose(const PackedLinear& got, const PackedLinear& want) {
  ASSERT_EQ(got.n(), want.n());
  ASSERT_EQ(got.k(), want.k());
  const float most = got.format() == WeightFormat::kInt4 ? 7 : 127;
  double error = 0, total = 0;
  for (std::uint32_t n = 0; n < got.n(); ++n) {
    for (std::uint32_t begin = 0; begin < got.k(); begin += got.group()) {
      float largest = 0;
      for (std::uint32_t k = begin; k < begin + got.group(); ++k) {
        largest = std::max(largest, std::fabs(want.At(n, k)));
      }
      for (std::uint32_t k = begin; k < begin + got.group(); ++k) {
        const float difference = got.At(n, k) - want.At(n, k);
        // The search for the least 4-bit error may clip the largest weight of a group.
        const float steps = got.format() == WeightFormat::kInt4 ? 2.0f : 0.6f;
        ASSERT_LE(std::fabs(difference), steps * largest / most) << n << " " << k;
        error += double{difference} * difference;
        total += double{want.At(n, k)} * want.At(n, k);
      }
    }
  }
  // For normally distributed weights the relative error is about 0.08 with 4 bits and below 0.01
  // with 8 bits.
  EXPECT_LT(std::sqrt(error / total), got.format() == WeightFormat::kInt4 ? 0.13 : 0.012);
  EXPECT_GT(error, 0) << "nothing was rounded";
}

TEST(QuantizationTest, OnlyMatricesAndHeadAreQuantized) {
  const TestBackend cpu(2);
  for (const char* folder : kFolders) {
    const auto plain = Load(Folder(folder), cpu, Quantization::kNone);
    EXPECT_EQ(plain->quantization, "none");
    for (const Quantization quantization :
         {Quantization::kInt8, Quantization::kInt8G32, Quantization::kInt4G32}) {
      SCOPED_TRACE(absl::StrCat(folder, " ", QuantizationName(quantization)));
      const auto model = Load(Folder(folder), cpu, quantization);
      ASSERT_NE(model, nullptr);
      EXPECT_EQ(model->quantization, QuantizationName(quantization));
      const Weights& weights = *model->weights;
      EXPECT_EQ(weights.embedding_dtype(), plain->weights->embedding_dtype());
      const PackedLinear& head = weights.head().matrices[0];
      EXPECT_EQ(head.format(), WeightFormat::kInt8);
      EXPECT_EQ(head.group(), 32u);
      ExpectClose(head, plain->weights->head().matrices[0]);
      for (std::size_t i = 0; i < weights.layers().size(); ++i) {
        const LayerWeights& got = weights.layers()[i];
        const LayerWeights& want = plain->weights->layers()[i];
        const std::uint32_t hidden = model->spec.hidden;
        EXPECT_EQ(std::memcmp(got.attn_in, want.attn_in, hidden * sizeof(float)), 0);
        EXPECT_EQ(std::memcmp(got.mlp_in, want.mlp_in, hidden * sizeof(float)), 0);
        ASSERT_EQ(got.qkv.bias == nullptr, want.qkv.bias == nullptr);
        const std::pair<const LinearWeights*, const LinearWeights*> linears[] = {
            {&got.qkv, &want.qkv},
            {&got.o, &want.o},
            {&got.gate_up, &want.gate_up},
            {&got.down, &want.down}};
        for (const auto& [a, b] : linears) {
          ASSERT_EQ(a->matrices.size(), 1u);
          EXPECT_EQ(
              FormName(*ConvertedForm(quantization, MatrixRole::kLayer)),
              FormName(
                  {.format = a->matrices[0].format(),
                   .group = quantization == Quantization::kInt8 ? 0 : a->matrices[0].group()}));
          ExpectClose(a->matrices[0], b->matrices[0]);
          if (b->bias == nullptr) continue;
          EXPECT_EQ(std::memcmp(a->bias, b->bias, b->matrices[0].n() * sizeof(float)), 0);
        }
      }
    }
  }
}

// The plan reads only headers and is exact to the byte.
TEST(QuantizationTest, MemoryPlanIsExact) {
  const TestBackend cpu;
  std::map<std::string, std::int64_t> of_none;
  for (const Quantization quantization : kAllQuantizations) {
    for (const char* folder : {"llama-gqa-tied-bf16", "llama-theta500k-multieos-bf16"}) {
      SCOPED_TRACE(absl::StrCat(folder, " ", QuantizationName(quantization)));
      const formats::ModelFiles files = Folder(folder);
      const auto plan =
          runtime::PlanMemory(files, {.page_size = 16,
                                      .num_blocks = 9,
                                      .quantization = quantization,
                                      .runner = {.max_rows = 4, .max_step_tokens = 32}});
      const auto model = runtime::LoadModel(files, cpu.backend, {.quantization = quantization});
      ASSERT_EQ(plan.ok(), model.ok());
      if (!plan.ok()) {
        EXPECT_EQ(plan.status().message(),
                  absl::StripPrefix(model.status().message(), absl::StrCat(files.source(), ": ")));
        continue;
      }
      EXPECT_EQ(plan->weight_bytes, (*model)->weight_bytes);
      EXPECT_EQ(plan->weight_bytes, (*model)->weights->size_bytes());
      EXPECT_EQ(plan->weight_format, (*model)->quantization);
      std::int64_t of_sections = 0;
      for (const auto& section : (*model)->weights->Sections()) {
        of_sections += static_cast<std::int64_t>(section.bytes.size());
      }
      EXPECT_EQ(of_sections, plan->weight_bytes);
      if (quantization == Quantization::kNone) of_none[folder] = plan->weight_bytes;
      if (quantization == Quantization::kInt4G32) {
        EXPECT_LT(plan->weight_bytes, of_none[folder]);
      }
    }
  }
}

// True if the CPU of this machine runs products by vdpbf16ps at the level avx512_vnni.
bool HasBf16Pairs() {
  std::ifstream stream("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  return absl::StrContains(text, " avx512_bf16") && !absl::StrContains(text, " amx_tile");
}

// device.cpu.activations auto, for each level and each format of weights. A plan runs no kernel, so
// levels that the machine lacks are planned too.
TEST(QuantizationTest, WeightsAndLevelDecideTheAutoActivations) {
  using enum Quantization;
  using kernels::CpuActivations;
  struct Weights {
    const char* path;
    Quantization quantization;
    bool are_bf16;
  };
  const Weights all[] = {{"models/llama-gqa-tied-bf16", kAuto, true},
                         {"models/llama-sharded-bf16", kNone, true},
                         {"models/deepseek-v3-bf16", kAuto, true},
                         {"models/qwen35-moe-bf16", kAuto, true},
                         {"gguf/models/llama-bf16/model.gguf", kAuto, true},
                         {"models/llama-sharded-bf16", kInt8, false},
                         {"models/llama-sharded-bf16", kInt8G32, false},
                         {"models/llama-sharded-bf16", kInt4G32, false},
                         {"models/llama-mha-f32", kAuto, false},
                         {"models/llama-untied-f16", kAuto, false},
                         {"models/gpt-oss-mxfp4", kAuto, false},
                         {"models/gpt-oss-mxfp4", kNone, true},
                         {"gguf/models/llama-f16/model.gguf", kAuto, false},
                         {"gguf/models/llama-q8_0/model.gguf", kAuto, false},
                         {"gguf/models/llama-q8_0/model.gguf", kNone, false},
                         {"gguf/models/llama-q4_k_m/model.gguf", kAuto, false}};
  using kernels::internal::CpuLevel;
  const auto expected = [](CpuLevel level, bool are_bf16) {
    const bool is_bf16 =
        level == CpuLevel::kAmx || (level == CpuLevel::kAvx512Vnni && HasBf16Pairs() && are_bf16);
    return is_bf16 ? CpuActivations::kBF16 : CpuActivations::kInt8;
  };
  for (const Weights& weights : all) {
    SCOPED_TRACE(absl::StrCat(weights.path, " ", QuantizationName(weights.quantization)));
    const auto files = formats::ModelFiles::FromPath(TestDataPath(weights.path));
    ASSERT_TRUE(files.ok()) << files.status();
    for (std::size_t i = 0; i < kernels::internal::kNumCpuLevels; ++i) {
      const auto level = static_cast<CpuLevel>(i);
      kernels::internal::SetLevel(level);
      const auto plan =
          runtime::PlanMemory(*files, {.page_size = 16,
                                       .num_blocks = 9,
                                       .quantization = weights.quantization,
                                       .activations = CpuActivations::kAuto,
                                       .runner = {.max_rows = 4, .max_step_tokens = 32}});
      ASSERT_TRUE(kernels::SelectCpuIsa("auto").ok());
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->activations, expected(level, weights.are_bf16)) << i;
    }
  }
}

// A runner reserves the planned scratch memory, and its steps need no more.
TEST(QuantizationTest, RunnerReservesThePlannedWorkspace) {
  const runtime::RunnerOptions options = {.max_rows = 4, .max_step_tokens = 40};
  for (const Quantization quantization :
       {Quantization::kNone, Quantization::kInt8, Quantization::kInt4G32}) {
    SCOPED_TRACE(QuantizationName(quantization));
    const TestBackend cpu(3);
    const formats::ModelFiles files = Folder("llama-theta500k-multieos-bf16");
    const auto plan = runtime::PlanMemory(files, {.page_size = 16,
                                                  .kv_dtype = DType::kF32,
                                                  .num_blocks = 9,
                                                  .quantization = quantization,
                                                  .num_threads = 3,
                                                  .runner = options});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto model = Load(files, cpu, quantization);
    ASSERT_NE(model, nullptr);
    ASSERT_EQ(cpu.backend.scratch_bytes(), 0);
    auto pool = cache::KvPool::Create(*runtime::KvGeometryFor(model->spec, 16, DType::kF32, 9));
    ASSERT_TRUE(pool.ok()) << pool.status();
    const auto runner = runtime::CpuRunner::Create(*model, cpu.backend, &*pool, options);
    ASSERT_TRUE(runner.ok()) << runner.status();
    const std::int64_t buffers = StepBuffers::BytesFor(model->spec, runtime::LimitsOf(options));
    const std::int64_t pooled = std::int64_t{options.max_rows} * model->spec.hidden * sizeof(float);
    EXPECT_EQ(plan->workspace_bytes, buffers + pooled + cpu.backend.scratch_bytes());
    EXPECT_EQ((*runner)->workspace_bytes(), plan->workspace_bytes);
    const std::int64_t reserved = cpu.backend.scratch_bytes();
    for (const LayerWeights& layer : model->weights->layers()) {
      for (const LinearWeights* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
        const std::uint32_t k = linear->matrices[0].k();
        const std::uint32_t n = linear->matrices[0].n();
        const std::vector<float> x(std::size_t{options.max_step_tokens} * k, 1.0f);
        std::vector<float> y(std::size_t{options.max_step_tokens} * n);
        for (const std::uint32_t rows : {1u, 9u, options.max_step_tokens}) {
          ASSERT_TRUE(ApplyLinear(cpu.backend, *linear,
                                  {.x = x.data(),
                                   .weight = nullptr,  // filled in
                                   .y = y.data(),
                                   .x_stride = k,
                                   .y_stride = n,
                                   .num_rows = rows})
                          .ok());
        }
      }
    }
    EXPECT_EQ(cpu.backend.scratch_bytes(), reserved);
  }
}

// GGML quantization blocks are stored as integers, as f32, or quantized again. A mixture of block
// types needs several matrices in one slot.
TEST(QuantizationTest, GgmlBlocksAreStoredInTheRequestedFormat) {
  const TestBackend cpu(2);
  const std::pair<const char*, const char*> cases[] = {
      {"llama-q4_0", "int4_g32"},      {"llama-q4_1", "int4_g32_min"},
      {"llama-q4_k", "int4_g32_min"},  {"llama-q5_0", "int8_g32"},
      {"llama-q5_k", "int8_g32_min"},  {"llama-q6_k", "int8_g16"},
      {"llama-q8_0", "int8_g32"},      {"llama-q4_k_m", "int4_g32_min"},
      {"llama-q5_k_m", "int8_g32_min"}};
  bool has_several = false;
  for (const auto& [folder, form] : cases) {
    SCOPED_TRACE(folder);
    const auto files = formats::ModelFiles::FromPath(
        TestDataPath(absl::StrCat("gguf/models/", folder, "/model.gguf")));
    ASSERT_TRUE(files.ok()) << files.status();
    for (const Quantization quantization :
         {Quantization::kAuto, Quantization::kNone, Quantization::kInt8G32}) {
      const auto plan =
          runtime::PlanMemory(*files, {.page_size = 16,
                                       .num_blocks = 9,
                                       .quantization = quantization,
                                       .runner = {.max_rows = 4, .max_step_tokens = 32}});
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto model = Load(*files, cpu, quantization);
      ASSERT_NE(model, nullptr);
      EXPECT_EQ(plan->weight_bytes, model->weights->size_bytes());
      bool warned = false;
      for (const std::string& warning : model->warnings) {
        warned |= absl::StrContains(warning, "requantizes weights");
      }
      if (quantization == Quantization::kAuto) {
        EXPECT_EQ(model->quantization, form);
        for (const LayerWeights& layer : model->weights->layers()) {
          has_several |= layer.qkv.matrices.size() > 1;
        }
      }
      // Q8_0 and Q5_0 blocks are stored as int8_g32 without a second rounding.
      const bool rounds_again =
          quantization == Quantization::kInt8G32 && absl::string_view(form) != "int8_g32";
      EXPECT_EQ(warned, rounds_again) << QuantizationName(quantization);
    }
  }
  EXPECT_TRUE(has_several) << "no mixture of block types in q, k and v";
}

TEST(QuantizationTest, RejectsMatricesThatAFormatCannotStoreByName) {
  const TestBackend cpu;
  const auto message = [&](const char* folder, Quantization quantization) {
    const auto model =
        runtime::LoadModel(Folder(folder), cpu.backend, {.quantization = quantization});
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(model.status().message());
  };
  EXPECT_THAT(
      message("llama-untied-f16", Quantization::kInt4G64),
      HasSubstr("model.safetensors: tensor model.layers.0.self_attn.q_proj.weight: "
                "model.quantization int4_g64 needs a multiple of 64 inputs, this matrix has 96"));
  EXPECT_THAT(message("llama-mha-f32", Quantization::kInt8G128),
              testing::AllOf(HasSubstr("multiple of 128 inputs"), HasSubstr("this matrix has 64")));
  // int8 has a scale per output and accepts any number of inputs, but the head has groups of 32.
  EXPECT_THAT(message("tiny_base", Quantization::kInt8),
              HasSubstr("embed_tokens.weight: model.quantization int8 converts the output head to "
                        "int8_g32, which needs a multiple of 32 inputs, this matrix has 8"));
}

// 8-bit weights take half the bytes of bf16 and one f16 scale per 32 weights. Matrices are padded
// to 128 outputs and 64 inputs.
TEST(QuantizationTest, GpuPlansCountStoredBytes) {
  const auto bytes = [](Quantization quantization) {
    const auto plan = runtime::PlanDeviceMemory(
        Folder("llama-bias-bf16"),
        {.device_memory_bytes = std::int64_t{1} << 30,
         .quantization = quantization,
         .runner = {.max_rows = 4, .max_step_tokens = 32, .activation = DType::kBF16}});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->weight_bytes : 0;
  };
  EXPECT_LT(bytes(Quantization::kInt4G32), bytes(Quantization::kInt8G32));
  EXPECT_EQ(bytes(Quantization::kAuto), bytes(Quantization::kNone));
  const auto refused = runtime::PlanDeviceMemory(
      Folder("llama-untied-f16"),
      {.device_memory_bytes = std::int64_t{1} << 30,
       .quantization = Quantization::kInt4G64,
       .runner = {.max_rows = 4, .max_step_tokens = 32, .activation = DType::kBF16}});
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("model.quantization int4_g64 needs a multiple of 64 inputs, this matrix "
                        "has 96"));
}

TEST(QuantizationTest, RejectsNonFiniteValues) {
  const TestBackend cpu(2);
  EditableFiles files("models/llama-gqa-tied-bf16");
  std::string weights = files.Get("model.safetensors");
  const auto checkpoint = Checkpoint::Open(files.Files());
  const formats::StoredTensor* tensor = checkpoint->Find("model.layers.1.mlp.down_proj.weight");
  const std::size_t offset = static_cast<std::size_t>(
      reinterpret_cast<const char*>(tensor->bytes.data()) - files.Get("model.safetensors").data());
  weights[offset + 2 * 777 + 1] = '\x7f';  // 0x7f80 and above
  weights[offset + 2 * 777] = '\xc0';
  files.Set("model.safetensors", weights);
  const auto model =
      runtime::LoadModel(files.Files(), cpu.backend, {.quantization = Quantization::kInt8G32});
  EXPECT_THAT(std::string(model.status().message()),
              testing::AllOf(HasSubstr("model.layers.1.mlp.down_proj.weight"),
                             HasSubstr("element 777"), HasSubstr("nan")));
}

// The range of bf16 exceeds the range of a group's f16 scale.
TEST(QuantizationTest, RejectsScalesBeyondF16) {
  const TestBackend cpu;
  EditableFiles files("models/llama-gqa-tied-bf16");
  std::string weights = files.Get("model.safetensors");
  const auto checkpoint = Checkpoint::Open(files.Files());
  const formats::StoredTensor* tensor = checkpoint->Find("model.layers.1.self_attn.k_proj.weight");
  const std::size_t offset = static_cast<std::size_t>(
      reinterpret_cast<const char*>(tensor->bytes.data()) - files.Get("model.safetensors").data());
  const BF16 large = BF16::FromFloat(1e9f);
  std::memcpy(weights.data() + offset + 2 * (3 * 128 + 5), &large, 2);
  files.Set("model.safetensors", weights);
  for (const Quantization quantization : {Quantization::kInt8G32, Quantization::kInt4G32}) {
    const auto model =
        runtime::LoadModel(files.Files(), cpu.backend, {.quantization = quantization});
    EXPECT_THAT(std::string(model.status().message()),
                HasSubstr(absl::StrCat("model.layers.1.self_attn.k_proj.weight: row 3 of 32 has ",
                                       QuantizationName(quantization), " scales beyond f16")));
  }
  EXPECT_TRUE(
      runtime::LoadModel(files.Files(), cpu.backend, {.quantization = Quantization::kInt8}).ok());
}

}  // namespace
}  // namespace quire::models
