#pragma once

// The recurrence of recurrent layers: the gated delta rule and the state space model of Mamba-2.

#include <cstdint>

#include "absl/status/status.h"
#include "base/host_device.h"
#include "kernels/backend/backend.h"
#include "kernels/recurrent/state_rows.h"

namespace quire::kernels {

// Maximum number of rows of a head's state. The number of rows is key_size.
inline constexpr std::uint32_t kMaxStateRows = 256;

struct StateScanParams {
  StateRows rows;               // state [heads, key_size, value_size]
  const float* q;               // [tokens, key_heads, key_size], rows qkv_stride apart
  const float* k;               // as q
  const float* v;               // [tokens, heads, value_size], rows qkv_stride apart
  const float* decay;           // [tokens, heads], or [tokens, heads, key_size] if per channel
  const float* rate;            // [tokens, heads]
  const float* skip = nullptr;  // [heads]; null: none
  float* out;                   // [tokens, heads, value_size]
  std::int64_t qkv_stride;
  std::uint32_t heads;
  std::uint32_t key_heads;  // head h reads q and k of key head h / (heads / key_heads)
  std::uint32_t key_size;
  std::uint32_t value_size;
  bool decays_channels = false;
  bool delta = true;
  bool tiles_key_heads = false;  // true: head h reads key head h % key_heads instead

  QUIRE_HOST_DEVICE std::uint32_t key_head(std::uint32_t head) const {
    return tiles_key_heads ? head % key_heads : head / (heads / key_heads);
  }
};

// Computes for each head of each row, token by token, in f32:
//
//   S = decay * S        row i of S times decay_i if decays_channels
//   u = rate * (v - S^T k) with delta, else rate * v
//   S = S + k u^T
//   out = S^T q + skip * v
//
// S is [key_size, value_size], zero before the first token of a sequence. Sums over key_size are
// ascending, in one accumulator per column. On a GPU a column has 16 accumulators, or 32 for
// key_size above 128. Row i of S is added to accumulator i modulo their number, and the
// accumulators are added in a fixed order. A token's result depends only on the state before it and
// on its own inputs, so any division of a sequence into steps gives the same bits. On a GPU this
// requires finite values. Returns INVALID_ARGUMENT if heads is not a multiple of key_heads,
// key_size is not 1 to kMaxStateRows, value_size is 0 or qkv_stride is too small.
absl::Status StateScan(const Backend& backend, const StateScanParams& params);

namespace internal {

// Number of columns of value_size that are computed together.
inline constexpr std::uint32_t kScanColumns = 64;

// Both compute columns [begin, end), at most kScanColumns, of one head of a batch row. StateScanCpu
// is the reference, StateScanSimd the fast path.
void StateScanCpu(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
                  std::uint32_t begin, std::uint32_t end);
void StateScanSimd(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
                   std::uint32_t begin, std::uint32_t end);

absl::Status StateScanCuda(const CudaContext& context, const StateScanParams& params);

}  // namespace internal
}  // namespace quire::kernels
