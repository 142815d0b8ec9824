#include "tests/parity/fp8_fixture.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "base/check.h"
#include "models/weights/checkpoint.h"
#include "tests/parity/coded_matrix.h"
#include "tests/parity/ggml_encoder.h"

namespace quire::models::parity {

using nlohmann::json;

std::string SafetensorsOf(const std::vector<FileTensor>& tensors) {
  json header = json::object();
  std::string data;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.type},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + text + data;
}

namespace {

std::string TextOf(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

constexpr std::int64_t kBlock = 128;
constexpr absl::string_view kMatrixEnds[] = {"_proj.weight", "_proj_with_mqa.weight",
                                             "in_proj_qkvz.weight", "in_proj_ba.weight"};

}  // namespace

std::vector<std::string> MakeFp8(EditedFixture* fp8, EditedFixture* exact) {
  const auto checkpoint = Checkpoint::Open(fp8->Files());
  QUIRE_CHECK(checkpoint.ok());
  std::vector<std::string> coded;
  std::vector<FileTensor> fp8_tensors, exact_tensors;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    const bool is_matrix =
        std::any_of(std::begin(kMatrixEnds), std::end(kMatrixEnds),
                    [&](absl::string_view end) { return absl::EndsWith(tensor.name, end); });
    if (is_matrix) {
      coded.push_back(tensor.name);
      FloatMatrix matrix{.name = tensor.name, .shape = tensor.shape, .values = {}};
      matrix.values = DecodeGgml(formats::GgmlType::kBF16, TextOf(tensor.bytes));
      CodedMatrix encoded = EncodeFp8(matrix, kBlock, kBlock, "_scale_inv");
      std::move(encoded.tensors.begin(), encoded.tensors.end(), std::back_inserter(fp8_tensors));
      exact_tensors.push_back({tensor.name, "F32", BytesOfValues(encoded.values), tensor.shape});
      continue;
    }
    for (auto* tensors : {&fp8_tensors, &exact_tensors}) {
      tensors->push_back({tensor.name, tensor.type, TextOf(tensor.bytes), tensor.shape});
    }
  }
  fp8->Text("model.safetensors") = SafetensorsOf(fp8_tensors);
  exact->Text("model.safetensors") = SafetensorsOf(exact_tensors);
  fp8->config()["quantization_config"] = {{"quant_method", "fp8"},
                                          {"fmt", "e4m3"},
                                          {"activation_scheme", "dynamic"},
                                          {"weight_block_size", {kBlock, kBlock}}};
  return coded;
}

}  // namespace quire::models::parity
