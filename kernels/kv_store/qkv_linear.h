#pragma once

// From the input of attention to its queries and pages: the product for q, k and v, and QkvStore.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

struct QkvLinearParams {
  ConstFloatPtr x;              // [store.num_rows, K], rows x_stride apart
  const PackedLinear* weight;   // [(num_heads + 2 * kv_heads) * head_size, K]
  const float* bias = nullptr;  // of each output; null: none
  std::int64_t x_stride;        // elements, at least K
  QkvStoreParams store;         // of the product, which qkv receives
};

// Linear into store.qkv and QkvStore, one after the other, bit for bit, with their errors. On a GPU
// a single launch where the product is one of tensor cores and of bf16 weights, not the library's,
// rows are few (kMaxQkvRows), pages are of bf16 and heads of a size that divides 128: then a block
// has whole heads, whatever the split of K, and each head is a warp's.
absl::Status QkvLinear(const Backend& backend, const QkvLinearParams& params);

namespace internal {

inline constexpr std::uint32_t kMaxQkvRows = 8;

// Whether QkvLinearCuda takes it.
bool StoresAtOnce(const QkvLinearParams& params);
absl::Status QkvLinearCuda(const CudaContext& context, const QkvLinearParams& params);

}  // namespace internal
}  // namespace quire::kernels
