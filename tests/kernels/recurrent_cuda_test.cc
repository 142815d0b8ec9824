// Ops of recurrent layers on the emulated GPU. Each is compared with double precision or with the
// CPU. Sequences are cut into steps in many ways, which must not change a bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device_graph.h"
#include "kernels/elementwise/multiply.h"
#include "kernels/recurrent/causal_conv.h"
#include "kernels/recurrent/gate_norm.h"
#include "kernels/recurrent/prepare_scan.h"
#include "kernels/recurrent/state_rows.h"
#include "kernels/recurrent/state_scan.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/kernels/recurrent_steps.h"

namespace quire::kernels {
namespace {

// The rows of a step in device memory. A GPU's step also has padding tokens and padding rows.
class DeviceRows {
 public:
  DeviceRows(const EmulatedBackend& cuda, const StateRows& rows)
      : host_(rows),
        states_(cuda, Floats(rows)),
        in_(cuda, Words(rows.slots.state_in)),
        out_(cuda, Words(rows.slots.state_out)),
        at_(cuda, Words(rows.slots.snapshot_at)),
        snapshots_(cuda, Words(rows.slots.snapshot_slot)),
        offsets_(cuda, Offsets()),
        positions_(cuda, Positions()),
        live_(cuda, Live()) {}

  StateRows get() const {
    return {.states = reinterpret_cast<std::byte*>(states_.data()),
            .slot_stride = host_.slot_stride,
            .slots = {.state_in = in_.data(),
                      .state_out = out_.data(),
                      .snapshot_at = at_.data(),
                      .snapshot_slot = snapshots_.data(),
                      .max_rows = host_.batch_size + kPadding},
            .row_offsets = offsets_.data(),
            .positions = positions_.data(),
            .batch_size = host_.batch_size + kPadding,
            .num_tokens = host_.num_tokens + kPadding,
            .live_rows = live_.data()};
  }
  // Replaces all values. REQUIRES: the sizes are those of the rows before.
  void Put(const StateRows& rows) {
    host_ = rows;
    states_.Put(Floats(rows));
    in_.Put(Words(rows.slots.state_in));
    out_.Put(Words(rows.slots.state_out));
    at_.Put(Words(rows.slots.snapshot_at));
    snapshots_.Put(Words(rows.slots.snapshot_slot));
    offsets_.Put(Offsets());
    positions_.Put(Positions());
    live_.Put(Live());
  }
  // Copies the states back.
  void Download() const {
    const std::vector<float> states = states_.Get();
    std::memcpy(host_.states, states.data(), states.size() * sizeof(float));
  }

  static constexpr std::uint32_t kPadding = 2;  // rows and tokens

 private:
  static std::vector<float> Floats(const StateRows& rows) {
    std::vector<float> floats(static_cast<std::size_t>(rows.slot_stride) / 4 * kSlots);
    std::memcpy(floats.data(), rows.states, floats.size() * sizeof(float));
    return floats;
  }
  std::vector<std::uint32_t> Words(const std::uint32_t* words) const {
    std::vector<std::uint32_t> all(words, words + host_.batch_size);
    all.resize(host_.batch_size + kPadding);
    return all;
  }
  std::vector<std::uint32_t> Offsets() const {
    std::vector<std::uint32_t> all(host_.row_offsets, host_.row_offsets + host_.batch_size + 1);
    all.resize(all.size() + kPadding, all.back());
    return all;
  }
  std::vector<std::int32_t> Positions() const {
    std::vector<std::int32_t> all(host_.positions, host_.positions + host_.num_tokens);
    all.resize(all.size() + kPadding);
    return all;
  }
  std::vector<std::uint32_t> Live() const {
    std::vector<std::uint32_t> live{0};
    for (std::uint32_t row = 0; row < host_.batch_size; ++row) {
      if (host_.tokens_of(row) > 0) live.push_back(row);
    }
    live[0] = static_cast<std::uint32_t>(live.size() - 1);
    live.resize(1 + host_.batch_size + kPadding, 0xffffffffu);
    return live;
  }

  StateRows host_;
  DeviceArray<float> states_;
  DeviceArray<std::uint32_t> in_, out_, at_, snapshots_, offsets_;
  DeviceArray<std::int32_t> positions_;
  DeviceArray<std::uint32_t> live_;
};

// A step of StateScan in device memory. `in` has the inputs of its tokens.
struct DeviceScan {
  DeviceScan(const EmulatedBackend& cuda, const ScanInputs& in, const StateRows& host)
      : rows(cuda, host),
        qkv(cuda, in.qkv),
        decay(cuda, in.decay),
        rate(cuda, in.rate),
        skip(cuda, in.skip),
        out(cuda, std::size_t{host.num_tokens} * in.shape.heads * in.shape.value_size),
        params(in.Params(rows.get(), out.data())) {
    params.k = qkv.data() + (params.k - params.q);
    params.v = qkv.data() + (params.v - params.q);
    params.q = qkv.data();
    params.decay = decay.data();
    params.rate = rate.data();
    if (params.skip != nullptr) params.skip = skip.data();
  }
  DeviceRows rows;
  DeviceArray<float> qkv, decay, rate, skip;
  DeviceArray<float> out;  // [tokens, heads, value_size]
  StateScanParams params;
};

// Runs StateScan for the rows of a step and returns its results.
std::vector<float> ScanOnGpu(const EmulatedBackend& cuda, const ScanInputs& in,
                             const StateRows& rows) {
  const DeviceScan scan(cuda, in, rows);
  EXPECT_TRUE(StateScan(*cuda, scan.params).ok());
  scan.rows.Download();
  return scan.out.Get();
}

Result RunScan(const EmulatedBackend& cuda, const ScanInputs& all, const Steps& steps) {
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
        const std::vector<float> y = ScanOnGpu(cuda, in, rows);
        out.insert(out.end(), y.begin() + static_cast<std::ptrdiff_t>(count * width), y.end());
      });
  result.out = std::move(out);
  return result;
}

class StateScanCudaTest : public testing::TestWithParam<ScanShape> {
 protected:
  const EmulatedBackend cuda_;
};
INSTANTIATE_TEST_SUITE_P(Shapes, StateScanCudaTest,
                         testing::Values(ScanShape{4, 2, 16, 24, true, false, false, -1},
                                         ScanShape{6, 2, 16, 24, true, false, false, -1, true},
                                         ScanShape{2, 2, 8, 8, true, false, false, 0},
                                         ScanShape{1, 1, 128, 128, true, false, false, -20},
                                         ScanShape{3, 1, 64, 16, true, true, false, -5},
                                         ScanShape{2, 2, 24, 64, true, true, false, -20},
                                         ScanShape{1, 1, 200, 20, true, true, false, -2},
                                         ScanShape{4, 1, 16, 32, false, false, true, -1},
                                         ScanShape{2, 1, 128, 64, false, false, true, -20},
                                         ScanShape{1, 1, 24, 130, false, true, false, -3},
                                         ScanShape{1, 1, 256, 8, false, false, true, -1}),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(StateScanCudaTest, EqualsDouble) {
  for (const std::uint32_t tokens : {1u, 2u, 63u, 64u, 65u, 257u}) {
    const ScanInputs inputs(GetParam(), tokens, tokens);
    const ExactScan exact = ScanInDouble(inputs, tokens);
    const Result result = RunScan(cuda_, inputs, {.chunks = {tokens}});
    EXPECT_LE(RelativeError(result.out, exact.out), 2e-6) << tokens;
    EXPECT_LE(RelativeError(result.state, exact.state), 2e-6) << tokens;
  }
}

TEST_P(StateScanCudaTest, AnySplitGivesEqualBits) {
  constexpr std::uint32_t kTokens = 257;
  const ScanInputs inputs(GetParam(), kTokens, 11);
  const Result whole = RunScan(cuda_, inputs, {.chunks = {kTokens}});
  for (const Steps& steps : Cuts(kTokens)) {
    const Result cut = RunScan(cuda_, inputs, steps);
    EXPECT_EQ(cut.out, whole.out) << "chunks of " << steps.chunks[0];
    EXPECT_EQ(cut.state, whole.state) << "chunks of " << steps.chunks[0];
  }
}

// A snapshot is the state of a sequence that ends there, and the next tokens do not depend on it.
TEST_P(StateScanCudaTest, SnapshotsAreStatesInTheMiddleOfAStep) {
  constexpr std::uint32_t kTokens = 17;
  const ScanInputs inputs(GetParam(), kTokens, 12);
  const Result whole = RunScan(cuda_, inputs, {.chunks = {kTokens}});
  for (const std::uint32_t at : {1u, 4u, 9u, 16u, 17u}) {
    const Result result = RunScan(cuda_, inputs, {.chunks = {9, 8}, .snapshot_at = at});
    EXPECT_EQ(result.snapshot, RunScan(cuda_, inputs, {.chunks = {at}}).state) << at;
    EXPECT_EQ(result.state, whole.state) << at;
    EXPECT_EQ(result.out, whole.out) << at;
  }
}

struct ConvShape {
  std::uint32_t channels, width;
  bool has_bias, silu;
};

// The inputs of a convolution of `tokens` tokens.
struct ConvInputs {
  ConvInputs(const ConvShape& s, std::uint32_t tokens)
      : shape(s),
        stride(s.channels + 3),
        x(RandomFloats(tokens * stride, 1)),
        weight(RandomFloats(s.channels * s.width, 2)),
        bias(RandomFloats(s.channels, 3)) {}

  // With a null backend the CPU runs.
  Result Run(const EmulatedBackend* cuda, const Steps& steps) const {
    std::vector<float> out;
    Result result = RunSteps(steps, std::size_t{shape.width - 1} * shape.channels,
                             [&](const StateRows& rows, std::uint32_t first, std::uint32_t count) {
                               std::vector<float> y = Twice(x, stride, first, count);
                               cuda == nullptr ? RunOnCpu(rows, &y) : RunOnGpu(*cuda, rows, &y);
                               for (std::size_t t = count; t < 2 * count; ++t) {
                                 const auto at =
                                     y.begin() + static_cast<std::ptrdiff_t>(t * stride);
                                 out.insert(out.end(), at, at + shape.channels);
                               }
                             });
    result.out = std::move(out);
    return result;
  }

  CausalConvParams Params(const StateRows& rows, float* y) const {
    return {.rows = rows,
            .x = y,
            .weight = weight.data(),
            .bias = shape.has_bias ? bias.data() : nullptr,
            .x_stride = static_cast<std::int64_t>(stride),
            .channels = shape.channels,
            .width = shape.width,
            .silu = shape.silu};
  }
  void RunOnCpu(const StateRows& rows, std::vector<float>* y) const {
    const TestBackend backend(1);
    EXPECT_TRUE(CausalConv(*backend, Params(rows, y->data())).ok());
  }
  void RunOnGpu(const EmulatedBackend& cuda, const StateRows& rows, std::vector<float>* y) const {
    const DeviceRows device(cuda, rows);
    const DeviceArray<float> device_x(cuda, *y), device_weight(cuda, weight),
        device_bias(cuda, bias);
    CausalConvParams params = Params(device.get(), device_x.data());
    params.weight = device_weight.data();
    if (params.bias != nullptr) params.bias = device_bias.data();
    EXPECT_TRUE(CausalConv(*cuda, params).ok());
    device.Download();
    *y = device_x.Get();
  }

  ConvShape shape;
  std::size_t stride;
  std::vector<float> x, weight, bias;
};

class CausalConvCudaTest : public testing::TestWithParam<ConvShape> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, CausalConvCudaTest,
    testing::Values(ConvShape{200, 4, false, true}, ConvShape{48, 4, true, true},
                    ConvShape{131, 3, false, false}, ConvShape{17, 2, true, false},
                    ConvShape{5, 1, true, true}, ConvShape{64, 8, false, true}),
    [](const auto& info) {
      return absl::StrCat(info.param.channels, "x", info.param.width,
                          info.param.has_bias ? "_bias" : "", info.param.silu ? "_silu" : "");
    });

// The vector form of the CPU is compared with double precision elsewhere.
TEST_P(CausalConvCudaTest, AnySplitGivesTheBitsOfTheCpu) {
  constexpr std::uint32_t kTokens = 130;
  const EmulatedBackend cuda;
  const ConvInputs inputs(GetParam(), kTokens);
  // Levels without fused multiply-add have other bits.
  const std::vector<std::string> isas = AvailableIsas();
  if (std::find(isas.begin(), isas.end(), "avx2") == isas.end()) GTEST_SKIP() << "no AVX2";
  const ScopedIsa scoped("avx2");
  for (Steps steps : Cuts(kTokens)) {
    steps.snapshot_at = 65;
    const Result want = inputs.Run(nullptr, steps);
    const Result got = inputs.Run(&cuda, steps);
    EXPECT_EQ(got.out, want.out) << "chunks of " << steps.chunks[0];
    EXPECT_EQ(got.state, want.state) << "chunks of " << steps.chunks[0];
    EXPECT_EQ(Bits(got.snapshot), Bits(want.snapshot)) << "chunks of " << steps.chunks[0];
  }
}

// Rows of a step: tokens before the step, tokens of the step, and slots.
struct RowSpec {
  std::uint32_t cached, tokens, in, out;
};

// The arrays that a StateRows points to.
struct HostRows {
  HostRows(Slots* slots, const std::vector<RowSpec>& specs) : memory(slots) {
    for (const RowSpec& row : specs) {
      in.push_back(row.in);
      out.push_back(row.out);
      offsets.push_back(offsets.back() + row.tokens);
      for (std::uint32_t t = 0; t < row.tokens; ++t) {
        positions.push_back(static_cast<std::int32_t>(row.cached + t));
      }
    }
    zeros.resize(in.size());
  }
  StateRows get() const {
    return {.states = memory->data(),
            .slot_stride = memory->stride_bytes(),
            .slots = {.state_in = in.data(),
                      .state_out = out.data(),
                      .snapshot_at = zeros.data(),
                      .snapshot_slot = zeros.data(),
                      .max_rows = static_cast<std::uint32_t>(in.size())},
            .row_offsets = offsets.data(),
            .positions = positions.data(),
            .batch_size = static_cast<std::uint32_t>(in.size()),
            .num_tokens = offsets.back()};
  }
  Slots* memory;
  std::vector<std::uint32_t> in, out, zeros, offsets{0};
  std::vector<std::int32_t> positions;
};

// Fresh and continued rows of unequal lengths, two that read the same slot, and one that must not
// write the null slot, in a batch and each alone.
TEST(RecurrentRowsCudaTest, BitsDoNotDependOnTheBatch) {
  const EmulatedBackend cuda;
  const ScanShape shape{2, 1, 24, 20, true, false, false, -2};
  constexpr std::size_t kFloats = 2 * 24 * 20;
  const std::vector<RowSpec> specs{{0, 5, 0, 1}, {0, 0, 0, 0}, {7, 1, 5, 2},
                                   {0, 2, 0, 0}, {7, 9, 5, 3}, {3, 2, 4, 4}};
  const std::uint32_t tokens = 19;
  const ScanInputs all(shape, tokens, 3);
  const std::vector<float> first = RandomFloats(kFloats, 4), second = RandomFloats(kFloats, 5);
  const auto prepared = [&] {
    Slots slots(kSlots, kFloats);
    slots.Put(4, first);
    slots.Put(5, second);
    return slots;
  };
  Slots slots = prepared();
  const HostRows batch(&slots, specs);
  const std::vector<float> out = ScanOnGpu(cuda, all, batch.get());
  EXPECT_TRUE(slots.IsIntact());
  EXPECT_EQ(slots.Slot(5), second);
  for (std::size_t row = 0; row < specs.size(); ++row) {
    SCOPED_TRACE(row);
    if (specs[row].tokens == 0) continue;
    Slots own = prepared();
    const HostRows alone(&own, {specs[row]});
    ScanInputs in = all;
    const auto part = [&](std::vector<float>* values, std::size_t width) {
      const auto at = values->begin() + static_cast<std::ptrdiff_t>(batch.offsets[row] * width);
      *values = std::vector<float>(at, at + static_cast<std::ptrdiff_t>(specs[row].tokens * width));
    };
    part(&in.qkv, all.stride);
    part(&in.decay, shape.heads);
    part(&in.rate, shape.heads);
    std::vector<float> want = out;
    part(&want, shape.heads * shape.value_size);
    EXPECT_EQ(ScanOnGpu(cuda, in, alone.get()), want);
    EXPECT_EQ(own.Slot(specs[row].out), slots.Slot(specs[row].out));
    EXPECT_TRUE(own.IsIntact());
  }
}

// A captured launch reads the rows, positions and slots of the step in which it runs.
TEST(RecurrentRowsCudaTest, GraphServesOtherRows) {
  const EmulatedBackend cuda;
  constexpr std::size_t kFloats = 24 * 20;
  const ScanInputs inputs({1, 1, 24, 20, true, false, false, -2}, 2, 3);
  const std::vector<float> first = RandomFloats(kFloats, 4), second = RandomFloats(kFloats, 5);
  const auto prepared = [&] {
    Slots slots(kSlots, kFloats);
    slots.Put(4, first);
    slots.Put(5, second);
    return slots;
  };
  const std::vector<RowSpec> before{{3, 2, 4, 4}, {0, 0, 0, 0}, {0, 0, 0, 0}};
  const std::vector<RowSpec> after{{0, 1, 0, 1}, {0, 0, 0, 0}, {7, 1, 5, 2}};
  Slots captured = prepared(), direct = prepared();
  DeviceScan scan(cuda, inputs, HostRows(&captured, before).get());
  ASSERT_TRUE(StateScan(*cuda, scan.params).ok());  // Loads the kernel.
  const absl::StatusOr<DeviceGraph> graph =
      DeviceGraph::Capture(cuda.stream(), [&] { return StateScan(*cuda, scan.params); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  const HostRows rows(&captured, after);
  scan.rows.Put(rows.get());
  ASSERT_TRUE(graph->Launch(cuda.stream()).ok());
  scan.rows.Download();
  const HostRows direct_rows(&direct, after);
  EXPECT_EQ(scan.out.Get(), ScanOnGpu(cuda, inputs, direct_rows.get()));
  for (const std::uint32_t slot : {1u, 2u, 4u, 5u})
    EXPECT_EQ(captured.Slot(slot), direct.Slot(slot));
  EXPECT_TRUE(captured.IsIntact());
}

// The convolution stores no state to the null slot either.
TEST(RecurrentRowsCudaTest, ConvolutionKeepsTheNullSlot) {
  const EmulatedBackend cuda;
  const ConvShape shape{40, 4, true, true};
  const ConvInputs inputs(shape, 6);
  Slots slots(kSlots, 3 * 40);
  const HostRows rows(&slots, {{0, 4, 0, 0}, {0, 2, 0, 1}});
  std::vector<float> y = inputs.x;
  inputs.RunOnGpu(cuda, rows.get(), &y);
  EXPECT_TRUE(slots.IsIntact());
  EXPECT_FALSE(std::isnan(slots.Slot(1).back()));
  EXPECT_TRUE(std::isnan(slots.Slot(2).back()));
}

struct PrepareShape {
  std::uint32_t key_size;
  bool delta, per_channel;
  float l2_eps = 1e-6f;
};

// q and k, decays and rates of 5 rows on the CPU or a GPU.
struct PreparedRows {
  static constexpr std::uint32_t kRows = 5, kKeyHeads = 3, kHeads = 6;

  PreparedRows(const EmulatedBackend* cuda, const PrepareShape& s) {
    const std::uint32_t channels = s.per_channel ? kHeads * s.key_size : kHeads;
    const std::uint32_t keys = kKeyHeads * s.key_size, qk_stride = 2 * keys + 1;
    const std::uint32_t stride = channels + kHeads;  // of b, then a
    qk = RandomFloats(kRows * qk_stride, 1);
    std::vector<float> rates = RandomFloats(kRows * stride, 3, 8.0f);
    rates[kHeads] = -90;
    rates[kHeads + 1] = 95;
    rates[kHeads + 2] = 20;
    rates[kHeads + 3] = kNaN;
    const std::vector<float> a_log = RandomFloats(kHeads, 4), dt_bias = RandomFloats(channels, 5);
    decay.assign(kRows * channels, kNaN);
    rate.assign(kRows * kHeads, kNaN);
    PrepareScanParams params{.q = qk.data(),
                             .k = qk.data() + keys,
                             .a = rates.data() + kHeads,
                             .b = s.delta ? rates.data() : nullptr,
                             .a_log = a_log.data(),
                             .dt_bias = dt_bias.data(),
                             .decay = decay.data(),
                             .rate = rate.data(),
                             .qk_stride = qk_stride,
                             .rates_stride = stride,
                             .num_rows = kRows,
                             .heads = kHeads,
                             .key_heads = kKeyHeads,
                             .key_size = s.key_size,
                             .channels = channels,
                             .qk_l2_eps = s.l2_eps,
                             .dt_min = 0.001f,
                             .dt_max = 10};
    if (cuda == nullptr) {
      const TestBackend cpu(1);
      EXPECT_TRUE(PrepareScan(*cpu, params).ok());
      return;
    }
    const DeviceArray<float> device_qk(*cuda, qk), device_rates(*cuda, rates),
        device_a_log(*cuda, a_log), device_dt_bias(*cuda, dt_bias), device_decay(*cuda, decay),
        device_rate(*cuda, rate);
    params.q = device_qk.data();
    params.k = device_qk.data() + keys;
    params.a = device_rates.data() + kHeads;
    params.b = s.delta ? device_rates.data() : nullptr;
    params.a_log = device_a_log.data();
    params.dt_bias = device_dt_bias.data();
    params.decay = device_decay.data();
    params.rate = device_rate.data();
    EXPECT_TRUE(PrepareScan(**cuda, params).ok());
    qk = device_qk.Get();
    decay = device_decay.Get();
    rate = device_rate.Get();
  }

  std::vector<float> qk, decay, rate;
};

// The CPU is compared with double precision elsewhere. NaN stays NaN on both.
TEST(PrepareScanCudaTest, DecaysAndRatesHaveTheBitsOfTheCpu) {
  const EmulatedBackend cuda;
  const std::vector<std::string> isas = AvailableIsas();
  if (std::find(isas.begin(), isas.end(), "avx2") == isas.end()) GTEST_SKIP() << "no AVX2";
  const ScopedIsa scoped("avx2");
  for (const PrepareShape& shape :
       {PrepareShape{16, true, false}, PrepareShape{23, true, true}, PrepareShape{128, true, true},
        PrepareShape{40, false, false}, PrepareShape{64, false, false, 0.0f}}) {
    SCOPED_TRACE(shape.key_size);
    const PreparedRows want(nullptr, shape), got(&cuda, shape);
    // The sign of a NaN may differ.
    const auto canonical = [](std::vector<float> values) {
      for (float& value : values) value = std::isnan(value) ? kNaN : value;
      return Bits(values);
    };
    EXPECT_EQ(canonical(got.decay), canonical(want.decay));
    EXPECT_EQ(canonical(got.rate), canonical(want.rate));
    EXPECT_LE(RelativeError(got.qk, std::vector<double>(want.qk.begin(), want.qk.end())), 3e-7);
    EXPECT_TRUE(shape.l2_eps != 0 || got.qk == want.qk);
  }
}

template <typename To, typename From>
std::vector<To> As(const std::vector<From>& values) {
  std::vector<To> out;
  for (const From& value : values) out.push_back(FromFloat<To>(ToFloat(value)));
  return out;
}

struct GateShapes {
  std::uint32_t groups, columns;
  bool has_group_weights;
};
constexpr GateShapes kGateShapes[] = {{4, 24, false},  {3, 128, false}, {2, 50, true},
                                      {1, 64, true},   {9, 33, false},  {1, 1024, true},
                                      {2, 1030, true}, {1, 3001, false}};
constexpr double kGateEpsilon = 0x1p-10;
constexpr GateOrder kOrders[] = {GateOrder::kNormThenSilu, GateOrder::kNormThenSigmoid,
                                 GateOrder::kSiluThenNorm, GateOrder::kSigmoid};

// Returns a group of GateNorm in double precision.
std::vector<double> ExactGroup(GateOrder order, const float* x, const float* gate,
                               const float* weight, std::uint32_t columns) {
  std::vector<double> y(x, x + columns);
  const auto sigmoid = [&](std::uint32_t i) { return 1 / (1 + std::exp(-double{gate[i]})); };
  double sum = 0;
  for (std::uint32_t i = 0; i < columns; ++i) {
    if (order == GateOrder::kSiluThenNorm) y[i] *= double{gate[i]} * sigmoid(i);
    sum += y[i] * y[i];
  }
  const double inverse = 1 / std::sqrt(sum / columns + kGateEpsilon);
  for (std::uint32_t i = 0; i < columns; ++i) {
    if (order != GateOrder::kSigmoid) y[i] *= inverse * double{weight[i]};
    if (order != GateOrder::kSiluThenNorm) y[i] *= sigmoid(i);
    if (order == GateOrder::kNormThenSilu) y[i] *= double{gate[i]};
  }
  return y;
}

// Runs GateNorm from X to Y and compares it with double precision.
template <typename X, typename Y>
void CheckGateNorm(const EmulatedBackend& cuda, const GateShapes& shape, GateOrder order,
                   bool in_place) {
  SCOPED_TRACE(absl::StrCat(shape.groups, " of ", shape.columns, ", order ",
                            static_cast<int>(order), in_place ? ", in place" : ""));
  constexpr std::uint32_t kRows = 3;
  const bool norms = order != GateOrder::kSigmoid;
  const std::uint32_t length = shape.groups * shape.columns, stride = length + 3;
  const std::vector<X> x = As<X>(RandomFloats(kRows * length, 1));
  const std::vector<X> gate = As<X>(RandomFloats(kRows * stride, 2, 3.0f));
  const std::vector<float> weight = RandomFloats(length, 3);
  const DeviceArray<X> device_x(cuda, x), device_gate(cuda, gate);
  const DeviceArray<float> device_weight(cuda, weight);
  const DeviceArray<Y> device_y(cuda, x.size());
  FloatPtr y = device_y.data();
  if (in_place) y = device_x.data();
  ASSERT_TRUE(GateNorm(*cuda, {.x = device_x.data(),
                               .gate = device_gate.data(),
                               .weight = norms ? device_weight.data() : nullptr,
                               .y = y,
                               .x_stride = length,
                               .gate_stride = stride,
                               .y_stride = length,
                               .num_rows = kRows,
                               .groups = shape.groups,
                               .columns = shape.columns,
                               .order = order,
                               .has_group_weights = shape.has_group_weights,
                               .epsilon = static_cast<float>(kGateEpsilon)})
                  .ok());
  const std::vector<float> got = in_place ? As<float>(device_x.Get()) : As<float>(device_y.Get());
  const std::vector<float> wide_x = As<float>(x), wide_gate = As<float>(gate);
  const double unit = std::is_same_v<Y, float> ? 1e-6 : 0x1p-8 * 1.001;
  for (std::uint32_t group = 0; group < kRows * shape.groups; ++group) {
    const std::uint32_t m = group / shape.groups, at = group % shape.groups * shape.columns;
    const std::vector<double> want =
        ExactGroup(order, &wide_x[m * length + at], &wide_gate[m * stride + at],
                   &weight[shape.has_group_weights ? at : 0], shape.columns);
    for (std::uint32_t i = 0; i < shape.columns; ++i) {
      ASSERT_NEAR(got[m * length + at + i], want[i], unit * std::abs(want[i]) + 1e-30)
          << m << " " << at + i;
    }
  }
}

TEST(GateNormCudaTest, EveryOrderAndTypeEqualsDouble) {
  const EmulatedBackend cuda;
  for (const GateShapes& shape : kGateShapes) {
    for (const GateOrder order : kOrders) {
      for (const bool in_place : {false, true}) {
        CheckGateNorm<float, float>(cuda, shape, order, in_place);
        CheckGateNorm<BF16, BF16>(cuda, shape, order, in_place);
      }
      CheckGateNorm<float, BF16>(cuda, shape, order, false);
    }
  }
}

TEST(GateNormCudaTest, NamesTheTypesThatAreNotSupported) {
  const EmulatedBackend cuda;
  const DeviceArray<float> f32(cuda, 8);
  const DeviceArray<BF16> bf16(cuda, 8);
  GateNormParams params{.x = f32.data(),
                        .gate = bf16.data(),
                        .y = f32.data(),
                        .x_stride = 8,
                        .gate_stride = 8,
                        .y_stride = 8,
                        .num_rows = 1,
                        .groups = 1,
                        .columns = 8,
                        .order = GateOrder::kSigmoid};
  EXPECT_THAT(GateNorm(*cuda, params).message(),
              testing::HasSubstr("the gate must have the type of x"));
  params.gate = f32.data();
  params.y = {f32.data(), DType::kF16};
  EXPECT_TRUE(absl::IsInvalidArgument(GateNorm(*cuda, params)));
}

TEST(MultiplyCudaTest, RoundsOnceAndKeepsOtherColumns) {
  const EmulatedBackend cuda;
  constexpr std::uint32_t kRows = 3, kColumns = 300, kX = 301, kGate = 305;
  const std::vector<float> x = RandomFloats(kRows * kX, 1), gate = RandomFloats(kRows * kGate, 2);
  const DeviceArray<float> device_x(cuda, x), device_gate(cuda, gate);
  ASSERT_TRUE(Multiply(*cuda, {.x = device_x.data(),
                               .gate = device_gate.data(),
                               .x_stride = kX,
                               .gate_stride = kGate,
                               .num_rows = kRows,
                               .columns = kColumns})
                  .ok());
  const std::vector<float> got = device_x.Get();
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t i = 0; i < kX; ++i) {
      const float want = i < kColumns ? x[m * kX + i] * gate[m * kGate + i] : x[m * kX + i];
      ASSERT_EQ(got[m * kX + i], want) << m << " " << i;
    }
  }
}

}  // namespace
}  // namespace quire::kernels
