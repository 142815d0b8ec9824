#pragma once

// Exact bytes of a model, its KV pool and its workspace, before any of them is allocated.

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "cache_manager/kv_params.h"
#include "models/layer_spec.h"

namespace quire::models {

class Checkpoint;

// num_blocks counts pages with the null page. Returns UNIMPLEMENTED when the layers of `spec` need more
// than one group of pages, INVALID_ARGUMENT (from KvGeometry::Validate) otherwise.
absl::StatusOr<cache::KvGeometry> KvGeometryFor(const ModelSpec& spec, std::uint32_t page_size,
                                                DType kv_dtype, std::uint32_t num_blocks);

// The most pages, the null page included, whose bytes stay within `bytes` and whose rows stay within the
// limits of a view. `geometry.num_blocks` is ignored. Returns INVALID_ARGUMENT with the numbers when not
// even two fit.
absl::StatusOr<std::uint32_t> NumBlocksForBytes(const cache::KvGeometry& geometry,
                                                std::int64_t bytes);

struct MemoryPlan {
  std::int64_t weight_bytes = 0;
  std::int64_t pool_bytes = 0;       // all pages, null page included
  std::int64_t workspace_bytes = 0;  // of a ModelRunner
  std::int64_t total_bytes() const { return weight_bytes + pool_bytes + workspace_bytes; }
};

// Bytes of Weights::Load(spec, checkpoint). Returns INVALID_ARGUMENT for a tensor that is missing or has
// another shape or type.
absl::StatusOr<std::int64_t> PlanWeightBytes(const ModelSpec& spec, const Checkpoint& checkpoint);

// Bytes of a ModelRunner's buffers (see RunnerOptions).
std::int64_t PlanWorkspaceBytes(const ModelSpec& spec, std::uint32_t max_step_tokens,
                                std::uint32_t max_step_draws, std::uint32_t max_logprobs);

}  // namespace quire::models
