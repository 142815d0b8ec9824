#pragma once

// Gemma 4: the text model, alone or inside a model with vision and audio towers.
//
// Sandwich norms multiply by the weight. Heads of q and k are normalized with weights, those of v
// without, and scores are not scaled. Windowed layers and full layers differ in head size, KV heads
// and rope table. The table of full layers rotates a part of the pairs. In full layers v may be the
// projected k. The last layers may read K and V of earlier ones. A stored factor multiplies the
// output of a layer. E models have inputs per layer, MoE models a dense MLP beside the experts.
// Source: modeling_gemma4.py of Hugging Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& Gemma4Family();
// The text model of a Gemma 4 with towers, which are ignored: image and audio input is not
// supported.
const Family& Gemma4VisionFamily();

}  // namespace quire::models
