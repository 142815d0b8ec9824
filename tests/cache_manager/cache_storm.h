#pragma once

// Random operations on a CacheManager next to CacheModel. Each page row stores a hash of the whole
// history up to that token, so a row that reads a wrong history or another group's page is
// detected. Each state slot stores the hash of the history that its state follows, and a slot that
// nobody uses stores garbage. Each page row also records whether finite logits have read it, since
// only then may its page be proven.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cache_manager/cache_model.h"

namespace quire::cache {

inline CacheManagerOptions StormOptions() {
  return TinyOptions(40, 6, 256);
}

struct Coverage {
  std::uint64_t exhausted = 0, outdated = 0, shared_pages = 0, partial_copies = 0, adopted = 0,
                forks = 0, cleared = 0, cancelled_copies = 0, flushes = 0, kept_tails = 0, held = 0,
                poisoned = 0;
  std::uint64_t proven = 0;                // number of pages, each time they are checked
  std::uint64_t released = 0;              // number of pages outside of windows
  std::uint64_t short_matches = 0;         // matches shortened by a window group
  std::uint64_t empty_nodes = 0;           // nodes without any page at the moment
  std::uint64_t completed_nodes = 0;       // nodes that got missing pages
  std::uint64_t full_trees = 0;            // times that the node slots were exhausted
  std::uint64_t state_hits = 0;            // rows that begin with the state of a node
  std::uint64_t partial_states = 0;        // rows that begin with the state of a partial child
  std::uint64_t tokens_without_state = 0;  // matched pages without a state, in tokens
  std::uint64_t snapshots = 0;             // written by steps
  std::uint64_t evicted_states = 0;
  std::uint64_t shared_states = 0;  // read by several rows of a step

  Coverage& operator+=(const Coverage& other) {
    for (const auto member : {&Coverage::exhausted,
                              &Coverage::outdated,
                              &Coverage::shared_pages,
                              &Coverage::partial_copies,
                              &Coverage::adopted,
                              &Coverage::forks,
                              &Coverage::cleared,
                              &Coverage::cancelled_copies,
                              &Coverage::flushes,
                              &Coverage::kept_tails,
                              &Coverage::held,
                              &Coverage::poisoned,
                              &Coverage::proven,
                              &Coverage::released,
                              &Coverage::short_matches,
                              &Coverage::empty_nodes,
                              &Coverage::completed_nodes,
                              &Coverage::full_trees,
                              &Coverage::state_hits,
                              &Coverage::partial_states,
                              &Coverage::tokens_without_state,
                              &Coverage::snapshots,
                              &Coverage::evicted_states,
                              &Coverage::shared_states}) {
      this->*member += other.*member;
    }
    return *this;
  }
};

class Storm {
 public:
  // Up to `max_in_flight` steps run before the oldest completes. `slots_per_page` bounds the nodes
  // and roots of the prefix cache, and 0 means no bound.
  Storm(const CacheManagerOptions& options, std::uint32_t seed, std::size_t max_in_flight = 1,
        std::size_t slots_per_page = 0)
      : options_(options),
        max_in_flight_(max_in_flight),
        random_(seed),
        cache_(MakeCache(options)),
        num_slots_(LimitSlots(slots_per_page)),
        model_(options, num_slots_),
        sequences_(options.max_rows),
        memory_(std::size_t{options.geometry.num_blocks} * kTestPageSize),
        is_read_(memory_.size()),
        slots_(options.num_state_slots) {
    for (Tokens& base : bases_) base = RandomTokens(200);
  }

  void Run(int operations) {
    for (int operation = 0; operation < operations; ++operation) {
      RunOne();
      ASSERT_NO_FATAL_FAILURE(Verify()) << "operation " << operation;
    }
    while (!in_flight_.empty()) Complete();
    for (std::uint32_t row = 0; row < sequences_.size(); ++row) Free(row);
    Step();
    while (!in_flight_.empty()) Complete();
    ASSERT_NO_FATAL_FAILURE(Verify());
    EXPECT_EQ(cache_->available_pages(), cache_->usable_pages());
    EXPECT_EQ(cache_->available_state_slots(), cache_->stats().state_slots);
  }

  const Coverage& coverage() const { return coverage_; }
  CacheStats stats() const { return cache_->stats(); }
  // The operations in a form that two runs can compare.
  const std::vector<std::uint32_t>& trace() const { return trace_; }

 private:
  struct Sequence {
    bool live = false;
    std::uint64_t serial = 0;  // distinguishes successive sequences of one row
    Hash128 root;
    Tokens tokens;
    std::vector<PageKey> keys;
    std::uint32_t computed = 0;
    std::uint32_t launched = 0;  // tokens computed once all steps in flight have completed
  };
  struct LaunchedStep {
    std::vector<RowStep> plan;
    std::vector<std::uint64_t> serials;
    std::vector<std::uint32_t> named;             // pages that it reads, writes or copies into
    std::vector<std::vector<std::size_t>> reads;  // by row: the cells that its logits read
  };

  Tokens RandomTokens(std::size_t size) {
    Tokens tokens(size);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random_.Below(2));
    return tokens;
  }
  std::uint32_t RandomRow() { return random_.Below(sequences_.size()); }

  void RunOne() {
    const std::uint32_t row = RandomRow();
    const std::uint32_t choice = random_.Below(100);
    if (choice < 30) {
      Admit(row);
    } else if (choice < 70) {
      Step();
    } else if (choice < 80) {
      Free(row);
    } else if (choice < 90) {
      FreeKeepingTail(row);
    } else if (choice < 96) {
      Fork(row, RandomRow());
    } else if (choice < 99) {
      Invalidate(row);
    } else if (random_.OneIn(4)) {
      Flush();
    }
  }

  void Admit(std::uint32_t row) {
    if (sequences_[row].live) return;
    Sequence sequence;
    sequence.live = true;
    sequence.serial = ++serial_;
    sequence.root = {random_.Below(2), 7};
    const Tokens& base = bases_[random_.Below(bases_.size())];
    sequence.tokens.assign(base.begin(), base.begin() + random_.Below(base.size()));
    sequence.tokens = sequence.tokens + RandomTokens(random_.Below(40) + 1);
    sequence.keys = KeysOf(options_, sequence.root, sequence.tokens);
    const auto limit = static_cast<std::uint32_t>(sequence.tokens.size() - 1);
    const PrefixMatch match = cache_->Match(sequence.tokens, sequence.keys, sequence.root, limit);
    const CacheModel::Match expected =
        model_.Find(sequence.tokens, sequence.keys, sequence.root, limit);
    CheckMatch(sequence, match, expected, limit);

    const std::uint64_t removals = model_.tree().removals();
    if (random_.OneIn(8)) Step();  // may evict matched pages
    const bool outdated = match.num_tokens > 0 && model_.tree().removals() != removals;
    const std::uint32_t prompt_tokens = random_.OneIn(4) ? 0 : limit + 1;
    const absl::Status status = cache_->Attach(BatchRow{row}, match, sequence.root, prompt_tokens);
    coverage_.outdated += outdated;
    if (outdated) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      return;
    }
    const bool attached = model_.Attach(row, expected, sequence.root, prompt_tokens);
    EXPECT_EQ(status.code(),
              attached ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
    coverage_.exhausted += !attached;
    if (!attached) return;
    for (const BlockId page : match.pages) coverage_.shared_pages += page != kNullBlock;
    cache_->CountLookup(match, limit + 1);
    hit_tokens_ += match.num_tokens;
    coverage_.tokens_without_state += match.tokens_without_state;
    coverage_.state_hits += match.state != kNullSlot;
    coverage_.partial_states += match.state != kNullSlot && match.partial_rows > 0;
    queried_tokens_ += limit + 1;
    if (random_.OneIn(10)) {
      cache_->SetPublish(BatchRow{row}, false);
      model_.SetPublish(row, false);
    }
    if (random_.OneIn(3)) sequence.keys.clear();  // Publish computes the missing keys
    sequence.computed = sequence.launched = match.num_tokens;
    sequences_[row] = std::move(sequence);
  }

  void CheckMatch(const Sequence& sequence, const PrefixMatch& match,
                  const CacheModel::Match& expected, std::uint32_t limit) {
    ASSERT_TRUE(std::ranges::equal(match.pages, expected.pages, {}, &BlockId::value));
    ASSERT_TRUE(
        std::ranges::equal(match.partial_sources, expected.partial_sources, {}, &BlockId::value));
    ASSERT_EQ(match.partial_rows, expected.partial_rows);
    ASSERT_EQ(match.collision, expected.collision);
    ASSERT_EQ(match.num_tokens, expected.num_tokens);
    ASSERT_EQ(match.state.value(), expected.state);
    ASSERT_EQ(match.tokens_without_state, expected.tokens_without_state);
    ASSERT_LE(match.num_tokens, limit);
    const auto histories = Histories(sequence);
    for (std::size_t group = 0; group < num_groups(); ++group) {
      for (std::uint32_t at = 0; at < match.num_tokens; ++at) {
        const std::size_t entry = at / kTestPageSize * num_groups() + group;
        if (!model_.Reads(group, at / kTestPageSize, match.num_tokens)) continue;
        const BlockId page =
            entry < match.pages.size() ? match.pages[entry] : match.partial_sources[group];
        ASSERT_EQ(cell(page.value(), at % kTestPageSize), histories[at] + group);
      }
    }
    const auto columns = static_cast<std::uint32_t>(match.pages.size() / num_groups());
    coverage_.short_matches += columns < expected.known_columns;
    std::uint32_t proven = 0;
    while (proven < columns && IsProvenIn(match, proven, columns)) ++proven;
    ASSERT_EQ(match.proven_tokens, proven * kTestPageSize);
  }

  // Returns whether the pages of a column are proven for a row that continues after `columns`.
  bool IsProvenIn(const PrefixMatch& match, std::uint32_t column, std::uint32_t columns) const {
    bool is_proven = true;
    for (std::size_t group = 0; group < num_groups(); ++group) {
      if (!model_.Reads(group, column, columns * kTestPageSize) && column + 1 < columns) continue;
      is_proven = is_proven && IsProven(match.pages[column * num_groups() + group].value());
    }
    return is_proven;
  }

  // Returns one hash per token, over everything up to it.
  static std::vector<std::uint64_t> Histories(const Sequence& sequence) {
    std::vector<std::uint64_t> histories;
    std::uint64_t history = sequence.root.lo * 977 + 1;
    for (const std::int32_t token : sequence.tokens) {
      history = (history ^ static_cast<std::uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u;
      histories.push_back(history ^= history >> 29);
    }
    return histories;
  }

  std::vector<RowStep> PlanStep() {
    std::vector<RowStep> plan;
    for (std::uint32_t row = 0; row < sequences_.size(); ++row) {
      Sequence& sequence = sequences_[row];
      if (!sequence.live || random_.OneIn(3)) continue;
      if (sequence.launched == sequence.tokens.size()) {
        if (sequence.tokens.size() >= options_.max_context_tokens) continue;
        sequence.tokens = sequence.tokens + RandomTokens(1);
      }
      const auto left = static_cast<std::uint32_t>(sequence.tokens.size()) - sequence.launched;
      const std::uint32_t count = random_.Below(std::min(left, 40u)) + 1;
      const std::uint32_t end = sequence.launched + count;
      const std::uint32_t total =
          random_.OneIn(2) ? end : static_cast<std::uint32_t>(sequence.tokens.size());
      const absl::Status status = cache_->Reserve(BatchRow{row}, total, end);
      const bool fits = model_.Reserve(row, total, end);
      EXPECT_EQ(status.code(), fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
      coverage_.exhausted += !fits;
      if (fits) plan.push_back({BatchRow{row}, sequence.launched, count});
    }
    return plan;
  }

  void RunClearsAndCopies() {
    const auto clears = cache_->TakeClears();
    ASSERT_TRUE(std::ranges::equal(clears, model_.TakeClears(), {}, &BlockId::value));
    coverage_.cleared += clears.size();
    for (const BlockId page : clears) {
      for (std::uint32_t at = 0; at < kTestPageSize; ++at) Write(page.value(), at, 0);
    }
    const auto copies = cache_->TakeCopies();
    const auto expected = model_.TakeCopies();
    ASSERT_EQ(copies.size(), expected.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      ASSERT_EQ(copies[i].source, expected[i].source);
      ASSERT_EQ(copies[i].target, expected[i].target);
      ASSERT_EQ(copies[i].num_rows, expected[i].num_rows);
      in_flight_.back().named.push_back(copies[i].target.value());
      ++coverage_.partial_copies;
      for (std::uint32_t at = 0; at < copies[i].num_rows; ++at) {
        Write(copies[i].target.value(), at, cell(copies[i].source.value(), at));
      }
    }
    ASSERT_FALSE(cache_->has_step_work());
  }

  void Compute(const KvStepInputs& inputs, std::size_t group, const RowStep& step,
               std::vector<std::size_t>* reads) {
    const auto histories = Histories(sequences_[step.row.value()]);
    const std::uint32_t* pages =
        inputs.lookup_table + std::size_t{step.row.value()} * inputs.lookup_stride;
    const std::uint32_t end = step.cache_length + step.new_tokens;
    EXPECT_EQ(inputs.cache_lengths[step.row.value()], step.cache_length);
    EXPECT_GE(inputs.max_seq_length, step.new_tokens);
    EXPECT_GE(inputs.max_cache_length, end);
    EXPECT_GE(inputs.max_history_length, step.cache_length);
    const std::uint32_t window = options_.groups[group].window;
    const std::uint32_t begin = window == 0 ? 0 : std::max(step.cache_length + 1, window) - window;
    for (std::uint32_t at = begin; at < end; ++at) {
      const std::uint32_t page = pages[at / kTestPageSize];
      if (at >= step.cache_length) Write(page, at % kTestPageSize, histories[at] + group);
      ASSERT_EQ(cell(page, at % kTestPageSize), histories[at] + group)
          << "row " << step.row.value() << " token " << at;
      const bool is_read = window == 0 || at + window >= end;  // by the last token
      if (is_read) reads->push_back(std::size_t{page} * kTestPageSize + at % kTestPageSize);
      if (at == begin || at % kTestPageSize == 0) {
        in_flight_.back().named.push_back(pages[at / kTestPageSize]);
      }
    }
  }

  void RunStates(const std::vector<RowStep>& plan) {
    const StateStepInputs& inputs = cache_->state_inputs();
    ASSERT_EQ(inputs.max_rows, model_.has_states() ? options_.max_rows : 0);
    if (!model_.has_states()) return;
    const StatePool& pool = CacheManagerPeer::states(*cache_);
    for (std::uint32_t slot = 1; slot < slots_.size(); ++slot) {
      if (pool.state(StateSlot{slot}) == SlotState::kFree) slots_[slot] = 0xbad;
    }
    // Rows are computed in any order.
    std::vector<RowStep> steps = plan;
    for (std::size_t i = steps.size(); i > 1; --i) std::swap(steps[i - 1], steps[random_.Below(i)]);
    std::set<std::uint32_t> read;
    for (const RowStep& step : steps) {
      const std::uint32_t row = step.row.value();
      const auto histories = Histories(sequences_[row]);
      const std::uint32_t in = inputs.state_in[row], out = inputs.state_out[row];
      const std::uint32_t end = step.cache_length + step.new_tokens;
      ASSERT_GT(out, 0u);
      if (step.cache_length > 0) {
        ASSERT_EQ(slots_[in], histories[step.cache_length - 1]) << "row " << row << " slot " << in;
        coverage_.shared_states += in != out && !read.insert(in).second;
      }
      const std::uint32_t at = inputs.snapshot_at[row];
      ASSERT_EQ(at, model_.state(row).snapshot_tokens);
      ASSERT_EQ(inputs.snapshot_slot[row], model_.state(row).snapshot);
      if (at > 0) {
        ASSERT_GT(at, step.cache_length);
        ASSERT_LE(at, end);
        slots_[inputs.snapshot_slot[row]] = histories[at - 1];
        ++coverage_.snapshots;
      }
      slots_[out] = histories[end - 1];
    }
    ASSERT_EQ(slots_[0], 0u);
    std::set<std::uint32_t> scheduled;
    for (const RowStep& step : plan) scheduled.insert(step.row.value());
    for (std::uint32_t row = 0; row < inputs.max_rows; ++row) {
      if (scheduled.contains(row)) continue;
      ASSERT_EQ(inputs.state_in[row] + inputs.state_out[row] + inputs.snapshot_at[row] +
                    inputs.snapshot_slot[row],
                0u);
    }
  }

  // Memory changes when a step is launched, since steps run one after the other. The bookkeeping
  // may rely on the change when the step completes.
  void Step() {
    const std::vector<RowStep> plan = PlanStep();
    LaunchedStep& launched = in_flight_.emplace_back();
    launched.plan = plan;
    for (const RowStep& step : plan)
      launched.serials.push_back(sequences_[step.row.value()].serial);
    const bool work_first = max_in_flight_ > 1;
    if (work_first) {
      ASSERT_NO_FATAL_FAILURE(RunClearsAndCopies());
    }
    const std::span<const KvStepInputs> inputs = cache_->PrepareStep(plan);
    ASSERT_EQ(inputs.size(), num_groups());
    model_.PrepareStep(plan);
    if (!work_first) {
      ASSERT_NO_FATAL_FAILURE(RunClearsAndCopies());
    }
    for (const RowStep& step : plan) {
      std::vector<std::size_t>& reads = in_flight_.back().reads.emplace_back();
      for (std::size_t group = 0; group < num_groups(); ++group) {
        ASSERT_NO_FATAL_FAILURE(Compute(inputs[group], group, step, &reads));
      }
      sequences_[step.row.value()].launched += step.new_tokens;
    }
    ASSERT_NO_FATAL_FAILURE(RunStates(plan));
    if (random_.OneIn(4)) Free(RandomRow());  // while its copies are still in flight
    if (random_.OneIn(8)) FreeKeepingTail(RandomRow());
    if (in_flight_.size() == max_in_flight_) Complete();
  }

  void Complete() {
    const LaunchedStep step = std::move(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
    const bool poisons = max_in_flight_ > 1 && random_.OneIn(50);
    coverage_.poisoned += poisons;
    cache_->CompleteStep(poisons);
    model_.CompleteStep(poisons);
    ASSERT_EQ(cache_->steps_in_flight(), in_flight_.size());
    for (std::size_t i = 0; i < step.plan.size(); ++i) {
      const std::uint32_t row = step.plan[i].row.value();
      Sequence& sequence = sequences_[row];
      if (!sequence.live || sequence.serial != step.serials[i]) continue;
      sequence.computed += step.plan[i].new_tokens;
      if (random_.OneIn(2)) {
        cache_->SetProven(BatchRow{row}, sequence.computed);
        model_.SetProven(row);
        for (const std::size_t read : step.reads[i]) is_read_[read] = true;
      }
      if (!random_.OneIn(5)) Publish(row);
      if (!random_.OneIn(4)) ReleaseOutsideWindow(row);
    }
  }

  void Publish(std::uint32_t row) {
    Sequence& sequence = sequences_[row];
    const auto all_keys = KeysOf(options_, sequence.root, sequence.tokens);
    const auto before = model_.PagesOf(row);
    const std::uint64_t completed = model_.tree().num_completed();
    const std::vector<bool> proven = ProvenPages();
    cache_->Publish(BatchRow{row}, sequence.tokens, &sequence.keys, sequence.computed);
    model_.Publish(row, sequence.tokens, all_keys, sequence.computed,
                   [&](std::uint32_t page) { return proven[page]; });
    const std::uint32_t snapshot_tokens = model_.state(row).snapshot_tokens;
    model_.PublishSnapshot(row, cache_->proven_tokens(BatchRow{row}) >= snapshot_tokens);
    coverage_.adopted += before != model_.PagesOf(row);
    coverage_.completed_nodes += model_.tree().num_completed() - completed;
    ASSERT_LE(sequence.keys.size(), all_keys.size());
    ASSERT_TRUE(std::equal(sequence.keys.begin(), sequence.keys.end(), all_keys.begin()));
  }

  void ReleaseOutsideWindow(std::uint32_t row) {
    const std::uint32_t before = cache_->num_pages(BatchRow{row});
    cache_->ReleaseOutsideWindow(BatchRow{row}, sequences_[row].computed);
    model_.ReleaseOutsideWindow(row, sequences_[row].computed);
    coverage_.released += before - cache_->num_pages(BatchRow{row});
  }

  void Free(std::uint32_t row) {
    const bool had_work = cache_->has_step_work();
    cache_->Free(BatchRow{row});
    model_.Free(row);
    coverage_.cancelled_copies += had_work && !cache_->has_step_work();
    sequences_[row] = Sequence{};
  }

  void FreeKeepingTail(std::uint32_t row) {
    Sequence& sequence = sequences_[row];
    if (!sequence.live) return;
    const auto keys = KeysOf(options_, sequence.root, sequence.tokens);
    const std::size_t cached = model_.cached().size();
    const std::vector<bool> proven = ProvenPages();
    const bool is_row_proven = cache_->proven_tokens(BatchRow{row}) >= sequence.computed;
    cache_->FreeKeepingTail(BatchRow{row}, sequence.tokens, keys, sequence.computed);
    model_.FreeKeepingTail(
        row, sequence.tokens, keys, sequence.computed,
        [&](std::uint32_t page) { return proven[page]; }, is_row_proven);
    coverage_.kept_tails += model_.cached().size() > cached;
    sequence = Sequence{};
  }

  void Fork(std::uint32_t parent, std::uint32_t child) {
    if (parent == child || !sequences_[parent].live || sequences_[child].live) return;
    Sequence sequence = sequences_[parent];
    // The fork is usually at the end of the parent's computed tokens, sometimes earlier.
    const bool is_at_end = model_.has_states();  // there is no other state
    if (!is_at_end && random_.OneIn(3)) sequence.computed = random_.Below(sequence.computed + 1);
    const std::uint32_t computed = sequence.computed;
    if (computed >= options_.max_context_tokens || !model_.HoldsWindow(parent, computed)) return;
    const absl::Status status = cache_->Fork(BatchRow{parent}, BatchRow{child}, computed);
    const bool fits = model_.Fork(parent, child, computed);
    EXPECT_EQ(status.code(), fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
    if (!fits) return;
    ++coverage_.forks;
    sequence.serial = ++serial_;
    sequence.computed = sequence.launched = computed;
    sequence.tokens.resize(computed);
    sequence.tokens = sequence.tokens + RandomTokens(1);
    sequence.keys.resize(std::min<std::size_t>(sequence.keys.size(), computed / kTestPageSize));
    sequences_[child] = std::move(sequence);
  }

  void Invalidate(std::uint32_t row) {
    Sequence& sequence = sequences_[row];
    if (!sequence.live || cache_->has_step_work()) return;
    const std::uint32_t first = random_.Below(sequence.computed + 1);
    if (in_flight_.empty() && model_.PrivatePages(row) == model_.PagesOf(row).size()) {
      for (std::uint32_t at = first; at < sequence.computed; ++at) {
        for (std::size_t group = 0; group < num_groups(); ++group) {
          const std::uint32_t page = model_.columns(row, group)[at / kTestPageSize];
          if (page != 0 && !IsProven(page)) Write(page, at % kTestPageSize, 0xbad);
        }
      }
    }
    const auto keys = KeysOf(options_, sequence.root, sequence.tokens);
    cache_->Invalidate(BatchRow{row}, sequence.tokens, keys, first);
    model_.Invalidate(row, sequence.tokens, keys, first,
                      [&](std::uint32_t page) { return IsProven(page); });
    sequence = Sequence{};
  }

  void Flush() {
    const FlushCounts counts = cache_->Flush();
    const FlushCounts expected = model_.Flush();
    EXPECT_EQ(counts.freed_pages, expected.freed_pages);
    EXPECT_EQ(counts.retained_pages, expected.retained_pages);
    EXPECT_EQ(cache_->stats().cached_pages, 0u);
    ++coverage_.flushes;
  }

  void Verify() {
    ASSERT_FALSE(::testing::Test::HasFailure());
    ASSERT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
    ASSERT_EQ(cache_->available_pages(), model_.available());
    for (const LaunchedStep& step : in_flight_) {
      for (const std::uint32_t page : step.named) {
        ASSERT_TRUE(CacheManagerPeer::pool(*cache_).is_referenced(BlockId{page}))
            << "page " << page << " may be handed out while a step in flight names it";
        coverage_.held += model_.IsHeld(page);
      }
    }
    ASSERT_TRUE(std::ranges::equal(CacheManagerPeer::pool(*cache_).EvictionOrder(), model_.cached(),
                                   {}, &BlockId::value));
    for (std::uint32_t row = 0; row < sequences_.size(); ++row) {
      const auto pages = model_.PagesOf(row);
      for (std::size_t group = 0; group < num_groups(); ++group) VerifyColumns(row, group);
      ASSERT_EQ(cache_->num_pages(BatchRow{row}), pages.size());
      ASSERT_EQ(cache_->num_private_pages(BatchRow{row}), model_.PrivatePages(row));
      trace_.insert(trace_.end(), pages.begin(), pages.end());
    }
    ASSERT_EQ(CacheManagerPeer::prefixes(*cache_).num_nodes(), model_.tree().size());
    VerifySlots();
    coverage_.empty_nodes += model_.tree().num_empty();
    coverage_.full_trees += model_.tree().num_slots() + 2 > num_slots_;
    VerifyProven();
    VerifySnapshot();
    const CacheStats stats = cache_->stats();
    ASSERT_EQ(stats.usable_pages, stats.free_pages + stats.cached_pages + stats.used_pages);
    ASSERT_EQ(stats.cached_pages, model_.cached().size());
    ASSERT_EQ(stats.evicted_pages, model_.evicted());
    ASSERT_EQ(stats.hit_tokens, hit_tokens_);
    ASSERT_EQ(stats.queried_tokens, queried_tokens_);
  }

  void VerifyColumns(std::uint32_t row, std::size_t group) {
    const LookupTable& table = CacheManagerPeer::table(*cache_, group);
    const auto& expected = model_.columns(row, group);
    ASSERT_EQ(table.end_column(BatchRow{row}), expected.size());
    for (std::uint32_t column = 0; column < expected.size(); ++column) {
      const bool has_page = table.has_page(BatchRow{row}, column);
      ASSERT_EQ(has_page ? table.page(BatchRow{row}, column).value() : 0, expected[column])
          << "row " << row << " group " << group << " column " << column;
    }
  }

  void VerifySlots() {
    const StatePool& pool = CacheManagerPeer::states(*cache_);
    const StateModel& slots = model_.slots();
    ASSERT_TRUE(std::ranges::equal(pool.EvictionOrder(), slots.cached(), {}, &StateSlot::value));
    ASSERT_EQ(pool.num_free(), slots.free().size());
    std::uint64_t tentative = 0;
    for (const std::uint32_t slot : slots.cached()) {
      ASSERT_EQ(pool.is_proven_finite(StateSlot{slot}), slots.is_proven(slot)) << "slot " << slot;
      tentative += !slots.is_proven(slot);
    }
    coverage_.evicted_states += pool.num_free() == 0 && pool.num_cached() > tentative;
    const CacheStats stats = cache_->stats();
    ASSERT_EQ(stats.free_state_slots, slots.free().size());
    ASSERT_EQ(stats.tokens_without_state, coverage_.tokens_without_state);
    ASSERT_GE(stats.state_slots,
              stats.free_state_slots + stats.live_state_slots + stats.snapshot_state_slots);
  }

  // Checks the pages that are still in use or cached.
  void VerifyProven() {
    const BlockPool& pool = CacheManagerPeer::pool(*cache_);
    PrefixCache& prefixes = CacheManagerPeer::prefixes(*cache_);
    for (std::uint32_t page = 1; page < options_.geometry.num_blocks; ++page) {
      const NodeId node = pool.node(BlockId{page});
      const bool is_used = node != kNoNode || pool.row_refs(BlockId{page}) > 0;
      if (!is_used || !IsProven(page)) continue;
      ++coverage_.proven;
      const std::uint32_t filled =
          node == kNoNode ? kTestPageSize : PrefixCachePeer::node(prefixes, node).num_tokens;
      for (std::uint32_t at = 0; at < filled; ++at) {
        ASSERT_TRUE(is_read_[std::size_t{page} * kTestPageSize + at])
            << "page " << page << " is proven, no finite logits have read its row " << at;
      }
    }
  }

  void VerifySnapshot() {
    const std::vector<PageUse> uses = cache_->DescribePages();
    const CacheStats stats = cache_->stats();
    ASSERT_EQ(uses.size(), stats.usable_pages);
    const auto count = [&](PageUse::Kind kind) {
      return std::ranges::count(uses, kind, &PageUse::kind);
    };
    ASSERT_EQ(count(PageUse::Kind::kFree), stats.free_pages);
    ASSERT_EQ(count(PageUse::Kind::kCached), stats.cached_pages);
    ASSERT_EQ(count(PageUse::Kind::kUsed), stats.used_pages);
    std::vector<std::uint32_t> rows(uses.size());
    for (std::uint32_t row = 0; row < sequences_.size(); ++row) {
      for (const std::uint32_t page : model_.PagesOf(row)) ++rows[page - 1];
    }
    for (std::uint32_t i = 0; i < uses.size(); ++i) {
      ASSERT_EQ(uses[i].num_rows, rows[i]) << "page " << i + 1;
      if (rows[i] == 0) continue;
      const auto pages = model_.PagesOf(uses[i].row.value());
      ASSERT_TRUE(std::ranges::find(pages, i + 1) != pages.end()) << "page " << i + 1;
    }
  }

  std::size_t LimitSlots(std::size_t slots_per_page) {
    PrefixCache& prefixes = CacheManagerPeer::prefixes(*cache_);
    if (slots_per_page > 0) {
      PrefixCachePeer::LimitSlots(prefixes, slots_per_page * cache_->usable_pages());
    }
    return PrefixCachePeer::num_slots(prefixes);
  }
  std::size_t num_groups() const { return options_.groups.size(); }
  bool IsProven(std::uint32_t page) const {
    return CacheManagerPeer::pool(*cache_).is_proven_finite(BlockId{page});
  }
  std::vector<bool> ProvenPages() const {
    std::vector<bool> proven(options_.geometry.num_blocks);
    for (std::uint32_t page = 1; page < proven.size(); ++page) proven[page] = IsProven(page);
    return proven;
  }
  void Write(std::uint32_t page, std::uint32_t at, std::uint64_t value) {
    cell(page, at) = value;
    is_read_[std::size_t{page} * kTestPageSize + at] = false;
  }
  std::uint64_t& cell(std::uint32_t page, std::uint32_t at) {
    return memory_[std::size_t{page} * kTestPageSize + at];
  }

  const CacheManagerOptions options_;
  const std::size_t max_in_flight_;
  std::vector<LaunchedStep> in_flight_;  // oldest first
  Random random_;
  std::unique_ptr<CacheManager> cache_;
  const std::size_t num_slots_;
  CacheModel model_;
  std::vector<Sequence> sequences_;  // by row
  std::vector<std::uint64_t> memory_;
  std::vector<bool> is_read_;         // by cell of memory_
  std::vector<std::uint64_t> slots_;  // by state slot
  std::array<Tokens, 4> bases_;
  std::uint64_t serial_ = 0, hit_tokens_ = 0, queried_tokens_ = 0;
  std::vector<std::uint32_t> trace_;
  Coverage coverage_;
};

}  // namespace quire::cache
