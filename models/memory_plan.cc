#include "models/memory_plan.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/checkpoint/checkpoint.h"
#include "models/families/registry.h"
#include "models/model.h"
#include "models/step_buffers.h"
#include "models/weights.h"

namespace quire::models {

absl::StatusOr<cache::KvGeometry> KvGeometryFor(const ModelSpec& spec, std::uint32_t page_size,
                                                DType kv_dtype, std::uint32_t num_blocks) {
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    if (layer.attention != AttentionKind::kHeads || layer.cache_group != 0) {
      return absl::UnimplementedError(
          absl::StrCat("layer ", i, " needs another kind of page than layer 0"));
    }
  }
  cache::KvGeometry geometry;
  geometry.num_blocks = num_blocks;
  geometry.num_layers = static_cast<std::uint32_t>(spec.layers.size());
  geometry.page_size = page_size;
  geometry.num_heads = spec.layers[0].heads.num_kv_heads;
  geometry.head_size = spec.layers[0].heads.head_size;
  geometry.dtype = kv_dtype;
  if (kv_dtype == DType::kI8 || kv_dtype == DType::kF8E4M3) {
    geometry.scale_dtype = DType::kF32;
    geometry.granularity = geometry.head_size;
  }
  QUIRE_RETURN_IF_ERROR(geometry.Validate());
  return geometry;
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

absl::StatusOr<MemoryPlan> PlanMemory(const ModelFiles& files, std::uint32_t page_size,
                                      DType kv_dtype, std::uint32_t num_blocks,
                                      const RunnerOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const CheckedSpec checked, ReadModelSpec(files));
  QUIRE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(files));
  QUIRE_ASSIGN_OR_RETURN(
      const WeightSlots slots,
      FindWeights(checked.spec, FamilyNamed(checked.config.family).names, checkpoint));
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry,
                         KvGeometryFor(checked.spec, page_size, kv_dtype, num_blocks));
  MemoryPlan plan;
  plan.weight_bytes = WeightBytes(slots, {});
  plan.page_bytes = geometry.page_bytes();
  plan.pool_bytes = geometry.page_bytes() * geometry.num_blocks;
  plan.workspace_bytes = PlanWorkspaceBytes(checked.spec, options);
  return plan;
}

}  // namespace quire::models
