#pragma once

// DeepSeek-V2, V2-Lite, V3, V3.1 and R1, and GLM-4.7-Flash.
//
// RMS pre-norms, MLA with interleaved rope on a part of each head, and yarn whose mscale also
// multiplies the attention scale. MoE layers with shared experts follow first_k_dense_replace dense
// layers. V2 routes by a softmax over all experts and never renormalizes. V3 routes by sigmoids; a
// correction bias affects the choice only, and a group is scored by its two best experts. Experts
// of groups that are not kept are never chosen. GLM-4.7-Flash is V3 with other defaults. Source:
// modeling_deepseek_v2.py, modeling_deepseek_v3.py and modeling_glm4_moe_lite.py of Hugging Face
// transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& DeepseekV2Family();
const Family& DeepseekV3Family();
const Family& Glm4MoeLiteFamily();

}  // namespace quire::models
