#pragma once

// The quantization_config of config.json, read strictly: everything that the reader of the tensors
// (checkpoint/join_quantized.h) could not do is refused here, by key and value, before a weight
// file is opened.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/stored_quantization.h"
#include "models/config/config_reader.h"

namespace quire::models {

// Returns INVALID_ARGUMENT for a wrong type or a missing key; UNIMPLEMENTED for methods, widths and
// layouts that are not read. Keys that are not known become one warning.
absl::StatusOr<formats::StoredQuantization> ReadStoredQuantization(
    const ConfigReader& reader, std::vector<std::string>* warnings);

}  // namespace quire::models
