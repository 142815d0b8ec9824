#pragma once

// Which options an engine can work with, at start and later, and what its limits count.
//
// Place:      used by Engine.
// Invariants: pure.
// Threads:    any.
// Lifetime:   none.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace quire::engine {

// INVALID_ARGUMENT names the key, its value and the least or the most possible.
absl::Status CheckOptions(const EngineOptions& options, std::uint32_t page_size);

// The same for an engine that was made with `start`. Memory was taken for some limits then, so they
// may not exceed their value of that time.
absl::Status CheckHotOptions(const EngineOptions& start, const HotOptions& next,
                             std::uint32_t page_size);

// Most prompt tokens of one row in a step, with the options of the start. For a model with windows
// later ones do not raise it: what its rows ask of the pool is counted by it.
inline std::uint32_t MaxChunkTokens(const HotOptions& start, std::uint32_t page_size) {
  const auto page_tokens = static_cast<std::int32_t>(page_size);
  return static_cast<std::uint32_t>(
      std::min({start.prefill_chunk_tokens, start.max_step_tokens,
                std::max(start.max_step_prompt_tokens, page_tokens)}));
}

// Bytes of text, of a conversation or of token ids that the request brings.
std::int64_t InputBytes(const Request& request);

}  // namespace quire::engine
