#pragma once

// Quantized matrices for the tests of Linear on an emulated GPU.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/linear/weight_memory.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {

// A random quantized matrix and the values that it represents.
struct Quantized {
  QuantizedShape shape;
  std::vector<std::int8_t> q;
  std::vector<float> scales, mins;
  std::vector<std::uint32_t> order;
  std::vector<float> worth;  // values, each one f32 product

  absl::StatusOr<PackedLinear> Pack(const Backend& backend, WeightMemory* memory = nullptr) const {
    const std::size_t groups = shape.num_groups();
    const auto source = [&](std::uint32_t row, const QuantizedRow& out) {
      std::copy_n(q.begin() + std::ptrdiff_t{row} * shape.k, shape.k, out.q.begin());
      std::copy_n(scales.data() + row * groups, groups, out.scales.begin());
      if (shape.has_min) std::copy_n(mins.data() + row * groups, groups, out.mins.begin());
    };
    return PackQuantizedRows(backend, shape, source, order, memory);
  }
};

inline float ValueOfE2M1(std::uint8_t code) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

inline Quantized MakeQuantized(const QuantizedShape& shape, std::uint32_t seed = 7) {
  Quantized made;
  made.shape = shape;
  const std::size_t groups = shape.num_groups();
  const bool four_bits = shape.format == WeightFormat::kInt4;
  std::mt19937 random(seed);
  for (const float x : RandomFloats(shape.n * groups, 5)) {
    float scale = 0.01f + 0.01f * std::abs(x);
    if (shape.format == WeightFormat::kFp4E2M1) {
      scale = std::ldexp(1.0f, static_cast<int>(random() % 9) - 8);
    } else if (shape.format != WeightFormat::kFp8E4M3 && !shape.scale_per_feature()) {
      scale = F16::FromFloat(scale).ToFloat();
    }
    made.scales.push_back(scale);
    if (shape.has_min) {
      auto zero = random() % (four_bits ? 17 : 256);
      if (four_bits && zero == 16) zero = 128;  // the largest zero point that GPUs support
      made.mins.push_back(-static_cast<float>(zero));
    }
  }
  for (std::size_t i = 0; i < std::size_t{shape.n} * shape.k; ++i) {
    const std::size_t group = i / shape.k * groups + i % shape.k / shape.group;
    auto code = static_cast<std::uint8_t>(random());
    float value = 0;
    if (shape.format == WeightFormat::kFp8E4M3) {
      if ((code & 0x7f) == 0x7f) code = 0x80;
      value = F8E4M3{code}.ToFloat();
    } else if (shape.format == WeightFormat::kFp4E2M1) {
      code &= 15;
      value = ValueOfE2M1(code);
    } else if (shape.has_min) {
      if (four_bits) code &= 15;
      value = static_cast<float>(code) + made.mins[group];
    } else {
      if (four_bits) code = static_cast<std::uint8_t>(code % 16 - 8);
      value = static_cast<float>(static_cast<std::int8_t>(code));
    }
    made.q.push_back(static_cast<std::int8_t>(code));
    made.worth.push_back(value * made.scales[group]);
  }
  if (!shape.has_act_order) return made;
  for (std::uint32_t j = 0; j < shape.k; ++j) made.order.push_back(j);
  std::shuffle(made.order.begin(), made.order.end(), random);
  const std::vector<float> packed = made.worth;
  for (std::size_t i = 0; i < packed.size(); ++i) {
    made.worth[i / shape.k * shape.k + made.order[i % shape.k]] = packed[i];
  }
  return made;
}

}  // namespace quire::kernels
