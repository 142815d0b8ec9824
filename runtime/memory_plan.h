#pragma once

// Computes the exact bytes of a model, its KV pages and its workspace before any of them is
// allocated. PlanMemory plans for the host, and PlanDeviceMemory for a GPU, which need not be
// present.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/views/kv_params.h"
#include "formats/model_files.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/context.h"
#include "models/blocks/layer_groups.h"
#include "models/config/layer_spec.h"
#include "runtime/model.h"
#include "runtime/runner_options.h"

namespace quire::models {
struct QuantizedMatrices;  // weights.h
}  // namespace quire::models

namespace quire::runtime {

// Returns the geometry of a model's pages. A page has the number of slots that PlanLayerGroups
// chooses, and room for index rows (models::IndexSpec). GroupGeometry returns the geometry of a
// group's layers. int8 and fp8_e4m3 pages have one f32 scale per token and head. num_blocks
// includes the null page. Returns UNIMPLEMENTED with the layer if the kinds of attention differ, or
// a head size is not a multiple of the smallest one. Also returns the errors of
// KvGeometry::Validate.
absl::StatusOr<cache::KvGeometry> KvGeometryFor(const models::ModelSpec& spec,
                                                std::uint32_t page_size, DType kv_dtype,
                                                std::uint32_t num_blocks);

// The position of a model's index rows (models::IndexSpec) in a pool. Index rows follow the other
// rows of each page. Their type is f32 in pages of f32, and bf16 in other pages.
struct IndexRows {
  std::int64_t offset_bytes = 0;  // from KvPool::blocks()
  cache::KvGeometry geometry;     // its views are LatentView(collection, LayerPlace::index_slot)
};

// Returns the position of index rows in a pool with the geometry of KvGeometryFor. Returns the
// errors of KvGeometry::Validate. REQUIRES: a layer has an indexer.
absl::StatusOr<IndexRows> IndexRowsFor(const models::ModelSpec& spec,
                                       const cache::KvGeometry& geometry);

// Returns the maximum number of pages, including the null page, of a pool with this geometry, which
// KvGeometryFor returned. The rows of each layer group and the index rows must be within the row
// limit of a view. geometry.num_blocks is ignored.
std::int64_t MaxNumBlocks(const models::ModelSpec& spec, const cache::KvGeometry& geometry);

// Returns the maximum number of pages, the null page included, that fit into `bytes` and into the
// row limit of a view. geometry.num_blocks is ignored. Returns INVALID_ARGUMENT if fewer than two
// fit.
absl::StatusOr<std::uint32_t> NumBlocksForBytes(const cache::KvGeometry& geometry,
                                                std::int64_t bytes);

// Returns the maximum number of pages that fit into `bytes` of host memory together with their
// prefix index. Ignores options.geometry.num_blocks.
absl::StatusOr<std::uint32_t> NumBlocksWithIndex(cache::CacheManagerOptions options,
                                                 std::int64_t bytes);

// Returns the bytes of a CpuRunner's buffers and of the scratch memory that it reserves. The result
// equals workspace_bytes() of a runner with these options and a backend with these threads and
// activations. The work list and partial results of attention depend on the step, and may need more
// than the scratch memory that is reserved for products. REQUIRES: activations is not kAuto.
std::int64_t PlanWorkspaceBytes(const models::ModelSpec& spec, const RunnerOptions& options,
                                const models::QuantizedMatrices& quantized,
                                kernels::CpuActivations activations, int num_threads);

struct MemoryPlan {
  std::int64_t weight_bytes = 0;  // equals Model::weight_bytes after loading
  std::string weight_format;      // Model::quantization
  // Type of the activations of products: HostPlanOptions::activations, with kAuto replaced by the
  // type that suits the weights.
  kernels::CpuActivations activations = kernels::CpuActivations::kF32;
  models::LayerGroups layer_groups;
  std::int64_t page_bytes = 0;          // one page
  std::int64_t page_index_bytes = 0;    // index rows of one page, a part of page_bytes
  std::int64_t pool_bytes = 0;          // all pages, the null page included
  std::int64_t prefix_index_bytes = 0;  // an upper bound, CacheManager::PrefixIndexBytes
  std::int64_t workspace_bytes = 0;
  std::int64_t state_bytes = 0;  // all slots of recurrent states, the size of CpuRunner::states
  std::int64_t total_bytes() const {
    return weight_bytes + pool_bytes + prefix_index_bytes + workspace_bytes + state_bytes;
  }
};

struct HostPlanOptions {
  std::uint32_t page_size = 64;
  DType kv_dtype = DType::kBF16;
  std::uint32_t num_blocks = 0;  // pages, the null page included
  bool prefix_caching = true;
  LoadMode load_mode = LoadMode::kReal;
  models::Quantization quantization = models::Quantization::kAuto;
  bool fp8_activations = false;
  kernels::CpuActivations activations = kernels::CpuActivations::kInt8;
  int num_threads = 1;  // threads for ops
  RunnerOptions runner;
};

// Reads configuration and headers, or only the configuration with LoadMode::kDummy. Loads nothing.
// Returns the errors of LoadModel and KvGeometryFor.
absl::StatusOr<MemoryPlan> PlanMemory(const formats::ModelFiles& files,
                                      const HostPlanOptions& options);

// The memory that a CudaRunner allocates, and the scratch memory of its backend for matrix
// products.
struct RunnerMemory {
  std::int64_t activation_bytes = 0;  // activations, logits, step arrays, lookup table
  std::int64_t attention_bytes = 0;   // work lists and partial results
  std::int64_t sampler_bytes = 0;
  std::int64_t linear_bytes = 0;  // scratch of matrix products
  std::int64_t graph_bytes = 0;   // upper bound, reserved for captured graphs
  std::int64_t state_bytes = 0;   // all slots of recurrent states
  std::int64_t pinned_bytes = 0;  // host memory
  std::int64_t device_bytes() const {
    return activation_bytes + attention_bytes + sampler_bytes + linear_bytes + graph_bytes +
           state_bytes;
  }
};

struct DevicePlanOptions {
  std::uint32_t page_size = 64;
  DType kv_dtype = DType::kBF16;
  std::uint32_t num_blocks = 0;  // pages, the null page included; 0: as many as fit
  bool prefix_caching = true;
  std::int64_t device_memory_bytes = 0;  // the memory that may be used
  std::uint32_t num_sms = 132;
  kernels::Determinism determinism = kernels::Determinism::kBatchInvariant;
  LoadMode load_mode = LoadMode::kReal;
  models::Quantization quantization = models::Quantization::kAuto;
  RunnerOptions runner;
};

struct DeviceMemoryPlan {
  std::int64_t device_memory_bytes = 0;  // the limit
  std::int64_t weight_bytes = 0;         // equals Model::weight_bytes after loading
  models::LayerGroups layer_groups;
  std::int64_t page_bytes = 0;          // one page
  std::int64_t page_index_bytes = 0;    // MemoryPlan::page_index_bytes
  std::uint32_t num_blocks = 0;         // pages, the null page included
  std::int64_t pool_bytes = 0;          // all pages and the guards around them
  std::int64_t prefix_index_bytes = 0;  // host memory; an upper bound
  RunnerMemory runner;
  std::int64_t total_bytes() const { return weight_bytes + pool_bytes + runner.device_bytes(); }
  // Returns name and bytes of each part of the total, in the order above, then "total" and "limit".
  // "states" is missing without recurrent layers.
  std::vector<std::pair<std::string, std::int64_t>> Lines() const;
};

// Reads configuration and headers, or only the configuration with LoadMode::kDummy. Loads nothing
// and needs no GPU. Returns RESOURCE_EXHAUSTED with the bytes of every part if the total exceeds
// the limit or fewer than two pages fit. Also returns the errors of LoadModel, KvGeometryFor and
// CudaRunner::Create.
absl::StatusOr<DeviceMemoryPlan> PlanDeviceMemory(const formats::ModelFiles& files,
                                                  const DevicePlanOptions& options);

}  // namespace quire::runtime
