// One block makes the work lists of a step. Sequences are sorted by length in shared memory
// (bitonic sort). The items of each sequence are counted, and a prefix sum gives each sequence its
// first item. Each item then finds its sequence by binary search. Barriers dominate the time:
// sorting 512 sequences takes 45 barriers. The lists equal those of PlanWorkHost item by item.

#include <cstdint>

#include "kernels/attention/attention_work.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/thread.cuh"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;

struct PlanArgs {
  AttentionPlanParams params;
  AttentionWorkShape shape;
  AttentionWorkLists lists;
};

// The number of live sequences, and pointers into shared memory. `items`, `partials` and `merges`
// hold the first index of each live sequence, then the total.
struct Shared {
  std::uint32_t num_live;
  std::uint32_t sorted_size;  // a power of two, at least num_live
  std::uint64_t* sort_keys;
  std::uint32_t* items;
  std::uint32_t* partials;
  std::uint32_t* merges;
  std::uint32_t* scratch;  // [kWarps + 1]
};
constexpr std::uint32_t SharedBytes(std::uint32_t batch, std::uint32_t sorted_size) {
  return 8 * sorted_size + 4 * (3 * (batch + 1) + kWarps + 1);
}

__host__ __device__ constexpr std::uint32_t SortedSize(std::uint32_t count) {
  std::uint32_t size = 1;
  while (size < count) size *= 2;
  return size;
}

struct Sequence {
  std::uint32_t index;
  std::uint32_t first_row;
  std::uint32_t prefill_tokens;
  std::uint32_t decode_tokens;
  std::uint32_t keys;
};

__device__ __forceinline__ std::uint32_t Smaller(std::uint32_t a, std::uint32_t b) {
  return a < b ? a : b;
}

__device__ Sequence ReadSequence(const AttentionPlanParams& params, std::uint32_t b) {
  const std::uint32_t first = params.row_offsets[b];
  const std::uint32_t rows = params.row_offsets[b + 1] - first;
  const std::uint32_t prompt = Smaller(params.prefill_tokens[b], rows);
  return {b, first, prompt, rows - prompt, params.cache_lengths[b] + rows};
}

// Returns the sequence at an index of the sorted order. Its index in the batch is the low half of
// the sort key.
__device__ __forceinline__ Sequence SortedSequence(const PlanArgs& args, const Shared& shared,
                                                   std::uint32_t sorted_index) {
  return ReadSequence(args.params, static_cast<std::uint32_t>(shared.sort_keys[sorted_index]));
}

// Sorts by ascending key: longest sequence first, ties by index.
__device__ void SortSequences(const PlanArgs& args, const Shared& shared) {
  const std::uint32_t n = shared.sorted_size;
  for (std::uint32_t i = cuda::ThreadIndex(); i < n; i += kThreads) {
    std::uint64_t key = ~std::uint64_t{0};
    if (i < shared.num_live) {
      const std::uint32_t sequence = args.params.live_sequences[1 + i];
      key = std::uint64_t{~ReadSequence(args.params, sequence).keys} << 32 | sequence;
    }
    shared.sort_keys[i] = key;
  }
  cuda::SyncBlock();
  for (std::uint32_t size = 2; size <= n; size *= 2) {
    for (std::uint32_t gap = size / 2; gap > 0; gap /= 2) {
      for (std::uint32_t i = cuda::ThreadIndex(); i < n / 2; i += kThreads) {
        const std::uint32_t low = 2 * i - (i & (gap - 1));
        const std::uint32_t high = low + gap;
        const std::uint64_t a = shared.sort_keys[low];
        const std::uint64_t b = shared.sort_keys[high];
        if ((a > b) == ((low & size) == 0)) {
          shared.sort_keys[low] = b;
          shared.sort_keys[high] = a;
        }
      }
      cuda::SyncBlock();
    }
  }
}

// Returns the last i in [0, n) with starts[i] <= x. REQUIRES: x < starts[n].
__device__ std::uint32_t FindStart(const std::uint32_t* starts, std::uint32_t n, std::uint32_t x) {
  std::uint32_t low = 0;
  std::uint32_t high = n;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (starts[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The grid of a sequence's decode items: runs x blocks x KV heads. A run is the consecutive spans
// that one item covers. The first run contains the first key that a decode token sees.
struct DecodeGrid {
  std::uint32_t blocks;
  std::uint32_t spans;
  std::uint32_t spans_per_item;
  std::uint32_t first_run;
  std::uint32_t runs;
};
__device__ DecodeGrid GridOf(const Sequence& s, const AttentionWorkShape& shape,
                             AttentionSplit split) {
  DecodeGrid grid;
  grid.blocks = CeilDiv(s.decode_tokens * shape.group, kDecodeRows);
  grid.spans = CeilDiv(s.keys, kKvSpan);
  grid.spans_per_item = split == AttentionSplit::kSpan    ? 1
                        : split == AttentionSplit::kGroup ? kSpansPerGroup
                                                          : grid.spans;
  grid.first_run = 0;
  grid.runs = 0;
  if (grid.blocks == 0) return grid;
  grid.first_run =
      FirstKey(s.keys, s.decode_tokens, shape.window) / (grid.spans_per_item * kKvSpan);
  grid.runs = CeilDiv(grid.spans, grid.spans_per_item) - grid.first_run;
  return grid;
}

__device__ AttentionSplit SplitOf(const PlanArgs& args, const Shared& shared) {
  const std::uint64_t limit = std::uint64_t{MaxPartials(args.shape.num_sms)} + 1;
  std::uint32_t* const groups = shared.scratch + kWarps;
  if (cuda::ThreadIndex() == 0) *groups = 0;
  cuda::SyncBlock();
  for (std::uint32_t i = cuda::ThreadIndex(); i < shared.num_live; i += kThreads) {
    const Sequence s = SortedSequence(args, shared, i);
    const std::uint32_t first = FirstKey(s.keys, s.decode_tokens, args.shape.window) / kKvGroup;
    const std::uint64_t count =
        std::uint64_t{CeilDiv(s.decode_tokens * args.shape.group, kDecodeRows)} *
        args.shape.num_kv_heads * (CeilDiv(s.keys, kKvGroup) - first);
    cuda::AtomicAdd(groups, static_cast<std::uint32_t>(count < limit ? count : limit));
  }
  cuda::SyncBlock();
  return ChooseSplit(*groups, args.shape.num_sms);
}

__device__ void PlanPrefill(const PlanArgs& args, const Shared& shared) {
  const std::uint32_t n = shared.num_live;
  const AttentionWorkShape& shape = args.shape;
  for (std::uint32_t i = cuda::ThreadIndex(); i < n; i += kThreads) {
    const Sequence s = SortedSequence(args, shared, i);
    shared.items[i] = CeilDiv(s.prefill_tokens * shape.group, kPrefillRows) * shape.num_kv_heads;
  }
  cuda::SyncBlock();
  cuda::ScanCounts<kThreads>(shared.items, n, shared.scratch);
  for (std::uint32_t i = cuda::ThreadIndex(); i < shared.items[n]; i += kThreads) {
    const std::uint32_t sorted_index = FindStart(shared.items, n, i);
    const Sequence s = SortedSequence(args, shared, sorted_index);
    const std::uint32_t packed = s.prefill_tokens * shape.group;
    const std::uint32_t own = i - shared.items[sorted_index];
    const std::uint32_t block = CeilDiv(packed, kPrefillRows) - 1 - own / shape.num_kv_heads;
    AttentionWork item{};
    item.sequence = s.index;
    item.kv_head = own % shape.num_kv_heads;
    item.base_row = s.first_row;
    item.first_row = block * kPrefillRows;
    item.num_rows = Smaller(kPrefillRows, packed - item.first_row);
    item.partial = AttentionWork::kNoPartial;
    args.lists.prefill[i] = item;
  }
  if (cuda::ThreadIndex() == 0) args.lists.counts->prefill = shared.items[n];
  cuda::SyncBlock();
}

__device__ void CountDecode(const PlanArgs& args, const Shared& shared, AttentionSplit split) {
  const std::uint32_t n = shared.num_live;
  for (std::uint32_t i = cuda::ThreadIndex(); i < n; i += kThreads) {
    const DecodeGrid grid = GridOf(SortedSequence(args, shared, i), args.shape, split);
    const std::uint32_t block_heads = grid.blocks * args.shape.num_kv_heads;
    shared.items[i] = block_heads * grid.runs;
    shared.partials[i] = grid.runs > 1 ? block_heads * grid.runs : 0;
    shared.merges[i] = grid.runs > 1 ? block_heads : 0;
  }
  cuda::SyncBlock();
  cuda::ScanCounts<kThreads>(shared.items, n, shared.scratch);
  cuda::ScanCounts<kThreads>(shared.partials, n, shared.scratch);
  cuda::ScanCounts<kThreads>(shared.merges, n, shared.scratch);
}

__device__ void PlanDecode(const PlanArgs& args, const Shared& shared, AttentionSplit split) {
  const std::uint32_t n = shared.num_live;
  const AttentionWorkShape& shape = args.shape;
  for (std::uint32_t i = cuda::ThreadIndex(); i < shared.items[n]; i += kThreads) {
    const std::uint32_t sorted_index = FindStart(shared.items, n, i);
    const Sequence s = SortedSequence(args, shared, sorted_index);
    const DecodeGrid grid = GridOf(s, shape, split);
    const std::uint32_t block_heads = grid.blocks * shape.num_kv_heads;
    const std::uint32_t own = i - shared.items[sorted_index];
    const std::uint32_t run = own / block_heads;
    const std::uint32_t block_head = own % block_heads;
    const std::uint32_t packed = s.decode_tokens * shape.group;
    AttentionWork item;
    item.sequence = s.index;
    item.kv_head = block_head % shape.num_kv_heads;
    item.base_row = s.first_row + s.prefill_tokens;
    item.first_row = block_head / shape.num_kv_heads * kDecodeRows;
    item.num_rows = Smaller(kDecodeRows, packed - item.first_row);
    item.first_span = (grid.first_run + run) * grid.spans_per_item;
    item.num_spans = Smaller(grid.spans_per_item, grid.spans - item.first_span);
    item.partial = AttentionWork::kNoPartial;
    item.merge = 0;
    if (grid.runs > 1) {
      const std::uint32_t first = shared.partials[sorted_index] + block_head * grid.runs;
      item.partial = first + run;
      item.merge = shared.merges[sorted_index] + block_head;
      if (run == 0) {
        args.lists.merge[item.merge] = {first, grid.runs, grid.spans_per_item, item.first_span,
                                        /*arrived=*/0};
      }
    }
    args.lists.decode[i] = item;
  }
  if (cuda::ThreadIndex() == 0) {
    args.lists.counts->decode = shared.items[n];
    args.lists.counts->partials = shared.partials[n];
    args.lists.counts->merge = shared.merges[n];
  }
}

__global__ void __launch_bounds__(kThreads) PlanKernel(const PlanArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  Shared shared;
  shared.num_live = args.params.live_sequences[0];
  shared.sorted_size = SortedSize(shared.num_live);
  const std::uint32_t starts = shared.num_live + 1;
  shared.sort_keys = reinterpret_cast<std::uint64_t*>(cuda::SharedMemory16());
  shared.items = reinterpret_cast<std::uint32_t*>(shared.sort_keys + shared.sorted_size);
  shared.partials = shared.items + starts;
  shared.merges = shared.partials + starts;
  shared.scratch = shared.merges + starts;
  SortSequences(args, shared);
  PlanPrefill(args, shared);
  const AttentionSplit split = SplitOf(args, shared);
  CountDecode(args, shared, split);
  PlanDecode(args, shared, split);
}

}  // namespace

namespace internal {

absl::Status PlanWorkCuda(const CudaContext& context, const AttentionPlanParams& params,
                          const AttentionWorkShape& shape, const AttentionWorkLists& lists) {
  return cuda::Launch(
      context, "attention plan", PlanKernel,
      {.blocks_x = 1,
       .threads = kThreads,
       .shared_bytes = SharedBytes(params.batch_size, SortedSize(params.batch_size)),
       .programmatic = true},
      PlanArgs{params, shape, lists});
}

}  // namespace internal
}  // namespace quire::kernels
