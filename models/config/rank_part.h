#pragma once

#include <cstdint>

namespace quire::models {

// The part of a model that one of several devices stores and computes.
struct RankPart {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;  // ranks that share the model

  bool is_whole() const { return size == 1; }
  friend bool operator==(const RankPart&, const RankPart&) = default;
};

}  // namespace quire::models
