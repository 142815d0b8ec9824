// Ops of options that few families use, on the emulated GPU, compared with double precision.

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend/exact_gate.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/residual.h"
#include "kernels/elementwise/softcap.h"
#include "kernels/elementwise/sum_rows.h"
#include "kernels/norm/norm.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/exact_gate_reference.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr GateShape kShapes[] = {{.alpha = 1.702f},
                                 {.alpha = 1.702f, .limit = 7, .up_offset = 1},
                                 {.act = Activation::kGeluTanh},
                                 {.act = Activation::kGeluTanh, .limit = 3, .up_offset = -0.5f},
                                 {.act = Activation::kGeluErf},
                                 {.act = Activation::kRelu2}};

template <typename T>
std::vector<T> As(const std::vector<float>& values) {
  std::vector<T> out;
  for (const float v : values) out.push_back(FromFloat<T>(v));
  return out;
}

template <typename T>
constexpr double kUnit = std::is_same_v<T, float> ? 1e-6 : 0x1p-8 * 1.001;

// Gate and up are adjacent, as the fused product writes them. There is one row of every shape.
template <typename T>
void CheckProduct(const EmulatedBackend& cuda, const GateShape& shape, std::uint32_t columns) {
  constexpr std::uint32_t kRows = 2;
  const std::uint32_t stride = 2 * columns + 3;
  const std::vector<T> both = As<T>(RandomFloats(kRows * stride, columns, 9.0f));
  DeviceArray<T> in(cuda, both);
  DeviceArray<T> y(cuda, kRows * stride);
  ASSERT_TRUE(GatedProduct(*cuda, {in.data(), in.data() + columns, y.data(), stride, stride, stride,
                                   kRows, columns, shape})
                  .ok());
  const std::vector<T> got = y.Get();
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t i = 0; i < columns; ++i) {
      const double gate = ToFloat(both[m * stride + i]);
      const double up = ToFloat(both[m * stride + columns + i]);
      const double want = ExactProduct(shape, gate, up);
      // Far below zero, gelu is the difference of nearly equal numbers.
      ASSERT_NEAR(ToFloat(got[m * stride + i]), want,
                  kUnit<T> * std::abs(want) + 4e-7 * std::abs(gate * (std::abs(up) + 1)))
          << m << " " << i << " " << gate << " " << up;
    }
  }
}

TEST(GatedProductCudaTest, EveryShapeEqualsDoublePrecision) {
  const EmulatedBackend cuda;
  for (const GateShape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(static_cast<int>(shape.act), " ", shape.alpha, " ", shape.limit));
    for (const std::uint32_t columns : {1u, 8u, 1030u}) {
      CheckProduct<float>(cuda, shape, columns);
      CheckProduct<BF16>(cuda, shape, columns);
    }
  }
}

// The product without up equals the one with up of ones. The product of bf16 gates and f32 inputs
// is exact and rounded once.
template <typename T>
void CheckOtherInputs(const EmulatedBackend& cuda, const GateShape& shape, std::uint32_t columns) {
  constexpr std::uint32_t kRows = 2;
  const std::vector<T> gate = As<T>(RandomFloats(kRows * columns, columns, 4.0f));
  const std::vector<float> up = RandomFloats(kRows * (columns + 2), 5);
  const DeviceArray<T> in(cuda, gate), y(cuda, gate.size()), want(cuda, gate.size());
  const DeviceArray<float> inputs(cuda, up);
  if (shape.limit == 0 && shape.up_offset == 0) {
    const DeviceArray<T> ones(cuda, As<T>(std::vector<float>(gate.size(), 1.0f)));
    ASSERT_TRUE(GatedProduct(*cuda, {in.data(), nullptr, y.data(), columns, 0, columns, kRows,
                                     columns, shape})
                    .ok());
    ASSERT_TRUE(GatedProduct(*cuda, {in.data(), ones.data(), want.data(), columns, columns, columns,
                                     kRows, columns, shape})
                    .ok());
    const std::vector<T> got = y.Get(), of_ones = want.Get();
    EXPECT_EQ(std::memcmp(got.data(), of_ones.data(), got.size() * sizeof(T)), 0);
  }
  ASSERT_TRUE(GatedProduct(*cuda, {in.data(), inputs.data(), y.data(), columns, columns + 2,
                                   columns, kRows, columns, shape})
                  .ok());
  const std::vector<T> got = y.Get();
  for (std::uint32_t i = 0; i < got.size(); ++i) {
    const double x = ToFloat(gate[i]);
    const double u = up[i / columns * (columns + 2) + i % columns];
    const double exact = ExactProduct(shape, x, u);
    ASSERT_NEAR(ToFloat(got[i]), exact,
                kUnit<T> * std::abs(exact) + 4e-7 * std::abs(x * (std::abs(u) + 1)))
        << i;
  }
}

TEST(GatedProductCudaTest, TakesInputsInF32AndNone) {
  const EmulatedBackend cuda;
  for (const GateShape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(static_cast<int>(shape.act), " ", shape.alpha, " ", shape.limit));
    for (const std::uint32_t columns : {16u, 37u}) {
      CheckOtherInputs<float>(cuda, shape, columns);
      CheckOtherInputs<BF16>(cuda, shape, columns);
    }
  }
}

TEST(GatedProductCudaTest, PropagatesNan) {
  const EmulatedBackend cuda;
  for (const GateShape& shape : kShapes) {
    const DeviceArray<float> gate(cuda, std::vector<float>{kNaN, 1, 1, 1});
    const DeviceArray<float> up(cuda, std::vector<float>{1, kNaN, 1, 1});
    const DeviceArray<float> y(cuda, 4);
    ASSERT_TRUE(GatedProduct(*cuda, {gate.data(), up.data(), y.data(), 4, 4, 4, 1, 4, shape}).ok());
    const std::vector<float> got = y.Get();
    EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1]));
    EXPECT_TRUE(std::isfinite(got[2]) && std::isfinite(got[3]));
  }
}

// tanh and erf over their whole range.
TEST(ExactGateTest, TanhAndErfAreWithinTheirBounds) {
  for (float x = -12; x < 12; x += 0.00037f) {
    const double tanh = std::tanh(double{x});
    const double erf = std::erf(double{x});
    ASSERT_NEAR(ExactTanh(x), tanh, 3.1 * 0x1p-23 * std::abs(tanh)) << x;
    ASSERT_NEAR(ExactErf(x), erf, 4.1 * 0x1p-23 * std::abs(erf)) << x;
  }
  for (const float x : {0.0f, kInfinity}) {
    EXPECT_EQ(ExactTanh(-x), x == 0 ? 0 : -1);
    EXPECT_EQ(ExactErf(x), x == 0 ? 0 : 1);
  }
  EXPECT_TRUE(std::isnan(ExactTanh(kNaN)) && std::isnan(ExactErf(kNaN)));
}

TEST(SoftcapCudaTest, EqualsDoublePrecisionAndKeepsInfinity) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kRows = 2, kColumns = 700, kStride = 703;
  for (const auto& [scale, cap] : {std::pair{1.0f, 30.0f}, {0.25f, 5.0f}, {0.125f, 0.0f}}) {
    std::vector<float> x = RandomFloats(kRows * kStride, 3, 60.0f);
    x[1] = kInfinity;
    x[2] = -kInfinity;
    x[3] = kNaN;
    const DeviceArray<float> device(cuda, x);
    ASSERT_TRUE(Softcap(*cuda, {device.data(), kStride, kRows, kColumns, scale, cap}).ok());
    const std::vector<float> got = device.Get();
    EXPECT_EQ(got[1], kInfinity);
    EXPECT_EQ(got[2], -kInfinity);
    EXPECT_TRUE(std::isnan(got[3]));
    for (std::uint32_t i = 4; i < x.size(); ++i) {
      if (i % kStride >= kColumns) {
        EXPECT_EQ(got[i], x[i]);
        continue;
      }
      const double scaled = double{x[i]} * scale;
      const double want = cap > 0 ? cap * std::tanh(scaled / cap) : scaled;
      ASSERT_NEAR(got[i], want, 1e-6 * std::abs(want)) << i;
    }
  }
}

// Compares with a loop on the host, bitwise, in one call or in several, for either type.
TEST(SumRowsCudaTest, AddsRowsInOrder) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kRows = 37, kColumns = 300;
  const std::vector<float> x = RandomFloats(kRows * kColumns, 5);
  std::vector<BF16> narrow;
  for (const float value : x) narrow.push_back(BF16::FromFloat(value));
  const DeviceArray<float> wide_rows(cuda, x);
  const DeviceArray<BF16> narrow_rows(cuda, narrow);
  for (const bool is_f32 : {true, false}) {
    std::vector<float> want(kColumns);
    for (std::uint32_t i = 0; i < x.size(); ++i) {
      want[i % kColumns] += is_f32 ? x[i] : narrow[i].ToFloat();
    }
    for (const std::uint32_t cut : {kRows, 1u, 20u}) {
      const DeviceArray<float> sum(cuda, std::vector<float>(kColumns, kNaN));
      for (std::uint32_t begin = 0; begin < kRows; begin += cut) {
        const ConstFloatPtr rows =
            is_f32 ? ConstFloatPtr(wide_rows.data()) : ConstFloatPtr(narrow_rows.data());
        ASSERT_TRUE(SumRows(*cuda, {.x = rows + begin * kColumns,
                                    .sum = sum.data(),
                                    .num_rows = std::min(cut, kRows - begin),
                                    .columns = kColumns,
                                    .begins = begin == 0})
                        .ok());
      }
      EXPECT_EQ(sum.Get(), want) << is_f32 << " " << cut;
    }
  }
}

TEST(ResidualAddCudaTest, RoundsEveryStep) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kRows = 3, kColumns = 300, kX = 301, kBranch = 305;
  const auto x = RandomFloats(kRows * kX, 1);
  const auto branch = RandomFloats(kRows * kBranch, 2);
  const DeviceArray<float> db(cuda, branch);
  const DeviceArray<float> stored(cuda, std::vector<float>{0.7f});
  for (const bool has_stored : {false, true}) {
    const DeviceArray<float> dx(cuda, x);
    ASSERT_TRUE(ResidualAdd(*cuda, {dx.data(), db.data(), kX, kBranch, kRows, kColumns, 0.22f, 1.5f,
                                    has_stored ? stored.data() : nullptr})
                    .ok());
    const volatile float factor = has_stored ? 1.5f * 0.7f : 1.5f;
    const std::vector<float> got = dx.Get();
    for (std::uint32_t m = 0; m < kRows; ++m) {
      for (std::uint32_t i = 0; i < kColumns; ++i) {
        const volatile float scaled = 0.22f * branch[m * kBranch + i];
        const volatile float sum = x[m * kX + i] + scaled;
        ASSERT_EQ(got[m * kX + i], sum * factor);
      }
      EXPECT_EQ(got[m * kX + kColumns], x[m * kX + kColumns]);
    }
  }
}

TEST(RoundRowsCudaTest, RoundsToNearestEven) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kRows = 2, kColumns = 260, kX = 263, kY = 264;
  const auto x = RandomFloats(kRows * kX, 4);
  const DeviceArray<float> dx(cuda, x);
  const DeviceArray<BF16> dy(cuda, kRows * kY);
  ASSERT_TRUE(RoundRows(*cuda, {dx.data(), dy.data(), kX, kY, kRows, kColumns}).ok());
  const std::vector<BF16> got = dy.Get();
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t i = 0; i < kColumns; ++i) {
      ASSERT_EQ(got[m * kY + i].bits, BF16::FromFloat(x[m * kX + i]).bits);
    }
    EXPECT_EQ(got[m * kY + kColumns].bits, 0xffffu);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      RoundRows(*cuda, {dx.data(), dy.data(), kColumns - 1, kY, kRows, kColumns})));
}

// Heads of q or k are adjacent in wider rows and normalized in place. With one group it is the
// whole row.
template <typename T>
void CheckHeads(const EmulatedBackend& cuda, std::uint32_t heads, std::uint32_t size,
                std::uint32_t gap) {
  SCOPED_TRACE(absl::StrCat(heads, " of ", size, " + ", gap));
  constexpr std::uint32_t kRows = 3;
  const std::uint32_t stride = heads * size + gap;
  const std::vector<T> x = As<T>(RandomFloats(kRows * stride, size));
  const auto weight = RandomFloats(size, size + 1);
  const DeviceArray<T> dx(cuda, x);
  const DeviceArray<float> dw(cuda, weight);
  ASSERT_TRUE(RmsNorm(*cuda, {.x = dx.data(),
                              .weight = dw.data(),
                              .y = dx.data(),
                              .x_stride = stride,
                              .y_stride = stride,
                              .num_rows = kRows,
                              .hidden = size,
                              .epsilon = 1e-3f,
                              .groups = heads})
                  .ok());
  const std::vector<T> got = dx.Get();
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t h = 0; h < heads; ++h) {
      const std::size_t at = std::size_t{m} * stride + std::size_t{h} * size;
      double squares = 0;
      for (std::uint32_t i = 0; i < size; ++i) {
        squares += double{ToFloat(x[at + i])} * ToFloat(x[at + i]);
      }
      const double inverse = 1 / std::sqrt(squares / size + 1e-3);
      for (std::uint32_t i = 0; i < size; ++i) {
        const double want = ToFloat(x[at + i]) * inverse * weight[i];
        ASSERT_NEAR(ToFloat(got[at + i]), want, kUnit<T> * std::abs(want) + 1e-30);
      }
    }
    const std::size_t end = (std::size_t{m} + 1) * stride - gap;
    EXPECT_EQ(std::memcmp(&got[end], &x[end], gap * sizeof(T)), 0);
  }
}

TEST(HeadNormCudaTest, EqualsDoublePrecisionInPlace) {
  const EmulatedBackend cuda;
  for (const std::uint32_t heads : {1u, 2u, 9u}) {
    for (const std::uint32_t size : {7u, 64u, 128u, 200u, 1028u}) {
      for (const std::uint32_t gap : {0u, 3u}) {
        CheckHeads<float>(cuda, heads, size, gap);
        CheckHeads<BF16>(cuda, heads, size, gap);
      }
    }
  }
}

TEST(HeadNormCudaTest, NamesWhatIsWrong) {
  const EmulatedBackend cuda;
  const DeviceArray<float> f32(cuda, 8);
  const DeviceArray<BF16> bf16(cuda, 8);
  const DeviceArray<std::uint32_t> indices(cuda, std::vector<std::uint32_t>{0});
  RmsNormParams params{.x = f32.data(),
                       .y = bf16.data(),
                       .x_stride = 8,
                       .y_stride = 8,
                       .num_rows = 1,
                       .hidden = 4,
                       .epsilon = 1e-5f,
                       .groups = 2};
  EXPECT_TRUE(absl::IsInvalidArgument(RmsNorm(*cuda, params)));
  params.y = f32.data();
  params.row_indices = indices.data();
  EXPECT_TRUE(absl::IsInvalidArgument(RmsNorm(*cuda, params)));
  params.row_indices = nullptr;
  params.residual = f32.data();
  params.residual_stride = 8;
  EXPECT_TRUE(absl::IsInvalidArgument(RmsNorm(*cuda, params)));
}

}  // namespace
}  // namespace quire::kernels
