#pragma once

// Random models with recurrent layers in every weight format. Their matrices have 256 inputs, since
// some formats need large blocks.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/weight_format.h"
#include "formats/model_files.h"
#include "formats/tensors/ggml_blocks.h"
#include "models/weights/quantization.h"
#include "tests/parity/coded_matrix.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {

// A fixture, and the sizes that replace its own. Rank and heads of Kimi-Linear allow groups of 128.
struct HybridCase {
  const char* folder;
  const char* architecture;  // of GGUF files
  const char* sizes;
};

// GoogleTest prints parameters by these functions.
void PrintTo(const HybridCase& hybrid, std::ostream* stream);

const std::vector<HybridCase>& HybridCases();

// One format of a model's files or of its matrices in memory.
struct HybridFormat {
  std::string name;
  WeightFormat held;                                  // of recurrent products whose inputs allow it
  Quantization quantization = Quantization::kAuto;    // other than kAuto: quantized while loading
  formats::GgmlType ggml = formats::GgmlType::kNone;  // a GGUF file
  const CodedFormat* coded = nullptr;                 // quantized tensors in safetensors files
};

void PrintTo(const HybridFormat& format, std::ostream* stream);

std::vector<HybridFormat> HybridFormats();

// A model in one format, and the same model with the values of that format in f32 matrices.
//
// Threads: one. Lifetime: must outlive the files that it returns.
class HybridModel {
 public:
  HybridModel(const HybridCase& hybrid, const HybridFormat& format);

  formats::ModelFiles CodedFiles() { return Files(coded_gguf_, &coded_); }
  // Returns the same files for formats that are made while loading.
  formats::ModelFiles ExactFiles() { return Files(exact_gguf_, &exact_); }

 private:
  static formats::ModelFiles Files(const std::string& gguf, EditedFixture* fixture);

  EditedFixture coded_, exact_;
  std::string coded_gguf_, exact_gguf_;
};

// Returns the normalized hidden states of a prompt of kHybridTokens tokens.
inline constexpr std::int32_t kHybridTokens = 12;
absl::StatusOr<std::vector<float>> RunHybrid(const formats::ModelFiles& files,
                                             const ReplayOptions& options);

// Returns a name of letters, digits and underscores.
std::string HybridTestName(const HybridCase& hybrid, const HybridFormat& format);

}  // namespace quire::models::parity
