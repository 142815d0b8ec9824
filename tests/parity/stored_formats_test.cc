// One small model in every quantized format from checkpoint to logits, compared with logits that a
// separate program computed from its own dequantized values (testdata/formats/make_models.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/thread_pool.h"
#include "formats/tensors/safetensors.h"
#include "kernels/backend/backend.h"
#include "models/weights/checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/format_model.h"
#include "tests/parity/fp8_fixture.h"
#include "tests/parity/parity_harness.h"
#include "tests/testing/paths.h"

namespace quire::models::parity {
namespace {

using nlohmann::json;

using enum kernels::CpuActivations;

class StoredFormatModelTest : public testing::TestWithParam<FormatCase> {
 protected:
  std::vector<ReplayedPrompt> MustReplay(const FormatModel& model, Quantization quantization,
                                         std::uint32_t chunk = 16, int threads = 2,
                                         kernels::CpuActivations activations = kInt8) {
    auto replayed = Replay(model.Files(), model.reference(),
                           {.threads = threads,
                            .chunk = chunk,
                            .generated = 1,
                            .logprobs = false,
                            .cpu_activations = activations,
                            .quantization = quantization});
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    return replayed.ok() ? *std::move(replayed) : std::vector<ReplayedPrompt>();
  }
};

// With model.quantization none every format computes with its exact values. So do stored integers
// with f32 activations.
TEST_P(StoredFormatModelTest, UnquantizedLogitsEqualTheExactValues) {
  const FormatModel model(GetParam().name);
  for (const Quantization quantization : {Quantization::kNone, Quantization::kAuto}) {
    const auto got = MustReplay(model, quantization, 16, 2, kF32);
    ASSERT_EQ(got.size(), model.reference().prompts.size());
    const Deviation deviation = CompareLogits(got, model.reference());
    EXPECT_LT(deviation.relative, kMaxRelative);
    EXPECT_LT(deviation.max_abs, kMaxAbsolute);
  }
}

TEST_P(StoredFormatModelTest, Bf16ActivationsHaveTheRecordedError) {
  const FormatModel model(GetParam().name);
  for (const Quantization quantization : {Quantization::kNone, Quantization::kAuto}) {
    const auto got = MustReplay(model, quantization, 16, 2, kBF16);
    const auto ratio =
        Bf16ErrorRatio(got, model.reference(), absl::StrCat("formats/models/", GetParam().name));
    ASSERT_TRUE(ratio.ok()) << ratio.status();
    EXPECT_LE(ratio->relative, 1.5);
    EXPECT_GE(ratio->relative, 1 / 1.5);
    EXPECT_LE(ratio->max_abs, 1.5);
  }
}

// With auto, weights are stored as FormName describes, without loss. Integer products quantize
// activations to int8, which is the only source of error. fp8 products round nothing.
TEST_P(StoredFormatModelTest, AutoKeepsValuesAndIntegerFormats) {
  const FormatModel model(GetParam().name);
  const auto got = MustReplay(model, Quantization::kAuto);
  ASSERT_EQ(got.size(), model.reference().prompts.size());
  const bool is_exact = absl::StartsWith(GetParam().form, "fp8");
  const double divergence = Divergence(got, model.reference());
  const double relative = CompareLogits(got, model.reference()).relative;
  std::printf("%-26s %-14s divergence from exact values %.1e, from the original %.2e\n",
              GetParam().name, GetParam().form, divergence, Divergence(got, model.original()));
  EXPECT_LT(divergence, 1e-2);
  EXPECT_NEAR(Divergence(got, model.original()), GetParam().of_original,
              0.15 * GetParam().of_original + 8e-3);
  if (is_exact) {
    EXPECT_LT(relative, kMaxRelative);
  } else {
    EXPECT_GT(relative, kMaxRelative) << "no activation was rounded";
  }
  const auto chunked = MustReplay(model, Quantization::kAuto, 5, 1);
  ASSERT_EQ(chunked.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(chunked[i].logits, got[i].logits);
}

// model.fp8_activations compared with double precision and the same rounding. A rounding boundary
// may separate a value in f32 from the same value in f64, which changes a prompt by far more than
// the last bits. In most prompts that does not happen.
TEST_P(StoredFormatModelTest, DynamicQuantizationGivesTheReferenceLogits) {
  const FormatModel model(GetParam().name);
  const ReplayOptions options{
      .threads = 2, .chunk = 16, .generated = 1, .logprobs = false, .fp8_activations = true};
  const auto got = Replay(model.Files(), model.reference(), options);
  if (!absl::StartsWith(GetParam().form, "fp8")) {
    EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(got.status().message()),
        testing::HasSubstr("no matrix of this model has them: model.quantization auto finds "
                           "no fp8_e4m3 weights in the files"));
    return;
  }
  ASSERT_TRUE(got.ok()) << got.status();
  const Reference& rounded = model.rounded();
  ASSERT_EQ(rounded.prompts.size(), got->size());
  int alike = 0;
  for (std::size_t i = 0; i < got->size(); ++i) {
    const double relative = Compare((*got)[i].logits, rounded.prompts[i].logits).relative;
    alike += relative < kMaxRelative;
    EXPECT_LT(relative, 0.02) << i;
  }
  EXPECT_GE(alike, 5);
  const double cost = Divergence(*got, model.reference());
  std::printf("%-26s rows rounded: divergence from exact values %.2e, %d of %zu prompts alike\n",
              GetParam().name, cost, alike, got->size());
  EXPECT_GT(cost, 5e-3) << "no row was rounded";
  EXPECT_LT(cost, 5e-2);
  ReplayOptions alone = options;
  alone.chunk = 5;
  alone.threads = 1;
  const auto chunked = Replay(model.Files(), model.reference(), alone);
  ASSERT_TRUE(chunked.ok()) << chunked.status();
  for (std::size_t i = 0; i < got->size(); ++i) EXPECT_EQ((*chunked)[i].logits, (*got)[i].logits);
}

TEST_P(StoredFormatModelTest, PlanAndWarningsMatchTheLoadedFormat) {
  const FormatModel model(GetParam().name);
  ThreadPool threads(2);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  for (const Quantization quantization :
       {Quantization::kAuto, Quantization::kNone, Quantization::kInt8G32}) {
    const auto loaded = runtime::LoadModel(model.Files(), *backend, {.quantization = quantization});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const auto plan =
        runtime::PlanMemory(model.Files(), {.page_size = 16,
                                            .num_blocks = 9,
                                            .quantization = quantization,
                                            .runner = {.max_rows = 4, .max_step_tokens = 32}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->weight_bytes, (*loaded)->weights->size_bytes());
    const std::string text = testing::PrintToString((*loaded)->warnings);
    if (quantization == Quantization::kAuto) {
      EXPECT_EQ((*loaded)->quantization, GetParam().form);
      EXPECT_EQ(plan->weight_format, GetParam().form);
      EXPECT_EQ(text.find("bytes each"), std::string::npos) << text;
    }
    if (quantization == Quantization::kInt8G32) {
      EXPECT_NE(text.find("requantizes weights"), std::string::npos) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredFormatModelTest, testing::ValuesIn(kFormatCases),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(StoredFormatModelsTest, EveryFormatOfTheFolderIsTested) {
  const json index = json::parse(ReadFormatFile("index.json"));
  std::vector<std::string> stored, tested;
  for (const auto& [name, settings] : index["formats"].items()) stored.push_back(name);
  for (const FormatCase& each : kFormatCases) tested.emplace_back(each.name);
  EXPECT_THAT(tested, testing::UnorderedElementsAreArray(stored));
}

// The message names the key to change.
TEST(StoredFormatModelsTest, RejectionOfActivationQuantizationNamesTheReason) {
  const FormatModel model("ct-fp8-channel");
  ThreadPool threads(1);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  struct Refused {
    runtime::LoadMode mode;
    Quantization quantization;
    const char* why;
  };
  for (const Refused& refused :
       {Refused{runtime::LoadMode::kDummy, Quantization::kAuto,
                "model.load_mode dummy creates unquantized weights"},
        Refused{runtime::LoadMode::kDummy, Quantization::kInt8, "model.load_mode dummy"},
        Refused{runtime::LoadMode::kReal, Quantization::kNone,
                "model.quantization none converts them"},
        Refused{runtime::LoadMode::kReal, Quantization::kInt4G32,
                "model.quantization int4_g32 converts them"}}) {
    const auto loaded = runtime::LoadModel(
        model.Files(), *backend,
        {.mode = refused.mode, .quantization = refused.quantization, .fp8_activations = true});
    const auto host =
        runtime::PlanMemory(model.Files(), {.num_blocks = 9,
                                            .load_mode = refused.mode,
                                            .quantization = refused.quantization,
                                            .fp8_activations = true,
                                            .runner = {.max_rows = 4, .max_step_tokens = 32}});
    const auto device = runtime::PlanDeviceMemory(
        model.Files(), {.kv_dtype = DType::kF32,
                        .device_memory_bytes = std::int64_t{1} << 30,
                        .load_mode = refused.mode,
                        .quantization = refused.quantization,
                        .runner = {.max_rows = 4, .max_step_tokens = 32, .fp8_activations = true}});
    for (const absl::Status& status : {loaded.status(), host.status(), device.status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(
          std::string(status.message()),
          testing::HasSubstr(absl::StrCat("no matrix of this model has them: ", refused.why)));
    }
  }
}

// On a CPU no activation quantization has an effect: q, k and v, o, gate and up, down.
TEST(StoredFormatModelsTest, WarnsAboutActivationQuantizationWithoutEffect) {
  const FormatModel model("ct-fp8-channel");
  ThreadPool threads(1);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  for (const bool rounds : {false, true}) {
    const auto loaded = runtime::LoadModel(model.Files(), *backend, {.fp8_activations = rounds});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const auto warning = testing::Contains(testing::HasSubstr(
        "model.fp8_activations quantizes the inputs of 4 matrices, but 4 of them, such as "
        "model.layers.0.self_attn.q_proj.weight, are not multiplied"));
    if (rounds) {
      EXPECT_THAT((*loaded)->warnings, warning);
    } else {
      EXPECT_THAT((*loaded)->warnings,
                  testing::Not(testing::Contains(testing::HasSubstr("fp8_activations"))));
    }
  }
}

// Checks the reference itself: its record of the model before rounding equals that model's output.
TEST(StoredFormatModelsTest, ReferenceEqualsTheOriginalModel) {
  const FormatModel model("awq-int4-g32");
  std::ifstream stream(paths::TestData("models/llama-gqa-tied-bf16/model.safetensors"),
                       std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  const std::string weights = text.str();
  const std::string config = ReadFormatFile("config.json");
  const formats::ModelFiles files = formats::ModelFiles::FromMemory(
      "made", {{"config.json", BytesOf(config)}, {"model.safetensors", BytesOf(weights)}});
  const auto got = Replay(files, model.original(), {.generated = 1, .logprobs = false});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_LT(CompareLogits(*got, model.original()).relative, kMaxRelative);
}

// Compares a model in fp8 with its exact values in f32. Results are bitwise equal if fp8 is widened
// to f32, and differ by the order of sums if fp8 is multiplied.
void ExpectFp8EqualsExactValues(const std::string& folder, const std::string& matrix) {
  EditedFixture fp8(folder), exact(folder);
  const std::vector<std::string> coded = MakeFp8(&fp8, &exact);
  ASSERT_TRUE(std::any_of(coded.begin(), coded.end(), [&](const std::string& name) {
    return absl::StrContains(name, matrix);
  }));
  const auto reference = ReadReference(folder);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const ReplayOptions options{.threads = 2, .only = {4}, .generated = 4, .logprobs = false};
  ReplayOptions as_floats = options;
  as_floats.quantization = Quantization::kNone;
  const auto a = Replay(fp8.Files(), *reference, as_floats);
  const auto b = Replay(exact.Files(), *reference, options);
  const auto codes = Replay(fp8.Files(), *reference, options);
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  ASSERT_TRUE(codes.ok()) << codes.status();
  EXPECT_LT(Compare(codes->at(0).logits, b->at(0).logits).relative, kMaxRelative);
  EXPECT_NE(codes->at(0).logits, b->at(0).logits) << "codes were not multiplied";
  EXPECT_EQ(codes->at(0).sampled, b->at(0).sampled);
  EXPECT_EQ(a->at(0).logits, b->at(0).logits);
  EXPECT_EQ(a->at(0).sampled, b->at(0).sampled);
  const Deviation rounding = Compare(a->at(0).logits, reference->prompts[4].logits);
  EXPECT_GT(rounding.relative, 1e-3) << "nothing was rounded";
  EXPECT_LT(rounding.relative, 0.5);
}

// MLA reads columns of kv_b_proj, and experts are many matrices.
TEST(StoredFormatModelsTest, DeepSeekInFp8EqualsItsExactValues) {
  ExpectFp8EqualsExactValues("deepseek-v3-bf16", "kv_b_proj");
}

// The rows of in_proj_qkvz and q_proj are reordered, and scales belong to blocks of rows.
TEST(StoredFormatModelsTest, QwenNextInFp8EqualsItsExactValues) {
  ExpectFp8EqualsExactValues("qwen3-next-bf16", "in_proj_qkvz");
}

// Shards are split by size, so the parts of a matrix may be in several.
TEST(StoredFormatModelsTest, PartsMayBeInDifferentShards) {
  const std::string whole = ReadFormatFile("awq-int4-g32.safetensors");
  const auto tensors = formats::ReadSafetensors(BytesOf(whole), "whole");
  ASSERT_TRUE(tensors.ok());
  std::vector<FileTensor> codes, others;
  for (const formats::StoredTensor& tensor : *tensors) {
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()),
                            tensor.bytes.size());
    (absl::EndsWith(tensor.name, ".qweight") ? codes : others)
        .push_back({tensor.name, tensor.type, bytes, tensor.shape});
  }
  ASSERT_EQ(codes.size(), 7u);
  const std::string base = ReadFormatFile("base.safetensors");
  const std::string first = SafetensorsOf(codes), second = SafetensorsOf(others);
  const std::string index = json{{"weight_map",
                                  {{"model.norm.weight", "base.safetensors"},
                                   {codes[0].name, "first.safetensors"},
                                   {others[0].name, "second.safetensors"}}}}
                                .dump();
  json config = json::parse(ReadFormatFile("config.json"));
  config["quantization_config"] =
      json::parse(ReadFormatFile("index.json"))["formats"]["awq-int4-g32"];
  const std::string text = config.dump();
  const formats::ModelFiles files =
      formats::ModelFiles::FromMemory("made", {{"config.json", BytesOf(text)},
                                               {"model.safetensors.index.json", BytesOf(index)},
                                               {"base.safetensors", BytesOf(base)},
                                               {"first.safetensors", BytesOf(first)},
                                               {"second.safetensors", BytesOf(second)}});
  const FormatModel model("awq-int4-g32");
  const ReplayOptions options{.generated = 1, .logprobs = false};
  const auto got = Replay(files, model.reference(), options);
  const auto want = Replay(model.Files(), model.reference(), options);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_TRUE(want.ok()) << want.status();
  for (std::size_t i = 0; i < want->size(); ++i) EXPECT_EQ(got->at(i).logits, want->at(i).logits);
}

// Old GPTQ programs write zero biases. A nonzero bias has a meaning and is not ignored.
TEST(StoredFormatModelsTest, IgnoresZeroBiases) {
  ThreadPool threads(2);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  const std::string name = "model.layers.0.self_attn.q_proj.bias";
  for (const char last : {'\0', '\1'}) {
    std::string zeros(256, '\0');
    zeros.back() = last;
    const FormatModel model("gptq-v1-int4-g32", SafetensorsOf({{name, "F16", zeros, {128}}}), name);
    const auto loaded = runtime::LoadModel(model.Files(), *backend, {});
    EXPECT_EQ(loaded.ok(), last == 0) << loaded.status();
    if (last == 0) continue;
    EXPECT_THAT(std::string(loaded.status().message()), testing::HasSubstr(name + " is not used"));
  }
}

// Formats with zero points, act-order permutations and e4m3 are written to packed files, read back,
// and compute the same.
TEST(StoredFormatModelsTest, PackedFilesKeepEveryForm) {
  ThreadPool threads(2);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "stored_formats_packed";
  for (const auto& [name, form] : {std::pair{"awq-int4-g32", "int4_g32_zero "},
                                   {"gptq-v1-int4-g32-actorder", "int4_g32_zero_order "},
                                   {"fp8-block128", "fp8_e4m3_g128 "}}) {
    SCOPED_TRACE(name);
    const FormatModel model(name);
    std::filesystem::remove_all(directory);
    std::filesystem::create_directory(directory);
    const runtime::LoadOptions options{.packed_dir = directory.string()};
    const auto made = runtime::LoadModel(model.Files(), *backend, options);
    ASSERT_TRUE(made.ok()) << made.status();
    ASSERT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);
    const auto file = *std::filesystem::directory_iterator(directory);
    const auto written = file.last_write_time();
    const auto read = runtime::LoadModel(model.Files(), *backend, options);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(std::filesystem::last_write_time(file.path()), written) << "the file was rebuilt";
    const auto a = (*made)->weights->Sections(), b = (*read)->weights->Sections();
    ASSERT_EQ(a.size(), b.size());
    std::size_t found = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].label, b[i].label);
      found += a[i].label.find(form) != std::string::npos;
      ASSERT_EQ(a[i].bytes.size(), b[i].bytes.size());
      EXPECT_EQ(std::memcmp(a[i].bytes.data(), b[i].bytes.data(), a[i].bytes.size()), 0);
    }
    EXPECT_GT(found, 0u);
    const auto& one = (*made)->weights->layers()[0].down.matrices[0];
    const auto& other = (*read)->weights->layers()[0].down.matrices[0];
    for (std::uint32_t k = 0; k < one.k(); ++k) EXPECT_EQ(one.At(3, k), other.At(3, k)) << k;
  }
  std::filesystem::remove_all(directory);
}

// For the page cache, a changed weight, scale or zero point is another model.
TEST(StoredFormatModelsTest, FingerprintCoversEveryPart) {
  const FormatModel awq("awq-int4-g32"), gptq("gptq-v1-int4-g32");
  ThreadPool threads(1);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  const auto a = runtime::LoadModel(awq.Files(), *backend, {});
  const auto b = runtime::LoadModel(gptq.Files(), *backend, {});
  const auto again =
      runtime::LoadModel(awq.Files(), *backend, {.quantization = Quantization::kNone});
  ASSERT_TRUE(a.ok() && b.ok() && again.ok());
  EXPECT_NE((*a)->fingerprint, (*b)->fingerprint);
  EXPECT_EQ((*a)->fingerprint, (*again)->fingerprint);
}

}  // namespace
}  // namespace quire::models::parity
