#pragma once

// Qwen 2, 2.5 and 3, dense.
//
// As Llama, with windows only where use_sliding_window is true: layers from max_window_layers on.
// Qwen 2 has biases on q, k and v and none on o, whatever the configuration says; Qwen 3 norms each
// head of q and k before rope, and attention_bias asks for all four biases. Source:
// modeling_qwen2.py and modeling_qwen3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Qwen2Family();
const Family& Qwen3Family();

}  // namespace quire::models
