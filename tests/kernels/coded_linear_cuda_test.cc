// Linear with quantized weights of 8 and 4 bits on the emulated GPU, compared with double precision
// and with the CPU.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/linear/weight_memory.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/linear_cuda_fixture.h"

namespace quire::kernels {
namespace {

// Each format with a scale per output feature, with every group size that the kernels distinguish,
// and with zero points. Shapes have whole and partial tiles.
const QuantizedShape kCodedShapes[] = {
    {.format = WeightFormat::kInt8, .n = 130, .k = 584, .group = 584},
    {.format = WeightFormat::kInt8, .n = 5, .k = 8, .group = 8},
    {.format = WeightFormat::kInt8, .n = 130, .k = 544, .group = 32},
    {.format = WeightFormat::kInt8, .n = 20, .k = 64, .group = 64},
    {.format = WeightFormat::kInt8, .n = 129, .k = 640, .group = 128},
    {.format = WeightFormat::kInt8,
     .n = 130,
     .k = 544,
     .group = 32,
     .has_min = true,
     .has_zero_points = true},
    {.format = WeightFormat::kInt8,
     .n = 40,
     .k = 128,
     .group = 128,
     .has_min = true,
     .has_zero_points = true},
    {.format = WeightFormat::kFp8E4M3, .n = 130, .k = 584, .group = 584},
    {.format = WeightFormat::kFp8E4M3, .n = 130, .k = 584, .group = 128},
    {.format = WeightFormat::kFp8E4M3, .n = 9, .k = 200, .group = 64},
    {.format = WeightFormat::kInt4, .n = 130, .k = 544, .group = 32},
    {.format = WeightFormat::kInt4, .n = 130, .k = 576, .group = 64},
    {.format = WeightFormat::kInt4, .n = 130, .k = 640, .group = 128},
    {.format = WeightFormat::kInt4, .n = 3, .k = 32, .group = 32},
    {.format = WeightFormat::kInt4,
     .n = 130,
     .k = 544,
     .group = 32,
     .has_min = true,
     .has_zero_points = true},
    {.format = WeightFormat::kInt4,
     .n = 70,
     .k = 256,
     .group = 128,
     .has_min = true,
     .has_zero_points = true},
    {.format = WeightFormat::kInt4,
     .n = 130,
     .k = 544,
     .group = 32,
     .has_min = true,
     .has_zero_points = true,
     .has_act_order = true},
    {.format = WeightFormat::kInt8, .n = 24, .k = 256, .group = 128, .has_act_order = true},
    {.format = WeightFormat::kFp4E2M1, .n = 130, .k = 544, .group = 32},
    {.format = WeightFormat::kFp4E2M1, .n = 7, .k = 32, .group = 32},
};

std::string NameOf(const QuantizedShape& shape) {
  return absl::StrCat(WeightFormatName(shape.format), " group ", shape.group,
                      shape.has_min ? " zeros" : "", shape.has_act_order ? " order " : " ", shape.n,
                      "x", shape.k);
}

TEST(CodedLinearCudaTest, QuantizedWeightsAgreeWithDouble) {
  const CudaBackend cuda;
  for (const QuantizedShape& shape : kCodedShapes) {
    SCOPED_TRACE(NameOf(shape));
    const Quantized made = MakeQuantized(shape);
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->size_bytes(), CudaQuantizedPartsOf(shape).total());
    for (const std::uint32_t rows : {1u, 8u, 33u}) {
      const Inputs in(rows, shape.n, shape.k, DType::kBF16);
      const auto exact = Exact(in.x, made.worth, in.bias, in.residual, rows, shape.n, shape.k);
      for (const DType y_dtype : {DType::kF32, DType::kBF16}) {
        EXPECT_LE(
            RelativeError(Compute(cuda, *packed, in, {.y_dtype = y_dtype, .extras = true}, 0, rows),
                          exact),
            Tolerance(y_dtype))
            << "rows " << rows;
      }
    }
    const std::uint32_t counts[] = {1, 8, 9, 64};
    if (shape.k > 500) ExpectRowsInvariant(cuda, *packed, {.extras = true}, 70, counts);
  }
}

// Plain and quantized matrices in a shared allocation are bitwise equal to those in separate ones.
// The allocation's owner is destroyed before.
TEST(CodedLinearCudaTest, SharedAllocationDoesNotChangeBits) {
  const CudaBackend cuda;
  constexpr std::uint32_t kPlainN = 7, kPlainK = 24, kRows = 3;
  const auto plain = Encode(RandomFloats(std::size_t{kPlainN} * kPlainK, 3), DType::kF32);
  const WeightRows rows{plain.data(), kPlainN};
  std::int64_t room = 2 * CudaPlainPaddedBytes(DType::kF32, kPlainN, kPlainK, DType::kBF16);
  for (const QuantizedShape& shape : kCodedShapes) room += CudaQuantizedPaddedBytes(shape);
  std::vector<PackedLinear> shared, own;
  {
    auto memory = WeightMemory::Allocate(room);
    ASSERT_TRUE(memory.ok()) << memory.status();
    const auto pack_plain = [&](std::vector<PackedLinear>& to, WeightMemory* from) {
      to.push_back(*PackLinearWeights(*cuda, {&rows, 1}, DType::kF32, kPlainK,
                                      {.activations = DType::kBF16, .memory = from}));
    };
    for (const auto& [to, from] :
         {std::pair(&shared, &*memory), std::pair(&own, static_cast<WeightMemory*>(nullptr))}) {
      pack_plain(*to, from);
      for (const QuantizedShape& shape : kCodedShapes) {
        auto packed = MakeQuantized(shape).Pack(*cuda, from);
        ASSERT_TRUE(packed.ok()) << packed.status();
        EXPECT_EQ(packed->size_bytes(), CudaQuantizedPartsOf(shape).total());
        to->push_back(*std::move(packed));
      }
      pack_plain(*to, from);
    }
    EXPECT_EQ(memory->left_bytes(), 0);
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (const void* const at : {shared[i].data(), shared[i].scales()}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % 256, 0u);
    }
    const Inputs in(kRows, own[i].n(), own[i].k(), DType::kBF16);
    const auto got = Compute(cuda, shared[i], in, {}, 0, kRows);
    const auto want = Compute(cuda, own[i], in, {}, 0, kRows);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
  }
}

// The workspace of act-order permuted rows holds fewer rows at once: 64 of bf16 or 32 of f32.
TEST(CodedLinearCudaTest, PermutedRowsInSeveralPassesKeepTheirBits) {
  const CudaBackend cuda;
  constexpr std::uint32_t kRows = 70;
  const QuantizedShape shape = {
      .format = WeightFormat::kInt8, .n = 8, .k = 32768, .group = 128, .has_act_order = true};
  const Quantized made = MakeQuantized(shape);
  const auto packed = made.Pack(*cuda);
  ASSERT_TRUE(packed.ok()) << packed.status();
  for (const DType x_dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(DTypeName(x_dtype));
    const kernels::Run run = {.x_dtype = x_dtype, .extras = true};
    const Inputs in(kRows, shape.n, shape.k, x_dtype);
    EXPECT_LE(RelativeError(Compute(cuda, *packed, in, run, 0, kRows),
                            Exact(in.x, made.worth, in.bias, in.residual, kRows, shape.n, shape.k)),
              Tolerance(DType::kF32));
    const std::uint32_t counts[] = {1, 6};
    ExpectRowsInvariant(cuda, *packed, run, kRows, counts);
  }
}

// Scales below the normal numbers of their type. 2^-127, the smallest of mxfp4, is subnormal in
// bf16 and f32. Integer scales up to 2^-15 are subnormal in f16.
TEST(CodedLinearCudaTest, SubnormalScalesAreExact) {
  struct Case {
    QuantizedShape shape;
    int smallest;  // exponent of the scale of the first group
    int exponents;
    float input;
  };
  const CudaBackend cuda;
  constexpr std::uint32_t kRows = 9;
  for (const Case& c :
       {Case{{.format = WeightFormat::kFp4E2M1, .n = 40, .k = 96, .group = 32}, -127, 8, 0x1p100f},
        Case{{.format = WeightFormat::kInt8, .n = 40, .k = 96, .group = 32}, -24, 10, 1.0f}}) {
    SCOPED_TRACE(NameOf(c.shape));
    const std::uint32_t k = c.shape.k, groups = c.shape.num_groups();
    Quantized made = MakeQuantized(c.shape);
    for (std::size_t i = 0; i < made.worth.size(); ++i) {
      // All groups of a feature have one exponent.
      const float scale = std::ldexp(1.0f, c.smallest + static_cast<int>(i / k) % c.exponents);
      const std::size_t group = i / k * groups + i % k / c.shape.group;
      made.worth[i] = made.worth[i] / made.scales[group] * scale;
      if (i % c.shape.group == c.shape.group - 1) made.scales[group] = scale;
    }
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (const DType x_dtype : {DType::kBF16, DType::kF32}) {
      Inputs in(kRows, c.shape.n, k, x_dtype);
      for (float& x : in.x) x *= c.input;
      const auto y = Compute(cuda, *packed, in, {.x_dtype = x_dtype}, 0, kRows);
      for (std::uint32_t m = 0; m < kRows; ++m) {
        for (std::uint32_t n = 0; n < c.shape.n; ++n) {
          double sum = 0, magnitudes = 0;
          for (std::uint32_t i = 0; i < k; ++i) {
            const double product = double{in.x[m * k + i]} * made.worth[n * k + i];
            sum += product;
            magnitudes += std::abs(product);
          }
          ASSERT_GT(magnitudes, 0);
          ASSERT_NEAR(y[m * c.shape.n + n], sum, 2e-6 * magnitudes)
              << DTypeName(x_dtype) << " row " << m << " feature " << n;
        }
      }
    }
  }
}

// With f32 activations, quantized weights are widened to f32. Results equal those of the values on
// the CPU bitwise.
TEST(CodedLinearCudaTest, QuantizedWeightsWithF32ActivationsEqualTheirValues) {
  const CudaBackend cuda;
  const TestBackend cpu(1);
  const auto isas = AvailableIsas();
  const bool fused = std::count(isas.begin(), isas.end(), "avx2") +
                         std::count(isas.begin(), isas.end(), "avx512") >
                     0;
  for (const QuantizedShape& shape : kCodedShapes) {
    SCOPED_TRACE(NameOf(shape));
    const Quantized made = MakeQuantized(shape);
    const auto packed = made.Pack(*cuda);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto plain = PackLinearWeight(*cpu, made.worth.data(), DType::kF32, shape.n, shape.k);
    constexpr std::uint32_t kRows = 3;
    const Inputs in(kRows, shape.n, shape.k, DType::kF32);
    const auto y = Compute(cuda, *packed, in, {.x_dtype = DType::kF32, .extras = true}, 0, kRows);
    EXPECT_LE(
        RelativeError(y, Exact(in.x, made.worth, in.bias, in.residual, kRows, shape.n, shape.k)),
        1e-6);
    std::vector<float> expected(y.size());
    ASSERT_TRUE(Linear(*cpu, {.x = in.x.data(),
                              .weight = &*plain,
                              .bias = in.bias.data(),
                              .residual = in.residual.data(),
                              .y = expected.data(),
                              .x_stride = shape.k,
                              .residual_stride = shape.n,
                              .y_stride = shape.n,
                              .num_rows = kRows})
                    .ok());
    // Another act-order permutation changes the order of the sums.
    if (fused && !shape.has_act_order) {
      EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0);
    }
  }
}

// Multiplying by the identity reads a matrix back. Device and host must agree in every integer and
// scale.
TEST(CodedLinearCudaTest, QuantizesToTheIntegersOfTheCpu) {
  const CudaBackend cuda;
  const TestBackend cpu(2);
  constexpr std::uint32_t kN = 40, kK = 128;
  const auto w = RandomFloats(kN * kK, 3, 0.02f);
  Inputs in(kK, kN, kK, DType::kBF16);
  for (std::uint32_t i = 0; i < kK * kK; ++i) in.x[i] = i / kK == i % kK ? 1.0f : 0.0f;
  for (const auto& [format, group] :
       std::vector<std::pair<WeightFormat, std::uint32_t>>{{WeightFormat::kInt8, 32},
                                                           {WeightFormat::kInt8, 64},
                                                           {WeightFormat::kInt8, 128},
                                                           {WeightFormat::kInt4, 32},
                                                           {WeightFormat::kInt4, 64},
                                                           {WeightFormat::kInt4, 128}}) {
    SCOPED_TRACE(absl::StrCat(WeightFormatName(format), " group ", group));
    const QuantizedShape shape = {.format = format, .n = kN, .k = kK, .group = group};
    const auto source = [&, format = format, group = group](std::uint32_t row,
                                                            const QuantizedRow& out) {
      QuantizeRow(format, group, {w.data() + std::size_t{row} * kK, kK}, out);
    };
    const auto here = PackQuantizedRows(*cpu, shape, source);
    const auto there = PackQuantizedRows(*cuda, shape, source);
    ASSERT_TRUE(here.ok() && there.ok()) << there.status();
    const auto y = Compute(cuda, *there, in, {}, 0, kK);
    for (std::uint32_t k = 0; k < kK; ++k) {
      for (std::uint32_t n = 0; n < kN; ++n) ASSERT_EQ(y[k * kN + n], here->At(n, k));
    }
  }
}

TEST(CodedLinearCudaTest, NamesWhatIsWrong) {
  const CudaBackend cuda;
  float zero = 256;
  const auto pack = [&](const QuantizedShape& shape) {
    const auto source = [&](std::uint32_t, const QuantizedRow& out) {
      std::fill(out.mins.begin(), out.mins.end(), -zero);
    };
    return std::string(PackQuantizedRows(*cuda, shape, source).status().message());
  };
  QuantizedShape shape{.format = WeightFormat::kInt4, .n = 4, .k = 128, .group = 32};
  EXPECT_EQ(pack(shape), "");
  shape.group = 48;
  EXPECT_THAT(pack(shape),
              testing::HasSubstr("128 inputs in groups of 48, GPUs support groups of 32, 64"));
  shape.format = WeightFormat::kFp8E4M3;
  EXPECT_THAT(pack(shape), testing::HasSubstr("groups of a multiple of 64, or of all inputs"));
  shape.format = WeightFormat::kFp4E2M1;
  EXPECT_THAT(pack(shape), testing::HasSubstr("GPUs support groups of 32 that divide"));
  shape.group = 32;
  shape.has_min = shape.has_zero_points = true;
  EXPECT_THAT(pack(shape),
              testing::HasSubstr("minimums, GPUs support only zero points of integers"));
  shape.format = WeightFormat::kInt8;
  EXPECT_THAT(pack(shape), testing::HasSubstr("zero point 256 in row 0, GPUs support 0 to 255"));
  shape.format = WeightFormat::kInt4;
  zero = 129;
  EXPECT_THAT(pack(shape), testing::HasSubstr("zero point 129 in row 0, GPUs support 0 to 128"));
  shape = {.format = WeightFormat::kInt4, .n = 4, .k = 65568, .group = 32, .has_act_order = true};
  EXPECT_THAT(pack(shape),
              testing::HasSubstr("65568 inputs with an act-order permutation, GPUs support"));
  shape = {.format = WeightFormat::kInt8, .n = 4, .k = 15, .group = 15};
  EXPECT_THAT(pack(shape), testing::HasSubstr("the second a multiple of 8"));
}

}  // namespace
}  // namespace quire::kernels
