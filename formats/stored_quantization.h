#pragma once

// How the weights of a checkpoint are stored quantised, as its config.json says.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::formats {

enum class StoredMethod : std::uint8_t { kNone, kFp8, kMxfp4, kGptq, kAwq, kCompressedTensors };

// "gptq": the value of quant_method.
absl::string_view StoredMethodName(StoredMethod method);

// Which weights share a scale.
enum class ScaleScope : std::uint8_t {
  kTensor,   // all
  kChannel,  // an output feature
  kGroup,    // group_size inputs of an output feature
  kBlock     // block_rows output features times block_columns inputs
};

struct StoredQuantization {
  StoredMethod method = StoredMethod::kNone;
  bool is_fp8 = false;     // values are e4m3, else integers (mxfp4: neither)
  bool is_packed = false;  // compressed-tensors: several integers in a word
  std::uint32_t bits = 0;  // of an integer, 4 or 8
  ScaleScope scope = ScaleScope::kTensor;
  std::uint32_t group_size = 0;                     // kGroup
  std::uint32_t block_rows = 0, block_columns = 0;  // kBlock
  bool has_zeros = false;                           // integers have zero points
  bool needs_zeros_symmetric = false;      // GPTQ with sym: zero points must be half of the range
  bool zeros_minus_one = false;            // GPTQ version 1 stores zero points less 1
  bool needs_order = false;                // GPTQ with desc_act: g_idx must be there
  std::vector<std::string> not_converted;  // modules that are stored as they are
};

// "gptq int4 g128": for messages about tensors.
std::string StoredTypeName(const StoredQuantization& quantization);

}  // namespace quire::formats
