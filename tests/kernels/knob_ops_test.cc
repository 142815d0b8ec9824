// Ops of options that few families use: activations, clamps, soft caps, factors of the residual
// sum, and head norms. Each is compared with its plain reference and with double precision.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/multiply.h"
#include "kernels/elementwise/residual.h"
#include "kernels/elementwise/softcap.h"
#include "kernels/elementwise/sum_rows.h"
#include "kernels/norm/norm.h"
#include "tests/kernels/exact_gate_reference.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class GatedProductTest : public testing::TestWithParam<GateShape> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, GatedProductTest,
    testing::Values(GateShape{}, GateShape{.alpha = 1.702f},
                    GateShape{.alpha = 1.702f, .limit = 7, .up_offset = 1}, GateShape{.limit = 2},
                    GateShape{.act = Activation::kGeluTanh},
                    GateShape{.act = Activation::kGeluTanh, .limit = 3, .up_offset = -0.5f},
                    GateShape{.act = Activation::kGeluErf}, GateShape{.act = Activation::kRelu2}),
    [](const auto& info) {
      const GateShape& s = info.param;
      return absl::StrCat("act", static_cast<int>(s.act), "_alpha",
                          static_cast<int>(s.alpha * 1000), "_limit", static_cast<int>(s.limit),
                          s.up_offset != 0 ? "_offset" : "");
    });

TEST_P(GatedProductTest, EqualsReferenceAndDouble) {
  const GateShape shape = GetParam();
  constexpr std::uint32_t kRows = 20, kColumns = 2051;  // large enough for several threads
  const auto gate = RandomFloats(kRows * kColumns, 4, 4.0f);
  const auto up = RandomFloats(kRows * kColumns, 5, 4.0f);
  std::vector<double> exact;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    exact.push_back(ExactProduct(shape, gate[i], up[i]));
  }
  const auto run = [&](const Backend* backend) {
    GuardedRows y(kRows, kColumns);
    const GatedProductParams params{gate.data(), up.data(), y.data(), kColumns, kColumns,
                                    y.stride(),  kRows,     kColumns, shape};
    if (backend == nullptr) {
      internal::GatedProductCpu(params, 0, kRows);
    } else {
      EXPECT_TRUE(GatedProduct(*backend, params).ok());
    }
    EXPECT_TRUE(y.GuardsIntact());
    return y.Packed();
  };
  EXPECT_LE(RelativeError(run(nullptr), exact), 1e-6);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const TestBackend one(1);
    const TestBackend seven(7);
    const auto y = run(&*one);
    EXPECT_LE(RelativeError(y, exact), 3e-7) << isa;
    EXPECT_EQ(run(&*seven), y) << isa;
  }
}

// Checks element by element. Near 0 below zero, silu keeps its digits and gelu is a difference.
TEST_P(GatedProductTest, EveryValueIsWithinTheErrorBound) {
  const GateShape shape = GetParam();
  std::vector<float> gate;
  for (float x = -30; x < 30; x += 0.0037f) gate.push_back(x);
  const auto columns = static_cast<std::uint32_t>(gate.size());
  const std::vector<float> up(columns, 1.0f);
  std::vector<float> y(columns);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const TestBackend backend(1);
    ASSERT_TRUE(GatedProduct(*backend, {gate.data(), up.data(), y.data(), columns, columns, columns,
                                        1, columns, shape})
                    .ok());
    for (std::uint32_t i = 0; i < columns; ++i) {
      const double exact = ExactProduct(shape, gate[i], 1);
      const bool gelu = shape.act == Activation::kGeluErf || shape.act == Activation::kGeluTanh;
      const double size = std::abs(gate[i]);
      const double bound = gelu ? 4e-7 * size * (1 + std::abs(shape.up_offset))
                                : 1e-6 * (1 + size) * std::abs(exact);
      ASSERT_LE(std::abs(y[i] - exact), bound + 1e-30) << isa << " x " << gate[i];
    }
  }
}

TEST_P(GatedProductTest, PropagatesNanAndSaturatesAtTheLimits) {
  const GateShape shape = GetParam();
  const std::vector<float> gate = {kNaN, 1.0f, 100.0f, -100.0f, 0.0f};
  const std::vector<float> up = {1.0f, kNaN, 2.0f, 2.0f, 2.0f};
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const TestBackend backend(1);
    std::vector<float> y(5);
    ASSERT_TRUE(
        GatedProduct(*backend, {gate.data(), up.data(), y.data(), 5, 5, 5, 1, 5, shape}).ok());
    EXPECT_TRUE(std::isnan(y[0])) << isa;
    EXPECT_TRUE(std::isnan(y[1])) << isa;
    EXPECT_NEAR(y[2], ExactProduct(shape, 100, 2), 1e-4 * y[2]) << isa;
    EXPECT_NEAR(y[3], 0, 1e-5) << isa;
    EXPECT_EQ(y[4], 0) << isa;
  }
}

// Without up the product is the activation alone, also in the tail of a row.
TEST_P(GatedProductTest, WithoutUpIsTheActivation) {
  const GateShape shape = GetParam();
  constexpr std::uint32_t kRows = 3, kColumns = 37;
  const auto gate = RandomFloats(kRows * kColumns, 4, 4.0f);
  const std::vector<float> ones(gate.size(), 1.0f);
  const auto params = [&](const float* up, float* y) {
    return GatedProductParams{gate.data(), up,    y,        kColumns, up == nullptr ? 0 : kColumns,
                              kColumns,    kRows, kColumns, shape};
  };
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const TestBackend backend(1);
    std::vector<float> want(gate.size()), y(gate.size()), reference(gate.size());
    ASSERT_TRUE(GatedProduct(*backend, params(ones.data(), want.data())).ok());
    const absl::Status status = GatedProduct(*backend, params(nullptr, y.data()));
    if (shape.limit != 0 || shape.up_offset != 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), testing::HasSubstr("without up"));
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(y, want) << isa;
    internal::GatedProductCpu(params(ones.data(), want.data()), 0, kRows);
    internal::GatedProductCpu(params(nullptr, reference.data()), 0, kRows);
    EXPECT_EQ(reference, want);
  }
}

TEST(GatedProductErrorTest, RejectsANegativeLimit) {
  const TestBackend backend(1);
  float x[4] = {};
  const absl::Status status = GatedProduct(*backend, {x, x, x, 4, 4, 4, 1, 4, {.limit = -1}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("limit -1"));
}

TEST(MultiplyTest, EqualsTheProductsOfElements) {
  constexpr std::uint32_t kRows = 5, kColumns = 1030, kStride = 3 * kColumns;
  const auto rows = RandomFloats(kRows * kStride, 7);
  for (const int threads : {1, 3}) {
    const TestBackend backend(threads);
    std::vector<float> got = rows;
    ASSERT_TRUE(
        Multiply(*backend, {got.data() + kColumns, got.data(), kStride, kStride, kRows, kColumns})
            .ok());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool is_product = i % kStride >= kColumns && i % kStride < 2 * kColumns;
      ASSERT_EQ(got[i], is_product ? rows[i] * rows[i - kColumns] : rows[i]) << i;
    }
  }
  const TestBackend backend(1);
  float x[4] = {};
  const absl::Status status = Multiply(*backend, {x, x, 4, 3, 1, 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("gate 3"));
}

TEST(SoftcapTest, EqualsReferenceAndDouble) {
  constexpr std::uint32_t kRows = 3, kColumns = 5001;
  const auto logits = RandomFloats(kRows * kColumns, 7, 20.0f);
  for (const auto& [scale, cap] : {std::pair{1.0f, 30.0f}, {0.125f, 0.0f}, {0.25f, 2.0f}}) {
    std::vector<double> exact;
    for (const float x : logits) {
      const double scaled = double{x} * scale;
      exact.push_back(cap > 0 ? cap * std::tanh(scaled / cap) : scaled);
    }
    const auto run = [&, scale = scale, cap = cap](const Backend* backend) {
      GuardedRows x(kRows, kColumns);
      for (std::uint32_t m = 0; m < kRows; ++m) {
        std::copy_n(logits.begin() + m * kColumns, kColumns, x.row(m).begin());
      }
      const SoftcapParams params{x.data(), x.stride(), kRows, kColumns, scale, cap};
      if (backend == nullptr) {
        internal::SoftcapCpu(params, 0, kColumns);
      } else {
        EXPECT_TRUE(Softcap(*backend, params).ok());
      }
      EXPECT_TRUE(x.GuardsIntact());
      return x.Packed();
    };
    EXPECT_LE(RelativeError(run(nullptr), exact), 3e-7);
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const TestBackend one(1);
      const TestBackend three(3);
      const auto y = run(&*one);
      EXPECT_LE(RelativeError(y, exact), 3e-7) << isa;
      EXPECT_EQ(run(&*three), y) << isa;
    }
  }
}

// With cap 1 and scale 1 the op equals the tanh of all kernels.
TEST(SoftcapTest, TanhIsWithinThreeUnitsAndKeepsSpecialValues) {
  std::vector<float> x;
  for (float v = -12.0f; v <= 12.0f; v += 0.00037f) x.push_back(v);
  for (float v = 1e-30f; v < 1.0f; v *= 1.7f) x.push_back(v);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const TestBackend backend(1);
    std::vector<float> y = x;
    const auto columns = static_cast<std::uint32_t>(x.size());
    ASSERT_TRUE(Softcap(*backend, {y.data(), columns, 1, columns, 1, 1}).ok());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::tanh(double{x[i]});
      ASSERT_LE(std::abs(double{y[i]} - exact), 3.0 * std::abs(exact) * 0x1p-23)
          << isa << " x " << x[i];
    }
    float special[] = {kNaN, 0.0f, 500.0f};
    ASSERT_TRUE(Softcap(*backend, {special, 3, 1, 3, 1, 30}).ok());
    EXPECT_TRUE(std::isnan(special[0])) << isa;
    EXPECT_EQ(special[1], 0.0f) << isa;
    EXPECT_NEAR(special[2], 30.0f, 1e-5f) << isa;
  }
}

// The sampler flags a row with +infinity. A cap must preserve infinity, in full registers and in
// the remainder.
TEST(SoftcapTest, PreservesInfinity) {
  constexpr std::uint32_t kColumns = 37;
  std::vector<float> logits(kColumns, 1.0f);
  for (const std::uint32_t i : {3u, 36u}) logits[i] = kInfinity;
  for (const std::uint32_t i : {9u, 35u}) logits[i] = -kInfinity;
  for (const float cap : {0.0f, 30.0f}) {
    const auto expect = [&](const std::vector<float>& x, const std::string& name) {
      for (std::uint32_t i = 0; i < kColumns; ++i) {
        if (std::isinf(logits[i])) {
          EXPECT_EQ(x[i], logits[i]) << name << " cap " << cap << " column " << i;
        } else {
          EXPECT_TRUE(std::isfinite(x[i])) << name << " cap " << cap << " column " << i;
        }
      }
    };
    std::vector<float> x = logits;
    internal::SoftcapCpu({x.data(), kColumns, 1, kColumns, 0.5f, cap}, 0, kColumns);
    expect(x, "reference");
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const TestBackend backend(1);
      x = logits;
      ASSERT_TRUE(Softcap(*backend, {x.data(), kColumns, 1, kColumns, 0.5f, cap}).ok());
      expect(x, isa);
    }
  }
}

TEST(SumRowsTest, AddsRowsInOrderInAnyNumberOfCalls) {
  const TestBackend backend(3);
  constexpr std::uint32_t kRows = 50, kColumns = 203;
  std::vector<float> x(kRows * kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(static_cast<float>(i)) * (i % 7 == 0 ? 1000.0f : 1.0f);
  }
  std::vector<float> want(kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) want[i % kColumns] += x[i];
  for (const std::uint32_t cut : {kRows, 1u, 13u}) {
    std::vector<float> sum(kColumns, std::numeric_limits<float>::quiet_NaN());
    for (std::uint32_t begin = 0; begin < kRows; begin += cut) {
      ASSERT_TRUE(SumRows(*backend, {.x = x.data() + begin * kColumns,
                                     .sum = sum.data(),
                                     .num_rows = std::min(cut, kRows - begin),
                                     .columns = kColumns,
                                     .begins = begin == 0})
                      .ok());
    }
    EXPECT_EQ(sum, want) << cut;
  }
  const BF16 narrow[2] = {};
  float sum[2];
  EXPECT_THAT(SumRows(*backend, {narrow, sum, 1, 2, true}).message(),
              testing::HasSubstr("SumRows input is bf16"));
}

TEST(SoftcapTest, NamesWhatIsWrong) {
  const TestBackend backend(1);
  float x[4] = {};
  EXPECT_THAT(Softcap(*backend, {x, 3, 1, 4}).message(), testing::HasSubstr("x_stride 3"));
  EXPECT_THAT(Softcap(*backend, {x, 4, 1, 4, 1, -2}).message(), testing::HasSubstr("-2"));
}

TEST(ResidualAddTest, RoundsEveryStep) {
  constexpr std::uint32_t kRows = 200, kColumns = 517;  // large enough for several threads
  const auto stream = RandomFloats(kRows * kColumns, 8);
  const auto branch = RandomFloats(kRows * kColumns, 9);
  const float stored = 0.7f;
  for (const int threads : {1, 3}) {
    const volatile float factor = threads == 1 ? 1.5f : 1.5f * stored;
    const TestBackend backend(threads);
    GuardedRows x(kRows, kColumns);
    for (std::uint32_t m = 0; m < kRows; ++m) {
      std::copy_n(stream.begin() + m * kColumns, kColumns, x.row(m).begin());
    }
    ASSERT_TRUE(ResidualAdd(*backend, {.x = x.data(),
                                       .branch = branch.data(),
                                       .x_stride = x.stride(),
                                       .branch_stride = kColumns,
                                       .num_rows = kRows,
                                       .columns = kColumns,
                                       .scale = 0.22f,
                                       .output_scale = 1.5f,
                                       .stored_scale = threads == 1 ? nullptr : &stored})
                    .ok());
    EXPECT_TRUE(x.GuardsIntact());
    const auto sums = x.Packed();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const volatile float scaled = 0.22f * branch[i];
      const volatile float sum = stream[i] + scaled;
      ASSERT_EQ(sums[i], sum * factor) << threads << " threads, element " << i;
    }
  }
  const TestBackend backend(1);
  float x[4] = {};
  EXPECT_FALSE(ResidualAdd(*backend, {x, x, 3, 4, 1, 4}).ok());
}

// Heads normalized together equal heads normalized in separate calls, bitwise and in place.
TEST(HeadNormTest, GroupsEqualSeparateRows) {
  constexpr std::uint32_t kHeads = 3;
  for (const std::uint32_t size : {7u, 16u, 64u, 100u}) {
    const std::uint32_t columns = kHeads * size;
    const std::uint32_t rows = 150000 / columns;  // large enough for several threads
    const auto x = RandomFloats(std::size_t{rows} * columns, 10);
    const auto weight = RandomFloats(size, 11);
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const TestBackend backend(3);
      const TestBackend one(1);
      GuardedRows y(rows, columns);
      for (std::uint32_t m = 0; m < rows; ++m) {
        std::copy_n(x.begin() + m * columns, columns, y.row(m).begin());
      }
      ASSERT_TRUE(RmsNorm(*backend, {.x = y.data(),
                                     .weight = weight.data(),
                                     .y = y.data(),
                                     .x_stride = y.stride(),
                                     .y_stride = y.stride(),
                                     .num_rows = rows,
                                     .hidden = size,
                                     .epsilon = 1e-3f,
                                     .groups = kHeads})
                      .ok());
      EXPECT_TRUE(y.GuardsIntact());
      std::vector<float> apart(x.size());
      for (std::uint32_t h = 0; h < kHeads; ++h) {
        ASSERT_TRUE(RmsNorm(*one, {.x = x.data() + h * size,
                                   .weight = weight.data(),
                                   .y = apart.data() + h * size,
                                   .x_stride = columns,
                                   .y_stride = columns,
                                   .num_rows = rows,
                                   .hidden = size,
                                   .epsilon = 1e-3f})
                        .ok());
      }
      EXPECT_EQ(y.Packed(), apart) << isa << " size " << size;
    }
  }
}

TEST(HeadNormTest, EqualsDoubleAndRejectsAResidual) {
  constexpr std::uint32_t kRows = 1200, kHeads = 5, kSize = 24;  // large enough for several threads
  const auto x = RandomFloats(kRows * kHeads * kSize, 12);
  const auto weight = RandomFloats(kSize, 13);
  std::vector<double> exact;
  for (std::uint32_t head = 0; head < kRows * kHeads; ++head) {
    double sum = 0;
    for (std::uint32_t i = 0; i < kSize; ++i) {
      sum += double{x[head * kSize + i]} * x[head * kSize + i];
    }
    const double inverse = 1 / std::sqrt(sum / kSize + 1e-6);
    for (std::uint32_t i = 0; i < kSize; ++i) {
      exact.push_back(x[head * kSize + i] * inverse * weight[i]);
    }
  }
  std::vector<float> y(x.size());
  RmsNormParams params{.x = x.data(),
                       .weight = weight.data(),
                       .y = y.data(),
                       .x_stride = kHeads * kSize,
                       .y_stride = kHeads * kSize,
                       .num_rows = kRows,
                       .hidden = kSize,
                       .epsilon = 1e-6f,
                       .groups = kHeads};
  internal::RmsNormCpu(params, 0, kRows);
  EXPECT_LE(RelativeError(y, exact), 1e-6);
  const TestBackend backend(2);
  ASSERT_TRUE(RmsNorm(*backend, params).ok());
  EXPECT_LE(RelativeError(y, exact), 1e-6);
  params.x_stride = kHeads * kSize - 1;
  EXPECT_FALSE(RmsNorm(*backend, params).ok());
  params.x_stride = kHeads * kSize;
  params.residual = y.data();
  params.residual_stride = kHeads * kSize;
  EXPECT_THAT(RmsNorm(*backend, params).message(), testing::HasSubstr("residual"));
}

}  // namespace
}  // namespace quire::kernels
