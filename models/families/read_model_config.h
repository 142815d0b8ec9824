#pragma once

// config.json and generation_config.json, read strictly: every value has the right type and range,
// and an error names file, key, value and limit.
//
// Absent, null and zero are three things: an absent key takes the family's default, null the
// documented fallback, zero is a value. Both forms of rope settings are read (rope_theta with
// rope_scaling, and rope_parameters); generation_config.json wins over config.json key by key. Keys
// that would change the mathematics in another family are refused when set; other unknown keys
// become one warning.

#include "absl/status/statusor.h"
#include "models/config/model_config.h"

namespace quire::formats {
class ModelFiles;
}  // namespace quire::formats

namespace quire::models {

// Reads config.json and, if there is one, generation_config.json; or the metadata of a GGUF file
// (gguf_config.h). Returns NOT_FOUND without config.json, INVALID_ARGUMENT or UNIMPLEMENTED (a
// family, method or value that this version lacks) otherwise.
absl::StatusOr<ModelConfig> ReadModelConfig(const formats::ModelFiles& files);

}  // namespace quire::models
