#include "text/stop_matcher.h"

#include "base/check.h"

namespace quire::text {

StopAutomaton::StopAutomaton(const std::vector<std::string>& stops) : nodes_(1) {
  for (std::size_t i = 0; i < stops.size(); ++i) {
    QUIRE_CHECK(!stops[i].empty());
    lengths_.push_back(stops[i].size());
    std::int32_t node = 0;
    for (const char c : stops[i]) {
      const auto byte = static_cast<std::uint8_t>(c);
      std::int32_t child = Child(node, byte);
      if (child < 0) {
        child = static_cast<std::int32_t>(nodes_.size());
        nodes_[Index(node)].edges.push_back({byte, child});
        nodes_.push_back({.edges = {}, .depth = depth(node) + 1});
      }
      node = child;
    }
    if (match(node) < 0) nodes_[Index(node)].match = static_cast<std::int32_t>(i);
  }
  Link();
}

std::int32_t StopAutomaton::Child(std::int32_t node, std::uint8_t byte) const {
  for (const Edge& edge : nodes_[Index(node)].edges) {
    if (edge.byte == byte) return edge.node;
  }
  return -1;
}

// Links nodes breadth first, so that a failure link always points to a finished node. A node that
// is not a stop string inherits the match of its failure link: the longest stop string that ends at
// this node.
void StopAutomaton::Link() {
  std::vector<std::int32_t> order = {0};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t node = order[i];
    for (const Edge& edge : nodes_[Index(node)].edges) {
      Node& child = nodes_[Index(edge.node)];
      child.fail = node == 0 ? 0 : Next(nodes_[Index(node)].fail, edge.byte);
      if (child.match < 0) child.match = match(child.fail);
      order.push_back(edge.node);
    }
  }
}

std::int32_t StopAutomaton::Next(std::int32_t node, std::uint8_t byte) const {
  while (true) {
    const std::int32_t child = Child(node, byte);
    if (child >= 0) return child;
    if (node == 0) return 0;
    node = nodes_[Index(node)].fail;
  }
}

std::int32_t StopAutomaton::Settle(std::int32_t node) const {
  while (node != 0 && nodes_[Index(node)].edges.empty()) node = nodes_[Index(node)].fail;
  return node;
}

std::optional<std::int32_t> StopMatcher::Push(absl::string_view text, bool may_stop,
                                              bool include_stop_text, std::string* out) {
  if (automaton_ == nullptr) {
    out->append(text.data(), text.size());
    return std::nullopt;
  }
  // depth(node_) == buffered_.size() at the start, so a match never begins before buffered_.
  const std::size_t buffered = buffered_.size();
  buffered_.append(text.data(), text.size());
  for (std::size_t i = buffered; i < buffered_.size(); ++i) {
    node_ = automaton_->Next(node_, static_cast<std::uint8_t>(buffered_[i]));
    const std::int32_t match = automaton_->match(node_);
    if (match < 0 || !may_stop) continue;
    std::size_t end = i + 1;
    if (!include_stop_text) {
      // The stop string may be only the end of the node's string.
      end -= automaton_->length(match);
    }
    out->append(buffered_, 0, end);
    buffered_.clear();
    return match;
  }
  node_ = automaton_->Settle(node_);
  const std::size_t settled = buffered_.size() - static_cast<std::size_t>(automaton_->depth(node_));
  out->append(buffered_, 0, settled);
  buffered_.erase(0, settled);
  return std::nullopt;
}

void StopMatcher::Finish(std::string* out) {
  out->append(buffered_);
  buffered_.clear();
  node_ = 0;
}

}  // namespace quire::text
