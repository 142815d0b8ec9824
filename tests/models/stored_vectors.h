#pragma once

// Vectors of quantized formats (testdata/formats) for the tests of models.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/stored_quantization.h"
#include "formats/tensors/safetensors.h"

namespace quire::models {

// Reads a quantization_config alone, as it would appear in config.json.
absl::StatusOr<formats::StoredQuantization> ReadConfig(
    const nlohmann::json& quantization, std::vector<std::string>* warnings = nullptr);

// A file of vectors: the tensors of a checkpoint and the values that they represent.
struct Vectors {
  nlohmann::json config;
  std::string file;
  std::vector<formats::StoredTensor> tensors;             // bytes in `file`
  std::map<std::string, formats::StoredTensor> expected;  // by the name of the matrix
};
Vectors ReadVectors(const std::string& name);
// Returns the names of all files with a quantization_config.
std::vector<std::string> VectorNames();

// Returns the first tensor whose name has this suffix. Fails the test if there is none.
formats::StoredTensor* Named(Vectors* vectors, absl::string_view suffix);

}  // namespace quire::models
