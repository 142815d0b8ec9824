#pragma once

// Assembles the matrices of a quantized checkpoint from the tensors that hold their parts.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "formats/stored_quantization.h"
#include "formats/tensors/safetensors.h"

namespace quire::models {

// Replaces the parts of each quantized matrix, also if they are in several files, by one tensor
// with the unquantized name and shape, whose `quantized` is set:
//
//   gptq, awq                X.qweight, X.qzeros, X.scales [, X.g_idx]           -> X.weight [N, K]
//   compressed-tensors       X.weight_packed and X.weight_shape, or X.weight
//                            X.weight_scale
//                            [, X.weight_zero_point, X.weight_g_idx]             -> X.weight [N, K]
//   fp8                      X.weight, X.weight_scale_inv or X.weight_scale      -> X.weight [N, K]
//   mxfp4                    X_blocks [..., N, K / 32, 16], X_scales             -> X [..., N, K]
//
// The tensors determine which modules are quantized. Scales of activations are ignored with a
// warning, since static activation quantization is not supported. Returns INVALID_ARGUMENT that
// names the tensor if a part is missing, unused, or has the wrong shape or values. Returns the
// same code if a module is quantized although the configuration excludes it. Returns UNIMPLEMENTED
// for an unsupported type. If `quantization` has no method, tensors with the names of parts are
// refused.
absl::Status JoinQuantized(const formats::StoredQuantization& quantization,
                           std::vector<formats::StoredTensor>* tensors,
                           std::vector<std::string>* warnings);

}  // namespace quire::models
