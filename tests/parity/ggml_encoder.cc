#include "tests/parity/ggml_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/dtype.h"

namespace quire::models::parity {
namespace {

constexpr std::size_t kSmall = 32;
constexpr std::size_t kLarge = 256;

using Values = std::span<const float>;

template <typename T>
void Put(std::string* to, T value) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Appends a factor in f16 and returns its stored value.
float PutHalf(std::string* to, float value) {
  const F16 half = F16::FromFloat(value);
  Put(to, half);
  return half.ToFloat();
}

// Returns the nearest integer of [low, high] to value / step; 0 without a step.
int Rounded(float value, float step, int low, int high) {
  if (step == 0) return std::clamp(0, low, high);
  return static_cast<int>(std::clamp(std::lround(value / step), long{low}, long{high}));
}

// Returns the element of the largest magnitude.
float Largest(Values values) {
  return *std::max_element(values.begin(), values.end(),
                           [](float a, float b) { return std::abs(a) < std::abs(b); });
}

void AddQ8(Values values, std::string* to) {
  const float factor = PutHalf(to, std::abs(Largest(values)) / 127);
  for (const float value : values) {
    to->push_back(static_cast<char>(Rounded(value, factor, -127, 127)));
  }
}

void AddQ4(Values values, std::string* to) {
  const float factor = PutHalf(to, Largest(values) / -8);
  for (std::size_t i = 0; i < kSmall / 2; ++i) {
    const int low = Rounded(values[i], factor, -8, 7) + 8;
    const int high = Rounded(values[i + kSmall / 2], factor, -8, 7) + 8;
    to->push_back(static_cast<char>(low | high << 4));
  }
}

// Appends 256 codes as nibbles: of each 64 values the first half fills the low ones.
void AddNibbles(const std::array<int, kLarge>& codes, std::string* to) {
  for (std::size_t run = 0; run < kLarge; run += 64) {
    for (std::size_t i = run; i < run + 32; ++i) {
      to->push_back(static_cast<char>((codes[i] & 15) | (codes[i + 32] & 15) << 4));
    }
  }
}

// Q4_K and Q5_K: values are d * scale * code - dmin * min, with 6-bit scales and mins of 8 groups.
void AddAffine(Values values, int top, std::string* to) {
  std::array<float, 8> steps, lows;
  for (std::size_t g = 0; g < 8; ++g) {
    const Values group = values.subspan(g * 32, 32);
    lows[g] = std::max(0.0f, -*std::min_element(group.begin(), group.end()));
    steps[g] = (*std::max_element(group.begin(), group.end()) + lows[g]) / static_cast<float>(top);
  }
  const float d = PutHalf(to, *std::max_element(steps.begin(), steps.end()) / 63);
  const float dmin = PutHalf(to, *std::max_element(lows.begin(), lows.end()) / 63);
  std::array<int, 8> scales, mins;
  std::array<int, kLarge> codes;
  for (std::size_t g = 0; g < 8; ++g) {
    scales[g] = Rounded(steps[g], d, 0, 63);
    mins[g] = Rounded(lows[g], dmin, 0, 63);
    for (std::size_t i = g * 32; i < g * 32 + 32; ++i) {
      codes[i] = Rounded(values[i] + dmin * static_cast<float>(mins[g]),
                         d * static_cast<float>(scales[g]), 0, top);
    }
  }
  for (std::size_t g = 0; g < 4; ++g) {
    to->push_back(static_cast<char>(scales[g] | scales[g + 4] >> 4 << 6));
  }
  for (std::size_t g = 0; g < 4; ++g) {
    to->push_back(static_cast<char>(mins[g] | mins[g + 4] >> 4 << 6));
  }
  for (std::size_t g = 4; g < 8; ++g) {
    to->push_back(static_cast<char>((scales[g] & 15) | (mins[g] & 15) << 4));
  }
  for (std::size_t i = 0; i < 32 && top > 15; ++i) {
    int fifth_bits = 0;
    for (std::size_t g = 0; g < 8; ++g) fifth_bits |= codes[g * 32 + i] >> 4 << g;
    to->push_back(static_cast<char>(fifth_bits));
  }
  AddNibbles(codes, to);
}

void AddQ6K(Values values, std::string* to) {
  std::array<float, 16> steps;
  for (std::size_t g = 0; g < 16; ++g) {
    steps[g] = std::abs(Largest(values.subspan(g * 16, 16))) / 31;
  }
  std::string end;
  const float d = PutHalf(&end, *std::max_element(steps.begin(), steps.end()) / 127);
  std::string scales;
  std::array<int, kLarge> codes;
  for (std::size_t g = 0; g < 16; ++g) {
    const int scale = Rounded(steps[g], d, 0, 127);
    scales.push_back(static_cast<char>(scale));
    for (std::size_t i = g * 16; i < g * 16 + 16; ++i) {
      codes[i] = Rounded(values[i], d * static_cast<float>(scale), -32, 31) + 32;
    }
  }
  for (std::size_t half = 0; half < kLarge; half += 128) {
    for (std::size_t i = half; i < half + 64; ++i) {
      to->push_back(static_cast<char>((codes[i] & 15) | (codes[i + 64] & 15) << 4));
    }
  }
  for (std::size_t half = 0; half < kLarge; half += 128) {
    for (std::size_t i = half; i < half + 32; ++i) {
      int high = 0;
      for (std::size_t run = 0; run < 4; ++run) high |= codes[i + 32 * run] >> 4 << (2 * run);
      to->push_back(static_cast<char>(high));
    }
  }
  *to += scales + end;
}

void AddBlock(formats::GgmlType type, Values values, std::string* to) {
  using enum formats::GgmlType;
  switch (type) {
    case kF32:
      return Put(to, values[0]);
    case kF16:
      return Put(to, F16::FromFloat(values[0]));
    case kBF16:
      return Put(to, BF16::FromFloat(values[0]));
    case kQ8_0:
      return AddQ8(values, to);
    case kQ4_0:
      return AddQ4(values, to);
    case kQ4_K:
      return AddAffine(values, 15, to);
    case kQ5_K:
      return AddAffine(values, 31, to);
    case kQ6_K:
      return AddQ6K(values, to);
    default:
      QUIRE_CHECK(false);
  }
}

}  // namespace

std::string EncodeGgml(formats::GgmlType type, const std::vector<float>& values) {
  const auto block = static_cast<std::size_t>(formats::FormatOf(type).elements);
  QUIRE_CHECK(values.size() % block == 0);
  std::string bytes;
  for (std::size_t i = 0; i < values.size(); i += block) {
    AddBlock(type, Values(values).subspan(i, block), &bytes);
  }
  return bytes;
}

std::vector<float> DecodeGgml(formats::GgmlType type, const std::string& bytes) {
  const formats::GgmlFormat& format = formats::FormatOf(type);
  const std::size_t blocks = bytes.size() / static_cast<std::size_t>(format.bytes);
  std::vector<float> values(blocks * static_cast<std::size_t>(format.elements));
  formats::DequantizeRow(type, std::as_bytes(std::span(bytes.data(), bytes.size())), values);
  return values;
}

}  // namespace quire::models::parity
