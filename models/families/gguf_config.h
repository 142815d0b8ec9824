#pragma once

// Reads the metadata of a GGUF file into the same configuration as the equivalent config.json, with
// the same checks. Errors name the file and the key, and for a wrong value the value and its limit.
//
// Families state the supported architectures (Family::gguf_architecture). Biases and a tied head
// are detected by the presence of tensors. llama3 rope scaling is stored as rope_freqs.weight,
// longrope as two such tensors. Norm weights already include their offset. Keys of the architecture
// that would change the computation are refused; unknown keys are named in one warning. Keys of
// other groups are ignored. Sources: docs/gguf.md of github.com/ggml-org/ggml and llama.cpp's
// converter.

#include "absl/status/statusor.h"
#include "models/config/model_config.h"

namespace quire::formats {
class ModelFiles;
}  // namespace quire::formats

namespace quire::models {

// REQUIRES: files.gguf() is not empty. Returns the errors of ReadModelConfig.
absl::StatusOr<ModelConfig> ReadGgufConfig(const formats::ModelFiles& files);

}  // namespace quire::models
