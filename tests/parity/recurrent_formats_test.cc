// Weight formats in models with recurrent layers. Random models with matrices of 256 inputs, as
// formats with large blocks need them, are stored in every format. They must compute the same as
// with unquantized matrices of the same values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "models/families/registry.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/model.h"
#include "tests/parity/coded_matrix.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/format_model.h"
#include "tests/parity/fp8_fixture.h"
#include "tests/parity/ggml_encoder.h"
#include "tests/parity/gguf_conversion.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

using formats::GgmlType;
using nlohmann::json;

constexpr std::int32_t kTokens = 12;
constexpr std::int32_t kHidden = 256;  // hidden_size of all models

// A fixture, and the sizes that replace its own. Rank and heads of Kimi-Linear allow groups of 128.
struct HybridCase {
  const char* folder;
  const char* architecture;  // of GGUF files
  const char* sizes;
};

void PrintTo(const HybridCase& hybrid, std::ostream* stream) {
  *stream << hybrid.folder;
}

constexpr HybridCase kHybrids[] = {
    {"qwen3-next-bf16", "qwen3next",
     R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
         "intermediate_size": 256, "moe_intermediate_size": 256, "mlp_only_layers": [1],
         "shared_expert_intermediate_size": 256, "linear_num_key_heads": 4,
         "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32})"},
    {"qwen35-bf16", "qwen35",
     R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
         "intermediate_size": 256, "full_attention_interval": 2,
         "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 4,
         "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32})"},
    {"qwen35-moe-bf16", "qwen35moe",
     R"({"text_config": {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
         "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
         "full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"],
         "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32,
         "linear_value_head_dim": 32}})"},
    {"granite-hybrid-bf16", "granitehybrid",
     R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 256, "shared_intermediate_size": 256,
         "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_expand": 1})"},
    {"nemotron-h-bf16", "nemotron_h_moe",
     R"({"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
         "intermediate_size": 256, "moe_intermediate_size": 256, "n_routed_experts": 4,
         "moe_latent_size": 256,
         "moe_shared_expert_intermediate_size": 256, "hybrid_override_pattern": "ME*-",
         "mamba_num_heads": 8, "mamba_head_dim": 32})"},
    {"lfm2-bf16", "lfm2",
     R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_heads": 8,
         "block_dim": 256, "block_ff_dim": 384, "conv_dim": 256, "conv_dim_out": 256,
         "layer_types": ["conv", "full_attention"]})"},
    {"kimi-linear-bf16", "kimi-linear",
     R"({"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 256,
         "moe_intermediate_size": 256, "num_experts": 4, "kv_lora_rank": 256, "qk_nope_head_dim": 128,
         "v_head_dim": 128, "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2],
         "head_dim": 128, "num_heads": 8}})"}};

// One format of a model's files or of its matrices in memory.
struct Format {
  std::string name;
  WeightFormat held;                                // of recurrent products whose inputs allow it
  Quantization quantization = Quantization::kAuto;  // other than kAuto: quantized while loading
  GgmlType ggml = GgmlType::kNone;                  // a GGUF file
  const CodedFormat* coded = nullptr;               // quantized tensors in safetensors files
};

void PrintTo(const Format& format, std::ostream* stream) {
  *stream << format.name;
}

std::vector<Format> Formats() {
  std::vector<Format> formats;
  for (const Quantization quantization : kAllQuantizations) {
    const auto form = ConvertedForm(quantization, MatrixRole::kLayer);
    if (!form) continue;
    formats.push_back({.name = absl::StrCat("load_", QuantizationName(quantization)),
                       .held = form->format,
                       .quantization = quantization});
  }
  for (const CodedFormat& coded : CodedFormats()) {
    formats.push_back({.name = coded.name, .held = coded.held, .coded = &coded});
  }
  for (const GgmlType type : {GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0,
                              GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K}) {
    const formats::GgmlFormat& ggml = formats::FormatOf(type);
    const WeightFormat held =
        ggml.elements == 1 ? WeightFormat::kPlain : formats::IntegerShapeOf(type, 256, 256).format;
    formats.push_back({.name = absl::StrCat("gguf_", ggml.name), .held = held, .ggml = type});
  }
  return formats;
}

// Values that keep activations and states of ordinary magnitude.
std::vector<float> RandomValues(const formats::StoredTensor& tensor, std::mt19937* random) {
  float low = -0.1f, high = 0.1f;  // biases
  if (absl::StrContains(tensor.name, "conv") && tensor.shape.size() > 1) {
    low = -0.6f, high = 0.6f;
  } else if (tensor.shape.size() > 1) {
    high = std::sqrt(3 / static_cast<float>(tensor.shape.back()));
    low = -high;
  } else if (absl::StrContains(tensor.name, "norm") || absl::EndsWith(tensor.name, ".D")) {
    low = 0.5f, high = 1.5f;
  } else if (absl::EndsWith(tensor.name, "A_log")) {
    low = 0, high = 1;
  } else if (absl::EndsWith(tensor.name, "dt_bias")) {
    low = -3, high = 0;
  }
  std::vector<float> values;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    const float unit = static_cast<float>((*random)() >> 8) * 0x1p-24f;
    values.push_back(low + (high - low) * unit);
  }
  return values;
}

// Returns the model of the case with random bf16 weights.
EditedFixture MakeModel(const HybridCase& hybrid) {
  EditedFixture fixture(hybrid.folder);
  fixture.config().merge_patch(json::parse(hybrid.sizes));
  const auto read = runtime::ReadModelSpec(fixture.Files(), DeviceKind::kCpu);
  QUIRE_CHECK(read.ok());
  const auto shapes = DummyCheckpoint(read->config, read->spec, TensorNamesOf(read->config),
                                      /*with_values=*/false);
  QUIRE_CHECK(shapes.ok());
  std::mt19937 random(7);
  std::vector<FileTensor> tensors;
  for (const formats::StoredTensor& tensor : shapes->tensors()) {
    std::vector<std::int64_t> shape = tensor.shape;
    if (absl::StrContains(tensor.name, "conv") && shape.size() == 2 && shape[1] <= kMaxConvWidth) {
      shape = {shape[0], 1, shape[1]};
    }
    tensors.push_back({tensor.name, "BF16",
                       EncodeGgml(GgmlType::kBF16, RandomValues(tensor, &random)),
                       std::move(shape)});
  }
  fixture.Text("model.safetensors") = SafetensorsOf(tensors);
  return fixture;
}

// Encodes the matrices of layers that the format supports. `exact` gets their values in f32.
void Encode(const CodedFormat& format, EditedFixture* coded, EditedFixture* exact) {
  const auto checkpoint = Checkpoint::Open(coded->Files());
  QUIRE_CHECK(checkpoint.ok());
  std::vector<FileTensor> coded_tensors, exact_tensors;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()),
                            tensor.bytes.size());
    const std::vector<std::int64_t>& shape = tensor.shape;
    const bool is_matrix = shape.size() == 2 || (shape.size() == 3 && format.has_stacks);
    // Routers have fewer rows.
    if (!is_matrix || !absl::StrContains(tensor.name, "layers.") || shape.back() % 32 != 0 ||
        shape[shape.size() - 2] % 8 != 0) {
      for (auto* tensors : {&coded_tensors, &exact_tensors}) {
        tensors->push_back({tensor.name, tensor.type, bytes, shape});
      }
      continue;
    }
    CodedMatrix matrix = format.encode({tensor.name, shape, DecodeGgml(GgmlType::kBF16, bytes)});
    std::move(matrix.tensors.begin(), matrix.tensors.end(), std::back_inserter(coded_tensors));
    exact_tensors.push_back({tensor.name, "F32", BytesOfValues(matrix.values), shape});
  }
  coded->Text("model.safetensors") = SafetensorsOf(coded_tensors);
  exact->Text("model.safetensors") = SafetensorsOf(exact_tensors);
  coded->config()["quantization_config"] = format.config;
}

// The matrices of a LinearWeights.
struct Held {
  std::string name;
  WeightFormat format = WeightFormat::kPlain;  // of the first matrix
  std::uint32_t k = 0;
  std::vector<float> values = {};
};

std::vector<Held> ReadMatrices(std::span<const LayerWeights> layers) {
  std::vector<Held> all;
  for (const LayerWeights& layer : layers) {
    for (const auto& [name, linear] : LinearsOf(layer)) {
      Held& held = all.emplace_back(Held{.name = name});
      if (linear->matrices.empty()) continue;
      held.format = linear->matrices.front().format();
      held.k = linear->matrices.front().k();
      for (const kernels::PackedLinear& matrix : linear->matrices) {
        for (std::uint32_t n = 0; n < matrix.n(); ++n) {
          for (std::uint32_t k = 0; k < held.k; ++k) held.values.push_back(matrix.At(n, k));
        }
      }
    }
  }
  return all;
}

// Replaces the matrices by unquantized ones.
void WriteMatrices(const std::vector<Held>& all, std::span<LayerWeights> layers) {
  ThreadPool threads(1);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kF32);
  QUIRE_CHECK(backend.ok());
  auto held = all.begin();
  for (LayerWeights& layer : layers) {
    for (const auto& [name, linear] : LinearsOf(layer)) {
      const Held& from = *held++;
      if (from.values.empty()) continue;
      auto packed = kernels::PackPlainRows(
          *backend, DType::kF32, static_cast<std::uint32_t>(from.values.size() / from.k), from.k,
          [&](std::uint32_t row, std::byte* out) {
            std::memcpy(out, from.values.data() + std::size_t{row} * from.k,
                        from.k * sizeof(float));
          });
      QUIRE_CHECK(packed.ok());
      linear->matrices.clear();
      linear->matrices.push_back(*std::move(packed));
    }
  }
}

// Returns the values of a matrix that is quantized while loading.
std::vector<float> Quantized(const MatrixForm& form, std::uint32_t k, std::vector<float> values) {
  const std::uint32_t group = form.group == 0 ? k : form.group;
  std::vector<std::int8_t> q(k);
  std::vector<float> scales(k / group);
  for (auto row = values.begin(); row != values.end(); row += k) {
    kernels::QuantizeRow(form.format, group, {row, row + k}, {q, scales, {}});
    for (std::uint32_t i = 0; i < k; ++i) row[i] = static_cast<float>(q[i]) * scales[i / group];
  }
  return values;
}

class RecurrentFormatsTest : public testing::TestWithParam<std::tuple<HybridCase, Format>> {
 protected:
  RecurrentFormatsTest() : coded_(Model()), exact_(coded_) {
    if (format().coded != nullptr) Encode(*format().coded, &coded_, &exact_);
    if (format().ggml == GgmlType::kNone) return;
    GgufOptions matrices{.type = format().ggml, .in_layers_only = true};
    coded_gguf_ = ConvertToGguf(coded_, hybrid().architecture, matrices).File();
    matrices.is_dequantized = true;
    exact_gguf_ = ConvertToGguf(coded_, hybrid().architecture, matrices).File();
  }

  static const HybridCase& hybrid() { return std::get<0>(GetParam()); }
  static const Format& format() { return std::get<1>(GetParam()); }

  // Returns the normalized hidden states of a prompt.
  std::vector<float> Run(bool is_coded, ReplayOptions options) {
    const std::string& gguf = is_coded ? coded_gguf_ : exact_gguf_;
    EditedFixture& fixture = is_coded ? coded_ : exact_;
    const formats::ModelFiles files =
        gguf.empty() ? fixture.Files()
                     : formats::ModelFiles::FromMemory("written", {{"model.gguf", BytesOf(gguf)}});
    ReferencePrompt prompt;
    for (std::int32_t i = 0; i < kTokens; ++i) prompt.tokens.push_back(i * 23 % 300);
    auto hidden = ReplayHidden(files, prompt, options);
    EXPECT_TRUE(hidden.ok()) << hidden.status();
    if (!hidden.ok()) return {};
    return {hidden->end() - kTokens * kHidden, hidden->end()};
  }

  // Compares the matrices in memory with the values of the file, or with those values quantized.
  static void ExpectValues(const std::vector<Held>& got, std::vector<Held> want) {
    ASSERT_EQ(got.size(), want.size());
    const auto converted = ConvertedForm(format().quantization, MatrixRole::kLayer);
    // Scales of K-quants are products, which f16 rounds.
    const bool rounds = absl::EndsWith(format().name, "_K");
    for (std::size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(got[i].name);
      ASSERT_EQ(got[i].k, want[i].k);
      ASSERT_EQ(got[i].values.size(), want[i].values.size());
      if (converted && got[i].format != WeightFormat::kPlain) {
        want[i].values = Quantized(*converted, want[i].k, want[i].values);
      }
      float largest = 0, most = 0;
      for (std::size_t e = 0; e < got[i].values.size(); ++e) {
        largest = std::max(largest, std::abs(want[i].values[e]));
        most = std::max(most, std::abs(got[i].values[e] - want[i].values[e]));
      }
      EXPECT_LE(most, rounds ? 2e-3f * largest : 0.0f);
    }
  }

 private:
  static const EditedFixture& Model() {
    static std::map<std::string, EditedFixture> models;
    const auto found = models.find(hybrid().folder);
    if (found != models.end()) return found->second;
    return models.emplace(hybrid().folder, MakeModel(hybrid())).first->second;
  }

  EditedFixture coded_, exact_;
  std::string coded_gguf_, exact_gguf_;
};

TEST_P(RecurrentFormatsTest, ComputesTheSameAsUnquantizedMatrices) {
  std::vector<Held> held;
  ReplayOptions options{.threads = 2, .chunk = 5, .cpu_activations = kernels::CpuActivations::kF32};
  options.quantization = format().quantization;
  options.edit_weights = [&](std::span<LayerWeights> layers) { held = ReadMatrices(layers); };
  const std::vector<float> got = Run(/*is_coded=*/true, options);
  for (const Held& matrix : held) {
    const bool is_product = matrix.name == "recurrent_in" || matrix.name == "recurrent_out" ||
                            absl::StartsWith(matrix.name, "short_conv");
    if (!is_product || matrix.values.empty()) continue;
    EXPECT_EQ(WeightFormatName(matrix.format), WeightFormatName(format().held)) << matrix.name;
  }
  options.quantization = Quantization::kNone;
  options.edit_weights = [&](std::span<LayerWeights> layers) {
    ExpectValues(held, ReadMatrices(layers));
    WriteMatrices(held, layers);
  };
  const std::vector<float> want = Run(/*is_coded=*/false, options);
  EXPECT_LE(Compare(got, want).relative, kMaxRelative);

  // Integer products also quantize the activations.
  options = {.threads = 2, .chunk = kTokens, .quantization = format().quantization};
  const Deviation deviation = Compare(Run(/*is_coded=*/true, options), want);
  EXPECT_LE(deviation.relative, 0.5);  // unrelated states differ by about 1.4
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentFormatsTest,
                         testing::Combine(testing::ValuesIn(kHybrids),
                                          testing::ValuesIn(Formats())),
                         [](const auto& info) {
                           std::string name = absl::StrCat(std::get<0>(info.param).folder, "_",
                                                           std::get<1>(info.param).name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire::models::parity
