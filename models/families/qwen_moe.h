#pragma once

// Qwen3 with mixtures of experts (30B-A3B, 235B-A22B).
//
// Qwen3 with a mixture in place of the MLP, layer by layer: dense where mlp_only_layers or
// decoder_sparse_step say so. Softmax over all experts, the best num_experts_per_tok of them, their
// weights divided by their sum if norm_topk_prob. Source: modeling_qwen3_moe.py of Hugging Face
// transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Qwen3MoeFamily();

}  // namespace quire::models
