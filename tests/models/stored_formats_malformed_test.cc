// Quantized checkpoints that are broken, contradictory or of an unsupported kind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "formats/json_value.h"
#include "formats/tensors/quantized_tensor.h"
#include "models/config/quantization_config.h"
#include "models/weights/join_quantized.h"
#include "models/weights/stored_rows.h"
#include "tests/models/stored_vectors.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A change to the tensors or to quantization_config, and the required words of the rejection.
struct Refusal {
  std::string vectors;
  std::function<void(Vectors*)> change;
  std::vector<std::string> words;
};

auto Drop(std::string suffix) {
  return [suffix](Vectors* vectors) {
    std::erase_if(vectors->tensors,
                  [&](const formats::StoredTensor& t) { return absl::EndsWith(t.name, suffix); });
  };
}
auto Reshape(std::string suffix, std::vector<std::int64_t> shape) {
  return [suffix, shape](Vectors* vectors) { Named(vectors, suffix)->shape = shape; };
}
// Overwrites bytes of a tensor of the file.
auto Patch(std::string suffix, std::size_t at, std::string bytes) {
  return [suffix, at, bytes](Vectors* vectors) {
    const char* const data =
        reinterpret_cast<const char*>(Named(vectors, suffix)->bytes.data()) + at;
    vectors->file.replace(static_cast<std::size_t>(data - vectors->file.data()), bytes.size(),
                          bytes);
  };
}
auto Retype(std::string suffix, std::string type, DType dtype) {
  return [=](Vectors* vectors) {
    Named(vectors, suffix)->type = type;
    Named(vectors, suffix)->dtype = dtype;
  };
}
auto Config(std::string pointer, json value) {
  return [=](Vectors* vectors) { vectors->config[json::json_pointer(pointer)] = value; };
}

std::vector<Refusal> Refusals() {
  const std::string gptq = "gptq-v1-int4-g128", awq = "awq-int4-g32", ct = "ct-int4-asym-g32",
                    order = "gptq-v1-int4-g32-actorder", fp8 = "fp8-block128-ragged",
                    tensor = "fp8-tensor", w8a8 = "ct-int8-w8a8", mxfp4 = "gpt-oss-mxfp4";
  return {
      {gptq, Drop(".scales"), {"proj.qweight", "proj.scales is missing"}},
      {gptq, Drop(".qzeros"), {"proj.qweight", "proj.qzeros is missing"}},
      {gptq, Drop(".qweight"), {"proj.", "belongs to no matrix", "gptq int4 g128", "NAME.qweight"}},
      {order, Drop(".g_idx"), {"proj.qweight", "proj.g_idx is missing"}},
      {gptq, Config("/group_size", 96), {"256 inputs", "group_size 96 does not divide"}},
      {gptq, Config("/group_size", 64), {"proj.scales", "[2, 64]", "group_size 64", "[4, 64]"}},
      {gptq, Config("/bits", 8), {"proj.scales", "128 inputs", "[1, 64]"}},
      {gptq, Reshape(".qzeros", {8, 2}), {"proj.qzeros", "[8, 2]", "[2, 8]"}},
      {gptq, Reshape(".qweight", {4, 8, 64}), {"proj.qweight", "[4, 8, 64]", "2 dimensions"}},
      {gptq, Reshape(".g_idx", {16, 16}), {"proj.g_idx", "[16, 16]", "[256]"}},
      {gptq,
       Patch(".g_idx", 4 * 200, Bytes<std::int32_t>({2})),
       {"proj.g_idx", "element 200 of 256 is 2", "0 to 1"}},
      {order, Patch(".g_idx", 4 * 3, Bytes<std::int32_t>({-1})), {"element 3 of 256 is -1"}},
      {gptq,
       Patch(".scales", 2 * 70, Bytes<std::uint16_t>({0x7e00})),
       {"proj.scales", "element 70 of 128 is nan", "finite"}},
      {gptq, Patch(".scales", 2 * 7, Bytes<std::uint16_t>({0x7c00})), {"element 7", "inf"}},
      {gptq,
       Patch(".qzeros", 0, std::string("\xff", 1)),
       {"proj.qzeros", "output 0 of group 0 stores 15", "would be decoded as 16"}},
      {gptq, Config("/sym", true), {"proj.qzeros", "zero point", "quantization_config.sym"}},
      {gptq, Retype(".scales", "I32", DType::kI32), {"proj.scales", "I32", "F16, BF16, F32"}},
      {awq, Drop(".scales"), {"proj.scales is missing"}},
      {awq, Reshape(".qzeros", {64, 1}), {"proj.qzeros", "[64, 1]", "[8, 8]"}},
      {awq, Config("/modules_to_not_convert", {"proj"}), {"proj.qweight", "is quantized", "proj"}},
      {ct, Drop(".weight_scale"), {"proj.weight_packed", "proj.weight_scale is missing"}},
      {ct, Drop(".weight_shape"), {"proj.weight_shape is missing"}},
      {ct, Drop(".weight_zero_point"), {"proj.weight_zero_point is missing"}},
      {ct,
       Patch(".weight_shape", 8, Bytes<std::int64_t>({300})),
       {"proj.weight_shape", "[64, 300]", "does not match"}},
      {ct,
       Config("/config_groups/group_0/weights/symmetric", true),
       {"proj.weight_zero_point", "other than 0", "symmetric"}},
      {w8a8, Drop(".weight_scale"), {"proj.weight_scale is missing"}},
      {w8a8, Reshape(".weight_scale", {32, 2}), {"proj.weight_scale", "[32, 2]", "[64, 1]"}},
      {fp8, Drop(".weight_scale_inv"), {"proj.weight", "proj.weight_scale_inv is missing"}},
      {fp8,
       Reshape(".weight_scale_inv", {3, 2}),
       {"[3, 2]", "weight_block_size [128, 128]", "160 outputs and 272 inputs", "[2, 3]"}},
      {fp8, Config("/weight_block_size", {64, 64}), {"proj.weight_scale_inv", "[3, 5]"}},
      {fp8, Patch(".weight_scale_inv", 4, Bytes<float>({NAN})), {"element 1 of 6 is nan"}},
      {fp8, Patch(".weight_scale_inv", 4, Bytes<float>({1e38f})), {"element 1 of 6 is 1e+38"}},
      {tensor, Reshape(".weight_scale", {0}), {"proj.weight_scale", "one scale for the matrix"}},
      {mxfp4, Drop("_scales"), {"gate_up_proj_blocks", "gate_up_proj_scales is missing"}},
      {mxfp4, Reshape("_scales", {2, 128}), {"gate_up_proj_scales", "[2, 128]", "[2, 32, 4]"}},
      {mxfp4, Reshape("_blocks", {2, 32, 8, 8}), {"gate_up_proj_blocks", "[2, 32, 8, 8]"}},
      {mxfp4, Patch("_scales", 9, std::string("\xff", 1)), {"element 9 of 256 is nan"}},
  };
}

TEST(StoredFormatsTest, RejectsBrokenPartsByName) {
  for (const Refusal& refusal : Refusals()) {
    Vectors vectors = ReadVectors(refusal.vectors);
    refusal.change(&vectors);
    const auto config = ReadConfig(vectors.config);
    ASSERT_TRUE(config.ok()) << config.status();
    std::vector<std::string> warnings;
    const absl::Status status = JoinQuantized(*config, &vectors.tensors, &warnings);
    EXPECT_FALSE(status.ok()) << refusal.vectors << " " << refusal.words[0];
    for (const std::string& word : refusal.words) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(word));
    }
  }
}

TEST(StoredFormatsTest, DetectsNanInFp8WeightsAtLoad) {
  const TestBackend cpu(2);
  Vectors vectors = ReadVectors("fp8-tensor");
  Patch(".weight", 256 * 5 + 7, std::string("\xff", 1))(&vectors);
  std::vector<std::string> warnings;
  ASSERT_TRUE(JoinQuantized(*ReadConfig(vectors.config), &vectors.tensors, &warnings).ok());
  EXPECT_THAT(std::string(CheckFinite(vectors.tensors[0], cpu.backend).message()),
              AllOf(HasSubstr("proj.weight"), HasSubstr("element 1287 of 16384 is nan")));
}

TEST(StoredFormatsTest, RejectsPartsWithoutAConfig) {
  Vectors vectors = ReadVectors("awq-int4-g32");
  std::vector<std::string> warnings;
  EXPECT_THAT(std::string(JoinQuantized({}, &vectors.tensors, &warnings).message()),
              AllOf(HasSubstr("proj."), HasSubstr("config.json has no quantization_config")));
}

TEST(StoredFormatsTest, WarnsAboutSettingsWithoutEffect) {
  Vectors vectors = ReadVectors("ct-fp8-tensor");
  formats::StoredTensor input = *Named(&vectors, ".weight_scale");
  input.name = "proj.input_scale";
  vectors.tensors.push_back(input);
  vectors.config["ignore"] = {"lm_head", "model.vision_tower", "re:.*gate$"};
  vectors.config["colour"] = "blue";
  std::vector<std::string> warnings;
  const auto config = ReadConfig(vectors.config, &warnings);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(JoinQuantized(*config, &vectors.tensors, &warnings).ok());
  EXPECT_EQ(vectors.tensors.size(), 1u);
  EXPECT_THAT(warnings,
              testing::ElementsAre(AllOf(HasSubstr("unknown keys"), HasSubstr("colour")),
                                   AllOf(HasSubstr("does not have: model.vision_tower")),
                                   AllOf(HasSubstr("proj.input_scale"), HasSubstr("are ignored"))));
}

// Randomly changes a tensor's bytes, type, shape or existence, or a number of the configuration.
void ChangeSomething(std::mt19937* random, Vectors* vectors) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>((*random)() % n); };
  formats::StoredTensor& tensor = vectors->tensors[below(vectors->tensors.size())];
  switch (below(6)) {
    case 0:
      std::swap(tensor.shape, vectors->tensors[below(vectors->tensors.size())].shape);
      return;
    case 1:
      if (!tensor.shape.empty()) tensor.shape.erase(tensor.shape.begin());
      return;
    case 2:
      if (vectors->tensors.size() < 2) return;
      vectors->tensors.erase(vectors->tensors.begin() +
                             static_cast<std::ptrdiff_t>(below(vectors->tensors.size())));
      return;
    case 3: {
      json* numbers = &vectors->config;
      if (numbers->contains("config_groups")) {
        numbers = &(*numbers)["config_groups"]["group_0"]["weights"];
      }
      for (const char* key : {"bits", "group_size", "num_bits"}) {
        if (numbers->contains(key)) (*numbers)[key] = static_cast<int>(below(200));
      }
      return;
    }
    default: {
      const std::size_t at = static_cast<std::size_t>(
          reinterpret_cast<const char*>(tensor.bytes.data()) - vectors->file.data());
      for (std::size_t i = 0; i < 8 && !tensor.bytes.empty(); ++i) {
        vectors->file[at + below(tensor.bytes.size())] = static_cast<char>(below(256));
      }
    }
  }
}

// Preserves the guarantee of the header reader: bytes for every element.
bool HoldsItsShapes(const Vectors& vectors) {
  return std::all_of(vectors.tensors.begin(), vectors.tensors.end(), [](const auto& tensor) {
    const std::int64_t size = tensor.type == "I64"                            ? 8
                              : tensor.type == "F32" || tensor.type == "I32"  ? 4
                              : tensor.type == "F16" || tensor.type == "BF16" ? 2
                                                                              : 1;
    return tensor.num_elements() * size == static_cast<std::int64_t>(tensor.bytes.size());
  });
}

TEST(StoredFormatsTest, RandomEditsAreRejectedOrGiveValues) {
  constexpr std::size_t kTurns = 1200;
  std::mt19937 random(17);
  const std::vector<std::string> names = VectorNames();
  std::size_t refused = 0, read = 0;
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    Vectors vectors = ReadVectors(names[turn % names.size()]);
    for (std::size_t edit = 0; edit < 1 + turn % 3; ++edit) ChangeSomething(&random, &vectors);
    if (!HoldsItsShapes(vectors)) continue;
    const auto config = ReadConfig(vectors.config);
    std::vector<std::string> warnings;
    const absl::Status status =
        config.ok() ? JoinQuantized(*config, &vectors.tensors, &warnings) : config.status();
    if (!status.ok()) {
      EXPECT_FALSE(status.message().empty());
      ++refused;
      continue;
    }
    for (const formats::StoredTensor& matrix : vectors.tensors) {
      if (matrix.quantized == nullptr) continue;
      ++read;
      std::vector<float> row(static_cast<std::size_t>(matrix.shape.back()));
      const std::int64_t rows = matrix.num_elements() / matrix.shape.back();
      for (const std::int64_t n : {std::int64_t{0}, rows / 2, rows - 1}) WidenRow(matrix, n, row);
    }
  }
  EXPECT_GT(refused, kTurns / 10);
  EXPECT_GT(read, kTurns / 10);
}

// A rejected quantization_config, and words of the message.
using ConfigRefusals = std::vector<std::pair<json, std::vector<std::string>>>;

json With(json config, const std::string& pointer, const json& value) {
  config[json::json_pointer(pointer)] = value;
  return config;
}

ConfigRefusals RefusedMethods() {
  const json gptq = ReadVectors("gptq-v1-int4-g128").config;
  const json awq = ReadVectors("awq-int4-g32").config;
  const json fp8 = ReadVectors("fp8-block128").config;
  return {
      {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}},
       {"quantization_config.quant_method \"bitsandbytes\" is not supported",
        "fp8, mxfp4, gptq, awq, compressed-tensors"}},
      {{{"quant_method", "aqlm"}}, {"\"aqlm\""}},
      {{{"quant_method", "hqq"}}, {"\"hqq\""}},
      {{{"quant_method", "exl2"}}, {"\"exl2\""}},
      {{{"quant_method", "fbgemm_fp8"}}, {"\"fbgemm_fp8\""}},
      {{{"bits", 4}}, {"quantization_config.quant_method is missing"}},
      {With(gptq, "/bits", 3), {"quantization_config.bits 3", "supported: 4, 8"}},
      {With(gptq, "/bits", 2), {"bits 2"}},
      {With(gptq, "/bits", "4"), {"bits"}},
      {With(gptq, "/group_size", 0), {"group_size is 0"}},
      {With(gptq, "/group_size", nullptr), {"group_size is missing"}},
      {With(gptq, "/checkpoint_format", "marlin"), {"checkpoint_format \"marlin\"", "gptq_v2"}},
      {With(gptq, "/format", "gptq_v2"), {"checkpoint_format", "format is \"gptq_v2\""}},
      {With(gptq, "/is_marlin_format", true), {"is_marlin_format true"}},
      {With(gptq, "/dynamic", {{"+:.*down.*", {{"bits", 8}}}}),
       {"dynamic.+:.*down.*", "one width"}},
      {With(gptq, "/desc_act", "yes"), {"desc_act"}},
      {With(awq, "/bits", 8), {"bits 8", "supported: 4"}},
      {With(awq, "/version", "gemv"), {"version \"gemv\"", "gemm"}},
      {With(awq, "/zero_point", false), {"zero_point false"}},
      {With(awq, "/modules_to_not_convert", "visual"), {"modules_to_not_convert"}},
      {With(fp8, "/weight_block_size", {128}), {"weight_block_size", "[128]", "two"}},
      {With(fp8, "/weight_block_size", {128, 0}), {"weight_block_size", "[128,0]"}},
      {With(fp8, "/fmt", "e5m2"), {"fmt \"e5m2\"", "e4m3"}},
      {With(fp8, "/activation_scheme", "none"), {"activation_scheme"}},
  };
}

ConfigRefusals RefusedCompressedTensors() {
  const json ct = ReadVectors("ct-int4-sym-g128").config;
  const std::string weights = "/config_groups/group_0/weights";
  return {
      {With(ct, "/format", "nvfp4-pack-quantized"), {"format \"nvfp4-pack-quantized\""}},
      {With(ct, "/format", "marlin-24"), {"format \"marlin-24\"", "pack-quantized"}},
      {With(ct, "/format", "dense"), {"format \"dense\""}},
      {With(ct, "/format", "float-quantized"), {"weights.num_bits 4", "supported: 8"}},
      {With(ct, "/kv_cache_scheme", {{"num_bits", 8}}), {"kv_cache_scheme"}},
      {With(ct, "/transform_config", {{"config_groups", 1}}), {"transform_config"}},
      {With(ct, "/sparsity_config", {{"format", "sparse-24-bitmask"}}), {"sparse-24-bitmask"}},
      {With(ct, "/quantization_status", "calibration"), {"quantization_status"}},
      {With(ct, weights + "/num_bits", 3), {"weights.num_bits 3", "4, 8"}},
      {With(ct, weights + "/strategy", "tensor_group"), {"weights.strategy \"tensor_group\""}},
      {With(ct, weights + "/strategy", "tensor"), {"strategy \"tensor\"", "type int"}},
      {With(ct, weights + "/actorder", "random"), {"weights.actorder \"random\""}},
      {With(ct, weights + "/dynamic", true), {"weights.dynamic true"}},
      {With(ct, weights, nullptr), {"group_0.weights is missing"}},
      {With(ct, "/config_groups/group_0/input_activations", {{"num_bits", 4}}),
       {"input_activations.num_bits 4"}},
      {With(ct, "/config_groups/group_0/output_activations", {{"num_bits", 8}}),
       {"output_activations"}},
      {With(ct, "/config_groups/group_1", ct["config_groups"]["group_0"]),
       {"config_groups", "with 2 groups"}},
      {With(ct, "/config_groups", json::object()), {"config_groups", "with 0 groups"}},
  };
}

TEST(StoredFormatsTest, RejectsUnsupportedConfigsByKeyAndValue) {
  ConfigRefusals cases = RefusedMethods();
  for (auto& refused : RefusedCompressedTensors()) cases.push_back(std::move(refused));
  for (const auto& [config, words] : cases) {
    const auto read = ReadConfig(config);
    EXPECT_FALSE(read.ok()) << words[0];
    for (const std::string& word : words) {
      EXPECT_THAT(std::string(read.status().message()),
                  AllOf(testing::StartsWith("config.json: quantization_config"), HasSubstr(word)));
    }
  }
  const auto old = formats::JsonDocument::Parse(R"({"compression_config": {"format": "dense"}})");
  std::vector<std::string> warnings;
  EXPECT_THAT(
      std::string(ReadStoredQuantization(ConfigReader("config.json", old->root()), &warnings)
                      .status()
                      .message()),
      HasSubstr("compression_config"));
}

}  // namespace
}  // namespace quire::models
