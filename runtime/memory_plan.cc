#include "runtime/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cache_manager/pool/kv_pool.h"
#include "cache_manager/views/kv_cache_collection.h"
#include "kernels/linear/bf16_linear.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/cuda_sizes.h"
#include "runtime/model.h"

namespace quire::runtime {
namespace {

std::int64_t RoundUp(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::int64_t IndexOffset(const cache::KvGeometry& geometry) {
  return RoundUp(geometry.packed_rows() * geometry.row_elements() * DTypeSize(geometry.dtype),
                 static_cast<std::int64_t>(cache::kPoolAlignment));
}

// Returns the geometry of index rows, except for the page stride. As with MLA rows, the space for K
// and V of one layer stores the rows of two layers. Index rows are not quantized, because that
// would change which keys are selected.
cache::KvGeometry IndexGeometry(const models::ModelSpec& spec, std::uint32_t index_slots,
                                const cache::KvGeometry& pool) {
  cache::KvGeometry index;
  index.num_blocks = pool.num_blocks;
  index.num_layers = (index_slots + 1) / 2;
  index.page_size = pool.page_size;
  index.num_heads = 1;
  index.head_size = models::IndexSize(spec);
  index.dtype = pool.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  return index;
}

// Adds room for index rows at the end of a page. The page stride becomes a multiple of the sizes of
// both kinds of rows. The stride of scales becomes the same number of rows.
void AddIndexRows(const models::ModelSpec& spec, std::uint32_t index_slots,
                  cache::KvGeometry* geometry) {
  const cache::KvGeometry index = IndexGeometry(spec, index_slots, *geometry);
  const std::int64_t row = geometry->row_elements() * DTypeSize(geometry->dtype);
  const std::int64_t index_row = index.row_elements() * DTypeSize(index.dtype);
  const std::int64_t bytes = IndexOffset(*geometry) + index.page_bytes();
  const std::int64_t stride = RoundUp(bytes, std::lcm(row, index_row));
  geometry->page_stride = stride / DTypeSize(geometry->dtype);
  if (!geometry->quantized()) return;
  geometry->scale_page_stride = stride / row * geometry->scale_row_elements();
}

std::int64_t PageIndexBytes(const models::ModelSpec& spec, const models::LayerGroups& layers,
                            const cache::KvGeometry& pool) {
  if (layers.index_slots == 0) return 0;
  return IndexGeometry(spec, layers.index_slots, pool).page_bytes();
}

// Does the same as IndexRowsFor, without checking the geometry.
IndexRows PlaceIndexRows(const models::ModelSpec& spec, const cache::KvGeometry& geometry) {
  IndexRows index;
  index.geometry = IndexGeometry(spec, models::PlanLayerGroups(spec).index_slots, geometry);
  index.offset_bytes = IndexOffset(geometry);
  index.geometry.page_stride =
      geometry.block_stride() * DTypeSize(geometry.dtype) / DTypeSize(index.geometry.dtype);
  return index;
}

}  // namespace

absl::StatusOr<cache::KvGeometry> KvGeometryFor(const models::ModelSpec& spec,
                                                std::uint32_t page_size, DType kv_dtype,
                                                std::uint32_t num_blocks) {
  if (std::ranges::none_of(spec.layers, [](const auto& layer) { return layer.has_kv(); })) {
    return absl::UnimplementedError(
        "the model has no layer with keys and values, but at least 1 is required");
  }
  const models::LayerSpec& first = spec.first_kv_layer();
  const bool is_mla = first.attention == models::AttentionKind::kMla;
  const models::LayerGroups layers = models::PlanLayerGroups(spec);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const models::LayerSpec& layer = spec.layers[i];
    if (!layer.has_kv()) continue;
    // All layer groups share one pool, so their pages must have equal bytes.
    const models::KvRow& row = layers.groups[layers.places[i].group].row;
    if (layer.attention != first.attention ||
        (is_mla ? row != layers.slot_row
                : layer.heads.v_head_size != layer.heads.head_size ||
                      row.head_size % layers.slot_row.head_size != 0)) {
      return absl::UnimplementedError(absl::StrCat(
          "layer ", i, " and layer ", &first - spec.layers.data(),
          " differ in the kind of attention or in the head size, but all layers must share one ",
          "page layout"));
    }
  }
  cache::KvGeometry geometry;
  geometry.num_blocks = num_blocks;
  geometry.num_layers = layers.slots;
  geometry.page_size = page_size;
  geometry.num_heads = layers.slot_row.num_heads;
  geometry.head_size = layers.slot_row.head_size;
  if (is_mla) {
    // An MLA row serves as K and V, so the space for K and V of one layer holds the rows of two
    // layers (LatentView).
    geometry.num_layers = (geometry.num_layers + 1) / 2;
  }
  geometry.dtype = kv_dtype;
  if (kv_dtype == DType::kI8 || kv_dtype == DType::kF8E4M3) {
    geometry.scale_dtype = DType::kF32;
    geometry.granularity = geometry.head_size;
  }
  if (layers.index_slots > 0) AddIndexRows(spec, layers.index_slots, &geometry);
  QUIRE_RETURN_IF_ERROR(geometry.Validate());
  return geometry;
}

absl::StatusOr<IndexRows> IndexRowsFor(const models::ModelSpec& spec,
                                       const cache::KvGeometry& geometry) {
  const IndexRows index = PlaceIndexRows(spec, geometry);
  QUIRE_RETURN_IF_ERROR(index.geometry.Validate());
  return index;
}

std::int64_t MaxNumBlocks(const models::ModelSpec& spec, const cache::KvGeometry& geometry) {
  const models::LayerGroups layers = models::PlanLayerGroups(spec);
  std::int64_t most = geometry.max_num_blocks();
  // Rows with fewer heads have fewer scales, so a page has more rows of scales.
  for (std::size_t group = 0; group < layers.groups.size(); ++group) {
    most = std::min(most, models::GroupGeometry(geometry, layers, group).max_num_blocks());
  }
  if (layers.index_slots == 0) return most;
  return std::min(most, PlaceIndexRows(spec, geometry).geometry.max_num_blocks());
}

absl::StatusOr<std::uint32_t> NumBlocksForBytes(const cache::KvGeometry& geometry,
                                                std::int64_t bytes) {
  const std::int64_t blocks = std::min(bytes / geometry.page_bytes(), geometry.max_num_blocks());
  if (blocks < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv cache of ", bytes, " bytes is too small: a page takes ",
                     geometry.page_bytes(), " bytes, and at least 2 are needed"));
  }
  return static_cast<std::uint32_t>(blocks);
}

absl::StatusOr<std::uint32_t> NumBlocksWithIndex(cache::CacheManagerOptions options,
                                                 std::int64_t bytes) {
  const auto total = [&](std::uint32_t blocks) {
    options.geometry.num_blocks = blocks;
    return blocks * options.geometry.page_bytes() + cache::CacheManager::PrefixIndexBytes(options);
  };
  QUIRE_ASSIGN_OR_RETURN(std::uint32_t end, NumBlocksForBytes(options.geometry, bytes));
  if (total(2) > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv cache of ", bytes, " bytes is too small: 2 pages take ",
                     2 * options.geometry.page_bytes(), " bytes and their prefix index ",
                     cache::CacheManager::PrefixIndexBytes(options)));
  }
  std::uint32_t fits = 2;  // binary search: more pages never need fewer bytes
  while (fits < end) {
    const std::uint32_t blocks = end - (end - fits) / 2;
    if (total(blocks) <= bytes) {
      fits = blocks;
    } else {
      end = blocks - 1;
    }
  }
  return fits;
}

namespace {

// Returns CacheManager::PrefixIndexBytes for the cache manager of a runner with these options.
std::int64_t PrefixIndexBytes(const models::ModelSpec& spec, const cache::KvGeometry& geometry,
                              const models::LayerGroups& layers, const RunnerOptions& options,
                              bool prefix_caching) {
  return cache::CacheManager::PrefixIndexBytes(
      {.geometry = geometry,
       .groups = models::CacheGroupsOf(layers),
       .max_rows = options.max_rows,
       .max_context_tokens =
           options.max_context_tokens > 0 ? options.max_context_tokens : spec.max_position,
       .prefix_caching = prefix_caching});
}

// Opens the headers of the files, or describes dummy weights instead.
absl::StatusOr<models::Checkpoint> OpenHeaders(const formats::ModelFiles& files,
                                               const CheckedSpec& checked, LoadMode load_mode) {
  if (load_mode == LoadMode::kReal) {
    return models::Checkpoint::Open(files, checked.config.stored_quantization);
  }
  return models::DummyCheckpoint(checked.config, checked.spec,
                                 models::TensorNamesOf(checked.config),
                                 /*with_values=*/false);
}

// True if every matrix in memory, the head included, is unquantized bf16.
bool AreMatricesBf16(const models::WeightSlots& slots) {
  const auto is_bf16 = [](const models::LinearSlot& slot) {
    return std::ranges::all_of(slot.matrices, [](const models::MatrixSlot& matrix) {
      return matrix.form.is_plain() && matrix.form.dtype == DType::kBF16;
    });
  };
  for (const models::LayerSlots& layer : slots.layers) {
    for (const auto& named : models::LinearsOf(layer)) {
      if (!is_bf16(*named.linear)) return false;
    }
  }
  return is_bf16(slots.input_context) && is_bf16(slots.head);
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const formats::ModelFiles& files,
                                      const HostPlanOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const CheckedSpec checked, ReadModelSpec(files, DeviceKind::kCpu));
  QUIRE_ASSIGN_OR_RETURN(const models::Checkpoint checkpoint,
                         OpenHeaders(files, checked, options.load_mode));
  const models::WeightTarget target{.quantization = options.quantization,
                                    .fp8_activations = options.fp8_activations,
                                    .dummy = options.load_mode == LoadMode::kDummy};
  QUIRE_ASSIGN_OR_RETURN(
      const models::WeightSlots slots,
      models::FindWeights(checked.spec, models::TensorNamesOf(checked.config), checkpoint, target));
  QUIRE_ASSIGN_OR_RETURN(
      const cache::KvGeometry geometry,
      KvGeometryFor(checked.spec, options.page_size, options.kv_dtype, options.num_blocks));
  MemoryPlan plan;
  plan.weight_bytes = models::WeightBytes(slots, target);
  plan.weight_format = slots.quantized_format.empty() ? "none" : slots.quantized_format;
  plan.activations = kernels::ResolveCpuActivations(options.activations, AreMatricesBf16(slots));
  plan.layer_groups = models::PlanLayerGroups(checked.spec);
  plan.state_bytes = options.runner.num_state_slots * plan.layer_groups.state_bytes;
  plan.page_bytes = geometry.page_bytes();
  plan.page_index_bytes = PageIndexBytes(checked.spec, plan.layer_groups, geometry);
  plan.pool_bytes = geometry.page_bytes() * geometry.num_blocks;
  plan.prefix_index_bytes = PrefixIndexBytes(checked.spec, geometry, plan.layer_groups,
                                             options.runner, options.prefix_caching);
  plan.workspace_bytes =
      PlanWorkspaceBytes(checked.spec, options.runner, models::QuantizedMatricesOf(slots),
                         plan.activations, options.num_threads);
  return plan;
}

std::vector<std::pair<std::string, std::int64_t>> DeviceMemoryPlan::Lines() const {
  std::vector<std::pair<std::string, std::int64_t>> lines = {
      {"weights", weight_bytes},
      {"pages", pool_bytes},
      {"activations", runner.activation_bytes},
      {"attention", runner.attention_bytes},
      {"sampler", runner.sampler_bytes},
      {"linear", runner.linear_bytes},
      {"graphs", runner.graph_bytes}};
  if (runner.state_bytes > 0) lines.emplace_back("states", runner.state_bytes);
  lines.emplace_back("total", total_bytes());
  lines.emplace_back("limit", device_memory_bytes);
  return lines;
}

namespace {

absl::StatusOr<std::int64_t> DeviceWeightBytes(const formats::ModelFiles& files,
                                               const CheckedSpec& checked,
                                               const DevicePlanOptions& options) {
  const models::TensorNames& names = models::TensorNamesOf(checked.config);
  QUIRE_ASSIGN_OR_RETURN(const models::Checkpoint checkpoint,
                         OpenHeaders(files, checked, options.load_mode));
  const models::WeightTarget target{.cuda = true,
                                    .activation = options.runner.activation,
                                    .quantization = options.quantization,
                                    .fp8_activations = options.runner.fp8_activations,
                                    .dummy = options.load_mode == LoadMode::kDummy};
  QUIRE_ASSIGN_OR_RETURN(const models::WeightSlots slots,
                         models::FindWeights(checked.spec, names, checkpoint, target));
  return models::WeightBytes(slots, target);
}

absl::Status DoesNotFitError(const DeviceMemoryPlan& plan, absl::string_view why) {
  std::string parts;
  for (const auto& [name, bytes] : plan.Lines()) absl::StrAppend(&parts, ", ", name, " ", bytes);
  return absl::ResourceExhaustedError(
      absl::StrCat("device memory: ", why, " (bytes: ", parts.substr(2), ")"));
}

// Sets the pool of the plan to `num_blocks` pages or, if that is 0, to as many as fit.
absl::Status PlanPool(const models::ModelSpec& spec, cache::KvGeometry geometry,
                      std::uint32_t num_blocks, DeviceMemoryPlan* plan) {
  plan->page_bytes = geometry.page_bytes();
  geometry.num_blocks = 2;
  const std::int64_t guards = cache::KvPool::BytesFor(geometry) - 2 * geometry.page_bytes();
  const std::int64_t left = plan->device_memory_bytes - plan->total_bytes() - guards;
  std::int64_t blocks = num_blocks;
  if (blocks == 0) blocks = std::min(left / geometry.page_bytes(), MaxNumBlocks(spec, geometry));
  plan->num_blocks = static_cast<std::uint32_t>(std::max<std::int64_t>(blocks, 0));
  plan->pool_bytes = guards + plan->num_blocks * geometry.page_bytes();
  if (plan->num_blocks < 2) {
    return DoesNotFitError(*plan,
                           absl::StrCat("at least 2 pages of ", plan->page_bytes,
                                        " bytes are needed, there is room for ", plan->num_blocks));
  }
  if (plan->total_bytes() > plan->device_memory_bytes) {
    return DoesNotFitError(*plan,
                           absl::StrCat(plan->total_bytes(), " bytes are needed, the limit is ",
                                        plan->device_memory_bytes));
  }
  geometry.num_blocks = plan->num_blocks;
  return geometry.Validate();
}

}  // namespace

absl::StatusOr<DeviceMemoryPlan> PlanDeviceMemory(const formats::ModelFiles& files,
                                                  const DevicePlanOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const CheckedSpec checked, ReadModelSpec(files, DeviceKind::kCuda));
  QUIRE_RETURN_IF_ERROR(CheckRunnerOptions(checked.spec, options.runner));
  QUIRE_RETURN_IF_ERROR(CheckActivation(options.runner.activation, options.kv_dtype));
  QUIRE_ASSIGN_OR_RETURN(cache::KvGeometry geometry,
                         KvGeometryFor(checked.spec, options.page_size, options.kv_dtype,
                                       std::max(options.num_blocks, 2u)));
  DeviceMemoryPlan plan;
  plan.device_memory_bytes = options.device_memory_bytes;
  plan.layer_groups = models::PlanLayerGroups(checked.spec);
  plan.page_index_bytes = PageIndexBytes(checked.spec, plan.layer_groups, geometry);
  QUIRE_ASSIGN_OR_RETURN(plan.weight_bytes, DeviceWeightBytes(files, checked, options));
  plan.runner =
      RunnerMemoryFor(checked.spec, CudaSizesFor(checked.spec, options.page_size, options.runner),
                      options.num_sms, options.determinism);
  QUIRE_RETURN_IF_ERROR(PlanPool(checked.spec, geometry, options.num_blocks, &plan));
  geometry.num_blocks = plan.num_blocks;
  plan.prefix_index_bytes = PrefixIndexBytes(checked.spec, geometry, plan.layer_groups,
                                             options.runner, options.prefix_caching);
  return plan;
}

}  // namespace quire::runtime
