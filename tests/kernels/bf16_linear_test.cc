// Compares products with bf16 activations bitwise with the reference, on every instruction set of
// this machine and in AMX tiles. If the CPU or the operating system rejects tile instructions, the
// same machine code runs on the tiles of software_tiles.h.

#include "kernels/linear/bf16_linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/fp8_rows.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/quantized_test_util.h"
#include "tests/kernels/software_tiles.h"

namespace quire::kernels {
namespace {

using internal::FlushedAdd;
using internal::FlushedFma;

bool SameBits(float a, float b) {
  return std::isnan(a) ? std::isnan(b)
                       : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST(FlushedFmaTest, FlushesAndRoundsOnce) {
  EXPECT_EQ(FlushedFma(2, 3, 4), 10);
  // The sum is 2^-54 below a tie between 1 + 2^-23 and its even neighbour, which double cannot
  // hold.
  EXPECT_EQ(FlushedFma(0x1p-12f * (1 + 0x1p-15f), 0x1p-12f * (1 - 0x1p-15f), 1 + 0x1p-23f),
            1 + 0x1p-23f);
  EXPECT_EQ(FlushedFma(1 + 0x1p-12f, 1 + 0x1p-12f, -1), 0x1p-11f + 0x1p-24f);
  // Subnormal operands are zeros.
  EXPECT_EQ(FlushedFma(0x1p-127f, 0x1p100f, 0), 0);
  EXPECT_EQ(FlushedAdd(0x1p-127f, 1), 1);
  // Subnormal results are zeros with their sign; the smallest normal number is not.
  EXPECT_TRUE(SameBits(FlushedFma(0x1p-100f, -0x1p-30f, 0), -0.0f));
  EXPECT_EQ(FlushedFma(0x1p-100f, 0x1p-26f, 0), 0x1p-126f);
  // 2^-126 - 2^-151 would round to 2^-126 in 24 bits, and less than that would not.
  EXPECT_EQ(FlushedFma(0x1p-100f * (1 - 0x1p-13f), 0x1p-26f * (1 + 0x1p-13f), 0), 0x1p-126f);
  EXPECT_EQ(FlushedFma(0x1p-100f * (1 - 0x1p-12f), 0x1p-26f * (1 + 0x1p-12f), 0), 0);
  EXPECT_EQ(FlushedFma(0x1p100f, 0x1p100f, 0), kInfinity);
  EXPECT_TRUE(std::isnan(FlushedFma(kInfinity, 0, 1)));
  EXPECT_TRUE(std::isnan(FlushedAdd(kInfinity, -kInfinity)));
}

#if defined(__x86_64__)
struct Operands {
  float a, b, c;
};
// Not inlined, so that no arithmetic moves across the changes of MXCSR.
__attribute__((target("avx,fma"), noinline)) void HardwareFma(std::span<const Operands> in,
                                                              float* out) {
  const unsigned mxcsr = _mm_getcsr();
  _mm_setcsr(mxcsr | 0x8040);  // FTZ and DAZ
  for (std::size_t i = 0; i < in.size(); ++i) {
    const __m128 sum = _mm_fmadd_ss(_mm_set_ss(in[i].a), _mm_set_ss(in[i].b), _mm_set_ss(in[i].c));
    _mm_store_ss(out + i, sum);
  }
  _mm_setcsr(mxcsr);
}

TEST(FlushedFmaTest, EqualsTheInstruction) {
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU has no fused multiply-add";
  std::mt19937 rng(1);
  std::vector<Operands> operands(1 << 20);
  // bf16 and f32 with exponents around those of one another, around underflow, and any bits.
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const int scale = i % 4 == 0 ? -60 : 0;
    const auto value = [&](std::uint32_t mask) {
      const float x = std::bit_cast<float>(static_cast<std::uint32_t>(rng()) & mask);
      if (i % 4 == 3) return x;
      const int spread = static_cast<int>(rng() % 30) - 15;
      return std::ldexp(
          std::bit_cast<float>(0x3f800000u | (std::bit_cast<std::uint32_t>(x) & 0x807fffffu)),
          scale + spread);
    };
    operands[i] = {value(0xffff0000), value(i % 2 == 0 ? 0xffff0000 : 0xffffffff),
                   value(0xffffffff)};
    if (i % 4 == 0) operands[i].c = std::ldexp(operands[i].c, -60);
  }
  std::vector<float> got(operands.size());
  HardwareFma(operands, got.data());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto& [a, b, c] = operands[i];
    ASSERT_TRUE(SameBits(FlushedFma(a, b, c), got[i]))
        << std::hexfloat << a << " * " << b << " + " << c << ": " << FlushedFma(a, b, c)
        << ", the instruction gives " << got[i];
  }
}
#endif

// One weight matrix of every stored format.
struct Case {
  std::string name;
  PackedLinear weight;
};

void AddPlain(const Backend& backend, DType dtype, std::uint32_t n, std::uint32_t k,
              std::vector<Case>* cases) {
  const auto values = Encode(RandomFloats(std::size_t{n} * k, 31, 0.05f), dtype);
  const bool is_bf16 = backend.activations() == CpuActivations::kBF16;
  cases->push_back({absl::StrCat(DTypeName(dtype), "_n", n, "_k", k, is_bf16 ? "_for_bf16" : ""),
                    *PackLinearWeight(backend, values.data(), dtype, n, k)});
}

void AddFp8(const Backend& backend, const Fp8Shape& shape, std::vector<Case>* cases) {
  std::mt19937 rng(32);
  auto packed = PackFp8Rows(backend, shape, [&](std::uint32_t, const Fp8Row& out) {
    for (std::uint8_t& code : out.codes) {
      code = static_cast<std::uint8_t>(rng());
      if ((code & 0x7f) == 0x7f) code = 0;
    }
    for (float& scale : out.scales) scale = static_cast<float>(rng() % 1000) * 1e-6f;
  });
  cases->push_back({absl::StrCat("e4m3_n", shape.n, "_k", shape.k, "_g", shape.group,
                                 shape.quantizes_activations ? "_dynamic" : ""),
                    *std::move(packed)});
}

// Every format, group and kind of minimum; inputs that are no multiple of 32, or more than one part
// of 512; features that are no multiple of 16.
const std::vector<Case>& Cases() {
  static const std::vector<Case>& cases = *[] {
    auto* const all = new std::vector<Case>;
    const TestBackend backend(1);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      AddPlain(*backend, dtype, 37, 333, all);
      AddPlain(*backend, dtype, 80, 1088, all);
      AddPlain(*backend, dtype, 1, 1, all);
    }
    // Groups of 16 panels.
    AddPlain(*backend, DType::kBF16, 273, 4128, all);
    AddPlain(*backend, DType::kF32, 273, 4101, all);
    // With vdpbf16ps these have ordered pairs.
    const TestBackend bf16(1, CpuActivations::kBF16);
    for (const auto& [n, k] : {std::pair{37u, 96u}, {80u, 1088u}, {16u, 32u}, {273u, 4128u}}) {
      AddPlain(*bf16, DType::kBF16, n, k, all);
    }
    for (const std::uint32_t n : {273u, 33u}) {
      all->push_back({absl::StrCat("int8_wide_n", n),
                      MakeMatrix(*backend, {WeightFormat::kInt8, n, 4160, 32}, 36).packed});
    }
    AddFp8(*backend, {.n = 37, .k = 333, .group = 333}, all);
    AddFp8(*backend, {.n = 20, .k = 650, .group = 128}, all);
    AddFp8(*backend, {.n = 20, .k = 256, .group = 256, .quantizes_activations = true}, all);
    using enum WeightFormat;
    std::vector<QuantizedShape> shapes = {
        {kInt8, 70, 64, 64}, {kInt8, 37, 333, 333}, {kInt8, 18, 48, 16}, {kInt4, 37, 352, 32}};
    std::uint32_t n = 5;
    for (const WeightFormat format : {kInt8, kInt4}) {
      for (const std::uint32_t group : {16u, 32u, 64u, 128u}) {
        if (format == kInt4 && group == 16) continue;
        for (const auto& [has_min, has_zero_points] :
             {std::pair{false, false}, {true, false}, {true, true}}) {
          shapes.push_back({format, n, 640, group, has_min, has_zero_points});
          n = n % 61 + 13;
        }
      }
    }
    for (const QuantizedShape& shape : shapes) {
      all->push_back({NameOf(shape), MakeMatrix(*backend, shape, 33).packed});
    }
    QuantizedShape ordered = {kInt4, 21, 640, 128, true, true};
    ordered.has_act_order = true;
    std::vector<std::uint32_t> order(ordered.k);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(34));
    all->push_back(
        {absl::StrCat(NameOf(ordered), "_order"), MakeMatrix(*backend, ordered, 35, order).packed});
    return all;
  }();
  return cases;
}

// x, bias and residual for a matrix. Rows have a gap.
struct Inputs {
  Inputs(std::uint32_t n_in, std::uint32_t k)
      : n(n_in),
        x_stride(k + 5),
        x(RandomFloats(kRows * static_cast<std::size_t>(x_stride), 41)),
        bias(RandomFloats(n, 42)),
        residual(RandomFloats(std::size_t{kRows} * n, 43)) {}

  static constexpr std::uint32_t kRows = 530;  // more than share dequantized weights
  std::uint32_t n;
  std::int64_t x_stride;
  std::vector<float> x, bias, residual;
};

LinearParams ParamsOf(const Inputs& in, const PackedLinear& weight, std::uint32_t rows,
                      bool has_extras, GuardedRows* y) {
  return {.x = in.x.data(),
          .weight = &weight,
          .bias = has_extras ? in.bias.data() : nullptr,
          .residual = has_extras ? in.residual.data() : nullptr,
          .y = y->data(),
          .x_stride = in.x_stride,
          .residual_stride = in.n,
          .y_stride = y->stride(),
          .num_rows = rows};
}

std::vector<float> Reference(const Inputs& in, const PackedLinear& weight, bool has_extras) {
  GuardedRows y(Inputs::kRows, in.n);
  internal::LinearBf16Cpu(ParamsOf(in, weight, Inputs::kRows, has_extras, &y), 0,
                          weight.num_panels());
  return y.Packed();
}

// Returns the first row that differs from those of the reference, or -1.
int FirstDifference(std::span<const float> y, std::span<const float> expected, std::uint32_t n) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!SameBits(y[i], expected[i])) return static_cast<int>(i / n);
  }
  return -1;
}

// The control bits of MXCSR, without the flags of past operations.
unsigned ControlRegister() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu;
#else
  return 0;
#endif
}

class Bf16LinearTest : public testing::TestWithParam<std::size_t> {
 protected:
  const PackedLinear& weight() const { return Cases()[GetParam()].weight; }
  // A weight in bf16, with ties of dequantized weights away from zero.
  double RoundedWeight(std::uint32_t n, std::uint32_t k) const {
    const float value = weight().At(n, k);
    if (weight().format() == WeightFormat::kPlain) return BF16::FromFloat(value).ToFloat();
    if (value == 0) return 0;
    const double step = std::exp2(std::ilogb(value) - 7);
    return std::round(value / step) * step;
  }
  // Row counts that every way of computing is tested with.
  std::vector<std::uint32_t> RowCounts() const {
    if (weight().k() > 4096 && weight().n() > 64) return {1, 17, 40};
    if (weight().k() > 4096) return {Inputs::kRows};
    std::vector<std::uint32_t> counts(40);
    std::iota(counts.begin(), counts.end(), 1u);
    counts.insert(counts.end(), {333u, Inputs::kRows});
    return counts;
  }
};

TEST_P(Bf16LinearTest, EqualsTheReferenceBitwiseOnEveryInstructionSet) {
  const TestBackend one(1, CpuActivations::kBF16);
  const TestBackend three(3, CpuActivations::kBF16);
  const Inputs in(weight().n(), weight().k());
  const std::vector<float> plain = Reference(in, weight(), false);
  const std::vector<float> extras = Reference(in, weight(), true);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    // These levels run the reference itself.
    const bool is_reference = isa == "sse4" || isa == "scalar" || isa == "neon";
    for (const std::uint32_t rows : is_reference ? std::vector<std::uint32_t>{6} : RowCounts()) {
      const bool has_extras = rows % 2 == 0;
      GuardedRows y(rows, in.n);
      const unsigned control = ControlRegister();
      ASSERT_TRUE(
          Linear(rows % 3 == 0 ? *three : *one, ParamsOf(in, weight(), rows, has_extras, &y)).ok());
      ASSERT_EQ(ControlRegister(), control);
      ASSERT_TRUE(y.GuardsIntact());
      ASSERT_EQ(FirstDifference(y.Packed(), has_extras ? extras : plain, in.n), -1)
          << isa << ", " << rows << " rows";
    }
  }
}

TEST_P(Bf16LinearTest, TilesEqualTheReferenceBitwise) {
  if (!ScopedTiles::CanRun()) GTEST_SKIP() << "no AMX in the build or no AVX-512 in the CPU";
  const ScopedTiles tiles;
  if (GetParam() == 0) std::printf("tiles: %s\n", tiles.is_hardware() ? "hardware" : "software");
  const TestBackend one(1, CpuActivations::kBF16);
  const TestBackend three(3, CpuActivations::kBF16);
  const Inputs in(weight().n(), weight().k());
  const std::vector<float> expected = Reference(in, weight(), true);
  for (const std::uint32_t rows : RowCounts()) {
    GuardedRows y(rows, in.n);
    internal::LinearBf16(rows % 3 == 0 ? *three : *one, ParamsOf(in, weight(), rows, true, &y),
                         internal::kBf16MultiplyAmx);
    ASSERT_TRUE(y.GuardsIntact());
    ASSERT_EQ(FirstDifference(y.Packed(), expected, in.n), -1) << rows << " rows";
  }
}

// The error of f32 sums is that of an exact product of the rounded operands.
TEST_P(Bf16LinearTest, IsTheProductOfRoundedOperands) {
  const TestBackend backend(1, CpuActivations::kBF16);
  constexpr std::uint32_t kRows = 5;
  const std::uint32_t n = weight().n(), k = weight().k();
  const Inputs in(n, k);
  std::vector<double> exact;
  for (std::uint32_t m = 0; m < kRows; ++m) {
    const float* const row = in.x.data() + m * in.x_stride;
    std::vector<float> x(row, row + k);
    if (weight().quantizes_activations()) RoundRowFp8(row, k, 1, x.data());
    x = Rounded(x, DType::kBF16);
    for (std::uint32_t feature = 0; feature < n; ++feature) {
      double sum = 0;
      for (std::uint32_t i = 0; i < k; ++i) {
        sum += double{x[i]} * RoundedWeight(feature, i);
      }
      exact.push_back(sum);
    }
  }
  GuardedRows y(kRows, n);
  ASSERT_TRUE(Linear(*backend, ParamsOf(in, weight(), kRows, false, &y)).ok());
  EXPECT_LE(RelativeError(y.Packed(), exact), 1e-6);
}

// Values that are not finite, subnormal or beyond bf16, in x and in weights.
TEST_P(Bf16LinearTest, SpecialValuesEqualTheReference) {
  const TestBackend backend(1, CpuActivations::kBF16);
  constexpr std::uint32_t kRows = 10;
  const std::uint32_t n = weight().n(), k = weight().k();
  Inputs in(n, k);
  const float specials[kRows - 2] = {kNan,  kInfinity, -kInfinity, 1e-40f,
                                     -0.0f, 3.4e38f,   0x1p-126f,  0x1p-126f * (1 - 0x1p-20f)};
  for (std::uint32_t m = 0; m + 2 < kRows; ++m) {
    in.x[static_cast<std::size_t>(m * in.x_stride + m * 7 % k)] = specials[m];
  }
  // Products of row 8 are about as large as the smallest normal number.
  for (std::uint32_t i = 0; i < k; ++i) {
    in.x[static_cast<std::size_t>(8 * in.x_stride + i)] *= 0x1p-122f;
  }
  GuardedRows expected(kRows, n);
  internal::LinearBf16Cpu(ParamsOf(in, weight(), kRows, false, &expected), 0,
                          weight().num_panels());
  if (ScopedTiles::CanRun()) {
    const ScopedTiles tiles;
    GuardedRows y(kRows, n);
    internal::LinearBf16(*backend, ParamsOf(in, weight(), kRows, false, &y),
                         internal::kBf16MultiplyAmx);
    EXPECT_EQ(FirstDifference(y.Packed(), expected.Packed(), n), -1);
  }
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    GuardedRows y(kRows, n);
    ASSERT_TRUE(Linear(*backend, ParamsOf(in, weight(), kRows, false, &y)).ok());
    EXPECT_EQ(FirstDifference(y.Packed(), expected.Packed(), n), -1) << isa;
    EXPECT_THAT(y.row(0), testing::Each(testing::IsNan()));
    EXPECT_THAT(y.row(kRows - 1),
                testing::Each(testing::Truly([](float v) { return std::isfinite(v); })));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Bf16LinearTest, testing::Range<std::size_t>(0, Cases().size()),
                         [](const auto& info) { return Cases()[info.param].name; });

TEST(Bf16LinearSpecialTest, WeightsThatAreNotFiniteAffectTheirFeatureOnly) {
  const TestBackend backend(1, CpuActivations::kBF16);
  constexpr std::uint32_t kFeatures = 20, kInputs = 70;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<float> values(kFeatures * kInputs, 1.0f);
    values[3 * kInputs + 65] = kNan;
    values[4 * kInputs] = kInfinity;
    values[5 * kInputs + 1] = 1e-40f;  // a zero in every format
    const auto stored = Encode(values, dtype);
    const auto weight = PackLinearWeight(*backend, stored.data(), dtype, kFeatures, kInputs);
    ASSERT_TRUE(weight.ok());
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const std::vector<float> x(kInputs, 0x1p100f);
      const auto y = Multiply(*backend, *weight, x);
      for (std::uint32_t n = 0; n < kFeatures; ++n) {
        const float expected = n == 4 ? kInfinity : (n == 5 ? 69.0f : 70.0f) * 0x1p100f;
        EXPECT_TRUE(n == 3 ? std::isnan(y[n]) : y[n] == expected) << isa << ", feature " << n;
      }
    }
  }
}

TEST(Bf16LinearSpecialTest, PairsAreOrderedForBf16ActivationsOnly) {
  constexpr std::uint32_t kFeatures = 37;
  for (const std::uint32_t k : {32u, 96u, 100u, 333u}) {
    const auto values = Encode(RandomFloats(std::size_t{kFeatures} * k, 51), DType::kBF16);
    const auto* const stored = reinterpret_cast<const BF16*>(values.data());
    for (const CpuActivations activations :
         {CpuActivations::kBF16, CpuActivations::kF32, CpuActivations::kInt8}) {
      const TestBackend backend(1, activations);
      const bool is_ordered = activations == CpuActivations::kBF16 && k % 32 == 0 &&
                              internal::NeedsOrderedRows(internal::ChosenBf16Multiply());
      auto packed = PackLinearWeight(*backend, values.data(), DType::kBF16, kFeatures, k);
      ASSERT_TRUE(packed.ok());
      EXPECT_EQ(packed->has_ordered_pairs(), is_ordered) << k;
      const auto by_row = PackPlainRows(
          *backend, DType::kBF16, kFeatures, k, [&](std::uint32_t row, std::byte* out) {
            std::memcpy(out, stored + std::size_t{row} * k, k * sizeof(BF16));
          });
      ASSERT_TRUE(by_row.ok());
      EXPECT_EQ(by_row->has_ordered_pairs(), is_ordered);
      const auto empty = AllocatePackedLinear(*backend, DType::kBF16, kFeatures, k);
      ASSERT_TRUE(empty.ok());
      EXPECT_EQ(empty->has_ordered_pairs(), is_ordered);
      EXPECT_EQ(empty->size_bytes(), packed->size_bytes());
      for (std::uint32_t i = 0; i < kFeatures * k; ++i) {
        ASSERT_EQ(packed->At(i / k, i % k), stored[i].ToFloat()) << i;
        ASSERT_EQ(by_row->At(i / k, i % k), stored[i].ToFloat()) << i;
      }
    }
  }
}

TEST(Bf16LinearSpecialTest, OrderedPairsAreRejectedWithOtherActivations) {
  const TestBackend bf16(1, CpuActivations::kBF16);
  constexpr std::uint32_t kSize = 32;
  const std::vector<float> values(kSize * kSize, 1.0f);
  const auto stored = Encode(values, DType::kBF16);
  const auto weight = PackLinearWeight(*bf16, stored.data(), DType::kBF16, kSize, kSize);
  ASSERT_TRUE(weight.ok());
  if (!weight->has_ordered_pairs()) GTEST_SKIP() << "no vdpbf16ps";
  for (const CpuActivations activations : {CpuActivations::kF32, CpuActivations::kInt8}) {
    const TestBackend backend(1, activations);
    GuardedRows y(1, kSize);
    const LinearParams params = {.x = values.data(),
                                 .weight = &*weight,
                                 .y = y.data(),
                                 .x_stride = kSize,
                                 .y_stride = y.stride(),
                                 .num_rows = 1};
    EXPECT_EQ(Linear(*backend, params).message(),
              absl::StrCat("linear [32, 32] was packed for bf16 activations, not for ",
                           CpuActivationsName(activations)));
  }
}

TEST(Bf16LinearSpecialTest, NoRowsDoNothing) {
  const TestBackend backend(1, CpuActivations::kBF16);
  const PackedLinear& weight = Cases()[0].weight;
  const Inputs in(weight.n(), weight.k());
  GuardedRows y(1, weight.n());
  ASSERT_TRUE(Linear(*backend, ParamsOf(in, weight, 0, false, &y)).ok());
  internal::LinearBf16(*backend, ParamsOf(in, weight, 0, false, &y), nullptr);
  EXPECT_THAT(y.row(0), testing::Each(testing::IsNan()));
}

// With f32 activations, integer weights are exact, and the bits are those of f32 weights.
class F32ActivationsTest : public Bf16LinearTest {};

TEST_P(F32ActivationsTest, IntegersEqualF32Weights) {
  const TestBackend backend(3, CpuActivations::kF32);
  const std::uint32_t n = weight().n(), k = weight().k();
  const std::uint32_t* const order = weight().act_order();
  std::vector<float> values(std::size_t{n} * k);
  for (std::uint32_t i = 0; i < n * k; ++i) {
    values[i] = weight().At(i / k, order == nullptr ? i % k : order[i % k]);
  }
  const auto plain = PackLinearWeight(*backend, values.data(), DType::kF32, n, k);
  ASSERT_TRUE(plain.ok());
  const Inputs in(n, k);
  Inputs ordered = in;
  if (order != nullptr) {
    for (std::uint32_t m = 0; m < Inputs::kRows; ++m) {
      for (std::uint32_t i = 0; i < k; ++i) {
        ordered.x[m * static_cast<std::size_t>(in.x_stride) + i] =
            in.x[m * static_cast<std::size_t>(in.x_stride) + order[i]];
      }
    }
  }
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    for (const std::uint32_t rows : {1u, 2u, 7u, 8u, 40u, 333u}) {
      GuardedRows y(rows, n), expected(rows, n);
      ASSERT_TRUE(Linear(*backend, ParamsOf(in, weight(), rows, true, &y)).ok());
      ASSERT_TRUE(Linear(*backend, ParamsOf(ordered, *plain, rows, true, &expected)).ok());
      EXPECT_TRUE(y.GuardsIntact());
      ASSERT_EQ(FirstDifference(y.Packed(), expected.Packed(), n), -1)
          << isa << ", " << rows << " rows";
    }
  }
}

std::vector<std::size_t> IntegerCases() {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < Cases().size(); ++i) {
    const WeightFormat format = Cases()[i].weight.format();
    if (format == WeightFormat::kInt8 || format == WeightFormat::kInt4) indices.push_back(i);
  }
  return indices;
}
INSTANTIATE_TEST_SUITE_P(Integers, F32ActivationsTest, testing::ValuesIn(IntegerCases()),
                         [](const auto& info) { return Cases()[info.param].name; });

}  // namespace
}  // namespace quire::kernels
