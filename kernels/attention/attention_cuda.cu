// Selects the attention kernels of a step.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/attention/attention_launch.h"
#include "kernels/attention/attention_launch_sm90.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_store/latent_store.h"

namespace quire::kernels {
namespace attention {
namespace {

// The scalar kernel supports every MLA cache row that LatentStore can write.
static_assert(kernels::kMaxLatentColumns <= kMaxScalarHead);

}  // namespace
}  // namespace attention

namespace internal {
namespace {

// Largest head size of the tile kernels for all element types. For bf16 pages, wider heads up to
// kMaxWideHead have kernels of their own.
constexpr std::uint32_t kMaxHead = 128;

// True if the tensor-core kernels support pages of this shape.
bool HasTileKernels(const KvShape& shape) {
  const bool wide = shape.dtype == DType::kBF16;
  const bool scaled = (shape.dtype == DType::kF8E4M3 || shape.dtype == DType::kI8) &&
                      shape.granularity == shape.head_size;
  const std::uint32_t max_head_size = wide ? attention::kMaxWideHead : kMaxHead;
  return (wide || scaled) && shape.head_size % 16 == 0 && shape.head_size <= max_head_size;
}

// True if an MLA kernel supports these parameters. MLA rows are wider than the rows that the other
// tensor-core kernels support.
bool HasLatentKernel(const AttentionParams& params, const KvShape& shape) {
  const bool is_plain =
      params.window == 0 && params.chunk == 0 && params.softcap == 0 && params.sinks == nullptr;
  const std::uint32_t values = params.value_columns;
  return params.keys == params.values && is_plain && shape.dtype == DType::kBF16 &&
         shape.num_heads == 1 && shape.head_size > kMaxHead && shape.head_size % 16 == 0 &&
         shape.head_size <= attention::kMaxLatentColumns && values > 0 && values % 8 == 0 &&
         values <= attention::kMaxLatentValues && values <= shape.head_size;
}

absl::Status CheckActivations(const AttentionParams& params) {
  const DType dtype = params.q.dtype();
  if ((dtype != DType::kF32 && dtype != DType::kBF16) || params.out.dtype() != dtype) {
    return absl::InvalidArgumentError(absl::StrCat("attention has queries in ", DTypeName(dtype),
                                                   " and output in ", DTypeName(params.out.dtype()),
                                                   ", supported are f32 or bf16 for both"));
  }
  return absl::OkStatus();
}

// Checks the requirements of the tensor-core kernels for rows and plan.
absl::Status CheckTiles(const AttentionParams& params, const KvShape& shape) {
  const auto aligned = [](const void* p, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(p) % 8 == 0 && stride % 4 == 0;
  };
  if (!aligned(params.q.data(), params.q_stride) ||
      !aligned(params.out.data(), params.out_stride)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention rows of q and out must be aligned to 8 bytes, their strides are ",
                     params.q_stride, " and ", params.out_stride, " elements"));
  }
  if (params.plan == nullptr) return absl::InvalidArgumentError("attention requires a plan");
  const AttentionPlanLimits& limits = params.plan->limits();
  if (limits.num_heads != params.num_heads || limits.num_kv_heads != shape.num_heads ||
      limits.head_size != shape.head_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention has ", params.num_heads, " query heads and ", shape.num_heads,
                     " kv heads of ", shape.head_size, " columns, its plan is for ",
                     limits.num_heads, " and ", limits.num_kv_heads, " of ", limits.head_size));
  }
  // A chunk is covered by a plan for a window of the same length.
  const std::uint32_t window = std::max(params.window, params.chunk);
  if (limits.window != 0 && (window == 0 || window > limits.window)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention has a ", params.chunk != 0 ? "chunk" : "window", " of ", window,
                     " tokens (0: no limit), its plan supports at most ", limits.window));
  }
  if (params.live_sequences != nullptr) return absl::OkStatus();
  const AttentionPlanParams& planned = params.plan->params();
  if (planned.row_offsets != params.row_offsets || planned.batch_size != params.batch_size) {
    return absl::InvalidArgumentError(
        "attention plan was made for other row_offsets or another batch_size");
  }
  return absl::OkStatus();
}

// True if the Hopper kernels run.
bool UsesTensorMaps(const CudaContext& context, const AttentionParams& params) {
  const auto aligned = [](const void* p, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
  };
  return params.maps != nullptr && params.live_sequences == nullptr && context.has_sm90a() &&
         params.scale > 0 && aligned(params.q.data(), params.q_stride) &&
         aligned(params.out.data(), params.out_stride);
}

// True if the Hopper kernels run with separate maps for K and V. MLA cache rows have one map for
// both.
bool UsesLayerMaps(const CudaContext& context, const AttentionParams& params) {
  return params.keys != params.values && UsesTensorMaps(context, params);
}

template <typename T>
absl::Status LaunchPrefillKernel(const CudaContext& context, const AttentionParams& params,
                                 const attention::TileArgs<T>& args, std::uint32_t blocks) {
  if constexpr (std::is_same_v<T, BF16>) {
    if (args.keys.head_size() > kMaxHead) {
      return attention::LaunchPrefillWide(context, args, blocks);
    }
  }
  if (UsesLayerMaps(context, params)) {
    return attention::LaunchPrefillSm90(context, args, params.maps->layer(params.layer), blocks);
  }
  return attention::LaunchPrefill(context, args, blocks);
}

template <typename T>
absl::Status LaunchDecodeKernel(const CudaContext& context, const AttentionParams& params,
                                const attention::TileArgs<T>& args, std::uint32_t max_blocks) {
  if constexpr (std::is_same_v<T, BF16>) {
    if (args.keys.head_size() > kMaxHead) {
      return attention::LaunchDecodeWide(context, args, std::min(max_blocks, 2 * context.num_sms));
    }
    if (UsesLayerMaps(context, params)) {
      return attention::LaunchDecodeSm90(context, args, params.maps->layer(params.layer),
                                         max_blocks);
    }
  }
  return attention::LaunchDecode(context, args, max_blocks);
}

template <typename T>
absl::Status LaunchTiles(const CudaContext& context, const AttentionParams& params,
                         const KvView<T>& keys, const KvView<T>& values) {
  const AttentionPlan& plan = *params.plan;
  const AttentionWorkCounts bounds = WorkBounds(plan.limits(), context.num_sms);
  const attention::TileArgs<T> args{keys,
                                    values,
                                    params.q.as<BF16>(),
                                    params.out.as<BF16>(),
                                    params.q_stride,
                                    params.out_stride,
                                    params.row_offsets,
                                    AttentionPlanAccess::Lists(plan),
                                    params.num_heads / keys.num_heads(),
                                    attention::ScoreScale(params),
                                    attention::RulesOf(params)};
  // Blocks that get no item exit at once.
  if (plan.params().has_prompt_rows) {
    QUIRE_RETURN_IF_ERROR(
        LaunchPrefillKernel(context, params, args, std::min(bounds.prefill, context.num_sms)));
  }
  if (!plan.params().has_generated_rows) return absl::OkStatus();
  return LaunchDecodeKernel(context, params, args, bounds.decode);
}

absl::Status LaunchLatentRows(const CudaContext& context, const AttentionParams& params) {
  const AttentionWorkLists lists = AttentionPlanAccess::Lists(*params.plan);
  const std::uint64_t floats = std::uint64_t{MaxPartials(context.num_sms)} * lists.partial_floats;
  const bool uses_maps = UsesTensorMaps(context, params);
  const std::uint32_t block_rows =
      uses_maps ? attention::kLatentBlockRowsSm90 : attention::kLatentBlockRows;
  const attention::LatentArgs args{
      .rows = std::get<KvView<BF16>>(*params.keys),
      .q = params.q.as<BF16>(),
      .out = params.out.as<BF16>(),
      .q_stride = params.q_stride,
      .out_stride = params.out_stride,
      .row_offsets = params.row_offsets,
      .live_sequences = params.live_sequences != nullptr ? params.live_sequences
                                                         : params.plan->params().live_sequences,
      .partials = lists.partials,
      .partial_rows = static_cast<std::uint32_t>(floats / attention::kLatentPartialFloats),
      .num_sms = context.num_sms,
      .num_heads = params.num_heads,
      .block_rows = block_rows,
      .value_columns = params.value_columns,
      .scale_log2 = attention::ScoreScale(params)};
  QUIRE_RETURN_IF_ERROR(
      uses_maps ? attention::LaunchLatentSm90(context, args, params.maps->latent(params.layer))
                : attention::LaunchLatent(context, args));
  return attention::LaunchLatentMerge(context, args);
}

}  // namespace

absl::Status PagedAttentionCuda(const CudaContext& context, const AttentionParams& params) {
  const KvShape shape = KvShapeOf(*params.keys);
  QUIRE_RETURN_IF_ERROR(CheckActivations(params));
  if (!params.q.is_f32() && HasLatentKernel(params, shape)) {
    QUIRE_RETURN_IF_ERROR(CheckTiles(params, shape));
    return LaunchLatentRows(context, params);
  }
  if (params.q.is_f32() || !HasTileKernels(shape) || params.live_sequences != nullptr) {
    if (shape.head_size > attention::kMaxScalarHead) {
      return absl::InvalidArgumentError(absl::StrCat("attention has heads of ", shape.head_size,
                                                     " columns, the limit is ",
                                                     attention::kMaxScalarHead));
    }
    return attention::LaunchScalar(context, params);
  }
  QUIRE_RETURN_IF_ERROR(CheckTiles(params, shape));
  return std::visit(
      [&](const auto& keys) -> absl::Status {
        using View = std::decay_t<decltype(keys)>;
        using T = typename View::Element;
        if constexpr (std::is_same_v<T, BF16> || kQuantizedKv<T>) {
          return LaunchTiles<T>(context, params, keys, std::get<View>(*params.values));
        } else {
          return attention::LaunchScalar(context, params);
        }
      },
      *params.keys);
}

}  // namespace internal
}  // namespace quire::kernels
