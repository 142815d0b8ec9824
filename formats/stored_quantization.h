#pragma once

// The quantization of a checkpoint's weights, from its config.json.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::formats {

enum class StoredMethod : std::uint8_t { kNone, kFp8, kMxfp4, kGptq, kAwq, kCompressedTensors };

// Returns the value of quant_method, such as "gptq".
absl::string_view StoredMethodName(StoredMethod method);

// The set of weights that share a scale.
enum class ScaleScope : std::uint8_t {
  kTensor,   // all weights
  kChannel,  // one output feature
  kGroup,    // group_size inputs of an output feature
  kBlock     // block_rows output features times block_columns inputs
};

struct StoredQuantization {
  StoredMethod method = StoredMethod::kNone;
  bool is_fp8 = false;     // e4m3 values; false: integers, or mxfp4
  bool is_packed = false;  // compressed-tensors: a word has several integers
  std::uint32_t bits = 0;  // size of an integer, 4 or 8
  ScaleScope scope = ScaleScope::kTensor;
  std::uint32_t group_size = 0;                     // for kGroup
  std::uint32_t block_rows = 0, block_columns = 0;  // for kBlock
  bool has_zeros = false;                           // integers have zero points
  bool requires_symmetric_zeros = false;   // GPTQ with sym: zero points must be half of the range
  bool zeros_minus_one = false;            // GPTQ version 1 stores each zero point minus 1
  bool needs_order = false;                // GPTQ with desc_act: g_idx is required
  std::vector<std::string> not_converted;  // modules that are not quantized
};

// Returns the type name for messages about tensors: "gptq int4 g128".
std::string StoredTypeName(const StoredQuantization& quantization);

}  // namespace quire::formats
