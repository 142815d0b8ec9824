#include "runtime/step_order.h"

#include <algorithm>

namespace quire::runtime {

StepOrder::StepOrder(const models::StepLimits& limits) {
  row_order_.reserve(limits.max_rows);
  batch_index_.reserve(limits.max_step_tokens);
  step_index_.reserve(limits.max_step_tokens);
}

std::uint32_t StepOrder::Order(const StepBatch& batch, const StepArrays& out) {
  row_order_.resize(batch.rows.size());
  batch_index_.resize(batch.token_ids.size());
  step_index_.resize(batch.token_ids.size());
  for (std::uint32_t i = 0; i < batch.rows.size(); ++i) row_order_[i] = i;
  std::sort(row_order_.begin(), row_order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return batch.rows[a].batch_row < batch.rows[b].batch_row;
  });
  std::uint32_t next_row = 0;
  std::uint32_t token = 0;
  for (std::size_t i = 0; i < row_order_.size(); ++i) {
    const StepRow& row = batch.rows[row_order_[i]];
    const std::uint32_t batch_row = row.batch_row.value();
    if (out.live_rows) out.live_rows[i] = batch_row;
    for (; next_row <= batch_row; ++next_row) {
      const bool scheduled = next_row == batch_row;
      out.row_offsets[next_row] = token;
      if (out.cache_lengths) out.cache_lengths[next_row] = scheduled ? row.cache_length : 0;
      if (out.prefill_tokens) out.prefill_tokens[next_row] = scheduled ? row.prompt_tokens : 0;
    }
    for (std::uint32_t j = 0; j < row.num_tokens; ++j, ++token) {
      const std::uint32_t source = row.first_token + j;
      out.tokens[token] = batch.token_ids[source];
      out.positions[token] = static_cast<std::int32_t>(row.cache_length + j);
      if (out.token_rows) out.token_rows[token] = static_cast<std::int32_t>(batch_row);
      batch_index_[token] = source;
      step_index_[source] = token;
    }
  }
  out.row_offsets[next_row] = token;
  return next_row;
}

}  // namespace quire::runtime
