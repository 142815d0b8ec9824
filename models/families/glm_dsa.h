#pragma once

// GLM-5, 5.1 and 5.2.
//
// DeepSeek-V3.2 with other defaults: experts are not grouped, the indexer has interleaved rope, and
// layers may attend to the tokens that the indexer of an earlier layer selected. The norms of
// latents and of index keys have epsilon 1e-6, other norms rms_norm_eps. Source:
// modeling_glm_moe_dsa.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& GlmMoeDsaFamily();

}  // namespace quire::models
