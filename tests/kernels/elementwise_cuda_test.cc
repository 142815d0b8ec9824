// Norm, gated product and rope angles on the emulated GPU, compared with double precision.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/backend/exact_math.h"
#include "kernels/elementwise/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

template <typename T>
std::vector<T> As(std::span<const float> values) {
  std::vector<T> out;
  for (const float v : values) out.push_back(FromFloat<T>(v));
  return out;
}

bool IsPoison(const void* value, std::size_t bytes) {
  const std::vector<std::byte> poison(bytes, std::byte{0xff});
  return std::memcmp(value, poison.data(), bytes) == 0;
}

// One norm: its sizes and optional inputs.
struct NormCase {
  std::uint32_t hidden;
  bool residual;
  bool weight;
  std::uint32_t gap;  // elements between rows; an odd gap makes all rows unaligned
  bool gather;
};

// Runs the norm of `rows` rows and returns the bits of y and of the residual.
template <typename Y>
struct NormRun {
  NormRun(const EmulatedBackend& cuda, const NormCase& of, std::span<const float> x,
          std::span<const float> residual, std::span<const float> weight,
          const std::vector<std::uint32_t>& indices) {
    const std::uint32_t stride = of.hidden + of.gap;
    const auto rows = static_cast<std::uint32_t>(indices.size());
    DeviceArray<float> dx(cuda, {x.begin(), x.end()});
    DeviceArray<float> dr(cuda, {residual.begin(), residual.end()});
    DeviceArray<float> dw(cuda, {weight.begin(), weight.end()});
    DeviceArray<std::uint32_t> di(cuda, indices);
    DeviceArray<Y> dy(cuda, std::size_t{rows} * stride + 8);
    const RmsNormParams params{.x = dx.data(),
                               .weight = of.weight ? dw.data() : nullptr,
                               .residual = of.residual ? dr.data() : nullptr,
                               .y = dy.data(),
                               .x_stride = stride,
                               .residual_stride = stride,
                               .y_stride = stride,
                               .num_rows = rows,
                               .hidden = of.hidden,
                               .epsilon = 1e-5f,
                               .weight_offset = of.weight ? 1.0f : 0.0f,
                               .row_indices = of.gather ? di.data() : nullptr};
    const absl::Status status = RmsNorm(*cuda, params);
    EXPECT_TRUE(status.ok()) << status;
    y = dy.Get();
    sum = dr.Get();
  }
  std::vector<Y> y;
  std::vector<float> sum;
};

template <typename Y>
void CheckNorm(const EmulatedBackend& cuda, const NormCase& of) {
  constexpr std::uint32_t kRows = 4;
  const std::uint32_t stride = of.hidden + of.gap;
  const auto x = RandomFloats(kRows * stride, of.hidden);
  const auto residual = RandomFloats(kRows * stride, of.hidden + 1);
  const auto weight = RandomFloats(of.hidden, of.hidden + 2);
  const std::vector<std::uint32_t> indices =
      of.gather ? std::vector<std::uint32_t>{3, 0, 2} : std::vector<std::uint32_t>{0, 1, 2, 3};
  const NormRun<Y> run(cuda, of, x, residual, weight, indices);
  for (std::size_t m = 0; m < indices.size(); ++m) {
    const std::size_t from = indices[m] * stride;
    std::vector<double> s(of.hidden);
    double squares = 0;
    for (std::uint32_t i = 0; i < of.hidden; ++i) {
      s[i] = x[from + i];
      if (of.residual) {
        s[i] = x[from + i] + residual[from + i];  // in f32, like the stored residual
        EXPECT_EQ(run.sum[from + i], static_cast<float>(s[i]));
      }
      squares += s[i] * s[i];
    }
    const double inverse = 1 / std::sqrt(squares / of.hidden + 1e-5);
    for (std::uint32_t i = 0; i < of.hidden; ++i) {
      const double want = s[i] * inverse * (of.weight ? double{weight[i] + 1.0f} : 1.0);
      const double unit = std::is_same_v<Y, float> ? 1e-6 : 0x1p-8 * 1.001;
      ASSERT_NEAR(ToFloat(run.y[m * stride + i]), want, unit * std::abs(want) + 1e-30)
          << "row " << m << " column " << i;
    }
    EXPECT_TRUE(of.gap == 0 || IsPoison(&run.y[m * stride + of.hidden], of.gap * sizeof(Y)));
  }
  if (!of.gather && !of.residual) {
    EXPECT_TRUE(std::equal(run.sum.begin(), run.sum.end(), residual.begin()));
  }
  // A single row at another address with other strides gives the same bits.
  NormCase alone = of;
  alone.gap = of.gap + 1;
  alone.gather = false;
  const auto row = [&](const std::vector<float>& v) {
    std::vector<float> one(of.hidden + alone.gap, 0.0f);
    std::copy_n(v.begin() + indices[1] * stride, of.hidden, one.begin());
    return one;
  };
  const NormRun<Y> again(cuda, alone, row(x), row(residual), weight, {0});
  EXPECT_EQ(std::memcmp(again.y.data(), run.y.data() + stride, of.hidden * sizeof(Y)), 0);
}

class NormCudaTest : public testing::TestWithParam<NormCase> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, NormCudaTest,
    testing::Values(NormCase{1, false, true, 3, false}, NormCase{7, true, true, 0, false},
                    NormCase{64, true, false, 4, false}, NormCase{100, true, true, 1, true},
                    NormCase{1024, true, true, 0, false}, NormCase{1030, false, true, 2, true},
                    NormCase{4096, true, true, 8, true}, NormCase{8192, false, false, 0, false},
                    NormCase{9004, true, true, 4, false}, NormCase{10001, false, true, 0, true}));

TEST_P(NormCudaTest, EqualsTheExactNormRoundedOnce) {
  const EmulatedBackend cuda;
  CheckNorm<float>(cuda, GetParam());
  CheckNorm<BF16>(cuda, GetParam());
}

TEST(ElementwiseCudaTest, NormInPlaceAndOtherTypes) {
  const EmulatedBackend cuda;
  const auto x = RandomFloats(9000, 1);
  DeviceArray<float> in_place(cuda, x);
  DeviceArray<float> apart(cuda, x);
  DeviceArray<float> y(cuda, 9000);
  RmsNormParams params{.x = apart.data(),
                       .y = y.data(),
                       .x_stride = 9000,
                       .y_stride = 9000,
                       .num_rows = 1,
                       .hidden = 9000,
                       .epsilon = 1e-6f};
  ASSERT_TRUE(RmsNorm(*cuda, params).ok());
  params.x = in_place.data();
  params.y = in_place.data();
  ASSERT_TRUE(RmsNorm(*cuda, params).ok());
  EXPECT_EQ(in_place.Get(), y.Get());
  DeviceArray<BF16> half(cuda, 9000);
  params.x = half.data();
  EXPECT_TRUE(absl::IsInvalidArgument(RmsNorm(*cuda, params)));
}

TEST(ElementwiseCudaTest, CpuNormGathersRows) {
  const TestBackend cpu(2);
  constexpr std::uint32_t kHidden = 37;
  const auto x = RandomFloats(5 * kHidden, 1);
  auto residual = RandomFloats(5 * kHidden, 2);
  const auto before = residual;
  const std::vector<std::uint32_t> indices = {4, 1};
  std::vector<float> y(2 * kHidden), plain(2 * kHidden), one(kHidden);
  RmsNormParams params{.x = x.data(),
                       .residual = residual.data(),
                       .y = y.data(),
                       .x_stride = kHidden,
                       .residual_stride = kHidden,
                       .y_stride = kHidden,
                       .num_rows = 2,
                       .hidden = kHidden,
                       .epsilon = 1e-5f,
                       .row_indices = indices.data()};
  ASSERT_TRUE(RmsNorm(*cpu, params).ok());
  residual = before;
  params.y = plain.data();
  internal::RmsNormCpu(params, 0, 2);
  for (std::uint32_t m = 0; m < 2; ++m) {
    std::copy_n(before.begin() + indices[m] * kHidden, kHidden, one.begin());
    std::vector<float> alone(kHidden);
    ASSERT_TRUE(RmsNorm(*cpu, {.x = x.data() + indices[m] * kHidden,
                               .residual = one.data(),
                               .y = alone.data(),
                               .x_stride = kHidden,
                               .residual_stride = kHidden,
                               .y_stride = kHidden,
                               .num_rows = 1,
                               .hidden = kHidden,
                               .epsilon = 1e-5f})
                    .ok());
    for (std::uint32_t i = 0; i < kHidden; ++i) {
      EXPECT_EQ(y[m * kHidden + i], alone[i]);
      EXPECT_NEAR(plain[m * kHidden + i], alone[i], 1e-5);
      EXPECT_EQ(residual[indices[m] * kHidden + i], one[i]);
    }
  }
}

template <typename T>
void CheckSilu(const EmulatedBackend& cuda, std::uint32_t columns, std::uint32_t gap) {
  constexpr std::uint32_t kRows = 3;
  const std::uint32_t stride = 2 * columns + gap;
  // gate and up are adjacent, as the fused product writes them.
  auto values = RandomFloats(kRows * stride, columns, 6.0f);
  values[0] = -90.0f;
  values[columns - 1] = 95.0f;
  const std::vector<T> both = As<T>(values);
  DeviceArray<T> in(cuda, both);
  DeviceArray<T> y(cuda, kRows * stride);
  GatedProductParams params{.gate = in.data(),
                            .up = in.data() + columns,
                            .y = y.data(),
                            .gate_stride = stride,
                            .up_stride = stride,
                            .y_stride = stride,
                            .num_rows = kRows,
                            .columns = columns};
  ASSERT_TRUE(GatedProduct(*cuda, params).ok());
  const std::vector<T> got = y.Get();
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t i = 0; i < stride; ++i) {
      const T value = got[m * stride + i];
      if (i >= columns) {
        EXPECT_TRUE(IsPoison(&value, sizeof(T)));
        continue;
      }
      const double g = ToFloat(both[m * stride + i]);
      const double want = g / (1 + std::exp(-g)) * double{ToFloat(both[m * stride + columns + i])};
      const double unit = std::is_same_v<T, float> ? 1e-6 : 0x1p-8 * 1.001;
      // exp is infinite from 88.7 on, where the product is below 1e-36 of up.
      ASSERT_NEAR(ToFloat(value), want, unit * std::abs(want) + 1e-34) << m << " " << i << " " << g;
    }
  }
  params.y = in.data();
  ASSERT_TRUE(GatedProduct(*cuda, params).ok());
  const std::vector<T> in_place = in.Get();
  for (std::uint32_t m = 0; m < kRows; ++m) {
    EXPECT_EQ(std::memcmp(&in_place[m * stride], &got[m * stride], columns * sizeof(T)), 0);
  }
}

TEST(ElementwiseCudaTest, GatedProductIsExactRoundedOnce) {
  const EmulatedBackend cuda;
  for (const std::uint32_t columns : {1u, 8u, 100u, 1030u}) {
    for (const std::uint32_t gap : {0u, 3u}) {
      SCOPED_TRACE(absl::StrCat(columns, " + ", gap));
      CheckSilu<float>(cuda, columns, gap);
      CheckSilu<BF16>(cuda, columns, gap);
    }
  }
  DeviceArray<float> f32(cuda, 8);
  DeviceArray<BF16> bf16(cuda, 8);
  EXPECT_TRUE(absl::IsInvalidArgument(
      GatedProduct(*cuda, {f32.data(), f32.data(), bf16.data(), 8, 8, 8, 1, 8})));
}

TEST(ElementwiseCudaTest, RopeAnglesUpToAMillionTokens) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kPairs = 130;
  const std::vector<std::int32_t> positions = {0,      1,       2,       1000,      131071,
                                               500000, 1000000, 1048575, 999999999, 2147483647};
  std::vector<float> inv_freq(kPairs);
  for (std::uint32_t i = 0; i < kPairs; ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / kPairs));
  }
  const std::size_t count = positions.size() * kPairs;
  DeviceArray<std::int32_t> dp(cuda, positions);
  DeviceArray<float> df(cuda, inv_freq), cosines(cuda, count), sines(cuda, count);
  ASSERT_TRUE(RopeAngles(*cuda, {dp.data(), df.data(), cosines.data(), sines.data(),
                                 static_cast<std::uint32_t>(positions.size()), kPairs, 1.25f})
                  .ok());
  const auto c = cosines.Get();
  const auto s = sines.Get();
  for (std::size_t m = 0; m < positions.size(); ++m) {
    for (std::uint32_t i = 0; i < kPairs; ++i) {
      const float angle = static_cast<float>(positions[m]) * inv_freq[i];
      EXPECT_NEAR(c[m * kPairs + i], 1.25 * std::cos(double{angle}), 3e-7) << angle;
      EXPECT_NEAR(s[m * kPairs + i], 1.25 * std::sin(double{angle}), 3e-7) << angle;
    }
  }
}

TEST(ExactMathTest, CosSinOfAnyAngle) {
  std::vector<float> angles = RandomFloats(20000, 1, 1e6f);
  const auto small = RandomFloats(20000, 2, 10.0f);
  angles.insert(angles.end(), small.begin(), small.end());
  for (const float special : {0.0f, 0x1p20f, -0x1p20f, 2147483520.0f, 0.785398f, 1.570796f}) {
    angles.push_back(special);
  }
  double worst = 0;
  for (const float angle : angles) {
    const CosSin turn = ExactCosSin(angle);
    worst = std::max({worst, std::abs(turn.cos - std::cos(double{angle})),
                      std::abs(turn.sin - std::sin(double{angle}))});
  }
  EXPECT_LT(worst, 1.5e-7);
}

}  // namespace
}  // namespace quire::kernels
