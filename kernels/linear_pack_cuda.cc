// Linear on CUDA, host side: weights into device memory, and which kernel computes what.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/uploader.h"
#include "kernels/linear.h"
#include "kernels/linear_tree.h"

namespace quire::kernels {
namespace {

absl::Status Upload(const Backend& backend, void* to, const void* from, std::int64_t bytes) {
  if (backend.uploader() != nullptr) return backend.uploader()->Copy(to, from, bytes);
  // The source may go as soon as this returns.
  QUIRE_RETURN_IF_ERROR(backend.cuda()->stream->Copy(to, from, bytes));
  return backend.cuda()->stream->Synchronize();
}

// Element `index` of an array of any alignment.
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

// Uploads elements as bf16, a piece at a time.
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

absl::Status CheckQuantized(const QuantizedWeight& weight, std::uint32_t n, std::uint32_t k) {
  const bool four_bits = weight.format == WeightFormat::kInt4;
  const absl::string_view name = WeightFormatName(weight.format);
  if (weight.format == WeightFormat::kPlain) {
    return absl::InvalidArgumentError("linear weights that are plain are not quantised");
  }
  if (n == 0 || n > INT32_MAX || k == 0 || k > INT32_MAX || k % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("linear weights in ", name, " are [", n, ", ", k,
                                                   "], both must be 1 to ", INT32_MAX,
                                                   " and the second a multiple of 8"));
  }
  if (weight.scale_dtype != DType::kBF16 && weight.scale_dtype != DType::kF16 &&
      (four_bits || weight.scale_dtype != DType::kF32)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scales of ", name, " weights are ", DTypeName(weight.scale_dtype),
                     ", supported are bf16, f16", four_bits ? "" : ", f32"));
  }
  if (four_bits && ((weight.group != 32 && weight.group != 64 && weight.group != 128) ||
                    k % weight.group != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("int4 weights with ", k, " inputs have a scale for ", weight.group,
                     " of them, supported are 32, 64 and 128 that divide it"));
  }
  return absl::OkStatus();
}

// The code of W[n][k] as the kernels read it.
std::uint8_t CodeOf(const QuantizedWeight& weight, std::int64_t index) {
  const auto* const bytes = static_cast<const std::uint8_t*>(weight.values);
  if (weight.format == WeightFormat::kInt4) {
    return static_cast<std::uint8_t>((bytes[index / 2] >> (index % 2 * 4)) & 0xf);
  }
  const std::uint8_t offset = weight.format == WeightFormat::kInt8 ? 0x80 : 0;
  return bytes[index] ^ offset;
}

// The code of zero.
std::uint8_t ZeroOf(WeightFormat format) {
  if (format == WeightFormat::kInt4) return 8;
  return format == WeightFormat::kInt8 ? 0x80 : 0;
}

// Of a matrix, or of where a part of it begins.
struct Extents {
  std::uint32_t n;
  std::uint32_t k;
};

// The bytes of one tile in the order of linear_tree.h; false when there is a NaN among them.
bool PackTile(const QuantizedWeight& weight, Extents size, Extents first, std::uint8_t* to) {
  const std::uint32_t bits = weight.format == WeightFormat::kInt4 ? 4 : 8;
  bool is_number = true;
  for (std::uint32_t i = 0; i < cuda::kLinearTileN * cuda::kLinearTileK; ++i) {
    const cuda::LinearPlace place = cuda::LinearPlaceOf(bits, i);
    const std::int64_t row = std::int64_t{first.n} + place.feature;
    const std::int64_t column = std::int64_t{first.k} + place.input;
    const std::uint8_t code = row < size.n && column < size.k
                                  ? CodeOf(weight, row * size.k + column)
                                  : ZeroOf(weight.format);
    if (weight.format == WeightFormat::kFp8E4M3 && (code & 0x7f) == 0x7f) is_number = false;
    if (bits == 8) {
      to[i] = code;
    } else if (i % 2 == 0) {
      to[i / 2] = code;
    } else {
      to[i / 2] = static_cast<std::uint8_t>(to[i / 2] | code << 4);
    }
  }
  return is_number;
}

// int8, fp8: f32 [padded N]. int4: [K / group][padded N] of 16 bits. Zeros where there is no
// feature.
std::vector<std::byte> PackScales(const QuantizedWeight& weight, std::uint32_t n, std::uint32_t k) {
  const std::size_t padded = std::size_t{cuda::LinearTilesN(n)} * cuda::kLinearTileN;
  if (weight.format != WeightFormat::kInt4) {
    std::vector<std::byte> packed(padded * sizeof(float));
    for (std::uint32_t i = 0; i < n; ++i) {
      const float scale = Element(weight.scales, weight.scale_dtype, i);
      std::memcpy(packed.data() + i * sizeof(float), &scale, sizeof(float));
    }
    return packed;
  }
  const std::size_t groups = k / weight.group;
  std::vector<std::byte> packed(groups * padded * 2);
  const auto* const from = static_cast<const std::byte*>(weight.scales);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t g = 0; g < groups; ++g) {
      std::memcpy(packed.data() + (g * padded + i) * 2, from + (i * groups + g) * 2, 2);
    }
  }
  return packed;
}

}  // namespace

// Writes the device form of a PackedLinear.
class CudaLinearPacker {
 public:
  static absl::StatusOr<PackedLinear> Plain(const Backend& backend,
                                            std::span<const WeightRows> sources, DType dtype,
                                            std::uint32_t k, DType activations) {
    const bool round = activations == DType::kBF16 && dtype != DType::kBF16;
    std::uint32_t n = 0;
    for (const WeightRows& source : sources) n += source.num_rows;
    PackedLinear packed;
    packed.n_ = n;
    packed.k_ = k;
    packed.group_ = k;
    packed.dtype_ = round ? DType::kBF16 : dtype;
    const std::int64_t row_bytes = std::int64_t{k} * DTypeSize(packed.dtype_);
    QUIRE_ASSIGN_OR_RETURN(packed.data_,
                           DeviceBuffer::Allocate(MemoryKind::kDevice, n * row_bytes));
    auto* to = static_cast<std::byte*>(packed.data_.data());
    for (const WeightRows& source : sources) {
      const std::int64_t elements = std::int64_t{source.num_rows} * k;
      if (round) {
        QUIRE_RETURN_IF_ERROR(
            UploadRounded(backend, reinterpret_cast<BF16*>(to), source.data, dtype, elements));
      } else {
        QUIRE_RETURN_IF_ERROR(Upload(backend, to, source.data, source.num_rows * row_bytes));
      }
      to += source.num_rows * row_bytes;
    }
    if (backend.cuda()->cublaslt != nullptr && cuda::CublasLt::Computes(packed)) {
      QUIRE_ASSIGN_OR_RETURN(packed.library_plans_, backend.cuda()->cublaslt->Pin(n, k));
    }
    return packed;
  }

  static absl::StatusOr<PackedLinear> Quantized(const Backend& backend,
                                                const QuantizedWeight& weight, std::uint32_t n,
                                                std::uint32_t k) {
    QUIRE_RETURN_IF_ERROR(CheckQuantized(weight, n, k));
    const bool four_bits = weight.format == WeightFormat::kInt4;
    const std::int64_t tile_bytes =
        std::int64_t{cuda::kLinearTileN} * cuda::kLinearTileK / (four_bits ? 2 : 1);
    const std::uint32_t tiles_k = cuda::LinearTilesK(k);
    const std::int64_t tiles = std::int64_t{cuda::LinearTilesN(n)} * tiles_k;
    PackedLinear packed;
    packed.n_ = n;
    packed.k_ = k;
    packed.group_ = four_bits ? weight.group : k;
    packed.format_ = weight.format;
    packed.dtype_ = four_bits ? weight.scale_dtype : DType::kF32;
    QUIRE_ASSIGN_OR_RETURN(packed.data_,
                           DeviceBuffer::Allocate(MemoryKind::kDevice, tiles * tile_bytes));
    const std::vector<std::byte> scales = PackScales(weight, n, k);
    const auto scale_bytes = static_cast<std::int64_t>(scales.size());
    QUIRE_ASSIGN_OR_RETURN(packed.scales_,
                           DeviceBuffer::Allocate(MemoryKind::kDevice, scale_bytes));
    QUIRE_RETURN_IF_ERROR(Upload(backend, packed.scales_.data(), scales.data(), scale_bytes));

    constexpr std::int64_t kTilesPerPiece = 1024;
    std::vector<std::uint8_t> piece(
        static_cast<std::size_t>(std::min(tiles, kTilesPerPiece) * tile_bytes));
    std::atomic<bool> numbers{true};
    for (std::int64_t first = 0; first < tiles; first += kTilesPerPiece) {
      const std::int64_t count = std::min(tiles - first, kTilesPerPiece);
      backend.ParallelFor(count, 20000, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          const auto n0 = static_cast<std::uint32_t>((first + i) / tiles_k * cuda::kLinearTileN);
          const auto k0 = static_cast<std::uint32_t>((first + i) % tiles_k * cuda::kLinearTileK);
          if (!PackTile(weight, {n, k}, {n0, k0}, piece.data() + i * tile_bytes)) numbers = false;
        }
      });
      QUIRE_RETURN_IF_ERROR(
          Upload(backend, static_cast<std::byte*>(packed.data_.data()) + first * tile_bytes,
                 piece.data(), count * tile_bytes));
    }
    if (!numbers) {
      return absl::InvalidArgumentError(
          absl::StrCat("fp8_e4m3 weights [", n, ", ", k, "] hold a NaN"));
    }
    return packed;
  }
};

namespace internal {

absl::StatusOr<PackedLinear> PackLinearCuda(const Backend& backend,
                                            std::span<const WeightRows> sources, DType dtype,
                                            std::uint32_t k, DType activations) {
  return CudaLinearPacker::Plain(backend, sources, dtype, k, activations);
}

absl::StatusOr<PackedLinear> PackQuantizedCuda(const Backend& backend,
                                               const QuantizedWeight& weight, std::uint32_t n,
                                               std::uint32_t k) {
  return CudaLinearPacker::Quantized(backend, weight, n, k);
}

absl::Status LinearCuda(const CudaContext& context, const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  const DType x = params.x.dtype();
  const DType y = params.y.dtype();
  const bool plain = weight.format() == WeightFormat::kPlain;
  if (y != DType::kF32 && (y != DType::kBF16 || x != DType::kBF16)) {
    return absl::InvalidArgumentError(absl::StrCat("linear has x ", DTypeName(x), " and y ",
                                                   DTypeName(y),
                                                   ", supported are f32 and f32, bf16 and either"));
  }
  if (!plain && x != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear has x ", DTypeName(x), " and weights in ",
                     WeightFormatName(weight.format()), ", which need bf16"));
  }
  const bool tensor_core =
      !plain || (x == DType::kBF16 && weight.dtype() == DType::kBF16 && weight.k() % 8 == 0);
  if (!tensor_core) return LinearScalarCuda(context, params);
  if (weight.library_plans() != nullptr && params.bias == nullptr &&
      (y == DType::kF32 || params.residual == nullptr)) {
    return context.cublaslt->Matmul(*weight.library_plans(), params);
  }
  return LinearTensorCoreCuda(context, params);
}

}  // namespace internal
}  // namespace quire::kernels
