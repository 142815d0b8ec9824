#pragma once

// Mistral 7B, what publishes itself as Mistral (Nemo, Mistral Small), and Ministral.
//
// As Llama without biases; the first versions have a window in every layer (sliding_window absent:
// 4096; null: none, as of v0.2). Ministral has windows in the layers that layer_types says; a
// Mistral with that key is one, as for the AutoConfig of transformers. Source: modeling_mistral.py
// and modeling_ministral.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& MistralFamily();

}  // namespace quire::models
