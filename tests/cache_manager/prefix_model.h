#pragma once

// The tree of CacheModel: the histories that can be matched, and their pages per group. Every query
// scans all nodes.

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

class PrefixModel {
 public:
  struct Node {
    Hash128 root;
    std::uint32_t parent = 0;          // 0 is the root
    std::optional<PageKey> key;        // nullopt for a partial child
    Tokens tokens;                     // tokens of this page
    std::vector<std::uint32_t> pages;  // by group; 0 means none
    std::uint64_t recency = 0;
    std::uint64_t lost_page = 0;  // time of the last lost page
    std::uint32_t state = 0;      // slot of its snapshot; 0 means none
  };

  const Node& at(std::uint32_t id) const { return nodes_.at(id); }
  std::size_t size() const { return nodes_.size(); }
  std::size_t num_empty() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(nodes_, [](const auto& node) { return IsEmpty(node.second); }));
  }
  bool IsLeaf(std::uint32_t id) const { return Children(nodes_.at(id).root, id).empty(); }
  // Incremented with every removed node and page.
  std::uint64_t removals() const { return removals_; }
  // Includes the roots.
  std::size_t num_slots() const {
    std::set<std::uint64_t> roots;
    for (const auto& [id, node] : nodes_) roots.insert(node.root.lo);
    return nodes_.size() + roots.size();
  }

  // Returns the page's node, or 0 if it has none.
  std::uint32_t NodeOf(std::uint32_t page) const {
    for (const auto& [id, node] : nodes_) {
      if (page != 0 && std::ranges::count(node.pages, page) > 0) return id;
    }
    return 0;
  }
  std::size_t GroupOf(std::uint32_t page) const {
    const auto& pages = nodes_.at(NodeOf(page)).pages;
    return static_cast<std::size_t>(std::ranges::find(pages, page) - pages.begin());
  }

  std::uint32_t FindChild(const Hash128& root, std::uint32_t parent, const PageKey& key,
                          std::span<const std::int32_t> tokens, bool* collision) const {
    *collision = false;
    for (const auto& [id, node] : nodes_) {
      if (node.key != key) continue;
      const bool same =
          node.parent == parent && node.root == root && std::ranges::equal(node.tokens, tokens);
      *collision = !same;
      return same ? id : 0;
    }
    return 0;
  }

  // Returns the node and the number of common rows.
  std::pair<std::uint32_t, std::uint32_t> FindPartialMatch(
      const Hash128& root, std::uint32_t parent, std::span<const std::int32_t> tokens) const {
    std::uint32_t best = 0, best_rows = 0;
    auto children = Children(root, parent);
    children.resize(std::min<std::size_t>(children.size(), 8));
    for (const std::uint32_t id : children) {
      const Node& node = nodes_.at(id);
      if (std::ranges::count(node.pages, 0u) > 0) continue;
      std::uint32_t rows = 0;
      while (rows < node.tokens.size() && rows < tokens.size() &&
             node.tokens[rows] == tokens[rows]) {
        ++rows;
      }
      if (rows > best_rows) {
        best = id;
        best_rows = rows;
      }
    }
    return {best, best_rows};
  }

  void Add(Node node) {
    node.recency = ++clock_;
    nodes_[++last_id_] = std::move(node);
  }
  std::uint32_t last_id() const { return last_id_; }  // id of the node that was added last
  void Touch(std::uint32_t id) { nodes_.at(id).recency = ++clock_; }
  void AddPage(std::uint32_t id, std::size_t group, std::uint32_t page) {
    nodes_.at(id).pages[group] = page;
    ++num_completed_;
  }
  // Number of pages that nodes got later than others.
  std::uint64_t num_completed() const { return num_completed_; }

  // Returns the node whose snapshot is in the slot, or 0.
  std::uint32_t NodeOfState(std::uint32_t slot) const {
    for (const auto& [id, node] : nodes_) {
      if (slot != 0 && node.state == slot) return id;
    }
    return 0;
  }
  void SetState(std::uint32_t id, std::uint32_t slot) { nodes_.at(id).state = slot; }
  void RemoveState(std::uint32_t id) {
    nodes_.at(id).state = 0;
    ++removals_;
  }
  struct PathState {
    std::uint32_t tokens = 0, slot = 0;
    bool is_branch = false;
  };
  // Returns the snapshots of the history that ends with the node, by number of tokens. Those of
  // partial children count if the history continues them.
  std::vector<PathState> StatesBefore(std::uint32_t last) const {
    std::vector<PathState> path = {{Length(last), nodes_.at(last).state, false}};
    for (std::uint32_t below = last; below != 0; below = nodes_.at(below).parent) {
      const Node& next = nodes_.at(below);
      const auto children = Children(next.root, next.parent);
      std::size_t others = children.size(), candidates = 8;
      for (const std::uint32_t id : children) {
        const Node& child = nodes_.at(id);
        if (child.key.has_value() || candidates == 0) continue;
        --candidates;
        if (id == below || child.tokens.size() > next.tokens.size()) continue;
        if (!std::ranges::equal(child.tokens, std::span(next.tokens).first(child.tokens.size()))) {
          continue;
        }
        path.push_back({Length(id), child.state, false});
        --others;
      }
      if (next.parent == 0 || nodes_.at(next.parent).state == 0) continue;
      path.push_back({Length(next.parent), nodes_.at(next.parent).state, others > 1});
    }
    std::ranges::sort(path, {}, &PathState::tokens);
    return path;
  }
  // Returns the longest partial child whose tokens all begin `tokens`.
  std::uint32_t FindWholePartial(const Hash128& root, std::uint32_t parent,
                                 std::span<const std::int32_t> tokens) const {
    std::uint32_t best = 0;
    auto children = Children(root, parent);
    children.resize(std::min<std::size_t>(children.size(), 8));
    for (const std::uint32_t id : children) {
      const Tokens& own = nodes_.at(id).tokens;
      if (nodes_.at(id).key.has_value() || own.size() > tokens.size()) continue;
      if (!std::ranges::equal(own, tokens.first(own.size()))) continue;
      if (best == 0 || own.size() > nodes_.at(best).tokens.size()) best = id;
    }
    return best;
  }
  // Returns the slots that lost their nodes since the last call, in this order.
  std::vector<std::uint32_t> TakeDroppedStates() { return std::exchange(dropped_states_, {}); }

  // Removes the page from its node.
  void RemovePage(std::uint32_t page) {
    const std::uint32_t id = NodeOf(page);
    nodes_.at(id).pages[GroupOf(page)] = 0;
    nodes_.at(id).lost_page = ++clock_;
    ++removals_;
    Prune(id);
  }
  // Removes the node and its subtree. Returns the pages that lose their node, in this order.
  std::vector<std::uint32_t> Drop(std::uint32_t id) {
    std::vector<std::uint32_t> dropped;
    const Node node = nodes_.at(id);
    for (const std::uint32_t child : Children(node.root, id)) {
      for (const std::uint32_t page : Drop(child)) dropped.push_back(page);
    }
    dropped.insert(dropped.end(), node.pages.begin(), node.pages.end());
    if (node.state != 0) dropped_states_.push_back(node.state);
    if (nodes_.erase(id) > 0) Prune(node.parent);  // otherwise it was removed with its last child
    ++removals_;
    return dropped;
  }

 private:
  std::uint32_t Length(std::uint32_t id) const {
    std::size_t tokens = 0;
    for (; id != 0; id = nodes_.at(id).parent) tokens += nodes_.at(id).tokens.size();
    return static_cast<std::uint32_t>(tokens);
  }
  static bool IsEmpty(const Node& node) {
    return std::ranges::all_of(node.pages, [](std::uint32_t page) { return page == 0; });
  }

  std::vector<std::uint32_t> Children(const Hash128& root, std::uint32_t parent) const {
    std::vector<std::uint32_t> children;
    for (const auto& [id, node] : nodes_) {
      if (node.parent == parent && node.root == root) children.push_back(id);
    }
    // Nodes without some pages come last, in the order in which they lost them.
    std::ranges::sort(children, {}, [&](std::uint32_t id) {
      const Node& node = nodes_.at(id);
      const bool lacks_page = std::ranges::count(node.pages, 0u) > 0;
      return std::pair(lacks_page, lacks_page ? node.lost_page : ~node.recency);
    });
    return children;
  }

  // Removes the node if it has neither page nor child, then its ancestors in the same way.
  void Prune(std::uint32_t id) {
    if (!nodes_.contains(id)) return;
    const Node node = nodes_.at(id);
    if (!IsEmpty(node) || !Children(node.root, id).empty()) return;
    nodes_.erase(id);
    ++removals_;
    Prune(node.parent);
  }

  std::map<std::uint32_t, Node> nodes_;  // by number, from 1
  std::vector<std::uint32_t> dropped_states_;
  std::uint32_t last_id_ = 0;
  std::uint64_t clock_ = 0, removals_ = 0, num_completed_ = 0;
};

}  // namespace quire::cache
