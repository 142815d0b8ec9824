#pragma once

// Parameters of DRY, the penalty for repeating sequences. A plain value;
// engine/masks/repeat_penalty.h explains the fields.

#include <cstdint>
#include <string>
#include <vector>

namespace quire::engine {

// Maximum number of penalized tokens per position. The tokens with the longest matches are chosen,
// and among tokens with matches of equal length, those with the lowest ids.
inline constexpr std::uint32_t kMaxDryTokens = 4096;

struct DryParams {
  float multiplier = 0;             // [0, 100]; 0 = off
  float base = 1.75f;               // [1, 100]
  std::int32_t allowed_length = 2;  // [1, 2^31)
  std::int32_t window_tokens = 0;   // [0, 2^31); 0 = all of prompt and output
  std::vector<std::string> breakers = {"\n", ":", "\"", "*"};  // at most 64, each of 1 to 256 bytes

  bool is_on() const { return multiplier > 0; }
};

}  // namespace quire::engine
