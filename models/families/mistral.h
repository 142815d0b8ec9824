#pragma once

// Mistral 7B, models published with the Mistral architecture (Nemo, Mistral Small), and Ministral.
//
// The Llama architecture without biases. Every layer has a window of sliding_window tokens, or 4096
// if the key is absent. If the key is null, as in v0.2, there are no windows. Ministral has windows
// in the layers that layer_types lists. A Mistral configuration with that key is a Ministral, as in
// the AutoConfig of transformers. Source: modeling_mistral.py and modeling_ministral.py of Hugging
// Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& MistralFamily();

}  // namespace quire::models
