#pragma once

// Phi 3, 3.5 and 4, dense.
//
// As Llama without biases, with q, k, v in one tensor and gate, up in another; a window in every
// layer unless sliding_window is null; rope on the first part of each head where
// partial_rotary_factor says so, and longrope, which early files call "su" or "yarn". Source:
// modeling_phi3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Phi3Family();

}  // namespace quire::models
