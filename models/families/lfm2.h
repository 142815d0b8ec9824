#pragma once

// LFM2: Lfm2ForCausalLM.

#include "models/config/family.h"

namespace quire::models {

const Family& Lfm2Family();

}  // namespace quire::models
