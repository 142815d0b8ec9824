// Attention without tensor cores: one warp per row and query head. It runs for f32 activations, for
// f32 pages, and for head sizes that other kernels do not support. Device tests use it as the
// reference for the other kernels. Each lane computes the score of one token and several value
// columns. Each online-softmax step covers 32 tokens from a multiple of 32 on, so a row's bits
// depend only on its position. Every element is read with KvView::load. The kernel is not
// optimized: each lane reads a whole K row.

#include "kernels/attention/attention_launch.h"
#include "kernels/backend/exact_gate.h"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {
namespace {

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;
constexpr std::uint32_t kBlocksPerSm = 8;

// Shared memory of one warp.
struct WarpMemory {
  float q[kMaxScalarHead];
  float o[kMaxScalarHead];
  float p[cuda::kWarpSize];
};

template <typename T>
struct ScalarArgs {
  KvView<T> keys;
  KvView<T> values;
  const void* q;
  void* out;
  std::int64_t q_stride;
  std::int64_t out_stride;
  const std::uint32_t* row_offsets;
  std::uint32_t batch_size;
  std::uint32_t num_heads;
  std::uint32_t value_columns;
  float scale_log2;  // factor of q . k: scale * log2(e), or scale / soft cap
  ScoreRules rules;
  bool has_f32_activations;
};

// Returns the sequence that contains a row: the last one that starts at or before the row.
// REQUIRES: such a sequence exists.
__device__ std::uint32_t SequenceOf(const std::uint32_t* row_offsets, std::uint32_t batch_size,
                                    std::uint32_t row) {
  std::uint32_t low = 0;
  std::uint32_t high = batch_size;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (row_offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Attends to all keys that the row sees. memory.q contains the query, memory.o receives the
// weighted sums. Returns the maximum score and the sum of the weights.
template <typename T>
__device__ State Attend(const ScalarArgs<T>& args, std::uint32_t sequence, std::uint32_t kv_head,
                        std::uint32_t position, WarpMemory& memory) {
  const std::uint32_t head_size = args.keys.head_size();
  const std::uint32_t lane = cuda::Lane();
  const VisibleKeys visible = args.rules.Visible(position);
  State state;
  for (std::uint32_t first = visible.first / cuda::kWarpSize * cuda::kWarpSize; first <= position;
       first += cuda::kWarpSize) {
    const std::uint32_t token = first + lane;
    float score = kNoScore;
    if (visible.Has(token)) {
      float dot = 0;
      for (std::uint32_t d = 0; d < head_size; ++d) {
        dot = cuda::Fma(memory.q[d],
                        args.keys.template load<1, float>(sequence, kv_head, token, d)[0], dot);
      }
      score = cuda::Mul(dot, args.scale_log2);
      const float cap = args.rules.cap_log2;
      if (cap > 0) score = cuda::Mul(cap, ExactTanh(score));
    }
    float largest = score;
    for (std::uint32_t mask = 1; mask < cuda::kWarpSize; mask *= 2) {
      largest = cuda::Max(largest, cuda::ShuffleXor(largest, mask));
    }
    const float before = state.max;
    state.max = cuda::Max(before, largest);
    const float base = ScoreBase<DeviceMath>(state.max);
    const float factor = cuda::Exp2Approx(cuda::Sub(before, base));
    const float p = cuda::Exp2Approx(cuda::Sub(score, base));
    float total = p;
    for (std::uint32_t mask = 1; mask < cuda::kWarpSize; mask *= 2) {
      total = cuda::Add(total, cuda::ShuffleXor(total, mask));
    }
    state.sum = cuda::Fma(state.sum, factor, total);
    memory.p[lane] = p;
    cuda::SyncWarp();
    const std::uint32_t left = position - first + 1;
    const std::uint32_t count = left < cuda::kWarpSize ? left : cuda::kWarpSize;
    const std::uint32_t begin = visible.first > first ? visible.first - first : 0;
    for (std::uint32_t d = lane; d < args.value_columns; d += cuda::kWarpSize) {
      float sum = cuda::Mul(memory.o[d], factor);
      for (std::uint32_t t = begin; t < count; ++t) {
        sum =
            cuda::Fma(memory.p[t],
                      args.values.template load<1, float>(sequence, kv_head, first + t, d)[0], sum);
      }
      memory.o[d] = sum;
    }
    cuda::SyncWarp();
  }
  return state;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    ScalarKernel(const __grid_constant__ ScalarArgs<T> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  WarpMemory& memory =
      reinterpret_cast<WarpMemory*>(cuda::SharedMemory16())[cuda::ThreadIndex() / cuda::kWarpSize];
  const std::uint32_t head_size = args.keys.head_size();
  const std::uint32_t group = args.num_heads / args.keys.num_heads();
  const std::int64_t total = std::int64_t{args.row_offsets[args.batch_size]} * args.num_heads;
  for (std::int64_t i = std::int64_t{cuda::BlockX()} * kWarps + cuda::Warp(); i < total;
       i += std::int64_t{cuda::GridX()} * kWarps) {
    const auto row = static_cast<std::uint32_t>(i / args.num_heads);
    const auto head = static_cast<std::uint32_t>(i % args.num_heads);
    const std::uint32_t sequence = SequenceOf(args.row_offsets, args.batch_size, row);
    const std::uint32_t position =
        args.keys.cache_length(sequence) + row - args.row_offsets[sequence];
    const std::int64_t from = row * args.q_stride + std::int64_t{head} * head_size;
    const std::int64_t to = row * args.out_stride + std::int64_t{head} * head_size;
    for (std::uint32_t d = cuda::Lane(); d < head_size; d += cuda::kWarpSize) {
      memory.q[d] = args.has_f32_activations ? static_cast<const float*>(args.q)[from + d]
                                             : ToFloat(static_cast<const BF16*>(args.q)[from + d]);
      memory.o[d] = 0;
    }
    cuda::SyncWarp();
    const float* const sink = args.rules.sinks == nullptr ? nullptr : args.rules.sinks + head;
    const State state = AddSink(Attend(args, sequence, head / group, position, memory), sink);
    for (std::uint32_t d = cuda::Lane(); d < args.value_columns; d += cuda::kWarpSize) {
      const float y = FinishValue(state, memory.o[d]);
      if (args.has_f32_activations) {
        static_cast<float*>(args.out)[to + d] = y;
      } else {
        static_cast<BF16*>(args.out)[to + d] = FromFloat<BF16>(y);
      }
    }
    cuda::SyncWarp();
  }
}

}  // namespace

absl::Status LaunchScalar(const CudaContext& context, const AttentionParams& params) {
  const std::uint32_t value_columns =
      params.value_columns == 0 ? KvShapeOf(*params.keys).head_size : params.value_columns;
  return std::visit(
      [&](const auto& keys) -> absl::Status {
        using View = std::decay_t<decltype(keys)>;
        using T = typename View::Element;
        if constexpr (std::is_same_v<T, F16>) {
          return absl::InvalidArgumentError(
              "attention has f16 pages, supported on a GPU are f32, bf16, fp8_e4m3 and int8");
        } else {
          return cuda::Launch(
              context, "attention scalar", ScalarKernel<T>,
              {.blocks_x = kBlocksPerSm * context.num_sms,
               .threads = kThreads,
               .shared_bytes = kWarps * sizeof(WarpMemory),
               .programmatic = true},
              ScalarArgs<T>{keys, std::get<View>(*params.values), params.q.data(),
                            params.out.data(), params.q_stride, params.out_stride,
                            params.row_offsets, params.batch_size, params.num_heads, value_columns,
                            ScoreScale(params), RulesOf(params), params.q.is_f32()});
        }
      },
      *params.keys);
}

}  // namespace quire::kernels::attention
