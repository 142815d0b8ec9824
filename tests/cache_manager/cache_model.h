#pragma once

// What CacheManager must answer, written down as plainly as possible: histories are compared token
// by token, references are counted by looking at every row, lists are vectors that are searched. It
// predicts the very page ids.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/cache_manager/cache_test_util.h"

namespace quire::cache {

class CacheModel {
 public:
  struct Node {
    Hash128 root;
    std::uint32_t parent = 0;  // page; 0: the root
    std::optional<PageKey> key;
    Tokens tokens;  // of this page
    std::uint64_t recency = 0;
  };
  struct Row {
    std::vector<std::uint32_t> pages;
    Hash128 root;
    bool attached = false, publishing = true, blocked = false;
    std::uint64_t last_step = 0;
  };
  struct Match {
    std::vector<std::uint32_t> pages;
    std::uint32_t partial_source = 0, partial_rows = 0;
    bool collision = false;
  };

  explicit CacheModel(const CacheManagerOptions& options)
      : options_(options), size_(options.geometry.page_size), rows_(options.max_rows) {
    for (std::uint32_t page = options.geometry.num_blocks - 1; page > 0; --page) {
      free_.push_back(page);
    }
  }

  std::uint32_t available() const {
    return static_cast<std::uint32_t>(free_.size() + cached_.size());
  }
  const std::vector<std::uint32_t>& pages(std::uint32_t row) const { return rows_[row].pages; }
  const std::vector<std::uint32_t>& cached() const { return cached_; }
  std::uint64_t evicted() const { return evicted_; }
  std::uint64_t removals() const { return removals_; }
  std::uint32_t PrivatePages(std::uint32_t row) const {
    return static_cast<std::uint32_t>(std::ranges::count_if(
        rows_[row].pages, [&](std::uint32_t page) { return Requests(page) == 1; }));
  }

  Match Find(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
             const Hash128& root, std::uint32_t max_tokens) const {
    Match match;
    if (!options_.prefix_caching) return match;
    const std::size_t limit = std::min<std::size_t>(max_tokens, tokens.size());
    std::uint32_t last = 0;
    while ((match.pages.size() + 1) * size_ <= limit && match.pages.size() < keys.size()) {
      const std::size_t index = match.pages.size();
      const std::uint32_t page = FindChild(root, last, keys[index],
                                           tokens.subspan(index * size_, size_), &match.collision);
      if (page == 0) break;
      match.pages.push_back(last = page);
    }
    if (!options_.partial_page_reuse) return match;
    const std::size_t begin = match.pages.size() * size_;
    const auto [source, rows] = FindBeginning(
        root, last, tokens.subspan(begin, std::min<std::size_t>(size_, limit - begin)));
    if (rows >= size_ / 8 && rows > 0) {
      match.partial_source = source;
      match.partial_rows = rows;
    }
    return match;
  }

  bool Attach(std::uint32_t row, const Match& match, const Hash128& root) {
    std::uint32_t left = available();
    for (const std::uint32_t page : match.pages) left -= IsCached(page);
    if (match.partial_source != 0 && left - IsCached(match.partial_source) == 0) return false;
    for (const std::uint32_t page : match.pages) {
      std::erase(cached_, page);
      rows_[row].pages.push_back(page);
      nodes_.at(page).recency = ++clock_;
    }
    if (match.partial_source != 0) {
      nodes_.at(match.partial_source).recency = ++clock_;
      std::erase(cached_, match.partial_source);
      waiting_.push_back({match.partial_source, 0, match.partial_rows});
      waiting_.back().target = Take();
      rows_[row].pages.push_back(waiting_.back().target);
    }
    rows_[row].root = root;
    rows_[row].attached = true;
    return true;
  }

  bool Reserve(std::uint32_t row, std::uint32_t tokens) {
    const std::size_t columns = (tokens + size_ - 1) / size_;
    auto& pages = rows_[row].pages;
    if (columns <= pages.size()) return true;
    if (columns - pages.size() > available()) return false;
    while (pages.size() < columns) pages.push_back(Take());
    return true;
  }

  void Publish(std::uint32_t row, std::span<const std::int32_t> tokens,
               std::span<const PageKey> keys, std::uint32_t computed) {
    Row& state = rows_[row];
    if (!options_.prefix_caching || !state.attached || !state.publishing || state.blocked) return;
    for (std::uint32_t column = 0; (column + 1) * size_ <= computed; ++column) {
      const std::uint32_t page = state.pages[column];
      if (nodes_.contains(page)) continue;
      const auto own = tokens.subspan(std::size_t{column} * size_, size_);
      const std::uint32_t parent = column == 0 ? 0 : state.pages[column - 1];
      bool collision = false;
      const std::uint32_t twin = FindChild(state.root, parent, keys[column], own, &collision);
      if (collision || spoiled_.contains(page) || lost_.contains(page)) {
        state.blocked = true;
        return;
      }
      if (twin != 0) {
        std::erase(cached_, twin);
        for (Row& other : rows_) {
          if (other.pages.size() <= column || other.pages[column] != page) continue;
          if (IsInFlight(other)) steps_.back().held.push_back(page);
          other.pages[column] = twin;
        }
        Settle(page);
        nodes_.at(twin).recency = ++clock_;
      } else {
        nodes_[page] = {state.root, parent, keys[column], Tokens(own.begin(), own.end()), ++clock_};
      }
    }
  }

  void SetPublish(std::uint32_t row, bool enabled) { rows_[row].publishing = enabled; }

  bool Fork(std::uint32_t parent, std::uint32_t child, std::uint32_t computed) {
    const std::uint32_t full = computed / size_;
    if (computed % size_ != 0 && available() == 0) return false;
    const Row copy = rows_[parent];
    const std::uint32_t tail = computed % size_ != 0 ? Take() : 0;
    rows_[child] = copy;
    rows_[child].last_step = 0;
    rows_[child].pages.assign(copy.pages.begin(), copy.pages.begin() + full);
    if (tail != 0) {
      rows_[child].pages.push_back(tail);
      waiting_.push_back({copy.pages[full], tail, computed % size_});
    }
    return true;
  }

  void Free(std::uint32_t row) {
    while (!rows_[row].pages.empty()) {
      const std::uint32_t page = rows_[row].pages.back();
      rows_[row].pages.pop_back();
      bool named = IsInFlight(rows_[row]);
      for (const Step& step : steps_) {
        for (const Copy& copy : step.copies) named = named || copy.target == page;
      }
      for (const Copy& copy : waiting_) named = named && copy.target != page;
      if (named) steps_.back().held.push_back(page);
      Settle(page);
    }
    rows_[row] = Row{};
  }

  void FreeKeepingTail(std::uint32_t row, std::span<const std::int32_t> tokens,
                       std::span<const PageKey> keys, std::uint32_t computed) {
    Row& state = rows_[row];
    const std::uint32_t full = computed / size_;
    Publish(row, tokens, keys, std::min(full, static_cast<std::uint32_t>(keys.size())) * size_);
    const std::uint32_t filled = computed % size_;
    bool keeps = options_.prefix_caching && options_.partial_page_reuse && state.attached &&
                 state.publishing && !state.blocked && filled >= size_ / 8;
    for (std::uint32_t column = 0; keeps && column < full; ++column) {
      keeps = nodes_.contains(state.pages[column]);
    }
    for (const Copy& copy : waiting_) keeps = keeps && copy.target != state.pages[full];
    if (keeps && Requests(state.pages[full]) == 1 && !nodes_.contains(state.pages[full])) {
      const auto held = tokens.subspan(std::size_t{full} * size_, filled);
      const std::uint32_t parent = full == 0 ? 0 : state.pages[full - 1];
      const auto [page, rows] = FindBeginning(state.root, parent, held);
      if (rows == filled) {
        nodes_.at(page).recency = ++clock_;
      } else {
        nodes_[state.pages[full]] = {state.root, parent, std::nullopt,
                                     Tokens(held.begin(), held.end()), ++clock_};
      }
    }
    Free(row);
  }

  void Scrub(std::uint32_t row, std::uint32_t first_token) {
    for (std::size_t column = first_token / size_; column < rows_[row].pages.size(); ++column) {
      const std::uint32_t page = rows_[row].pages[column];
      if (nodes_.contains(page)) Drop(page);
      spoiled_.insert(page);
    }
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
  }
  void CompleteStep(bool spoil_held) {
    Complete(steps_.front(), spoil_held);
    steps_.erase(steps_.begin());
    if (steps_.empty()) Complete(taken_, spoil_held);
  }
  // Whether a step in flight reads, writes or copies into the page.
  bool IsHeld(std::uint32_t page) const {
    return std::ranges::any_of(
        steps_, [&](const Step& step) { return std::ranges::count(step.held, page) > 0; });
  }

  FlushCounts Flush() {
    FlushCounts counts;
    counts.freed_pages = static_cast<std::uint32_t>(cached_.size());
    counts.retained_pages = static_cast<std::uint32_t>(nodes_.size() - cached_.size());
    while (!nodes_.empty()) Drop(nodes_.begin()->first);
    for (Row& row : rows_) row.blocked = row.blocked || !row.pages.empty();
    return counts;
  }

  // The whole history that a findable page stands for, and its root.
  std::pair<Hash128, Tokens> HistoryOf(std::uint32_t page) const {
    Tokens history;
    const Hash128 root = nodes_.at(page).root;
    for (; page != 0; page = nodes_.at(page).parent) {
      history = nodes_.at(page).tokens + history;
    }
    return {root, history};
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

  bool IsInFlight(const Row& row) const { return row.last_step + steps_.size() > step_; }

  void Complete(Step& step, bool spoil_held) {
    while (!step.copies.empty()) {
      const std::uint32_t source = step.copies.front().source;
      step.copies.erase(step.copies.begin());
      Settle(source);
    }
    while (!step.held.empty()) {
      const std::uint32_t page = step.held.front();
      if (spoil_held) {
        if (nodes_.contains(page)) Drop(page);
        spoiled_.insert(page);
      }
      step.held.erase(step.held.begin());
      Settle(page);
    }
    for (; step.num_clears > 0; --step.num_clears, --num_clearing_) {
      spoiled_.erase(quarantined_.front());
      free_.push_back(quarantined_.front());
      quarantined_.erase(quarantined_.begin());
    }
  }

  bool IsCached(std::uint32_t page) const { return std::ranges::count(cached_, page) > 0; }
  std::uint32_t Requests(std::uint32_t page) const {
    std::ptrdiff_t count = 0;
    for (const Row& row : rows_) count += std::ranges::count(row.pages, page);
    return static_cast<std::uint32_t>(count);
  }
  bool IsReferenced(std::uint32_t page) const {
    const auto reads = [&](const Copy& copy) { return copy.source == page; };
    return Requests(page) > 0 || IsHeld(page) || std::ranges::any_of(waiting_, reads) ||
           std::ranges::any_of(taken_.copies, reads) ||
           std::ranges::any_of(
               steps_, [&](const Step& step) { return std::ranges::any_of(step.copies, reads); });
  }

  std::uint32_t FindChild(const Hash128& root, std::uint32_t parent, const PageKey& key,
                          std::span<const std::int32_t> tokens, bool* collision) const {
    *collision = false;
    for (const auto& [page, node] : nodes_) {
      if (node.key != key) continue;
      const bool same =
          node.parent == parent && node.root == root && std::ranges::equal(node.tokens, tokens);
      *collision = !same;
      return same ? page : 0;
    }
    return 0;
  }

  std::vector<std::uint32_t> Children(const Hash128& root, std::uint32_t parent) const {
    std::vector<std::uint32_t> children;
    for (const auto& [page, node] : nodes_) {
      if (node.parent == parent && node.root == root) children.push_back(page);
    }
    std::ranges::sort(children, std::greater<>{},
                      [&](std::uint32_t page) { return nodes_.at(page).recency; });
    return children;
  }

  std::pair<std::uint32_t, std::uint32_t> FindBeginning(
      const Hash128& root, std::uint32_t parent, std::span<const std::int32_t> tokens) const {
    std::uint32_t best = 0, best_rows = 0;
    auto children = Children(root, parent);
    children.resize(std::min<std::size_t>(children.size(), 8));
    for (const std::uint32_t page : children) {
      const Tokens& stored = nodes_.at(page).tokens;
      std::uint32_t rows = 0;
      while (rows < stored.size() && rows < tokens.size() && stored[rows] == tokens[rows]) ++rows;
      if (rows > best_rows) {
        best = page;
        best_rows = rows;
      }
    }
    return {best, best_rows};
  }

  std::uint32_t Take() {
    if (free_.empty()) {
      Drop(cached_.front());
      ++evicted_;
    }
    const std::uint32_t page = free_.back();
    free_.pop_back();
    lost_.erase(page);
    return page;
  }

  // Removes the page and what continues it from what can be found.
  void Drop(std::uint32_t page) {
    const Node node = nodes_.at(page);
    for (const std::uint32_t child : Children(node.root, page)) Drop(child);
    nodes_.erase(page);
    lost_.insert(page);
    ++removals_;
    if (std::erase(cached_, page) > 0) free_.push_back(page);
  }

  // Puts a page that may have lost its last reference where it belongs.
  void Settle(std::uint32_t page) {
    if (IsReferenced(page)) return;
    if (spoiled_.contains(page)) {
      quarantined_.push_back(page);
    } else if (!nodes_.contains(page)) {
      free_.push_back(page);
    } else {
      // After everything that continues it, before everything that it continues.
      auto place = cached_.end();
      for (std::uint32_t up = nodes_.at(page).parent; up != 0; up = nodes_.at(up).parent) {
        place = std::min(place, std::ranges::find(cached_, up));
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
  const std::uint32_t size_;
  std::vector<Row> rows_;
  std::map<std::uint32_t, Node> nodes_;  // by page
  std::vector<std::uint32_t> free_;      // the last one is taken first
  std::vector<std::uint32_t> cached_;    // the first one is evicted first
  std::vector<std::uint32_t> quarantined_;
  std::size_t num_clearing_ = 0;  // the first of quarantined_
  std::set<std::uint32_t> spoiled_;
  std::set<std::uint32_t> lost_;  // pages that had a node and may not get it back
  std::vector<Copy> waiting_;
  Step taken_;
  std::vector<Step> steps_;  // in flight, oldest first
  std::uint64_t step_ = 0;
  std::uint64_t clock_ = 0, evicted_ = 0, removals_ = 0;
};

}  // namespace quire::cache
