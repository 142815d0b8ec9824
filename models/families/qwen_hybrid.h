#pragma once

// Qwen3-Next, Qwen3.5 and its successors of the same class: three of four layers have linear
// attention by the gated delta rule, the others full attention with an output gate. Qwen3.5 exists
// with dense and with MoE layers, and its text model also inside a multimodal model.

#include "models/families/registry.h"

namespace quire::models {

const Family& Qwen3NextFamily();
const Family& Qwen35Family();
const Family& Qwen35MoeFamily();
// The text models in files with a vision tower, whose weights are skipped.
const Family& Qwen35VisionFamily();
const Family& Qwen35MoeVisionFamily();

}  // namespace quire::models
