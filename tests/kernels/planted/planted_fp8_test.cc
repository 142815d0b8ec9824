// Injected faults in copies of the e4m3 by e4m3 product (CMakeLists.txt lists the texts). Either
// the emulator aborts with the fault's description, or the result is far from the unmodified
// kernel's.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/rounded_rows.h"

namespace quire::kernels {
namespace internal {

absl::Status LinearFp8Sm90CudaSumsGoOn(const CudaContext& context, const LinearParams& params);
absl::Status LinearFp8Sm90CudaNoPromotion(const CudaContext& context, const LinearParams& params);
absl::Status LinearFp8Sm90CudaScaleOfRangeBegin(const CudaContext& context,
                                                const LinearParams& params);
absl::Status LinearFp8Sm90CudaScaleOfOneRow(const CudaContext& context, const LinearParams& params);
absl::Status LinearFp8Sm90CudaProductNotWaited(const CudaContext& context,
                                               const LinearParams& params);
absl::Status LinearFp8Sm90CudaStageGivenAwayUnread(const CudaContext& context,
                                                   const LinearParams& params);
absl::Status LinearFp8Sm90CudaFlagInTile(const CudaContext& context, const LinearParams& params);

}  // namespace internal

namespace {

// Groups of two tiles of 128 inputs and sub-ranges of three, so that one starts inside a group. 9
// rows run in separate blocks per sub-range, 130 in pairs of blocks over all of K.
class PlantedFp8DeathTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kFeatures = 600, kInputs = 1032, kRows = 130;
  static_assert(cuda::Fp8ReductionOf(kFeatures, kInputs).tiles_per_split == 3);

  PlantedFp8DeathTest() {
    cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
    options.check = cuda_emulator::CheckedLaunches::kAll;
    cuda_emulator::SetOptions(options);
    cuda_.emplace();
    made_ = MakeQuantized({.format = WeightFormat::kFp8E4M3,
                           .n = kFeatures,
                           .k = kInputs,
                           .group = 256,
                           .quantizes_activations = true,
                           .allows_row_major = true});
    weight_ = *made_.Pack(**cuda_);
    // Rows with different scales.
    for (std::uint32_t m = 0; m < kRows; ++m) {
      for (const float value : RandomFloats(kInputs, m, m % 3 == 0 ? 0.3f : 5.0f)) {
        x_.push_back(BF16::FromFloat(value));
      }
    }
  }
  ~PlantedFp8DeathTest() override {
    weight_ = {};
    cuda_.reset();
    cuda_emulator::Reset();
  }

  // Makes all features and all rows equal, with scales of 1.
  template <typename ValueOf>
  void Fill(ValueOf value_of) {
    made_.shape.group = kInputs;
    made_.scales.assign(kFeatures, 1.0f);
    for (std::uint32_t i = 0; i < kFeatures * kInputs; ++i) {
      made_.q[i] = static_cast<std::int8_t>(F8E4M3::FromFloat(value_of(i % kInputs)).bits);
    }
    weight_ = *made_.Pack(**cuda_);
    for (std::uint32_t i = 0; i < x_.size(); ++i) {
      x_[i] = BF16::FromFloat(value_of(i % kInputs));
    }
  }

  template <typename Product>
  std::vector<float> Run(Product product, std::uint32_t rows) {
    const DeviceArray<BF16> x(*cuda_, x_);
    const DeviceArray<float> y(*cuda_, kRows * kFeatures);
    const absl::Status status = product(*(**cuda_).cuda(), LinearParams{.x = x.data(),
                                                                        .weight = &weight_,
                                                                        .y = y.data(),
                                                                        .x_stride = kInputs,
                                                                        .y_stride = kFeatures,
                                                                        .num_rows = rows});
    EXPECT_TRUE(status.ok()) << status;
    cuda_->Wait();
    std::vector<float> values = y.Get();
    values.resize(std::size_t{rows} * kFeatures);
    return values;
  }

  // Returns the difference from double precision on the rounded rows.
  double Error(const std::vector<float>& y) const {
    std::vector<float> x;
    for (const BF16 value : x_) x.push_back(value.ToFloat());
    const std::vector<float> rounded = RoundedRows(x, kInputs);
    std::vector<double> exact;
    for (std::size_t i = 0; i < y.size(); ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < kInputs; ++k) {
        sum +=
            double{rounded[i / kFeatures * kInputs + k]} * made_.worth[i % kFeatures * kInputs + k];
      }
      exact.push_back(sum);
    }
    return RelativeError(y, exact);
  }

 private:
  std::optional<EmulatedBackend> cuda_;
  Quantized made_;
  PackedLinear weight_;
  std::vector<BF16> x_;
};

TEST_F(PlantedFp8DeathTest, ResultsRevealTheFaults) {
  for (const std::uint32_t rows : {9u, kRows}) {
    EXPECT_LT(Error(Run(internal::LinearFp8Sm90Cuda, rows)), 3e-3);
    EXPECT_GT(Error(Run(internal::LinearFp8Sm90CudaSumsGoOn, rows)), 0.1) << rows;
    EXPECT_GT(Error(Run(internal::LinearFp8Sm90CudaScaleOfOneRow, rows)), 0.1) << rows;
  }
  // With many rows one block processes all sub-ranges.
  EXPECT_GT(Error(Run(internal::LinearFp8Sm90CudaScaleOfRangeBegin, 9)), 0.1);
}

// 128 products of 448 by 448 are followed by many of 0.5 by 0.5, which a sum of only 14 bits would
// lose.
TEST_F(PlantedFp8DeathTest, SmallProductsRevealMissingPromotionToF32) {
  Fill([](std::uint32_t k) { return k < 128 ? 448.0f : 0.5f; });
  const float right = 128.0f * 448 * 448 + (kInputs - 128) * 0.25f;
  for (const float y : Run(internal::LinearFp8Sm90Cuda, 9)) ASSERT_EQ(y, right);
  for (const float y : Run(internal::LinearFp8Sm90CudaNoPromotion, 9)) ASSERT_LT(y, right - 32);
}

TEST_F(PlantedFp8DeathTest, EmulatorReportsTheFaults) {
  const std::string kernel = "kernel linear fp8 sm_90a, .*";
  EXPECT_DEATH(Run(internal::LinearFp8Sm90CudaProductNotWaited, kRows),
               absl::StrCat(kernel, "an accumulator of a wgmma product is touched before"));
  EXPECT_DEATH(Run(internal::LinearFp8Sm90CudaStageGivenAwayUnread, kRows),
               absl::StrCat(kernel, "(no barrier orders the two|to which a copy is under way)"));
  EXPECT_DEATH(Run(internal::LinearFp8Sm90CudaFlagInTile, 9),
               absl::StrCat(kernel, "no barrier orders the two"));
}

}  // namespace
}  // namespace quire::kernels
