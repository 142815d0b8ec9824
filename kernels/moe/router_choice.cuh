#pragma once

// One warp selects the experts of a row, with the row's scores in shared memory. Lane l processes
// experts l, l + 32 and so on. The best expert has the largest key (score, complement of the
// index), so ties go to the lower number and all lanes agree, even with NaN. For sums over all
// experts, each lane adds its own values in ascending order. A butterfly then adds the lanes. One
// lane processes the selected experts in order of selection.

#include <cstdint>
#include <limits>

#include "kernels/backend/exact_math.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/moe/router.h"

namespace quire::kernels::router_choice {

// Number of floats in shared memory per warp: score[e] and choice[e] of the experts (router.h), and
// group scores. If an expert can no longer be selected, its choice[e] is replaced by ClosedScore().
constexpr std::uint32_t WarpFloats(std::uint32_t num_experts, std::uint32_t groups) {
  return 2 * num_experts + groups;
}

// Entries that can no longer be selected have the smallest key, and NaN the next.
// REQUIRES: index < 2^32 - 1.
inline constexpr std::uint64_t kClosedKey = 0;
__device__ __forceinline__ std::uint64_t KeyOf(float score, std::uint32_t index) {
  const std::uint32_t bits = cuda::FloatBits(cuda::Add(score, 0.0f));  // -0 is treated as 0
  std::uint32_t rank = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if (score != score) rank = 0;
  return std::uint64_t{rank} << 32 | (0xffffffffu - index);
}

// Bits of a closed entry: a NaN that no arithmetic produces.
inline constexpr std::uint32_t kClosedBits = 0xffffabcdu;
__device__ __forceinline__ float ClosedScore() {
  return cuda::BitsFloat(kClosedBits);
}

// Returns the index of the largest value that is not closed, in every lane. REQUIRES: at least one
// value is not closed.
__device__ __forceinline__ std::uint32_t Best(const float* values, std::uint32_t count) {
  std::uint64_t best = kClosedKey;
  for (std::uint32_t i = cuda::Lane(); i < count; i += cuda::kWarpSize) {
    const float value = values[i];
    if (cuda::FloatBits(value) == kClosedBits) continue;
    const std::uint64_t key = KeyOf(value, i);
    if (key > best) best = key;
  }
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    const std::uint64_t other = cuda::ShuffleXor(best, mask);
    if (other > best) best = other;
  }
  return 0xffffffffu - static_cast<std::uint32_t>(best);
}

// Returns the result of Best and closes that entry.
__device__ __forceinline__ std::uint32_t TakeBest(float* values, std::uint32_t count) {
  const std::uint32_t best = Best(values, count);
  cuda::SyncWarp();
  if (cuda::Lane() == 0) values[best] = ClosedScore();
  cuda::SyncWarp();
  return best;
}

__device__ __forceinline__ float Sigmoid(float x) {
  return cuda::Div(1.0f, cuda::Add(1.0f, ExactExp(-x)));
}

// Computes scores[e] and choice[e] of all experts from their logits.
__device__ __forceinline__ void Score(const RouterParams& params, const float* logits,
                                      float* scores, float* choice) {
  const std::uint32_t experts = params.num_experts;
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0;
  if (params.score == RouterScore::kSoftmaxAll) {
    for (std::uint32_t e = cuda::Lane(); e < experts; e += cuda::kWarpSize) {
      largest = cuda::Max(largest, logits[e]);
    }
    for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
      largest = cuda::Max(largest, cuda::ShuffleXor(largest, mask));
    }
    for (std::uint32_t e = cuda::Lane(); e < experts; e += cuda::kWarpSize) {
      sum = cuda::Add(sum, ExactExp(cuda::Sub(logits[e], largest)));
    }
    for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
      sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
    }
  }
  for (std::uint32_t e = cuda::Lane(); e < experts; e += cuda::kWarpSize) {
    float score = logits[e];
    if (params.score == RouterScore::kSoftmaxAll) {
      score = cuda::Div(ExactExp(cuda::Sub(score, largest)), sum);
    }
    if (params.score == RouterScore::kSigmoid) score = Sigmoid(score);
    scores[e] = score;
    choice[e] = params.choice_bias == nullptr ? score : cuda::Add(score, params.choice_bias[e]);
  }
  cuda::SyncWarp();
}

__device__ __forceinline__ float GroupScoreOf(RouterGroupScore kind, const float* choice,
                                              std::uint32_t count) {
  float best = choice[0];
  float second = -std::numeric_limits<float>::infinity();
  for (std::uint32_t i = 1; i < count; ++i) {
    const float value = choice[i];
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  return kind == RouterGroupScore::kMax ? best : cuda::Add(best, second);
}

// Keeps the best `groups_kept` groups and closes the experts of all others.
__device__ __forceinline__ void KeepGroups(const RouterParams& params, float* choice,
                                           float* groups) {
  const std::uint32_t per_group = params.num_experts / params.groups;
  for (std::uint32_t g = cuda::Lane(); g < params.groups; g += cuda::kWarpSize) {
    groups[g] = GroupScoreOf(params.group_score, choice + g * per_group, per_group);
  }
  cuda::SyncWarp();
  for (std::uint32_t i = 0; i < params.groups_kept; ++i) TakeBest(groups, params.groups);
  for (std::uint32_t e = cuda::Lane(); e < params.num_experts; e += cuda::kWarpSize) {
    if (cuda::FloatBits(groups[e / per_group]) != kClosedBits) choice[e] = ClosedScore();
  }
  cuda::SyncWarp();
}

// Converts the scores of the selected experts to weights. One lane calls this function.
__device__ __forceinline__ void Weigh(const RouterParams& params, const std::uint32_t* experts,
                                      float* weights) {
  const std::uint32_t count = params.top_k;
  if (params.score == RouterScore::kSoftmaxChosen) {
    float largest = weights[0];
    for (std::uint32_t k = 1; k < count; ++k) largest = cuda::Max(largest, weights[k]);
    float sum = 0;
    for (std::uint32_t k = 0; k < count; ++k) {
      weights[k] = ExactExp(cuda::Sub(weights[k], largest));
      sum = cuda::Add(sum, weights[k]);
    }
    for (std::uint32_t k = 0; k < count; ++k) weights[k] = cuda::Div(weights[k], sum);
  }
  if (params.score == RouterScore::kSigmoidChosen) {
    for (std::uint32_t k = 0; k < count; ++k) weights[k] = Sigmoid(weights[k]);
  }
  float divisor = 1;
  if (params.renormalize) {
    divisor = 0;
    for (std::uint32_t k = 0; k < count; ++k) divisor = cuda::Add(divisor, weights[k]);
    divisor = cuda::Add(divisor, params.renorm_eps);
  }
  for (std::uint32_t k = 0; k < count; ++k) {
    weights[k] = cuda::Mul(cuda::Div(weights[k], divisor), params.weight_scale);
    if (params.expert_scale == nullptr) continue;
    weights[k] = cuda::Mul(weights[k], params.expert_scale[experts[k]]);
  }
}

// Selects experts and weights of row `row`. One warp calls this function. `scratch` is shared
// memory for WarpFloats floats.
__device__ __forceinline__ void ChooseExperts(const RouterParams& params, std::uint32_t row,
                                              float* scratch) {
  float* const scores = scratch;
  float* const choice = scores + params.num_experts;
  Score(params, params.logits + row * params.logits_stride, scores, choice);
  if (params.groups > 1) KeepGroups(params, choice, choice + params.num_experts);
  std::uint32_t* const experts = params.experts + std::int64_t{row} * params.top_k;
  float* const weights = params.weights + std::int64_t{row} * params.top_k;
  for (std::uint32_t k = 0; k < params.top_k; ++k) {
    const std::uint32_t best = TakeBest(choice, params.num_experts);
    if (cuda::Lane() != 0) continue;
    experts[k] = best;
    weights[k] = scores[best];
  }
  if (cuda::Lane() == 0) Weigh(params, experts, weights);
  cuda::SyncWarp();
}

}  // namespace quire::kernels::router_choice
