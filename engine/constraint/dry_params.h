#pragma once

// What a request asks of DRY, the penalty for going on with a repetition. A plain value; what the
// fields mean is in engine/masks/repeat_penalty.h.

#include <cstdint>
#include <string>
#include <vector>

namespace quire::engine {

// Most tokens that have a penalty at a time: those with the longest matches, ties by lower id.
inline constexpr std::uint32_t kMaxDryTokens = 4096;

struct DryParams {
  float multiplier = 0;             // [0, 100]; 0 = off
  float base = 1.75f;               // [1, 100]
  std::int32_t allowed_length = 2;  // [1, 2^31)
  std::int32_t window_tokens = 0;   // [0, 2^31); 0 = all of prompt and output
  std::vector<std::string> breakers = {"\n", ":", "\"", "*"};  // at most 64 of 1 to 256 bytes

  bool is_on() const { return multiplier > 0; }
};

}  // namespace quire::engine
