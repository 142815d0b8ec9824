#pragma once

// Mistral 7B and what publishes itself as Mistral: Nemo, Mistral Small.
//
// As Llama without biases; the first versions have a window in every layer (sliding_window absent:
// 4096; null: none, as of v0.2). layer_types is not read. Source: modeling_mistral.py of Hugging
// Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& MistralFamily();

}  // namespace quire::models
