#pragma once

// Granite 4: GraniteMoeHybridForCausalLM.

#include "models/config/family.h"

namespace quire::models {

const Family& GraniteHybridFamily();

}  // namespace quire::models
