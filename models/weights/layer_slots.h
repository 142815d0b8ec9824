#pragma once

// Finds the tensors of one layer in a checkpoint, as the tensor tables state.

#include <cstddef>

#include "absl/status/statusor.h"
#include "models/config/layer_spec.h"
#include "models/config/tensor_table.h"
#include "models/weights/slot_finder.h"
#include "models/weights/weights.h"

namespace quire::models {

// Returns the errors of FindWeights. The error about a missing expert names its tensor.
absl::StatusOr<LayerSlots> FindLayer(SlotFinder& finder, const FormChooser& chooser,
                                     const ModelSpec& spec, const TensorNames& names,
                                     std::size_t index);

}  // namespace quire::models
