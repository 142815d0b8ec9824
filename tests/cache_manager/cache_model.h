#pragma once

// The simplest possible model of CacheManager, its state slots included. It compares histories
// token by token, counts references by scanning every row, searches vectors linearly and evaluates
// window reach per page. It predicts the exact page ids.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/cache_manager/cache_test_util.h"
#include "tests/cache_manager/prefix_model.h"
#include "tests/cache_manager/state_model.h"

namespace quire::cache {

class CacheModel {
 public:
  struct Row {
    std::vector<std::vector<std::uint32_t>> pages;  // by group and column; 0 means none
    Hash128 root;
    bool attached = false, publishing = true, blocked = false;
    std::uint32_t published = 0;  // number of published columns
    std::uint64_t last_step = 0;
    RowStateModel state;
  };
  struct Match {
    std::vector<std::uint32_t> pages;  // [columns, groups]
    std::vector<std::uint32_t> partial_sources;
    std::uint32_t partial_rows = 0, num_tokens = 0;
    std::size_t known_columns = 0;  // whether or not all groups can use them
    std::uint32_t state = 0;        // slot
    std::uint32_t tokens_without_state = 0;
    bool collision = false;
  };

  // `num_slots` is the maximum number of nodes and roots.
  CacheModel(const CacheManagerOptions& options, std::size_t num_slots)
      : options_(options),
        num_slots_(num_slots),
        size_(options.geometry.page_size),
        groups_(options.groups.size()),
        rows_(options.max_rows),
        slots_(options.num_state_slots) {
    for (Row& row : rows_) row.pages.resize(groups_);
    for (std::uint32_t page = options.geometry.num_blocks - 1; page > 0; --page) {
      free_.push_back(page);
    }
  }

  std::uint32_t available() const {
    return static_cast<std::uint32_t>(free_.size() + cached_.size());
  }
  // Returns the page ids by column, 0 where the row has no page.
  const std::vector<std::uint32_t>& columns(std::uint32_t row, std::size_t group = 0) const {
    return rows_[row].pages[group];
  }
  // Returns the pages of all groups.
  std::vector<std::uint32_t> PagesOf(std::uint32_t row) const {
    std::vector<std::uint32_t> all;
    for (const auto& pages : rows_[row].pages) {
      std::ranges::copy_if(pages, std::back_inserter(all),
                           [](std::uint32_t page) { return page != 0; });
    }
    return all;
  }
  const std::vector<std::uint32_t>& cached() const { return cached_; }
  std::uint64_t evicted() const { return evicted_; }
  const PrefixModel& tree() const { return tree_; }
  const StateModel& slots() const { return slots_; }
  const RowStateModel& state(std::uint32_t row) const { return rows_[row].state; }
  bool has_states() const { return options_.num_state_slots > 0; }
  std::uint32_t PrivatePages(std::uint32_t row) const {
    return static_cast<std::uint32_t>(std::ranges::count_if(
        PagesOf(row), [&](std::uint32_t page) { return Requests(page) == 1; }));
  }

  // Returns whether a token at or after `position` reads a token of the column.
  bool Reads(std::size_t group, std::size_t column, std::size_t position) const {
    const std::size_t window = options_.groups[group].window;
    return window == 0 || (column + 1) * size_ - 1 + window > position;
  }
  bool HoldsWindow(std::uint32_t row, std::uint32_t position) const {
    for (std::size_t group = 0; group < groups_; ++group) {
      for (std::size_t column = 0; column * size_ < position; ++column) {
        if (Reads(group, column, position) && rows_[row].pages[group][column] == 0) return false;
      }
    }
    return true;
  }

  Match Find(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
             const Hash128& root, std::uint32_t max_tokens) const {
    Match match;
    if (!options_.prefix_caching) return match;
    const std::size_t limit = std::min<std::size_t>(max_tokens, tokens.size());
    std::vector<std::uint32_t> path;
    while ((path.size() + 1) * size_ <= limit && path.size() < keys.size()) {
      const std::size_t index = path.size();
      const std::uint32_t node =
          tree_.FindChild(root, index == 0 ? 0 : path.back(), keys[index],
                          tokens.subspan(index * size_, size_), &match.collision);
      if (node == 0) break;
      path.push_back(node);
    }
    match.known_columns = path.size();
    while (!IsUsable(path)) path.pop_back();
    if (has_states()) {
      FindState(tokens.first(limit), root, &path, &match);
    }
    for (const std::uint32_t node : path) {
      const auto& pages = tree_.at(node).pages;
      match.pages.insert(match.pages.end(), pages.begin(), pages.end());
    }
    const std::size_t begin = path.size() * size_;
    match.num_tokens = static_cast<std::uint32_t>(begin) + match.partial_rows;
    if (has_states() || !options_.partial_page_reuse) return match;
    const auto [source, rows] =
        tree_.FindPartialMatch(root, path.empty() ? 0 : path.back(),
                               tokens.subspan(begin, std::min<std::size_t>(size_, limit - begin)));
    if (rows >= size_ / 8 && rows > 0) {
      match.partial_sources = tree_.at(source).pages;
      match.partial_rows = rows;
      match.num_tokens += rows;
    }
    return match;
  }

  bool Attach(std::uint32_t row, const Match& match, const Hash128& root,
              std::uint32_t prompt_tokens) {
    if (has_states() && !slots_.HasRoom(1, match.state)) return false;
    std::vector<std::uint32_t> attached = match.pages;
    const std::size_t columns = attached.size() / groups_;
    for (std::size_t column = 0; column + 1 < columns; ++column) {
      for (std::size_t group = 0; group < groups_; ++group) {
        if (!Reads(group, column, match.num_tokens)) attached[column * groups_ + group] = 0;
      }
    }
    const auto is_cached = [&](std::uint32_t page) { return IsCached(page); };
    const auto taken = std::ranges::count_if(attached, is_cached) +
                       std::ranges::count_if(match.partial_sources, is_cached);
    if (!match.partial_sources.empty() && available() < static_cast<std::size_t>(taken) + groups_) {
      return false;
    }
    for (std::size_t i = 0; i < attached.size(); ++i) {
      rows_[row].pages[i % groups_].push_back(attached[i]);
      if (attached[i] == 0) continue;
      std::erase(cached_, attached[i]);
      tree_.Touch(tree_.NodeOf(attached[i]));
    }
    if (!match.partial_sources.empty()) AttachCopies(row, match);
    rows_[row].root = root;
    rows_[row].attached = true;
    rows_[row].published = static_cast<std::uint32_t>(columns);
    if (has_states()) AttachState(row, match, prompt_tokens);
    return true;
  }

  bool Reserve(std::uint32_t row, std::uint32_t total, std::uint32_t step) {
    const auto columns = [&](std::size_t group) {
      return ((options_.groups[group].window == 0 ? total : step) + size_ - 1) / size_;
    };
    std::size_t missing = 0;
    for (std::size_t group = 0; group < groups_; ++group) {
      const std::size_t held = rows_[row].pages[group].size();
      missing += std::max<std::size_t>(columns(group), held) - held;
    }
    if (missing > available()) return false;
    for (std::size_t group = 0; group < groups_; ++group) {
      auto& pages = rows_[row].pages[group];
      while (pages.size() < columns(group)) pages.push_back(Take());
    }
    return true;
  }

  // `is_proven` tells for each page whether it was proven before the call. FreeKeepingTail takes
  // the same argument.
  template <typename Predicate>
  void Publish(std::uint32_t row, std::span<const std::int32_t> tokens,
               std::span<const PageKey> keys, std::uint32_t computed, Predicate is_proven) {
    Row& state = rows_[row];
    while (CanPublish(state) && (state.published + 1) * size_ <= computed) {
      const std::uint32_t column = state.published;
      const auto own = tokens.subspan(std::size_t{column} * size_, size_);
      if (!PublishColumn(state, column, own, keys[column], is_proven)) {
        state.blocked = true;
        return;
      }
      ++state.published;
    }
  }

  void SetPublish(std::uint32_t row, bool enabled) { rows_[row].publishing = enabled; }

  void ReleaseOutsideWindow(std::uint32_t row, std::uint32_t computed) {
    Row& state = rows_[row];
    const bool publishes = CanPublish(state);
    for (std::size_t group = 0; group < groups_; ++group) {
      for (std::size_t column = 0; column < state.pages[group].size(); ++column) {
        if (Reads(group, column, computed)) break;
        if (publishes && column + 1 >= state.published) break;
        const std::uint32_t page = std::exchange(state.pages[group][column], 0);
        if (page != 0) Settle(page);
      }
    }
  }

  bool Fork(std::uint32_t parent, std::uint32_t child, std::uint32_t computed) {
    const std::uint32_t full = computed / size_;
    const bool has_tail = computed % size_ != 0;
    RowStateModel& state = rows_[parent].state;
    const bool freezes = state.source == 0 && state.tokens > 0;
    if (has_states() && !slots_.HasRoom(freezes ? 2 : 1, 0)) return false;
    if (has_tail && available() < groups_) return false;
    rows_[child] = rows_[parent];
    rows_[child].last_step = 0;
    rows_[child].published = std::min(rows_[parent].published, full);
    rows_[child].state = {};
    for (auto& pages : rows_[child].pages) pages.resize(full);
    for (std::size_t group = 0; has_tail && group < groups_; ++group) {
      rows_[child].pages[group].push_back(Take());
    }
    for (std::size_t group = 0; has_tail && group < groups_; ++group) {
      waiting_.push_back(
          {rows_[parent].pages[group][full], rows_[child].pages[group][full], computed % size_});
    }
    if (!has_states()) return true;
    if (freezes) state.source = std::exchange(state.own, TakeSlot());
    rows_[child].state = state;
    rows_[child].state.own = TakeSlot();
    rows_[child].state.branch_position = 0;
    rows_[child].state.snapshot = rows_[child].state.snapshot_tokens = 0;
    return true;
  }

  void Free(std::uint32_t row) {
    if (has_states()) FreeState(row);
    auto& pages = rows_[row].pages;
    std::size_t columns = 0;
    for (const auto& group : pages) columns = std::max(columns, group.size());
    for (; columns > 0; --columns) {
      for (auto& group : pages) {
        if (group.size() < columns) continue;
        const std::uint32_t page = group.back();
        group.pop_back();
        if (page == 0) continue;
        if (IsNamed(rows_[row], page)) steps_.back().held.push_back(page);
        Settle(page);
      }
    }
    rows_[row] = Row{};
    rows_[row].pages.resize(groups_);
  }

  template <typename Predicate>
  void FreeKeepingTail(std::uint32_t row, std::span<const std::int32_t> tokens,
                       std::span<const PageKey> keys, std::uint32_t computed, Predicate is_proven,
                       bool is_row_proven) {
    Row& state = rows_[row];
    const std::uint32_t full = computed / size_;
    if (has_states()) {
      KeepState(row, tokens, keys, computed, is_proven, is_row_proven);
      return Free(row);
    }
    Publish(row, tokens, keys, std::min(full, static_cast<std::uint32_t>(keys.size())) * size_,
            is_proven);
    const std::uint32_t filled = computed % size_;
    if (CanPublish(state) && options_.partial_page_reuse && filled >= size_ / 8 &&
        state.published == full && HoldsColumn(state, full) && IsPrivate(state, full)) {
      KeepTail(state, full, tokens.subspan(std::size_t{full} * size_, filled));
    }
    Free(row);
  }

  // `is_proven` tells for each page whether it is proven.
  template <typename Predicate>
  void Invalidate(std::uint32_t row, std::span<const std::int32_t> tokens,
                  std::span<const PageKey> keys, std::uint32_t first_token, Predicate is_proven) {
    std::size_t first = first_token / size_;
    const Hash128 root = rows_[row].root;
    std::uint32_t node = NodeAt(rows_[row], first, tokens, keys);
    while (node != 0 && std::ranges::all_of(PagesOfColumn(rows_[row], first, node), is_proven)) {
      node = NodeAt(rows_[row], ++first, tokens, keys);
    }
    if (node != 0) Drop(node);
    for (const auto& pages : rows_[row].pages) {
      for (std::size_t column = first; column < pages.size(); ++column) {
        if (pages[column] != 0) poisoned_.insert(pages[column]);
      }
    }
    if (has_states()) DropTentativeStates(root, tokens, keys);
    Free(row);
  }

  std::vector<PageCopy> TakeCopies() {
    std::vector<PageCopy> copies;
    for (const Copy& copy : waiting_) {
      copies.push_back({BlockId{copy.source}, BlockId{copy.target}, copy.rows});
      taken_.copies.push_back(copy);
    }
    waiting_.clear();
    return copies;
  }
  std::vector<std::uint32_t> TakeClears() {
    std::vector<std::uint32_t> taken(
        quarantined_.begin() + static_cast<std::ptrdiff_t>(num_clearing_), quarantined_.end());
    num_clearing_ = quarantined_.size();
    taken_.num_clears += taken.size();
    return taken;
  }
  void PrepareStep(std::span<const RowStep> rows) {
    ++step_;
    for (const RowStep& row : rows) rows_[row.row.value()].last_step = step_;
    steps_.push_back(std::exchange(taken_, {}));
    if (has_states()) PrepareStates(rows);
  }
  // The step that wrote the row's snapshot has completed and its pages are published.
  void PublishSnapshot(std::uint32_t row, bool is_proven) {
    RowStateModel& state = rows_[row].state;
    const std::uint32_t slot = std::exchange(state.snapshot, 0);
    const std::uint32_t at = std::exchange(state.snapshot_tokens, 0);
    if (slot == 0) return;
    const std::uint32_t column = at / size_;
    const std::uint32_t node = rows_[row].published < column ? 0 : ParentOf(rows_[row], column);
    if (node != 0 && tree_.at(node).state == 0) {
      SetState(node, slot);
      if (is_proven) {
        slots_.SetProven(slot);
      } else {
        state.tentative.emplace_back(slot, slots_.num_uses(slot));
      }
    }
    SettleSlot(slot);
  }
  void SetProven(std::uint32_t row) {
    for (const auto& [slot, use] : rows_[row].state.tentative) {
      if (slots_.num_uses(slot) == use && IsFrozen(slot)) slots_.SetProven(slot);
    }
    rows_[row].state.tentative.clear();
  }
  void CompleteStep(bool is_poisoned) {
    for (const Step& step : steps_) {
      if (is_poisoned) PoisonHeld(step);
    }
    Complete(steps_.front());
    steps_.erase(steps_.begin());
    if (has_states()) {
      while (!reading_.empty()) {  // several rows may read one slot
        const std::uint32_t slot = reading_.front();
        reading_.erase(reading_.begin());
        SettleSlot(slot);
      }
      for (const std::uint32_t slot : std::exchange(quarantined_slots_, {})) SettleSlot(slot);
    }
    if (steps_.empty()) Complete(taken_);
  }
  // Returns whether a step in flight reads, writes or copies into the page.
  bool IsHeld(std::uint32_t page) const {
    return std::ranges::any_of(
        steps_, [&](const Step& step) { return std::ranges::count(step.held, page) > 0; });
  }

  FlushCounts Flush() {
    FlushCounts counts;
    counts.freed_pages = static_cast<std::uint32_t>(cached_.size());
    for (std::uint32_t page = 1; page < options_.geometry.num_blocks; ++page) {
      counts.retained_pages += tree_.NodeOf(page) != 0 && !IsCached(page);
    }
    for (std::uint32_t page = 1; page < options_.geometry.num_blocks; ++page) {
      if (const std::uint32_t node = tree_.NodeOf(page); node != 0) Drop(node);
    }
    for (Row& row : rows_) row.blocked = row.blocked || !row.pages[0].empty();
    return counts;
  }

 private:
  struct Copy {
    std::uint32_t source, target, rows;
  };
  struct Step {
    std::vector<Copy> copies;
    std::size_t num_clears = 0;
    std::vector<std::uint32_t> held;
  };

  // Shortens the path to the longest part that ends with a state, or with a partial child.
  void FindState(std::span<const std::int32_t> tokens, const Hash128& root,
                 std::vector<std::uint32_t>* path, Match* match) const {
    const std::size_t matched = path->size() * size_;
    while (true) {
      const std::uint32_t node = path->empty() ? 0 : path->back();
      const std::uint32_t partial =
          options_.partial_page_reuse
              ? tree_.FindWholePartial(root, node, tokens.subspan(path->size() * size_))
              : 0;
      if (partial != 0) {
        match->partial_sources = tree_.at(partial).pages;
        match->partial_rows = static_cast<std::uint32_t>(tree_.at(partial).tokens.size());
        match->state = tree_.at(partial).state;
        break;
      }
      if (node == 0) break;
      match->state = tree_.at(node).state;
      if (match->state != 0) break;
      path->pop_back();
    }
    const std::size_t found = path->size() * size_ + match->partial_rows;
    match->tokens_without_state = static_cast<std::uint32_t>(matched - std::min(matched, found));
  }

  void AttachState(std::uint32_t row, const Match& match, std::uint32_t prompt_tokens) {
    RowStateModel& state = rows_[row].state;
    state = {.source = match.state, .tokens = match.num_tokens, .prompt_tokens = prompt_tokens};
    slots_.Use(match.state);
    if (match.state != 0) state.tentative.emplace_back(match.state, slots_.num_uses(match.state));
    state.own = TakeSlot();
    if (match.tokens_without_state > 0)
      state.branch_position = match.num_tokens + match.tokens_without_state;
  }

  void FreeState(std::uint32_t row) {
    const RowStateModel state = std::exchange(rows_[row].state, {});
    for (const std::uint32_t slot : {state.own, state.snapshot}) {
      if (slot == 0) continue;
      if (IsInFlight(rows_[row])) {
        quarantined_slots_.push_back(slot);
      } else {
        SettleSlot(slot);
      }
    }
    SettleSlot(state.source);
  }

  template <typename Predicate>
  void KeepState(std::uint32_t row, std::span<const std::int32_t> tokens,
                 std::span<const PageKey> keys, std::uint32_t computed, Predicate is_proven,
                 bool is_row_proven) {
    RowStateModel& state = rows_[row].state;
    const bool hands_over = computed > 0 && state.own != 0 && state.tokens == computed &&
                            tree_.NodeOfState(state.source) == 0;
    const std::uint32_t full = computed / size_;
    const std::uint32_t filled = computed % size_;
    Row& own = rows_[row];
    if (!CanPublish(own)) return;
    Publish(row, tokens, keys, std::min(full, static_cast<std::uint32_t>(keys.size())) * size_,
            is_proven);
    std::uint32_t node = 0;
    if (filled == 0) {
      node = own.published >= full ? ParentOf(own, full) : 0;
    } else if (hands_over && is_row_proven && options_.partial_page_reuse && CanPublish(own) &&
               own.published == full && HoldsColumn(own, full) && IsPrivate(own, full)) {
      const auto tail = tokens.subspan(std::size_t{full} * size_, filled);
      const std::uint32_t parent = ParentOf(own, full);
      node = tree_.FindWholePartial(own.root, parent, tail);
      if (node != 0 && tree_.at(node).tokens.size() < filled) node = 0;
      if (node != 0) {
        tree_.Touch(node);
      } else if (MakeRoom()) {
        AddNode(own, full, {own.root, parent, std::nullopt, Tokens(tail.begin(), tail.end()), {}});
        node = tree_.last_id();
      }
    }
    if (!hands_over || node == 0) return;
    if (tree_.at(node).state != 0) return slots_.Touch(tree_.at(node).state);
    const std::uint32_t slot = state.source != 0 ? state.source : state.own;
    SetState(node, slot);
    if (is_row_proven) slots_.SetProven(slot);
    if (slot == state.own) state.source = std::exchange(state.own, 0);
  }

  void DropTentativeStates(const Hash128& root, std::span<const std::int32_t> tokens,
                           std::span<const PageKey> keys) {
    std::uint32_t node = 0;
    bool collision = false;
    for (std::size_t at = 0; at < keys.size(); ++at) {
      node = tree_.FindChild(root, node, keys[at], tokens.subspan(at * size_, size_), &collision);
      if (node == 0) return;
      const std::uint32_t slot = tree_.at(node).state;
      if (slot != 0 && !slots_.is_proven(slot)) EvictState(slot);
    }
  }

  void PrepareStates(std::span<const RowStep> rows) {
    for (const RowStep& step : rows) {
      RowStateModel& state = rows_[step.row.value()].state;
      const std::uint32_t unpublished = std::exchange(state.snapshot, 0);
      if (unpublished != 0) SettleSlot(unpublished);
      state.snapshot_tokens = 0;
      if (state.source != 0) reading_.push_back(std::exchange(state.source, 0));
      state.tokens += step.new_tokens;
    }
    for (const RowStep& step : rows) {
      Row& row = rows_[step.row.value()];
      const std::uint32_t border =
          row.state.Border(step.cache_length, size_, options_.state_interval_tokens);
      if (border == 0 || !CanPublish(row) || !slots_.HasRoom(1, 0)) continue;
      row.state.snapshot = TakeSlot();
      row.state.snapshot_tokens = border;
    }
  }

  void SetState(std::uint32_t node, std::uint32_t slot) {
    tree_.SetState(node, slot);
    const std::uint32_t snapshots = options_.num_state_slots - 1 - options_.max_rows;
    const std::uint32_t limit = std::min(std::max(snapshots / 2, 2u), 8u);
    for (;;) {
      const auto path = tree_.StatesBefore(node);
      if (path.size() <= limit) return;
      // Snapshots at branches are taken after all others, while they alone exceed the limit.
      std::uint32_t thinnest = 0, branches = 0;
      for (std::size_t i = 0; i + 2 < path.size(); ++i) branches += path[i].is_branch ? 1 : 0;
      std::pair<bool, std::uint32_t> least{true, 0xffffffff};
      for (std::size_t i = 0; i + 2 < path.size(); ++i) {
        const std::uint32_t gap = path[i + 1].tokens - (i == 0 ? 0 : path[i - 1].tokens);
        const std::pair<bool, std::uint32_t> rank{path[i].is_branch, gap};
        if (rank >= least || !slots_.IsCached(path[i].slot)) continue;
        if (path[i].is_branch && branches <= limit) continue;
        thinnest = path[i].slot;
        least = rank;
      }
      if (thinnest == 0) return;
      EvictState(thinnest);
    }
  }
  std::uint32_t TakeSlot() {
    if (slots_.free().empty()) EvictState(slots_.cached().front());
    return slots_.Take();
  }
  // Takes the snapshot from its node.
  void EvictState(std::uint32_t slot) {
    const std::uint32_t node = tree_.NodeOfState(slot);
    if (!tree_.at(node).key.has_value()) return Drop(node);
    tree_.RemoveState(node);
    if (slots_.Use(slot)) slots_.Free(slot);
  }
  bool IsFrozen(std::uint32_t slot) const {
    const auto reads = [&](const Row& row) { return row.state.source == slot; };
    return tree_.NodeOfState(slot) != 0 || std::ranges::any_of(rows_, reads) ||
           std::ranges::count(reading_, slot) > 0;
  }
  // Moves a slot that may have lost its last user to the right list.
  void SettleSlot(std::uint32_t slot) {
    const auto uses = [&](const Row& row) {
      return row.state.source == slot || row.state.own == slot || row.state.snapshot == slot;
    };
    if (slot == 0 || std::ranges::any_of(rows_, uses) || std::ranges::count(reading_, slot) > 0) {
      return;
    }
    if (tree_.NodeOfState(slot) != 0) {
      slots_.Cache(slot);
    } else {
      slots_.Free(slot);
    }
  }

  bool IsInFlight(const Row& row) const { return row.last_step + steps_.size() > step_; }
  bool AwaitsCopy(std::uint32_t page) const {
    return std::ranges::any_of(waiting_, [&](const Copy& copy) { return copy.target == page; });
  }
  // Returns whether a step in flight names a page of the row.
  bool IsNamed(const Row& row, std::uint32_t page) const {
    bool named = IsInFlight(row);
    for (const Step& step : steps_) {
      for (const Copy& copy : step.copies) named = named || copy.target == page;
    }
    return named && !AwaitsCopy(page);
  }

  // A page that was published when it was released matches its tokens. The end of a
  // history may not.
  void PoisonHeld(const Step& step) {
    for (const std::uint32_t page : step.held) {
      const std::uint32_t node = tree_.NodeOf(page);
      if (node != 0 && tree_.at(node).key.has_value()) continue;
      if (node != 0) Drop(node);
      poisoned_.insert(page);
    }
  }

  void Complete(Step& step) {
    while (!step.held.empty()) {
      const std::uint32_t page = step.held.back();
      step.held.pop_back();
      Settle(page);
    }
    while (!step.copies.empty()) {
      const std::uint32_t source = step.copies.front().source;
      step.copies.erase(step.copies.begin());
      Settle(source);
    }
    for (; step.num_clears > 0; --step.num_clears, --num_clearing_) {
      poisoned_.erase(quarantined_.front());
      free_.push_back(quarantined_.front());
      quarantined_.erase(quarantined_.begin());
    }
  }

  bool IsCached(std::uint32_t page) const { return std::ranges::count(cached_, page) > 0; }
  std::uint32_t Requests(std::uint32_t page) const {
    std::ptrdiff_t count = 0;
    for (const Row& row : rows_) {
      for (const auto& pages : row.pages) count += std::ranges::count(pages, page);
    }
    return static_cast<std::uint32_t>(count);
  }
  bool IsReferenced(std::uint32_t page) const {
    const auto reads = [&](const Copy& copy) { return copy.source == page; };
    return Requests(page) > 0 || IsHeld(page) || std::ranges::any_of(waiting_, reads) ||
           std::ranges::any_of(taken_.copies, reads) ||
           std::ranges::any_of(
               steps_, [&](const Step& step) { return std::ranges::any_of(step.copies, reads); });
  }

  // Returns the node of a column of the row, or the node of its tokens if no group has a page for
  // the column.
  std::uint32_t NodeAt(const Row& row, std::size_t column, std::span<const std::int32_t> tokens,
                       std::span<const PageKey> keys) const {
    for (const auto& pages : row.pages) {
      if (column >= pages.size()) return 0;
      if (pages[column] != 0) return tree_.NodeOf(pages[column]);
    }
    std::uint32_t node = 0;
    bool collision = false;
    for (std::size_t at = 0; at <= column; ++at) {
      node =
          tree_.FindChild(row.root, node, keys[at], tokens.subspan(at * size_, size_), &collision);
      if (node == 0) return 0;
    }
    return node;
  }

  // Returns the row's pages, or the node's page where the row has none.
  std::vector<std::uint32_t> PagesOfColumn(const Row& row, std::size_t column,
                                           std::uint32_t node) const {
    std::vector<std::uint32_t> held;
    for (const auto& pages : row.pages) {
      if (column < pages.size()) held.push_back(pages[column]);
    }
    std::erase(held, 0u);
    if (held.empty()) held = tree_.at(node).pages;
    std::erase(held, 0u);
    return held;
  }

  // Returns whether all groups can use the whole path.
  bool IsUsable(const std::vector<std::uint32_t>& path) const {
    for (std::size_t column = 0; column < path.size(); ++column) {
      for (std::size_t group = 0; group < groups_; ++group) {
        const bool is_needed =
            Reads(group, column, path.size() * size_) || column + 1 == path.size();
        if (is_needed && tree_.at(path[column]).pages[group] == 0) return false;
      }
    }
    return true;
  }

  bool CanPublish(Row& row) const {
    if (!options_.prefix_caching || !row.attached || !row.publishing) return false;
    if (row.published > 0 && ParentOf(row, row.published) == 0) row.blocked = true;
    return !row.blocked;
  }
  // Returns the node before a column, or 0 if the row has no page there or the page has no node.
  std::uint32_t ParentOf(const Row& row, std::uint32_t column) const {
    for (const auto& pages : row.pages) {
      if (column > 0 && column <= pages.size() && pages[column - 1] != 0) {
        return tree_.NodeOf(pages[column - 1]);
      }
    }
    return 0;
  }
  bool HoldsColumn(const Row& row, std::uint32_t column) const {
    return std::ranges::all_of(row.pages, [&](const auto& pages) {
      return pages[column] != 0 && !poisoned_.contains(pages[column]) && !AwaitsCopy(pages[column]);
    });
  }
  bool IsPrivate(const Row& row, std::uint32_t column) const {
    return std::ranges::all_of(row.pages, [&](const auto& pages) {
      return Requests(pages[column]) == 1 && tree_.NodeOf(pages[column]) == 0;
    });
  }

  template <typename Predicate>
  bool PublishColumn(Row& row, std::uint32_t column, std::span<const std::int32_t> tokens,
                     const PageKey& key, Predicate is_proven) {
    if (!HoldsColumn(row, column)) return false;
    if (tree_.NodeOf(row.pages[0][column]) != 0) return true;
    const std::uint32_t parent = ParentOf(row, column);
    bool collision = false;
    const std::uint32_t twin = tree_.FindChild(row.root, parent, key, tokens, &collision);
    if (collision) return false;
    if (twin != 0) {
      for (std::size_t group = 0; group < groups_; ++group) {
        const std::uint32_t page = tree_.at(twin).pages[group];
        if (page != 0 && !is_proven(page) && is_proven(row.pages[group][column])) return false;
      }
      Merge(row, column, twin);
      return true;
    }
    if (!MakeRoom()) return false;
    AddNode(row, column, {row.root, parent, key, Tokens(tokens.begin(), tokens.end()), {}, 0});
    return true;
  }

  void Merge(Row& row, std::uint32_t column, std::uint32_t twin) {
    for (std::size_t group = 0; group < groups_; ++group) {
      const std::uint32_t own = row.pages[group][column];
      const std::uint32_t page = tree_.at(twin).pages[group];
      if (page == 0) {
        tree_.AddPage(twin, group, own);
        continue;
      }
      std::erase(cached_, page);
      for (Row& other : rows_) {
        if (other.pages[group].size() <= column || other.pages[group][column] != own) continue;
        if (IsInFlight(other)) steps_.back().held.push_back(own);
        other.pages[group][column] = page;
      }
      Settle(own);
    }
    tree_.Touch(twin);
  }

  void KeepTail(const Row& row, std::uint32_t column, std::span<const std::int32_t> tokens) {
    const std::uint32_t parent = ParentOf(row, column);
    const auto [known, rows] = tree_.FindPartialMatch(row.root, parent, tokens);
    if (rows == tokens.size()) {
      tree_.Touch(known);
    } else if (MakeRoom()) {
      AddNode(row, column,
              {row.root, parent, std::nullopt, Tokens(tokens.begin(), tokens.end()), {}, 0});
    }
  }

  void AddNode(const Row& row, std::uint32_t column, PrefixModel::Node node) {
    for (const auto& pages : row.pages) node.pages.push_back(pages[column]);
    tree_.Add(std::move(node));
  }

  void AttachCopies(std::uint32_t row, const Match& match) {
    tree_.Touch(tree_.NodeOf(match.partial_sources[0]));
    const std::size_t first = waiting_.size();
    for (const std::uint32_t source : match.partial_sources) {
      std::erase(cached_, source);
      waiting_.push_back({source, 0, match.partial_rows});
    }
    for (std::size_t group = 0; group < groups_; ++group) {
      waiting_[first + group].target = Take();
      rows_[row].pages[group].push_back(waiting_[first + group].target);
    }
  }

  std::uint32_t Take() {
    if (free_.empty()) Evict(cached_.front());
    const std::uint32_t page = free_.back();
    free_.pop_back();
    return page;
  }

  // Makes room for a root and a node. Only unreferenced ends of histories are evicted.
  bool MakeRoom() {
    const auto makes_room = [&](std::uint32_t page) {
      const std::uint32_t node = tree_.NodeOf(page);
      return tree_.IsLeaf(node) && std::ranges::all_of(tree_.at(node).pages, [&](auto of_node) {
               return of_node == 0 || IsCached(of_node);
             });
    };
    while (tree_.num_slots() + 2 > num_slots_) {
      const auto coldest = std::ranges::find_if(cached_, makes_room);
      if (coldest == cached_.end()) return false;
      Evict(*coldest);
    }
    return true;
  }

  void Evict(std::uint32_t page) {
    const std::uint32_t node = tree_.NodeOf(page);
    const bool is_full = tree_.at(node).key.has_value();
    if (!is_full || options_.groups[tree_.GroupOf(page)].window == 0) return Drop(node);
    tree_.RemovePage(page);
    ++evicted_;
    std::erase(cached_, page);
    free_.push_back(page);
  }

  void Drop(std::uint32_t node) {
    for (const std::uint32_t page : tree_.Drop(node)) {
      evicted_ += page != 0;
      if (page != 0 && std::erase(cached_, page) > 0) free_.push_back(page);
    }
    for (const std::uint32_t slot : tree_.TakeDroppedStates()) {
      if (slots_.Use(slot)) slots_.Free(slot);
    }
  }

  // Moves a page that may have lost its last reference to the right list.
  void Settle(std::uint32_t page) {
    if (IsReferenced(page)) return;
    if (poisoned_.contains(page)) {
      quarantined_.push_back(page);
    } else if (const std::uint32_t id = tree_.NodeOf(page); id == 0) {
      free_.push_back(page);
    } else {
      const std::size_t group = tree_.GroupOf(page);
      // The page is inserted after all pages that continue it and before all that it continues.
      auto place = cached_.end();
      for (std::uint32_t up = tree_.at(id).parent; up != 0; up = tree_.at(up).parent) {
        if (options_.groups[group].window > 0) break;  // with a window the order is that of use
        place = std::min(place, std::ranges::find(cached_, tree_.at(up).pages[group]));
      }
      cached_.insert(place, page);
    }
    const auto copy =
        std::ranges::find_if(waiting_, [&](const Copy& c) { return c.target == page; });
    if (copy == waiting_.end()) return;
    const std::uint32_t source = copy->source;
    waiting_.erase(copy);
    Settle(source);
  }

  const CacheManagerOptions options_;
  const std::size_t num_slots_;
  const std::uint32_t size_;
  const std::size_t groups_;
  std::vector<Row> rows_;
  PrefixModel tree_;
  std::vector<std::uint32_t> free_;    // the last one is allocated first
  std::vector<std::uint32_t> cached_;  // the first one is evicted first
  std::vector<std::uint32_t> quarantined_;
  std::size_t num_clearing_ = 0;  // the first ones of quarantined_
  std::set<std::uint32_t> poisoned_;
  std::vector<Copy> waiting_;
  Step taken_;
  std::vector<Step> steps_;  // in flight, oldest first
  StateModel slots_;
  std::vector<std::uint32_t> reading_;            // sources of the step in flight
  std::vector<std::uint32_t> quarantined_slots_;  // freed while the step in flight writes them
  std::uint64_t step_ = 0;
  std::uint64_t evicted_ = 0;
};

}  // namespace quire::cache
