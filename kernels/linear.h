#pragma once

// y = x W^T + bias + residual for weights of 16 and 32 bits, and the packed form those are kept in.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "kernels/backend.h"
#include "kernels/float_ptr.h"

namespace quire::kernels {

// A weight matrix [N, K] cut into panels of 16 output features, so that a thread streams whole
// panels and vector lanes run along N. The same bytes for every instruction set.
//
//   panel p, 16-bit types:  [ceil(K/2)][16][2]   features p*16 ..., inputs 2j and 2j + 1 side by
//   side panel p, f32:           [ceil(K/2)*2][16]
//
// Place:      made once at load by PackLinearWeight, read by Linear.
// Invariants: features beyond N and an input beyond an odd K are zero.
// Threads:    immutable.
// Lifetime:   owns its memory; movable.
class PackedLinear {
 public:
  static constexpr std::uint32_t kPanel = 16;

  PackedLinear() = default;

  std::uint32_t n() const { return n_; }
  std::uint32_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  std::uint32_t num_panels() const { return (n_ + kPanel - 1) / kPanel; }
  std::int64_t panel_bytes() const {
    return (std::int64_t{k_} + 1) / 2 * 2 * kPanel * DTypeSize(dtype_);
  }
  std::int64_t size_bytes() const { return num_panels() * panel_bytes(); }
  const void* data() const { return data_.data(); }
  // W[n][k] as f32: for references and tests.
  float At(std::uint32_t n, std::uint32_t k) const;

 private:
  friend class LinearPacker;
  std::uint32_t n_ = 0;
  std::uint32_t k_ = 0;
  DType dtype_ = DType::kInvalid;
  DeviceBuffer data_;
};

// Rows of a stored matrix, [num_rows, K] without gaps; any alignment, for mapped files promise
// none.
struct WeightRows {
  const void* data;
  std::uint32_t num_rows;
};

// Packs matrices that share K and dtype one below the other, such as Q, K and V, so that one Linear
// computes them all. Returns INVALID_ARGUMENT for a dtype other than f32, bf16, f16, for no rows,
// or for K = 0.
absl::StatusOr<PackedLinear> PackLinearWeights(const Backend& backend,
                                               std::span<const WeightRows> sources, DType dtype,
                                               std::uint32_t k);
absl::StatusOr<PackedLinear> PackLinearWeight(const Backend& backend, const void* w, DType dtype,
                                              std::uint32_t n, std::uint32_t k);

struct LinearParams {
  ConstFloatPtr x;              // [num_rows, K], rows x_stride apart
  const PackedLinear* weight;   // [N, K]
  const float* bias = nullptr;  // [N]; null: none
  const float* residual =
      nullptr;            // [num_rows, N], rows residual_stride apart; null: none; may be y
  FloatPtr y;             // [num_rows, N], rows y_stride apart; overlaps no input but residual
  std::int64_t x_stride;  // elements, at least K
  std::int64_t residual_stride = 0;  // elements, at least N when there is a residual
  std::int64_t y_stride;             // elements, at least N
  std::uint32_t num_rows;
};

// y[m][n] = (sum_k x[m][k] W[n][k] + bias[n]) + residual[m][n], weights widened to f32. K is cut
// into parts of 256; inside a part one chain of fused multiply-adds with k ascending; parts are
// added in order. So an output has the same bits whatever num_rows, the row's place and the thread
// count. Returns INVALID_ARGUMENT on a stride below its row.
absl::Status Linear(const Backend& backend, const LinearParams& params);

namespace internal {

inline constexpr std::uint32_t kLinearPart = 256;

// The plain reference, one thread.
void LinearCpu(const LinearParams& params);
// Panels [panel_begin, panel_end) of all rows.
void LinearSimd(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end);

}  // namespace internal
}  // namespace quire::kernels
