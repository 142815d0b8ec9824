#pragma once

// Random weights for the shapes of synthetic_model.h: the same bf16 values as safetensors and as
// GGUF, so that a server that reads only one of them computes the same model.
//
// Place:      behind `quire make-model`.
// Invariants: a value is a function of the seed, the tensor and the place in it.
// Threads:    any.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tools/quire/synthetic_model.h"

namespace quire::client {

// Writes model.safetensors into `directory`, which exists. FAILED_PRECONDITION when the file exists
// or cannot be written.
absl::Status WriteSyntheticWeights(const ModelShape& shape, std::uint64_t seed,
                                   const std::string& directory);

// Writes a GGUF file of version 3 with the same weights and vocabulary: matrices BF16, norms F32.
// FAILED_PRECONDITION as above; UNIMPLEMENTED for a shape with scaled RoPE.
absl::Status WriteSyntheticGguf(const ModelShape& shape, std::uint64_t seed,
                                const std::string& path);
// The errors of WriteSyntheticGguf that need no writing.
absl::Status CheckGguf(const ModelShape& shape, const std::string& path);

}  // namespace quire::client
