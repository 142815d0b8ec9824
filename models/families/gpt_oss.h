#pragma once

// GPT-OSS 20B and 120B.
//
// RMS pre-norms, biases on all projections, a learned attention sink per head, windows in every
// second layer, yarn. Every MLP is an MoE: the experts with the best num_experts_per_tok router
// logits (which include a bias) are chosen, and their weights are the softmax over those logits.
// Experts have biases and compute
//   (up + 1) * gate * sigmoid(alpha * gate)
// where gate is clamped from above and up from both sides. All experts of a layer share one tensor,
// in which gate and up alternate: bf16 [experts, inputs, outputs], or mxfp4 blocks and scales. The
// softmax is computed in float32, whereas transformers computes it in bf16. Source:
// modeling_gpt_oss.py of Hugging Face transformers. GGUF files have the tensor names of llama.cpp's
// converter and loader, and separate stacks of gate and up.

#include "models/families/registry.h"

namespace quire::models {

const Family& GptOssFamily();

}  // namespace quire::models
