#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace quire::engine {

// Counts how often each token occurs in a prompt and its output, for penalties.
//
// Place:      belongs to a request while its prompt is prepared, then to each of its sequences.
// Invariants: one entry for each distinct token, in order of its first occurrence.
// Threads:    one thread at a time.
// Lifetime:   a value; entries() is valid until the next call that changes it.
class TokenHistory {
 public:
  // Replaces the content by the tokens of a prompt. Reserves memory for `num_outputs` distinct
  // output tokens, for which AddOutput will not allocate. O(tokens).
  void SetPrompt(std::span<const std::int32_t> tokens, std::size_t num_outputs);
  // Counts a token of the output. O(1).
  void AddOutput(std::int32_t token) { ++FindOrAddEntry(token).output_count; }
  // Copies `other`, including its reserved capacity.
  void CopyFrom(const TokenHistory& other);

  std::span<const kernels::TokenCount> entries() const { return entries_; }

 private:
  kernels::TokenCount& FindOrAddEntry(std::int32_t token);
  void Reserve(std::size_t entries);
  // Returns the slot of the token's entry, or the free slot where it belongs.
  std::size_t SlotOf(std::int32_t token) const;

  std::vector<kernels::TokenCount> entries_;
  // A hash table with linear probing that is at most half full. Each slot has 1 + the index of an
  // entry, or 0. The size is a power of two. A node-based table would allocate for each new token.
  std::vector<std::uint32_t> slots_;
};

}  // namespace quire::engine
