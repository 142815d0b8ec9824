#pragma once

// Causal attention of new rows over paged K and V: prefill and decode in one op, any head size,
// grouped or single KV heads, whole contexts or windows.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {
namespace cuda {
class KvTensorMaps;
}

struct AttentionParams {
  const AnyKvView* keys;             // one layer, with this step's rows already stored
  const AnyKvView* values;           // the same layer
  ConstFloatPtr q;                   // [num_rows, num_heads, head_size], rows q_stride apart
  FloatPtr out;                      // [num_rows, num_heads, head_size], rows out_stride apart
  const std::uint32_t* row_offsets;  // [batch_size + 1]: sequence b owns rows [b] .. [b + 1] - 1
  std::int64_t q_stride;
  std::int64_t out_stride;
  std::uint32_t batch_size;
  std::uint32_t num_heads;  // query heads, a multiple of the views' heads
  float scale;              // on q . k, usually head_size^-0.5
  // CUDA: the plan that PlanAttention made of this step's rows, for this window or a longer one.
  // Null on the CPU.
  const AttentionPlan* plan = nullptr;
  // CUDA: the tensor maps of the pool (kv_tensor_maps.h) and which of its layers the views are, of
  // latent rows the layer of LatentView. Null: the kernels that need none run.
  const cuda::KvTensorMaps* maps = nullptr;
  std::uint32_t layer = 0;
  std::uint32_t window = 0;      // tokens that a row sees, itself included; 0: all
  float softcap = 0;             // of scores; 0: none
  const float* sinks = nullptr;  // [num_heads] in the memory of the backend; null: none
  // Columns of the values that are wanted, from the first on; 0: all. What lies beyond them in the
  // heads of out is undefined.
  std::uint32_t value_columns = 0;
};

// Row i of sequence b has position p = cache_length(b) + i and sees keys j of 0 .. p, with a window
// those with p - window < j (attention_mask.h):
//   s_j = scale * q[h] . k_j, with a soft cap c tanh(s_j / c)
//   out[h] = sum_j e^s_j v_j / (sum_j e^s_j + e^sink[h]), with KV head h / (num_heads / kv_heads),
// the last term with sinks only.
//
// f32 throughout, in a tree that depends on p and the window alone, so chunks, batch, page ids and
// threads cannot change a bit. A score is one chain of FMAs over the columns ascending, of q times
// scale / ln 2. A tile of 64 tokens at a multiple of 64 is one online-softmax step in powers of 2:
// token j adds its weight to part j mod 16 of the sum, ascending, and its value to each column,
// ascending. A span of 512 tokens has a state of its own; spans are reduced left to right, and the
// parts of the sum become one at the end, where a sink joins it. Keys beyond p are never read, nor
// are strips of 16 keys at multiples of 16 that lie before the windows of all rows of a sequence.
// int8 and fp8_e4m3 pages have one scale per token and head, which multiplies the score, and the
// weight before it meets the value. Returns INVALID_ARGUMENT as CheckKvStep, for head counts that
// do not divide, a stride below the heads, or a negative soft cap.
//
// CUDA: lengths are device memory and are not checked. q and out are f32, or bf16, both of one
// type. bf16 over bf16, f16, or one-byte pages with one scale per token and head, for heads of 16
// to 128 columns in steps of 16, over bf16 pages to 256, runs on tensor cores: products of 16-bit
// values, f32 sums, in the orders of attention_work.h, which differ between prefill tokens and
// decode tokens; q and out rows are aligned to 8 bytes. With tensor maps (heads of 64 to 128
// columns, and latent rows), compute capability 9.0 and rows aligned to 16 bytes, kernels of their
// own run: prefill tokens over all of these pages in another order, decode tokens over bf16 and f16
// pages with the same bits. Everything else runs in the scalar kernel, heads up to 576 columns,
// which needs no plan. Tiles of 64 keys, of 128 in prefill with tensor maps, before the windows of
// all rows of a work item are not read; keys before them in the first tile that is read are
// multiplied by zero. Latent rows: bf16 over one KV head of 144 to 576 columns of bf16 in steps of
// 16, whose first value_columns, a multiple of 8 up to 512, are the values (`values` is `keys`),
// without window, soft cap and sinks, has a tensor-core kernel of its own, and with tensor maps and
// rows aligned to 16 bytes another on 9.0, each with one reduction order for prefill and decode
// tokens. They need the plan, for its memory.
absl::Status PagedAttention(const Backend& backend, const AttentionParams& params);

namespace internal {

inline constexpr std::uint32_t kAttentionTile = 64;
inline constexpr std::uint32_t kAttentionStrip = 16;  // tokens whose keys are turned together
inline constexpr std::uint32_t kAttentionSpan = 512;
inline constexpr std::uint32_t kAttentionBlockRows = 8;  // most query rows that share registers

// Some rows of one sequence on some KV heads, over some spans.
struct AttentionItem {
  std::uint32_t sequence;
  std::uint32_t kv_head;
  std::uint32_t num_kv_heads;
  std::uint32_t row_begin;  // inside the sequence
  std::uint32_t num_rows;
  std::uint32_t span_begin;
  std::uint32_t span_end;
  // Where the states of these spans go when they are reduced later, one span partial_stride floats
  // after the other, [KV head][row][head in group][StateFloats] each; null: reduce here and write
  // the output.
  float* partial;
  std::size_t partial_stride;
};

// Columns of a head in scratch memory: a multiple of the 16 virtual lanes.
constexpr std::uint32_t PaddedColumns(std::uint32_t head_size) {
  return (head_size + 15) / 16 * 16;
}
// Floats of a state: columns, maximum with a gap that keeps what follows aligned, 16 parts of the
// sum.
constexpr std::size_t StateFloats(std::uint32_t head_size) {
  return PaddedColumns(head_size) + 2 * kAttentionStrip;
}
// Scratch of one item of that many packed rows: query rows times query heads.
std::size_t AttentionScratchBytes(std::uint32_t head_size, std::size_t packed_rows);

absl::Status PagedAttentionCuda(const CudaContext& context, const AttentionParams& params);

// Plain reference: the whole op, one thread, two passes of softmax.
void AttentionCpu(const AttentionParams& params);
// `next`: the item that this thread probably takes next, whose first tokens may be fetched into its
// caches; null: none. No bit depends on it.
void AttentionSimd(const AttentionParams& params, const AttentionItem& item,
                   const AttentionItem* next, std::byte* scratch);
// Reduces the states at item.partial for spans [span_begin, span_end) and writes the output.
void AttentionReductionSimd(const AttentionParams& params, const AttentionItem& item);

}  // namespace internal
}  // namespace quire::kernels
