// Weight formats in models with recurrent layers on an emulated GPU, compared with the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/parity/hybrid_formats.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

// One format for each kind of matrix in device memory.
std::vector<HybridFormat> FormatsOnGpus() {
  constexpr std::array<absl::string_view, 7> kNames = {
      "load_int8", "load_int4_g32", "fp8_block128", "gptq_int4_order",
      "mxfp4",     "gguf_Q8_0",     "gguf_Q4_K"};
  std::vector<HybridFormat> formats = HybridFormats();
  std::erase_if(formats, [&](const HybridFormat& format) {
    return std::find(kNames.begin(), kNames.end(), format.name) == kNames.end();
  });
  QUIRE_CHECK(formats.size() == kNames.size());
  return formats;
}

class RecurrentFormatsCudaTest
    : public testing::TestWithParam<std::tuple<HybridCase, HybridFormat>> {
 protected:
  void SetUp() override { cuda_emulator::Reset(); }
};

TEST_P(RecurrentFormatsCudaTest, HiddenStatesEqualThoseOfTheCpu) {
  const auto& [hybrid, format] = GetParam();
  HybridModel model(hybrid, format);
  ReplayOptions options{.chunk = 5,
                        .cpu_activations = kernels::CpuActivations::kF32,
                        .quantization = format.quantization};
  // CPUs round the scales of K-quants to f16. GPUs hold their values.
  if (absl::EndsWith(format.name, "_K")) options.quantization = Quantization::kNone;
  const auto want = RunHybrid(model.CodedFiles(), options);
  options.quantization = format.quantization;
  options.cuda = true;
  const auto got = RunHybrid(model.CodedFiles(), options);
  options.activation = options.kv_dtype = DType::kBF16;
  const auto half = RunHybrid(model.CodedFiles(), options);
  ASSERT_TRUE(want.ok() && got.ok() && half.ok()) << want.status() << got.status() << half.status();
  EXPECT_LE(Compare(*got, *want).relative, kMaxRelative);
  EXPECT_LE(Compare(*half, *want).relative, 0.5);  // unrelated states differ by about 1.4
}

// Returns every third pair, since the emulator is slow. Each model has two formats or three, and
// each format has two models or three.
std::vector<std::tuple<HybridCase, HybridFormat>> SomePairs() {
  std::vector<std::tuple<HybridCase, HybridFormat>> pairs;
  const std::vector<HybridFormat> formats = FormatsOnGpus();
  const std::vector<HybridCase>& hybrids = HybridCases();
  for (std::size_t i = 0; i < hybrids.size(); ++i) {
    for (std::size_t j = i % 3; j < formats.size(); j += 3) {
      pairs.emplace_back(hybrids[i], formats[j]);
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentFormatsCudaTest, testing::ValuesIn(SomePairs()),
                         [](const auto& info) {
                           return HybridTestName(std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace quire::models::parity
