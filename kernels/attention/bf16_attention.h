#pragma once

// Attention with bf16 activations over bf16 pages on the CPU.
//
// Masks, soft caps and sinks are those of PagedAttention (attention.h). Queries and weights are
// rounded to bf16, to nearest even, so that AMX tiles can multiply them with keys and values. With
// f = scale / ln 2 and the tokens j that a row sees:
//
//   s_j = bf16(q * f) . k_j; with a soft cap c then s_j = c' tanh(s_j / c'), c' = c / ln 2
//   for each span of 512 tokens at a multiple of 512:
//     max = max s_j
//     p_j = bf16(2^(s_j - max))
//     partial sum j mod 16 = sum p_j, ascending
//     value = sum p_j v_j
//
// The scores and the values are products in the arithmetic of bf16_linear.h, which sums in blocks
// of 32 products. A block of a score is 32 columns, and the last block is padded with zeros. A
// block of a value is 32 tokens at a multiple of 32. Tokens that a row does not see do not affect
// the row, not even if they are NaN. A value that is zero has a positive sign. All other arithmetic
// is ordinary f32, with a fused multiply-add where the reference has one. Spans are reduced as in
// attention.h.
//
// The partial sums add the rounded weights, so that the normalized weights of a row add up to 1.
// All instruction sets, batches and prompt chunks give the same bits, except for the bits of NaNs.

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/bf16_product.h"

namespace quire::kernels::internal {

// Number of tiles of 16 packed rows that are multiplied together.
inline constexpr std::size_t kBf16RowTiles = 2;

// Returns the number of columns of a head in its key tiles: head_size rounded up to a multiple of
// 32.
constexpr std::uint32_t KeyColumns(std::uint32_t head_size) {
  return (head_size + 31) / 32 * 32;
}
// Returns the bytes of scratch memory of an item with at most `kv_heads` KV heads. `packed_rows` is
// the number of packed rows of all its KV heads together.
std::size_t Bf16AttentionScratchBytes(std::uint32_t head_size, std::uint32_t kv_heads,
                                      std::size_t packed_rows);

// Runs one step. `multiply` computes the products. Null selects vector code, or the reference if
// the instruction set has no fused multiply-add. REQUIRES: bf16 pages; the arguments were checked.
void PagedAttentionBf16(const Backend& backend, const AttentionParams& params,
                        Bf16MultiplyFn multiply);

// The reference implementation, for rows [row_begin, row_end) of the step.
void AttentionBf16Cpu(const AttentionParams& params, std::int64_t row_begin, std::int64_t row_end);

// Processes one item. `scratch` is aligned to 64 bytes.
void AttentionBf16Simd(const AttentionParams& params, const AttentionItem& item,
                       Bf16MultiplyFn multiply, std::byte* scratch);

}  // namespace quire::kernels::internal
