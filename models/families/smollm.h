#pragma once

// SmolLM 3. Its predecessors have the Llama architecture.
//
// The Llama architecture, without rope in every fourth layer. Despite its name, no_rope_layers has
// a 1 for each layer with rope. With use_sliding_window the layers without rope have windows.
// Source: modeling_smollm3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& SmolLm3Family();

}  // namespace quire::models
