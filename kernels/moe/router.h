#pragma once

// Selects the experts of each row in an MoE block, and their weights.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

enum class RouterScore : std::uint8_t {
  kSoftmaxAll,     // softmax over the logits of all experts
  kSoftmaxChosen,  // selects by the logit; weights are a softmax over the selected logits
  kSigmoid,        // 1 / (1 + exp(-logit))
  kSigmoidChosen,  // selects by the logit; weights are 1 / (1 + exp(-logit))
};

// Specifies how a group's score is computed from the values choice[e] of its experts (see Router).
enum class RouterGroupScore : std::uint8_t { kMax, kTop2Sum };

struct RouterParams {
  const float* logits;                 // [num_rows, num_experts], rows logits_stride apart
  const float* choice_bias = nullptr;  // [num_experts]; null: none
  std::uint32_t* experts;              // [num_rows, top_k]
  float* weights;                      // [num_rows, top_k]
  std::int64_t logits_stride;
  std::uint32_t num_rows;
  std::uint32_t num_experts;
  std::uint32_t top_k;
  RouterScore score = RouterScore::kSoftmaxAll;
  // Experts are split into equal consecutive groups. Only experts of the best groups_kept groups
  // can be selected.
  std::uint32_t groups = 1;
  std::uint32_t groups_kept = 1;
  RouterGroupScore group_score = RouterGroupScore::kMax;
  bool renormalize = false;  // weights /= their sum + renorm_eps
  float renorm_eps = 0;
  float weight_scale = 1;
  const float* expert_scale = nullptr;  // [num_experts]; null: none
};

// Computes for each row, in f32, score[e] and choice[e] = score[e] + choice_bias[e] of each expert.
// Experts of groups that are not kept are excluded. experts[m] are the top_k experts e with the
// largest choice[e], best first. weights[m] are the scores of these experts. They are renormalized
// if requested, then multiplied by weight_scale and by the expert_scale of the expert. Ties between
// experts or groups go to the lower number. Sums over experts or selected experts are in ascending
// index order. On a GPU, sums over all experts have the order of router_choice.cuh. exp is
// ExactExp. Even if logits contain NaN, no expert is selected twice.
//
// Returns INVALID_ARGUMENT if the stride is less than a row, there are no experts, or `groups` does
// not divide num_experts. Returns INVALID_ARGUMENT if top_k or groups_kept is 0 or too large, or if
// kTop2Sum has groups of one expert. A GPU also returns it if the experts do not fit in its shared
// memory, which has room for about 1500 experts.
//
// The order of operations is that of modeling_mixtral.py, modeling_deepseek_v3.py and
// modeling_gpt_oss.py of Hugging Face transformers.
absl::Status Router(const Backend& backend, const RouterParams& params);
// Returns the bytes of each Backend::workspace that Router uses on the CPU.
std::int64_t RouterThreadBytes(std::uint32_t num_experts, std::uint32_t groups);

namespace internal {

// Checks the parameters like Router, except for the limit of shared memory.
absl::Status CheckRouter(const RouterParams& params);
absl::Status RouterCuda(const CudaContext& context, const RouterParams& params);
// Processes rows [row_begin, row_end). `scratch` has room for 2 * num_experts + groups floats and
// num_experts bytes.
void RouterCpu(const RouterParams& params, std::int64_t row_begin, std::int64_t row_end,
               std::byte* scratch);

}  // namespace internal
}  // namespace quire::kernels
