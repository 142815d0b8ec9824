#pragma once

// Reads config.json and generation_config.json strictly: types and ranges are checked, and an error
// names file, key, value and limit.
//
// Absent, null and zero differ: an absent key has the family's default, null the documented
// fallback, and zero is a value. rope_config.h describes the forms of rope settings. Keys of
// generation_config.json take precedence over those of config.json. Keys that change the
// computation of other families are refused; unknown keys are named in one warning.

#include "absl/status/statusor.h"
#include "models/config/model_config.h"

namespace quire::formats {
class ModelFiles;
}  // namespace quire::formats

namespace quire::models {

// Reads config.json and, if it exists, generation_config.json; or the metadata of a GGUF file
// (gguf_config.h). Returns NOT_FOUND without config.json, INVALID_ARGUMENT for invalid values, and
// UNIMPLEMENTED for an unsupported family, method or value.
absl::StatusOr<ModelConfig> ReadModelConfig(const formats::ModelFiles& files);

}  // namespace quire::models
