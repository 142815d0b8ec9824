// Measures row-wise ops (norms, gated products, RoPE and KV store, the sampler) and C, the copy
// bandwidth.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/elementwise/activation.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/sampling/device_sampler.h"
#include "tools/bench/bench_cuda.h"
#include "tools/bench/bench_cuda_sequences.h"

namespace quire::kernels {
namespace {

// Measures C by copying; the rate counts bytes read and bytes written. Argument: bytes.
absl::Status DeviceCopy(benchmark::State& state, Gpu& gpu) {
  const std::int64_t bytes = state.range(0);
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer from, Random<float>(gpu, bytes / 4));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer to, DeviceMemory(bytes));
  return Measure(state, gpu, {.bytes = 2.0 * static_cast<double>(bytes)},
                 [&](int) { return gpu.stream.Copy(to.data(), from.data(), bytes); });
}
BENCHMARK(Run<DeviceCopy>)->Name("BM_DeviceCopy")->Arg(std::int64_t{2} << 30)->UseManualTime();
BENCHMARK(Run<DeviceCopy>)->Name("BM_DeviceCopy/tiny")->Arg(1 << 12)->UseManualTime();

// Arguments: rows, hidden.
absl::Status RowNorm(benchmark::State& state, Gpu& gpu) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto hidden = static_cast<std::uint32_t>(state.range(1));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<float>(gpu, std::int64_t{rows} * hidden));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer weight, Random<float>(gpu, hidden));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer y, Random<BF16>(gpu, std::int64_t{rows} * hidden));
  return Measure(state, gpu, {.bytes = 6.0 * rows * hidden}, [&](int) {
    return RmsNorm(gpu.backend, {.x = static_cast<const float*>(x.data()),
                                 .weight = static_cast<const float*>(weight.data()),
                                 .y = static_cast<BF16*>(y.data()),
                                 .x_stride = hidden,
                                 .y_stride = hidden,
                                 .num_rows = rows,
                                 .hidden = hidden,
                                 .epsilon = 1e-5f});
  });
}
BENCHMARK(Run<RowNorm>)
    ->Name("BM_RmsNorm")
    ->Args({1, 4096})
    ->Args({8192, 4096})
    ->ArgNames({"rows", "hidden"})
    ->UseManualTime();
BENCHMARK(Run<RowNorm>)->Name("BM_RmsNorm/tiny")->Args({2, 64})->UseManualTime();

// Arguments: rows, heads of 128 columns. Normalizes bf16 values in place.
absl::Status HeadNorms(benchmark::State& state, Gpu& gpu) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto heads = static_cast<std::uint32_t>(state.range(1));
  constexpr std::uint32_t kHeadSize = 128;
  const std::int64_t width = std::int64_t{heads} * kHeadSize;
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, rows * width));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer weight, Random<float>(gpu, kHeadSize));
  auto* const values = static_cast<BF16*>(x.data());
  return Measure(state, gpu, {.bytes = 4.0 * static_cast<double>(rows * width)}, [&](int) {
    return RmsNorm(gpu.backend, {.x = values,
                                 .weight = static_cast<const float*>(weight.data()),
                                 .y = values,
                                 .x_stride = width,
                                 .y_stride = width,
                                 .num_rows = rows,
                                 .hidden = kHeadSize,
                                 .epsilon = 1e-6f,
                                 .groups = heads});
  });
}
BENCHMARK(Run<HeadNorms>)
    ->Name("BM_HeadNorms")
    ->Args({4096, 40})
    ->ArgNames({"rows", "heads"})
    ->UseManualTime();
BENCHMARK(Run<HeadNorms>)->Name("BM_HeadNorms/tiny")->Args({2, 3})->UseManualTime();

// Arguments: rows, intermediate size.
absl::Status SiluRows(benchmark::State& state, Gpu& gpu) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto columns = static_cast<std::uint32_t>(state.range(1));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, std::int64_t{2} * rows * columns));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer y, Random<BF16>(gpu, std::int64_t{rows} * columns));
  const auto* const gate = static_cast<const BF16*>(x.data());
  return Measure(state, gpu, {.bytes = 6.0 * rows * columns}, [&](int) {
    return GatedProduct(
        gpu.backend, {gate, gate + columns, static_cast<BF16*>(y.data()), 2 * std::int64_t{columns},
                      2 * std::int64_t{columns}, columns, rows, columns});
  });
}
BENCHMARK(Run<SiluRows>)
    ->Name("BM_SiluProduct")
    ->Args({1, 14336})
    ->Args({4096, 14336})
    ->ArgNames({"rows", "n"})
    ->UseManualTime();
BENCHMARK(Run<SiluRows>)->Name("BM_SiluProduct/tiny")->Args({2, 64})->UseManualTime();

// Sequences with one new token each and the heads of Llama 3.1 8B, with the inputs of QkvStore.
struct NewTokens {
  static constexpr std::uint32_t kHeads = 32, kKvHeads = 8, kHeadSize = 128;
  static constexpr std::int64_t kWidth = std::int64_t{kHeads + 2 * kKvHeads} * kHeadSize;

  static absl::StatusOr<NewTokens> Create(Gpu& gpu, std::uint32_t batch) {
    NewTokens tokens;
    QUIRE_ASSIGN_OR_RETURN(DeviceSequences sequences,
                           DeviceSequences::Create(gpu, DType::kBF16,
                                                   {.batch = batch,
                                                    .cached = 63,
                                                    .rows = 1,
                                                    .kv_heads = kKvHeads,
                                                    .head_size = kHeadSize,
                                                    .is_prompt = false}));
    tokens.sequences = std::make_unique<DeviceSequences>(std::move(sequences));
    QUIRE_ASSIGN_OR_RETURN(tokens.qkv, Random<BF16>(gpu, batch * kWidth));
    QUIRE_ASSIGN_OR_RETURN(tokens.angles, Random<float>(gpu, std::int64_t{batch} * kHeadSize));
    std::vector<std::int32_t> rows(batch);
    for (std::uint32_t b = 0; b < batch; ++b) rows[b] = static_cast<std::int32_t>(b);
    QUIRE_ASSIGN_OR_RETURN(tokens.token_rows, ToDevice(gpu, rows));
    QUIRE_ASSIGN_OR_RETURN(tokens.positions, ToDevice(gpu, std::vector<std::int32_t>(batch, 63)));
    tokens.keys = std::make_unique<AnyKvView>(KeyView(*tokens.sequences->collection, 0));
    tokens.values = std::make_unique<AnyKvView>(ValueView(*tokens.sequences->collection, 0));
    const auto* const cosines = static_cast<const float*>(tokens.angles.data());
    tokens.params = {.keys = tokens.keys.get(),
                     .values = tokens.values.get(),
                     .qkv = static_cast<BF16*>(tokens.qkv.data()),
                     .qkv_stride = kWidth,
                     .cosines = cosines,
                     .sines = cosines + std::int64_t{batch} * kHeadSize / 2,
                     .row_offsets = tokens.sequences->Lengths(false).row_offsets,
                     .token_rows = static_cast<const std::int32_t*>(tokens.token_rows.data()),
                     .positions = static_cast<const std::int32_t*>(tokens.positions.data()),
                     .batch_size = batch,
                     .num_rows = batch,
                     .num_heads = kHeads,
                     .rotary_size = kHeadSize};
    return tokens;
  }

  std::unique_ptr<DeviceSequences> sequences;
  DeviceBuffer qkv, angles, token_rows, positions;
  std::unique_ptr<AnyKvView> keys, values;
  QkvStoreParams params{};
};

// Argument: rows.
absl::Status StoreRows(benchmark::State& state, Gpu& gpu) {
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  QUIRE_ASSIGN_OR_RETURN(const NewTokens tokens, NewTokens::Create(gpu, batch));
  return Measure(state, gpu, {.bytes = 2.0 * 2 * static_cast<double>(batch * NewTokens::kWidth)},
                 [&](int) { return QkvStore(gpu.backend, tokens.params); });
}
BENCHMARK(Run<StoreRows>)->Name("BM_QkvStore")->Arg(1)->Arg(4096)->ArgName("rows")->UseManualTime();
BENCHMARK(Run<StoreRows>)->Name("BM_QkvStore/tiny")->Arg(2)->UseManualTime();

// Arguments: rows, K. Includes the QKV projection before the store. Successive launches
// use different weights.
absl::Status ProjectAndStore(benchmark::State& state, Gpu& gpu) {
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  const auto k = static_cast<std::uint32_t>(state.range(1));
  constexpr auto kWidth = static_cast<std::uint32_t>(NewTokens::kWidth);
  QUIRE_ASSIGN_OR_RETURN(const NewTokens tokens, NewTokens::Create(gpu, batch));
  const std::int64_t bytes = std::int64_t{kWidth} * k * 2;
  const auto host = RandomValues<BF16>(bytes / 2, 0.05f);
  std::vector<PackedLinear> weights;
  while (weights.size() < CopiesBeyondCache(gpu, bytes)) {
    QUIRE_ASSIGN_OR_RETURN(PackedLinear packed,
                           PackLinearWeight(gpu.backend, host.data(), DType::kBF16, kWidth, k));
    weights.push_back(std::move(packed));
  }
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, std::int64_t{batch} * k));
  return Measure(state, gpu,
                 {.bytes = static_cast<double>(bytes), .flops = 2.0 * kWidth * k * batch},
                 [&](int i) {
                   return Linear(gpu.backend,
                                 {.x = static_cast<const BF16*>(x.data()),
                                  .weight = &weights[static_cast<std::size_t>(i) % weights.size()],
                                  .y = tokens.params.qkv,
                                  .x_stride = k,
                                  .y_stride = tokens.params.qkv_stride,
                                  .num_rows = tokens.params.num_rows,
                                  .store = &tokens.params});
                 });
}
BENCHMARK(Run<ProjectAndStore>)
    ->Name("BM_QkvLinear")
    ->Args({1, 4096})
    ->Args({8, 4096})
    ->ArgNames({"rows", "k"})
    ->UseManualTime();
BENCHMARK(Run<ProjectAndStore>)->Name("BM_QkvLinear/tiny")->Args({2, 64})->UseManualTime();

// Arguments: rows, vocabulary, top_k, top_p and temperature in percent.
absl::Status SampleRows(benchmark::State& state, Gpu& gpu) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto vocab = static_cast<std::uint32_t>(state.range(1));
  QUIRE_ASSIGN_OR_RETURN(
      const auto sampler,
      DeviceSampler::Create(
          gpu.backend,
          {.max_samples = rows, .max_prompt_logprobs = 1, .vocab = vocab, .max_logprobs = 0}, {},
          vocab));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer logits,
                         Random<float>(gpu, std::int64_t{rows} * vocab, 3.0f));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer tokens, DeviceMemory(std::int64_t{rows} * 4));
  std::vector<SamplingRow> draws(rows);
  for (std::uint32_t i = 0; i < rows; ++i) {
    draws[i] = {.logits = static_cast<const float*>(logits.data()) + std::int64_t{i} * vocab,
                .temperature = static_cast<float>(state.range(4)) / 100,
                .top_p = static_cast<float>(state.range(3)) / 100,
                .top_k = static_cast<std::int32_t>(state.range(2)),
                .seed = i,
                .text_vocab = vocab};
  }
  return Measure(state, gpu, {.bytes = 4.0 * rows * vocab}, [&](int) {
    sampler->Reset(0);
    return sampler->Sample(draws, static_cast<std::int32_t*>(tokens.data()), 0);
  });
}
BENCHMARK(Run<SampleRows>)
    ->Name("BM_Sample")
    ->ArgNames({"rows", "vocab", "k", "p", "t"})
    ->Args({1, 128256, 0, 100, 0})
    ->Args({1, 128256, 0, 100, 70})
    ->Args({1, 128256, 40, 95, 70})
    ->Args({64, 128256, 0, 100, 70})
    ->Args({64, 128256, 40, 95, 70})
    ->UseManualTime();
BENCHMARK(Run<SampleRows>)->Name("BM_Sample/tiny")->Args({2, 500, 5, 95, 70})->UseManualTime();

}  // namespace
}  // namespace quire::kernels
