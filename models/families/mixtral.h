#pragma once

// Mixtral 8x7B and 8x22B.
//
// The Llama architecture with an MoE instead of every MLP. Routing is a softmax over all experts.
// The best num_experts_per_tok are chosen, and their weights are divided by their sum. Expert
// tensors are w1 (gate), w3 (up) and w2 (down). Source: modeling_mixtral.py of Hugging Face
// transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& MixtralFamily();

}  // namespace quire::models
