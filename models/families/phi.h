#pragma once

// Phi 3, 3.5 and 4, dense.
//
// As Llama without biases, with q, k, v in one tensor and gate, up in another; a window in every
// layer unless sliding_window is null; rope on the first part of each head where
// partial_rotary_factor says so, and longrope, which early files call "su" or "yarn". Source:
// modeling_phi3.py of Hugging Face transformers.

#include <cstdint>
#include <optional>

#include "models/families/registry.h"

namespace quire::models {

const Family& Phi3Family();

// The window, in tokens, of a GGUF file without phi3.attention.sliding_window: converters once left
// it out, and the published models of those days are known by their sizes. 0: none. Nothing: not
// one of these. Source of the rule: llama.cpp.
std::optional<std::uint32_t> Phi3GgufWindow(std::uint32_t context_length,
                                            std::uint32_t block_count);

}  // namespace quire::models
