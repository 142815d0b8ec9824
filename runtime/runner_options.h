#pragma once

// What a runner is made with, on either backend.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "cache_manager/views/kv_params.h"
#include "models/blocks/step_buffers.h"
#include "models/config/layer_spec.h"
#include "models/config/rank_part.h"

namespace quire::kernels {
class Backend;
class Communicator;
}  // namespace quire::kernels

namespace quire::runtime {

struct RunnerOptions {
  std::uint32_t max_rows = 0;         // rows of a step, and the cache manager's rows
  std::uint32_t max_step_tokens = 0;  // tokens of a step; sizes the workspace
  // Most samples and prompt logprobs of one step, and most best tokens that each may report.
  std::uint32_t max_step_samples = 0;  // 0: 4 * max_rows
  std::uint32_t max_logprobs = 20;
  // [vocab_size], 0 for ids that the tokenizer cannot decode: they are never sampled and never
  // listed among the best. Empty: every id below text_vocab has text.
  std::vector<std::uint8_t> has_text = {};
  // Ids from here on have no text; 0: vocab_size. A tokenizer may know more ids than the model.
  std::uint32_t text_vocab = 0;
  // Of the group whose ranks share the model, each of which has a runner of its own that gets the
  // same steps; outlives the runner. Null: the model is whole.
  kernels::Communicator* comm = nullptr;

  // CUDA only from here on, but that the context bounds the prefix index on CPUs as well.
  // Of activations other than the residual stream: kF32 or kBF16. f32 pages go with kF32, all
  // others with kBF16.
  DType activation = DType::kF32;
  // The cache manager's limit, which gives the stride of the lookup tables; 0: the model's own.
  std::uint32_t max_context_tokens = 0;
  // Decode steps of models that are whole run as captured graphs. The bits are the same either way.
  bool graphs = true;
  // LoadOptions::fp8_activations: products launch the rounding of their rows too, for which graphs
  // have room.
  bool fp8_activations = false;
};

// The sizes in `options`, defaults filled in.
models::StepLimits LimitsOf(const RunnerOptions& options);

// Returns INVALID_ARGUMENT that names the option, its value and the limits.
absl::Status CheckRunnerOptions(const models::ModelSpec& spec, const RunnerOptions& options);

// Returns INVALID_ARGUMENT unless the communicator is that of the rank whose part the model is, and
// exchanges what lies where the backend computes.
absl::Status CheckCommunicator(models::RankPart part, const RunnerOptions& options,
                               const kernels::Backend& backend);

// Returns INVALID_ARGUMENT when a pool of this geometry cannot hold the model's K and V.
absl::Status CheckPoolGeometry(const models::ModelSpec& spec, const cache::KvGeometry& pool);

}  // namespace quire::runtime
