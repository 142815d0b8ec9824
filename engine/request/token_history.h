#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash_map.h"
#include "kernels/sampling/sampling.h"

namespace quire::engine {

// How often each token occurs in a prompt and its output, as penalties count it.
//
// Place:      part of a request while its prompt is prepared, then of each of its sequences.
// Invariants: one entry for each distinct token, in order of its first occurrence.
// Threads:    one at a time.
// Lifetime:   a value; entries() is valid until the next call that changes it.
class TokenHistory {
 public:
  // Starts anew with the tokens of a prompt. O(tokens).
  void SetPrompt(std::span<const std::int32_t> tokens);
  // A token of the output. O(1).
  void AddOutput(std::int32_t token) { ++EntryOf(token).output_count; }

  std::span<const kernels::TokenCount> entries() const { return entries_; }

 private:
  kernels::TokenCount& EntryOf(std::int32_t token);

  std::vector<kernels::TokenCount> entries_;
  HashMap<std::int32_t, std::uint32_t> index_;  // of a token's entry
};

}  // namespace quire::engine
