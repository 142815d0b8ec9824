#pragma once

// MiniMax-M2.
//
// RMS pre-norms, half-split rope on the first rotary_dim columns of each head, and norms over all
// heads of q and of k. Every layer has experts, chosen by sigmoids with a correction bias. The
// weights of the chosen experts are divided by their sum. Source: modeling_minimax_m2.py of Hugging
// Face transformers.

#include "models/families/registry.h"

namespace quire::models {

const Family& MiniMaxM2Family();

}  // namespace quire::models
