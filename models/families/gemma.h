#pragma once

// Gemma 2, and Gemma 3 for text: by itself, or inside a model with a vision tower.
//
// Norms before and after attention and MLP, of 1 + weight; embeddings times sqrt(hidden_size);
// scores times query_pre_attn_scalar^-0.5; GELU by tanh (hidden_act is not read, hidden_activation
// is). Gemma 2 caps scores and logits and has windows in every second layer. Gemma 3 norms each
// head of q and k, has windows in all layers but every sixth and a rope table of their own for
// them. Source: modeling_gemma2.py and modeling_gemma3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Gemma2Family();
const Family& Gemma3Family();
// The text model inside a Gemma 3 with a vision tower (4B and larger), which is let be: images are
// not read.
const Family& Gemma3TextOfVisionFamily();

}  // namespace quire::models
