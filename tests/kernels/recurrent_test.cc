// Ops of recurrent layers. Each is compared with its formula in double precision and with its plain
// reference. Sequences are cut into steps in many ways, which must not change a bit.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/recurrent/causal_conv.h"
#include "kernels/recurrent/gate_norm.h"
#include "kernels/recurrent/prepare_scan.h"
#include "kernels/recurrent/state_rows.h"
#include "kernels/recurrent/state_scan.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/recurrent_steps.h"

namespace quire::kernels {
namespace {

// With a null backend, the reference implementation runs.
Result RunScan(const Backend* backend, const ScanInputs& all, const Steps& steps) {
  const ScanShape& s = all.shape;
  const std::size_t width = s.heads * s.value_size;
  const std::size_t decays = s.heads * (s.decays_channels ? s.key_size : 1);
  std::vector<float> out;
  Result result = RunSteps(
      steps, std::size_t{s.heads} * s.key_size * s.value_size,
      [&](const StateRows& rows, std::uint32_t first, std::uint32_t count) {
        ScanInputs in = all;
        in.qkv = Twice(all.qkv, all.stride, first, count);
        in.decay = Twice(all.decay, decays, first, count);
        in.rate = Twice(all.rate, s.heads, first, count);
        std::vector<float> y(2 * count * width, kNaN);
        const StateScanParams params = in.Params(rows, y.data());
        if (backend != nullptr) {
          EXPECT_TRUE(StateScan(*backend, params).ok());
        } else {
          for (const std::uint32_t row : {1u, 2u}) {
            for (std::uint32_t h = 0; h < s.heads; ++h) {
              internal::StateScanCpu(params, row, h, 0, s.value_size);
            }
          }
        }
        out.insert(out.end(), y.begin() + static_cast<std::ptrdiff_t>(count * width), y.end());
      });
  result.out = std::move(out);
  return result;
}

class StateScanTest : public testing::TestWithParam<ScanShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, StateScanTest,
                         testing::Values(ScanShape{4, 2, 16, 24, true, false, false, -1},
                                         ScanShape{6, 2, 16, 24, true, false, false, -1, true},
                                         ScanShape{2, 2, 8, 8, true, false, false, 0},
                                         ScanShape{2, 1, 128, 128, true, false, false, -20},
                                         ScanShape{2, 2, 128, 128, true, true, false, -5},
                                         ScanShape{2, 1, 24, 192, true, false, false, -1},
                                         ScanShape{3, 1, 64, 16, true, true, false, -5},
                                         ScanShape{2, 2, 24, 64, true, true, false, -20},
                                         ScanShape{4, 1, 16, 32, false, false, true, -1},
                                         ScanShape{6, 2, 128, 64, false, false, true, -20},
                                         ScanShape{2, 2, 24, 130, false, true, false, -3}),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(StateScanTest, EqualsDouble) {
  for (const std::uint32_t tokens : {1u, 2u, 63u, 64u, 65u, 257u}) {
    const ScanInputs inputs(GetParam(), tokens, tokens);
    const ExactScan exact = ScanInDouble(inputs, tokens);
    const Steps steps{.chunks = {tokens}};
    const Result reference = RunScan(nullptr, inputs, steps);
    EXPECT_LE(RelativeError(reference.out, exact.out), 2e-6) << tokens;
    EXPECT_LE(RelativeError(reference.state, exact.state), 2e-6) << tokens;
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const TestBackend backend(3);
      const Result result = RunScan(&*backend, inputs, steps);
      EXPECT_LE(RelativeError(result.out, exact.out), 2e-6) << isa << " " << tokens;
      EXPECT_LE(RelativeError(result.state, exact.state), 2e-6) << isa << " " << tokens;
    }
  }
}

TEST_P(StateScanTest, AnySplitGivesEqualBits) {
  constexpr std::uint32_t kTokens = 257;
  const ScanInputs inputs(GetParam(), kTokens, 11);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const TestBackend one(1), seven(7);
    const Result whole = RunScan(&*one, inputs, {.chunks = {kTokens}});
    for (const Steps& steps : Cuts(kTokens)) {
      const Result cut = RunScan(&*seven, inputs, steps);
      EXPECT_EQ(cut.out, whole.out) << isa << " chunks of " << steps.chunks[0];
      EXPECT_EQ(cut.state, whole.state) << isa << " chunks of " << steps.chunks[0];
    }
  }
}

// A snapshot is the state of a sequence that ends there, and the next tokens do not depend on it.
TEST_P(StateScanTest, SnapshotsAreStatesInTheMiddleOfAStep) {
  constexpr std::uint32_t kTokens = 130;
  const ScanInputs inputs(GetParam(), kTokens, 12);
  const TestBackend backend(3);
  const Result whole = RunScan(&*backend, inputs, {.chunks = {kTokens}});
  for (const std::uint32_t at : {1u, 64u, 100u, 129u, 130u}) {
    const Result result = RunScan(&*backend, inputs, {.chunks = {70, 60}, .snapshot_at = at});
    EXPECT_EQ(result.snapshot, RunScan(&*backend, inputs, {.chunks = {at}}).state) << at;
    EXPECT_EQ(result.state, whole.state) << at;
    EXPECT_EQ(result.out, whole.out) << at;
    EXPECT_EQ(RunScan(nullptr, inputs, {.chunks = {70, 60}, .snapshot_at = at}).snapshot,
              RunScan(nullptr, inputs, {.chunks = {at}}).state);
  }
}

TEST(StateScanTest, RejectsWrongShapes) {
  const TestBackend backend(1);
  const ScanInputs inputs({2, 2, 8, 8, true, false, false, -1}, 1, 1);
  const StateScanParams good = inputs.Params({}, nullptr);
  StateScanParams bad = good;
  bad.key_heads = 3;
  EXPECT_THAT(StateScan(*backend, bad).message(), testing::HasSubstr("a multiple of 3"));
  bad = good;
  bad.key_size = 257;
  EXPECT_THAT(StateScan(*backend, bad).message(), testing::HasSubstr("1 to 256"));
  bad = good;
  bad.qkv_stride = 15;
  EXPECT_THAT(StateScan(*backend, bad).message(), testing::HasSubstr("at least 16"));
}

struct ConvShape {
  std::uint32_t channels, width;
  bool has_bias, silu;
};

Result RunConv(const Backend* backend, const ConvShape& shape, const std::vector<float>& x,
               const std::vector<float>& weight, const std::vector<float>& bias,
               const Steps& steps) {
  const std::size_t stride = shape.channels + 3;
  std::vector<float> out;
  Result result =
      RunSteps(steps, std::size_t{shape.width - 1} * shape.channels,
               [&](const StateRows& rows, std::uint32_t first, std::uint32_t count) {
                 std::vector<float> y = Twice(x, stride, first, count);
                 const CausalConvParams params{.rows = rows,
                                               .x = y.data(),
                                               .weight = weight.data(),
                                               .bias = shape.has_bias ? bias.data() : nullptr,
                                               .x_stride = static_cast<std::int64_t>(stride),
                                               .channels = shape.channels,
                                               .width = shape.width,
                                               .silu = shape.silu};
                 if (backend != nullptr) {
                   EXPECT_TRUE(CausalConv(*backend, params).ok());
                 } else {
                   for (const std::uint32_t row : {1u, 2u}) {
                     internal::CausalConvCpu(params, row, 0, shape.channels);
                   }
                 }
                 for (std::size_t t = count; t < 2 * count; ++t) {
                   const auto at = y.begin() + static_cast<std::ptrdiff_t>(t * stride);
                   out.insert(out.end(), at, at + shape.channels);
                 }
               });
  result.out = std::move(out);
  return result;
}

class CausalConvTest : public testing::TestWithParam<ConvShape> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, CausalConvTest,
    testing::Values(ConvShape{200, 4, false, true}, ConvShape{48, 4, true, true},
                    ConvShape{131, 3, false, false}, ConvShape{17, 2, true, false},
                    ConvShape{5, 1, true, true}, ConvShape{64, 8, false, true}),
    [](const auto& info) {
      return absl::StrCat(info.param.channels, "x", info.param.width,
                          info.param.has_bias ? "_bias" : "", info.param.silu ? "_silu" : "");
    });

TEST_P(CausalConvTest, EqualsDoubleAndAnySplitGivesEqualBits) {
  const ConvShape shape = GetParam();
  constexpr std::uint32_t kTokens = 257;
  const std::size_t stride = shape.channels + 3;
  const auto x = RandomFloats(kTokens * stride, 1);
  const auto weight = RandomFloats(shape.channels * shape.width, 2);
  const auto bias = RandomFloats(shape.channels, 3);
  std::vector<double> exact, state;
  for (std::size_t t = 0; t < kTokens; ++t) {
    for (std::size_t c = 0; c < shape.channels; ++c) {
      double sum = shape.has_bias ? double{bias[c]} : 0;
      for (std::size_t j = 0; j < shape.width; ++j) {
        if (t + 1 + j < shape.width) continue;
        sum +=
            double{weight[c * shape.width + j]} * double{x[(t + 1 + j - shape.width) * stride + c]};
      }
      exact.push_back(shape.silu ? sum / (1 + std::exp(-sum)) : sum);
    }
  }
  // The state has inputs as they were.
  std::vector<float> last;
  for (std::size_t t = kTokens + 1 - shape.width; t < kTokens; ++t) {
    last.insert(last.end(), x.begin() + static_cast<std::ptrdiff_t>(t * stride),
                x.begin() + static_cast<std::ptrdiff_t>(t * stride + shape.channels));
  }
  const Result reference = RunConv(nullptr, shape, x, weight, bias, {.chunks = {kTokens}});
  EXPECT_LE(RelativeError(reference.out, exact), 1e-6);
  EXPECT_EQ(reference.state, last);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const TestBackend one(1), seven(7);
    const Result whole = RunConv(&*one, shape, x, weight, bias, {.chunks = {kTokens}});
    EXPECT_LE(RelativeError(whole.out, exact), 1e-6) << isa;
    EXPECT_EQ(whole.state, last) << isa;
    for (Steps steps : Cuts(kTokens)) {
      steps.snapshot_at = 65;
      const Result cut = RunConv(&*seven, shape, x, weight, bias, steps);
      EXPECT_EQ(cut.out, whole.out) << isa << " chunks of " << steps.chunks[0];
      EXPECT_EQ(cut.state, whole.state) << isa << " chunks of " << steps.chunks[0];
      EXPECT_EQ(Bits(cut.snapshot),
                Bits(RunConv(&*one, shape, x, weight, bias, {.chunks = {65}}).state))
          << isa << " chunks of " << steps.chunks[0];
    }
  }
}

TEST(CausalConvTest, RejectsWrongShapes) {
  const TestBackend backend(1);
  CausalConvParams params{
      .rows = {}, .x = nullptr, .weight = nullptr, .x_stride = 8, .channels = 8, .width = 9};
  EXPECT_THAT(CausalConv(*backend, params).message(), testing::HasSubstr("width must be 1 to 8"));
  params.width = 4;
  params.x_stride = 7;
  EXPECT_EQ(CausalConv(*backend, params).code(), absl::StatusCode::kInvalidArgument);
}

struct Prepared {
  std::vector<float> q, k, decay, rate;
};

// Prepares 9 rows of 3 key heads of `size`, and 6 heads, without b if `delta` is false.
Prepared Prepare(const Backend* backend, std::uint32_t size, bool delta, bool per_channel,
                 std::vector<double>* exact_q, std::vector<double>* exact_decay,
                 std::vector<double>* exact_rate) {
  constexpr std::uint32_t kRows = 9, kKeyHeads = 3, kHeads = 6;
  const std::uint32_t channels = per_channel ? kHeads * size : kHeads;
  const std::uint32_t keys = kKeyHeads * size;
  Prepared p{RandomFloats(kRows * keys, 1), RandomFloats(kRows * keys, 2),
             std::vector<float>(kRows * channels, kNaN), std::vector<float>(kRows * kHeads, kNaN)};
  const std::uint32_t stride = channels + kHeads;  // of b, then a
  auto rates = RandomFloats(kRows * stride, 3, 8.0f);
  rates[kHeads] = -90;
  rates[kHeads + 1] = 95;
  rates[kHeads + 2] = 20;
  const auto a_log = RandomFloats(kHeads, 4);
  const auto dt_bias = RandomFloats(channels, 5);
  const double low = 0.001, high = 10;
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t h = 0; h < kKeyHeads; ++h) {
      const float* const q = p.q.data() + m * keys + h * size;
      double sum = 1e-6;
      for (std::uint32_t i = 0; i < size; ++i) sum += double{q[i]} * double{q[i]};
      for (std::uint32_t i = 0; i < size; ++i) {
        exact_q->push_back(double{q[i]} / std::sqrt(sum) / std::sqrt(static_cast<double>(size)));
      }
    }
    for (std::uint32_t c = 0; c < channels; ++c) {
      const std::uint32_t h = c / (channels / kHeads);
      const double x = double{rates[m * stride + kHeads + c]} + double{dt_bias[c]};
      double t = x > 20 ? x : std::log1p(std::exp(x));
      if (!delta) exact_rate->push_back(t = std::clamp(t, low, high));
      exact_decay->push_back(std::exp(-std::exp(double{a_log[h]}) * t));
    }
    for (std::uint32_t h = 0; delta && h < kHeads; ++h) {
      exact_rate->push_back(1 / (1 + std::exp(-double{rates[m * stride + h]})));
    }
  }
  const PrepareScanParams params{.q = p.q.data(),
                                 .k = p.k.data(),
                                 .a = rates.data() + kHeads,
                                 .b = delta ? rates.data() : nullptr,
                                 .a_log = a_log.data(),
                                 .dt_bias = dt_bias.data(),
                                 .decay = p.decay.data(),
                                 .rate = p.rate.data(),
                                 .qk_stride = keys,
                                 .rates_stride = stride,
                                 .num_rows = kRows,
                                 .heads = kHeads,
                                 .key_heads = kKeyHeads,
                                 .key_size = size,
                                 .channels = channels,
                                 .qk_l2_eps = 1e-6f,
                                 .dt_min = static_cast<float>(low),
                                 .dt_max = static_cast<float>(high)};
  if (backend == nullptr) {
    internal::PrepareScanCpu(params, 0, kRows);
  } else {
    EXPECT_TRUE(PrepareScan(*backend, params).ok());
  }
  return p;
}

TEST(PrepareScanTest, EqualsDouble) {
  const struct {
    std::uint32_t size;
    bool delta, per_channel;
  } cases[] = {{16, true, false}, {23, true, true}, {128, true, true}, {40, false, false}};
  for (const auto& c : cases) {
    std::vector<std::string> isas = AvailableIsas();
    isas.push_back("reference");
    for (const std::string& isa : isas) {
      const bool is_reference = isa == "reference";
      const ScopedIsa scoped(is_reference ? isas.front() : isa);
      const TestBackend backend(3);
      std::vector<double> q, decay, rate;
      const Prepared p = Prepare(is_reference ? nullptr : &*backend, c.size, c.delta, c.per_channel,
                                 &q, &decay, &rate);
      EXPECT_LE(RelativeError(p.q, q), 3e-7) << isa;
      EXPECT_LE(RelativeError(p.decay, decay), 1e-6) << isa;
      EXPECT_LE(RelativeError(p.rate, rate), 5e-7) << isa;
      for (std::size_t i = 0; i < decay.size(); ++i) {
        // Logarithms of decays are off by a few units in the last place.
        const double bound = decay[i] * 1e-6 * (1 - std::log(std::max(decay[i], 1e-37)));
        ASSERT_NEAR(double{p.decay[i]}, decay[i], bound + 1e-37) << isa << " " << i;
      }
    }
  }
}

// A clamp must not hide values that are not numbers. Without b, rates and decays depend on t.
TEST(PrepareScanTest, NaNStaysNaN) {
  constexpr std::uint32_t kHeads = 6;
  const std::vector<float> a{1, kNaN, -2, 3, kNaN, 0}, zeros(kHeads, 0.0f);
  std::vector<std::string> isas = AvailableIsas();
  isas.push_back("reference");
  for (const std::string& isa : isas) {
    const bool is_reference = isa == "reference";
    const ScopedIsa scoped(is_reference ? isas.front() : isa);
    const TestBackend backend(1);
    std::vector<float> q(kHeads, 1.0f), k(kHeads, 1.0f), decay(kHeads), rate(kHeads);
    const PrepareScanParams params{.q = q.data(),
                                   .k = k.data(),
                                   .a = a.data(),
                                   .b = nullptr,
                                   .a_log = zeros.data(),
                                   .dt_bias = zeros.data(),
                                   .decay = decay.data(),
                                   .rate = rate.data(),
                                   .qk_stride = kHeads,
                                   .rates_stride = kHeads,
                                   .num_rows = 1,
                                   .heads = kHeads,
                                   .key_heads = kHeads,
                                   .key_size = 1,
                                   .channels = kHeads,
                                   .dt_min = 0.001f,
                                   .dt_max = 10};
    if (is_reference) {
      internal::PrepareScanCpu(params, 0, 1);
    } else {
      ASSERT_TRUE(PrepareScan(*backend, params).ok());
    }
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      EXPECT_EQ(std::isnan(rate[h]), std::isnan(a[h])) << isa << " " << h;
      EXPECT_EQ(std::isnan(decay[h]), std::isnan(a[h])) << isa << " " << h;
    }
  }
}

TEST(PrepareScanTest, RejectsWrongShapes) {
  const TestBackend backend(1);
  PrepareScanParams params{.q = nullptr,
                           .k = nullptr,
                           .a = nullptr,
                           .b = nullptr,
                           .a_log = nullptr,
                           .dt_bias = nullptr,
                           .decay = nullptr,
                           .rate = nullptr,
                           .qk_stride = 16,
                           .rates_stride = 32,
                           .num_rows = 0,
                           .heads = 4,
                           .key_heads = 2,
                           .key_size = 8,
                           .channels = 32};
  EXPECT_THAT(PrepareScan(*backend, params).message(), testing::HasSubstr("32 decays"));
  params.channels = 4;
  EXPECT_TRUE(PrepareScan(*backend, params).ok());
  params.qk_stride = 15;
  EXPECT_THAT(PrepareScan(*backend, params).message(), testing::HasSubstr("at least 16"));
}

struct GateShapes {
  std::uint32_t groups, columns;
  bool has_group_weights;
};
constexpr std::uint32_t kGateRows = 11;

// The inputs of a gated norm. Rows of the gate are 3 elements longer.
struct GateInputs {
  explicit GateInputs(const GateShapes& s)
      : shape(s),
        length(s.groups * s.columns),
        x(RandomFloats(kGateRows * length, 1)),
        gate(RandomFloats(kGateRows * (length + 3), 2, 3.0f)),
        weight(RandomFloats(length, 3)) {}

  std::vector<double> InDouble(GateOrder order) const {
    std::vector<double> exact;
    for (std::uint32_t m = 0; m < kGateRows; ++m) {
      for (std::uint32_t g = 0; g < shape.groups; ++g) {
        const float* const z = gate.data() + m * (length + 3) + g * shape.columns;
        const float* const from = x.data() + m * length + g * shape.columns;
        const float* const w = weight.data() + (shape.has_group_weights ? g * shape.columns : 0);
        const auto sigmoid = [&](std::uint32_t i) { return 1 / (1 + std::exp(-double{z[i]})); };
        std::vector<double> v(from, from + shape.columns);
        double sum = 0;
        for (std::uint32_t i = 0; i < shape.columns; ++i) {
          if (order == GateOrder::kSiluThenNorm) v[i] *= double{z[i]} * sigmoid(i);
          sum += v[i] * v[i];
        }
        const double inverse = 1 / std::sqrt(sum / shape.columns + 1e-3);
        for (std::uint32_t i = 0; i < shape.columns; ++i) {
          double y = v[i];
          if (order != GateOrder::kSigmoid) y *= inverse * double{w[i]};
          if (order != GateOrder::kSiluThenNorm) y *= sigmoid(i);
          if (order == GateOrder::kNormThenSilu) y *= double{z[i]};
          exact.push_back(y);
        }
      }
    }
    return exact;
  }

  // With a null backend, the reference implementation runs.
  std::vector<float> Run(const Backend* backend, GateOrder order, bool in_place) const {
    std::vector<float> y = in_place ? x : std::vector<float>(x.size(), kNaN);
    const bool norms = order != GateOrder::kSigmoid;
    const GateNormParams params{.x = in_place ? y.data() : x.data(),
                                .gate = gate.data(),
                                .weight = norms ? weight.data() : nullptr,
                                .y = y.data(),
                                .x_stride = length,
                                .gate_stride = length + 3,
                                .y_stride = length,
                                .num_rows = kGateRows,
                                .groups = shape.groups,
                                .columns = shape.columns,
                                .order = order,
                                .has_group_weights = norms && shape.has_group_weights,
                                .epsilon = 1e-3f};
    if (backend == nullptr) {
      internal::GateNormCpu(params, 0, kGateRows);
    } else {
      EXPECT_TRUE(GateNorm(*backend, params).ok());
    }
    return y;
  }

  GateShapes shape;
  std::uint32_t length;
  std::vector<float> x, gate, weight;
};

class GateNormTest : public testing::TestWithParam<GateOrder> {};
INSTANTIATE_TEST_SUITE_P(Orders, GateNormTest,
                         testing::Values(GateOrder::kNormThenSilu, GateOrder::kNormThenSigmoid,
                                         GateOrder::kSiluThenNorm, GateOrder::kSigmoid));

TEST_P(GateNormTest, EqualsDouble) {
  const GateOrder order = GetParam();
  for (const GateShapes& shape : {GateShapes{4, 24, false}, GateShapes{3, 128, false},
                                  GateShapes{2, 50, true}, GateShapes{1, 64, true}}) {
    const GateInputs inputs(shape);
    const std::vector<double> exact = inputs.InDouble(order);
    EXPECT_LE(RelativeError(inputs.Run(nullptr, order, false), exact), 1e-6);
    for (const std::string& isa : AvailableIsas()) {
      const ScopedIsa scoped(isa);
      const TestBackend backend(3);
      const std::vector<float> y = inputs.Run(&*backend, order, false);
      EXPECT_LE(RelativeError(y, exact), 5e-7) << isa;
      EXPECT_EQ(inputs.Run(&*backend, order, true), y) << isa;
    }
  }
}

TEST(GateNormTest, RejectsWrongShapes) {
  const TestBackend backend(1);
  const GateNormParams params{.x = nullptr,
                              .gate = nullptr,
                              .y = nullptr,
                              .x_stride = 8,
                              .gate_stride = 7,
                              .y_stride = 8,
                              .num_rows = 0,
                              .groups = 2,
                              .columns = 4,
                              .order = GateOrder::kSigmoid};
  EXPECT_THAT(GateNorm(*backend, params).message(), testing::HasSubstr("gate 7"));
}

}  // namespace
}  // namespace quire::kernels
