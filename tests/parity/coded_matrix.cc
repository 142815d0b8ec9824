#include "tests/parity/coded_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/strip.h"
#include "base/dtype.h"

namespace quire::models::parity {
namespace {

using nlohmann::json;

std::string Stem(const FloatMatrix& matrix) {
  return std::string(absl::StripSuffix(matrix.name, ".weight"));
}

// Returns words of 32 bits [rows, columns]. `code` returns the code of a word in a slot, the lowest
// bits first.
std::string Words(std::int64_t rows, std::int64_t columns, int bits,
                  const std::function<int(std::int64_t, std::int64_t, int)>& code) {
  std::vector<std::uint32_t> words;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      std::uint32_t word = 0;
      for (int slot = 0; slot < 32 / bits; ++slot) {
        word |= static_cast<std::uint32_t>(code(row, column, slot)) << (bits * slot);
      }
      words.push_back(word);
    }
  }
  return BytesOfValues(words);
}

// A matrix as integers: (code - zero) * scale.
struct Integers {
  std::int64_t n, k, groups;
  std::vector<std::int32_t> group_of = {};  // [k]
  std::vector<int> codes = {};              // [n, k]
  std::vector<int> zeros = {};              // [n, groups]
  std::vector<F16> scales = {};             // [n, groups]
  std::vector<float> values = {};           // [n, k]

  int code(std::int64_t row, std::int64_t column) const {
    return codes[static_cast<std::size_t>(row * k + column)];
  }
  int zero(std::int64_t row, std::int64_t group) const {
    return zeros[static_cast<std::size_t>(row * groups + group)];
  }
  // Returns [groups, n].
  std::string TransposedScales() const {
    std::vector<F16> transposed;
    for (std::int64_t g = 0; g < groups; ++g) {
      for (std::int64_t row = 0; row < n; ++row) {
        transposed.push_back(scales[static_cast<std::size_t>(row * groups + g)]);
      }
    }
    return BytesOfValues(transposed);
  }
};

// With `has_order`, inputs of a group are apart from each other.
Integers ToIntegers(const FloatMatrix& matrix, int bits, std::int64_t group, bool is_symmetric,
                    bool has_order) {
  Integers result{.n = matrix.rows(), .k = matrix.columns(), .groups = matrix.columns() / group};
  for (std::int64_t i = 0; i < result.k; ++i) {
    result.group_of.push_back(static_cast<std::int32_t>(has_order ? i % result.groups : i / group));
  }
  const int top = (1 << bits) - 1, half = 1 << (bits - 1);
  for (std::int64_t row = 0; row < result.n; ++row) {
    const float* const from = matrix.values.data() + row * result.k;
    std::vector<float> low(static_cast<std::size_t>(result.groups)), high = low;
    for (std::int64_t i = 0; i < result.k; ++i) {
      const auto g = static_cast<std::size_t>(result.group_of[static_cast<std::size_t>(i)]);
      low[g] = std::min(low[g], from[i]);
      high[g] = std::max(high[g], from[i]);
    }
    for (std::size_t g = 0; g < low.size(); ++g) {
      const float most = std::max(-low[g], high[g]);
      const float step = is_symmetric ? most / (static_cast<float>(half) - 0.5f)
                                      : (high[g] - low[g]) / static_cast<float>(top);
      result.scales.push_back(F16::FromFloat(step));
      const long zero =
          is_symmetric ? half : std::clamp(std::lround(-low[g] / step), 1L, long{top});
      result.zeros.push_back(static_cast<int>(zero));
    }
    for (std::int64_t i = 0; i < result.k; ++i) {
      const std::int64_t g = result.group_of[static_cast<std::size_t>(i)];
      const float scale =
          result.scales[static_cast<std::size_t>(row * result.groups + g)].ToFloat();
      const int zero = result.zero(row, g);
      const long code = std::clamp(std::lround(from[i] / scale) + zero, 0L, long{top});
      result.codes.push_back(static_cast<int>(code));
      result.values.push_back(static_cast<float>(code - zero) * scale);
    }
  }
  return result;
}

// Version 1 of the format stores zero points minus 1.
CodedMatrix EncodeGptq(const FloatMatrix& matrix, int bits, std::int64_t group, int version,
                       bool is_symmetric, bool has_order) {
  const Integers ints = ToIntegers(matrix, bits, group, is_symmetric, has_order);
  const std::int64_t per_word = 32 / bits;
  const auto code = [&](std::int64_t row, std::int64_t column, int slot) {
    return ints.code(column, row * per_word + slot);
  };
  const auto zero = [&](std::int64_t row, std::int64_t column, int slot) {
    return ints.zero(column * per_word + slot, row) - (version == 1 ? 1 : 0);
  };
  const std::int64_t words = ints.k / per_word, zero_words = ints.n / per_word;
  const std::string stem = Stem(matrix);
  return {{{stem + ".qweight", "I32", Words(words, ints.n, bits, code), {words, ints.n}},
           {stem + ".qzeros",
            "I32",
            Words(ints.groups, zero_words, bits, zero),
            {ints.groups, zero_words}},
           {stem + ".scales", "F16", ints.TransposedScales(), {ints.groups, ints.n}},
           {stem + ".g_idx", "I32", BytesOfValues(ints.group_of), {ints.k}}},
          ints.values};
}

CodedMatrix EncodeAwq(const FloatMatrix& matrix) {
  constexpr std::int64_t kGroup = 64;
  constexpr std::int64_t kOutputs[] = {0, 2, 4, 6, 1, 3, 5, 7};  // of the slots of a word
  const Integers ints = ToIntegers(matrix, 4, kGroup, /*is_symmetric=*/false, /*has_order=*/false);
  const auto code = [&](std::int64_t row, std::int64_t column, int slot) {
    return ints.code(column * 8 + kOutputs[slot], row);
  };
  const auto zero = [&](std::int64_t row, std::int64_t column, int slot) {
    return ints.zero(column * 8 + kOutputs[slot], row);
  };
  const std::int64_t words = ints.n / 8;
  const std::string stem = Stem(matrix);
  return {{{stem + ".qweight", "I32", Words(ints.k, words, 4, code), {ints.k, words}},
           {stem + ".qzeros", "I32", Words(ints.groups, words, 4, zero), {ints.groups, words}},
           {stem + ".scales", "F16", ints.TransposedScales(), {ints.groups, ints.n}}},
          ints.values};
}

// Compressed-tensors with several integers in a word.
CodedMatrix EncodePacked(const FloatMatrix& matrix) {
  constexpr std::int64_t kGroup = 32;
  const Integers ints = ToIntegers(matrix, 4, kGroup, /*is_symmetric=*/false, /*has_order=*/true);
  const auto code = [&](std::int64_t row, std::int64_t column, int slot) {
    return ints.code(row, column * 8 + slot);
  };
  const auto zero = [&](std::int64_t row, std::int64_t column, int slot) {
    return ints.zero(row * 8 + slot, column);
  };
  const std::vector<std::int64_t> shape = {ints.n, ints.k};
  const std::string weight = Stem(matrix) + ".weight";
  return {{{weight + "_packed", "I32", Words(ints.n, ints.k / 8, 4, code), {ints.n, ints.k / 8}},
           {weight + "_scale", "F16", BytesOfValues(ints.scales), {ints.n, ints.groups}},
           {weight + "_zero_point",
            "I32",
            Words(ints.n / 8, ints.groups, 4, zero),
            {ints.n / 8, ints.groups}},
           {weight + "_g_idx", "I32", BytesOfValues(ints.group_of), {ints.k}},
           {weight + "_shape", "I64", BytesOfValues(shape), {2}}},
          ints.values};
}

// Compressed-tensors with one byte for each integer and a scale for each output feature.
CodedMatrix EncodeBytes(const FloatMatrix& matrix) {
  const Integers ints = ToIntegers(matrix, 8, matrix.columns(), /*is_symmetric=*/true,
                                   /*has_order=*/false);
  std::vector<std::int8_t> codes;
  for (const int code : ints.codes) codes.push_back(static_cast<std::int8_t>(code - 128));
  return {{{matrix.name, "I8", BytesOfValues(codes), matrix.shape},
           {matrix.name + "_scale", "F16", BytesOfValues(ints.scales), {ints.n, 1}}},
          ints.values};
}

// e2m1 values with a power of two for each 32 inputs.
CodedMatrix EncodeMxfp4(const FloatMatrix& matrix) {
  constexpr std::int64_t kGroup = 32;
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<std::uint8_t> blocks, exponents;
  std::vector<float> values;
  for (std::size_t begin = 0; begin < matrix.values.size(); begin += kGroup) {
    float most = 0;
    for (std::size_t i = begin; i < begin + kGroup; ++i) {
      most = std::max(most, std::abs(matrix.values[i]));
    }
    const int exponent = std::ilogb(most) - 2;  // the largest magnitude is below 8
    exponents.push_back(static_cast<std::uint8_t>(exponent + 127));
    for (std::size_t i = begin; i < begin + kGroup; ++i) {
      const float scaled = std::ldexp(matrix.values[i], -exponent);
      const auto* const nearest =
          std::min_element(std::begin(kMagnitudes), std::end(kMagnitudes), [&](float a, float b) {
            return std::abs(a - std::abs(scaled)) < std::abs(b - std::abs(scaled));
          });
      const auto code = static_cast<std::uint8_t>((nearest - kMagnitudes) | (scaled < 0 ? 8 : 0));
      if (i % 2 == 0) {
        blocks.push_back(code);
      } else {
        blocks.back() = static_cast<std::uint8_t>(blocks.back() | code << 4);
      }
      values.push_back(std::ldexp(scaled < 0 ? -*nearest : *nearest, exponent));
    }
  }
  std::vector<std::int64_t> shape = matrix.shape;
  shape.back() /= kGroup;
  FileTensor scales{matrix.name + "_scales", "U8", BytesOfValues(exponents), shape};
  shape.push_back(kGroup / 2);
  return {{{matrix.name + "_blocks", "U8", BytesOfValues(blocks), shape}, std::move(scales)},
          values};
}

json CompressedConfig(const char* format, int bits, const char* type, const char* strategy,
                      const json& more) {
  json weights = {{"num_bits", bits}, {"type", type}, {"symmetric", true}, {"strategy", strategy}};
  weights.update(more);
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

}  // namespace

CodedMatrix EncodeFp8(const FloatMatrix& matrix, std::int64_t block_rows,
                      std::int64_t block_columns, const std::string& scale) {
  const std::int64_t n = matrix.rows(), k = matrix.columns();
  const std::int64_t columns = (k + block_columns - 1) / block_columns;
  const std::int64_t rows = (n + block_rows - 1) / block_rows;
  const auto block = [&](std::size_t i) {
    const auto at = static_cast<std::int64_t>(i);
    return static_cast<std::size_t>(at / k / block_rows * columns + at % k / block_columns);
  };
  CodedMatrix result;
  std::vector<float> scales(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    scales[block(i)] = std::max(scales[block(i)], std::abs(matrix.values[i]) / 448);
  }
  std::vector<F8E4M3> codes;
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    codes.push_back(F8E4M3::FromFloat(matrix.values[i] / scales[block(i)]));
    result.values.push_back(codes.back().ToFloat() * scales[block(i)]);
  }
  result.tensors = {{matrix.name, "F8_E4M3", BytesOfValues(codes), matrix.shape},
                    {matrix.name + scale, "F32", BytesOfValues(scales), {rows, columns}}};
  return result;
}

const std::vector<CodedFormat>& CodedFormats() {
  static const std::vector<CodedFormat> kFormats = {
      {"fp8_block128",
       {{"quant_method", "fp8"},
        {"activation_scheme", "dynamic"},
        {"weight_block_size", {128, 128}}},
       [](const FloatMatrix& m) { return EncodeFp8(m, 128, 128, "_scale_inv"); },
       WeightFormat::kFp8E4M3},
      {"fp8_tensor",
       {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}},
       [](const FloatMatrix& m) { return EncodeFp8(m, m.rows(), m.columns(), "_scale"); },
       WeightFormat::kFp8E4M3},
      {"ct_fp8_channel", CompressedConfig("float-quantized", 8, "float", "channel", json::object()),
       [](const FloatMatrix& m) { return EncodeFp8(m, 1, m.columns(), "_scale"); },
       WeightFormat::kFp8E4M3},
      {"gptq_int4_order",
       {{"quant_method", "gptq"},
        {"bits", 4},
        {"group_size", 32},
        {"desc_act", true},
        {"sym", false},
        {"checkpoint_format", "gptq"}},
       [](const FloatMatrix& m) { return EncodeGptq(m, 4, 32, 1, false, true); },
       WeightFormat::kInt4},
      {"gptq_int8_sym",
       {{"quant_method", "gptq"},
        {"bits", 8},
        {"group_size", 128},
        {"desc_act", false},
        {"sym", true},
        {"checkpoint_format", "gptq_v2"}},
       [](const FloatMatrix& m) { return EncodeGptq(m, 8, 128, 2, true, false); },
       WeightFormat::kInt8},
      {"awq_int4",
       {{"quant_method", "awq"},
        {"version", "gemm"},
        {"bits", 4},
        {"group_size", 64},
        {"zero_point", true}},
       EncodeAwq,
       WeightFormat::kInt4},
      {"ct_int4_order",
       CompressedConfig("pack-quantized", 4, "int", "group",
                        {{"symmetric", false}, {"group_size", 32}, {"actorder", "group"}}),
       EncodePacked, WeightFormat::kInt4},
      {"ct_int8_channel", CompressedConfig("int-quantized", 8, "int", "channel", json::object()),
       EncodeBytes, WeightFormat::kInt8},
      {"mxfp4", {{"quant_method", "mxfp4"}}, EncodeMxfp4, WeightFormat::kInt8, true}};
  return kFormats;
}

}  // namespace quire::models::parity
