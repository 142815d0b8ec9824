#pragma once

// GLM-4.5, 4.6 and 4.7.
//
// RMS pre-norms, half-split rope on the first half of each head, q and k with biases and, in some
// sizes, norms per head. The output projection never has a bias. MoE layers route by sigmoids like
// DeepSeek-V3 and follow first_k_dense_replace dense layers. GLM-4.7-Flash is in deepseek.cc.
// Source: modeling_glm4_moe.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Glm4MoeFamily();

}  // namespace quire::models
