#pragma once

// The small model of testdata/formats/models in every quantized format, and its recorded logits.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/model_files.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {

// Returns a file of that folder.
std::string ReadFormatFile(const std::string& name);

std::span<const std::byte> BytesOf(const std::string& text);

// The model in one format. One shard has the tensors common to all formats, another the matrices.
class FormatModel {
 public:
  // `more` is a third shard that contains a tensor with the given name.
  explicit FormatModel(const std::string& name, const std::string& more = "",
                       const std::string& more_tensor = "");

  formats::ModelFiles Files() const;
  // Logits from the exact values of the format, and from the values before they were rounded to it.
  const Reference& reference() const { return reference_; }
  const Reference& original() const { return original_; }
  // Like reference(), with rows rounded to e4m3 before each fp8 matrix. Otherwise empty.
  const Reference& rounded() const { return rounded_; }

 private:
  void Add(const std::string& name, std::string text) {
    files_.emplace_back(name, std::move(text));
  }
  void ReadReference(const std::string& name);

  nlohmann::json index_;
  std::vector<std::pair<std::string, std::string>> files_;
  Reference reference_, original_, rounded_;
};

// Returns the mean Kullback-Leibler divergence of the prompts.
double Divergence(const std::vector<ReplayedPrompt>& got, const Reference& want);

struct FormatCase {
  const char* name;
  const char* form;  // in memory with model.quantization auto, as Model::quantization
  // Divergence from the model before rounding, as make_models.py prints it. It is the accuracy of
  // the format on random weights.
  double of_original;
};

inline constexpr FormatCase kFormatCases[] = {
    {"awq-int4-g32", "int4_g32_zero", 3.42e-1},
    {"gptq-v1-int4-g32", "int4_g32_zero", 3.42e-1},
    {"gptq-v1-int4-sym-g32", "int4_g32", 3.99e-1},
    {"gptq-v1-int4-g32-actorder", "int4_g32_zero_order", 4.19e-1},
    {"gptq-v2-int4-channel", "int4_g128_zero", 7.49e-1},
    {"gptq-v1-int8-g32", "int8_g32_zero", 1.29e-3},
    {"gptq-v2-int8-sym-channel", "int8", 1.71e-3},
    {"ct-int4-sym-g32", "int4_g32", 3.74e-1},
    {"ct-int4-asym-g32", "int4_g32_zero", 3.42e-1},
    {"ct-int4-sym-g32-actorder", "int4_g32_order", 3.97e-1},
    {"ct-int8-sym-channel", "int8", 1.59e-3},
    {"ct-int8-w8a8", "int8", 1.59e-3},
    {"ct-int8-asym", "int8_g128_zero", 2.71e-3},
    {"ct-fp8-tensor", "fp8_e4m3", 6.83e-2},
    {"ct-fp8-channel", "fp8_e4m3", 2.62e-2},
    {"fp8-tensor", "fp8_e4m3", 6.83e-2},
    {"fp8-block128", "fp8_e4m3", 6.53e-2},
    {"fp8-block128-ue8m0", "fp8_e4m3", 3.53e-2}};

}  // namespace quire::models::parity
