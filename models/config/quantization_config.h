#pragma once

// Reads quantization_config of config.json strictly. Anything that the reader of the tensors
// (weights/join_quantized.h) does not support is refused here, by key and value, before a weight
// file is opened.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/stored_quantization.h"
#include "models/config/config_reader.h"

namespace quire::models {

// Returns INVALID_ARGUMENT for a wrong type or a missing key; UNIMPLEMENTED for unsupported
// methods, widths and layouts. Unknown keys are named in one warning.
absl::StatusOr<formats::StoredQuantization> ReadStoredQuantization(
    const ConfigReader& reader, std::vector<std::string>* warnings);

}  // namespace quire::models
