#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace quire::engine {

// How often each token occurs in a prompt and its output, as penalties count it.
//
// Place:      part of a request while its prompt is prepared, then of each of its sequences.
// Invariants: one entry for each distinct token, in order of its first occurrence. A call without
//             memory leaves it as it was.
// Threads:    one at a time.
// Lifetime:   a value; entries() is valid until the next call that changes it.
class TokenHistory {
 public:
  // Starts anew with the tokens of a prompt, with room for `more` distinct tokens of the output: as
  // long as there are no more, AddOutput allocates nothing. O(tokens).
  void SetPrompt(std::span<const std::int32_t> tokens, std::size_t more);
  // A token of the output. O(1).
  void AddOutput(std::int32_t token) { ++EntryOf(token).output_count; }
  // Becomes equal to `other`, with the room that it has.
  void CopyFrom(const TokenHistory& other);

  std::span<const kernels::TokenCount> entries() const { return entries_; }

 private:
  kernels::TokenCount& EntryOf(std::int32_t token);
  // For so many entries.
  void Reserve(std::size_t entries);
  // Where the entry of the token is, or would be.
  std::size_t SlotOf(std::int32_t token) const;

  std::vector<kernels::TokenCount> entries_;
  // A hash table with linear probing, at most half full: 1 + the index of an entry, or 0. Its size
  // is a power of two. A table with nodes would allocate one for each new token of the output.
  std::vector<std::uint32_t> slots_;
};

}  // namespace quire::engine
