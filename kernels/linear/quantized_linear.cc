// Packs integer weights and schedules their products. With int8 activations, a first pass quantizes
// the rows of x and a second pass computes the product.

#include "kernels/linear/quantized_linear.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/status.h"
#include "kernels/linear/bf16_linear.h"
#include "kernels/linear/int_linear.h"
#include "kernels/linear/linear_reduction.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kPanel = PackedLinear::kPanel;
// Number of panels of the kernels' widest tile. Smaller tiles are slower per panel.
constexpr std::int64_t kTilePanels = 3;

std::int64_t Padded(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

std::int64_t ScaleBytes(const QuantizedShape& shape) {
  if (shape.scale_per_feature()) return std::int64_t{kPanel} * 4;
  return std::int64_t{shape.k} / shape.group * (shape.has_min ? 2 : 1) * kPanel * 2;
}

float RoundToF16(float x) {
  return F16::FromFloat(x).ToFloat();
}

}  // namespace

absl::Status CheckCudaQuantizedShape(const QuantizedShape& shape) {
  const absl::string_view name = WeightFormatName(shape.format);
  if (shape.n == 0 || shape.n > INT32_MAX || shape.k == 0 || shape.k > INT32_MAX ||
      shape.k % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " weights are [", shape.n, ", ", shape.k,
                                                   "], on GPUs both must be 1 to ", INT32_MAX,
                                                   " and the second a multiple of 8"));
  }
  const bool is_int8 = shape.format == WeightFormat::kInt8;
  const bool is_int4 = shape.format == WeightFormat::kInt4;
  const bool is_integer = is_int8 || is_int4;
  if (shape.has_min && !(shape.has_zero_points && is_integer)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " weights have minimums, GPUs support only zero points of integers"));
  }
  if (shape.has_act_order && (!is_integer || shape.k > cuda::kLinearMaxPermutedInputs)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " weights have ", shape.k, " inputs with an act-order permutation, GPUs ",
        "support that for integers with up to ", cuda::kLinearMaxPermutedInputs));
  }
  if (shape.quantizes_activations &&
      (shape.format != WeightFormat::kFp8E4M3 || shape.k > cuda::kLinearMaxPermutedInputs)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " weights quantize activations of ", shape.k,
        " inputs, GPUs support that for fp8_e4m3 with up to ", cuda::kLinearMaxPermutedInputs));
  }
  if (shape.allows_row_major && !shape.quantizes_activations) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " weights [", shape.n, ", ", shape.k,
                     "] allow row-major storage, which needs activation quantization"));
  }
  if (shape.scale_per_feature()) return absl::OkStatus();
  const std::uint32_t group = shape.group;
  bool is_supported = (group == 32 || group == 64 || group == 128) && shape.k % group == 0;
  absl::string_view groups = "32, 64 or 128 that divide the number of inputs";
  if (shape.format == WeightFormat::kFp8E4M3) {
    is_supported = group != 0 && group % cuda::kLinearTileK == 0 && group < shape.k;
    groups = "a multiple of 64, or of all inputs";
  } else if (shape.format == WeightFormat::kFp4E2M1) {
    is_supported = group == 32 && shape.k % 32 == 0;
    groups = "32 that divide the number of inputs";
  }
  if (is_supported) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " weights have ", shape.k,
                                                 " inputs in groups of ", group,
                                                 ", GPUs support groups of ", groups));
}

bool SupportsFp8Product(const QuantizedShape& shape) {
  return shape.allows_row_major && shape.quantizes_activations &&
         (shape.scale_per_feature() || shape.group % cuda::kFp8TileK == 0);
}

CudaQuantizedParts CudaQuantizedPartsOf(const QuantizedShape& shape) {
  const std::int64_t padded_n = std::int64_t{cuda::LinearTilesN(shape.n)} * cuda::kLinearTileN;
  const std::int64_t padded_k = std::int64_t{cuda::LinearTilesK(shape.k)} * cuda::kLinearTileK;
  const std::int64_t scale =
      shape.scale_per_feature() || shape.format == WeightFormat::kFp8E4M3 ? 4 : 2;
  return {.codes = padded_n * padded_k / (cuda::HasFourBits(shape.format) ? 2 : 1),
          .scales = shape.num_groups() * padded_n * (scale + (shape.has_min ? 1 : 0)),
          .act_order = shape.has_act_order ? std::int64_t{shape.k} * 4 : 0};
}

std::int64_t CudaQuantizedPaddedBytes(const QuantizedShape& shape) {
  const CudaQuantizedParts parts = CudaQuantizedPartsOf(shape);
  return WeightMemory::PaddedBytes(parts.codes) + WeightMemory::PaddedBytes(parts.scales) +
         WeightMemory::PaddedBytes(parts.act_order);
}

std::int64_t QuantizedBytes(const QuantizedShape& shape) {
  const std::int64_t panels = (std::int64_t{shape.n} + kPanel - 1) / kPanel;
  const std::int64_t row = shape.format == WeightFormat::kInt4
                               ? std::int64_t{shape.k} / 2
                               : (std::int64_t{shape.k} + 3) / 4 * 4;
  const std::int64_t order = shape.has_act_order ? std::int64_t{shape.k} * 4 : 0;
  return panels * (row * kPanel + ScaleBytes(shape)) + order;
}

namespace {

// Temporary memory for one row.
struct Scratch {
  std::vector<std::int8_t> q;
  std::vector<float> scales, mins;
};

void PutValues(const QuantizedShape& shape, const std::int8_t* q, std::uint32_t lane,
               std::uint8_t* panel) {
  if (shape.format == WeightFormat::kInt4) {
    const int offset = shape.has_min ? 0 : 8;
    for (std::uint32_t k = 0; k < shape.k; k += 8) {
      std::uint8_t* const out = panel + std::size_t{k} / 8 * kPanel * 4 + lane * 4;
      for (std::uint32_t i = 0; i < 4; ++i) {
        out[i] = static_cast<std::uint8_t>(((q[k + i] + offset) & 15) |
                                           ((q[k + 4 + i] + offset) & 15) << 4);
      }
    }
    return;
  }
  // Stored bytes are q + 128, or q if there are mins.
  const std::uint32_t flip = shape.has_min ? 0 : 0x80808080u;
  for (std::uint32_t k = 0; k < shape.k; k += 4) {
    std::uint32_t unit = 0;
    std::memcpy(&unit, q + k, std::min(4u, shape.k - k));
    unit ^= flip;
    std::memcpy(panel + (std::size_t{k} / 4 * kPanel + lane) * 4, &unit, 4);
  }
}

void PutScales(const QuantizedShape& shape, const Scratch& scratch, std::uint32_t lane,
               std::byte* scales) {
  if (shape.scale_per_feature()) {
    reinterpret_cast<float*>(scales)[lane] = scratch.scales[0];
    return;
  }
  auto* const out = reinterpret_cast<F16*>(scales);
  const std::size_t step = shape.has_min ? 2 : 1;
  for (std::size_t g = 0; g < scratch.scales.size(); ++g) {
    out[g * step * kPanel + lane] = F16::FromFloat(scratch.scales[g]);
    if (shape.has_min) out[(g * 2 + 1) * kPanel + lane] = F16::FromFloat(scratch.mins[g]);
  }
}

// Replaces scales of 0, because the kernels do not support them for 4-bit weights
// (internal::IntLinearArgs). A group with scale 0 gets the smallest scale and integers that are 0.
// Returns false for a scale that is not finite in f16.
bool MakeScalesNormal(const QuantizedShape& shape, Scratch& scratch) {
  constexpr float kMinF16 = 0x1p-24f;
  for (std::size_t g = 0; g < scratch.scales.size(); ++g) {
    const float scale = RoundToF16(scratch.scales[g]);
    if (!std::isfinite(scale)) return false;
    if (scale != 0) continue;
    scratch.scales[g] = kMinF16;
    std::fill_n(scratch.q.begin() + static_cast<std::ptrdiff_t>(g * shape.group), shape.group,
                std::int8_t{0});
    if (shape.has_zero_points) scratch.mins[g] = 0;
  }
  return true;
}

// Packs a panel row by row. Returns false if the panel has a scale that the kernels do not support.
bool PackPanel(const QuantizedShape& shape, std::int64_t panel,
               absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
               Scratch& scratch, const PackedLinear& packed) {
  auto* const values = reinterpret_cast<std::uint8_t*>(packed.element_memory().data()) +
                       panel * packed.panel_bytes();
  std::byte* const scales = packed.scale_memory().data() + panel * ScaleBytes(shape);
  for (std::uint32_t lane = 0; lane < kPanel; ++lane) {
    const std::int64_t row = panel * kPanel + lane;
    if (row < shape.n) {
      source(static_cast<std::uint32_t>(row), {scratch.q, scratch.scales, scratch.mins});
    } else {
      std::fill(scratch.q.begin(), scratch.q.end(), std::int8_t{0});
      std::fill(scratch.scales.begin(), scratch.scales.end(), 0.0f);
      std::fill(scratch.mins.begin(), scratch.mins.end(), 0.0f);
    }
    if (shape.format == WeightFormat::kInt4 && !MakeScalesNormal(shape, scratch)) return false;
    PutValues(shape, scratch.q.data(), lane, values);
    PutScales(shape, scratch, lane, scales);
  }
  return true;
}

}  // namespace

WeightEncoding IntegerEncodingOf(const QuantizedShape& shape, DeviceBuffer act_order) {
  if (shape.has_min && !shape.has_zero_points) {
    return GgmlWeights{.format = shape.format, .group = shape.group};
  }
  if (shape.format == WeightFormat::kInt8) {
    return Int8Weights{.group = shape.group,
                       .has_zero_points = shape.has_zero_points,
                       .act_order = std::move(act_order)};
  }
  return Int4Weights{.group = shape.group,
                     .has_zero_points = shape.has_zero_points,
                     .act_order = std::move(act_order)};
}

absl::StatusOr<PackedLinear> AllocateQuantizedLinear(const QuantizedShape& shape,
                                                     std::span<const std::uint32_t> act_order) {
  QUIRE_RETURN_IF_ERROR(CheckQuantizedShape(shape));
  QUIRE_CHECK(act_order.size() == (shape.has_act_order ? shape.k : 0));
  const std::int64_t panels = (std::int64_t{shape.n} + kPanel - 1) / kPanel;
  QUIRE_ASSIGN_OR_RETURN(
      DeviceBuffer data,
      DeviceBuffer::Allocate(
          MemoryKind::kHost,
          panels * PackedLinear::PanelBytes(shape.format, DType::kInvalid, shape.k)));
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer scales,
                         DeviceBuffer::Allocate(MemoryKind::kHost, panels * ScaleBytes(shape)));
  DeviceBuffer order;
  if (shape.has_act_order) {
    const auto bytes = static_cast<std::int64_t>(act_order.size_bytes());
    QUIRE_ASSIGN_OR_RETURN(order, DeviceBuffer::Allocate(MemoryKind::kHost, bytes));
    std::memcpy(order.data(), act_order.data(), act_order.size_bytes());
  }
  return PackedLinear(shape.n, shape.k, IntegerEncodingOf(shape, std::move(order)), std::move(data),
                      std::move(scales));
}

namespace {

absl::StatusOr<PackedLinear> PackOnCpu(
    const Backend& backend, const QuantizedShape& shape,
    absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
    std::span<const std::uint32_t> act_order) {
  QUIRE_CHECK(backend.cuda() == nullptr);
  QUIRE_ASSIGN_OR_RETURN(PackedLinear packed, AllocateQuantizedLinear(shape, act_order));
  std::atomic<bool> is_finite = true;
  backend.ParallelFor(packed.num_panels(), static_cast<double>(shape.k) * kPanel,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        const std::size_t groups = shape.k / shape.group;
                        Scratch scratch{std::vector<std::int8_t>(shape.k),
                                        std::vector<float>(groups),
                                        std::vector<float>(shape.has_min ? groups : 0)};
                        for (std::int64_t panel = begin; panel < end; ++panel) {
                          if (!PackPanel(shape, panel, source, scratch, packed)) {
                            is_finite.store(false, std::memory_order_relaxed);
                          }
                        }
                      });
  if (is_finite) return packed;
  return absl::InvalidArgumentError(absl::StrCat("int4 weights [", shape.n, ", ", shape.k,
                                                 "] have a scale that f16 cannot represent"));
}

}  // namespace

absl::StatusOr<PackedLinear> PackQuantizedRows(
    const Backend& backend, const QuantizedShape& shape,
    absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
    std::span<const std::uint32_t> act_order, WeightMemory* memory) {
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) {
      QUIRE_RETURN_IF_ERROR(CheckCudaQuantizedShape(shape));
      QUIRE_CHECK(act_order.size() == (shape.has_act_order ? shape.k : 0));
      return internal::PackQuantizedCuda(backend, shape, source, act_order, memory);
    }
  }
  return PackOnCpu(backend, shape, source, act_order);
}

namespace {

// A vector of 4 floats, which both architectures support without extensions.
using Lanes = float __attribute__((vector_size(16)));
constexpr std::size_t kLanes = 4;

Lanes Load(const float* x) {
  Lanes lanes;
  std::memcpy(&lanes, x, sizeof(lanes));
  return lanes;
}
float Sum(Lanes lanes) {
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// Rounds to integers in [low, high], ties to even. Adding kRound leaves no bits below 1.
Lanes NearestIntegers(Lanes scaled, float low, float high) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const Lanes above = scaled < low ? Lanes{} + low : scaled;
  return (above < high ? above : Lanes{} + high) + kRound - kRound;
}

void PutNearest(std::span<const float> x, float inverse, float low, float high, std::int8_t* q) {
  using Bytes = std::int8_t __attribute__((vector_size(4)));
  std::size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    const Bytes bytes =
        __builtin_convertvector(NearestIntegers(Load(x.data() + i) * inverse, low, high), Bytes);
    std::memcpy(q + i, &bytes, sizeof(bytes));
  }
  for (; i < x.size(); ++i) {
    q[i] = static_cast<std::int8_t>(NearestIntegers(Lanes{} + x[i] * inverse, low, high)[0]);
  }
}

// Returns the value with the largest magnitude, or NaN if any value is not finite.
float Extreme(std::span<const float> x) {
  std::int32_t largest = 0;
  for (const float value : x) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(value) & INT32_MAX);
  }
  if (largest >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = std::bit_cast<float>(largest);
  return std::find(x.begin(), x.end(), magnitude) == x.end() ? -magnitude : magnitude;
}

float Inverse(float scale) {
  return scale == 0 ? 0 : 1.0f / scale;
}

// Quantizes x with the scale `trial` and returns the scale with the least squared error for the
// resulting integers. REQUIRES: the size of x is a multiple of kLanes.
float BestScaleFor(std::span<const float> x, float trial) {
  const float inverse = Inverse(trial);
  Lanes xq = {};
  Lanes qq = {};
  for (std::size_t i = 0; i < x.size(); i += kLanes) {
    const Lanes values = Load(x.data() + i);
    const Lanes q = NearestIntegers(values * inverse, -8, 7);
    xq += values * q;
    qq += q * q;
  }
  const float squares = Sum(qq);
  return squares == 0 ? 0 : RoundToF16(Sum(xq) / squares);
}

float ErrorOf(std::span<const float> x, float scale) {
  const float inverse = Inverse(scale);
  Lanes error = {};
  for (std::size_t i = 0; i < x.size(); i += kLanes) {
    const Lanes values = Load(x.data() + i);
    const Lanes difference = values - scale * NearestIntegers(values * inverse, -8, 7);
    error += difference * difference;
  }
  return Sum(error);
}

// Candidates for the quotient of the extreme value and the scale. They are near -8, the integer
// without a positive counterpart. Quotients below -8 are clipped. For normally distributed weights,
// the error is 0.5 % above the error with the best eight candidates, in half the time.
constexpr std::array<float, 4> kExtremes = {-7.2f, -7.8f, -8.5f, -9.3f};

// Returns magnitude / 127 rounded to f16. It is rounded up if the nearest f16 would clip the
// extreme value by more than half a step, which is possible only for subnormal scales.
float GroupScaleOfInt8(float magnitude) {
  F16 scale = F16::FromFloat(magnitude / 127.0f);
  if (magnitude > 127.5f * scale.ToFloat()) ++scale.bits;
  return scale.ToFloat();
}

// Corrects the scale so that sum (scale q) x = sum x^2. The scale with the least squared error
// shrinks the group, which biases outputs towards zero and increases perplexity. Subnormal f16
// scales are not changed, because their steps are larger than the correction.
float KeepProjection(std::span<const float> x, float scale) {
  constexpr float kMinNormalF16 = 0x1p-14f;
  if (!(std::fabs(scale) >= kMinNormalF16 && std::isfinite(scale))) return scale;
  const float inverse = 1.0f / BestScaleFor(x, scale);
  Lanes xq = {};
  Lanes xx = {};
  for (std::size_t i = 0; i < x.size(); i += kLanes) {
    const Lanes values = Load(x.data() + i);
    xq += values * NearestIntegers(values * inverse, -8, 7);
    xx += values * values;
  }
  return RoundToF16(Sum(xx) / Sum(xq));
}

float ScaleOfInt4(std::span<const float> x, float extreme) {
  constexpr float kMinF16 = 0x1p-24f;
  if (extreme == 0) return 0;
  float least = std::numeric_limits<float>::infinity();
  float best = least;  // may be out of the range of f16, which the caller rejects
  for (const float at : kExtremes) {
    float scale = BestScaleFor(x, extreme / at);
    if (scale == 0) scale = std::copysign(kMinF16, extreme / at);
    const float error = ErrorOf(x, scale);
    if (error < least) {
      least = error;
      best = scale;
    }
  }
  return KeepProjection(x, best);
}

}  // namespace

void QuantizeRow(WeightFormat format, std::uint32_t group, std::span<const float> row,
                 const QuantizedRow& out) {
  const bool is_int4 = format == WeightFormat::kInt4;
  const bool per_feature = !is_int4 && group == row.size();
  for (std::size_t g = 0; g < row.size() / group; ++g) {
    const std::span<const float> x = row.subspan(g * group, group);
    std::int8_t* const q = out.q.data() + g * group;
    const float extreme = Extreme(x);
    if (std::isnan(extreme)) {
      out.scales[g] = extreme;
      std::fill_n(q, group, std::int8_t{0});
      continue;
    }
    const float magnitude = std::fabs(extreme);
    const float scale = is_int4       ? ScaleOfInt4(x, extreme)
                        : per_feature ? magnitude / 127.0f
                                      : GroupScaleOfInt8(magnitude);
    out.scales[g] = scale;
    if (is_int4) {
      PutNearest(x, Inverse(scale), -8, 7, q);
    } else {
      PutNearest(x, Inverse(scale), -127, 127, q);
    }
  }
}

namespace {

struct RowsLayout {
  std::int64_t q, scales, sums, bytes;  // offset of the end of each array
};

// Returns the layout of the scratch memory of `num_rows` quantized rows: q, scales, sums, then the
// permuted x.
RowsLayout LayoutOf(std::int64_t num_rows, std::int64_t k, std::int64_t group, bool has_act_order) {
  const std::int64_t activation_group = std::max<std::int64_t>(group, 32);
  const std::int64_t q = Padded(num_rows * ((k + 3) / 4 * 4));
  const std::int64_t scales =
      q + Padded(num_rows * ((k + activation_group - 1) / activation_group) * 4);
  const std::int64_t sums = scales + Padded(num_rows * (k / group) * 4);
  return {q, scales, sums, sums + (has_act_order ? num_rows * k * 4 : 0)};
}

// Applies the act-order permutation to rows [row_begin, row_end): y[m][j] = x[m][order[j]].
void PermuteRows(const LinearParams& params, std::uint32_t row_begin, std::uint32_t row_end,
                 float* y) {
  const std::size_t k = params.weight->k();
  const std::uint32_t* const order = params.weight->act_order();
  for (std::size_t m = row_begin; m < row_end; ++m) {
    const float* const x = params.x.f32() + static_cast<std::int64_t>(m) * params.x_stride;
    for (std::size_t j = 0; j < k; ++j) y[m * k + j] = x[order[j]];
  }
}

internal::IntRows RowsAt(std::byte* memory, const RowsLayout& layout) {
  return {reinterpret_cast<std::int8_t*>(memory), reinterpret_cast<float*>(memory + layout.q),
          reinterpret_cast<std::int32_t*>(memory + layout.scales)};
}

internal::IntLinearArgs ArgsOf(const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  return {.panels = static_cast<const std::uint8_t*>(weight.data()),
          .panel_bytes = weight.panel_bytes(),
          .scales = weight.scales(),
          .n = weight.n(),
          .k = weight.k(),
          .group = weight.group(),
          .scale_per_feature = weight.dtype() == DType::kF32,
          .is_int4 = weight.format() == WeightFormat::kInt4,
          .has_min = weight.has_min(),
          .has_zero_points = weight.has_zero_points(),
          .x = {},
          .num_rows = params.num_rows,
          .bias = params.bias,
          .residual = params.residual,
          .residual_stride = params.residual_stride,
          .y = params.y.f32(),
          .y_stride = params.y_stride};
}

// True if any scale of rows [row_begin, row_end) of x is NaN.
bool HasNan(const internal::IntLinearArgs& args, std::uint32_t row_begin, std::uint32_t row_end) {
  const std::int64_t groups = (args.k + std::max(args.group, 32u) - 1) / std::max(args.group, 32u);
  const float* const scales = args.x.scales + row_begin * groups;
  bool has_nan = false;
  for (std::int64_t i = 0; i < (row_end - row_begin) * groups; ++i) {
    has_nan |= scales[i] != scales[i];
  }
  return has_nan;
}

void OverwriteNanRows(const internal::IntLinearArgs& args) {
  for (std::uint32_t row = 0; row < args.num_rows; ++row) {
    if (!HasNan(args, row, row + 1)) continue;
    std::fill_n(args.y + row * args.y_stride, args.n, std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace

std::int64_t QuantizedLinearScratchBytes(std::uint32_t num_rows, std::uint32_t k,
                                         bool has_act_order) {
  // Groups of 16 need the most scales and sums.
  return LayoutOf(num_rows, (std::int64_t{k} + 15) / 16 * 16, 16, has_act_order).bytes;
}

namespace {

// Number of panels that are dequantized at a time.
constexpr std::int64_t kDequantizedPanels = 4;

std::int64_t DequantizedPanelBytes(std::uint32_t k) {
  return (std::int64_t{k} + 1) / 2 * 2 * kPanel * std::int64_t{sizeof(float)};
}

}  // namespace

std::int64_t DequantizedThreadBytes(std::uint32_t k) {
  constexpr std::int64_t kUnitInputs = 8;  // bounds the inputs written beyond the last panel
  return kDequantizedPanels * DequantizedPanelBytes(k) +
         kUnitInputs * kPanel * std::int64_t{sizeof(float)};
}

namespace internal {

void LinearDequantized(const Backend& backend, const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  const std::uint32_t k = weight.k();
  LinearParams product = params;
  if (weight.act_order() != nullptr) {
    auto* const ordered = reinterpret_cast<float*>(
        backend.op_workspace().Reserve(std::size_t{params.num_rows} * k * sizeof(float)));
    backend.ParallelFor(params.num_rows, static_cast<double>(k) * 0.8,
                        [&](std::int64_t begin, std::int64_t end, int) {
                          PermuteRows(params, static_cast<std::uint32_t>(begin),
                                      static_cast<std::uint32_t>(end), ordered);
                        });
    product.x = ordered;
    product.x_stride = k;
  }
  const double work = static_cast<double>(k) * (kPanel * 0.2 + params.num_rows * 0.4);
  backend.ParallelFor(
      weight.num_panels(), work,
      [&](std::int64_t begin, std::int64_t end, int part) {
        auto* const panels = reinterpret_cast<float*>(
            backend.workspace(part).Reserve(static_cast<std::size_t>(DequantizedThreadBytes(k))));
        for (std::int64_t first = begin; first < end; first += kDequantizedPanels) {
          const std::int64_t last = std::min(end, first + kDequantizedPanels);
          for (std::int64_t panel = first; panel < last; ++panel) {
            DequantizePanelF32(weight, panel,
                               panels + (panel - first) * DequantizedPanelBytes(k) / 4);
          }
          LinearSimd(product, first, last, panels);
        }
      },
      kDequantizedPanels);
}

void LinearQuantized(const Backend& backend, const LinearParams& params,
                     const IntLinearKernels& kernels) {
  IntLinearArgs args = ArgsOf(params);
  const std::uint32_t rows = params.num_rows;
  // A thread reads weights at about 20 GB/s, and computes about 200 multiply-adds per nanosecond.
  const double work = static_cast<double>(args.panel_bytes) * 0.05 +
                      static_cast<double>(args.k) * rows * (kPanel * 0.005);
  const bool has_act_order = params.weight->act_order() != nullptr;
  const RowsLayout layout = LayoutOf(rows, args.k, args.group, has_act_order);
  std::byte* const scratch = backend.op_workspace().Reserve(static_cast<std::size_t>(layout.bytes));
  args.x = RowsAt(scratch, layout);
  auto* const ordered = reinterpret_cast<float*>(scratch + layout.sums);
  const RowQuantization quantization = {args.k, args.group, args.is_int4};
  std::atomic<bool> has_nan = false;
  // Rows are quantized in blocks of eight (IntRows).
  backend.ParallelFor((rows + 7) / 8, static_cast<double>(args.k) * 8 * (has_act_order ? 0.8 : 0.3),
                      [&](std::int64_t begin, std::int64_t end, int) {
                        const std::uint32_t first = static_cast<std::uint32_t>(begin) * 8;
                        const std::uint32_t last =
                            std::min(rows, static_cast<std::uint32_t>(end) * 8);
                        if (has_act_order) PermuteRows(params, first, last, ordered);
                        kernels.quantize(has_act_order ? ordered : params.x.f32(),
                                         has_act_order ? args.k : params.x_stride, quantization,
                                         rows, first, last, args.x);
                        if (args.is_int4 && HasNan(args, first, last)) {
                          has_nan.store(true, std::memory_order_relaxed);
                        }
                      });
  backend.ParallelFor(
      params.weight->num_panels(), work,
      [&](std::int64_t begin, std::int64_t end, int) { kernels.linear(args, begin, end); },
      kTilePanels);
  if (has_nan) OverwriteNanRows(args);
}

}  // namespace internal
}  // namespace quire::kernels
