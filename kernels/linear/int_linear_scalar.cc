// The reference implementation of the integer linear kernel, one value at a time.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/dtype.h"
#include "kernels/linear/int_linear.h"

namespace quire::kernels::internal {
namespace {

constexpr std::uint32_t kPanel = 16;

std::uint32_t BlockRows(std::uint32_t rows_left) {
  return std::bit_floor(std::min(rows_left, 8u));
}

// Returns the offset of input k of row `lane`, in the block of `block` rows that starts at
// `first_row`.
std::size_t Place(std::uint32_t first_row, std::uint32_t block, std::uint32_t lane, std::uint32_t k,
                  std::uint32_t k_padded) {
  return std::size_t{first_row} * k_padded + (std::size_t{k} / 4 * block + lane) * 4 + k % 4;
}

struct Factor {
  float scale;
  float inverse;
};

Factor FactorOf(const float* x, std::uint32_t count, bool is_int4) {
  float largest = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    // The comparison is false for NaN.
    if (!(std::fabs(x[i]) < kActivationLimit)) {
      return {std::numeric_limits<float>::quiet_NaN(), 0};
    }
    largest = std::max(largest, std::fabs(x[i]));
  }
  if (largest < kMinActivation) return {1, 0};
  const float scale = largest / 127.0f;
  if (!is_int4) return {scale, 127.0f / largest};
  int exponent = 0;
  const float half = std::frexp(scale, &exponent);  // scale = half * 2^exponent, half in [1/2, 1)
  if (half == 0.5f) --exponent;
  return {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent)};
}

void QuantizeRow(const float* x, const RowQuantization& quantization, std::uint32_t first_row,
                 std::uint32_t block, std::uint32_t lane, const IntRows& rows) {
  const auto [k, group, is_int4] = quantization;
  const std::uint32_t k_padded = (k + 3) / 4 * 4;
  const std::uint32_t wide = std::max(group, 32u);
  const std::size_t row = first_row + lane;
  float* const scales = rows.scales + row * ((k + wide - 1) / wide);
  std::int32_t* const sums = rows.sums + row * (k / group);
  std::fill_n(sums, k / group, 0);
  for (std::uint32_t k0 = 0; k0 < k; k0 += wide) {
    const std::uint32_t count = std::min(wide, k - k0);
    const Factor factor = FactorOf(x + k0, count, is_int4);
    scales[k0 / wide] = factor.scale;
    for (std::uint32_t i = k0; i < k0 + count; ++i) {
      const float scaled = factor.inverse == 0 ? 0 : std::nearbyint(x[i] * factor.inverse);
      const auto q = static_cast<std::int8_t>(scaled);
      rows.q[Place(first_row, block, lane, i, k_padded)] = q;
      sums[i / group] += q;
    }
  }
  for (std::uint32_t i = k; i < k_padded; ++i) {
    rows.q[Place(first_row, block, lane, i, k_padded)] = 0;
  }
}

void Quantize(const float* x, std::int64_t x_stride, const RowQuantization& quantization,
              std::uint32_t num_rows, std::uint32_t row_begin, std::uint32_t row_end,
              const IntRows& rows) {
  for (std::uint32_t row = row_begin; row < row_end;) {
    const std::uint32_t block = BlockRows(num_rows - row);
    for (std::uint32_t lane = 0; lane < block; ++lane) {
      QuantizeRow(x + (row + lane) * x_stride, quantization, row, block, lane, rows);
    }
    row += block;
  }
}

struct Output {
  std::uint32_t first_row, block, lane;
  std::uint32_t n;
};

// Returns I - O * sum for the inputs [k0, k1) (int_linear.h).
std::int32_t Dot(const IntLinearArgs& args, const Output& at, std::uint32_t k0, std::uint32_t k1) {
  const std::uint8_t* const panel = args.panels + at.n / kPanel * args.panel_bytes;
  const std::uint32_t feature = at.n % kPanel;
  const std::int32_t offset = args.has_min ? 0 : args.is_int4 ? 8 : 128;
  const std::uint32_t k_padded = (args.k + 3) / 4 * 4;
  std::int32_t sum = 0;
  for (std::uint32_t k = k0; k < k1; ++k) {
    std::int32_t u = 0;
    if (args.is_int4) {
      const std::uint8_t both = panel[(k / 8 * kPanel + feature) * 4 + k % 4];
      u = k % 8 < 4 ? both & 15 : both >> 4;
    } else {
      u = panel[(k / 4 * kPanel + feature) * 4 + k % 4];
    }
    sum += (u - offset) * args.x.q[Place(at.first_row, at.block, at.lane, k, k_padded)];
  }
  return sum;
}

float Total(const IntLinearArgs& args, const Output& at) {
  const std::size_t row = at.first_row + at.lane;
  const std::uint32_t wide = std::max(args.group, 32u);
  const float* const a = args.x.scales + row * ((args.k + wide - 1) / wide);
  if (args.scale_per_feature) {
    const float scale = static_cast<const float*>(args.scales)[at.n];
    return static_cast<float>(Dot(args, at, 0, args.k)) * (a[0] * scale);
  }
  const std::uint32_t groups = args.k / args.group;
  const std::uint32_t parts = args.has_min ? 2 : 1;
  const F16* const scales =
      static_cast<const F16*>(args.scales) + at.n / kPanel * (groups * parts * kPanel);
  float total = 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    const F16* const scale = scales + g * parts * kPanel + at.n % kPanel;
    const float activation = a[g * args.group / wide];
    const std::int32_t dot = Dot(args, at, g * args.group, (g + 1) * args.group);
    total = std::fma(static_cast<float>(dot), activation * scale->ToFloat(), total);
    if (args.has_min) {
      const std::int32_t sum = args.x.sums[row * groups + g];
      float min = scale[kPanel].ToFloat();
      if (args.has_zero_points) min *= scale->ToFloat();
      total = std::fma(static_cast<float>(sum), activation * min, total);
    }
  }
  return total;
}

void Linear(const IntLinearArgs& args, std::int64_t panel_begin, std::int64_t panel_end) {
  const auto n_begin = static_cast<std::uint32_t>(panel_begin) * kPanel;
  const std::uint32_t n_end = std::min(static_cast<std::uint32_t>(panel_end) * kPanel, args.n);
  for (std::uint32_t row = 0; row < args.num_rows;) {
    const std::uint32_t block = BlockRows(args.num_rows - row);
    for (std::uint32_t lane = 0; lane < block; ++lane) {
      float* const y = args.y + (row + lane) * args.y_stride;
      for (std::uint32_t n = n_begin; n < n_end; ++n) {
        float total = Total(args, {row, block, lane, n});
        if (args.bias != nullptr) total += args.bias[n];
        if (args.residual != nullptr) {
          total += args.residual[(row + lane) * args.residual_stride + n];
        }
        y[n] = total;
      }
    }
    row += block;
  }
}

}  // namespace

const IntLinearKernels kIntLinearScalar = {"scalar", Quantize, Linear};

}  // namespace quire::kernels::internal
