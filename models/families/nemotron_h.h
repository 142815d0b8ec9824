#pragma once

// Nemotron-H and Nemotron 3: NemotronHForCausalLM.

#include "models/config/family.h"

namespace quire::models {

const Family& NemotronHFamily();

}  // namespace quire::models
