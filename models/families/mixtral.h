#pragma once

// Mixtral 8x7B and 8x22B.
//
// The Llama form with a mixture of experts in place of every MLP: softmax over all experts, the
// best num_experts_per_tok of them, their weights divided by their sum. Expert tensors are w1
// (gate), w3 (up) and w2 (down). Source: modeling_mixtral.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& MixtralFamily();

}  // namespace quire::models
