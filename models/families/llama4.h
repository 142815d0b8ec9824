#pragma once

// Llama 4, text only: Scout and Maverick, alone or inside the multimodal model.
//
// RMS pre-norms. Layers with rope attend within chunks and normalize q and k without weights after
// the rotation of neighboring columns. The other layers see all tokens and scale queries by their
// position. MoE layers have a shared expert. The sigmoid of an expert's router logit multiplies the
// input of the expert. Source: modeling_llama4.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Llama4Family();
const Family& Llama4VisionFamily();

}  // namespace quire::models
