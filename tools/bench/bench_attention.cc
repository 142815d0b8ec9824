// Measures attention over KV pages on the CPU, and the roofline probes of roofline_probes.cc in the
// same process:
//
//   bench_kernels --benchmark_filter='RooflineProbes|Attention'
//
// bytes_per_second counts K and V of the cached tokens once, including scales. FLOP/s counts a
// multiply-add as two.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_store/kv_store.h"
#include "kernels/sparse/index_score.h"
#include "kernels/sparse/select_topk.h"
#include "kernels/sparse/sparse_attention.h"

namespace quire::kernels {
namespace {

struct Shape {
  DType dtype = DType::kBF16;
  std::uint32_t heads = 16;
  std::uint32_t kv_heads = 4;
  std::uint32_t head_size = 64;
  std::uint32_t batch = 1;       // sequences
  std::uint32_t cached = 0;      // cached tokens of a sequence
  std::uint32_t rows = 1;        // new rows of a sequence
  std::uint32_t page_size = 64;  // in tokens
  bool shuffled = true;          // the pages of a sequence are in random order
  std::uint32_t window = 0;      // 0: none
  std::uint32_t layers = 1;
  std::uint32_t value_columns = 0;  // for MLA rows; 0: no MLA
};

// Layers with cached tokens, and a step that appends rows to them.
class Step {
 public:
  Step(const Backend& backend, const Shape& shape) : backend_(backend), shape_(shape) {
    const std::uint32_t keys = shape.cached + shape.rows;
    const std::uint32_t pages = (keys + shape.page_size - 1) / shape.page_size;
    const std::uint32_t stride = (pages + 7) / 8 * 8 + 16;
    geometry_.num_blocks = shape.batch * pages + 1;
    geometry_.num_layers = shape.layers;
    geometry_.page_size = shape.page_size;
    geometry_.num_heads = shape.kv_heads;
    geometry_.head_size = shape.head_size;
    geometry_.dtype = shape.dtype;
    if (DTypeSize(shape.dtype) == 1) {
      geometry_.scale_dtype = DType::kF32;
      geometry_.granularity = shape.head_size;
    }
    blocks_ =
        *DeviceBuffer::Allocate(MemoryKind::kHost, geometry_.num_blocks * geometry_.page_bytes());
    table_ = *DeviceBuffer::Allocate(MemoryKind::kHost, std::int64_t{shape.batch} * stride * 4);
    std::vector<std::uint32_t> ids(shape.batch * pages);
    std::iota(ids.begin(), ids.end(), 1u);
    if (shape.shuffled) std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (std::uint32_t i = 0; i < ids.size(); ++i) {
      static_cast<std::uint32_t*>(table_.data())[i / pages * stride + i % pages] = ids[i];
    }
    lengths_.assign(shape.batch, 0);
    const std::int64_t scale_bytes = geometry_.num_blocks * std::int64_t{2} * shape.layers *
                                     shape.page_size * shape.kv_heads * 4;
    scales_ = *DeviceBuffer::Allocate(MemoryKind::kHost, scale_bytes);
    collection_ = *MakeKvCollection(geometry_, blocks_.data(),
                                    {static_cast<const std::uint32_t*>(table_.data()),
                                     lengths_.data(), stride, shape.batch, keys, keys, keys},
                                    geometry_.granularity > 1 ? scales_.data() : nullptr);
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      keys_.push_back(KeyView(*collection_, layer));
      values_.push_back(ValueView(*collection_, layer));
    }
    Fill(keys);
    for (std::uint32_t b = 0; b <= shape.batch; ++b) offsets_.push_back(b * shape.rows);
    q_ = Random(std::size_t{shape.batch} * shape.rows * shape.heads * shape.head_size, 2);
    out_.resize(q_.size());
  }

  // Computes one layer; the layers are used in rotation.
  void Run() {
    const std::size_t layer = next_layer_++ % keys_.size();
    const std::int64_t stride = std::int64_t{shape_.heads} * shape_.head_size;
    QUIRE_CHECK(PagedAttention(backend_, {.keys = &keys_[layer],
                                          .values = &values_[layer],
                                          .q = q_.data(),
                                          .out = out_.data(),
                                          .row_offsets = offsets_.data(),
                                          .q_stride = stride,
                                          .out_stride = stride,
                                          .batch_size = shape_.batch,
                                          .num_heads = shape_.heads,
                                          .scale = 0.125f,
                                          .window = shape_.window,
                                          .value_columns = shape_.value_columns})
                    .ok());
  }

  const AnyKvView& view() const { return keys_[0]; }
  const std::vector<float>& q() const { return q_; }
  float* out() { return out_.data(); }
  const Shape& shape() const { return shape_; }

  double bytes() const {
    const double per_head = static_cast<double>(shape_.head_size * DTypeSize(shape_.dtype)) +
                            (geometry_.granularity > 1 ? 4.0 : 0.0);
    return 2.0 * shape_.batch * (shape_.cached + shape_.rows) * shape_.kv_heads * per_head;
  }
  double flops() const {
    const double seen = shape_.rows * (shape_.cached + (shape_.rows + 1) / 2.0);
    return 4.0 * shape_.batch * seen * shape_.heads * shape_.head_size;
  }

 private:
  static std::vector<float> Random(std::size_t count, std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(generator);
    return values;
  }

  // Stores all tokens of all sequences, with one call of KvStore per layer.
  void Fill(std::uint32_t keys) {
    const std::int64_t columns = std::int64_t{shape_.kv_heads} * shape_.head_size;
    const std::size_t rows = std::size_t{shape_.batch} * keys;
    const std::vector<float> values = Random(rows * static_cast<std::size_t>(columns), 3);
    std::vector<std::uint32_t> offsets;
    for (std::uint32_t b = 0; b <= shape_.batch; ++b) offsets.push_back(b * keys);
    for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
      QUIRE_CHECK(KvStore(backend_, {.keys = &keys_[layer],
                                     .values = &values_[layer],
                                     .k = values.data(),
                                     .v = values.data(),
                                     .row_offsets = offsets.data(),
                                     .k_stride = columns,
                                     .v_stride = columns,
                                     .batch_size = shape_.batch})
                      .ok());
    }
    std::fill(lengths_.begin(), lengths_.end(), shape_.cached);
  }

  const Backend& backend_;
  const Shape shape_;
  cache::KvGeometry geometry_;
  DeviceBuffer blocks_, table_, scales_;
  std::vector<std::uint32_t> lengths_, offsets_;
  std::optional<AnyKvCollection> collection_;
  std::vector<AnyKvView> keys_, values_;  // one per layer
  std::size_t next_layer_ = 0;
  std::vector<float> q_, out_;
};

// The top-k selection of sparse attention for one decode token that sees `num_keys` keys.
class Selection {
 public:
  Selection(std::uint32_t num_keys, std::uint32_t topk)
      : topk_(topk), position_(static_cast<std::int32_t>(num_keys) - 1), selected_(topk) {
    scores_.resize(static_cast<std::size_t>(ScoreStride(num_keys)));
    weights_.assign(64, 0.5f);
  }

  // Scores the rows of `index` and selects rows of `rows`.
  void Select(const Backend& backend, const AnyKvView& index, const AnyKvView& rows,
              const std::vector<float>& q) {
    const std::uint32_t size = KvShapeOf(index).head_size;
    QUIRE_CHECK(IndexScore(backend, {.keys = &index,
                                     .q = q.data(),
                                     .weights = weights_.data(),
                                     .scores = scores_.data(),
                                     .row_offsets = kOffsets,
                                     .score_stride = static_cast<std::int64_t>(scores_.size()),
                                     .batch_size = 1,
                                     .row_begin = 0,
                                     .row_end = 1,
                                     .num_heads = static_cast<std::uint32_t>(q.size()) / size,
                                     .scale = 0.1f})
                    .ok());
    QUIRE_CHECK(SelectTopK(backend, {.scores = scores_.data(),
                                     .positions = &position_,
                                     .selected = selected_.data(),
                                     .score_stride = static_cast<std::int64_t>(scores_.size()),
                                     .num_rows = 1,
                                     .topk = topk_,
                                     .max_selected = topk_})
                    .ok());
    QUIRE_CHECK(MapSelectedRows(backend, {.rows = &rows,
                                          .selected = selected_.data(),
                                          .last_selected = &last_selected_,
                                          .offsets = offsets_,
                                          .row_offsets = kOffsets,
                                          .batch_size = 1,
                                          .num_rows = 1,
                                          .max_selected = topk_})
                    .ok());
  }

  void Attend(const Backend& backend, Step& step) const {
    const Shape& shape = step.shape();
    const std::int64_t stride = std::int64_t{shape.heads} * shape.head_size;
    QUIRE_CHECK(SparseAttention(backend, {.rows = &step.view(),
                                          .q = step.q().data(),
                                          .out = step.out(),
                                          .selected = selected_.data(),
                                          .last_selected = &last_selected_,
                                          .offsets = offsets_,
                                          .q_stride = stride,
                                          .out_stride = stride,
                                          .num_rows = 1,
                                          .max_selected = topk_,
                                          .num_heads = shape.heads,
                                          .scale = 0.125f,
                                          .value_columns = shape.value_columns})
                    .ok());
  }

 private:
  static constexpr std::uint32_t kOffsets[] = {0, 1};
  const std::uint32_t topk_;
  const std::int32_t position_;
  std::uint32_t last_selected_ = 0;
  std::uint32_t offsets_[2] = {};
  std::vector<std::int32_t> selected_;
  std::vector<float> scores_, weights_;
};

void TimeSteps(benchmark::State& state, Step& step) {
  for (auto _ : state) {
    step.Run();
    benchmark::ClobberMemory();
  }
}

void CountWork(benchmark::State& state, const Step& step) {
  state.SetBytesProcessed(static_cast<std::int64_t>(step.bytes()) * state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(
      step.flops() * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Arguments: dtype, heads, kv heads, head size, sequences, cached tokens, new rows per sequence,
// page size (negative: pages in order, positive: shuffled pages), threads.
void BM_Attention(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(8)));
  const Backend backend = *Backend::Create(Device::Cpu(), &pool);
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(state.range(i)); };
  const auto page = state.range(7);
  Step step(backend, {.dtype = static_cast<DType>(state.range(0)),
                      .heads = at(1),
                      .kv_heads = at(2),
                      .head_size = at(3),
                      .batch = at(4),
                      .cached = at(5),
                      .rows = at(6),
                      .page_size = static_cast<std::uint32_t>(page < 0 ? -page : page),
                      .shuffled = page > 0});
  TimeSteps(state, step);
  CountWork(state, step);
}

void AttentionShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"dtype", "heads", "kv", "d", "batch", "cached", "rows", "page", "threads"})
      ->UseRealTime();
  const auto bf16 = static_cast<std::int64_t>(DType::kBF16);
  for (const std::int64_t heads : {16, 32}) {
    for (const std::int64_t d : {64, 128}) {
      for (const std::int64_t page : {64, -128}) {  // K and V of the batch exceed the CPU caches
        benchmark->Args({bf16, heads, 4, d, 16, 4096, 1, page, 2});
      }
    }
  }
  benchmark->Args({bf16, 16, 4, 64, 1, 4096, 1, 64, 1})->Args({bf16, 16, 4, 64, 1, 4096, 1, 64, 2});
  benchmark->Args({bf16, 16, 4, 64, 32, 1024, 1, 64, 2});
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3}) {
    for (const std::int64_t heads : {16, 32}) {
      benchmark->Args({static_cast<std::int64_t>(dtype), heads, 4, 128, 8, 8192, 1, 64, 2});
    }
    benchmark->Args({static_cast<std::int64_t>(dtype), 16, 4, 64, 8, 8192, 1, 64, 2});
  }
  for (const std::int64_t rows : {512, 2048}) {
    for (const std::int64_t threads : {1, 2}) {
      benchmark->Args({bf16, 16, 4, 64, 1, 0, rows, 64, threads});
    }
    benchmark->Args({bf16, 32, 4, 128, 1, 0, rows, 64, 2});
    benchmark->Args({static_cast<std::int64_t>(DType::kI8), 16, 4, 64, 1, 0, rows, 64, 2});
  }
}
BENCHMARK(BM_Attention)->Apply(AttentionShapes);

// Arguments: heads, KV heads, head size, sequences, cached tokens, new rows per sequence, whether
// activations are bf16. One thread, bf16 pages of 64 tokens.
void BM_Bf16Attention(benchmark::State& state) {
  ThreadPool pool(1);
  const bool is_bf16 = state.range(6) != 0;
  const Backend backend = *Backend::Create(Device::Cpu(), &pool,
                                           is_bf16 ? CpuActivations::kBF16 : CpuActivations::kF32);
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(state.range(i)); };
  Step step(backend, {.heads = at(0),
                      .kv_heads = at(1),
                      .head_size = at(2),
                      .batch = at(3),
                      .cached = at(4),
                      .rows = at(5)});
  TimeSteps(state, step);
  CountWork(state, step);
}

void Bf16AttentionShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"heads", "kv", "d", "batch", "cached", "rows", "bf16"})->UseRealTime();
  for (const std::int64_t bf16 : {0, 1}) {
    benchmark->Args({16, 4, 64, 1, 0, 512, bf16})->Args({32, 4, 128, 1, 0, 1024, bf16});
    benchmark->Args({16, 4, 64, 8, 4096, 1, bf16})->Args({32, 4, 128, 8, 4096, 1, bf16});
    benchmark->Args({8, 8, 64, 8, 4096, 1, bf16})->Args({16, 4, 64, 32, 100, 1, bf16});
    benchmark->Args({16, 1, 576, 1, 1024, 1, bf16});
  }
}
BENCHMARK(BM_Bf16Attention)->Apply(Bf16AttentionShapes);

// Arguments: sequences, cached tokens, layers, threads. Decode tokens with 16 heads over 4 KV heads
// of 64 columns in bf16. With many layers, K and V are read from memory; with one layer, from the
// CPU caches.
void BM_ShortAttention(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(3)));
  const Backend backend = *Backend::Create(Device::Cpu(), &pool);
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(state.range(i)); };
  Step step(backend, {.batch = at(0), .cached = at(1), .layers = at(2)});
  TimeSteps(state, step);
  state.SetBytesProcessed(static_cast<std::int64_t>(step.bytes()) * state.iterations());
}
BENCHMARK(BM_ShortAttention)
    ->ArgNames({"batch", "cached", "layers", "threads"})
    ->Args({32, 50, 96, 1})
    ->Args({32, 50, 96, 2})
    ->Args({32, 50, 1, 2})
    ->Args({32, 100, 96, 2})
    ->Args({8, 512, 24, 2})
    ->UseRealTime();

// Arguments: cached tokens, window (0: none), new rows. One sequence with 16 heads over 4 KV heads
// of 64 columns in bf16. The cost of a row depends on its window, not on the cached tokens.
void BM_WindowedAttention(benchmark::State& state) {
  ThreadPool pool(1);
  const Backend backend = *Backend::Create(Device::Cpu(), &pool);
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(state.range(i)); };
  Step step(backend, {.cached = at(0), .rows = at(2), .window = at(1)});
  TimeSteps(state, step);
}
BENCHMARK(BM_WindowedAttention)
    ->ArgNames({"cached", "window", "rows"})
    ->Args({1023, 0, 1})
    ->Args({32767, 0, 1})
    ->Args({32767, 1024, 1})
    ->Args({0, 0, 4096})
    ->Args({0, 512, 4096})
    ->UseRealTime();

// One decode token over the MLA cache rows of GLM-4.7-Flash: 20 heads, rank 512 and 64 rope columns
// in bf16. With topk 0, attention is dense. Otherwise it reads topk keys. If `selects` is set, the
// time includes the selection of these keys by 32 index heads of 128 columns. Arguments: cached
// tokens, topk, selects, threads.
void BM_SparseAttention(benchmark::State& state) {
  constexpr std::uint32_t kHeads = 20, kColumns = 576, kRank = 512;
  constexpr std::uint32_t kIndexHeads = 32, kIndexSize = 128;
  ThreadPool pool(static_cast<int>(state.range(3)));
  const Backend backend = *Backend::Create(Device::Cpu(), &pool, CpuActivations::kF32);
  const auto cached = static_cast<std::uint32_t>(state.range(0));
  const auto topk = static_cast<std::uint32_t>(state.range(1));
  const Shape shape{.heads = kHeads,
                    .kv_heads = 1,
                    .head_size = kColumns,
                    .cached = cached,
                    .value_columns = kRank};
  Step step(backend, shape);
  Shape index_shape = shape;
  index_shape.heads = kIndexHeads;
  index_shape.head_size = kIndexSize;
  index_shape.value_columns = 0;
  Step index(backend, index_shape);
  Selection selection(cached + 1, topk);
  if (topk > 0) selection.Select(backend, index.view(), step.view(), index.q());
  for (auto _ : state) {
    if (topk == 0) {
      step.Run();
    } else {
      if (state.range(2) != 0) selection.Select(backend, index.view(), step.view(), index.q());
      selection.Attend(backend, step);
    }
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_SparseAttention)
    ->ArgNames({"cached", "topk", "selects", "threads"})
    ->Args({8191, 0, 0, 1})
    ->Args({8191, 2048, 0, 1})
    ->Args({8191, 2048, 1, 1})
    ->Args({32767, 0, 0, 1})
    ->Args({32767, 2048, 1, 1})
    ->UseRealTime();

}  // namespace
}  // namespace quire::kernels
