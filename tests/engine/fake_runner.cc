#include "tests/engine/fake_runner.h"

#include <algorithm>
#include <bit>
#include <limits>

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

std::uint64_t KeyOf(const kernels::LogitBias& bias) {
  return Mix(std::bit_cast<std::uint32_t>(bias.bias), static_cast<std::uint64_t>(bias.token));
}

// Hashes the data that the samples point to. Late samples get their biases only when they are
// completed.
std::uint64_t FingerprintOf(const runtime::StepBatch& batch) {
  std::uint64_t sum = batch.samples.size();
  for (const runtime::StepSample& sample : batch.samples) {
    const kernels::SamplingRow& row = sample.row;
    sum = Mix(sum, row.position);
    for (std::uint32_t i = 0; i < row.bias_size && !sample.is_late; ++i) {
      sum = Mix(sum, KeyOf(row.bias[i]));
    }
    for (std::uint32_t i = 0; i < row.banned_size; ++i) {
      sum = Mix(sum, static_cast<std::uint64_t>(row.banned[i]));
    }
  }
  return sum;
}

}  // namespace

FakeRunner::FakeRunner(const FakeRunnerOptions& options)
    : options_(options),
      rows_(std::size_t{options.num_blocks} * options.page_size),
      poisoned_(rows_.size()),
      slots_(options.num_state_slots) {}

std::uint64_t& FakeRunner::At(const Launch& launch, std::uint32_t group,
                              const runtime::StepRow& row, std::uint32_t position) {
  const std::uint32_t column = position / options_.page_size;
  QUIRE_CHECK(column < launch.stride && row.batch_row.value() < launch.lengths.size());
  const std::uint32_t page = PageOf(launch, group, row.batch_row.value(), column);
  QUIRE_CHECK(page != 0 && page < options_.num_blocks);
  return rows_[std::size_t{page} * options_.page_size + position % options_.page_size];
}

std::uint32_t FakeRunner::FirstRead(std::uint32_t group, std::uint32_t position) const {
  const std::uint32_t window = options_.groups[group].window;
  return window == 0 || position < window ? 0 : position - window + 1;
}

absl::Status FakeRunner::Run(const runtime::StepBatch& batch) {
  QUIRE_CHECK(in_flight_.size() < static_cast<std::size_t>(options_.max_steps_in_flight));
  std::shared_ptr<const RunHook> hook;
  {
    MutexLock lock(&hook_mutex_);
    hook = hook_;
  }
  if (hook) {
    if (const absl::Status status = (*hook)(batch); !status.ok()) return status;
  }
  in_flight_.push_back(Snapshot(batch));
  if (records_) {
    FakeStep& step = steps_.emplace_back();
    for (const runtime::StepRow& row : batch.rows) {
      step.rows.emplace_back(row.cache_length, row.num_tokens);
      step.num_tokens += row.num_tokens;
    }
  }
  return absl::OkStatus();
}

void FakeRunner::SampleLate(const runtime::StepBatch& batch) {
  QUIRE_CHECK(in_flight_.size() == 1);
  Launch& launch = in_flight_.front();
  QUIRE_CHECK(launch.batch == &batch && launch.awaits_masks);
  launch.awaits_masks = false;
  for (std::size_t i = 0; i < batch.samples.size(); ++i) {
    const runtime::StepSample& sample = batch.samples[i];
    if (!sample.is_late || !sample.is_completed) continue;
    QUIRE_CHECK(sample.sample_in_flight == -1);
    launch.completed[i] = true;
    launch.biases[i].assign(sample.row.bias, sample.row.bias + sample.row.bias_size);
    launch.histories[i].assign(sample.row.history, sample.row.history + sample.row.history_size);
    launch.allowed[i] = AllowedOf(sample);
  }
}

std::vector<std::uint32_t> FakeRunner::AllowedOf(const runtime::StepSample& sample) const {
  const std::uint32_t* const words = sample.row.allowed;
  if (words == nullptr) return {};
  return {words, words + kernels::MaskWords(static_cast<std::uint32_t>(options_.vocab_size))};
}

absl::StatusOr<const runtime::StepResult*> FakeRunner::Collect() {
  QUIRE_CHECK(!in_flight_.empty());
  QUIRE_CHECK(!in_flight_.front().awaits_masks);
  Launch launch = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::shared_ptr<const CollectHook> hook;
  {
    MutexLock lock(&hook_mutex_);
    hook = collect_hook_;
  }
  if (hook) {
    if (const absl::Status status = (*hook)(); !status.ok()) {
      last_samples_.assign(launch.batch->samples.size(), -1);
      return status;
    }
  }
  Execute(launch);
  return &result_;
}

FakeRunner::Launch FakeRunner::Snapshot(const runtime::StepBatch& batch) const {
  Launch launch;
  QUIRE_CHECK(batch.kv.size() == options_.groups.size());
  launch.batch = &batch;
  launch.tokens = batch.token_ids;
  launch.rows = batch.rows;
  launch.stride = batch.kv[0].lookup_stride;
  launch.lengths.assign(batch.kv[0].cache_lengths,
                        batch.kv[0].cache_lengths + batch.kv[0].max_rows);
  for (const cache::KvStepInputs& kv : batch.kv) {
    QUIRE_CHECK(kv.lookup_stride == launch.stride && kv.max_rows == launch.lengths.size());
    QUIRE_CHECK(std::equal(launch.lengths.begin(), launch.lengths.end(), kv.cache_lengths));
    launch.tables.emplace_back(kv.lookup_table,
                               kv.lookup_table + std::size_t{kv.max_rows} * kv.lookup_stride);
  }
  launch.fingerprint = FingerprintOf(batch);
  if (options_.max_steps_in_flight > 1) {
    ListUses(batch, &launch);
    CheckPages(launch);
  }
  CheckFeedback(launch);
  for (const runtime::StepSample& sample : batch.samples) {
    CheckSampleInFlight(launch, sample);
    launch.histories.emplace_back(sample.row.history, sample.row.history + sample.row.history_size);
    QUIRE_CHECK(!sample.is_completed);
    launch.allowed.push_back(AllowedOf(sample));
    launch.biases.emplace_back(sample.row.bias, sample.row.bias + sample.row.bias_size);
    launch.completed.push_back(false);
    launch.awaits_masks |= sample.is_late;
  }
  return launch;
}

void FakeRunner::ListUses(const runtime::StepBatch& batch, Launch* launch) const {
  const std::uint32_t size = options_.page_size;
  for (const runtime::StepRow& row : batch.rows) {
    for (std::uint32_t group = 0; group < options_.groups.size(); ++group) {
      const std::uint32_t end = row.cache_length + row.num_tokens;
      const std::uint32_t first = FirstRead(group, row.cache_length);
      for (std::uint32_t column = first / size; column * size < end; ++column) {
        const std::uint32_t begin = column * size;
        const std::uint32_t cached = std::clamp(row.cache_length, begin, begin + size) - begin;
        launch->uses.push_back({.page = PageOf(*launch, group, row.batch_row.value(), column),
                                .row = row.batch_row.value(),
                                .group = group,
                                .column = column,
                                .read_end = cached,
                                .write_begin = cached,
                                .write_end = std::min(end - begin, size)});
      }
    }
  }
  for (const cache::PageCopy& copy : batch.copies) {
    launch->uses.push_back({.page = copy.source.value(), .read_end = copy.num_rows});
    launch->uses.push_back({.page = copy.target.value(), .write_end = copy.num_rows});
  }
  for (const BlockId page : batch.clears) {
    launch->uses.push_back({.page = page.value(), .write_end = size});
  }
}

// A page may be reassigned only if no step in flight names it.
void FakeRunner::CheckPages(const Launch& launch) const {
  const auto overlap = [](std::uint32_t a, std::uint32_t a_end, std::uint32_t b,
                          std::uint32_t b_end) {
    return a < a_end && b < b_end && a < b_end && b < a_end;
  };
  for (const Launch& earlier : in_flight_) {
    const auto continues = [&](std::uint32_t row) {
      const auto find = [row](const Launch& step) {
        return std::find_if(step.rows.begin(), step.rows.end(), [row](const runtime::StepRow& r) {
          return r.batch_row.value() == row;
        });
      };
      const auto now = find(launch), before = find(earlier);
      return now->cache_length == before->cache_length + before->num_tokens;
    };
    for (const PageUse& now : launch.uses) {
      for (const PageUse& before : earlier.uses) {
        if (now.page != before.page) continue;
        const bool are_rows = now.row != PageUse::kCopy && before.row != PageUse::kCopy;
        const bool writes =
            now.write_begin < now.write_end || before.write_begin < before.write_end;
        if (are_rows) {
          QUIRE_CHECK(!writes || (now.row == before.row && now.group == before.group &&
                                  now.column == before.column && continues(now.row)));
        } else if (before.row != PageUse::kCopy) {  // copied or cleared now
          QUIRE_CHECK(now.write_begin == now.write_end);
          QUIRE_CHECK(!overlap(0, now.read_end, before.write_begin, before.write_end));
        } else {  // the copy is for the row, or reads what it has no reason to write
          QUIRE_CHECK(!overlap(now.write_begin, now.write_end, 0, before.read_end));
        }
      }
    }
  }
}

// A token below 0 refers to the sample of the preceding step at the same position.
void FakeRunner::CheckFeedback(const Launch& launch) const {
  for (const runtime::StepRow& row : launch.rows) {
    for (std::uint32_t i = 0; i < row.num_tokens; ++i) {
      const std::int32_t token = launch.tokens[row.first_token + i];
      QUIRE_CHECK(token < options_.vocab_size);
      if (token >= 0) continue;
      QUIRE_CHECK(!in_flight_.empty());
      const runtime::StepBatch& before = *in_flight_.back().batch;
      const auto index = static_cast<std::size_t>(-(token + 1));
      QUIRE_CHECK(index < before.samples.size());
      const runtime::StepSample& sample = before.samples[index];
      QUIRE_CHECK(sample.row.position == row.cache_length + i);
      const std::uint32_t sampled_at = before.logits_tokens[sample.logits_index];
      const auto sampled_for = std::find_if(
          before.rows.begin(), before.rows.end(), [sampled_at](const runtime::StepRow& r) {
            return r.first_token <= sampled_at && sampled_at < r.first_token + r.num_tokens;
          });
      QUIRE_CHECK(sampled_for != before.rows.end() && sampled_for->batch_row == row.batch_row);
    }
  }
}

// A sample in flight belongs to the same row, at the preceding position.
void FakeRunner::CheckSampleInFlight(const Launch& launch,
                                     const runtime::StepSample& sample) const {
  if (sample.sample_in_flight < 0) return;
  QUIRE_CHECK(!in_flight_.empty());
  const runtime::StepBatch& before = *in_flight_.back().batch;
  const auto index = static_cast<std::size_t>(sample.sample_in_flight);
  QUIRE_CHECK(index < before.samples.size());
  QUIRE_CHECK(before.samples[index].row.position + 1 == sample.row.position);
  // CheckFeedback has checked that the token that is fed back belongs to this row.
  const std::uint32_t last = launch.batch->logits_tokens[sample.logits_index];
  QUIRE_CHECK(launch.tokens[last] == -sample.sample_in_flight - 1);
}

// Adds the samples that were in flight at the launch and have been collected since.
void FakeRunner::CompleteHistories(Launch& launch) const {
  for (std::size_t i = 0; i < launch.histories.size(); ++i) {
    const std::int32_t sample = launch.batch->samples[i].sample_in_flight;
    if (sample < 0) continue;
    const std::int32_t token = last_samples_.at(static_cast<std::size_t>(sample));
    if (token < 0) continue;
    std::vector<kernels::TokenCount>& history = launch.histories[i];
    const auto found =
        std::find_if(history.begin(), history.end(),
                     [token](const kernels::TokenCount& seen) { return seen.token == token; });
    if (found == history.end()) {
      history.push_back({.token = token, .output_count = 1});
    } else {
      ++found->output_count;
    }
  }
}

void FakeRunner::Execute(Launch& launch) {
  const runtime::StepBatch& batch = *launch.batch;
  QUIRE_CHECK(batch.token_ids == launch.tokens && batch.rows.size() == launch.rows.size());
  QUIRE_CHECK(FingerprintOf(batch) == launch.fingerprint);
  for (std::int32_t& token : launch.tokens) {
    if (token >= 0) continue;
    const std::int32_t sampled = last_samples_.at(static_cast<std::size_t>(-(token + 1)));
    token = std::max(sampled, 0);
  }
  CompleteHistories(launch);
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
  for (std::uint32_t group = 0; group < options_.groups.size(); ++group) {
    for (const runtime::StepRow& row : launch.rows) ComputeRow(launch, group, row);
  }
  QUIRE_CHECK((batch.states.max_rows > 0) == !slots_.empty());
  launch.states.resize(slots_.empty() ? 0 : launch.tokens.size());
  // In reverse, so that no row relies on an earlier one.
  for (auto row = launch.rows.rbegin(); !slots_.empty() && row != launch.rows.rend(); ++row) {
    ComputeStates(launch, *row);
  }
  result_.samples.clear();
  result_.prompt_logprobs.clear();
  top_.clear();
  top_.reserve((batch.samples.size() + batch.prompt_logprobs.size()) * 20);
  last_samples_.clear();
  for (std::size_t i = 0; i < batch.samples.size(); ++i) {
    result_.samples.push_back(Sample(launch, i));
    last_samples_.push_back(result_.samples.back().token);
  }
  for (const runtime::StepPromptLogprob& prompt_logprob : batch.prompt_logprobs)
    result_.prompt_logprobs.push_back(PromptLogprob(launch, prompt_logprob));
  result_.pools.clear();
  for (const runtime::StepPool& pool : batch.pools) result_.pools.push_back(Pool(launch, pool));
}

std::array<float, FakeRunner::kHidden> FakeRunner::HiddenOf(std::uint64_t state) {
  std::array<float, kHidden> hidden{};
  for (std::size_t i = 0; i < kHidden; ++i) {
    hidden[i] = static_cast<float>(Mix(state, 21 + i) % 100003) / 100003;
  }
  return hidden;
}

std::span<const float> FakeRunner::Pool(const Launch& launch, const runtime::StepPool& pool) {
  std::array<float, kHidden>& sum = pools_[pool.batch_row.value()];
  if (pool.begins) sum.fill(0);
  for (std::uint32_t i = 0; i < pool.num_tokens; ++i) {
    bool poisoned = false;
    const auto hidden = HiddenOf(ReadBack(launch, pool.first_token + i, &poisoned));
    for (std::size_t k = 0; k < kHidden; ++k) {
      sum[k] += poisoned ? std::numeric_limits<float>::infinity() : hidden[k];
    }
  }
  return pool.ends ? std::span<const float>(sum) : std::span<const float>();
}

void FakeRunner::ComputeStates(Launch& launch, const runtime::StepRow& row) {
  const cache::StateStepInputs& inputs = launch.batch->states;
  const std::uint32_t index = row.batch_row.value();
  QUIRE_CHECK(index < inputs.max_rows && inputs.state_out[index] > 0);
  QUIRE_CHECK(row.cache_length == 0 || inputs.state_in[index] > 0);
  const std::uint32_t snapshot_at = inputs.snapshot_at[index];
  State state = row.cache_length == 0 ? State{.hash = 1} : slots_.at(inputs.state_in[index]);
  for (std::uint32_t i = 0; i < row.num_tokens; ++i) {
    const std::int32_t token = launch.tokens[row.first_token + i];
    state.hash = Mix(state.hash, static_cast<std::uint64_t>(token));
    state.is_poisoned |= token == options_.poison_token;
    launch.states[row.first_token + i] = state;
    if (row.cache_length + i + 1 == snapshot_at) slots_.at(inputs.snapshot_slot[index]) = state;
  }
  slots_.at(inputs.state_out[index]) = state;
  QUIRE_CHECK(slots_[0].hash == 0);
}

void FakeRunner::ComputeRow(const Launch& launch, std::uint32_t group,
                            const runtime::StepRow& row) {
  QUIRE_CHECK(row.num_tokens >= 1 && row.prompt_tokens <= row.num_tokens);
  QUIRE_CHECK(launch.lengths[row.batch_row.value()] == row.cache_length);
  for (std::uint32_t i = 0; i < row.num_tokens; ++i) {
    const std::int32_t token = launch.tokens[row.first_token + i];
    const std::uint32_t position = row.cache_length + i;
    // With a window of one token, the preceding token is outside the window.
    const bool reads = position > 0 && FirstRead(group, position) < position;
    const std::uint64_t before = reads ? At(launch, group, row, position - 1) : 1;
    std::uint64_t& cell = At(launch, group, row, position);
    cell = Mix(before, Mix(static_cast<std::uint64_t>(token), position));
    poisoned_[static_cast<std::size_t>(&cell - rows_.data())] = token == options_.poison_token;
  }
}

std::uint64_t FakeRunner::ReadBack(const Launch& launch, std::uint32_t token, bool* poisoned) {
  auto row = std::upper_bound(
      launch.rows.begin(), launch.rows.end(), token,
      [](std::uint32_t value, const runtime::StepRow& r) { return value < r.first_token; });
  QUIRE_CHECK(row != launch.rows.begin());
  --row;
  const std::uint32_t last = row->cache_length + token - row->first_token;
  std::uint64_t state = launch.states.empty() ? 0 : launch.states[token].hash;
  *poisoned = !launch.states.empty() && launch.states[token].is_poisoned;
  for (std::uint32_t group = 0; group < options_.groups.size(); ++group) {
    for (std::uint32_t position = FirstRead(group, last); position <= last; ++position) {
      const std::uint64_t& cell = At(launch, group, *row, position);
      state = Mix(state, cell);
      *poisoned |= poisoned_[static_cast<std::size_t>(&cell - rows_.data())] != 0;
    }
  }
  return state;
}

void FakeRunner::ListBest(std::uint64_t state, std::int32_t count, runtime::StepToken* token) {
  const std::size_t begin = top_.size();
  for (std::int32_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int32_t>(Mix(state, static_cast<std::uint64_t>(1000 + i)) %
                                              static_cast<std::uint64_t>(options_.vocab_size));
    top_.push_back({.token = id, .logprob = LogprobOf(state, id)});
  }
  token->top = {top_.data() + begin, static_cast<std::size_t>(count)};
}

// Greedy rows depend on the state alone, others also on seed, choice and position. A sum over the
// history replaces penalties, since it does not depend on the order.
runtime::StepToken FakeRunner::Sample(const Launch& launch, std::size_t index) {
  const runtime::StepSample& sample = launch.batch->samples[index];
  runtime::StepToken result;
  if (sample.is_late && !launch.completed[index]) {
    result.token = -1;
    result.unsampled = true;
    return result;
  }
  const std::uint64_t state =
      ReadBack(launch, launch.batch->logits_tokens[sample.logits_index], &result.non_finite);
  const kernels::SamplingRow& row = sample.row;
  if (result.non_finite) {
    result.token = -1;
    return result;
  }
  std::uint64_t key = state;
  if (row.temperature >= 0.001f) {
    key = Mix(Mix(key, row.seed), (std::uint64_t{row.choice} << 32) + row.position);
  }
  for (const kernels::TokenCount& seen : launch.histories[index]) {
    key +=
        Mix(static_cast<std::uint64_t>(seen.token), static_cast<std::uint64_t>(seen.output_count));
  }
  for (const kernels::LogitBias& bias : launch.biases[index]) key += Mix(77, KeyOf(bias));
  const std::vector<std::uint32_t>& allowed = launch.allowed[index];
  auto is_banned = [&](std::int32_t token) {
    const auto id = static_cast<std::uint32_t>(token);
    if (!allowed.empty() && (allowed[id / 32] >> (id % 32) & 1) == 0) return true;
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

runtime::StepToken FakeRunner::PromptLogprob(const Launch& launch,
                                             const runtime::StepPromptLogprob& prompt_logprob) {
  runtime::StepToken result;
  const std::uint64_t state = ReadBack(
      launch, launch.batch->logits_tokens[prompt_logprob.logits_index], &result.non_finite);
  result.token = prompt_logprob.token;
  result.logprob = LogprobOf(state, prompt_logprob.token);
  result.rank = 1 + static_cast<std::int32_t>(Mix(state, 9) % 50);
  ListBest(state, prompt_logprob.num_top, &result);
  return result;
}

}  // namespace quire::engine
