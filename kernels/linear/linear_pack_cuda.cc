// The host side of Linear on CUDA: packs weights into device memory and chooses kernels.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/loaded_kernels.h"
#include "kernels/cuda/uploader.h"
#include "kernels/linear/cublaslt.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "kernels/linear/quantized_linear.h"

namespace quire::kernels {
namespace {

absl::Status Upload(const Backend& backend, void* to, const void* from, std::int64_t bytes) {
  if (backend.uploader() != nullptr) return backend.uploader()->Copy(to, from, bytes);
  // The caller may free the source after this returns.
  QUIRE_RETURN_IF_ERROR(backend.cuda()->stream->Copy(to, from, bytes));
  return backend.cuda()->stream->Synchronize();
}

// Returns element `index` of an array with any alignment.
template <typename T>
float ElementAs(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * std::int64_t{sizeof(T)},
              sizeof(T));
  return ToFloat(value);
}

float Element(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::kF32) return ElementAs<float>(data, index);
  if (dtype == DType::kBF16) return ElementAs<BF16>(data, index);
  return ElementAs<F16>(data, index);
}

// Rounds elements to bf16 and uploads them in chunks of kPiece.
absl::Status UploadRounded(const Backend& backend, BF16* to, const void* from, DType dtype,
                           std::int64_t elements) {
  constexpr std::int64_t kPiece = std::int64_t{8} << 20;
  std::vector<BF16> rounded(static_cast<std::size_t>(std::min(kPiece, elements)));
  for (std::int64_t first = 0; first < elements; first += kPiece) {
    const std::int64_t count = std::min(kPiece, elements - first);
    backend.ParallelFor(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        rounded[static_cast<std::size_t>(i)] = BF16::FromFloat(Element(from, dtype, first + i));
      }
    });
    QUIRE_RETURN_IF_ERROR(
        Upload(backend, to + first, rounded.data(), count * std::int64_t{sizeof(BF16)}));
  }
  return absl::OkStatus();
}

// Converts rows to the layout of tiles, scales and zero points in linear_reduction.h.
//
// Threads: several threads may call PutTile for different feature tiles.
class TilePacker {
 public:
  using Source = absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)>;

  // Row-major e4m3 values are stored as [padded N][padded K] instead of tiles.
  TilePacker(const QuantizedShape& shape, bool is_row_major, Source source)
      : shape_(shape),
        is_row_major_(is_row_major),
        source_(source),
        padded_n_(std::size_t{cuda::LinearTilesN(shape.n)} * cuda::kLinearTileN),
        scale_bytes_(shape.scale_per_feature() || shape.format == WeightFormat::kFp8E4M3 ? 4 : 2),
        scales_(padded_n_ * shape.num_groups() * (scale_bytes_ + (shape.has_min ? 1 : 0))) {
    for (std::uint32_t i = 0; i < cuda::kLinearTileK; ++i) {
      places_[i] = cuda::LinearIndexOf(shape.format, 0, i);
    }
  }

  // Returns the bytes of one K tile.
  std::int64_t tile_bytes() const {
    return std::int64_t{cuda::kLinearTileN} * cuda::kLinearTileK * Bits() / 8;
  }
  // Returns the bytes of one feature tile: all K tiles of its features.
  std::int64_t feature_tile_bytes() const { return cuda::LinearTilesK(shape_.k) * tile_bytes(); }

  // Writes the K tiles of feature tile `tile` to `to`. REQUIRES: feature_tile_bytes() bytes at `to`
  // are zero.
  void PutTile(std::uint32_t tile, std::uint8_t* to) {
    std::vector<std::int8_t> q(shape_.k);
    std::vector<float> scales(shape_.num_groups());
    std::vector<float> mins(shape_.has_min ? scales.size() : 0);
    const std::uint32_t n0 = tile * cuda::kLinearTileN;
    const std::uint32_t last = std::min(shape_.n - n0, cuda::kLinearTileN);
    for (std::uint32_t feature = 0; feature < last; ++feature) {
      source_(n0 + feature, {q, scales, mins});
      PutCodes(q, feature, to);
      PutScales(scales, mins, n0 + feature);
    }
  }

  std::span<const std::byte> scales() const { return scales_; }

  struct InvalidZeroPoint {
    std::uint32_t row;
    float zero;
  };
  // Returns the largest supported zero point. For kInt4, 128 + zero point must be exact in bf16
  // (linear_codes.cuh).
  float max_zero_point() const { return shape_.format == WeightFormat::kInt4 ? 128 : 255; }
  // Returns the first row with a zero point outside [0, max_zero_point()], and this zero point.
  // REQUIRES: no thread is in PutTile.
  const std::optional<InvalidZeroPoint>& invalid_zero_point() const { return invalid_zero_point_; }

 private:
  std::uint32_t Bits() const { return cuda::HasFourBits(shape_.format) ? 4 : 8; }

  void PutCodes(std::span<const std::int8_t> q, std::uint32_t feature, std::uint8_t* to) const {
    if (is_row_major_) {
      std::memcpy(to + std::int64_t{feature} * cuda::LinearTilesK(shape_.k) * cuda::kLinearTileK,
                  q.data(), q.size());
      return;
    }
    const std::uint32_t first = cuda::LinearIndexOf(shape_.format, feature, 0);
    // Integers without zero points are stored with an offset of half their range.
    const bool has_offset = !shape_.has_min && shape_.format != WeightFormat::kFp8E4M3 &&
                            shape_.format != WeightFormat::kFp4E2M1;
    const std::uint32_t offset = !has_offset ? 0 : cuda::HasFourBits(shape_.format) ? 8 : 128;
    for (std::uint32_t k = 0; k < q.size(); ++k) {
      const std::uint32_t code = static_cast<std::uint8_t>(q[k]) + offset;
      const std::uint32_t index = first + places_[k % cuda::kLinearTileK];
      std::uint8_t* const tile = to + k / cuda::kLinearTileK * tile_bytes();
      if (!cuda::HasFourBits(shape_.format)) {
        tile[index] = static_cast<std::uint8_t>(code);
      } else {
        tile[index / 2] = static_cast<std::uint8_t>(tile[index / 2] | (code & 15) << index % 2 * 4);
      }
    }
  }

  void PutScales(std::span<const float> scales, std::span<const float> mins, std::size_t row) {
    for (std::size_t g = 0; g < scales.size(); ++g) {
      std::byte* const to = scales_.data() + (g * padded_n_ + row) * scale_bytes_;
      if (scale_bytes_ == 4) {
        std::memcpy(to, &scales[g], 4);
        continue;
      }
      const std::uint16_t bits = shape_.format == WeightFormat::kFp4E2M1
                                     ? BF16::FromFloat(scales[g]).bits
                                     : F16::FromFloat(scales[g]).bits;
      std::memcpy(to, &bits, 2);
    }
    std::byte* const zeros = scales_.data() + scales.size() * padded_n_ * scale_bytes_;
    for (std::size_t g = 0; g < mins.size(); ++g) {
      const float zero = -mins[g];
      if (!(zero >= 0 && zero <= max_zero_point())) {
        NoteInvalidZeroPoint(static_cast<std::uint32_t>(row), zero);
        return;
      }
      zeros[g * padded_n_ + cuda::LinearZeroIndexOf(static_cast<std::uint32_t>(row))] =
          static_cast<std::byte>(zero);
    }
  }

  void NoteInvalidZeroPoint(std::uint32_t row, float zero) {
    const std::lock_guard lock(invalid_zero_point_mutex_);
    if (invalid_zero_point_ && invalid_zero_point_->row <= row) return;
    invalid_zero_point_ = InvalidZeroPoint{row, zero};
  }

  const QuantizedShape shape_;
  const bool is_row_major_;
  const Source source_;
  const std::size_t padded_n_;
  const std::size_t scale_bytes_;
  std::vector<std::byte> scales_;             // scales, then zero points
  std::uint32_t places_[cuda::kLinearTileK];  // for each input of feature 0, its index in a tile
  std::mutex invalid_zero_point_mutex_;
  std::optional<InvalidZeroPoint> invalid_zero_point_;
};

WeightEncoding EncodingOf(const QuantizedShape& shape, WeightMap map, DeviceBuffer act_order) {
  if (shape.format == WeightFormat::kFp4E2M1) return Fp4Weights{};
  if (shape.format != WeightFormat::kFp8E4M3) {
    return IntegerEncodingOf(shape, std::move(act_order));
  }
  return Fp8Weights{.group = shape.group,
                    .product = map != nullptr                ? Fp8Product::kTensorCores
                               : shape.quantizes_activations ? Fp8Product::kQuantizedActivations
                                                             : Fp8Product::kWeightOnly,
                    .map = std::move(map)};
}

// Returns the TMA tensor map with which the kernels of compute capability 9.0 read the matrix, or
// null.
WeightMap MakeTensorMap(const CudaContext& context, const internal::WeightRowsShape& weight) {
  if (!context.has_sm90a()) return nullptr;
  absl::StatusOr<WeightMap> map = internal::MapWeightsSm90(context, weight);
  if (map.ok()) return *std::move(map);
  internal::LogPortableFallback(map.status());
  return nullptr;
}

absl::StatusOr<DeviceBuffer> TakeOrAllocate(std::int64_t bytes, WeightMemory* memory) {
  if (bytes == 0) return DeviceBuffer();
  if (memory != nullptr) return memory->Take(bytes);
  return DeviceBuffer::Allocate(MemoryKind::kDevice, bytes);
}

}  // namespace

namespace internal {

absl::StatusOr<PackedLinear> PackLinearCuda(const Backend& backend,
                                            std::span<const WeightRows> sources, DType dtype,
                                            std::uint32_t k, const CudaPacking& packing) {
  std::uint32_t n = 0;
  for (const WeightRows& source : sources) n += source.num_rows;
  PlainWeights plain{.dtype = CudaPlainType(dtype, packing.activations)};
  const std::int64_t row_bytes = std::int64_t{k} * DTypeSize(plain.dtype);
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer data, TakeOrAllocate(n * row_bytes, packing.memory));
  auto* to = static_cast<std::byte*>(data.data());
  for (const WeightRows& source : sources) {
    const std::int64_t elements = std::int64_t{source.num_rows} * k;
    if (plain.dtype != dtype) {
      QUIRE_RETURN_IF_ERROR(
          UploadRounded(backend, reinterpret_cast<BF16*>(to), source.data, dtype, elements));
    } else {
      QUIRE_RETURN_IF_ERROR(Upload(backend, to, source.data, source.num_rows * row_bytes));
    }
    to += source.num_rows * row_bytes;
  }
  if (backend.cuda()->cublaslt != nullptr && cuda::CublasLt::Supports(plain.dtype, n, k)) {
    QUIRE_ASSIGN_OR_RETURN(plain.library_plans, backend.cuda()->cublaslt->Pin(n, k));
  }
  if (plain.dtype == DType::kBF16 && k % 8 == 0) {
    plain.map = MakeTensorMap(*backend.cuda(), {data.data(), plain.dtype, n, k});
  }
  return PackedLinear(n, k, std::move(plain), std::move(data));
}

// Packs a few feature tiles at a time, at least one per thread, to limit temporary host memory.
absl::StatusOr<PackedLinear> PackQuantizedCuda(
    const Backend& backend, const QuantizedShape& shape,
    absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
    std::span<const std::uint32_t> order, WeightMemory* memory) {
  constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
  const CudaQuantizedParts parts = CudaQuantizedPartsOf(shape);
  const std::int64_t tiles = cuda::LinearTilesN(shape.n);
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer data, TakeOrAllocate(parts.codes, memory));
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer scales, TakeOrAllocate(parts.scales, memory));
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer act_order, TakeOrAllocate(parts.act_order, memory));
  WeightMap map;
  if (SupportsFp8Product(shape)) {
    map = MakeTensorMap(*backend.cuda(), {data.data(), DType::kF8E4M3, shape.n, shape.k});
  }
  TilePacker packer(shape, /*is_row_major=*/map != nullptr, source);
  const std::int64_t feature_tile_bytes = packer.feature_tile_bytes();
  QUIRE_CHECK(parts.codes == tiles * feature_tile_bytes &&
              parts.scales == static_cast<std::int64_t>(packer.scales().size()));
  auto* const to = static_cast<std::byte*>(data.data());
  const std::int64_t tiles_per_piece = std::min(
      std::max<std::int64_t>(kPieceBytes / feature_tile_bytes, backend.num_threads()), tiles);
  std::vector<std::uint8_t> piece(static_cast<std::size_t>(tiles_per_piece * feature_tile_bytes));
  for (std::int64_t first = 0; first < tiles; first += tiles_per_piece) {
    const std::int64_t count = std::min(tiles - first, tiles_per_piece);
    std::fill(piece.begin(), piece.end(), std::uint8_t{0});
    const double work = static_cast<double>(feature_tile_bytes) * 4;
    backend.ParallelFor(count, work, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        packer.PutTile(static_cast<std::uint32_t>(first + i),
                       piece.data() + i * feature_tile_bytes);
      }
    });
    QUIRE_RETURN_IF_ERROR(
        Upload(backend, to + first * feature_tile_bytes, piece.data(), count * feature_tile_bytes));
  }
  if (packer.invalid_zero_point()) {
    return absl::InvalidArgumentError(absl::StrCat(
        WeightFormatName(shape.format), " weights [", shape.n, ", ", shape.k, "] have zero point ",
        packer.invalid_zero_point()->zero, " in row ", packer.invalid_zero_point()->row,
        ", GPUs support 0 to ", packer.max_zero_point()));
  }
  QUIRE_RETURN_IF_ERROR(Upload(backend, scales.data(), packer.scales().data(), parts.scales));
  if (shape.has_act_order) {
    QUIRE_RETURN_IF_ERROR(Upload(backend, act_order.data(), order.data(), parts.act_order));
  }
  return PackedLinear(shape.n, shape.k, EncodingOf(shape, std::move(map), std::move(act_order)),
                      std::move(data), std::move(scales));
}

namespace {

absl::Status CheckActivations(DType x, DType y) {
  if (y == DType::kF32 || (y == DType::kBF16 && x == DType::kBF16)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("linear has x ", DTypeName(x), " and y ", DTypeName(y),
                   ", supported are f32 x with f32 y, and bf16 x with f32 or bf16 y"));
}

// True if x is permuted or quantized before the product. No weights need both.
bool RewritesRows(const PackedLinear& weight) {
  return weight.act_order() != nullptr || weight.quantizes_activations();
}

// Calls the kernel for the parameters. REQUIRES: x was permuted or quantized if necessary.
absl::Status RunLinear(const CudaContext& context, const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  if (!RunsOnTensorCores(weight, params.x.dtype())) return LinearScalarCuda(context, params);
  if (weight.library_plans() != nullptr && params.bias == nullptr &&
      (params.y.dtype() == DType::kF32 || params.residual == nullptr)) {
    if (context.kernels->loads_only()) return absl::OkStatus();
    return context.cublaslt->Matmul(*weight.library_plans(), params);
  }
  return LinearTensorCoreCuda(context, params);
}

absl::Status RunGroupedLinear(const CudaContext& context, const GroupedLinearParams& params) {
  if (!RunsOnTensorCores(*params.weights.first, params.x.dtype())) {
    return GroupedLinearScalarCuda(context, params);
  }
  return GroupedLinearTensorCoreCuda(context, params);
}

}  // namespace

absl::Status LinearCuda(const CudaContext& context, const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  const DType x = params.x.dtype();
  QUIRE_RETURN_IF_ERROR(CheckActivations(x, params.y.dtype()));
  if (weight.has_row_major_fp8()) {
    if (x == DType::kBF16) return LinearFp8Sm90Cuda(context, params);
    return absl::InvalidArgumentError(absl::StrCat("linear [", weight.n(), ", ", weight.k(),
                                                   "] has x ", DTypeName(x),
                                                   ", row-major weights require bf16 x"));
  }
  if (!RewritesRows(weight)) return RunLinear(context, params);
  const FloatPtr ordered(context.linear_workspace + cuda::kLinearPermutedOffset, x);
  const std::uint32_t rows_per_pass = cuda::LinearPermutedRowsPerPass(weight.k(), x);
  LinearParams rows = params;
  for (std::uint32_t first = 0; first < params.num_rows; first += rows_per_pass) {
    rows.num_rows = std::min(params.num_rows - first, rows_per_pass);
    rows.x = params.x + first * params.x_stride;
    rows.x_stride = params.x_stride;
    QUIRE_RETURN_IF_ERROR(weight.quantizes_activations()
                              ? RoundFp8RowsCuda(context,
                                                 {.x = rows.x,
                                                  .x_stride = rows.x_stride,
                                                  .k = weight.k(),
                                                  .num_rows = rows.num_rows},
                                                 ordered)
                              : PermuteInputsCuda(context, rows, ordered));
    rows.x = ordered;
    rows.x_stride = weight.k();
    rows.y = params.y + first * params.y_stride;
    if (params.residual != nullptr)
      rows.residual = params.residual + first * params.residual_stride;
    QUIRE_RETURN_IF_ERROR(RunLinear(context, rows));
  }
  return absl::OkStatus();
}

absl::Status GroupedLinearCuda(const CudaContext& context, const GroupedLinearParams& params) {
  const PackedLinear& weight = *params.weights.first;
  const DType x = params.x.dtype();
  QUIRE_RETURN_IF_ERROR(CheckActivations(x, params.y.dtype()));
  if (weight.has_row_major_fp8()) {
    return absl::InvalidArgumentError(absl::StrCat("grouped linear [", weight.n(), ", ", weight.k(),
                                                   "] has row-major weights, which only "
                                                   "Linear supports"));
  }
  if (!RewritesRows(weight)) return RunGroupedLinear(context, params);
  const FloatPtr ordered(context.linear_workspace + cuda::kLinearPermutedOffset, x);
  const std::uint32_t rows_per_pass = cuda::LinearPermutedRowsPerPass(weight.k(), x);
  GroupedLinearParams rows = params;
  for (std::uint32_t first = 0; first < params.num_rows; first += rows_per_pass) {
    rows.num_rows = std::min(params.num_rows - first, rows_per_pass);
    rows.first_row = params.first_row + first;
    rows.x = params.rows == nullptr ? params.x + first * params.x_stride : params.x;
    rows.rows = params.rows == nullptr ? nullptr : params.rows + first;
    rows.x_stride = params.x_stride;
    QUIRE_RETURN_IF_ERROR(weight.quantizes_activations()
                              ? RoundFp8RowsCuda(context,
                                                 {.x = rows.x,
                                                  .x_stride = rows.x_stride,
                                                  .k = weight.k(),
                                                  .num_rows = rows.num_rows,
                                                  .x_rows = rows.rows},
                                                 ordered)
                              : GroupedPermuteInputsCuda(context, rows, ordered));
    rows.x = ordered;
    rows.rows = nullptr;
    rows.x_stride = weight.k();
    rows.y = params.y + first * params.y_stride;
    QUIRE_RETURN_IF_ERROR(RunGroupedLinear(context, rows));
  }
  return absl::OkStatus();
}

}  // namespace internal
}  // namespace quire::kernels
