// One small model in every quantised format, from checkpoint to logits, against logits that a
// program of its own computed from its own dequantised values (testdata/formats/make_models.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"
#include "kernels/backend.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/safetensors.h"
#include "models/memory_plan.h"
#include "models/model.h"
#include "models/weights.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

using nlohmann::json;

std::string ReadFile(const std::string& name) {
  std::ifstream stream(absl::StrCat(QUIRE_TESTDATA, "/formats/models/", name), std::ios::binary);
  EXPECT_TRUE(stream.good()) << name;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The model in one format: what all formats share in one shard, the matrices in another.
class FormatModel {
 public:
  explicit FormatModel(const std::string& name) {
    index_ = json::parse(ReadFile("index.json"));
    json config = json::parse(ReadFile("config.json"));
    config["quantization_config"] = index_["formats"][name];
    Add("config.json", config.dump());
    Add("base.safetensors", ReadFile("base.safetensors"));
    Add("matrices.safetensors", ReadFile(name + ".safetensors"));
    json map;
    for (std::size_t i = 1; i <= 2; ++i) {
      const auto tensors = ReadSafetensors(BytesOf(files_[i].second), "");
      EXPECT_TRUE(tensors.ok());
      for (const StoredTensor& tensor : *tensors) map[tensor.name] = files_[i].first;
    }
    Add("model.safetensors.index.json", json{{"weight_map", map}}.dump());
    ReadReference(name);
  }

  ModelFiles Files() const {
    std::vector<ModelFiles::MemoryFile> files;
    for (const auto& [name, text] : files_) files.push_back({name, BytesOf(text)});
    return ModelFiles::FromMemory("made", std::move(files));
  }
  const Reference& reference() const { return reference_; }
  const Reference& original() const { return original_; }

 private:
  void Add(const std::string& name, std::string text) {
    files_.emplace_back(name, std::move(text));
  }

  void ReadReference(const std::string& name) {
    const std::string file = ReadFile("reference.safetensors");
    const auto tensors = ReadSafetensors(BytesOf(file), "reference");
    ASSERT_TRUE(tensors.ok());
    for (const StoredTensor& tensor : *tensors) {
      Reference* const to = tensor.name == name + ".logits"    ? &reference_
                            : tensor.name == "original.logits" ? &original_
                                                               : nullptr;
      if (to == nullptr) continue;
      to->vocab_size = static_cast<std::uint32_t>(tensor.shape[1]);
      for (std::size_t i = 0; i < index_["prompts"].size(); ++i) {
        ReferencePrompt prompt;
        prompt.id = absl::StrCat("p", i);
        prompt.tokens = index_["prompts"][i].get<std::vector<std::int32_t>>();
        prompt.greedy = {0};
        prompt.logits.resize(to->vocab_size);
        std::memcpy(prompt.logits.data(), tensor.bytes.data() + i * to->vocab_size * sizeof(float),
                    to->vocab_size * sizeof(float));
        to->prompts.push_back(std::move(prompt));
      }
    }
    ASSERT_EQ(reference_.prompts.size(), 8u);
    ASSERT_EQ(original_.prompts.size(), 8u);
  }

  json index_;
  std::vector<std::pair<std::string, std::string>> files_;
  Reference reference_, original_;
};

std::vector<double> LogProbabilities(const float* logits, std::size_t vocab) {
  double most = logits[0], sum = 0;
  for (std::size_t i = 0; i < vocab; ++i) most = std::max(most, double{logits[i]});
  for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - most);
  std::vector<double> result(vocab);
  for (std::size_t i = 0; i < vocab; ++i) result[i] = logits[i] - most - std::log(sum);
  return result;
}

// Mean Kullback-Leibler divergence of the prompts.
double Divergence(const std::vector<ReplayedPrompt>& got, const Reference& want) {
  double sum = 0;
  for (std::size_t p = 0; p < got.size(); ++p) {
    const auto exact = LogProbabilities(want.prompts[p].logits.data(), want.vocab_size);
    const auto other = LogProbabilities(got[p].logits.data(), want.vocab_size);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      sum += std::exp(exact[i]) * (exact[i] - other[i]);
    }
  }
  return sum / static_cast<double>(got.size());
}

struct Case {
  const char* name;
  const char* form;  // in memory with model.quantization auto, as Model::quantization
  // Divergence from the model before it was rounded, as make_models.py prints it: the accuracy of
  // the format on random weights.
  double of_original;
};

const Case kCases[] = {{"awq-int4-g32", "int4_g32_zero", 3.42e-1},
                       {"gptq-v1-int4-g32", "int4_g32_zero", 3.42e-1},
                       {"gptq-v1-int4-sym-g32", "int4_g32", 3.99e-1},
                       {"gptq-v1-int4-g32-actorder", "none", 4.19e-1},
                       {"gptq-v2-int4-channel", "int4_g128_zero", 7.49e-1},
                       {"gptq-v1-int8-g32", "int8_g32_zero", 1.29e-3},
                       {"gptq-v2-int8-sym-channel", "int8", 1.71e-3},
                       {"ct-int4-sym-g32", "int4_g32", 3.74e-1},
                       {"ct-int4-asym-g32", "int4_g32_zero", 3.42e-1},
                       {"ct-int4-sym-g32-actorder", "none", 3.97e-1},
                       {"ct-int8-sym-channel", "int8", 1.59e-3},
                       {"ct-int8-w8a8", "int8", 1.59e-3},
                       {"ct-int8-asym", "int8_g128_zero", 2.71e-3},
                       {"ct-fp8-tensor", "none", 6.83e-2},
                       {"ct-fp8-channel", "none", 2.62e-2},
                       {"fp8-tensor", "none", 6.83e-2},
                       {"fp8-block128", "none", 6.53e-2},
                       {"fp8-block128-ue8m0", "none", 3.53e-2}};

class StoredFormatModelTest : public testing::TestWithParam<Case> {
 protected:
  std::vector<ReplayedPrompt> MustReplay(const FormatModel& model, Quantization quantization,
                                         std::uint32_t chunk = 16, int threads = 2) {
    auto replayed = Replay(model.Files(), model.reference(),
                           {.threads = threads,
                            .chunk = chunk,
                            .generated = 1,
                            .logprobs = false,
                            .quantization = quantization});
    EXPECT_TRUE(replayed.ok()) << replayed.status();
    return replayed.ok() ? *std::move(replayed) : std::vector<ReplayedPrompt>();
  }
};

// With model.quantization none every format computes with its exact values.
TEST_P(StoredFormatModelTest, UnquantisedLogitsAreThoseOfTheExactValues) {
  const FormatModel model(GetParam().name);
  const auto got = MustReplay(model, Quantization::kNone);
  ASSERT_EQ(got.size(), model.reference().prompts.size());
  const Deviation deviation = CompareLogits(got, model.reference());
  EXPECT_LT(deviation.relative, kMaxRelative);
  EXPECT_LT(deviation.max_abs, kMaxAbsolute);
}

// With auto weights lie in memory as FormName says, without loss. Integer products round
// activations to int8, which is all that may differ.
TEST_P(StoredFormatModelTest, AutoKeepsTheValuesAndTheSpeed) {
  const FormatModel model(GetParam().name);
  const auto got = MustReplay(model, Quantization::kAuto);
  ASSERT_EQ(got.size(), model.reference().prompts.size());
  const bool is_plain = absl::string_view(GetParam().form) == "none";
  const double divergence = Divergence(got, model.reference());
  const double relative = CompareLogits(got, model.reference()).relative;
  std::printf("%-26s %-14s divergence from exact values %.1e, from the original %.2e\n",
              GetParam().name, GetParam().form, divergence, Divergence(got, model.original()));
  EXPECT_LT(divergence, 1e-2);
  EXPECT_NEAR(Divergence(got, model.original()), GetParam().of_original,
              0.15 * GetParam().of_original + 8e-3);
  if (is_plain) {
    EXPECT_LT(relative, kMaxRelative);
  } else {
    EXPECT_GT(relative, kMaxRelative) << "no activation was rounded";
    const auto chunked = MustReplay(model, Quantization::kAuto, 5, 1);
    ASSERT_EQ(chunked.size(), got.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(chunked[i].logits, got[i].logits);
  }
}

TEST_P(StoredFormatModelTest, PlanAndWarningsSayWhatIsHeld) {
  const FormatModel model(GetParam().name);
  ThreadPool threads(2);
  const auto backend = kernels::Backend::Create(Device::Cpu(), &threads);
  ASSERT_TRUE(backend.ok());
  for (const Quantization quantization :
       {Quantization::kAuto, Quantization::kNone, Quantization::kInt8G32}) {
    const auto loaded = LoadModel(model.Files(), *backend, {.quantization = quantization});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const auto plan = PlanMemory(model.Files(), 16, DType::kBF16, 9,
                                 {.max_rows = 4, .max_step_tokens = 32}, quantization);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->weight_bytes, (*loaded)->weights->size_bytes());
    const std::string text = testing::PrintToString((*loaded)->warnings);
    const bool is_wide = absl::string_view(GetParam().form) == "none";
    if (quantization == Quantization::kAuto) {
      EXPECT_EQ((*loaded)->quantization, GetParam().form);
      EXPECT_EQ(text.find("bytes each") != std::string::npos, is_wide) << text;
    }
    if (quantization == Quantization::kInt8G32) {
      EXPECT_NE(text.find("rounds weights again"), std::string::npos) << text;
    }
  }
}

TEST_P(StoredFormatModelTest, GpusRefuseItByName) {
  const FormatModel model(GetParam().name);
  const auto plan = PlanDeviceMemory(
      model.Files(),
      {.device_memory_bytes = std::int64_t{1} << 30,
       .runner = {.max_rows = 4, .max_step_tokens = 32, .activation = DType::kBF16}});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(plan.status().message()), testing::HasSubstr("served on CPUs only"));
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredFormatModelTest, testing::ValuesIn(kCases),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(StoredFormatModelsTest, EveryFormatOfTheFolderIsTested) {
  const json index = json::parse(ReadFile("index.json"));
  EXPECT_EQ(index["formats"].size(), std::size(kCases));
}

// The reference itself: what it says of the model before rounding is what that model gives.
TEST(StoredFormatModelsTest, TheReferenceComputesTheOriginalModel) {
  const FormatModel model("awq-int4-g32");
  std::ifstream stream(
      absl::StrCat(QUIRE_TESTDATA, "/models/llama-gqa-tied-bf16/model.safetensors"),
      std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  const std::string weights = text.str();
  const std::string config = ReadFile("config.json");
  const ModelFiles files = ModelFiles::FromMemory(
      "made", {{"config.json", BytesOf(config)}, {"model.safetensors", BytesOf(weights)}});
  const auto got = Replay(files, model.original(), {.generated = 1, .logprobs = false});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_LT(CompareLogits(*got, model.original()).relative, kMaxRelative);
}

// Forms with zero points go into packed files and come back, told apart from those with minimums.
TEST(StoredFormatModelsTest, PackedFilesKeepZeroPoints) {
  const FormatModel awq("awq-int4-g32");
  ThreadPool threads(2);
  const auto backend = kernels::Backend::Create(Device::Cpu(), &threads);
  ASSERT_TRUE(backend.ok());
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "stored_formats_packed";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directory(directory);
  const LoadOptions options{.packed_dir = directory.string()};
  const auto made = LoadModel(awq.Files(), *backend, options);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);
  const auto file = *std::filesystem::directory_iterator(directory);
  const auto written = file.last_write_time();
  const auto read = LoadModel(awq.Files(), *backend, options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::filesystem::last_write_time(file.path()), written) << "it was made again";
  const auto a = (*made)->weights->Sections(), b = (*read)->weights->Sections();
  ASSERT_EQ(a.size(), b.size());
  std::size_t zeros = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].label, b[i].label);
    zeros += a[i].label.find("int4_g32_zero") != std::string::npos;
    ASSERT_EQ(a[i].bytes.size(), b[i].bytes.size());
    EXPECT_EQ(std::memcmp(a[i].bytes.data(), b[i].bytes.data(), a[i].bytes.size()), 0);
  }
  EXPECT_GT(zeros, 0u);
  std::filesystem::remove_all(directory);
}

// A weight, a scale or a zero point that changes is another model to the cache of pages.
TEST(StoredFormatModelsTest, FingerprintSeesEveryPart) {
  const FormatModel awq("awq-int4-g32"), gptq("gptq-v1-int4-g32");
  ThreadPool threads(1);
  const auto backend = kernels::Backend::Create(Device::Cpu(), &threads);
  ASSERT_TRUE(backend.ok());
  const auto a = LoadModel(awq.Files(), *backend, {});
  const auto b = LoadModel(gptq.Files(), *backend, {});
  const auto again = LoadModel(awq.Files(), *backend, {.quantization = Quantization::kNone});
  ASSERT_TRUE(a.ok() && b.ok() && again.ok());
  EXPECT_NE((*a)->fingerprint, (*b)->fingerprint);
  EXPECT_EQ((*a)->fingerprint, (*again)->fingerprint);
}

}  // namespace
}  // namespace quire::models::parity
