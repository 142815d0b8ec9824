#pragma once

#include "kernels/backend/backend.h"
#include "runtime/model.h"

namespace quire::models {

// Three tokens, or what the context holds, through the model; with sound weights the logits are
// finite.
void ExpectWorks(const runtime::Model& model, const kernels::Backend& backend, bool sound = true);

}  // namespace quire::models
