#pragma once

// Qwen3 MoE (30B-A3B, 235B-A22B).
//
// Qwen3 with an MoE instead of the MLP, except in the layers that mlp_only_layers or
// decoder_sparse_step make dense. Routing is a softmax over all experts. The best
// num_experts_per_tok are chosen. With norm_topk_prob their weights are divided by their sum.
// Source: modeling_qwen3_moe.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Qwen3MoeFamily();

}  // namespace quire::models
