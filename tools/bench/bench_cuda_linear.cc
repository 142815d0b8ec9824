// Measures matrix products with weights of every format, matrix products per attention head, and G,
// the rate of a large product.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/linear/cublaslt.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/head_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/linear/weight_memory.h"
#include "tools/bench/bench_cuda.h"

namespace quire::kernels {
namespace {

struct LinearCase {
  const Backend& backend;
  const std::vector<PackedLinear>& weights;  // all of one shape, used in rotation
  std::uint32_t rows;
  double bytes;  // bytes of one matrix; 0: report no byte rate
  std::optional<GateShape> gate = {};
};

// Times y = x W^T in bf16.
absl::Status MeasureLinear(benchmark::State& state, Gpu& gpu, const LinearCase& c) {
  const std::uint32_t n = c.weights[0].n();
  const std::uint32_t k = c.weights[0].k();
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, std::int64_t{c.rows} * k));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer y, Random<BF16>(gpu, std::int64_t{c.rows} * n));
  return Measure(state, gpu, {.bytes = c.bytes, .flops = 2.0 * n * k * c.rows}, [&](int i) {
    return Linear(c.backend, {.x = static_cast<const BF16*>(x.data()),
                              .weight = &c.weights[static_cast<std::size_t>(i) % c.weights.size()],
                              .y = static_cast<BF16*>(y.data()),
                              .x_stride = k,
                              .y_stride = n,
                              .num_rows = c.rows,
                              .gate = c.gate});
  });
}

absl::StatusOr<std::vector<PackedLinear>> PlainWeights(const Backend& backend, std::size_t copies,
                                                       std::uint32_t n, std::uint32_t k) {
  const auto host = RandomValues<BF16>(std::int64_t{n} * k, 0.05f);
  std::vector<PackedLinear> weights;
  for (std::size_t i = 0; i < copies; ++i) {
    QUIRE_ASSIGN_OR_RETURN(PackedLinear packed,
                           PackLinearWeight(backend, host.data(), DType::kBF16, n, k));
    weights.push_back(std::move(packed));
  }
  return weights;
}

// Arguments: N, K, rows. bf16 input and output, like qkv and gate_up. With kIsGated, the product of
// the two halves of N is fused.
template <bool kIsGated>
absl::Status PlainLinear(benchmark::State& state, Gpu& gpu) {
  const auto n = static_cast<std::uint32_t>(state.range(0));
  const auto k = static_cast<std::uint32_t>(state.range(1));
  const std::int64_t bytes = std::int64_t{n} * k * 2;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<PackedLinear> weights,
                         PlainWeights(gpu.backend, CopiesBeyondCache(gpu, bytes), n, k));
  return MeasureLinear(state, gpu,
                       {.backend = gpu.backend,
                        .weights = weights,
                        .rows = static_cast<std::uint32_t>(state.range(2)),
                        .bytes = static_cast<double>(bytes),
                        .gate = kIsGated ? std::optional(GateShape{}) : std::nullopt});
}
void LinearShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"n", "k", "m"})->UseManualTime();
  // The loop has the shapes of Llama 3.1 8B: qkv, o, gate and up, and down. The last shape is its
  // output head.
  for (const auto& [n, k] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}}) {
    for (const int rows : {1, 8, 16, 32, 64, 128, 256, 512, 4096}) benchmark->Args({n, k, rows});
  }
  benchmark->Args({128256, 4096, 1});
}
BENCHMARK(Run<PlainLinear<false>>)->Name("BM_Linear")->Apply(LinearShapes);
BENCHMARK(Run<PlainLinear<false>>)
    ->Name("BM_Linear/tiny")
    ->Args({128, 64, 3})
    ->Args({128, 64, 66})
    ->Args({128, 64, 130})
    ->UseManualTime();
void GatedShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"n", "k", "m"})->UseManualTime();
  for (const int rows : {1, 64, 4096}) benchmark->Args({28672, 4096, rows});
}
BENCHMARK(Run<PlainLinear<true>>)->Name("BM_GatedLinear")->Apply(GatedShapes);
BENCHMARK(Run<PlainLinear<true>>)->Name("BM_GatedLinear/tiny")->Args({128, 64, 3})->UseManualTime();

// Opens cuBLASLt where the loader finds it, or else where the CUDA toolkit installs it.
absl::StatusOr<std::shared_ptr<cuda::CublasLt>> OpenLibrary(const Gpu& gpu) {
  absl::StatusOr<std::shared_ptr<cuda::CublasLt>> library = cuda::CublasLt::Open(gpu.stream);
  if (library.ok()) return library;
  const std::string path =
      absl::StrCat("/usr/local/cuda/lib64/", std::string(cuda::CublasLt::kLibrary));
  absl::StatusOr<std::shared_ptr<cuda::CublasLt>> toolkit_library =
      cuda::CublasLt::Open(gpu.stream, path);
  return toolkit_library.ok() ? std::move(toolkit_library) : std::move(library);
}

absl::Status MeasureByLibrary(benchmark::State& state, Gpu& gpu, std::uint32_t side) {
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<cuda::CublasLt> library, OpenLibrary(gpu));
  QUIRE_ASSIGN_OR_RETURN(Backend fast,
                         Backend::CreateCuda(gpu.stream, Determinism::kFast, &gpu.pool));
  fast.UseCublasLt(std::move(library));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<PackedLinear> weights,
                         PlainWeights(fast, 1, side, side));
  state.SetLabel("cuBLASLt");
  return MeasureLinear(state, gpu, {.backend = fast, .weights = weights, .rows = side, .bytes = 0});
}

// Measures G, the rate of the product of two square matrices by cuBLASLt. If cuBLASLt or a suitable
// algorithm is missing, the kernel of Linear is used; the label names the implementation. Argument:
// the side.
absl::Status DeviceMatmul(benchmark::State& state, Gpu& gpu) {
  const auto side = static_cast<std::uint32_t>(state.range(0));
  const absl::Status by_library = gpu.emulated ? absl::NotFoundError("the device is emulated")
                                               : MeasureByLibrary(state, gpu, side);
  if (!absl::IsNotFound(by_library) && !absl::IsFailedPrecondition(by_library)) return by_library;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<PackedLinear> weights,
                         PlainWeights(gpu.backend, 1, side, side));
  state.SetLabel(absl::StrCat("Linear; ", by_library.message()));
  return MeasureLinear(state, gpu,
                       {.backend = gpu.backend, .weights = weights, .rows = side, .bytes = 0});
}
BENCHMARK(Run<DeviceMatmul>)->Name("BM_DeviceMatmul")->Arg(8192)->UseManualTime();
BENCHMARK(Run<DeviceMatmul>)->Name("BM_DeviceMatmul/tiny")->Arg(64)->UseManualTime();

// Synthetic quantized weights. Each row of the matrix starts at another offset of one random block.
class SyntheticWeights {
 public:
  explicit SyntheticWeights(const QuantizedShape& shape) : shape_(shape), codes_(1 << 20) {
    std::mt19937 generator(2);
    for (std::int8_t& code : codes_) code = CodeOf(static_cast<std::uint8_t>(generator()));
  }

  void Fill(std::uint32_t row, const QuantizedRow& out) const {
    const std::size_t first = std::size_t{row} * 4099 % (codes_.size() - out.q.size() + 1);
    std::copy_n(codes_.begin() + static_cast<std::ptrdiff_t>(first), out.q.size(), out.q.begin());
    std::fill(out.scales.begin(), out.scales.end(), 0.015625f);
    std::fill(out.mins.begin(), out.mins.end(), -7.0f);
  }

 private:
  std::int8_t CodeOf(std::uint8_t random) const {
    // Avoids NaN.
    if (shape_.format == WeightFormat::kFp8E4M3) return static_cast<std::int8_t>(random & 0xbf);
    if (shape_.format == WeightFormat::kInt8) return static_cast<std::int8_t>(random);
    const bool is_signed = shape_.format == WeightFormat::kInt4 && !shape_.has_min;
    return static_cast<std::int8_t>(random % 16 - (is_signed ? 8 : 0));
  }

  const QuantizedShape shape_;
  std::vector<std::int8_t> codes_;
};

// Times products of `rows` rows with matrices of synthetic quantized weights. Input and output are
// bf16.
absl::Status MeasureQuantizedWeights(benchmark::State& state, Gpu& gpu, const QuantizedShape& shape,
                                     std::uint32_t rows) {
  std::vector<std::uint32_t> order(shape.has_act_order ? shape.k : 0);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  const SyntheticWeights codes(shape);
  const std::int64_t bytes = CudaQuantizedPartsOf(shape).total();
  std::vector<PackedLinear> weights;
  for (std::size_t i = 0; i < CopiesBeyondCache(gpu, bytes); ++i) {
    QUIRE_ASSIGN_OR_RETURN(
        PackedLinear packed,
        PackQuantizedRows(
            gpu.backend, shape,
            [&codes](std::uint32_t row, const QuantizedRow& out) { codes.Fill(row, out); }, order));
    weights.push_back(std::move(packed));
  }
  return MeasureLinear(state, gpu,
                       {.backend = gpu.backend,
                        .weights = weights,
                        .rows = rows,
                        .bytes = static_cast<double>(bytes)});
}

// Arguments: format, number of inputs that share a scale (0: all), zero points (0 or 1), act-order
// permutation (0 or 1), N, K, rows.
absl::Status QuantizedLinear(benchmark::State& state, Gpu& gpu) {
  const auto group = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(5));
  const QuantizedShape shape{.format = static_cast<WeightFormat>(state.range(0)),
                             .n = static_cast<std::uint32_t>(state.range(4)),
                             .k = k,
                             .group = group == 0 ? k : group,
                             .has_min = state.range(2) != 0,
                             .has_zero_points = state.range(2) != 0,
                             .has_act_order = state.range(3) != 0};
  state.SetLabel(std::string(WeightFormatName(shape.format)));
  return MeasureQuantizedWeights(state, gpu, shape, static_cast<std::uint32_t>(state.range(6)));
}
constexpr auto kInt8 = static_cast<std::int64_t>(WeightFormat::kInt8);
constexpr auto kFp8 = static_cast<std::int64_t>(WeightFormat::kFp8E4M3);
constexpr auto kInt4 = static_cast<std::int64_t>(WeightFormat::kInt4);
constexpr auto kFp4 = static_cast<std::int64_t>(WeightFormat::kFp4E2M1);
void QuantizedShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"format", "group", "zeros", "order", "n", "k", "m"})->UseManualTime();
  struct QuantizedCase {
    std::int64_t format, group, zeros, order;
  };
  for (const QuantizedCase& c : {QuantizedCase{kInt8, 0, 0, 0},
                                 {kInt8, 32, 0, 0},
                                 {kInt8, 128, 0, 0},
                                 {kFp8, 0, 0, 0},
                                 {kFp8, 128, 0, 0},
                                 {kInt4, 32, 0, 0},
                                 {kInt4, 128, 0, 0},
                                 {kInt4, 128, 1, 0},
                                 {kInt4, 128, 1, 1},
                                 {kFp4, 32, 0, 0}}) {
    for (const int rows : {1, 8, 64, 2048}) {
      benchmark->Args({c.format, c.group, c.zeros, c.order, 28672, 4096, rows});
    }
  }
}
BENCHMARK(Run<QuantizedLinear>)->Name("BM_CodedLinear")->Apply(QuantizedShapes);
BENCHMARK(Run<QuantizedLinear>)
    ->Name("BM_CodedLinear/tiny")
    ->Args({kInt4, 32, 1, 1, 128, 64, 3})
    ->UseManualTime();

// e4m3 weights with dynamic activation quantization to e4m3, including the launch that quantizes.
// Arguments: number of inputs that share a scale (0: all), N, K, rows.
absl::Status RoundedLinear(benchmark::State& state, Gpu& gpu) {
  const auto group = static_cast<std::uint32_t>(state.range(0));
  const auto k = static_cast<std::uint32_t>(state.range(2));
  return MeasureQuantizedWeights(state, gpu,
                                 {.format = WeightFormat::kFp8E4M3,
                                  .n = static_cast<std::uint32_t>(state.range(1)),
                                  .k = k,
                                  .group = group == 0 ? k : group,
                                  .quantizes_activations = true,
                                  .allows_row_major = true},
                                 static_cast<std::uint32_t>(state.range(3)));
}
BENCHMARK(Run<RoundedLinear>)
    ->Name("BM_RoundedLinear")
    ->ArgNames({"group", "n", "k", "m"})
    ->Args({0, 28672, 4096, 1})
    ->Args({128, 28672, 4096, 1})
    ->Args({128, 28672, 4096, 64})
    ->Args({0, 28672, 4096, 4096})
    ->Args({128, 28672, 4096, 4096})
    ->Args({128, 4096, 4096, 1})
    ->Args({128, 4096, 4096, 4096})
    ->UseManualTime();
// Covers the tiles of 64, 128 and 256 tokens.
BENCHMARK(Run<RoundedLinear>)
    ->Name("BM_RoundedLinear/tiny")
    ->Args({128, 128, 256, 3})
    ->Args({128, 648, 256, 100})
    ->Args({128, 648, 256, 130})
    ->UseManualTime();

// Arguments: heads, N, K, rows. The products of MLA with the parts of kv_b.
absl::Status HeadProducts(benchmark::State& state, Gpu& gpu) {
  const auto heads = static_cast<std::uint32_t>(state.range(0));
  const auto n = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(2));
  const auto rows = static_cast<std::uint32_t>(state.range(3));
  const std::int64_t bytes = std::int64_t{heads} * n * k * 2;
  const std::size_t copies = CopiesBeyondCache(gpu, bytes);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<PackedLinear> weights,
                         PlainWeights(gpu.backend, copies * heads, n, k));
  std::vector<const PackedLinear*> pointers;
  pointers.reserve(weights.size());
  for (const PackedLinear& weight : weights) pointers.push_back(&weight);
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, std::int64_t{rows} * heads * k));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer y, Random<BF16>(gpu, std::int64_t{rows} * heads * n));
  return Measure(
      state, gpu, {.bytes = static_cast<double>(bytes), .flops = 2.0 * heads * n * k * rows},
      [&](int i) {
        const std::size_t first = static_cast<std::size_t>(i) % copies * heads;
        return HeadLinear(gpu.backend, {.weights = std::span(pointers).subspan(first, heads),
                                        .x = static_cast<const BF16*>(x.data()),
                                        .y = static_cast<BF16*>(y.data()),
                                        .x_stride = std::int64_t{heads} * k,
                                        .y_stride = std::int64_t{heads} * n,
                                        .x_head_stride = k,
                                        .y_head_stride = n,
                                        .num_rows = rows});
      });
}
BENCHMARK(Run<HeadProducts>)
    ->Name("BM_HeadLinear")
    ->ArgNames({"heads", "n", "k", "m"})
    ->Args({16, 512, 128, 1})
    ->Args({16, 128, 512, 1})
    ->Args({16, 128, 512, 64})
    ->Args({16, 512, 128, 4096})
    ->Args({16, 128, 512, 4096})
    ->UseManualTime();
BENCHMARK(Run<HeadProducts>)
    ->Name("BM_HeadLinear/tiny")
    ->Args({2, 32, 16, 3})
    ->Args({2, 32, 16, 70})
    ->UseManualTime();

// Returns the first row of each group if `rows` rows are distributed evenly over the groups,
// starting at group `first`.
std::vector<std::uint32_t> SpreadRows(std::uint32_t groups, std::uint32_t rows,
                                      std::uint32_t first) {
  std::vector<std::uint32_t> offsets(groups + 1);
  for (std::uint32_t row = 0; row < rows; ++row) {
    const std::uint64_t group_of_row = std::uint64_t{row} * groups / rows;
    ++offsets[(group_of_row + first) % groups + 1];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return offsets;
}

// Times the products of MoE experts. With fewer rows than experts, successive launches use
// different experts, so that the cache does not contain their weights. `bytes` is the size of one
// matrix.
absl::Status MeasureGroups(benchmark::State& state, Gpu& gpu,
                           const std::vector<PackedLinear>& weights, std::uint32_t rows,
                           double bytes) {
  const auto groups = static_cast<std::uint32_t>(weights.size());
  const std::uint32_t n = weights[0].n();
  const std::uint32_t k = weights[0].k();
  const auto found = LinearGroupsOf(
      groups, [&](std::uint32_t group) -> const PackedLinear& { return weights[group]; });
  if (!found) return absl::InternalError("the matrices are not grouped");
  std::vector<DeviceBuffer> offsets;
  for (const std::uint32_t first : {0u, groups / 4, groups / 2, groups / 4 * 3}) {
    QUIRE_ASSIGN_OR_RETURN(DeviceBuffer group_offsets,
                           ToDevice(gpu, SpreadRows(groups, rows, first)));
    offsets.push_back(std::move(group_offsets));
  }
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, std::int64_t{rows} * k));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer y, Random<BF16>(gpu, std::int64_t{rows} * n));
  return Measure(state, gpu, {.bytes = bytes * std::min(groups, rows), .flops = 2.0 * n * k * rows},
                 [&](int i) {
                   const DeviceBuffer& own = offsets[static_cast<std::size_t>(i) % offsets.size()];
                   return GroupedLinear(gpu.backend,
                                        {.x = static_cast<const BF16*>(x.data()),
                                         .weights = *found,
                                         .offsets = static_cast<const std::uint32_t*>(own.data()),
                                         .y = static_cast<BF16*>(y.data()),
                                         .x_stride = k,
                                         .y_stride = n,
                                         .num_rows = rows});
                 });
}

// Arguments: groups, N, K, rows.
absl::Status GroupedProducts(benchmark::State& state, Gpu& gpu) {
  const auto groups = static_cast<std::uint32_t>(state.range(0));
  const auto n = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(2));
  QUIRE_ASSIGN_OR_RETURN(
      WeightMemory memory,
      WeightMemory::Allocate(groups * CudaPlainPaddedBytes(DType::kBF16, n, k, DType::kBF16)));
  const auto host = RandomValues<BF16>(std::int64_t{n} * k, 0.05f);
  const WeightRows source{host.data(), n};
  std::vector<PackedLinear> weights;
  for (std::uint32_t group = 0; group < groups; ++group) {
    QUIRE_ASSIGN_OR_RETURN(PackedLinear packed,
                           PackLinearWeights(gpu.backend, {&source, 1}, DType::kBF16, k,
                                             {.activations = DType::kBF16, .memory = &memory}));
    weights.push_back(std::move(packed));
  }
  return MeasureGroups(state, gpu, weights, static_cast<std::uint32_t>(state.range(3)),
                       2.0 * n * k);
}

// Arguments: format, number of inputs that share a scale, groups, N, K, rows.
absl::Status GroupedQuantized(benchmark::State& state, Gpu& gpu) {
  const auto groups = static_cast<std::uint32_t>(state.range(2));
  const QuantizedShape shape{.format = static_cast<WeightFormat>(state.range(0)),
                             .n = static_cast<std::uint32_t>(state.range(3)),
                             .k = static_cast<std::uint32_t>(state.range(4)),
                             .group = static_cast<std::uint32_t>(state.range(1))};
  QUIRE_ASSIGN_OR_RETURN(WeightMemory memory,
                         WeightMemory::Allocate(groups * CudaQuantizedPaddedBytes(shape)));
  const SyntheticWeights codes(shape);
  std::vector<PackedLinear> weights;
  for (std::uint32_t group = 0; group < groups; ++group) {
    QUIRE_ASSIGN_OR_RETURN(
        PackedLinear packed,
        PackQuantizedRows(
            gpu.backend, shape,
            [&codes](std::uint32_t row, const QuantizedRow& out) { codes.Fill(row, out); }, {},
            &memory));
    weights.push_back(std::move(packed));
  }
  state.SetLabel(std::string(WeightFormatName(shape.format)));
  return MeasureGroups(state, gpu, weights, static_cast<std::uint32_t>(state.range(5)),
                       static_cast<double>(CudaQuantizedPartsOf(shape).total()));
}
// Qwen3-30B-A3B: gate and up for one token, 64 tokens and a prompt.
BENCHMARK(Run<GroupedProducts>)
    ->Name("BM_GroupedLinear")
    ->ArgNames({"groups", "n", "k", "m"})
    ->Args({128, 1536, 2048, 8})
    ->Args({128, 1536, 2048, 512})
    ->Args({128, 1536, 2048, 16384})
    ->UseManualTime();
BENCHMARK(Run<GroupedProducts>)
    ->Name("BM_GroupedLinear/tiny")
    ->Args({3, 128, 64, 5})
    ->Args({3, 128, 64, 40})
    ->UseManualTime();
// GPT-OSS 20B: gate and up for one token and 64 tokens.
BENCHMARK(Run<GroupedQuantized>)
    ->Name("BM_GroupedCodes")
    ->ArgNames({"format", "group", "groups", "n", "k", "m"})
    ->Args({kFp4, 32, 32, 5760, 2880, 4})
    ->Args({kFp4, 32, 32, 5760, 2880, 256})
    ->UseManualTime();
BENCHMARK(Run<GroupedQuantized>)
    ->Name("BM_GroupedCodes/tiny")
    ->Args({kFp4, 32, 3, 128, 64, 5})
    ->Args({kInt4, 32, 3, 128, 64, 40})
    ->UseManualTime();

}  // namespace
}  // namespace quire::kernels
