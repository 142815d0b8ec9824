#pragma once

// A checkpoint without files, for measurements without the weights of a model.

#include "absl/status/statusor.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"

namespace quire::models {

// Makes every tensor of the spec, in the dtype of config.json or else bf16. Norm weights are 1.
// Element i of any other tensor is u(h(name) + i), where h is a hash and u is uniform over +-0.035,
// so that activations keep their magnitude through the layers. Values are the same in every
// process. All tensors overlap in one block of about the size of the largest. Without `with_values`
// the block is not written, and only shapes are valid. Returns RESOURCE_EXHAUSTED if memory cannot
// be allocated.
absl::StatusOr<Checkpoint> DummyCheckpoint(const ModelConfig& config, const ModelSpec& spec,
                                           const TensorNames& names, bool with_values);

}  // namespace quire::models
