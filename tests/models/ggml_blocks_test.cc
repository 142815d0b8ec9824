// GGML's block formats, compared with vectors on which gguf-py and ggml's C code agree bit for bit.

#include "formats/tensors/ggml_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "formats/tensors/safetensors.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

struct BlockCase {
  std::string name;
  formats::GgmlType type;
  WeightFormat format;
  std::uint32_t group;
  bool has_min;
};

void PrintTo(const BlockCase& block_case, std::ostream* stream) {
  *stream << block_case.name;
}

class GgmlBlocksTest : public testing::TestWithParam<BlockCase> {
 protected:
  void SetUp() override {
    file_ = ReadTestFile("gguf/blocks/" + GetParam().name + ".safetensors");
    auto tensors =
        formats::ReadSafetensors(std::as_bytes(std::span(file_.data(), file_.size())), "blocks");
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    for (const formats::StoredTensor& tensor : *tensors) {
      if (tensor.name == "blocks") blocks_ = tensor;
      if (tensor.name == "expected") {
        expected_.resize(static_cast<std::size_t>(tensor.num_elements()));
        std::memcpy(expected_.data(), tensor.bytes.data(), tensor.bytes.size());
      }
    }
    ASSERT_GT(blocks_.shape.at(0), 24);
    elements_ = expected_.size() / static_cast<std::size_t>(blocks_.shape[0]);
  }

  std::string file_;
  formats::StoredTensor blocks_;
  std::vector<float> expected_;
  std::size_t elements_ = 0;  // elements per block
};

TEST_P(GgmlBlocksTest, DequantizesToTheSameBits) {
  const formats::GgmlFormat& format = formats::FormatOf(GetParam().type);
  EXPECT_EQ(format.name, GetParam().name);
  EXPECT_EQ(static_cast<std::size_t>(format.elements), elements_);
  EXPECT_EQ(format.bytes, blocks_.shape[1]);
  std::vector<float> got(expected_.size());
  formats::DequantizeRow(GetParam().type, blocks_.bytes, got);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected_[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << "block " << i / elements_ << " element " << i % elements_;
    } else {
      ASSERT_EQ(std::memcmp(&got[i], &expected_[i], sizeof(float)), 0)
          << "block " << i / elements_ << " element " << i % elements_ << ": " << got[i]
          << " instead of " << expected_[i];
    }
  }
}

// The input of the integer kernels represents the same values: scale * q + min in f64, rounded
// once.
TEST_P(GgmlBlocksTest, IntegerFormRepresentsTheSameValues) {
  const auto k = static_cast<std::uint32_t>(expected_.size());
  const QuantizedShape shape = formats::IntegerShapeOf(GetParam().type, 5, k);
  EXPECT_EQ(shape.format, GetParam().format);
  EXPECT_EQ(shape.group, GetParam().group);
  EXPECT_EQ(shape.has_min, GetParam().has_min);
  EXPECT_EQ(shape.n, 5u);
  EXPECT_EQ(shape.k, k);
  std::vector<std::int8_t> q(k);
  std::vector<float> scales(k / shape.group);
  std::vector<float> mins(shape.has_min ? scales.size() : 0);
  formats::DecodeRow(GetParam().type, blocks_.bytes, {q, scales, mins});
  int finite = 0;
  for (std::size_t i = 0; i < k; ++i) {
    const int low = shape.has_min ? 0 : shape.format == WeightFormat::kInt4 ? -8 : -128;
    const int high = shape.format == WeightFormat::kInt4 ? low + 15 : 127;
    ASSERT_GE(q[i], low);
    ASSERT_LE(q[i], high);
    const double scale = scales[i / shape.group];
    const double min = shape.has_min ? mins[i / shape.group] : 0.0;
    if (!std::isfinite(expected_[i])) {
      ASSERT_FALSE(std::isfinite(static_cast<float>(scale * q[i] + min)));
      continue;
    }
    ++finite;
    ASSERT_EQ(static_cast<float>(scale * q[i] + min), expected_[i]) << "element " << i;
  }
  EXPECT_GT(finite, 24 * 32);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, GgmlBlocksTest,
    testing::Values(BlockCase{"Q8_0", formats::GgmlType::kQ8_0, WeightFormat::kInt8, 32, false},
                    BlockCase{"Q4_0", formats::GgmlType::kQ4_0, WeightFormat::kInt4, 32, false},
                    BlockCase{"Q4_1", formats::GgmlType::kQ4_1, WeightFormat::kInt4, 32, true},
                    BlockCase{"Q5_0", formats::GgmlType::kQ5_0, WeightFormat::kInt8, 32, false},
                    BlockCase{"Q5_1", formats::GgmlType::kQ5_1, WeightFormat::kInt8, 32, true},
                    BlockCase{"Q4_K", formats::GgmlType::kQ4_K, WeightFormat::kInt4, 32, true},
                    BlockCase{"Q5_K", formats::GgmlType::kQ5_K, WeightFormat::kInt8, 32, true},
                    BlockCase{"Q6_K", formats::GgmlType::kQ6_K, WeightFormat::kInt8, 16, false},
                    BlockCase{"Q2_K", formats::GgmlType::kQ2_K, WeightFormat::kInt8, 16, true},
                    BlockCase{"Q3_K", formats::GgmlType::kQ3_K, WeightFormat::kInt8, 16, false},
                    BlockCase{"IQ4_NL", formats::GgmlType::kIQ4_NL, WeightFormat::kInt8, 32, false},
                    BlockCase{"IQ4_XS", formats::GgmlType::kIQ4_XS, WeightFormat::kInt8, 32, false},
                    BlockCase{"MXFP4", formats::GgmlType::kMXFP4, WeightFormat::kInt8, 32, false}),
    [](const testing::TestParamInfo<BlockCase>& info) { return info.param.name; });

TEST(GgmlFormatTest, IndexAgreesOnNumbersAndSizes) {
  const nlohmann::json index = nlohmann::json::parse(ReadTestFile("gguf/blocks/index.json"));
  EXPECT_EQ(index["ggml"].size(), 13u);
  for (const auto& entry : index["ggml"]) {
    const formats::GgmlFormat* format =
        formats::FindGgmlFormat(entry["type_number"].get<std::uint32_t>());
    ASSERT_NE(format, nullptr);
    EXPECT_EQ(std::string(format->name) + ".safetensors", entry["file"].get<std::string>());
    EXPECT_EQ(format->elements, entry["elements_per_block"].get<std::int64_t>());
    EXPECT_EQ(format->bytes, entry["bytes_per_block"].get<std::int64_t>());
    EXPECT_TRUE(format->is_supported);
  }
}

TEST(GgmlFormatTest, OtherTypesAreReportedByNameIfKnown) {
  for (const auto& [number, name] :
       {std::pair(9u, "Q8_1"), {15u, "Q8_K"}, {21u, "IQ3_S"}, {34u, "TQ1_0"}, {26u, "I32"}}) {
    const formats::GgmlFormat* format = formats::FindGgmlFormat(number);
    ASSERT_NE(format, nullptr) << number;
    EXPECT_EQ(format->name, name);
    EXPECT_FALSE(format->is_supported);
  }
  for (const std::uint32_t number : {4u, 5u, 31u, 200u, 0xffffffffu}) {
    EXPECT_EQ(formats::FindGgmlFormat(number), nullptr) << number;
  }
  EXPECT_EQ(formats::ReadableGgmlTypes(),
            "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, "
            "BF16, MXFP4");
}

TEST(GgmlFormatTest, PlainTypes) {
  const unsigned char bytes[] = {0x00, 0x3c, 0x01, 0x00, 0x00, 0xfc, 0xff, 0x7b};
  const std::span<const std::byte> row = std::as_bytes(std::span(bytes));
  float half[4];
  formats::DequantizeRow(formats::GgmlType::kF16, row, half);
  EXPECT_EQ(half[0], 1.0f);
  EXPECT_EQ(half[1], 0x1p-24f);
  EXPECT_EQ(half[2], -INFINITY);
  EXPECT_EQ(half[3], 65504.0f);
  float brain[4];
  formats::DequantizeRow(formats::GgmlType::kBF16, row, brain);
  EXPECT_EQ(brain[0], 0x1p-7f);
  EXPECT_EQ(brain[1], 0x1p-133f);
  float single[2];
  formats::DequantizeRow(formats::GgmlType::kF32, row, single);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(single[0]), 0x00013c00u);
  EXPECT_EQ(formats::GgmlRowBytes(formats::GgmlType::kQ6_K, 512), 420);
  EXPECT_EQ(formats::GgmlRowBytes(formats::GgmlType::kF32, 3), 12);
}

}  // namespace
}  // namespace quire::models
