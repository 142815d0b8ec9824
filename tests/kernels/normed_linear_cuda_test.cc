// Products with a norm behind them on the emulated GPU: bit for bit Linear and RmsNorm.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/norm/norm.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"

namespace quire::kernels {
namespace {

// A product into the residual stream and the norm of that, in one op or in two.
class NormedProduct {
 public:
  NormedProduct(const CudaBackend& cuda, const PackedLinear& weight, std::uint32_t rows,
                DType normed_type = DType::kBF16)
      : cuda_(cuda),
        weight_(weight),
        rows_(rows),
        x_(cuda, DType::kBF16, rows, weight.k(), (weight.k() + 15) / 8 * 8),
        stream_(cuda, DType::kF32, rows, weight.n(), weight.n() + 4),
        normed_(cuda, normed_type, rows, weight.n(), weight.n() + 8),
        norm_weight_(cuda, DType::kF32, 1, weight.n(), weight.n()) {
    x_.Put(Rounded(RandomFloats(std::size_t{rows} * weight.k(), 2), DType::kBF16));
    norm_weight_.Put(RandomFloats(weight.n(), 3));
  }

  struct Result {
    std::vector<float> stream;
    std::vector<float> normed;
    std::uint64_t launches;
  };
  Result Run(bool in_one_op) {
    stream_.Put(RandomFloats(std::size_t{rows_} * weight_.n(), 4));
    const RmsNormParams norm{.x = stream_.ptr(),
                             .weight = norm_weight_.f32(),
                             .y = normed_.ptr(),
                             .x_stride = stream_.stride(),
                             .y_stride = normed_.stride(),
                             .num_rows = rows_,
                             .hidden = weight_.n(),
                             .epsilon = 1e-5f,
                             .weight_offset = 1};
    LinearParams product{.x = x_.ptr(),
                         .weight = &weight_,
                         .residual = stream_.f32(),
                         .y = stream_.ptr(),
                         .x_stride = x_.stride(),
                         .residual_stride = stream_.stride(),
                         .y_stride = stream_.stride(),
                         .num_rows = rows_};
    if (in_one_op) product.norm = &norm;
    const std::uint64_t before = cuda_emulator::LaunchCount();
    EXPECT_TRUE(Linear(*cuda_, product).ok());
    if (!in_one_op) {
      EXPECT_TRUE(RmsNorm(*cuda_, norm).ok());
    }
    EXPECT_TRUE(cuda_.stream().Synchronize().ok());
    Result result{stream_.Get(), normed_.Get(), cuda_emulator::LaunchCount() - before};
    EXPECT_TRUE(stream_.GuardsIntact());
    EXPECT_TRUE(normed_.GuardsIntact());
    return result;
  }

 private:
  const CudaBackend& cuda_;
  const PackedLinear& weight_;
  std::uint32_t rows_;
  DeviceRows x_;
  DeviceRows stream_;
  DeviceRows normed_;
  DeviceRows norm_weight_;
};

void ExpectBits(NormedProduct product, std::uint64_t launches) {
  const NormedProduct::Result got = product.Run(/*in_one_op=*/true);
  const NormedProduct::Result want = product.Run(/*in_one_op=*/false);
  EXPECT_EQ(got.stream, want.stream);
  EXPECT_EQ(got.normed, want.normed);
  EXPECT_EQ(got.launches, cuda_emulator::IsEmulated() ? launches : 0);
}

// Features in one tile and in several, no multiple of four among them, K in one sub-range and in
// several; up to the most rows and beyond.
TEST(NormedLinearCudaTest, OneLaunchHasTheBitsOfTwo) {
  const CudaBackend cuda;
  const std::pair<std::uint32_t, std::uint32_t> shapes[] = {
      {40, 72}, {128, 584}, {136, 72}, {270, 584}, {9000, 64}};
  for (const auto& [n, k] : shapes) {
    const PackedLinear weight = Pack(cuda, RandomFloats(std::size_t{n} * k, 1), DType::kBF16, n, k);
    for (const std::uint32_t rows : {1u, 3u, 4u, 5u}) {
      SCOPED_TRACE(absl::StrCat(n, "x", k, ", ", rows, " rows"));
      ExpectBits({cuda, weight, rows}, rows <= 4 ? 1u : 2u);
    }
  }
}

// Of every form, K in one sub-range and in several, with zero points, and by way of an order.
const QuantizedShape kCodes[] = {
    {.format = WeightFormat::kInt8, .n = 136, .k = 584, .group = 584},
    {.format = WeightFormat::kInt8,
     .n = 40,
     .k = 64,
     .group = 32,
     .has_min = true,
     .min_in_steps = true},
    {.format = WeightFormat::kFp8E4M3, .n = 24, .k = 584, .group = 128},
    {.format = WeightFormat::kInt4, .n = 270, .k = 576, .group = 64},
    {.format = WeightFormat::kInt4,
     .n = 4104,
     .k = 128,
     .group = 128,
     .has_min = true,
     .min_in_steps = true},
    {.format = WeightFormat::kFp4E2M1, .n = 136, .k = 544, .group = 32},
    {.format = WeightFormat::kInt4, .n = 136, .k = 640, .group = 128, .has_order = true}};

TEST(NormedLinearCudaTest, CodesTakeOneLaunchToo) {
  const CudaBackend cuda;
  for (const QuantizedShape& shape : kCodes) {
    SCOPED_TRACE(absl::StrCat(WeightFormatName(shape.format), " ", shape.n, "x", shape.k,
                              shape.has_order ? " order" : ""));
    const PackedLinear weight = *MakeQuantized(shape).Pack(*cuda);
    for (const std::uint32_t rows : {1u, 4u, 5u}) {
      ExpectBits({cuda, weight, rows}, (rows <= 4 ? 1u : 2u) + (shape.has_order ? 1u : 0u));
    }
  }
}

// A row's bits are those that it has alone, on either side of the most rows.
void ExpectTheBitsOfOneRow(const CudaBackend& cuda, const PackedLinear& weight) {
  const auto alone = NormedProduct(cuda, weight, 1).Run(true).normed;
  for (const std::uint32_t rows : {2u, 4u, 5u, 70u}) {
    const auto all = NormedProduct(cuda, weight, rows).Run(true).normed;
    EXPECT_EQ(std::memcmp(all.data(), alone.data(), alone.size() * sizeof(float)), 0) << rows;
  }
}

TEST(NormedLinearCudaTest, ARowHasItsBitsInEveryBatch) {
  const CudaBackend cuda;
  ExpectTheBitsOfOneRow(cuda, Pack(cuda, RandomFloats(136 * 584, 1), DType::kBF16, 136, 584));
  ExpectTheBitsOfOneRow(cuda, *MakeQuantized(kCodes[3]).Pack(*cuda));
  ExpectTheBitsOfOneRow(cuda, *MakeQuantized(kCodes[6]).Pack(*cuda));
}

TEST(NormedLinearCudaTest, OtherNormsAreALaunchOfTheirOwn) {
  const CudaBackend cuda;
  const PackedLinear weight = Pack(cuda, RandomFloats(40 * 72, 1), DType::kBF16, 40, 72);
  ExpectBits({cuda, weight, 2, DType::kF32}, 2);
  // K that tensor cores do not take.
  const PackedLinear uneven = Pack(cuda, RandomFloats(40 * 60, 1), DType::kBF16, 40, 60);
  ExpectBits({cuda, uneven, 2}, 2);
}

}  // namespace
}  // namespace quire::kernels
