#include "tests/models/stored_vectors.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "formats/json_value.h"
#include "models/config/quantization_config.h"
#include "tests/models/test_files.h"

namespace quire::models {

using nlohmann::json;

absl::StatusOr<formats::StoredQuantization> ReadConfig(const nlohmann::json& quantization,
                                                       std::vector<std::string>* warnings) {
  const std::string text = json{{"quantization_config", quantization}}.dump();
  const auto document = formats::JsonDocument::Parse(text);
  QUIRE_CHECK(document.ok());
  std::vector<std::string> unused;
  return ReadStoredQuantization(ConfigReader("config.json", document->root()),
                                warnings == nullptr ? &unused : warnings);
}

Vectors ReadVectors(const std::string& name) {
  Vectors vectors;
  const json index = json::parse(ReadTestFile("formats/index.json"));
  for (const json& entry : index["hugging_face"]) {
    if (entry["file"] == name + ".safetensors") vectors.config = entry["quantization_config"];
  }
  vectors.file = ReadTestFile(absl::StrCat("formats/", name, ".safetensors"));
  const auto tensors = formats::ReadSafetensors(
      std::as_bytes(std::span(vectors.file.data(), vectors.file.size())), name);
  QUIRE_CHECK(tensors.ok());
  for (const formats::StoredTensor& tensor : *tensors) {
    constexpr absl::string_view kExpected = "expected.";
    if (absl::StartsWith(tensor.name, kExpected)) {
      vectors.expected.emplace(tensor.name.substr(kExpected.size()), tensor);
    } else {
      vectors.tensors.push_back(tensor);
    }
  }
  return vectors;
}

std::vector<std::string> VectorNames() {
  std::vector<std::string> names;
  const json index = json::parse(ReadTestFile("formats/index.json"));
  for (const json& entry : index["hugging_face"]) {
    if (entry["quantization_config"].is_null()) continue;
    const auto file = entry["file"].get<std::string>();
    names.push_back(file.substr(0, file.rfind('.')));
  }
  return names;
}

formats::StoredTensor* Named(Vectors* vectors, absl::string_view suffix) {
  for (formats::StoredTensor& tensor : vectors->tensors) {
    if (absl::EndsWith(tensor.name, suffix)) return &tensor;
  }
  ADD_FAILURE() << suffix;
  return nullptr;
}

}  // namespace quire::models
