#pragma once

// Makes the matrices of a quantised checkpoint out of the tensors that hold their parts.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "formats/stored_quantization.h"
#include "formats/tensors/safetensors.h"

namespace quire::models {

// Replaces the parts of each quantised matrix, whichever files they lie in, by one tensor of its
// plain name and shape whose `quantized` is set:
//
//   gptq, awq                X.qweight, X.qzeros, X.scales [, X.g_idx]           -> X.weight [N, K]
//   compressed-tensors       X.weight_packed or X.weight, X.weight_scale
//                            [, X.weight_zero_point, X.weight_g_idx]             -> X.weight [N, K]
//   fp8                      X.weight, X.weight_scale_inv or X.weight_scale      -> X.weight [N, K]
//   mxfp4                    X_blocks [..., N, K / 32, 16], X_scales             -> X [..., N, K]
//
// The tensors decide which modules are quantised; others stay as they are. Scales of activations
// are dropped with a warning: quire does not round activations as the file proposes. Returns
// INVALID_ARGUMENT that names the tensor and the numbers when a part is missing, left over, or has
// the wrong shape or values, or when a module that must not be converted is quantised;
// UNIMPLEMENTED for a type that is not read. Without a method, parts of known names are refused.
absl::Status JoinQuantized(const formats::StoredQuantization& quantization,
                           std::vector<formats::StoredTensor>* tensors,
                           std::vector<std::string>* warnings);

}  // namespace quire::models
