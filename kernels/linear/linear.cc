#include "kernels/linear/linear.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/logging.h"
#include "base/status.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/bf16_linear.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/int_linear.h"
#include "kernels/linear/linear_reduction.h"
#include "kernels/linear/quantized_linear.h"

namespace quire::kernels {
namespace {

absl::Status CheckTypes(DType dtype, DType activations) {
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear weights are ", DTypeName(dtype), ", supported are f32, bf16 and f16"));
  }
  if (activations != DType::kF32 && activations != DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat("linear weights for activations of ",
                                                   DTypeName(activations),
                                                   ", supported are f32 and bf16"));
  }
  return absl::OkStatus();
}

absl::Status CheckExtents(std::int64_t n, std::int64_t k) {
  if (n > 0 && n <= INT32_MAX && k > 0 && k <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("linear weights are [", n, ", ", k, "], both must be 1 to ", INT32_MAX));
}

// The 16 rows of a panel. A null pointer is a feature beyond N.
using PanelRows = const std::byte * [PackedLinear::kPanel];

// Transposes 16 rows of 32-bit units, one f32 or two 16-bit values, to dst[unit][16]. Reads all
// rows one cache line at a time, because rows whose distance is a power of two evict each other.
void TransposeUnits(const PanelRows& rows, std::size_t units, std::byte* dst) {
  constexpr std::size_t kLine = 16;
  std::uint32_t tile[PackedLinear::kPanel][kLine] = {};
  for (std::size_t unit = 0; unit < units; unit += kLine) {
    const std::size_t count = std::min(kLine, units - unit);
    for (std::size_t r = 0; r < PackedLinear::kPanel; ++r) {
      if (rows[r] != nullptr) std::memcpy(tile[r], rows[r] + unit * 4, count * 4);
    }
    auto* const out = reinterpret_cast<std::uint32_t*>(dst) + unit * PackedLinear::kPanel;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t r = 0; r < PackedLinear::kPanel; ++r) {
        out[i * PackedLinear::kPanel + r] = tile[r][i];
      }
    }
  }
}

// Reorders a bf16 panel from pairs of adjacent inputs to ordered pairs (packed_linear.h).
void OrderPairs(std::size_t k, std::byte* panel) {
  constexpr std::size_t kPanel = PackedLinear::kPanel;
  auto* units = reinterpret_cast<std::uint32_t*>(panel);
  for (std::size_t i = 0; i < k; i += 4, units += 2 * kPanel) {
    for (std::size_t r = 0; r < kPanel; ++r) {
      const std::uint32_t first = units[r], second = units[kPanel + r];
      units[r] = first << 16 | (second & 0xffffu);
      units[kPanel + r] = (first & 0xffff0000u) | second >> 16;
    }
  }
}

void PackPanel(const PackedLinear& packed, const PanelRows& rows, std::byte* dst) {
  const std::size_t row_bytes =
      std::size_t{packed.k()} * static_cast<std::size_t>(DTypeSize(packed.dtype()));
  TransposeUnits(rows, row_bytes / 4, dst);
  if (packed.has_ordered_pairs()) OrderPairs(packed.k(), dst);
  if (row_bytes % 4 == 0) return;
  // If K is odd and the type has 16 bits, the last unit has one value.
  for (std::size_t r = 0; r < PackedLinear::kPanel; ++r) {
    if (rows[r] == nullptr) continue;
    std::memcpy(dst + (row_bytes / 4 * PackedLinear::kPanel + r) * 4, rows[r] + row_bytes - 2, 2);
  }
}

// True if the backend multiplies bf16 weights with an instruction that reads ordered pairs.
bool OrdersPairs(const Backend& backend, DType dtype, std::uint32_t k) {
  return dtype == DType::kBF16 && k % internal::kBlock == 0 &&
         backend.activations() == CpuActivations::kBF16 &&
         internal::NeedsOrderedRows(internal::ChosenBf16Multiply());
}

}  // namespace

absl::StatusOr<PackedLinear> AllocatePackedLinear(const Backend& backend, DType dtype,
                                                  std::uint32_t n, std::uint32_t k) {
  QUIRE_RETURN_IF_ERROR(CheckTypes(dtype, DType::kF32));
  QUIRE_RETURN_IF_ERROR(CheckExtents(n, k));
  const std::int64_t panels = (std::int64_t{n} + PackedLinear::kPanel - 1) / PackedLinear::kPanel;
  QUIRE_ASSIGN_OR_RETURN(
      DeviceBuffer data,
      DeviceBuffer::Allocate(MemoryKind::kHost,
                             panels * PackedLinear::PanelBytes(WeightFormat::kPlain, dtype, k)));
  return PackedLinear(
      n, k, PlainWeights{.dtype = dtype, .has_ordered_pairs = OrdersPairs(backend, dtype, k)},
      std::move(data));
}

absl::StatusOr<PackedLinear> PackLinearWeights(const Backend& backend,
                                               std::span<const WeightRows> sources, DType dtype,
                                               std::uint32_t k, const CudaPacking& cuda) {
  std::int64_t n = 0;
  for (const WeightRows& source : sources) n += source.num_rows;
  QUIRE_RETURN_IF_ERROR(CheckTypes(dtype, cuda.activations));
  QUIRE_RETURN_IF_ERROR(CheckExtents(n, k));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) {
      return internal::PackLinearCuda(backend, sources, dtype, k, cuda);
    }
  }
  QUIRE_ASSIGN_OR_RETURN(PackedLinear packed,
                         AllocatePackedLinear(backend, dtype, static_cast<std::uint32_t>(n), k));

  const std::size_t element = static_cast<std::size_t>(DTypeSize(dtype));
  const std::size_t row_bytes = k * element;
  std::byte* const base = packed.element_memory().data();
  const auto row_of = [&](std::uint32_t feature) -> const std::byte* {
    for (const WeightRows& source : sources) {
      if (feature < source.num_rows) {
        return static_cast<const std::byte*>(source.data) + feature * row_bytes;
      }
      feature -= source.num_rows;
    }
    return nullptr;
  };
  backend.ParallelFor(
      packed.num_panels(), static_cast<double>(row_bytes) * 4,
      [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t panel = begin; panel < end; ++panel) {
          PanelRows rows;
          for (std::uint32_t r = 0; r < PackedLinear::kPanel; ++r) {
            rows[r] = row_of(static_cast<std::uint32_t>(panel) * PackedLinear::kPanel + r);
          }
          PackPanel(packed, rows, base + panel * packed.panel_bytes());
        }
      });
  return packed;
}

absl::StatusOr<PackedLinear> PackPlainRows(
    const Backend& backend, DType dtype, std::uint32_t n, std::uint32_t k,
    absl::FunctionRef<void(std::uint32_t row, std::byte* out)> source) {
  QUIRE_CHECK(backend.cuda() == nullptr);
  QUIRE_ASSIGN_OR_RETURN(PackedLinear packed, AllocatePackedLinear(backend, dtype, n, k));
  const std::size_t row_bytes = std::size_t{k} * static_cast<std::size_t>(DTypeSize(dtype));
  const auto stride = static_cast<std::int64_t>((row_bytes + 63) / 64 * 64);
  // Each thread needs memory for the rows of one panel.
  QUIRE_ASSIGN_OR_RETURN(
      const DeviceBuffer scratch,
      DeviceBuffer::Allocate(MemoryKind::kHost,
                             std::int64_t{backend.num_threads()} * PackedLinear::kPanel * stride));
  std::byte* const base = packed.element_memory().data();
  backend.ParallelFor(packed.num_panels(), static_cast<double>(row_bytes) * 4,
                      [&](std::int64_t begin, std::int64_t end, int part) {
                        std::byte* const own = scratch.bytes().data() +
                                               part * std::int64_t{PackedLinear::kPanel} * stride;
                        for (std::int64_t panel = begin; panel < end; ++panel) {
                          PanelRows rows = {};
                          for (std::uint32_t r = 0; r < PackedLinear::kPanel; ++r) {
                            const std::int64_t row = panel * PackedLinear::kPanel + r;
                            if (row >= std::int64_t{n}) break;
                            source(static_cast<std::uint32_t>(row), own + r * stride);
                            rows[r] = own + r * stride;
                          }
                          PackPanel(packed, rows, base + panel * packed.panel_bytes());
                        }
                      });
  return packed;
}

std::int64_t CudaPlainPaddedBytes(DType dtype, std::uint32_t n, std::uint32_t k,
                                  DType activations) {
  return WeightMemory::PaddedBytes(std::int64_t{n} * k *
                                   DTypeSize(internal::CudaPlainType(dtype, activations)));
}

absl::StatusOr<PackedLinear> PackLinearWeight(const Backend& backend, const void* w, DType dtype,
                                              std::uint32_t n, std::uint32_t k) {
  const WeightRows source{w, n};
  return PackLinearWeights(backend, {&source, 1}, dtype, k, {});
}

namespace {

// Runs Linear, then QkvStore.
absl::Status LinearAndStore(const Backend& backend, const LinearParams& params) {
  LinearParams product = params;
  product.store = nullptr;
  QUIRE_RETURN_IF_ERROR(Linear(backend, product));
  return QkvStore(backend, *params.store);
}

// The permuted rows of a launch that also stores the heads must fit in the workspace.
static_assert(std::int64_t{internal::kMaxStoredRows} * cuda::kLinearMaxPermutedInputs * 2 <=
              cuda::kLinearPermutedBytes);

// True if the launch of the product also stores the heads.
bool CanFuseStore(const LinearParams& params) {
  const QkvStoreParams& store = *params.store;
  return internal::RunsOnTensorCores(*params.weight, params.x.dtype()) &&
         !params.weight->has_row_major_fp8() && params.weight->library_plans() == nullptr &&
         !params.gate && params.num_rows <= internal::kMaxStoredRows &&
         params.residual == nullptr && params.y.dtype() == DType::kBF16 &&
         store.qkv.data() == params.y.data() && store.qkv.dtype() == DType::kBF16 &&
         store.qkv_stride == params.y_stride && store.num_rows == params.num_rows &&
         std::holds_alternative<KvView<BF16>>(*store.keys) &&
         cuda::kLinearTileN % KvShapeOf(*store.keys).head_size == 0;
}

}  // namespace

namespace internal {

bool RunsOnTensorCores(const PackedLinear& weight, DType x) {
  return x == DType::kBF16 && weight.k() % 8 == 0 &&
         (weight.format() != WeightFormat::kPlain || weight.dtype() == DType::kBF16);
}

void LogPortableFallback(const absl::Status& reason) {
  static std::atomic_flag is_logged;
  if (is_logged.test_and_set()) return;
  log::Warn("model", "matrix products use the portable kernel", {{"error", reason.message()}});
}

}  // namespace internal

bool CanFuseGate(const Backend& backend, const PackedLinear& weight, DType x, DType y) {
  return backend.cuda() != nullptr && internal::RunsOnTensorCores(weight, x) && y == DType::kBF16 &&
         weight.n() % cuda::kLinearTileN == 0 && weight.library_plans() == nullptr;
}

absl::Status Linear(const Backend& backend, const LinearParams& params) {
  const std::int64_t n = params.weight->n();
  const std::int64_t k = params.weight->k();
  if (params.gate && (params.residual != nullptr ||
                      !CanFuseGate(backend, *params.weight, params.x.dtype(), params.y.dtype()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "linear [", n, ", ", k, "] of x ", DTypeName(params.x.dtype()), " and y ",
        DTypeName(params.y.dtype()), params.residual == nullptr ? "" : " with a residual",
        " cannot apply a gate (CanFuseGate)"));
  }
  if (params.x_stride < k || params.y_stride < (params.gate ? n / 2 : n) ||
      (params.residual != nullptr && params.residual_stride < n)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "linear [", n, ", ", k, "] has strides x ", params.x_stride, ", y ", params.y_stride,
        ", residual ", params.residual_stride, ", each must be at least the length of a row"));
  }
  if (params.num_rows == 0) return absl::OkStatus();
  if (params.store != nullptr && (backend.cuda() == nullptr || !CanFuseStore(params))) {
    return LinearAndStore(backend, params);
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::LinearCuda(*backend.cuda(), params);
  }
  const CpuActivations activations = backend.activations();
  if (activations == CpuActivations::kBF16) {
    internal::LinearBf16(backend, params, internal::ChosenBf16Multiply());
    return absl::OkStatus();
  }
  if (params.weight->has_ordered_pairs()) {
    return absl::InvalidArgumentError(absl::StrCat("linear [", n, ", ", k,
                                                   "] was packed for bf16 activations, not for ",
                                                   CpuActivationsName(activations)));
  }
  const WeightFormat format = params.weight->format();
  if (format == WeightFormat::kInt8 || format == WeightFormat::kInt4) {
    if (activations == CpuActivations::kF32) {
      internal::LinearDequantized(backend, params);
    } else {
      internal::LinearQuantized(backend, params, internal::ChosenIntLinear());
    }
    return absl::OkStatus();
  }
  if (format == WeightFormat::kFp8E4M3) {
    internal::LinearFp8(backend, params);
    return absl::OkStatus();
  }
  // A core streams weights at about 20 GB/s, and computes about 40 multiply-adds per nanosecond.
  const double work = static_cast<double>(params.weight->panel_bytes()) * 0.05 +
                      static_cast<double>(k) * params.num_rows * 0.4;
  backend.ParallelFor(
      params.weight->num_panels(), work,
      [&](std::int64_t begin, std::int64_t end, int) { internal::LinearSimd(params, begin, end); });
  return absl::OkStatus();
}

}  // namespace quire::kernels
