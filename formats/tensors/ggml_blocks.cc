#include "formats/tensors/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/dtype.h"

namespace quire::formats {
namespace {

// All formats of current GGUF files. Formats that are not supported are listed so that the error
// can name them.
constexpr GgmlFormat kFormats[] = {
    {0, "F32", true, 1, 4},          {1, "F16", true, 1, 2},
    {2, "Q4_0", true, 32, 18},       {3, "Q4_1", true, 32, 20},
    {6, "Q5_0", true, 32, 22},       {7, "Q5_1", true, 32, 24},
    {8, "Q8_0", true, 32, 34},       {9, "Q8_1", false, 32, 36},
    {10, "Q2_K", true, 256, 84},     {11, "Q3_K", true, 256, 110},
    {12, "Q4_K", true, 256, 144},    {13, "Q5_K", true, 256, 176},
    {14, "Q6_K", true, 256, 210},    {15, "Q8_K", false, 256, 292},
    {16, "IQ2_XXS", false, 256, 66}, {17, "IQ2_XS", false, 256, 74},
    {18, "IQ3_XXS", false, 256, 98}, {19, "IQ1_S", false, 256, 50},
    {20, "IQ4_NL", true, 32, 18},    {21, "IQ3_S", false, 256, 110},
    {22, "IQ2_S", false, 256, 82},   {23, "IQ4_XS", true, 256, 136},
    {24, "I8", false, 1, 1},         {25, "I16", false, 1, 2},
    {26, "I32", false, 1, 4},        {27, "I64", false, 1, 8},
    {28, "F64", false, 1, 8},        {29, "IQ1_M", false, 256, 56},
    {30, "BF16", true, 1, 2},        {34, "TQ1_0", false, 256, 54},
    {35, "TQ2_0", false, 256, 66},   {39, "MXFP4", true, 32, 17},
};

// Small blocks have one scale, large ones eight or sixteen.
constexpr int kSmallBlock = 32;
constexpr int kLargeBlock = 256;

int Byte(const std::byte* at) {
  return std::to_integer<int>(*at);
}

int SignedByte(const std::byte* at) {
  return std::bit_cast<std::int8_t>(*at);
}

float Half(const std::byte* at) {
  return F16{static_cast<std::uint16_t>(Byte(at) | Byte(at + 1) << 8)}.ToFloat();
}

std::uint32_t Word(const std::byte* at) {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// Output of one block. A value is scale * q + min of its group.
struct BlockOut {
  std::int8_t* q;  // values above 127 would wrap, but no format here has them
  float* scales;
  float* mins;  // null if the format has none
};

using DecodeBlockFn = void (*)(const std::byte* block, const BlockOut& out);

// Reads `count` bytes as 2 * count nibbles, all low nibbles before the high ones, and adds `add`.
void ReadNibbles(const std::byte* from, int count, int add, std::int8_t* q) {
  for (int i = 0; i < count; ++i) {
    q[i] = static_cast<std::int8_t>((Byte(from + i) & 15) + add);
    q[i + count] = static_cast<std::int8_t>((Byte(from + i) >> 4) + add);
  }
}

// Adds 16 to q[i] if bit i of the four bytes is set.
void AddFifthBits(const std::byte* from, std::int8_t* q) {
  const std::uint32_t bits = Word(from);
  for (int i = 0; i < kSmallBlock; ++i) {
    q[i] = static_cast<std::int8_t>(q[i] + static_cast<int>((bits >> i & 1u) * 16));
  }
}

void DecodeQ8_0(const std::byte* block, const BlockOut& out) {
  out.scales[0] = Half(block);
  std::memcpy(out.q, block + 2, kSmallBlock);
}

void DecodeQ4_0(const std::byte* block, const BlockOut& out) {
  out.scales[0] = Half(block);
  ReadNibbles(block + 2, kSmallBlock / 2, -8, out.q);
}

void DecodeQ4_1(const std::byte* block, const BlockOut& out) {
  out.scales[0] = Half(block);
  out.mins[0] = Half(block + 2);
  ReadNibbles(block + 4, kSmallBlock / 2, 0, out.q);
}

void DecodeQ5_0(const std::byte* block, const BlockOut& out) {
  out.scales[0] = Half(block);
  ReadNibbles(block + 6, kSmallBlock / 2, -16, out.q);
  AddFifthBits(block + 2, out.q);
}

void DecodeQ5_1(const std::byte* block, const BlockOut& out) {
  out.scales[0] = Half(block);
  out.mins[0] = Half(block + 2);
  ReadNibbles(block + 8, kSmallBlock / 2, 0, out.q);
  AddFifthBits(block + 4, out.q);
}

// Reads the scales and mins of Q4_K and Q5_K: d and dmin, then 6 bits each in 12 bytes, for eight
// groups of 32.
void DecodeScalesAndMins(const std::byte* block, const BlockOut& out) {
  const float d = Half(block);
  const float dmin = Half(block + 2);
  const std::byte* s = block + 4;
  for (int j = 0; j < 8; ++j) {
    const int scale = j < 4 ? Byte(s + j) & 63 : (Byte(s + j + 4) & 15) | Byte(s + j - 4) >> 6 << 4;
    const int min = j < 4 ? Byte(s + j + 4) & 63 : Byte(s + j + 4) >> 4 | Byte(s + j) >> 6 << 4;
    out.scales[j] = d * static_cast<float>(scale);
    out.mins[j] = -(dmin * static_cast<float>(min));
  }
}

void DecodeQ4_K(const std::byte* block, const BlockOut& out) {
  DecodeScalesAndMins(block, out);
  for (int run = 0; run < 4; ++run) ReadNibbles(block + 16 + 32 * run, 32, 0, out.q + 64 * run);
}

void DecodeQ5_K(const std::byte* block, const BlockOut& out) {
  DecodeScalesAndMins(block, out);
  for (int run = 0; run < 4; ++run) ReadNibbles(block + 48 + 32 * run, 32, 0, out.q + 64 * run);
  for (int group = 0; group < 8; ++group) {
    std::int8_t* q = out.q + 32 * group;
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<std::int8_t>(q[i] + (Byte(block + 16 + i) >> group & 1) * 16);
    }
  }
}

void DecodeQ6_K(const std::byte* block, const BlockOut& out) {
  const float d = Half(block + 208);
  for (int g = 0; g < 16; ++g) {
    out.scales[g] = d * static_cast<float>(SignedByte(block + 192 + g));
  }
  for (int half = 0; half < 2; ++half) {
    std::int8_t* q = out.q + 128 * half;
    ReadNibbles(block + 64 * half, 64, -32, q);
    for (int group = 0; group < 4; ++group) {
      const std::byte* high = block + 128 + 32 * half;
      for (int i = 0; i < 32; ++i) {
        std::int8_t& element = q[32 * group + i];
        element = static_cast<std::int8_t>(element + (Byte(high + i) >> (2 * group) & 3) * 16);
      }
    }
  }
}

// Reads 256 two-bit values. Each of the two 32-byte halves has four runs of 32 values. Run i is in
// bits 2i and 2i + 1 of each byte.
void ReadTwoBits(const std::byte* from, std::int8_t* q) {
  for (int i = 0; i < kLargeBlock; ++i) {
    q[i] =
        static_cast<std::int8_t>(Byte(from + 32 * (i / 128) + i % 32) >> (2 * (i % 128 / 32)) & 3);
  }
}

void DecodeQ2_K(const std::byte* block, const BlockOut& out) {
  const float d = Half(block + 80);
  const float dmin = Half(block + 82);
  for (int g = 0; g < 16; ++g) {
    out.scales[g] = d * static_cast<float>(Byte(block + g) & 15);
    out.mins[g] = -(dmin * static_cast<float>(Byte(block + g) >> 4));
  }
  ReadTwoBits(block + 16, out.q);
}

void DecodeQ3_K(const std::byte* block, const BlockOut& out) {
  const float d = Half(block + 108);
  const std::byte* s = block + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? Byte(s + g % 8) & 15 : Byte(s + g % 8) >> 4;
    const int high = Byte(s + 8 + g % 4) >> (2 * (g / 4)) & 3;
    out.scales[g] = d * static_cast<float>(low + 16 * high - 32);
  }
  ReadTwoBits(block + 32, out.q);
  for (int i = 0; i < kLargeBlock; ++i) {
    const int third_bit = Byte(block + i % 32) >> (i / 32) & 1;
    out.q[i] = static_cast<std::int8_t>(out.q[i] - 4 * (1 - third_bit));
  }
}

// Like ReadNibbles, but each nibble is an index into `table`.
void ReadTableNibbles(const std::byte* from, int count, const std::array<std::int8_t, 16>& table,
                      std::int8_t* q) {
  for (int i = 0; i < count; ++i) {
    q[i] = table[static_cast<std::size_t>(Byte(from + i) & 15)];
    q[i + count] = table[static_cast<std::size_t>(Byte(from + i) >> 4)];
  }
}

constexpr std::array<std::int8_t, 16> kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                    1,    13,   25,  38,  53,  69,  89,  113};
// Twice the e2m1 values. Code 8, minus zero, becomes zero.
constexpr std::array<std::int8_t, 16> kTwiceE2M1 = {0, 1,  2,  3,  4,  6,  8,  12,
                                                    0, -1, -2, -3, -4, -6, -8, -12};

void DecodeIQ4_NL(const std::byte* block, const BlockOut& out) {
  out.scales[0] = Half(block);
  ReadTableNibbles(block + 2, kSmallBlock / 2, kNonLinear, out.q);
}

void DecodeIQ4_XS(const std::byte* block, const BlockOut& out) {
  const float d = Half(block);
  const int high = Byte(block + 2) | Byte(block + 3) << 8;
  for (int g = 0; g < 8; ++g) {
    const int low = Byte(block + 4 + g / 2) >> (4 * (g % 2)) & 15;
    out.scales[g] = d * static_cast<float>(low + 16 * (high >> (2 * g) & 3) - 32);
    ReadTableNibbles(block + 8 + 16 * g, 16, kNonLinear, out.q + 32 * g);
  }
}

void DecodeMXFP4(const std::byte* block, const BlockOut& out) {
  out.scales[0] = std::ldexp(1.0f, Byte(block) - 128);
  ReadTableNibbles(block + 1, kSmallBlock / 2, kTwiceE2M1, out.q);
}

struct BlockFormat {
  GgmlType type;
  WeightFormat format;
  int group;
  bool has_min;
  DecodeBlockFn decode;
};

constexpr BlockFormat kBlockFormats[] = {
    {GgmlType::kQ8_0, WeightFormat::kInt8, 32, false, DecodeQ8_0},
    {GgmlType::kQ4_0, WeightFormat::kInt4, 32, false, DecodeQ4_0},
    {GgmlType::kQ4_1, WeightFormat::kInt4, 32, true, DecodeQ4_1},
    {GgmlType::kQ5_0, WeightFormat::kInt8, 32, false, DecodeQ5_0},
    {GgmlType::kQ5_1, WeightFormat::kInt8, 32, true, DecodeQ5_1},
    {GgmlType::kQ4_K, WeightFormat::kInt4, 32, true, DecodeQ4_K},
    {GgmlType::kQ5_K, WeightFormat::kInt8, 32, true, DecodeQ5_K},
    {GgmlType::kQ6_K, WeightFormat::kInt8, 16, false, DecodeQ6_K},
    {GgmlType::kQ2_K, WeightFormat::kInt8, 16, true, DecodeQ2_K},
    {GgmlType::kQ3_K, WeightFormat::kInt8, 16, false, DecodeQ3_K},
    {GgmlType::kIQ4_NL, WeightFormat::kInt8, 32, false, DecodeIQ4_NL},
    {GgmlType::kIQ4_XS, WeightFormat::kInt8, 32, false, DecodeIQ4_XS},
    {GgmlType::kMXFP4, WeightFormat::kInt8, 32, false, DecodeMXFP4},
};

const BlockFormat& BlockFormatOf(GgmlType type) {
  const auto* found = std::find_if(std::begin(kBlockFormats), std::end(kBlockFormats),
                                   [&](const BlockFormat& format) { return format.type == type; });
  QUIRE_CHECK(found != std::end(kBlockFormats));
  return *found;
}

void DequantizePlain(GgmlType type, std::span<const std::byte> row, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (type == GgmlType::kF32) {
      out[i] = std::bit_cast<float>(Word(row.data() + 4 * i));
      continue;
    }
    const std::byte* at = row.data() + 2 * i;
    const auto bits = static_cast<std::uint16_t>(Byte(at) | Byte(at + 1) << 8);
    out[i] = type == GgmlType::kBF16 ? BF16{bits}.ToFloat() : F16{bits}.ToFloat();
  }
}

}  // namespace

const GgmlFormat* FindGgmlFormat(std::uint32_t number) {
  for (const GgmlFormat& format : kFormats) {
    if (format.number == number) return &format;
  }
  return nullptr;
}

const GgmlFormat& FormatOf(GgmlType type) {
  const GgmlFormat* format = FindGgmlFormat(static_cast<std::uint32_t>(type));
  QUIRE_CHECK(format != nullptr);
  return *format;
}

std::string ReadableGgmlTypes() {
  std::vector<absl::string_view> names;
  for (const GgmlFormat& format : kFormats) {
    if (format.is_supported) names.push_back(format.name);
  }
  return absl::StrJoin(names, ", ");
}

std::int64_t GgmlRowBytes(GgmlType type, std::int64_t k) {
  const GgmlFormat& format = FormatOf(type);
  QUIRE_CHECK(k % format.elements == 0);
  return k / format.elements * format.bytes;
}

void DequantizeRow(GgmlType type, std::span<const std::byte> row, std::span<float> out) {
  QUIRE_CHECK(static_cast<std::int64_t>(row.size()) ==
              GgmlRowBytes(type, static_cast<std::int64_t>(out.size())));
  const GgmlFormat& format = FormatOf(type);
  if (format.elements == 1) return DequantizePlain(type, row, out);
  const BlockFormat& block_format = BlockFormatOf(type);
  const auto elements = static_cast<std::size_t>(format.elements);
  const auto group = static_cast<std::size_t>(block_format.group);
  std::array<std::int8_t, kLargeBlock> q;
  std::array<float, 16> scales;
  std::array<float, 16> mins;
  const BlockOut block_out{q.data(), scales.data(), block_format.has_min ? mins.data() : nullptr};
  const std::byte* block = row.data();
  for (std::size_t begin = 0; begin < out.size(); begin += elements, block += format.bytes) {
    block_format.decode(block, block_out);
    for (std::size_t g = 0; g * group < elements; ++g) {
      float* values = out.data() + begin + g * group;
      const std::int8_t* integers = q.data() + g * group;
      for (std::size_t i = 0; i < group; ++i) {
        values[i] = scales[g] * static_cast<float>(integers[i]);
      }
      if (!block_format.has_min) continue;
      for (std::size_t i = 0; i < group; ++i) values[i] += mins[g];
    }
  }
}

QuantizedShape IntegerShapeOf(GgmlType type, std::uint32_t n, std::uint32_t k) {
  const BlockFormat& format = BlockFormatOf(type);
  return {.format = format.format,
          .n = n,
          .k = k,
          .group = static_cast<std::uint32_t>(format.group),
          .has_min = format.has_min};
}

void DecodeRow(GgmlType type, std::span<const std::byte> row, const QuantizedRow& out) {
  const BlockFormat& block_format = BlockFormatOf(type);
  const GgmlFormat& format = FormatOf(type);
  const auto elements = static_cast<std::size_t>(format.elements);
  const std::size_t groups = elements / static_cast<std::size_t>(block_format.group);
  QUIRE_CHECK(static_cast<std::int64_t>(row.size()) ==
              GgmlRowBytes(type, static_cast<std::int64_t>(out.q.size())));
  QUIRE_CHECK(out.scales.size() == out.q.size() / elements * groups);
  QUIRE_CHECK(out.mins.size() == (block_format.has_min ? out.scales.size() : 0));
  const std::byte* block = row.data();
  for (std::size_t b = 0; b < out.q.size() / elements; ++b, block += format.bytes) {
    block_format.decode(block, {out.q.data() + b * elements, out.scales.data() + b * groups,
                                block_format.has_min ? out.mins.data() + b * groups : nullptr});
  }
}

}  // namespace quire::formats
