#pragma once

// Llama 2 and 3.x, and models published with the Llama architecture: Yi, SmolLM 1 and 2, Vicuna,
// TinyLlama.
//
// RMS pre-norms, grouped-query attention, optional biases on all four projections (attention_bias)
// and on the MLP (mlp_bias), gated SiLU, half-split rope over the whole head. Source:
// modeling_llama.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& LlamaFamily();

}  // namespace quire::models
