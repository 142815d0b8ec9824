#pragma once

// Writes the K and V rows of a step into their pages: the only writer of KV values.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

struct KvStoreParams {
  const AnyKvView* keys;    // one layer
  const AnyKvView* values;  // the same layer; `keys` itself: rows are both, and v is not read
  const float* k;           // [num_rows, kv_heads, head_size], rotated; rows k_stride apart
  const float* v;           // [num_rows, kv_heads, head_size], rows v_stride apart
  const std::uint32_t* row_offsets;  // [batch_size + 1]: sequence b owns rows [b] .. [b + 1] - 1
  std::int64_t k_stride;
  std::int64_t v_stride;
  std::uint32_t batch_size;
};

// Row i of sequence b goes to position cache_length(b) + i, rounded to the pages' type (to nearest,
// ties to even), or quantised with one scale per head as QuantizeGroup of
// cache_manager/views/kv_quantize.h does, bit for bit. A token without a page is not written.
// Returns INVALID_ARGUMENT as CheckKvStep, or for a stride below the heads.
absl::Status KvStore(const Backend& backend, const KvStoreParams& params);

namespace internal {

// One head as QuantizeGroup makes it; returns its scale.
float QuantizeHeadSimd(const float* x, std::size_t count, std::int8_t* q);
float QuantizeHeadSimd(const float* x, std::size_t count, F8E4M3* q);
// BF16::FromFloat of each.
void NarrowSimd(const float* x, std::size_t count, BF16* to);

// Rows [row_begin, row_end) of the whole step.
void KvStoreCpu(const KvStoreParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
