#pragma once

// OLMo 2.
//
// Norms follow attention and MLP, and none precedes them: the projections read the residual stream
// itself. q and k are normalized over all heads at once. Source: modeling_olmo2.py of Hugging Face
// transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Olmo2Family();

}  // namespace quire::models
