#pragma once

// Which experts of a mixture compute a row, and with what weights.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

enum class RouterScore : std::uint8_t {
  kSoftmaxAll,     // softmax over the logits of all experts
  kSoftmaxChosen,  // the logit itself chooses, softmax over the chosen ones
  kSigmoid,        // 1 / (1 + exp(-logit))
  kSigmoidChosen,  // the logit itself chooses, then as kSigmoid
};

// How good a group of experts is, by the choice scores of its experts.
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
  // Experts are in equal runs; only those of the best groups_kept groups can be chosen.
  std::uint32_t groups = 1;
  std::uint32_t groups_kept = 1;
  RouterGroupScore group_score = RouterGroupScore::kMax;
  bool renormalise = false;  // weights /= their sum + renorm_eps
  float renorm_eps = 0;
  float weight_scale = 1;
};

// Row by row in f32: score of each expert; choice = score + choice_bias; groups that are not kept
// drop out; experts[m] = the top_k experts of largest choice, best first; weights[m] = their scores
// without the bias, renormalised if asked, times weight_scale. Ties, of groups too, go to the lower
// number. Sums run over experts, or chosen experts, in ascending order of index, on a GPU those
// over all experts in that of router_choice.cuh; exp is ExactExp. A NaN among the logits never
// makes an expert appear twice. Returns INVALID_ARGUMENT for a stride below a row, no experts,
// groups that do not divide them, a top_k, groups_kept or kTop2Sum that asks for more than there
// is, or more experts than a GPU's shared memory holds, 1500 or so.
// Source of the order of operations: modeling_mixtral.py, modeling_deepseek_v3.py and
// modeling_gpt_oss.py of Hugging Face transformers.
absl::Status Router(const Backend& backend, const RouterParams& params);

namespace internal {

// The errors of Router, shared memory aside.
absl::Status CheckRouter(const RouterParams& params);
absl::Status RouterCuda(const CudaContext& context, const RouterParams& params);
// Rows [row_begin, row_end). `scratch` holds 2 * num_experts + groups floats and num_experts bytes.
void RouterCpu(const RouterParams& params, std::int64_t row_begin, std::int64_t row_end,
               std::byte* scratch);

}  // namespace internal
}  // namespace quire::kernels
