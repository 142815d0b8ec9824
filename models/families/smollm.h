#pragma once

// SmolLM 3. Its predecessors publish themselves as Llama.
//
// As Llama, but every fourth layer does not rotate: no_rope_layers holds a 1 where a layer does use
// rope, whatever its name says. With use_sliding_window the layers without rope have windows.
// Source: modeling_smollm3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& SmolLm3Family();

}  // namespace quire::models
