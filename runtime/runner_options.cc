#include "runtime/runner_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/backend/backend.h"
#include "kernels/comm/communicator.h"
#include "runtime/memory_plan.h"

namespace quire::runtime {
namespace {

constexpr std::uint32_t kMaxStepTokens = 1u << 20;
constexpr std::uint32_t kMaxRows = 1u << 16;
constexpr std::uint32_t kMaxLogprobs = 1024;

}  // namespace

models::StepLimits LimitsOf(const RunnerOptions& options) {
  return {.max_rows = options.max_rows,
          .max_step_tokens = options.max_step_tokens,
          .max_step_samples =
              options.max_step_samples == 0 ? 4 * options.max_rows : options.max_step_samples,
          .max_logprobs = options.max_logprobs,
          .num_state_slots = options.num_state_slots,
          .is_part = options.comm != nullptr,
          .max_context_tokens = options.max_context_tokens};
}

absl::Status CheckRunnerOptions(const models::ModelSpec& spec, const RunnerOptions& options) {
  const models::StepLimits limits = LimitsOf(options);
  const struct {
    const char* name;
    std::uint32_t value;
    std::uint32_t low;
    std::uint32_t high;
  } ranges[] = {{"max_rows", limits.max_rows, 1, kMaxRows},
                {"max_step_tokens", limits.max_step_tokens, 1, kMaxStepTokens},
                {"max_step_samples", limits.max_step_samples, 1, kMaxStepTokens},
                {"max_logprobs", limits.max_logprobs, 0, kMaxLogprobs}};
  for (const auto& range : ranges) {
    if (range.value < range.low || range.value > range.high) {
      return absl::InvalidArgumentError(absl::StrCat(
          range.name, " is ", range.value, ", it must be ", range.low, " to ", range.high));
    }
  }
  const bool is_recurrent = std::ranges::any_of(
      spec.layers, [](const models::LayerSpec& layer) { return layer.has_state(); });
  if (is_recurrent ? options.num_state_slots < 2 : options.num_state_slots != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_state_slots is ", options.num_state_slots, ", it must be ",
                     is_recurrent ? "at least 2 for a model with recurrent layers"
                                  : "0 for a model without recurrent layers"));
  }
  if (!options.has_text.empty() && options.has_text.size() != spec.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("has_text has ", options.has_text.size(),
                                                   " entries, vocab_size is ", spec.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status CheckCommunicator(models::RankPart part, const RunnerOptions& options,
                               const kernels::Backend& backend) {
  const models::RankPart comm_part =
      options.comm == nullptr ? models::RankPart{}
                              : models::RankPart{options.comm->rank(), options.comm->size()};
  if (options.comm != nullptr &&
      options.comm->backend() != (backend.cuda() == nullptr ? nullptr : &backend)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the communicator exchanges ",
        options.comm->backend() == nullptr ? "host memory" : "memory of another backend",
        ", the runner computes on ", backend.device().name));
  }
  if (comm_part != part) {
    return absl::InvalidArgumentError(
        absl::StrCat("the communicator is of rank ", comm_part.rank, " of ", comm_part.size,
                     ", the model's part is of rank ", part.rank, " of ", part.size));
  }
  // NCCL requires all ranks to capture and launch the same graphs, but each runner decides for
  // itself. NCCL also cannot abort a communicator that a graph uses.
  if (options.comm != nullptr && backend.cuda() != nullptr && options.graphs) {
    return absl::UnimplementedError(
        "decode graphs are not supported for a model that is divided among GPUs");
  }
  return absl::OkStatus();
}

absl::Status CheckPoolGeometry(const models::ModelSpec& spec, const cache::KvGeometry& pool) {
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry expected,
                         KvGeometryFor(spec, pool.page_size, pool.dtype, pool.num_blocks));
  if (pool.kv_dim == expected.kv_dim && pool.num_layers == expected.num_layers &&
      pool.num_heads == expected.num_heads && pool.head_size == expected.head_size &&
      pool.scale_dtype == expected.scale_dtype && pool.granularity == expected.granularity &&
      pool.page_stride == expected.page_stride) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kv pool has ", pool.num_layers, " layers of ", pool.num_heads,
                   " heads of size ", pool.head_size, ", page stride ", pool.page_stride,
                   "; the model needs ", expected.num_layers, " layers of ", expected.num_heads,
                   " heads of size ", expected.head_size, ", page stride ", expected.page_stride));
}

}  // namespace quire::runtime
