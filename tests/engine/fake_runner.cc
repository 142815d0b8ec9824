#include "tests/engine/fake_runner.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {
namespace {

std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15ULL + b + 0x7F4A7C159E3779B9ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

float LogprobOf(std::uint64_t state, std::int32_t token) {
  return -static_cast<float>(Mix(state, static_cast<std::uint64_t>(token)) % 100000) / 10000.0f;
}

}  // namespace

FakeRunner::FakeRunner(const FakeRunnerOptions& options)
    : options_(options),
      rows_(std::size_t{options.num_blocks} * options.page_size),
      poisoned_(rows_.size()) {}

std::uint64_t& FakeRunner::At(const models::StepBatch& batch, const models::StepRow& row,
                              std::uint32_t position) {
  const cache::KvStepInputs& kv = *batch.kv;
  const std::uint32_t column = position / options_.page_size;
  QUIRE_CHECK(column < kv.lookup_stride && row.batch_row.value() < kv.max_rows);
  const std::uint32_t page = kv.lookup_table[row.batch_row.value() * kv.lookup_stride + column];
  QUIRE_CHECK(page != 0 && page < options_.num_blocks);
  return rows_[std::size_t{page} * options_.page_size + position % options_.page_size];
}

absl::Status FakeRunner::Run(const models::StepBatch& batch) {
  if (hook_) {
    if (const absl::Status status = hook_(batch); !status.ok()) return status;
  }
  for (const BlockId page : batch.clears) {
    const std::size_t begin = std::size_t{page.value()} * options_.page_size;
    std::fill_n(rows_.begin() + static_cast<std::ptrdiff_t>(begin), options_.page_size, 0);
    std::fill_n(poisoned_.begin() + static_cast<std::ptrdiff_t>(begin), options_.page_size, 0);
  }
  for (const cache::PageCopy& copy : batch.copies) {
    for (std::uint32_t i = 0; i < copy.num_rows; ++i) {
      const std::size_t from = std::size_t{copy.source.value()} * options_.page_size + i;
      const std::size_t to = std::size_t{copy.target.value()} * options_.page_size + i;
      rows_[to] = rows_[from];
      poisoned_[to] = poisoned_[from];
    }
  }
  for (const models::StepRow& row : batch.rows) ComputeRow(batch, row);
  result_.draws.clear();
  result_.scores.clear();
  top_.clear();
  top_.reserve((batch.draws.size() + batch.scores.size()) * 20);
  for (const models::StepDraw& draw : batch.draws) result_.draws.push_back(Draw(batch, draw));
  for (const models::StepScore& score : batch.scores) result_.scores.push_back(Score(batch, score));
  if (records_) {
    FakeStep& step = steps_.emplace_back();
    for (const models::StepRow& row : batch.rows) {
      step.rows.emplace_back(row.cache_length, row.num_tokens);
      step.num_tokens += row.num_tokens;
    }
  }
  return absl::OkStatus();
}

void FakeRunner::ComputeRow(const models::StepBatch& batch, const models::StepRow& row) {
  QUIRE_CHECK(row.num_tokens >= 1);
  QUIRE_CHECK(batch.kv->cache_lengths[row.batch_row.value()] == row.cache_length);
  std::uint64_t before = row.cache_length == 0 ? 1 : At(batch, row, row.cache_length - 1);
  for (std::uint32_t i = 0; i < row.num_tokens; ++i) {
    const std::int32_t token = batch.token_ids[row.first_token + i];
    QUIRE_CHECK(token >= 0 && token < options_.vocab_size);
    std::uint64_t& cell = At(batch, row, row.cache_length + i);
    cell = Mix(before, Mix(static_cast<std::uint64_t>(token), row.cache_length + i));
    poisoned_[static_cast<std::size_t>(&cell - rows_.data())] = token == options_.poison_token;
    before = cell;
  }
}

std::uint64_t FakeRunner::ReadBack(const models::StepBatch& batch, std::uint32_t logits_index,
                                   bool* poisoned) {
  const std::uint32_t token = batch.logits_tokens[logits_index];
  auto row = std::upper_bound(
      batch.rows.begin(), batch.rows.end(), token,
      [](std::uint32_t value, const models::StepRow& r) { return value < r.first_token; });
  QUIRE_CHECK(row != batch.rows.begin());
  --row;
  const std::uint32_t last = row->cache_length + token - row->first_token;
  std::uint64_t state = 0;
  *poisoned = false;
  for (std::uint32_t position = 0; position <= last; ++position) {
    const std::uint64_t& cell = At(batch, *row, position);
    state = Mix(state, cell);
    *poisoned |= poisoned_[static_cast<std::size_t>(&cell - rows_.data())] != 0;
  }
  return state;
}

void FakeRunner::ListBest(std::uint64_t state, std::int32_t count, models::StepToken* token) {
  const std::size_t begin = top_.size();
  for (std::int32_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int32_t>(Mix(state, static_cast<std::uint64_t>(1000 + i)) %
                                              static_cast<std::uint64_t>(options_.vocab_size));
    top_.push_back({.token = id, .logprob = LogprobOf(state, id)});
  }
  token->top = {top_.data() + begin, static_cast<std::size_t>(count)};
}

// Greedy rows depend on the state alone; others on seed, choice and position too. Penalties are
// stood for by a sum over the history, which has no order.
models::StepToken FakeRunner::Draw(const models::StepBatch& batch, const models::StepDraw& draw) {
  models::StepToken result;
  const std::uint64_t state = ReadBack(batch, draw.logits_index, &result.non_finite);
  const kernels::SamplingRow& row = draw.row;
  if (result.non_finite) {
    result.token = -1;
    return result;
  }
  std::uint64_t key = state;
  if (row.temperature >= 0.001f) {
    key = Mix(Mix(key, row.seed), (std::uint64_t{row.choice} << 32) + row.position);
  }
  for (std::uint32_t i = 0; i < row.history_size; ++i) {
    key += Mix(static_cast<std::uint64_t>(row.history[i].token),
               static_cast<std::uint64_t>(row.history[i].output_count));
  }
  for (std::uint32_t i = 0; i < row.bias_size; ++i) {
    key += Mix(77, static_cast<std::uint64_t>(row.bias[i].token));
  }
  auto is_banned = [&](std::int32_t token) {
    return std::find(row.banned, row.banned + row.banned_size, token) !=
           row.banned + row.banned_size;
  };
  std::int32_t token = -1;
  if (options_.end_period > 0 && Mix(key, 5) % options_.end_period == 0 &&
      !is_banned(options_.end_token)) {
    token = options_.end_token;
  }
  for (std::uint64_t attempt = 0; token < 0 && attempt < 10000; ++attempt) {
    const auto id = static_cast<std::int32_t>(Mix(key, attempt) %
                                              static_cast<std::uint64_t>(options_.vocab_size));
    if (id != options_.end_token && id != options_.poison_token && !is_banned(id)) token = id;
  }
  result.token = token;
  result.no_survivor = token < 0;
  if (row.num_logprobs < 0) return result;
  result.logprob = LogprobOf(state, token);
  result.rank = 1 + static_cast<std::int32_t>(Mix(state, 9) % 50);
  ListBest(state, row.num_logprobs, &result);
  return result;
}

models::StepToken FakeRunner::Score(const models::StepBatch& batch,
                                    const models::StepScore& score) {
  models::StepToken result;
  const std::uint64_t state = ReadBack(batch, score.logits_index, &result.non_finite);
  result.token = score.token;
  result.logprob = LogprobOf(state, score.token);
  result.rank = 1 + static_cast<std::int32_t>(Mix(state, 9) % 50);
  ListBest(state, score.num_top, &result);
  return result;
}

absl::StatusOr<const models::StepResult*> FakeRunner::Collect() {
  return &result_;
}

}  // namespace quire::engine
