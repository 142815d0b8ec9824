#pragma once

// OLMo 2.
//
// Norms after attention and MLP and none before: the stream enters the projections as it is. q and
// k are normed as a whole, over all heads at once. Source: modeling_olmo2.py of Hugging Face
// transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Olmo2Family();

}  // namespace quire::models
