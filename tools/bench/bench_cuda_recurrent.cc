// Measures the ops of recurrent layers, for decode steps of several sequences and for a prompt of
// one sequence. The shapes are Qwen3-Next (32 heads, states of 128 x 128, 8192 channels) and
// Mamba-2 (128 heads, states of 128 x 64).

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/recurrent/causal_conv.h"
#include "kernels/recurrent/gate_norm.h"
#include "kernels/recurrent/prepare_scan.h"
#include "kernels/recurrent/state_rows.h"
#include "kernels/recurrent/state_scan.h"
#include "tools/bench/bench_cuda.h"

namespace quire::kernels {
namespace {

struct LayerShape {
  std::uint32_t heads, key_heads, key_size, value_size;
  bool delta;

  std::int64_t keys() const { return std::int64_t{key_heads} * key_size; }
  std::int64_t values() const { return std::int64_t{heads} * value_size; }
  std::int64_t row() const { return 2 * keys() + values(); }
  std::int64_t state_bytes() const { return values() * key_size * 4; }
};
constexpr LayerShape kDeltaLayer{32, 16, 128, 128, true};
constexpr LayerShape kSsdLayer{128, 8, 128, 64, false};
constexpr LayerShape kTinyDeltaLayer{2, 1, 16, 16, true};
constexpr LayerShape kTinySsdLayer{2, 1, 16, 16, false};

// Sequences with `tokens` new tokens each, which follow one cached token. Successive launches use
// the states of different layers, so that states are read from device memory as in a model.
struct DeviceStep {
  static absl::StatusOr<DeviceStep> Create(const Gpu& gpu, std::uint32_t batch,
                                           std::uint32_t tokens, std::int64_t state_bytes) {
    DeviceStep step;
    step.layers = static_cast<std::int64_t>(CopiesBeyondCache(gpu, batch * state_bytes));
    step.state_bytes = state_bytes;
    QUIRE_ASSIGN_OR_RETURN(step.states, DeviceMemory((batch + 1) * step.layers * state_bytes));
    std::vector<std::uint32_t> slots(batch), offsets(batch + 1), live(batch + 1);
    std::iota(slots.begin(), slots.end(), 1u);
    for (std::uint32_t b = 0; b <= batch; ++b) offsets[b] = b * tokens;
    live[0] = batch;
    std::iota(live.begin() + 1, live.end(), 0u);
    std::vector<std::int32_t> positions(std::size_t{batch} * tokens);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      positions[i] = 1 + static_cast<std::int32_t>(i % tokens);
    }
    QUIRE_ASSIGN_OR_RETURN(step.slots, ToDevice(gpu, slots));
    QUIRE_ASSIGN_OR_RETURN(step.zeros, ToDevice(gpu, std::vector<std::uint32_t>(batch)));
    QUIRE_ASSIGN_OR_RETURN(step.offsets, ToDevice(gpu, offsets));
    QUIRE_ASSIGN_OR_RETURN(step.positions, ToDevice(gpu, positions));
    QUIRE_ASSIGN_OR_RETURN(step.live, ToDevice(gpu, live));
    step.rows = {.states = nullptr,
                 .slot_stride = step.layers * state_bytes,
                 .slots = {.state_in = Words(step.slots),
                           .state_out = Words(step.slots),
                           .snapshot_at = Words(step.zeros),
                           .snapshot_slot = Words(step.zeros),
                           .max_rows = batch},
                 .row_offsets = Words(step.offsets),
                 .positions = static_cast<const std::int32_t*>(step.positions.data()),
                 .batch_size = batch,
                 .num_tokens = batch * tokens,
                 .live_rows = Words(step.live)};
    return step;
  }

  StateRows RowsOf(int launch) const {
    StateRows layer = rows;
    layer.states = static_cast<std::byte*>(states.data()) + launch % layers * state_bytes;
    return layer;
  }
  double moved_bytes() const { return 2.0 * rows.batch_size * static_cast<double>(state_bytes); }

  static const std::uint32_t* Words(const DeviceBuffer& buffer) {
    return static_cast<const std::uint32_t*>(buffer.data());
  }

  DeviceBuffer states, slots, zeros, offsets, positions, live;
  StateRows rows;
  std::int64_t layers = 0;
  std::int64_t state_bytes = 0;
};

float* Floats(const DeviceBuffer& buffer) {
  return static_cast<float*>(buffer.data());
}

// Arguments: rows, tokens of a row. Inputs are small and all rates have the same sign, so that
// states stay finite.
template <const LayerShape& kShape>
absl::Status Scan(benchmark::State& state, Gpu& gpu) {
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  const auto tokens = static_cast<std::uint32_t>(state.range(1));
  const std::int64_t count = std::int64_t{batch} * tokens;
  QUIRE_ASSIGN_OR_RETURN(const DeviceStep step,
                         DeviceStep::Create(gpu, batch, tokens, kShape.state_bytes()));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer qkv, Random<float>(gpu, count * kShape.row(), 0.05f));
  const std::vector<float> factors(static_cast<std::size_t>(count * kShape.heads), 0.9f);
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer decay, ToDevice(gpu, factors));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer rate, ToDevice(gpu, factors));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer out, DeviceMemory(count * kShape.values() * 4));
  const double elements =
      static_cast<double>(kShape.state_bytes()) / 4 * static_cast<double>(count);
  return Measure(state, gpu,
                 {.bytes = step.moved_bytes(), .flops = elements * (kShape.delta ? 7 : 5)},
                 [&](int i) {
                   return StateScan(gpu.backend, {.rows = step.RowsOf(i),
                                                  .q = Floats(qkv),
                                                  .k = Floats(qkv) + kShape.keys(),
                                                  .v = Floats(qkv) + 2 * kShape.keys(),
                                                  .decay = Floats(decay),
                                                  .rate = Floats(rate),
                                                  .out = Floats(out),
                                                  .qkv_stride = kShape.row(),
                                                  .heads = kShape.heads,
                                                  .key_heads = kShape.key_heads,
                                                  .key_size = kShape.key_size,
                                                  .value_size = kShape.value_size,
                                                  .delta = kShape.delta});
                 });
}
void Steps(Benchmark* bench) {
  bench->ArgNames({"rows", "tokens"})->UseManualTime();
  bench->Args({1, 1})->Args({32, 1})->Args({1, 2048});
}
BENCHMARK(Run<Scan<kDeltaLayer>>)->Name("BM_DeltaScan")->Apply(Steps);
BENCHMARK(Run<Scan<kSsdLayer>>)->Name("BM_SsdScan")->Apply(Steps);
BENCHMARK(Run<Scan<kTinyDeltaLayer>>)->Name("BM_DeltaScan/tiny")->Args({2, 3})->UseManualTime();
BENCHMARK(Run<Scan<kTinySsdLayer>>)->Name("BM_SsdScan/tiny")->Args({2, 3})->UseManualTime();

// Arguments: rows, tokens of a row, channels. The convolution has four taps.
absl::Status Convolve(benchmark::State& state, Gpu& gpu) {
  constexpr std::uint32_t kWidth = 4;
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  const auto tokens = static_cast<std::uint32_t>(state.range(1));
  const auto channels = static_cast<std::uint32_t>(state.range(2));
  const std::int64_t count = std::int64_t{batch} * tokens * channels;
  QUIRE_ASSIGN_OR_RETURN(
      const DeviceStep step,
      DeviceStep::Create(gpu, batch, tokens, std::int64_t{kWidth - 1} * channels * 4));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<float>(gpu, count));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer weight,
                         Random<float>(gpu, std::int64_t{channels} * kWidth, 0.3f));
  return Measure(state, gpu, {.bytes = 8.0 * static_cast<double>(count) + step.moved_bytes()},
                 [&](int i) {
                   return CausalConv(gpu.backend, {.rows = step.RowsOf(i),
                                                   .x = Floats(x),
                                                   .weight = Floats(weight),
                                                   .x_stride = channels,
                                                   .channels = channels,
                                                   .width = kWidth});
                 });
}
BENCHMARK(Run<Convolve>)
    ->Name("BM_CausalConv")
    ->ArgNames({"rows", "tokens", "channels"})
    ->Args({1, 1, 8192})
    ->Args({32, 1, 8192})
    ->Args({1, 2048, 8192})
    ->UseManualTime();
BENCHMARK(Run<Convolve>)->Name("BM_CausalConv/tiny")->Args({2, 3, 40})->UseManualTime();

// Arguments: tokens, heads. There are half as many key heads, with 128 columns each.
absl::Status Prepare(benchmark::State& state, Gpu& gpu) {
  constexpr std::uint32_t kKeySize = 128;
  const auto tokens = static_cast<std::uint32_t>(state.range(0));
  const auto heads = static_cast<std::uint32_t>(state.range(1));
  const std::uint32_t key_heads = heads / 2;
  const std::int64_t keys = std::int64_t{key_heads} * kKeySize;
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer qk, Random<float>(gpu, 2 * keys * tokens));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer rates,
                         Random<float>(gpu, 2 * std::int64_t{heads} * tokens));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer constants, Random<float>(gpu, 2 * heads));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer out, DeviceMemory(8 * std::int64_t{heads} * tokens));
  return Measure(
      state, gpu, {.bytes = 16.0 * static_cast<double>((keys + heads) * tokens)}, [&](int) {
        return PrepareScan(gpu.backend, {.q = Floats(qk),
                                         .k = Floats(qk) + keys,
                                         .a = Floats(rates),
                                         .b = Floats(rates) + heads,
                                         .a_log = Floats(constants),
                                         .dt_bias = Floats(constants) + heads,
                                         .decay = Floats(out),
                                         .rate = Floats(out) + std::int64_t{heads} * tokens,
                                         .qk_stride = 2 * keys,
                                         .rates_stride = 2 * std::int64_t{heads},
                                         .num_rows = tokens,
                                         .heads = heads,
                                         .key_heads = key_heads,
                                         .key_size = kKeySize,
                                         .channels = heads,
                                         .qk_l2_eps = 1e-6f});
      });
}
BENCHMARK(Run<Prepare>)
    ->Name("BM_PrepareScan")
    ->ArgNames({"tokens", "heads"})
    ->Args({1, 32})
    ->Args({2048, 32})
    ->UseManualTime();
BENCHMARK(Run<Prepare>)->Name("BM_PrepareScan/tiny")->Args({2, 2})->UseManualTime();

// Arguments: tokens, groups, columns of a group. Inputs are f32 and outputs bf16.
absl::Status Gate(benchmark::State& state, Gpu& gpu) {
  const auto tokens = static_cast<std::uint32_t>(state.range(0));
  const auto groups = static_cast<std::uint32_t>(state.range(1));
  const auto columns = static_cast<std::uint32_t>(state.range(2));
  const std::int64_t length = std::int64_t{groups} * columns;
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<float>(gpu, length * tokens));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer gate, Random<float>(gpu, length * tokens));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer weight, Random<float>(gpu, columns));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer y, DeviceMemory(length * tokens * 2));
  return Measure(state, gpu, {.bytes = 10.0 * static_cast<double>(length * tokens)}, [&](int) {
    return GateNorm(gpu.backend, {.x = Floats(x),
                                  .gate = Floats(gate),
                                  .weight = Floats(weight),
                                  .y = static_cast<BF16*>(y.data()),
                                  .x_stride = length,
                                  .gate_stride = length,
                                  .y_stride = length,
                                  .num_rows = tokens,
                                  .groups = groups,
                                  .columns = columns,
                                  .order = GateOrder::kNormThenSilu,
                                  .epsilon = 1e-6f});
  });
}
BENCHMARK(Run<Gate>)
    ->Name("BM_GateNorm")
    ->ArgNames({"tokens", "groups", "columns"})
    ->Args({1, 32, 128})
    ->Args({2048, 32, 128})
    ->Args({2048, 1, 8192})
    ->UseManualTime();
BENCHMARK(Run<Gate>)->Name("BM_GateNorm/tiny")->Args({2, 3, 40})->UseManualTime();

}  // namespace
}  // namespace quire::kernels
