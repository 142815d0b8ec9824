#pragma once

// Granite 3, dense.
//
// The Llama architecture with four factors: on the embedding, on the outputs of attention and MLP,
// on the scores instead of d^-0.5, and a divisor of the logits. All four default to 1. Source:
// modeling_granite.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& GraniteFamily();

// Applies the four factors.
void ApplyGraniteMultipliers(const ModelConfig& config, ModelSpec* spec);

}  // namespace quire::models
