#pragma once

// Gemma 2 and the text model of Gemma 3, alone or inside a model with a vision tower.
//
// Sandwich norms multiply by 1 + weight. Embeddings are scaled by sqrt(hidden_size), scores by
// query_pre_attn_scalar^-0.5. The activation is tanh GELU: hidden_activation is read and hidden_act
// is not. Gemma 2 caps scores and logits and has windows in every second layer. Gemma 3 normalizes
// each head of q and k; all layers but every sixth have windows and their own rope table. Source:
// modeling_gemma2.py and modeling_gemma3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Gemma2Family();
const Family& Gemma3Family();
// The text model of a Gemma 3 with a vision tower (4B and larger). The tower is ignored, so image
// input is not supported.
const Family& Gemma3VisionFamily();

}  // namespace quire::models
