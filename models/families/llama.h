#pragma once

// Llama 2 and 3.x, and what publishes itself as Llama: Yi, SmolLM 1 and 2, Vicuna, TinyLlama.
//
// Pre-norm RMS, attention over heads with grouped queries, optional biases on all four projections
// (attention_bias) and on the MLP (mlp_bias), gated SiLU, half-split rope over the whole head.
// Source: modeling_llama.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& LlamaFamily();

}  // namespace quire::models
