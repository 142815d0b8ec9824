#pragma once

// Writes random weights for the shapes of synthetic_model.h. The safetensors file and the GGUF file
// have the same weights, so that servers that read only one format compute the same model. GGUF
// requires some values in another form (norm weights plus 1, A_log as -exp(A_log)) and some rows in
// another order.
//
// Place:      used by `quire make-model`.
// Invariants: a value depends only on the seed, the position of its tensor in the model, the kind
//             of the tensor, and its own position in the tensor.
// Threads:    any.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tools/quire/synthetic_model.h"

namespace quire::client {

// Writes model.safetensors into the existing `directory`. Returns FAILED_PRECONDITION if the file
// exists or cannot be written.
absl::Status WriteSyntheticWeights(const ModelShape& shape, std::uint64_t seed,
                                   const std::string& directory);

// Writes a GGUF file (version 3) with the same weights and vocabulary: matrices as BF16, other
// tensors as F32. Returns FAILED_PRECONDITION as above, and UNIMPLEMENTED for a shape with scaled
// RoPE.
absl::Status WriteSyntheticGguf(const ModelShape& shape, std::uint64_t seed,
                                const std::string& path);
// Returns the errors of WriteSyntheticGguf that can be detected without writing.
absl::Status CheckCanWriteGguf(const ModelShape& shape, const std::string& path);

}  // namespace quire::client
