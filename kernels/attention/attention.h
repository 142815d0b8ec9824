#pragma once

// Causal attention of new rows over paged K and V. One op serves prefill and decode, any head size,
// grouped or single KV heads, and full or windowed contexts.

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
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  std::int64_t q_stride;
  std::int64_t out_stride;
  std::uint32_t batch_size;
  std::uint32_t num_heads;  // query heads, a multiple of the KV heads
  float scale;              // factor of q . k, usually head_size^-0.5
  // CUDA: the plan that PlanAttention made for this step. The plan's AttentionPlanLimits::window is
  // either 0 or not less than this layer's `window` or `chunk`. Null on the CPU.
  const AttentionPlan* plan = nullptr;
  // CUDA: the tensor maps of the KV pool (kv_tensor_maps.h). If null, kernels without tensor maps
  // run. `layer` is the layer of the views, for MLA the layer argument of LatentView.
  const cuda::KvTensorMaps* maps = nullptr;
  std::uint32_t layer = 0;
  // CUDA, set by SparseAttention: [1 + batch_size], the number of sequences with rows, then their
  // indices. If set, PagedAttention uses the memory of `plan` but not its work lists, and ignores
  // `maps`. If null, it uses the plan's live sequences.
  const std::uint32_t* live_sequences = nullptr;
  std::uint32_t window = 0;      // number of tokens that a row sees, including its own; 0: no limit
  std::uint32_t chunk = 0;       // tokens per chunk; a row sees only its own chunk; 0: no chunks
  float softcap = 0;             // soft cap of scores; 0: none
  const float* sinks = nullptr;  // [num_heads] in the backend's memory; null: none
  // Number of value columns to compute, starting with the first; 0: all. Other columns of the heads
  // in `out` are undefined.
  std::uint32_t value_columns = 0;
};

// Row i of sequence b has position p = cache_length(b) + i and sees keys 0 .. p. With a window it
// sees only keys j > p - window, with a chunk only keys j with j / chunk == p / chunk
// (attention_mask.h):
//   s_j = scale * q[h] . k_j; with a soft cap c then s_j = c tanh(s_j / c)
//   out[h] = sum_j e^s_j v_j / (sum_j e^s_j + e^sink[h])
// Query head h reads KV head h / (num_heads / kv_heads). The term e^sink[h] is added only with
// sinks.
//
// CPU: with bf16 activations and bf16 pages, bf16_attention.h defines the arithmetic. In all other
// cases all arithmetic is in f32. The reduction order depends only on p and the first key that the
// row sees. Prompt chunking, batching, page ids and threads therefore do not change any bit. A
// score is one ascending chain of FMAs over the columns of q * (scale / ln 2) and k. Each tile of
// 64 tokens, beginning at a multiple of 64, is one step of the online softmax, whose powers have
// base 2. The sum of the weights is kept as 16 partial sums: token j adds its weight to partial sum
// j mod 16. Tokens are added to the partial sums and to each value column in ascending order. Each
// span of 512 tokens has a separate state. Spans are reduced left to right. At the end the partial
// sums are added, then the sink. Keys beyond p are never read. Strips of 16 keys at multiples of 16
// are not read if they precede the first visible key of all rows of a sequence.
//
// int8 and fp8_e4m3 pages have one scale per token and head. The K scale multiplies the score, the
// V scale multiplies the weight.
//
// Returns INVALID_ARGUMENT if CheckKvStep does, or if num_heads is not a multiple of the number of
// KV heads. Returns INVALID_ARGUMENT if a stride is less than the size of all heads, value_columns
// exceeds the head size, the soft cap is negative, or window and chunk are combined.
//
// CUDA: lengths are in device memory and are not checked. q and out have the same type, f32 or
// bf16.
//
// Tensor cores are used for bf16 activations over bf16 pages, or one-byte pages with one scale per
// token and head. The head size must be a multiple of 16 and at most 128 (256 over bf16 pages).
// Products of 16-bit values are summed in f32. The reduction order (attention_work.h) differs
// between prefill and decode tokens. Rows of q and out must be aligned to 8 bytes. On compute
// capability 9.0, Hopper kernels replace these kernels. The Hopper kernels require tensor maps, a
// head size of 64 to 128 (or MLA cache rows), rows aligned to 16 bytes and a positive scale. Hopper
// prefill supports all of these pages and uses another reduction order. Hopper decode supports only
// bf16 pages and gives the same bits as portable decode.
//
// The scalar kernel runs in all other cases. It supports heads of up to 576 columns and needs no
// plan.
//
// A tile of 64 keys (128 in prefill with tensor maps) is not read if it precedes the windows or
// chunks of all rows of a work item. In the first tile that is read, keys before a row's window or
// chunk have weight zero.
//
// MLA cache rows have a separate tensor-core kernel. It requires bf16 activations and one bf16 KV
// head of 144 to 576 columns, a multiple of 16. `values` equals `keys`. The values are the first
// value_columns columns, a multiple of 8 and at most 512. This kernel supports no window, chunk,
// soft cap or sinks. On compute capability 9.0, a Hopper kernel replaces it if there are tensor
// maps, rows are aligned to 16 bytes and the scale is positive. Each of the two MLA kernels uses
// one reduction order for prefill and decode tokens. Both store partial results in the memory of
// the plan.
absl::Status PagedAttention(const Backend& backend, const AttentionParams& params);
// Returns an upper bound, for pages of any dtype, of the bytes of each Backend::workspace that
// PagedAttention uses on the CPU. `group` is the number of query heads per KV head.
std::int64_t AttentionThreadBytes(CpuActivations activations, std::uint32_t head_size,
                                  std::uint32_t kv_heads, std::uint32_t group);

namespace internal {

inline constexpr std::uint32_t kAttentionTile = 64;
inline constexpr std::uint32_t kAttentionStrip = 16;  // tokens whose keys are transposed together
inline constexpr std::uint32_t kAttentionSpan = 512;
// Maximum number of query rows whose sums are in registers at the same time.
inline constexpr std::uint32_t kAttentionBlockRows = 8;

// A work item: a block of rows of one sequence, for some KV heads, over some spans.
struct AttentionItem {
  std::uint32_t sequence;
  std::uint32_t kv_head;
  std::uint32_t num_kv_heads;
  std::uint32_t row_begin;  // relative to the sequence
  std::uint32_t num_rows;
  std::uint32_t span_begin;
  std::uint32_t span_end;
  // If not null, the item stores the states of its spans here, and they are reduced later. The
  // states of consecutive spans are partial_stride floats apart, each [KV head][row][head in
  // group][StateFloats]. If null, the item reduces its states and writes the output.
  float* partial;
  std::size_t partial_stride;
};

// Returns the number of columns of a head in scratch memory, which is a multiple of 16.
constexpr std::uint32_t PaddedColumns(std::uint32_t head_size) {
  return (head_size + 15) / 16 * 16;
}
// Returns the number of floats of a state: the columns, the maximum (padded for alignment) and 16
// partial sums of the weights.
constexpr std::size_t StateFloats(std::uint32_t head_size) {
  return PaddedColumns(head_size) + 2 * kAttentionStrip;
}
// Returns the bytes of scratch memory of an item with `packed_rows` packed rows (query rows times
// query heads).
std::size_t AttentionScratchBytes(std::uint32_t head_size, std::size_t packed_rows);

absl::Status PagedAttentionCuda(const CudaContext& context, const AttentionParams& params);

// Reference implementation of the whole op: one thread, two-pass softmax.
void AttentionCpu(const AttentionParams& params);
// Processes one item. `next` is the item that this thread will probably process next, or null. Its
// first tokens may be prefetched, which does not affect results.
void AttentionSimd(const AttentionParams& params, const AttentionItem& item,
                   const AttentionItem* next, std::byte* scratch);
// Reduces the states at item.partial for spans [span_begin, span_end) and writes the output.
void AttentionReductionSimd(const AttentionParams& params, const AttentionItem& item);

}  // namespace internal
}  // namespace quire::kernels
