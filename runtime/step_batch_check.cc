#include "runtime/step_batch_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::runtime {
namespace {

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("step batch: ", parts...));
}

absl::Status CheckCounts(const StepBatch& batch, const models::StepLimits& limits) {
  const struct {
    const char* name;
    std::size_t value;
    std::uint32_t limit;
  } counts[] = {{"tokens", batch.token_ids.size(), limits.max_step_tokens},
                {"rows", batch.rows.size(), limits.max_rows},
                {"logits_tokens", batch.logits_tokens.size(), limits.max_step_tokens},
                {"samples", batch.samples.size(), limits.max_step_samples},
                {"prompt_logprobs", batch.prompt_logprobs.size(), limits.max_step_tokens},
                {"pools", batch.pools.size(), limits.max_rows}};
  for (const auto& count : counts) {
    if (count.value > count.limit) {
      return Refuse(count.value, " ", count.name, ", at most ", count.limit);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRow(const StepBatch& batch, const models::ModelSpec& spec,
                      const models::StepLimits& limits, std::size_t index,
                      std::uint64_t next_token) {
  const StepRow& row = batch.rows[index];
  const std::uint32_t batch_row = row.batch_row.value();
  const auto lacks_row = [&](const cache::KvStepInputs& kv) { return batch_row >= kv.max_rows; };
  if (std::ranges::any_of(batch.kv, lacks_row) || batch_row >= limits.max_rows) {
    return Refuse("rows[", index, "].batch_row is ", batch_row, ", it must be below ",
                  limits.max_rows);
  }
  if (row.num_tokens == 0 || row.first_token != next_token ||
      next_token + row.num_tokens > batch.token_ids.size()) {
    return Refuse("rows[", index, "] has ", row.num_tokens, " tokens from ", row.first_token,
                  " on, it must begin at ", next_token, " and end by ", batch.token_ids.size());
  }
  if (row.prompt_tokens > row.num_tokens) {
    return Refuse("rows[", index, "].prompt_tokens is ", row.prompt_tokens, ", the row has ",
                  row.num_tokens, " tokens");
  }
  if (std::uint64_t{row.cache_length} + row.num_tokens > spec.max_position) {
    return Refuse("rows[", index, "] reaches ", std::uint64_t{row.cache_length} + row.num_tokens,
                  " tokens, model context is ", spec.max_position);
  }
  for (const cache::KvStepInputs& kv : batch.kv) {
    if (kv.cache_lengths[batch_row] == row.cache_length) continue;
    return Refuse("rows[", index, "].cache_length is ", row.cache_length,
                  ", the cache manager has ", kv.cache_lengths[batch_row]);
  }
  // Each row is compared with all earlier ones: there are few rows, and a set would allocate.
  for (std::size_t earlier = 0; earlier < index; ++earlier) {
    if (batch.rows[earlier].batch_row == row.batch_row) {
      return Refuse("rows[", index, "].batch_row ", batch_row, " is also rows[", earlier, "]");
    }
  }
  return absl::OkStatus();
}

// Checks the state slots of a row. The null slot is never written.
absl::Status CheckStates(const StepBatch& batch, const models::StepLimits& limits,
                         std::size_t index) {
  if (limits.num_state_slots == 0) return absl::OkStatus();
  const StepRow& row = batch.rows[index];
  const std::uint32_t batch_row = row.batch_row.value();
  if (batch_row >= batch.states.max_rows) {
    return Refuse("rows[", index, "].batch_row is ", batch_row, ", states has the slots of ",
                  batch.states.max_rows, " rows");
  }
  const std::uint32_t at = batch.states.snapshot_at[batch_row];
  const struct {
    const char* name;
    std::uint32_t slot;
    bool is_used;
  } slots[] = {{"state_in", batch.states.state_in[batch_row], row.cache_length > 0},
               {"state_out", batch.states.state_out[batch_row], true},
               {"snapshot_slot", batch.states.snapshot_slot[batch_row], at != 0}};
  for (const auto& slot : slots) {
    if (!slot.is_used || (slot.slot > 0 && slot.slot < limits.num_state_slots)) continue;
    return Refuse("states.", slot.name, "[", batch_row, "] is slot ", slot.slot,
                  ", it must be in [1, ", limits.num_state_slots, ")");
  }
  if (at != 0 && (at <= row.cache_length || at - row.cache_length > row.num_tokens)) {
    return Refuse("states.snapshot_at[", batch_row, "] is ", at, ", the step computes ",
                  row.num_tokens, " tokens after ", row.cache_length);
  }
  return absl::OkStatus();
}

absl::Status CheckTokens(const StepBatch& batch, const models::ModelSpec& spec,
                         std::uint32_t previous_samples) {
  for (std::size_t i = 0; i < batch.token_ids.size(); ++i) {
    const std::int32_t token = batch.token_ids[i];
    if (token < 0 && previous_samples > 0) {
      const auto sample = static_cast<std::uint32_t>(-(token + 1));
      if (sample < previous_samples) continue;
      return Refuse("token_ids[", i, "] is ", token, ", sample ", sample,
                    " of the previous step, which has ", previous_samples, " samples");
    }
    if (token < 0 || static_cast<std::uint32_t>(token) >= spec.vocab_size) {
      return Refuse("token_ids[", i, "] is ", token, ", it must be in [0, ", spec.vocab_size, ")");
    }
  }
  for (std::size_t i = 0; i < batch.logits_tokens.size(); ++i) {
    if (batch.logits_tokens[i] >= batch.token_ids.size()) {
      return Refuse("logits_tokens[", i, "] is ", batch.logits_tokens[i], ", there are ",
                    batch.token_ids.size(), " tokens");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogitsIndex(const StepBatch& batch, const char* name, std::size_t i,
                              std::uint32_t index, std::uint32_t previous) {
  if (index < previous || index >= batch.logits_tokens.size()) {
    return Refuse(name, "[", i, "].logits_index is ", index, ", it must ascend and stay below ",
                  batch.logits_tokens.size());
  }
  return absl::OkStatus();
}

absl::Status CheckSamples(const StepBatch& batch, const models::ModelSpec& spec,
                          const models::StepLimits& limits, std::uint32_t previous_samples) {
  std::uint32_t previous = 0;
  for (std::size_t i = 0; i < batch.samples.size(); ++i) {
    const StepSample& sample = batch.samples[i];
    QUIRE_RETURN_IF_ERROR(CheckLogitsIndex(batch, "samples", i, sample.logits_index, previous));
    previous = sample.logits_index;
    if (sample.row.num_logprobs > static_cast<std::int32_t>(limits.max_logprobs)) {
      return Refuse("samples[", i, "].num_logprobs is ", sample.row.num_logprobs, ", at most ",
                    limits.max_logprobs);
    }
    if (sample.sample_in_flight < -1 ||
        sample.sample_in_flight >= static_cast<std::int32_t>(previous_samples)) {
      return Refuse("samples[", i, "].sample_in_flight is ", sample.sample_in_flight,
                    ", the previous step has ", previous_samples, " samples");
    }
  }
  previous = 0;
  for (std::size_t i = 0; i < batch.prompt_logprobs.size(); ++i) {
    const StepPromptLogprob& prompt_logprob = batch.prompt_logprobs[i];
    QUIRE_RETURN_IF_ERROR(
        CheckLogitsIndex(batch, "prompt_logprobs", i, prompt_logprob.logits_index, previous));
    previous = prompt_logprob.logits_index;
    if (prompt_logprob.token < 0 ||
        static_cast<std::uint32_t>(prompt_logprob.token) >= spec.vocab_size) {
      return Refuse("prompt_logprobs[", i, "].token is ", prompt_logprob.token,
                    ", it must be in [0, ", spec.vocab_size, ")");
    }
    if (prompt_logprob.num_top < 0 ||
        prompt_logprob.num_top > static_cast<std::int32_t>(limits.max_logprobs)) {
      return Refuse("prompt_logprobs[", i, "].num_top is ", prompt_logprob.num_top,
                    ", it must be 0 to ", limits.max_logprobs);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPools(const StepBatch& batch, const models::StepLimits& limits) {
  for (std::size_t i = 0; i < batch.pools.size(); ++i) {
    const StepPool& pool = batch.pools[i];
    const std::uint64_t end = std::uint64_t{pool.first_token} + pool.num_tokens;
    if (pool.num_tokens == 0 || end > batch.token_ids.size()) {
      return Refuse("pools[", i, "] has the tokens [", pool.first_token, ", ", end, "), there are ",
                    batch.token_ids.size(), " tokens");
    }
    if (pool.batch_row.value() >= limits.max_rows) {
      return Refuse("pools[", i, "].batch_row is ", pool.batch_row.value(), ", it must be below ",
                    limits.max_rows);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPage(const char* name, std::size_t i, BlockId page, std::uint32_t first,
                       const cache::KvGeometry& pool) {
  if (page.value() < first || page.value() >= pool.num_blocks) {
    return Refuse(name, "[", i, "] is page ", page.value(), ", it must be in [", first, ", ",
                  pool.num_blocks, ")");
  }
  return absl::OkStatus();
}

absl::Status CheckPages(const StepBatch& batch, const cache::KvGeometry& pool) {
  for (std::size_t i = 0; i < batch.clears.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckPage("clears", i, batch.clears[i], 1, pool));
  }
  for (std::size_t i = 0; i < batch.copies.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckPage("copies", i, batch.copies[i].source, 0, pool));
    QUIRE_RETURN_IF_ERROR(CheckPage("copies", i, batch.copies[i].target, 1, pool));
    if (batch.copies[i].num_rows > pool.page_size) {
      return Refuse("copies[", i, "].num_rows is ", batch.copies[i].num_rows, ", page size is ",
                    pool.page_size);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStepBatch(const StepBatch& batch, const models::ModelSpec& spec,
                            const models::StepLimits& limits, const cache::KvGeometry& pool,
                            std::uint32_t num_groups, std::uint32_t previous_samples) {
  QUIRE_RETURN_IF_ERROR(CheckCounts(batch, limits));
  const bool needs_cache = !batch.rows.empty() || !batch.clears.empty() || !batch.copies.empty();
  if ((needs_cache || !batch.kv.empty()) && batch.kv.size() != num_groups) {
    return Refuse("kv has the inputs of ", batch.kv.size(), " layer groups, the model has ",
                  num_groups);
  }
  std::uint64_t next_token = 0;
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckRow(batch, spec, limits, i, next_token));
    QUIRE_RETURN_IF_ERROR(CheckStates(batch, limits, i));
    next_token += batch.rows[i].num_tokens;
  }
  if (next_token != batch.token_ids.size()) {
    return Refuse("rows have ", next_token, " tokens, token_ids has ", batch.token_ids.size());
  }
  QUIRE_RETURN_IF_ERROR(CheckTokens(batch, spec, previous_samples));
  QUIRE_RETURN_IF_ERROR(CheckSamples(batch, spec, limits, previous_samples));
  QUIRE_RETURN_IF_ERROR(CheckPools(batch, limits));
  return CheckPages(batch, pool);
}

}  // namespace quire::runtime
