#pragma once

// OLMo 2 and 3.
//
// Norms follow attention and MLP, and none precedes them: the projections read the residual stream
// itself. q and k are normalized over all heads at once. In OLMo 3 three of four layers have a
// window, and rope scaling applies to the others only. Source: modeling_olmo2.py and
// modeling_olmo3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Olmo2Family();
const Family& Olmo3Family();

}  // namespace quire::models
