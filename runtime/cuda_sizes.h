#pragma once

// Computes the sizes of everything that a CudaRunner allocates. The memory plan and the runner use
// them.

#include <cstdint>
#include <vector>

#include "kernels/attention/attention_plan.h"
#include "kernels/cuda/context.h"
#include "kernels/sampling/device_sampler.h"
#include "models/blocks/layer_groups.h"
#include "models/blocks/step_buffers.h"
#include "models/config/layer_spec.h"
#include "runtime/memory_plan.h"
#include "runtime/runner_options.h"

namespace quire::runtime {

// Maximum number of rows of a step that runs as a graph.
inline constexpr std::uint32_t kMaxGraphRows = 256;

// Returns the smallest graph size >= num_rows, in rows. The sizes are 1, 2, 4, 8, 16, 24, ..., 64,
// 80, ..., 128, 160, ..., 256. There are only 19, because all graphs are captured at start. A graph
// has as many tiles of 64 rows as the step, so padding adds no tiles to large products.
constexpr std::uint32_t GraphBucket(std::uint32_t num_rows) {
  if (num_rows <= 2) return num_rows;
  if (num_rows <= 4) return 4;
  const std::uint32_t step = num_rows <= 64 ? 8 : num_rows <= 128 ? 16 : 32;
  return (num_rows + step - 1) / step * step;
}

struct CudaSizes {
  models::StepLimits limits;                            // sizes of a step batch
  models::StepLimits buffers;                           // limits plus the padding of graphs
  std::uint32_t max_context = 0;                        // maximum tokens of a sequence
  std::uint32_t max_graph_rows = 0;                     // 0: no graphs
  bool has_tail = false;                                // CudaTail is used
  std::vector<kernels::AttentionPlanLimits> attention;  // distinct limits of all layer groups
  kernels::DeviceSamplerLimits sampler;
  std::int64_t sampled_stride = 0;  // sampled tokens of one step in flight, including padding
  std::int64_t pooled_bytes = 0;    // one hidden state in f32 per row
  std::int64_t graph_bytes = 0;     // memory reserved for graphs
  std::int64_t state_bytes = 0;     // all slots of recurrent states
};

// REQUIRES: CheckRunnerOptions(spec, options) is OK.
CudaSizes CudaSizesFor(const models::ModelSpec& spec, std::uint32_t page_size,
                       const RunnerOptions& options);

// Returns the limits of the attention plan of a layer group.
kernels::AttentionPlanLimits AttentionLimitsOf(const models::ModelSpec& spec,
                                               const models::LayerGroups& layers, std::size_t group,
                                               const CudaSizes& sizes);

// Returns the memory of a runner, including the backend's scratch memory for matrix products.
RunnerMemory RunnerMemoryFor(const models::ModelSpec& spec, const CudaSizes& sizes,
                             std::uint32_t num_sms, kernels::Determinism determinism);

// Returns INVALID_ARGUMENT if the types of activations and pages do not match, or if a GPU does not
// support one of them.
absl::Status CheckActivation(DType activation, DType kv_dtype);

}  // namespace quire::runtime
