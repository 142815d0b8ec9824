#pragma once

#include "kernels/backend/backend.h"
#include "runtime/model.h"

namespace quire::models {

// Runs three tokens, or as many as the context holds, through the model. With intact weights the
// logits are finite.
void ExpectWorks(const Model& model, const kernels::Backend& backend, bool sound = true);

}  // namespace quire::models
