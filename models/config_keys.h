#pragma once

// What is done with the keys of a config.json that no reader asks for.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/config_reader.h"

namespace quire::models {

// Refuses keys that would change the mathematics in another family, unless their value is neutral
// (null, false, and per key 0, 1 or the like); skips keys that do not matter for inference; names
// the others in one warning.
absl::Status CheckForeignKeys(const ConfigReader& reader, absl::string_view family,
                              std::vector<std::string>* warnings);

}  // namespace quire::models
