#pragma once

#include "kernels/backend/backend.h"
#include "runtime/model.h"

namespace quire::models {

// Runs three tokens, or as many as the context allows, through the model. The logits are finite if
// the weights are valid.
void ExpectWorks(const runtime::Model& model, const kernels::Backend& backend, bool sound = true);

}  // namespace quire::models
