// The router, row by row. Routing takes microseconds, whereas the products of the experts take
// milliseconds.

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/backend/exact_math.h"
#include "kernels/moe/router.h"

namespace quire::kernels::internal {
namespace {

constexpr std::uint32_t kNoExpert = UINT32_MAX;

// Scratch memory and inputs for routing one row.
struct Row {
  std::span<const float> logits;
  std::span<float> scores;
  std::span<float> choice;       // scores plus bias
  std::span<float> groups;       // score of each group
  std::span<std::uint8_t> open;  // 1 if the expert can still be selected
};

float Sigmoid(float x) {
  return 1.0f / (1.0f + ExactExp(-x));
}

// Replaces `values` by their softmax. The sum is in ascending order.
void Softmax(std::span<float> values) {
  float largest = values[0];
  for (const float value : values) largest = std::max(largest, value);
  float sum = 0;
  for (float& value : values) {
    value = ExactExp(value - largest);
    sum += value;
  }
  for (float& value : values) value /= sum;
}

void Score(RouterScore score, const Row& row) {
  std::copy(row.logits.begin(), row.logits.end(), row.scores.begin());
  if (score == RouterScore::kSoftmaxAll) Softmax(row.scores);
  if (score == RouterScore::kSigmoid) {
    for (float& value : row.scores) value = Sigmoid(value);
  }
}

float GroupScore(RouterGroupScore kind, std::span<const float> choice) {
  float best = choice[0];
  if (kind == RouterGroupScore::kMax) {
    for (const float value : choice) best = std::max(best, value);
    return best;
  }
  float second = choice[1];
  if (second > best) std::swap(best, second);
  for (const float value : choice.subspan(2)) {
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  return best + second;
}

// Returns the index of the largest value whose `open` is 1, and the lowest such index if values are
// equal. The first open value is the initial best, so a result exists even if all values are NaN.
std::uint32_t Best(std::span<const float> values, std::span<const std::uint8_t> open) {
  std::uint32_t best = kNoExpert;
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    if (open[i] != 0 && (best == kNoExpert || values[i] > values[best])) best = i;
  }
  return best;
}

// Closes the experts of all groups except the best groups_kept groups.
void KeepGroups(const RouterParams& params, const Row& row) {
  const std::size_t per_group = params.num_experts / params.groups;
  for (std::uint32_t g = 0; g < params.groups; ++g) {
    row.groups[g] = GroupScore(params.group_score, row.choice.subspan(g * per_group, per_group));
  }
  // The first entries of row.open are used for groups: entry g is 1 until group g is selected. The
  // last loop of this function overwrites them.
  const std::span<std::uint8_t> unselected = row.open.first(params.groups);
  std::fill(unselected.begin(), unselected.end(), std::uint8_t{1});
  for (std::uint32_t i = 0; i < params.groups_kept; ++i)
    unselected[Best(row.groups, unselected)] = 0;
  // Iterates from the last group to the first. The flag of a group is stored at or before the flags
  // of its experts, so it is read before it is overwritten.
  for (std::size_t g = params.groups; g-- > 0;) {
    const std::uint8_t kept = unselected[g] == 0 ? 1 : 0;
    std::fill_n(row.open.begin() + static_cast<std::ptrdiff_t>(g * per_group), per_group, kept);
  }
}

void Weigh(const RouterParams& params, std::span<float> weights) {
  if (params.score == RouterScore::kSoftmaxChosen) Softmax(weights);
  if (params.score == RouterScore::kSigmoidChosen) {
    for (float& weight : weights) weight = Sigmoid(weight);
  }
  if (params.renormalize) {
    float sum = 0;
    for (const float weight : weights) sum += weight;
    for (float& weight : weights) weight /= sum + params.renorm_eps;
  }
  for (float& weight : weights) weight *= params.weight_scale;
}

}  // namespace

void RouterCpu(const RouterParams& params, std::int64_t row_begin, std::int64_t row_end,
               std::byte* scratch) {
  const std::size_t experts = params.num_experts;
  float* const floats = reinterpret_cast<float*>(scratch);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(floats + 2 * experts + params.groups);
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const Row row{.logits = {params.logits + m * params.logits_stride, experts},
                  .scores = {floats, experts},
                  .choice = {floats + experts, experts},
                  .groups = {floats + 2 * experts, params.groups},
                  .open = {bytes, experts}};
    Score(params.score, row);
    for (std::size_t e = 0; e < experts; ++e) {
      row.choice[e] =
          params.choice_bias == nullptr ? row.scores[e] : row.scores[e] + params.choice_bias[e];
    }
    std::fill(row.open.begin(), row.open.end(), std::uint8_t{1});
    if (params.groups > 1) KeepGroups(params, row);
    std::uint32_t* const chosen = params.experts + m * params.top_k;  // [top_k]
    const std::span<float> weights{params.weights + m * params.top_k, params.top_k};
    for (std::uint32_t k = 0; k < params.top_k; ++k) {
      chosen[k] = Best(row.choice, row.open);
      row.open[chosen[k]] = 0;
      weights[k] = row.scores[chosen[k]];
    }
    Weigh(params, weights);
    if (params.expert_scale == nullptr) continue;
    for (std::uint32_t k = 0; k < params.top_k; ++k) weights[k] *= params.expert_scale[chosen[k]];
  }
}

}  // namespace quire::kernels::internal
