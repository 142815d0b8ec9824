#pragma once

// Qwen 2, 2.5 and 3, dense.
//
// The Llama architecture. Layers from max_window_layers on have windows if use_sliding_window is
// true. Qwen 2 always has biases on q, k and v and none on o. Qwen 3 normalizes each head of q and
// k before rope, and attention_bias adds all four biases. Source: modeling_qwen2.py and
// modeling_qwen3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Qwen2Family();
const Family& Qwen3Family();

}  // namespace quire::models
