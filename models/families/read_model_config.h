#pragma once

// Reads config.json and generation_config.json strictly: types and ranges are checked. An error
// names the file and the key and, for a value out of range, the value and the limit.
//
// An absent key, a null and a zero can have different meanings. For an absent key the family's
// default is used. Depending on the key, a null means absent or off, or is an error. Zero is an
// ordinary value. rope_config.h describes the forms of rope settings. Keys of
// generation_config.json take precedence over those of config.json.
//
// A key that the model's family does not read, but that changes the computation of another family,
// is refused unless its value is neutral (config_keys.cc). Unknown keys are named in one warning.

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
