#pragma once

// Mistral 7B, models published with the Mistral architecture (Nemo, Mistral Small), and Ministral.
//
// The Llama architecture without biases. The first versions have a window in every layer: 4096 if
// sliding_window is absent, none if it is null, as in v0.2. Ministral has windows in the layers
// that layer_types lists; a Mistral configuration with that key is a Ministral, as in the
// AutoConfig of transformers. Source: modeling_mistral.py and modeling_ministral.py of Hugging Face
// transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& MistralFamily();

}  // namespace quire::models
