#pragma once

// The metadata of a GGUF file as the configuration that the equivalent config.json would give, read
// as strictly: an error names file, key, value and limit.
//
// Read are files of the architectures that families name (Family::gguf_architecture). Biases and a
// tied head are known by their tensors being there or not; llama3 rope scaling comes as
// rope_freqs.weight, longrope as two such tensors; weights of norms hold their offset already. Keys
// of the architecture that would change the mathematics are refused when set, unknown ones become
// one warning; keys of other groups are not looked at. Source of the keys:
// github.com/ggml-org/ggml, docs/gguf.md, and llama.cpp's converter.

#include "absl/status/statusor.h"
#include "models/config/model_config.h"

namespace quire::formats {
class ModelFiles;
}  // namespace quire::formats

namespace quire::models {

// REQUIRES: files.gguf() is not empty. Errors as ReadModelConfig.
absl::StatusOr<ModelConfig> ReadGgufConfig(const formats::ModelFiles& files);

}  // namespace quire::models
