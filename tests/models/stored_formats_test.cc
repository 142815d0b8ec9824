// Quantized formats of safetensors files, compared with vectors on which their own libraries agree,
// and rejections.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "formats/tensors/quantized_tensor.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/quantized_linear.h"
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

float FloatAt(const formats::StoredTensor& tensor, std::size_t i) {
  float value;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof(value), sizeof(value));
  return value;
}

bool SameBits(float a, float b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
}

struct FormatCase {
  std::string name;
  std::string form;  // the format in memory, as FormName prints it
};

void PrintTo(const FormatCase& format, std::ostream* stream) {
  *stream << format.name;
}

class StoredFormatTest : public testing::TestWithParam<FormatCase> {
 protected:
  // Returns the only matrix of the file.
  const formats::StoredTensor& Join() {
    vectors_ = ReadVectors(GetParam().name);
    const auto config = ReadConfig(vectors_.config);
    QUIRE_CHECK(config.ok());
    std::vector<std::string> warnings;
    tensors_ = vectors_.tensors;
    const absl::Status joined = JoinQuantized(*config, &tensors_, &warnings);
    EXPECT_TRUE(joined.ok()) << joined;
    EXPECT_EQ(tensors_.size(), 1u);
    EXPECT_TRUE(warnings.empty()) << warnings.front();
    EXPECT_TRUE(tensors_[0].is_quantized());
    return tensors_[0];
  }

  Vectors vectors_;
  std::vector<formats::StoredTensor> tensors_;
};

TEST_P(StoredFormatTest, DequantizesToTheSameBits) {
  const formats::StoredTensor& matrix = Join();
  ASSERT_TRUE(vectors_.expected.contains(matrix.name)) << matrix.name;
  const formats::StoredTensor& expected = vectors_.expected.at(matrix.name);
  ASSERT_EQ(matrix.shape, expected.shape);
  const auto k = static_cast<std::size_t>(matrix.shape.back());
  const std::int64_t rows = matrix.num_elements() / matrix.shape.back();
  std::vector<float> row(k);
  for (std::int64_t n = 0; n < rows; ++n) {
    WidenRow(matrix, n, row);
    for (std::size_t i = 0; i < k; ++i) {
      const float want = FloatAt(expected, static_cast<std::size_t>(n) * k + i);
      ASSERT_TRUE(SameBits(row[i], want)) << n << ", " << i << ": " << row[i] << " for " << want;
      const float alone = matrix.quantized->ReadValue(n, static_cast<std::int64_t>(i));
      ASSERT_TRUE(SameBits(alone, want)) << n << ", " << i << ": " << alone << " for " << want;
    }
  }
}

// The format in memory represents the same values, bit for bit.
TEST_P(StoredFormatTest, MemoryRepresentsTheSameValues) {
  const formats::StoredTensor& matrix = Join();
  const MatrixForm form = StoredForm(matrix);
  EXPECT_EQ(FormName(form), GetParam().form);
  const formats::StoredTensor& expected = vectors_.expected.at(matrix.name);
  const auto k = static_cast<std::uint32_t>(matrix.shape.back());
  const auto n = static_cast<std::uint32_t>(matrix.num_elements() / matrix.shape.back());
  const TestBackend cpu(2);
  const auto packed =
      form.is_plain() ? kernels::PackPlainRows(cpu.backend, form.dtype, n, k,
                                               [&](std::uint32_t row, std::byte* out) {
                                                 ReadPlainRow(matrix, form.dtype, row, out);
                                               })
      : form.is_fp8() ? kernels::PackFp8Rows(cpu.backend, form.Fp8ShapeOf(n, k),
                                             [&](std::uint32_t row, const quire::Fp8Row& out) {
                                               ReadFp8Row(matrix, row, out);
                                             })
                      : kernels::PackQuantizedRows(
                            cpu.backend, form.ShapeOf(n, k),
                            [&](std::uint32_t row, const QuantizedRow& out) {
                              ReadQuantizedRow(matrix, form, row, out);
                            },
                            matrix.quantized->act_order());
  ASSERT_TRUE(packed.ok()) << packed.status();
  for (std::uint32_t row = 0; row < n; ++row) {
    for (std::uint32_t i = 0; i < k; ++i) {
      const float want = FloatAt(expected, std::size_t{row} * k + i);
      ASSERT_EQ(packed->At(row, i), want) << row << ", " << i;
    }
  }
}

// The fingerprint and the load log see a bundle of source tensors.
TEST_P(StoredFormatTest, KeepsEveryTensorOfTheFile) {
  const formats::StoredTensor& matrix = Join();
  std::vector<std::string> names, sources;
  for (const formats::StoredTensor& tensor : vectors_.tensors) names.push_back(tensor.name);
  for (const formats::StoredTensor* source : matrix.quantized->Sources())
    sources.push_back(source->name);
  EXPECT_THAT(sources, testing::UnorderedElementsAreArray(names));
}

// The vectors contain bf16 or f32 scales that f16 cannot represent (1e-39). Those of mxfp4 contain
// every exponent from 2^-127 on with products representable in f32, including the smallest bf16
// subnormal.
INSTANTIATE_TEST_SUITE_P(
    Formats, StoredFormatTest,
    testing::Values(
        FormatCase{"awq-int4-g128", "int4_g128_zero"}, FormatCase{"awq-int4-g32", "int4_g32_zero"},
        FormatCase{"gptq-v1-int4-g128", "int4_g128_zero"},
        FormatCase{"gptq-v1-int4-g32-actorder", "int4_g32_zero_order"},
        FormatCase{"gptq-v1-int4-channel", "int4_g128_zero"},
        FormatCase{"gptq-v1-int8-g128", "int8_g128_zero"},
        FormatCase{"gptq-v2-int4-g128", "int4_g128_zero"},
        FormatCase{"gptq-v2-int4-g32-actorder", "int4_g32_zero_order"},
        FormatCase{"ct-int4-sym-g128", "f32"}, FormatCase{"ct-int4-asym-g32", "int4_g32_zero"},
        FormatCase{"ct-int4-sym-channel", "f32"},
        FormatCase{"ct-int4-sym-g32-actorder", "int4_g32_order"},
        FormatCase{"ct-int8-sym-channel", "int8"},
        FormatCase{"ct-int8-asym-g128", "int8_g128_zero"}, FormatCase{"ct-int8-w8a8", "int8"},
        FormatCase{"ct-fp8-tensor", "fp8_e4m3"}, FormatCase{"ct-fp8-channel", "fp8_e4m3"},
        FormatCase{"fp8-tensor", "fp8_e4m3"}, FormatCase{"fp8-block128", "fp8_e4m3_g128"},
        FormatCase{"fp8-block128-ragged", "fp8_e4m3_g128"}, FormatCase{"gpt-oss-mxfp4", "bf16"}),
    [](const testing::TestParamInfo<FormatCase>& info) {
      std::string name = info.param.name;
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

TEST(StoredFormatsTest, EveryVectorIsTested) {
  const json index = json::parse(ReadTestFile("formats/index.json"));
  EXPECT_EQ(index["hugging_face"].size(), 22u);  // 21 above and the tables below
}

// A checkpoint of one matrix in memory.
struct Made {
  std::vector<std::string> memory;
  std::vector<formats::StoredTensor> tensors;

  void Add(const std::string& name, absl::string_view type, DType dtype,
           std::vector<std::int64_t> shape, std::string bytes) {
    memory.push_back(std::move(bytes));
    formats::StoredTensor tensor;
    tensor.name = name;
    tensor.type = std::string(type);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.file = "made";
    tensors.push_back(std::move(tensor));
  }
  absl::StatusOr<formats::StoredTensor> Join(const json& config,
                                             std::vector<std::string>* warnings) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].bytes = std::as_bytes(std::span(memory[i].data(), memory[i].size()));
    }
    const auto read = ReadConfig(config);
    QUIRE_CHECK(read.ok());
    QUIRE_RETURN_IF_ERROR(JoinQuantized(*read, &tensors, warnings));
    return tensors.back();
  }
};

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string AllCodes(int from, int to) {
  std::string codes;
  for (int code = from; code < to; ++code) codes.push_back(static_cast<char>(code));
  return codes;
}

TEST(StoredFormatsTest, EveryCodeOfTheTables) {
  const std::string file = ReadTestFile("formats/float-tables.safetensors");
  const auto read =
      formats::ReadSafetensors(std::as_bytes(std::span(file.data(), file.size())), "tables");
  ASSERT_TRUE(read.ok());
  std::map<std::string, formats::StoredTensor> tables;
  for (const formats::StoredTensor& tensor : *read) tables.emplace(tensor.name, tensor);
  std::vector<std::string> warnings;

  Made fp8;
  fp8.Add("x.weight", "F8_E4M3", DType::kF8E4M3, {1, 256}, AllCodes(0, 256));
  fp8.Add("x.weight_scale", "F32", DType::kF32, {}, Bytes<float>({1.0f}));
  const auto values = fp8.Join({{"quant_method", "fp8"}}, &warnings);
  ASSERT_TRUE(values.ok()) << values.status();
  std::vector<float> row(256);
  WidenRow(*values, 0, row);
  for (std::size_t i = 0; i < row.size(); ++i) {
    EXPECT_TRUE(SameBits(row[i], FloatAt(tables.at("fp8_e4m3"), i))) << i;
  }

  // All sixteen codes twice, and every exponent with the code of 1. Products for 253 and above are
  // not representable in f32.
  constexpr int kExponents = 253;
  Made e2m1;
  std::string blocks, exponents;
  for (int e = 0; e < kExponents; ++e) {
    for (int i = 0; i < 16; ++i) {
      blocks.push_back(static_cast<char>(e == 127 ? (i % 8 * 2) | (i % 8 * 2 + 1) << 4 : 0x22));
    }
    exponents.push_back(static_cast<char>(e));
  }
  e2m1.Add("x_blocks", "U8", DType::kU8, {kExponents, 1, 16}, blocks);
  e2m1.Add("x_scales", "U8", DType::kU8, {kExponents, 1}, exponents);
  const auto stack = e2m1.Join({{"quant_method", "mxfp4"}}, &warnings);
  ASSERT_TRUE(stack.ok()) << stack.status();
  EXPECT_EQ(stack->name, "x");
  row.resize(32);
  for (int e = 0; e < kExponents; ++e) {
    WidenRow(*stack, e, row);
    for (std::size_t i = 0; i < 16; ++i) {
      const float want = e == 127 ? FloatAt(tables.at("e2m1"), i)
                                  : FloatAt(tables.at("e8m0"), static_cast<std::size_t>(e));
      EXPECT_TRUE(SameBits(row[i], want)) << e << " " << i;
    }
  }
}

// An act-order permutation with groups of different sizes has no integer form.
TEST(StoredFormatsTest, GroupsOfDifferentSizesBecomeFloats) {
  const auto form = [](std::int32_t group_of_first) {
    Made made;
    std::vector<std::int32_t> order(64);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i % 2);
    order[0] = group_of_first;
    made.Add("x.qweight", "I32", DType::kI32, {8, 8}, std::string(256, '\x53'));
    made.Add("x.qzeros", "I32", DType::kI32, {2, 1}, std::string(8, '\x77'));
    made.Add("x.scales", "F16", DType::kF16, {2, 8},
             Bytes<F16>(std::vector<F16>(16, F16::FromFloat(0.5f))));
    made.Add("x.g_idx", "I32", DType::kI32, {64}, Bytes(order));
    std::vector<std::string> warnings;
    const auto matrix = made.Join(
        {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"desc_act", true}}, &warnings);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    return matrix.ok() ? FormName(StoredForm(*matrix)) : "";
  };
  EXPECT_EQ(form(0), "int4_g32_order");
  EXPECT_EQ(form(1), "f32");
}

// Ordinary exponents turn e2m1 blocks into integers with the same values.
TEST(StoredFormatsTest, PowerOfTwoScalesTakeLessMemory) {
  std::vector<std::string> warnings;
  const Vectors vectors = ReadVectors("gpt-oss-mxfp4");
  Made made;
  std::string exponents;
  for (const formats::StoredTensor& tensor : vectors.tensors) {
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()),
                            tensor.bytes.size());
    if (absl::EndsWith(tensor.name, "_blocks")) {
      made.Add(tensor.name, "U8", DType::kU8, tensor.shape, bytes);
    } else {
      exponents = bytes;
      for (char& e : exponents)
        e = static_cast<char>(std::clamp<int>(static_cast<unsigned char>(e), 104, 143));
      made.Add(tensor.name, "U8", DType::kU8, tensor.shape, exponents);
    }
  }
  const auto stack = made.Join({{"quant_method", "mxfp4"}}, &warnings);
  ASSERT_TRUE(stack.ok()) << stack.status();
  EXPECT_EQ(FormName(StoredForm(*stack)), "int8_g32");
  EXPECT_EQ(FormName(PlainForm(*stack)), "bf16");
  EXPECT_EQ(stack->shape, (std::vector<std::int64_t>{2, 32, 128}));
  // A piece of the stack is one expert.
  formats::StoredTensor piece = *stack;
  piece.shape = {32, 128};
  piece.first_row = 32;
  std::vector<float> row(128), same(128);
  std::vector<std::byte> halves(256);
  for (int r = 0; r < 32; ++r) {
    WidenRow(*stack, 32 + r, row);
    WidenRow(piece, r, same);
    EXPECT_EQ(row, same);
    std::vector<std::int8_t> q(128);
    std::vector<float> scales(4);
    ReadQuantizedRow(piece, StoredForm(piece), r, {q, scales, {}});
    ReadPlainRow(piece, DType::kBF16, r, halves.data());
    for (std::size_t i = 0; i < row.size(); ++i) {
      ASSERT_EQ(F16::FromFloat(scales[i / 32]).ToFloat() * q[i], row[i]);
      BF16 half;
      std::memcpy(&half, halves.data() + 2 * i, 2);
      ASSERT_EQ(half.ToFloat(), row[i]);
    }
  }
}

}  // namespace
}  // namespace quire::models
