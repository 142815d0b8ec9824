#pragma once

// A weight matrix in the layout of a backend, and types that state how its elements are encoded.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "base/device_buffer.h"
#include "base/dtype.h"
#include "base/weight_format.h"

namespace quire::kernels {

namespace cuda {
struct LtPlans;
struct TmaTile;
}  // namespace cuda

// The tensor map of a matrix for the kernels of compute capability 9.0. It is encoded when the
// matrix is packed. Null if the device does not have these kernels or the driver cannot create the
// map.
using WeightMap = std::shared_ptr<const cuda::TmaTile>;

// The following types state how the elements of a matrix are encoded. `group` is the number of
// inputs that share a scale. If it is K, there is one scale per output feature.

// Unquantized f32, bf16 or f16.
struct PlainWeights {
  DType dtype = DType::kInvalid;
  // cuBLASLt algorithms for this shape; null unless determinism is kFast.
  const cuda::LtPlans* library_plans = nullptr;
  WeightMap map = nullptr;
  bool has_ordered_pairs = false;  // the second layout of bf16 below; CPU only
};

// A weight is scale * q, or scale * (q - zero point).
template <WeightFormat kFormat>
struct IntWeights {
  std::uint32_t group = 0;
  bool has_zero_points = false;
  // The act-order permutation, [K] of uint32: packed input j is input act_order[j] of x. Empty
  // without a permutation.
  DeviceBuffer act_order = {};
};
using Int8Weights = IntWeights<WeightFormat::kInt8>;
using Int4Weights = IntWeights<WeightFormat::kInt4>;

// GGML quantization blocks with minimums, such as Q4_K: a weight is scale * q + min. CPU only.
struct GgmlWeights {
  WeightFormat format = WeightFormat::kInt4;  // kInt8 or kInt4
  std::uint32_t group = 0;
};

// Specifies how Linear multiplies by fp8 weights.
enum class Fp8Product : std::uint8_t {
  kWeightOnly,            // activations keep their dtype
  kQuantizedActivations,  // activations are first quantized to e4m3, row by row (fp8_rows.h)
  kTensorCores,           // the same on fp8 tensor cores; weights must be row-major; CUDA only
};

// A weight is an e4m3 value times a scale.
struct Fp8Weights {
  std::uint32_t group = 0;
  Fp8Product product = Fp8Product::kWeightOnly;
  WeightMap map = nullptr;  // not null for kTensorCores
};

// mxfp4: a weight is an e2m1 value times a power of two that 32 inputs share. CUDA only.
struct Fp4Weights {
  static constexpr std::uint32_t kGroup = 32;
};

using WeightEncoding =
    std::variant<PlainWeights, Int8Weights, Int4Weights, GgmlWeights, Fp8Weights, Fp4Weights>;

// A weight matrix [N, K] in the layout of the backend that it was packed for.
//
// CPU: panels of 16 output features, so that a thread streams whole panels and vector lanes run
// along N. Except for ordered pairs, the bytes are the same for every instruction set. A panel has
// this layout:
//   16-bit types:  [ceil(K/2)][16][2]   16 features; inputs 2j and 2j + 1 are adjacent
//   bf16 with ordered pairs:  [K/4][2][16][2]  inputs 4j + 2 and 4j, then inputs 4j + 3 and 4j + 1;
//                                       if K % 32 == 0, activations are bf16 and vdpbf16ps
//                                       multiplies (bf16_linear_avx512bf16.cc)
//   f32:           [ceil(K/2)*2][16]
//   kInt8:         [ceil(K/4)][16][4]   bytes u = q + 128; with zero points or mins u = q
//   kInt4:         [K/8][16][4]         bytes; byte i has input 8j + i in the low 4 bits and input
//                                       8j + 4 + i in the high 4 bits, as q + 8, or as q with
//                                       zero points or mins
//   kFp8E4M3:      [ceil(K/4)][16][4]   bytes
//
// The scales of a matrix are in a separate buffer:
//   kInt8 with one scale per feature, without zero points and mins:  [panels * 16] f32
//   other integers without zero points and mins:                     [panels][K/group][16] f16
//   integers with zero points or mins:  [panels][K/group][2][16] f16, scales first
//   kFp8E4M3:                           [panels][ceil(K/group)][16] f32
//
// CUDA, in device memory: PlainWeights are [N, K] and row-major. fp8 weights with kTensorCores are
// [padded N][padded K] and row-major. Other formats are stored in the order in which the lanes of a
// warp load them. linear_reduction.h describes this order, the scales and the zero points.
//
// Place:      created at load by PackLinearWeights, PackQuantizedRows and PackFp8Rows; read by
//             Linear.
// Invariants: in panels, features beyond N and inputs beyond K have the value zero.
// Threads:    immutable.
// Lifetime:   owns its memory, or shares the WeightMemory that it was packed into; movable.
class PackedLinear {
 public:
  static constexpr std::uint32_t kPanel = 16;

  PackedLinear() = default;
  // `scales` is empty for PlainWeights.
  PackedLinear(std::uint32_t n, std::uint32_t k, WeightEncoding encoding, DeviceBuffer data,
               DeviceBuffer scales = {})
      : n_(n),
        k_(k),
        encoding_(std::move(encoding)),
        data_(std::move(data)),
        scales_(std::move(scales)) {}

  std::uint32_t n() const { return n_; }
  std::uint32_t k() const { return k_; }
  WeightFormat format() const;
  // Returns the dtype of elements if the format is kPlain, otherwise of scales.
  DType dtype() const;
  // Returns the number of inputs that share a scale.
  std::uint32_t group() const;
  // True if there is a zero point or a minimum per group.
  bool has_min() const;
  bool has_zero_points() const;
  bool has_ordered_pairs() const;
  bool quantizes_activations() const;
  // Returns true only for fp8 weights with kTensorCores.
  bool has_row_major_fp8() const;
  // Returns the permutation [K], or null without an act-order permutation.
  const std::uint32_t* act_order() const;
  const cuda::LtPlans* library_plans() const;
  const cuda::TmaTile* map() const;  // the tensor map (WeightMap), or null

  std::uint32_t num_panels() const { return (n_ + kPanel - 1) / kPanel; }
  // Returns the bytes of the elements of one panel. CPU only.
  static std::int64_t PanelBytes(WeightFormat format, DType dtype, std::uint32_t k);
  std::int64_t panel_bytes() const { return PanelBytes(format(), dtype(), k_); }
  std::int64_t size_bytes() const;
  const void* data() const { return data_.data(); }
  const void* scales() const { return scales_.data(); }  // null for PlainWeights
  // These functions return the memory of the elements and of the scales. Packed files
  // (model.packed_dir) store the contents of both. REQUIRES: packed for the CPU.
  std::span<std::byte> element_memory() const { return data_.bytes(); }
  std::span<std::byte> scale_memory() const { return scales_.bytes(); }
  // Returns W[n][k] as f32, for references and tests. REQUIRES: packed for the CPU.
  float At(std::uint32_t n, std::uint32_t k) const;

 private:
  float PlainAt(std::uint32_t n, std::uint32_t k) const;
  float Fp8At(std::uint32_t n, std::uint32_t k) const;
  float IntegerAt(std::uint32_t n, std::uint32_t k) const;

  std::uint32_t n_ = 0;
  std::uint32_t k_ = 0;
  WeightEncoding encoding_;
  DeviceBuffer data_;
  DeviceBuffer scales_;
};

}  // namespace quire::kernels
