#pragma once

// Where the tensors of a mixture of experts lie in a checkpoint, in each of the layouts that
// publishers use.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "models/config/layer_spec.h"
#include "models/families/registry.h"
#include "models/weights/slot_finder.h"
#include "models/weights/weights.h"

namespace quire::models {

// The slots of one layer; `prefix` is the layer's, up to its dot. Router and shared gate keep their
// stored types whatever model.quantization says: they are small, and another choice of experts
// changes a token entirely. Errors as FindWeights; a missing expert is named by its tensor.
absl::StatusOr<MoeSlots> FindMoe(SlotFinder& finder, const FormChooser& chooser,
                                 std::uint32_t hidden, const MoeSpec& moe, const TensorNames& names,
                                 const std::string& prefix);

}  // namespace quire::models
