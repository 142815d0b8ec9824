#pragma once

// A checkpoint without files, for measurements with models that are not at hand.

#include "absl/status/statusor.h"
#include "models/config/layer_spec.h"
#include "models/config/model_config.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"

namespace quire::models {

// Every tensor of the spec, in the type that config.json names (bf16 otherwise). Norm weights are
// 1; element i of any other tensor is u(h(name) + i), u being spread evenly over +-0.035, so that
// activations keep their size through the layers: the same values in every process. All tensors lie
// in one block as large as the largest of them; without `with_values` the block is untouched and
// for shapes only. Returns RESOURCE_EXHAUSTED without memory.
absl::StatusOr<Checkpoint> DummyCheckpoint(const ModelConfig& config, const ModelSpec& spec,
                                           const TensorNames& names, bool with_values);

}  // namespace quire::models
