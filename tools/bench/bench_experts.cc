// Compares decoding with a mixture of experts and with a dense MLP of the same active size. One
// token is computed by 8 of 128 experts of size 768, and by one MLP of size 6144, alternating in
// one run. Weights are read from memory, not from the caches, because the MoE has 1.2 GB in bf16
// and the dense MLP alternates between layers.
//
//   bench_kernels --benchmark_filter=Experts

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/backend/backend.h"
#include "models/blocks/mlp_block.h"
#include "models/blocks/moe_block.h"
#include "models/blocks/step_buffers.h"
#include "models/families/registry.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/weights.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kHidden = 2048;
constexpr std::uint32_t kExperts = 128;
constexpr std::uint32_t kChosen = 8;
constexpr std::uint32_t kWidth = 768;
constexpr std::size_t kDenseLayers = 6;

// Returns a model whose layer 0 is an MoE and whose other layers are dense.
ModelSpec Spec() {
  LayerSpec dense;
  dense.attn_in = {.kind = NormKind::kRms, .eps = 1e-6f};
  dense.mlp_in = dense.attn_in;
  dense.heads.num_heads = 1;
  dense.heads.num_kv_heads = 1;
  dense.heads.head_size = 32;
  dense.heads.v_head_size = 32;
  dense.dense.intermediate = kChosen * kWidth;
  LayerSpec sparse = dense;
  sparse.mlp = MlpKind::kMoe;
  sparse.dense = MlpSpec{};
  sparse.moe.num_experts = kExperts;
  sparse.moe.top_k = kChosen;
  sparse.moe.expert.intermediate = kWidth;
  sparse.moe.renormalize = true;
  ModelSpec spec;
  spec.vocab_size = 16;
  spec.hidden = kHidden;
  spec.max_position = 16;
  spec.layers.assign(1 + kDenseLayers, dense);
  spec.layers[0] = sparse;
  spec.final_norm = dense.attn_in;
  spec.tie_embeddings = true;
  return spec;
}

struct Stage {
  Stage(std::int64_t threads, Quantization quantization)
      : spec(Spec()),
        pool(static_cast<int>(threads)),
        backend(*kernels::Backend::Create(Device::Cpu(), &pool)) {
    ModelConfig config;
    config.dtype = DType::kBF16;
    const TensorNames names;
    const auto checkpoint = DummyCheckpoint(config, spec, names, /*with_values=*/true);
    QUIRE_CHECK(checkpoint.ok());
    const WeightTarget target{.quantization = quantization};
    const auto slots = FindWeights(spec, names, *checkpoint, target);
    QUIRE_CHECK(slots.ok());
    auto loaded = Weights::Load(*slots, backend, target);
    QUIRE_CHECK(loaded.ok());
    weights = std::make_unique<Weights>(*std::move(loaded));
    buffers = *StepBuffers::Allocate(spec, {.max_rows = 1, .max_step_tokens = 1, .head_rows = 1});
  }

  StepContext step() {
    return {.backend = &backend,
            .kv = {},
            .plans = {},
            .maps = {},
            .buffers = &buffers,
            .angles = {},
            .num_tokens = 1,
            .batch_size = 1,
            .hidden = kHidden};
  }

  // Returns the time in seconds that one block takes with a new row.
  double Time(std::size_t layer) {
    for (std::uint32_t i = 0; i < kHidden; ++i) buffers.x[i] = normal(random);
    const StepContext context = step();
    const absl::Time start = absl::Now();
    const absl::Status status =
        layer == 0 ? MoeBlock(context, spec.layers[0], weights->layers()[0])
                   : MlpBlock(context, spec.layers[layer], weights->layers()[layer]);
    QUIRE_CHECK(status.ok());
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  const ModelSpec spec;
  ThreadPool pool;
  kernels::Backend backend;
  std::unique_ptr<Weights> weights;
  StepBuffers buffers;
  std::mt19937 random{1};
  std::normal_distribution<float> normal;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Arguments: threads, model.quantization as a number. Medians over all iterations.
void BM_ExpertsAgainstDense(benchmark::State& state) {
  Stage stage(state.range(0), static_cast<Quantization>(state.range(1)));
  state.SetLabel(std::string(QuantizationName(static_cast<Quantization>(state.range(1)))));
  std::vector<double> mixture;
  std::vector<double> dense;
  std::size_t layer = 0;
  for (auto _ : state) {
    mixture.push_back(stage.Time(0));
    dense.push_back(stage.Time(1 + layer % kDenseLayers));
    ++layer;
  }
  const double experts_seconds = Median(std::move(mixture));
  const double dense_seconds = Median(std::move(dense));
  state.counters["experts_us"] = experts_seconds * 1e6;
  state.counters["dense_us"] = dense_seconds * 1e6;
  state.counters["ratio"] = experts_seconds / dense_seconds;
}
BENCHMARK(BM_ExpertsAgainstDense)
    ->ArgNames({"threads", "quantization"})
    ->ArgsProduct({{1, 2},
                   {static_cast<std::int64_t>(Quantization::kNone),
                    static_cast<std::int64_t>(Quantization::kInt8G32),
                    static_cast<std::int64_t>(Quantization::kInt4G32)}})
    ->UseRealTime()
    ->MinTime(2);

}  // namespace
}  // namespace quire::models
