#pragma once

// Granite 3, dense.
//
// The Llama architecture with four constants, which default to 1. Factors multiply the embedding,
// the outputs of attention and MLP, and the attention scores (instead of d^-0.5). The logits are
// divided by the fourth constant. Source: modeling_granite.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& GraniteFamily();

// Applies the four constants.
void ApplyGraniteMultipliers(const ModelConfig& config, ModelSpec* spec);

}  // namespace quire::models
