#pragma once

// The options of a runner, on either backend.

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
  std::uint32_t max_rows = 0;         // rows of a step, and of the cache manager
  std::uint32_t max_step_tokens = 0;  // tokens of a step; determines the workspace size
  // Maximum number of samples of one step; 0: 4 * max_rows.
  std::uint32_t max_step_samples = 0;
  std::uint32_t max_logprobs = 20;  // maximum number of most likely tokens to report per token
  // [vocab_size], 0 for ids that the tokenizer cannot decode. These are never sampled and never
  // reported as likely tokens. If empty, every id below text_vocab has text.
  std::vector<std::uint8_t> has_text = {};
  // Upper bound of the ids with text, exclusive; 0: vocab_size. A tokenizer may have fewer or more
  // ids than the model.
  std::uint32_t text_vocab = 0;
  // Slots with the states of recurrent layers, the null slot included; 0 for models without such
  // layers.
  std::uint32_t num_state_slots = 0;
  // The communicator of the ranks that share the model; null if the model is not divided. Each rank
  // has its own runner, which gets the same steps. The communicator must outlive the runner.
  kernels::Communicator* comm = nullptr;

  // Only CUDA uses the options below, except max_context_tokens. The CPU uses max_context_tokens
  // for the sizes of the prefix index and of the sparse attention buffers (models::IndexBuffers).

  // Type of activations other than the residual stream: kF32 with f32 pages, else kBF16.
  DType activation = DType::kF32;
  // Maximum tokens of a sequence in the cache manager, which determines the row stride of the page
  // lookup tables; 0: the model's limit.
  std::uint32_t max_context_tokens = 0;
  // Runs decode steps of undivided models as captured graphs, which does not change any bit of the
  // results.
  bool graphs = true;
  // LoadOptions::fp8_activations. Graphs reserve room for the launches that quantize activations.
  bool fp8_activations = false;
};

// Returns the sizes in `options` with defaults filled in.
models::StepLimits LimitsOf(const RunnerOptions& options);

// If an option is out of range, returns INVALID_ARGUMENT with its name, its value and the limits.
absl::Status CheckRunnerOptions(const models::ModelSpec& spec, const RunnerOptions& options);

// Returns INVALID_ARGUMENT unless the communicator has the rank of the model's part and exchanges
// memory of the backend.
absl::Status CheckCommunicator(models::RankPart part, const RunnerOptions& options,
                               const kernels::Backend& backend);

// Returns INVALID_ARGUMENT if a pool of this geometry cannot hold the model's K and V.
absl::Status CheckPoolGeometry(const models::ModelSpec& spec, const cache::KvGeometry& pool);

}  // namespace quire::runtime
