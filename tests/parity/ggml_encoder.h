#pragma once

// Writes matrices in GGML's block formats. Rounding is simple; programs of llama.cpp search for
// better scales.

#include <string>
#include <vector>

#include "formats/tensors/ggml_blocks.h"

namespace quire::models::parity {

// Returns the bytes of F32, F16, BF16, Q4_0, Q8_0, Q4_K, Q5_K or Q6_K. REQUIRES: the number of
// values is a multiple of the block size.
std::string EncodeGgml(formats::GgmlType type, const std::vector<float>& values);

// Returns the values that the bytes represent.
std::vector<float> DecodeGgml(formats::GgmlType type, const std::string& bytes);

}  // namespace quire::models::parity
