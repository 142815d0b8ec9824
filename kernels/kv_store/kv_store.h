#pragma once

// Writes the K and V rows of a step into their pages on the CPU. QkvStore, LatentStore and
// IndexStore call KvStore on the CPU. On a GPU, the kernels of these three ops write the pages.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

struct KvStoreParams {
  const AnyKvView* keys;  // one layer
  // V of the same layer. If `values` equals `keys`, rows are both K and V, and v is not read.
  const AnyKvView* values;
  const float* k;  // [num_rows, kv_heads, head_size], rotated; rows k_stride apart
  const float* v;  // [num_rows, kv_heads, head_size], rows v_stride apart
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  std::int64_t k_stride;
  std::int64_t v_stride;
  std::uint32_t batch_size;
};

// Writes row i of sequence b to position cache_length(b) + i. Values are rounded to the page type
// (to nearest, ties to even), or quantized with one scale per head. Quantization gives the same
// bits as QuantizeGroup (cache_manager/views/kv_quantize.h). A token without a page is not written.
// Returns INVALID_ARGUMENT if CheckKvStep does, or if a stride is less than the size of all heads.
absl::Status KvStore(const Backend& backend, const KvStoreParams& params);

namespace internal {

// Quantizes one head like QuantizeGroup. Returns its scale.
float QuantizeHeadSimd(const float* x, std::size_t count, std::int8_t* q);
float QuantizeHeadSimd(const float* x, std::size_t count, F8E4M3* q);
// Applies BF16::FromFloat to each element.
void NarrowSimd(const float* x, std::size_t count, BF16* to);

// Stores rows [row_begin, row_end) of the step.
void KvStoreCpu(const KvStoreParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
