#pragma once

// Kimi-Linear: KimiLinearForCausalLM.

#include "models/config/family.h"

namespace quire::models {

const Family& KimiLinearFamily();

}  // namespace quire::models
