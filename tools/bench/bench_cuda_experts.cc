// Measures routing of a decode step's rows to their experts, and the weighted sum of the experts'
// results.

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/weight_memory.h"
#include "kernels/moe/route.h"
#include "tools/bench/bench_cuda.h"

namespace quire::kernels {
namespace {

// Arguments: experts, experts per row, K, rows. Each launch uses another matrix.
absl::Status RouteRows(benchmark::State& state, Gpu& gpu) {
  const auto experts = static_cast<std::uint32_t>(state.range(0));
  const auto top_k = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(2));
  const auto rows = static_cast<std::uint32_t>(state.range(3));
  const std::int64_t choices = std::int64_t{rows} * top_k;
  const auto host = RandomValues<BF16>(std::int64_t{experts} * k, 0.05f);
  const WeightRows source{host.data(), experts};
  std::vector<PackedLinear> weights;
  while (weights.size() < CopiesBeyondCache(gpu, 2 * std::int64_t{experts} * k)) {
    QUIRE_ASSIGN_OR_RETURN(PackedLinear packed,
                           PackLinearWeights(gpu.backend, {&source, 1}, DType::kBF16, k,
                                             {.activations = DType::kBF16}));
    weights.push_back(std::move(packed));
  }
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, std::int64_t{rows} * k));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer logits, DeviceMemory(4 * std::int64_t{rows} * experts));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer chosen, DeviceMemory(4 * choices));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer chosen_weights, DeviceMemory(4 * choices));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer offsets, DeviceMemory(4 * (std::int64_t{experts} + 1)));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer sorted, DeviceMemory(4 * choices));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer sorted_weights, DeviceMemory(4 * choices));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer places, DeviceMemory(4 * choices));
  RouteParams params{.x = static_cast<const BF16*>(x.data()),
                     .weight = nullptr,
                     .logits = static_cast<float*>(logits.data()),
                     .choice = {},
                     .offsets = static_cast<std::uint32_t*>(offsets.data()),
                     .rows = static_cast<std::uint32_t*>(sorted.data()),
                     .row_weights = static_cast<float*>(sorted_weights.data()),
                     .places = static_cast<std::uint32_t*>(places.data()),
                     .x_stride = k};
  params.choice.experts = static_cast<std::uint32_t*>(chosen.data());
  params.choice.weights = static_cast<float*>(chosen_weights.data());
  params.choice.num_rows = rows;
  params.choice.num_experts = experts;
  params.choice.top_k = top_k;
  params.choice.renormalize = true;
  return Measure(state, gpu, {.bytes = 2.0 * experts * k, .flops = 2.0 * experts * k * rows},
                 [&](int i) {
                   params.weight = &weights[static_cast<std::size_t>(i) % weights.size()];
                   return Route(gpu.backend, params);
                 });
}
// Shapes of Qwen3-30B-A3B and DeepSeek-V3.
BENCHMARK(Run<RouteRows>)
    ->Name("BM_Route")
    ->ArgNames({"experts", "top_k", "k", "m"})
    ->Args({128, 8, 2048, 1})
    ->Args({128, 8, 2048, 16})
    ->Args({128, 8, 2048, 64})
    ->Args({256, 8, 7168, 1})
    ->UseManualTime();
BENCHMARK(Run<RouteRows>)->Name("BM_Route/tiny")->Args({144, 2, 576, 3})->UseManualTime();

// Arguments: experts, experts per row, N, K, rows. Measures the down projection of the experts and
// the sum of their results. Row m is routed to the top_k consecutive experts from m * top_k on.
// Each launch adds an offset to the expert ids, so that launches use different experts if there are
// enough.
absl::Status DownAndSum(benchmark::State& state, Gpu& gpu) {
  const auto experts = static_cast<std::uint32_t>(state.range(0));
  const auto top_k = static_cast<std::uint32_t>(state.range(1));
  const auto n = static_cast<std::uint32_t>(state.range(2));
  const auto k = static_cast<std::uint32_t>(state.range(3));
  const auto rows = static_cast<std::uint32_t>(state.range(4));
  const std::uint32_t choices = rows * top_k;
  QUIRE_ASSIGN_OR_RETURN(
      WeightMemory memory,
      WeightMemory::Allocate(experts * CudaPlainPaddedBytes(DType::kBF16, n, k, DType::kBF16)));
  const auto host = RandomValues<BF16>(std::int64_t{n} * k, 0.05f);
  const WeightRows source{host.data(), n};
  std::vector<PackedLinear> weights;
  for (std::uint32_t expert = 0; expert < experts; ++expert) {
    QUIRE_ASSIGN_OR_RETURN(PackedLinear packed,
                           PackLinearWeights(gpu.backend, {&source, 1}, DType::kBF16, k,
                                             {.activations = DType::kBF16, .memory = &memory}));
    weights.push_back(std::move(packed));
  }
  const auto groups = LinearGroupsOf(
      experts, [&](std::uint32_t expert) -> const PackedLinear& { return weights[expert]; });
  if (!groups) return absl::InternalError("the matrices are not grouped");
  std::vector<DeviceBuffer> offsets;
  for (std::uint32_t part = 0; part < 4; ++part) {
    std::vector<std::uint32_t> begins(experts + 1);
    for (std::uint32_t i = 0; i < choices; ++i) ++begins[(part * experts / 4 + i) % experts + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    QUIRE_ASSIGN_OR_RETURN(DeviceBuffer one, ToDevice(gpu, begins));
    offsets.push_back(std::move(one));
  }
  std::vector<std::uint32_t> in_order(choices);
  std::iota(in_order.begin(), in_order.end(), 0u);
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer places, ToDevice(gpu, in_order));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer factors, Random<float>(gpu, choices));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer x, Random<BF16>(gpu, std::int64_t{choices} * k));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer y, Random<float>(gpu, std::int64_t{choices} * n));
  QUIRE_ASSIGN_OR_RETURN(const DeviceBuffer sum, Random<float>(gpu, std::int64_t{rows} * n));
  GroupedLinearParams params{.x = static_cast<const BF16*>(x.data()),
                             .weights = *groups,
                             .offsets = nullptr,
                             .y = static_cast<float*>(y.data()),
                             .x_stride = k,
                             .y_stride = n,
                             .num_rows = choices};
  params.sum = ChosenSum{.places = static_cast<const std::uint32_t*>(places.data()),
                         .weights = static_cast<const float*>(factors.data()),
                         .y = static_cast<float*>(sum.data()),
                         .y_stride = n,
                         .num_rows = rows,
                         .top_k = top_k};
  return Measure(
      state, gpu,
      {.bytes = 2.0 * n * k * std::min(experts, choices), .flops = 2.0 * n * k * choices},
      [&](int i) {
        const DeviceBuffer& own = offsets[static_cast<std::size_t>(i) % offsets.size()];
        params.offsets = static_cast<const std::uint32_t*>(own.data());
        return GroupedLinear(gpu.backend, params);
      });
}
// The down projection of Qwen3-30B-A3B.
BENCHMARK(Run<DownAndSum>)
    ->Name("BM_ChosenSum")
    ->ArgNames({"experts", "top_k", "n", "k", "m"})
    ->Args({128, 8, 2048, 768, 1})
    ->Args({128, 8, 2048, 768, 16})
    ->UseManualTime();
BENCHMARK(Run<DownAndSum>)->Name("BM_ChosenSum/tiny")->Args({4, 2, 136, 64, 3})->UseManualTime();

}  // namespace
}  // namespace quire::kernels
