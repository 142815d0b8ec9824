#pragma once

// Granite 3, dense.
//
// As Llama with four factors: on the embedding, on what attention and MLP add to the stream, on the
// scores in place of d^-0.5, and a divisor of the logits. Absent, each is 1, that on the scores,
// too. Source: modeling_granite.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& GraniteFamily();

}  // namespace quire::models
