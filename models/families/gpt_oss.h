#pragma once

// GPT-OSS 20B and 120B.
//
// Pre-norm RMS, biases on all projections, a learned sink for each head, windows on every second
// layer, yarn. Every MLP is a mixture: the best num_experts_per_tok router logits (with a bias)
// choose, softmax over those weighs; experts have biases and compute
//   (up + 1) * gate * sigmoid(alpha * gate)
// with the gate clamped from above and up on both sides. All experts of a layer are one tensor, in
// which gate and up take turns: bf16 [experts, inputs, outputs], or mxfp4 blocks and scales.
// Softmax is in float32 where upstream uses bf16. Source: modeling_gpt_oss.py of Hugging Face
// transformers; of tensor names and blocks of GGUF files (gate and up in stacks of their own) the
// converter and loader of llama.cpp.

#include "models/families/registry.h"

namespace quire::models {

const Family& GptOssFamily();

}  // namespace quire::models
