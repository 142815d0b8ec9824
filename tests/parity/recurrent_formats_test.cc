// Weight formats in models with recurrent layers. They must compute the same as unquantized
// matrices of the same values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "models/weights/checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/model.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/fp8_fixture.h"
#include "tests/parity/hybrid_formats.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

// The values in memory of the matrices that share an input.
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
      QUIRE_CHECK(held != all.end());
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

class RecurrentFormatsTest : public testing::TestWithParam<std::tuple<HybridCase, HybridFormat>> {
 protected:
  static const HybridFormat& format() { return std::get<1>(GetParam()); }

  std::vector<float> Run(bool is_coded, const ReplayOptions& options) {
    auto hidden = RunHybrid(is_coded ? model_.CodedFiles() : model_.ExactFiles(), options);
    EXPECT_TRUE(hidden.ok()) << hidden.status();
    return hidden.ok() ? *std::move(hidden) : std::vector<float>();
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
  HybridModel model_{std::get<0>(GetParam()), format()};
};

TEST_P(RecurrentFormatsTest, ComputesTheSameAsUnquantizedMatrices) {
  std::vector<Held> held;
  ReplayOptions options{.threads = 2, .chunk = 5, .cpu_activations = kernels::CpuActivations::kF32};
  options.quantization = format().quantization;
  options.edit_weights = [&](std::span<LayerWeights> layers) { held = ReadMatrices(layers); };
  const std::vector<float> got = Run(/*is_coded=*/true, options);
  int products = 0;
  for (const Held& matrix : held) {
    const bool is_product = matrix.name == "recurrent_in" || matrix.name == "recurrent_out" ||
                            absl::StartsWith(matrix.name, "short_conv");
    if (!is_product || matrix.values.empty()) continue;
    ++products;
    EXPECT_EQ(WeightFormatName(matrix.format), WeightFormatName(format().held)) << matrix.name;
  }
  EXPECT_EQ(products, 2);  // of the only layer with a state
  options.quantization = Quantization::kNone;
  options.edit_weights = [&](std::span<LayerWeights> layers) {
    ExpectValues(held, ReadMatrices(layers));
    WriteMatrices(held, layers);
  };
  const std::vector<float> want = Run(/*is_coded=*/false, options);
  EXPECT_LE(Compare(got, want).relative, kMaxRelative);

  // Integer products also quantize the activations.
  options = {.threads = 2, .chunk = kHybridTokens, .quantization = format().quantization};
  const Deviation deviation = Compare(Run(/*is_coded=*/true, options), want);
  EXPECT_LE(deviation.relative, 0.5);  // unrelated states differ by about 1.4
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentFormatsTest,
                         testing::Combine(testing::ValuesIn(HybridCases()),
                                          testing::ValuesIn(HybridFormats())),
                         [](const auto& info) {
                           return HybridTestName(std::get<0>(info.param), std::get<1>(info.param));
                         });

std::string LoadError(EditedFixture* fixture, Quantization quantization) {
  ThreadPool threads(1);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  QUIRE_CHECK(backend.ok());
  const auto loaded =
      runtime::LoadModel(fixture->Files(), *backend, {.quantization = quantization});
  return std::string(loaded.status().message());
}

TEST(RecurrentFormatRefusalsTest, NameTensorAndFormat) {
  EditedFixture narrow("lfm2-bf16");
  EXPECT_THAT(LoadError(&narrow, Quantization::kInt4G128),
              testing::HasSubstr("tensor model.layers.0.conv.in_proj.weight: model.quantization "
                                 "int4_g128 needs a multiple of 128 inputs, this matrix has 64"));

  // fp8 has one matrix for each expert.
  EditedFixture stacks("qwen35-moe-bf16");
  const std::string name = "model.language_model.layers.0.mlp.experts.down_proj";
  const auto checkpoint = Checkpoint::Open(stacks.Files());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<FileTensor> tensors;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    if (tensor.name == name) bytes.resize(bytes.size() / 2);
    tensors.push_back(
        {tensor.name, tensor.name == name ? "F8_E4M3" : tensor.type, bytes, tensor.shape});
  }
  stacks.Text("model.safetensors") = SafetensorsOf(tensors);
  stacks.config()["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_THAT(LoadError(&stacks, Quantization::kAuto),
              testing::HasSubstr(absl::StrCat("tensor ", name,
                                              ": dtype F8_E4M3 is not supported (supported: F32")));
}

}  // namespace
}  // namespace quire::models::parity
