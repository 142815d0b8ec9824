#pragma once

// Where the tensors of multi-head latent attention lie in a checkpoint.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "models/config/layer_spec.h"
#include "models/families/registry.h"
#include "models/weights/slot_finder.h"
#include "models/weights/weights.h"

namespace quire::models {

// The slots of one layer but for its output projection; `prefix` is the layer's, up to its dot. The
// matrix kv_b is cut into its heads: the rows that make keys are turned, so that they map a query
// into the latent space, those that make values stay as they are. Errors as FindWeights;
// UNIMPLEMENTED when kv_b is held as codes.
absl::StatusOr<MlaSlots> FindMla(SlotFinder& finder, const FormChooser& chooser,
                                 std::uint32_t hidden, const MlaSpec& mla, const TensorNames& names,
                                 const std::string& prefix);

}  // namespace quire::models
