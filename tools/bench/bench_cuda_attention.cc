// Measures attention over KV pages without the planner: prefill and decode steps, pages of one-byte
// elements, windows, soft caps and sinks ("rules"), and MLA cache rows. Also measures the planner.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/kv_tensor_maps.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "tools/bench/bench_cuda.h"
#include "tools/bench/bench_cuda_sequences.h"

namespace quire::kernels {
namespace {

// One step of sequences of equal length over one layer. It is a decode step if each sequence has
// one row, otherwise a prefill.
struct AttentionCase {
  std::uint32_t batch = 1, cached = 0, rows = 1;
  std::uint32_t heads = 32, kv_heads = 8, head_size = 128;
  DType pages = DType::kBF16;
  // True to use tensor maps, so that the kernels for compute capability 9.0 run.
  bool has_maps = false;
  std::uint32_t window = 0;
  float softcap = 0;
  bool has_sinks = false;
  std::uint32_t value_columns = 0;  // for MLA rows, which store K and V together; 0: no MLA

  bool is_prompt() const { return rows > 1; }
  // Average number of keys that a row attends to.
  double keys() const {
    double sum = 0;
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::uint32_t all = cached + row + 1;
      sum += window == 0 ? all : std::min(all, window);
    }
    return sum / rows;
  }
  Work work() const {
    const double tokens =
        window == 0 ? cached + rows : std::min<double>(cached + rows, 1.0 * rows + window);
    const double row_bytes = value_columns != 0
                                 ? 2.0 * head_size
                                 : 2.0 * head_size * static_cast<double>(DTypeSize(pages));
    const double columns = value_columns != 0 ? head_size + value_columns : 2.0 * head_size;
    return {.bytes = batch * tokens * kv_heads * row_bytes,
            .flops = 2.0 * batch * rows * keys() * heads * columns};
  }
};

absl::Status MeasureAttention(benchmark::State& state, Gpu& gpu, const AttentionCase& c) {
  QUIRE_ASSIGN_OR_RETURN(const DeviceSequences sequences,
                         DeviceSequences::Create(gpu, c.pages,
                                                 {.batch = c.batch,
                                                  .cached = c.cached,
                                                  .rows = c.rows,
                                                  .kv_heads = c.kv_heads,
                                                  .head_size = c.head_size,
                                                  .is_prompt = c.is_prompt()}));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<AttentionPlan> plan,
                         AttentionPlan::Create(gpu.backend, {.max_sequences = c.batch,
                                                             .max_step_tokens = c.batch * c.rows,
                                                             .max_length = c.cached + c.rows,
                                                             .num_heads = c.heads,
                                                             .num_kv_heads = c.kv_heads,
                                                             .head_size = c.head_size,
                                                             .window = c.window}));
  const AttentionPlanParams lengths = sequences.Lengths(c.is_prompt());
  const AnyKvView k = KeyView(*sequences.collection, 0);
  const AnyKvView v = c.value_columns != 0 ? k : ValueView(*sequences.collection, 0);
  // The MLA kernel is chosen if keys and values are the same view.
  const AnyKvView& values = c.value_columns != 0 ? k : v;
  std::unique_ptr<cuda::KvTensorMaps> maps;
  if (c.has_maps) {
    QUIRE_ASSIGN_OR_RETURN(maps,
                           cuda::KvTensorMaps::Create(gpu.stream.device(), *sequences.collection));
    if (maps == nullptr) return absl::FailedPreconditionError("no tensor maps on this device");
  }
  const std::int64_t width = std::int64_t{c.heads} * c.head_size;
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer q,
                         Random<BF16>(gpu, std::int64_t{c.batch} * c.rows * width));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer out,
                         Random<BF16>(gpu, std::int64_t{c.batch} * c.rows * width));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer sinks, Random<float>(gpu, c.heads));
  // All layers of a step use one plan, so planning is not part of the measured time.
  QUIRE_RETURN_IF_ERROR(PlanAttention(gpu.backend, lengths, plan.get()));
  return Measure(state, gpu, c.work(), [&](int) -> absl::Status {
    return PagedAttention(gpu.backend,
                          {.keys = &k,
                           .values = &values,
                           .q = static_cast<const BF16*>(q.data()),
                           .out = static_cast<BF16*>(out.data()),
                           .row_offsets = lengths.row_offsets,
                           .q_stride = width,
                           .out_stride = width,
                           .batch_size = c.batch,
                           .num_heads = c.heads,
                           .scale = 0.088f,
                           .plan = plan.get(),
                           .maps = maps.get(),
                           .window = c.window,
                           .softcap = c.softcap,
                           .sinks = c.has_sinks ? static_cast<const float*>(sinks.data()) : nullptr,
                           .value_columns = c.value_columns});
  });
}

std::uint32_t Argument(const benchmark::State& state, std::size_t i) {
  return static_cast<std::uint32_t>(state.range(i));
}

// Arguments: sequences, cached tokens, rows per sequence, heads, KV heads, head size, maps. bf16.
absl::Status Attention(benchmark::State& state, Gpu& gpu) {
  return MeasureAttention(state, gpu,
                          {.batch = Argument(state, 0),
                           .cached = Argument(state, 1),
                           .rows = Argument(state, 2),
                           .heads = Argument(state, 3),
                           .kv_heads = Argument(state, 4),
                           .head_size = Argument(state, 5),
                           .has_maps = state.range(6) != 0});
}
void AttentionShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"batch", "cached", "rows", "heads", "kv_heads", "d", "maps"})
      ->UseManualTime();
  for (const int maps : {0, 1}) {
    benchmark->Args({1, 1024, 1, 32, 8, 128, maps})
        ->Args({32, 1023, 1, 32, 8, 128, maps})
        ->Args({32, 4096, 1, 32, 8, 128, maps})
        ->Args({64, 8192, 1, 32, 8, 128, maps})
        ->Args({32, 4096, 1, 32, 32, 64, maps})
        ->Args({1, 0, 2048, 32, 8, 128, maps})
        ->Args({1, 0, 8192, 32, 8, 128, maps})
        ->Args({1, 0, 8192, 32, 8, 64, maps})
        ->Args({1, 24576, 8192, 32, 8, 128, maps});
  }
  // Gemma's head sizes.
  benchmark->Args({32, 4096, 1, 8, 4, 256, 0})->Args({1, 0, 8192, 8, 4, 256, 0});
}
void TinyAttention(Benchmark* benchmark) {
  benchmark->UseManualTime();
  for (const int maps : {0, 1}) {
    benchmark->Args({2, 70, 1, 4, 2, 64, maps})->Args({1, 3, 70, 4, 2, 64, maps});
  }
  benchmark->Args({2, 70, 1, 4, 2, 256, 0})->Args({1, 3, 70, 4, 2, 256, 0});
  benchmark->Args({1, 9, 1, 4, 2, 272, 0});  // the scalar kernel
}
BENCHMARK(Run<Attention>)->Name("BM_Attention")->Apply(AttentionShapes);
BENCHMARK(Run<Attention>)->Name("BM_Attention/tiny")->Apply(TinyAttention);

// Arguments: the DType of the pages as a number, sequences, cached tokens, rows per sequence, maps.
// 32 heads over 8 KV heads of 128 columns.
absl::Status PagesAttention(benchmark::State& state, Gpu& gpu) {
  const std::int64_t type = state.range(0);
  return MeasureAttention(state, gpu,
                          {.batch = Argument(state, 1),
                           .cached = Argument(state, 2),
                           .rows = Argument(state, 3),
                           .pages = static_cast<DType>(type),
                           .has_maps = state.range(4) != 0});
}
constexpr auto kBF16Pages = static_cast<std::int64_t>(DType::kBF16);
constexpr auto kInt8Pages = static_cast<std::int64_t>(DType::kI8);
constexpr auto kFp8Pages = static_cast<std::int64_t>(DType::kF8E4M3);
void PagesShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"type", "batch", "cached", "rows", "maps"})->UseManualTime();
  for (const std::int64_t type : {kBF16Pages, kInt8Pages, kFp8Pages}) {
    benchmark->Args({type, 64, 8192, 1, 0})
        ->Args({type, 1, 0, 8192, 0})
        ->Args({type, 1, 0, 8192, 1});
  }
}
BENCHMARK(Run<PagesAttention>)->Name("BM_PagesAttention")->Apply(PagesShapes);
BENCHMARK(Run<PagesAttention>)
    ->Name("BM_PagesAttention/tiny")
    ->Args({kInt8Pages, 2, 70, 1, 0})
    ->Args({kFp8Pages, 1, 3, 70, 0})
    ->Args({kInt8Pages, 1, 3, 70, 1})
    ->Args({kFp8Pages, 1, 3, 70, 1})
    ->UseManualTime();

// Arguments: window (0: none), soft cap (0: none), whether there are sinks, sequences, cached
// tokens, rows per sequence, maps. 32 heads over 8 KV heads of 128 columns, bf16.
absl::Status RulesAttention(benchmark::State& state, Gpu& gpu) {
  return MeasureAttention(state, gpu,
                          {.batch = Argument(state, 3),
                           .cached = Argument(state, 4),
                           .rows = Argument(state, 5),
                           .has_maps = state.range(6) != 0,
                           .window = Argument(state, 0),
                           .softcap = static_cast<float>(state.range(1)),
                           .has_sinks = state.range(2) != 0});
}
void RulesShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"window", "cap", "sinks", "batch", "cached", "rows", "maps"})
      ->UseManualTime();
  // This window is longer than every context here, so that the work is the same as without a
  // window.
  constexpr std::int64_t kLong = 1 << 20;
  const auto each = [benchmark](std::int64_t batch, std::int64_t cached, std::int64_t rows,
                                std::int64_t maps) {
    benchmark->Args({0, 0, 0, batch, cached, rows, maps})
        ->Args({kLong, 0, 0, batch, cached, rows, maps})
        ->Args({0, 50, 0, batch, cached, rows, maps})
        ->Args({0, 0, 1, batch, cached, rows, maps});
  };
  each(32, 4096, 1, 0);
  each(1, 0, 8192, 0);
  each(1, 0, 8192, 1);
  benchmark->Args({1024, 0, 0, 32, 32768, 1, 0})->Args({4096, 0, 0, 1, 0, 8192, 1});
}
BENCHMARK(Run<RulesAttention>)->Name("BM_RulesAttention")->Apply(RulesShapes);
BENCHMARK(Run<RulesAttention>)
    ->Name("BM_RulesAttention/tiny")
    ->Args({40, 50, 1, 2, 70, 1, 0})
    ->Args({40, 50, 1, 1, 3, 70, 0})
    ->Args({40, 50, 1, 1, 3, 70, 1})
    ->UseManualTime();

// Arguments: heads, sequences, cached tokens, rows per sequence, maps. Rank 512 and 64 RoPE
// columns.
absl::Status LatentAttention(benchmark::State& state, Gpu& gpu) {
  return MeasureAttention(state, gpu,
                          {.batch = Argument(state, 1),
                           .cached = Argument(state, 2),
                           .rows = Argument(state, 3),
                           .heads = Argument(state, 0),
                           .kv_heads = 1,
                           .head_size = 576,
                           .has_maps = state.range(4) != 0,
                           .value_columns = 512});
}
void LatentShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"heads", "batch", "cached", "rows", "maps"})->UseManualTime();
  for (const int maps : {0, 1}) {
    benchmark->Args({16, 64, 8192, 1, maps})
        ->Args({128, 64, 8192, 1, maps})
        ->Args({16, 1, 32768, 1, maps})
        ->Args({16, 1, 0, 4096, maps});
  }
}
BENCHMARK(Run<LatentAttention>)->Name("BM_LatentAttention")->Apply(LatentShapes);
BENCHMARK(Run<LatentAttention>)
    ->Name("BM_LatentAttention/tiny")
    ->Args({4, 2, 40, 1, 0})
    ->Args({4, 2, 40, 1, 1})
    ->UseManualTime();

// Argument: sequences of a decode step with 4096 tokens each.
absl::Status Planner(benchmark::State& state, Gpu& gpu) {
  const std::uint32_t batch = Argument(state, 0);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<AttentionPlan> plan,
                         AttentionPlan::Create(gpu.backend, {.max_sequences = batch,
                                                             .max_step_tokens = batch,
                                                             .max_length = 4096,
                                                             .num_heads = 32,
                                                             .num_kv_heads = 8,
                                                             .head_size = 128}));
  std::vector<std::uint32_t> offsets(batch + 1), live = {batch};
  for (std::uint32_t b = 0; b <= batch; ++b) offsets[b] = b;
  live.insert(live.end(), offsets.begin(), offsets.end() - 1);
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer row_offsets, ToDevice(gpu, offsets));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer lengths,
                         ToDevice(gpu, std::vector<std::uint32_t>(batch, 4095)));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer prefill_tokens,
                         ToDevice(gpu, std::vector<std::uint32_t>(batch, 0)));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer live_sequences, ToDevice(gpu, live));
  return Measure(state, gpu, {}, [&](int) {
    return PlanAttention(
        gpu.backend,
        {.row_offsets = static_cast<const std::uint32_t*>(row_offsets.data()),
         .cache_lengths = static_cast<const std::uint32_t*>(lengths.data()),
         .prefill_tokens = static_cast<const std::uint32_t*>(prefill_tokens.data()),
         .live_sequences = static_cast<const std::uint32_t*>(live_sequences.data()),
         .batch_size = batch,
         .has_prompt_rows = false,
         .has_generated_rows = true},
        plan.get());
  });
}
BENCHMARK(Run<Planner>)
    ->Name("BM_PlanAttention")
    ->Arg(1)
    ->Arg(64)
    ->Arg(512)
    ->Arg(4096)
    ->ArgName("batch")
    ->UseManualTime();
BENCHMARK(Run<Planner>)->Name("BM_PlanAttention/tiny")->Arg(3)->UseManualTime();

}  // namespace
}  // namespace quire::kernels
