#include "kernels/linear/fp8_linear.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/status.h"
#include "kernels/linear/fp8_rows.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kPanel = PackedLinear::kPanel;

std::int64_t NumPanels(const Fp8Shape& shape) {
  return (std::int64_t{shape.n} + kPanel - 1) / kPanel;
}

// Returns the bytes of the scales of one panel.
std::int64_t ScaleBytes(const Fp8Shape& shape) {
  return std::int64_t{shape.num_groups()} * kPanel * static_cast<std::int64_t>(sizeof(float));
}

// Number of floats of scratch memory for x, unless kTileRows rows need more.
constexpr std::int64_t kScratchFloats = 1 << 20;
constexpr std::int64_t kTileRows = 8;

// Returns the number of floats between rows of the scratch memory. The distance in bytes is not a
// multiple of 4 KB, because rows at such distances evict each other from L1.
std::int64_t ScratchStride(std::int64_t k) {
  const std::int64_t stride = (k + kPanel - 1) / kPanel * kPanel + kPanel;
  return stride % 1024 == 0 ? stride + kPanel : stride;
}

void PutRow(const Fp8Shape& shape, std::int64_t row, std::span<const std::uint8_t> codes,
            std::span<const float> scales, const PackedLinear& packed) {
  const std::int64_t panel = row / kPanel;
  const std::size_t lane = static_cast<std::size_t>(row % kPanel);
  auto* const to = reinterpret_cast<std::uint8_t*>(packed.element_memory().data()) +
                   panel * packed.panel_bytes();
  for (std::size_t k = 0; k < codes.size(); ++k) {
    to[(k / 4 * kPanel + lane) * 4 + k % 4] = codes[k];
  }
  auto* const scale_to = reinterpret_cast<float*>(packed.scale_memory().data()) +
                         panel * static_cast<std::int64_t>(shape.num_groups()) * kPanel;
  for (std::size_t g = 0; g < scales.size(); ++g) {
    scale_to[g * kPanel + lane] = scales[g];
  }
}

}  // namespace

std::int64_t Fp8Bytes(const Fp8Shape& shape) {
  const std::int64_t row = (std::int64_t{shape.k} + 3) / 4 * 4;
  return NumPanels(shape) * (row * kPanel + ScaleBytes(shape));
}

std::int64_t Fp8LinearScratchBytes(std::uint32_t num_rows, std::uint32_t k) {
  // The maximum over all products with at most k inputs. A product with shorter rows may use all of
  // kScratchFloats.
  const std::int64_t stride = ScratchStride(k);
  return std::min(num_rows * stride, std::max(kTileRows * stride, kScratchFloats)) *
         static_cast<std::int64_t>(sizeof(float));
}

absl::StatusOr<PackedLinear> AllocateFp8Linear(const Fp8Shape& shape) {
  QUIRE_RETURN_IF_ERROR(CheckFp8Shape(shape));
  QUIRE_ASSIGN_OR_RETURN(
      DeviceBuffer data,
      DeviceBuffer::Allocate(MemoryKind::kHost,
                             NumPanels(shape) * PackedLinear::PanelBytes(WeightFormat::kFp8E4M3,
                                                                         DType::kF32, shape.k)));
  QUIRE_ASSIGN_OR_RETURN(
      DeviceBuffer scales,
      DeviceBuffer::Allocate(MemoryKind::kHost, NumPanels(shape) * ScaleBytes(shape)));
  const Fp8Product product =
      shape.quantizes_activations ? Fp8Product::kQuantizedActivations : Fp8Product::kWeightOnly;
  return PackedLinear(shape.n, shape.k, Fp8Weights{.group = shape.group, .product = product},
                      std::move(data), std::move(scales));
}

absl::StatusOr<PackedLinear> PackFp8Rows(
    const Backend& backend, const Fp8Shape& shape,
    absl::FunctionRef<void(std::uint32_t row, const Fp8Row& out)> source) {
  QUIRE_CHECK(backend.cuda() == nullptr);
  QUIRE_ASSIGN_OR_RETURN(PackedLinear packed, AllocateFp8Linear(shape));
  backend.ParallelFor(packed.num_panels(), static_cast<double>(shape.k) * kPanel,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        std::vector<std::uint8_t> codes(shape.k);
                        std::vector<float> scales(shape.num_groups());
                        const std::int64_t last = std::min<std::int64_t>(shape.n, end * kPanel);
                        for (std::int64_t row = begin * kPanel; row < last; ++row) {
                          source(static_cast<std::uint32_t>(row), {codes, scales});
                          PutRow(shape, row, codes, scales, packed);
                        }
                      });
  return packed;
}

void RoundRowFp8(const float* from, std::int64_t k, float factor, float* to) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < k; ++i) largest = std::max(largest, MagnitudeBits(from[i]));
  const float scale = Fp8RowScale(largest);
  const float inverse = InverseFp8RowScale(scale);
  const float output_scale = scale * factor;
  for (std::int64_t i = 0; i < k; ++i) {
    to[i] = F8E4M3::FromFloat(from[i] * inverse).ToFloat() * output_scale;
  }
}

namespace internal {

void LinearFp8(const Backend& backend, const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  const std::int64_t k = weight.k();
  const std::int64_t stride = ScratchStride(k);
  const std::int64_t most = std::max(kTileRows, kScratchFloats / stride / kTileRows * kTileRows);
  LinearParams part = params;
  part.x_stride = stride;
  for (std::int64_t row = 0; row < params.num_rows; row += most) {
    const std::int64_t rows = std::min<std::int64_t>(most, params.num_rows - row);
    auto* const scaled = reinterpret_cast<float*>(
        backend.op_workspace().Reserve(static_cast<std::size_t>(rows * stride) * sizeof(float)));
    const float* const x = params.x.f32() + row * params.x_stride;
    // Quantizing a value takes about 4 ns.
    backend.ParallelFor(rows, static_cast<double>(k) * (weight.quantizes_activations() ? 4 : 0.15),
                        [&](std::int64_t begin, std::int64_t end, int) {
                          for (std::int64_t m = begin; m < end; ++m) {
                            const float* const from = x + m * params.x_stride;
                            float* const to = scaled + m * stride;
                            if (weight.quantizes_activations()) {
                              RoundRowFp8(from, k, kFp8InputScale, to);
                              continue;
                            }
                            for (std::int64_t i = 0; i < k; ++i) to[i] = from[i] * kFp8InputScale;
                          }
                        });
    part.x = scaled;
    part.y = params.y.f32() + row * params.y_stride;
    if (params.residual != nullptr) {
      part.residual = params.residual + row * params.residual_stride;
    }
    part.num_rows = static_cast<std::uint32_t>(rows);
    backend.ParallelFor(
        weight.num_panels(),
        // The same estimate as in Linear.
        static_cast<double>(weight.panel_bytes()) * 0.05 +
            static_cast<double>(k) * static_cast<double>(rows) * 0.4,
        [&](std::int64_t begin, std::int64_t end, int) { LinearSimd(part, begin, end); });
  }
}

}  // namespace internal
}  // namespace quire::kernels
