#include "tests/parity/fp8_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "base/check.h"
#include "base/dtype.h"
#include "models/weights/checkpoint.h"

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

// Adds a matrix in fp8 with blocks of 128, and the f32 values that it represents.
void AddFp8(const formats::StoredTensor& tensor, std::vector<FileTensor>* fp8,
            std::vector<FileTensor>* exact) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t n = tensor.shape[0], k = tensor.shape[1], columns = (k + kBlock - 1) / kBlock;
  const std::int64_t blocks = (n + kBlock - 1) / kBlock * columns;
  const auto value = [&](std::int64_t i) {
    BF16 stored;
    std::memcpy(&stored, tensor.bytes.data() + i * 2, 2);
    return stored.ToFloat();
  };
  const auto block = [&](std::int64_t i) {
    return static_cast<std::size_t>(i / k / kBlock * columns + i % k / kBlock);
  };
  std::vector<float> scales(static_cast<std::size_t>(blocks)), values;
  std::vector<F8E4M3> codes;
  for (std::int64_t i = 0; i < n * k; ++i) {
    scales[block(i)] = std::max(scales[block(i)], std::fabs(value(i)) / 448);
  }
  for (std::int64_t i = 0; i < n * k; ++i) {
    codes.push_back(F8E4M3::FromFloat(value(i) / scales[block(i)]));
    values.push_back(codes.back().ToFloat() * scales[block(i)]);
  }
  fp8->push_back({tensor.name, "F8_E4M3", BytesOfValues(codes), tensor.shape});
  fp8->push_back(
      {tensor.name + "_scale_inv", "F32", BytesOfValues(scales), {blocks / columns, columns}});
  exact->push_back({tensor.name, "F32", BytesOfValues(values), tensor.shape});
}

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
      AddFp8(tensor, &fp8_tensors, &exact_tensors);
      continue;
    }
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()),
                            tensor.bytes.size());
    for (auto* tensors : {&fp8_tensors, &exact_tensors}) {
      tensors->push_back({tensor.name, tensor.type, bytes, tensor.shape});
    }
  }
  fp8->Text("model.safetensors") = SafetensorsOf(fp8_tensors);
  exact->Text("model.safetensors") = SafetensorsOf(exact_tensors);
  fp8->config()["quantization_config"] = {{"quant_method", "fp8"},
                                          {"fmt", "e4m3"},
                                          {"activation_scheme", "dynamic"},
                                          {"weight_block_size", {128, 128}}};
  return coded;
}

}  // namespace quire::models::parity
