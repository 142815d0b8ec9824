#pragma once

// Exact bytes of a model, its KV pages and its workspace, before any of them is allocated.

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "cache_manager/kv_params.h"
#include "models/checkpoint/model_files.h"
#include "models/layer_spec.h"
#include "models/model_runner.h"

namespace quire::models {

// The pages of a model. num_blocks counts pages with the null page. Returns UNIMPLEMENTED when the
// layers need more than one group of pages, INVALID_ARGUMENT from KvGeometry::Validate otherwise.
absl::StatusOr<cache::KvGeometry> KvGeometryFor(const ModelSpec& spec, std::uint32_t page_size,
                                                DType kv_dtype, std::uint32_t num_blocks);

// The most pages, the null page included, whose bytes stay within `bytes` and whose rows stay
// within the limits of a view; geometry.num_blocks is ignored. Returns INVALID_ARGUMENT with the
// numbers when not even two fit.
absl::StatusOr<std::uint32_t> NumBlocksForBytes(const cache::KvGeometry& geometry,
                                                std::int64_t bytes);

// Bytes of a ModelRunner's buffers; equals workspace_bytes() of a runner made with these options.
// Scratch that ops grow inside the Backend is not part of it.
std::int64_t PlanWorkspaceBytes(const ModelSpec& spec, const RunnerOptions& options);

struct MemoryPlan {
  std::int64_t weight_bytes = 0;  // equals Model::weight_bytes after loading
  std::int64_t page_bytes = 0;    // of one page
  std::int64_t pool_bytes = 0;    // of all pages, the null page included
  std::int64_t workspace_bytes = 0;
  std::int64_t total_bytes() const { return weight_bytes + pool_bytes + workspace_bytes; }
};

// Reads configuration and headers, loads nothing. Errors as LoadModel and KvGeometryFor.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelFiles& files, std::uint32_t page_size,
                                      DType kv_dtype, std::uint32_t num_blocks,
                                      const RunnerOptions& options);

}  // namespace quire::models
