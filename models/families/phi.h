#pragma once

// Phi 3, 3.5 and 4, dense.
//
// The Llama architecture without biases. One tensor holds q, k and v; a second one holds gate and
// up. Every layer has a window unless sliding_window is null. partial_rotary_factor restricts rope
// to the first columns of a head. Longrope is called "su" or "yarn" in early files. Source:
// modeling_phi3.py of Hugging Face transformers.

#include <cstdint>
#include <optional>

#include "models/families/registry.h"

namespace quire::models {

const Family& Phi3Family();

// Returns the window in tokens of a GGUF file without phi3.attention.sliding_window; 0 means none.
// Early converters left the key out, so published models are identified by their sizes. Returns
// nullopt for other sizes. llama.cpp uses the same rule.
std::optional<std::uint32_t> Phi3GgufWindow(std::uint32_t context_length,
                                            std::uint32_t block_count);

}  // namespace quire::models
