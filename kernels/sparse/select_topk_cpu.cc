#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/sparse/select_topk.h"

namespace quire::kernels::internal {

void SelectTopKCpu(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float* const scores = params.scores + row * params.score_stride;
    std::vector<std::int32_t> keys(static_cast<std::size_t>(params.positions[row]) + 1);
    std::iota(keys.begin(), keys.end(), 0);
    // The sort is stable, so equal scores stay in ascending order of keys.
    std::stable_sort(keys.begin(), keys.end(), [&](std::int32_t a, std::int32_t b) {
      const bool is_nan = std::isnan(scores[b]);
      return std::isnan(scores[a]) ? !is_nan : !is_nan && scores[a] > scores[b];
    });
    keys.resize(std::min<std::size_t>(keys.size(), params.topk));
    std::sort(keys.begin(), keys.end());
    std::int32_t* const selected = params.selected + row * params.max_selected;
    std::fill(std::copy(keys.begin(), keys.end(), selected), selected + params.max_selected, -1);
  }
}

}  // namespace quire::kernels::internal
