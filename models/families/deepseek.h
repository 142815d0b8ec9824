#pragma once

// DeepSeek-V2, V2-Lite, V3, V3.1 and R1.
//
// Pre-norm RMS, multi-head latent attention with rope on neighbouring columns of a slice, yarn
// whose mscale also multiplies the attention scale, mixtures of experts with shared experts behind
// first_k_dense_replace dense layers. V2: softmax over all experts, never renormalised; V3: sigmoid
// with a correction bias that takes part in the choice alone, groups by their two best. Experts of
// groups that are not kept are excluded outright. Source: modeling_deepseek_v2.py and
// modeling_deepseek_v3.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& DeepseekV2Family();
const Family& DeepseekV3Family();

}  // namespace quire::models
