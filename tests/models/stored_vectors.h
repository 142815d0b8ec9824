#pragma once

// Vectors of quantised formats (testdata/formats), as the tests of models read and change them.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/stored_quantization.h"
#include "formats/tensors/safetensors.h"

namespace quire::models {

// The quantization_config alone, as config.json would have it.
absl::StatusOr<formats::StoredQuantization> ReadConfig(
    const nlohmann::json& quantization, std::vector<std::string>* warnings = nullptr);

// A file of vectors: the tensors that a checkpoint has, and what they mean.
struct Vectors {
  nlohmann::json config;
  std::string file;
  std::vector<formats::StoredTensor> tensors;             // bytes in `file`
  std::map<std::string, formats::StoredTensor> expected;  // by the name of the matrix
};
Vectors ReadVectors(const std::string& name);
// Names of all files with a quantization_config.
std::vector<std::string> VectorNames();

// The first tensor whose name ends so; a failure of the test when there is none.
formats::StoredTensor* Named(Vectors* vectors, absl::string_view suffix);

}  // namespace quire::models
