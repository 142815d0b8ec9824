#pragma once

// Writes matrices in the quantized formats of safetensors files, with the values that they
// represent. The layouts are those of formats/tensors/quantized_tensor.h.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/weight_format.h"
#include "tests/parity/fp8_fixture.h"

namespace quire::models::parity {

struct FloatMatrix {
  std::string name;                 // ends in ".weight", or is a stack without such an ending
  std::vector<std::int64_t> shape;  // [n, k], or [matrices, n, k]
  std::vector<float> values;

  std::int64_t columns() const { return shape.back(); }
  std::int64_t rows() const { return static_cast<std::int64_t>(values.size()) / columns(); }
};

struct CodedMatrix {
  std::vector<FileTensor> tensors;
  std::vector<float> values;  // like those of the FloatMatrix
};

struct CodedFormat {
  const char* name;
  nlohmann::json config;  // quantization_config
  // REQUIRES: two dimensions, or with `has_stacks` three; n is a multiple of 8 and k of 32.
  CodedMatrix (*encode)(const FloatMatrix& matrix);
  WeightFormat held;  // format in memory on a CPU
  bool has_stacks = false;
};

// Returns one format of every kind.
const std::vector<CodedFormat>& CodedFormats();

// fp8 with a scale for each block of rows and columns. `scale` is the ending of the scales' name.
CodedMatrix EncodeFp8(const FloatMatrix& matrix, std::int64_t block_rows,
                      std::int64_t block_columns, const std::string& scale);

}  // namespace quire::models::parity
