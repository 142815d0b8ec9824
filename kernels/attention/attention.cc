#include "kernels/attention/attention.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_shares.h"
#include "kernels/attention/bf16_attention.h"

namespace quire::kernels {
namespace internal {
namespace {

// Limits of the packed rows of an item, summed over its KV heads. There must be enough rows to
// amortize transposing and widening a tile, and few enough that the states stay in L2. The limits
// do not affect results.
constexpr std::uint32_t kMaxPackedRows = 128;
constexpr std::uint32_t kMinPackedRows = 16;
// Desired number of items per thread, so that all threads finish at about the same time.
constexpr std::int64_t kItemsPerThread = 4;

std::uint32_t SpansOf(std::uint32_t keys) {
  return (keys + kAttentionSpan - 1) / kAttentionSpan;
}

// The work list of one call. An item is a block of rows of one sequence for one KV head. If there
// are few rows, an item covers several KV heads, because the heads of a token are adjacent in a
// page. A block whose cost is high compared with the average cost per thread is split by spans.
class Plan {
 public:
  Plan(const AttentionParams& params, int num_threads)
      : params_(params),
        shape_(KvShapeOf(*params.keys)),
        cache_lengths_(
            std::visit([](const auto& view) { return view.cache_lengths; }, *params.keys)),
        group_(params.num_heads / shape_.num_heads),
        rows_per_item_(std::clamp(kMaxPackedRows / group_, 1u, kMaxPackedRows)),
        heads_per_item_(shape_.num_heads) {
    const std::int64_t wanted = num_threads == 1 ? 1 : num_threads * kItemsPerThread;
    while (heads_per_item_ > 1 && CountSpans() < wanted) {
      heads_per_item_ = (heads_per_item_ + 1) / 2;
    }
    // Makes blocks smaller before splitting any by spans, because a split block keeps one state per
    // row and span.
    while (rows_per_item_ > 1 && rows_per_item_ * group_ > kMinPackedRows &&
           CountBlocks() < wanted) {
      rows_per_item_ = (rows_per_item_ + 1) / 2;
    }
    ForEachBlock([&](const AttentionItem& block) { total_cost_ += Cost(block); });
    max_item_cost_ =
        num_threads == 1 ? total_cost_ : std::max<std::int64_t>(total_cost_ / wanted, 1);
    while (max_item_cost_ < total_cost_ && CountPartialFloats() > MaxPartialFloats())
      max_item_cost_ *= 2;
    ForEachBlock([&](const AttentionItem& block) {
      max_packed_rows_ = std::max(max_packed_rows_, PackedRows(block));
      const std::uint32_t run = SpansPerRun(block);
      num_items_ += (NumSpans(block) + run - 1) / run;
      if (run == NumSpans(block)) return;
      ++num_reductions_;
      num_partial_floats_ += NumSpans(block) * block.partial_stride;
    });
  }

  std::int64_t num_items() const { return num_items_; }
  std::int64_t num_reductions() const { return num_reductions_; }
  // Returns the number of packed rows of the largest item.
  std::size_t packed_rows() const { return max_packed_rows_; }
  std::size_t list_bytes() const {
    const auto entries = static_cast<std::size_t>(num_items_ + num_reductions_);
    return (entries * sizeof(AttentionItem) + 63) / 64 * 64;
  }
  std::size_t memory_bytes() const { return list_bytes() + num_partial_floats_ * sizeof(float); }

  // Fills items[num_items()], highest cost first, and reductions[num_reductions()].
  void Fill(AttentionItem* items, AttentionItem* reductions, float* partial) const {
    AttentionItem* item = items;
    ForEachBlock([&](AttentionItem block) {
      const std::uint32_t run = SpansPerRun(block);
      if (run == NumSpans(block)) {
        *item++ = block;
        return;
      }
      block.partial = partial;
      *reductions++ = block;
      for (std::uint32_t span = block.span_begin; span < block.span_end; span += run) {
        *item = block;
        item->span_begin = span;
        item->span_end = std::min(block.span_end, span + run);
        item->partial = partial + (span - block.span_begin) * block.partial_stride;
        ++item;
      }
      partial += NumSpans(block) * block.partial_stride;
    });
    // Sorts the items by cost. Items for different heads of the same tokens stay adjacent, so that
    // threads share the cache lines that they load.
    std::sort(items, item, [&](const AttentionItem& a, const AttentionItem& b) {
      const std::int64_t cost_a = Cost(a), cost_b = Cost(b);
      if (cost_a != cost_b) return cost_a > cost_b;
      return std::tie(a.sequence, a.row_begin, a.span_begin, a.kv_head) <
             std::tie(b.sequence, b.row_begin, b.span_begin, b.kv_head);
    });
  }

  // Returns the approximate cost of an average item in nanoseconds.
  double item_nanoseconds() const {
    return static_cast<double>(total_cost_) /
           static_cast<double>(std::max<std::int64_t>(num_items_, 1)) * shape_.head_size * 0.02;
  }

 private:
  std::size_t PackedRows(const AttentionItem& block) const {
    return std::size_t{block.num_rows} * group_ * block.num_kv_heads;
  }

  static std::uint32_t NumSpans(const AttentionItem& block) {
    return block.span_end - block.span_begin;
  }

  // Returns the first key that row `row` of sequence b sees. Later rows do not see earlier keys.
  std::uint32_t FirstKey(std::uint32_t b, std::uint32_t row) const {
    return FirstVisible(cache_lengths_[b] + row, params_.window, params_.chunk);
  }

  // Returns the cost of an item: its tokens times the cost per token. A token costs 1 per row, plus
  // kReadAsRows for loading it.
  std::int64_t Cost(const AttentionItem& item) const {
    constexpr std::int64_t kReadAsRows = 8;
    const std::uint32_t keys = cache_lengths_[item.sequence] + item.row_begin + item.num_rows;
    const std::uint32_t begin =
        std::max(FirstKey(item.sequence, item.row_begin), item.span_begin * kAttentionSpan);
    const std::uint32_t end = std::min(keys, item.span_end * kAttentionSpan);
    return std::int64_t{end - begin} * item.num_kv_heads *
           (std::int64_t{item.num_rows} * group_ + kReadAsRows);
  }

  // Returns the number of spans per item of this block: all spans if their cost is at most
  // max_item_cost_, otherwise fewer.
  std::uint32_t SpansPerRun(const AttentionItem& block) const {
    const std::int64_t cost = Cost(block);
    if (cost <= max_item_cost_) return NumSpans(block);
    const std::int64_t runs = (cost + max_item_cost_ - 1) / max_item_cost_;
    return static_cast<std::uint32_t>((NumSpans(block) + runs - 1) / runs);
  }

  std::uint32_t HeadsPerItem(std::uint32_t rows) const {
    return std::clamp(kMaxPackedRows / (rows * group_), 1u, heads_per_item_);
  }

  std::size_t CountPartialFloats() const {
    std::size_t floats = 0;
    ForEachBlock([&](const AttentionItem& block) {
      if (SpansPerRun(block) < NumSpans(block)) floats += NumSpans(block) * block.partial_stride;
    });
    return floats;
  }

  // Returns the maximum number of floats for states that await reduction. The limit always allows
  // the states of one row per sequence, because a few long sequences must be divided among many
  // threads.
  std::size_t MaxPartialFloats() const {
    std::size_t spans = 0;
    for (std::uint32_t b = 0; b < params_.batch_size; ++b) {
      const std::uint32_t rows = params_.row_offsets[b + 1] - params_.row_offsets[b];
      if (rows == 0) continue;
      spans += SpansOf(cache_lengths_[b] + rows) - FirstKey(b, 0) / kAttentionSpan;
    }
    return kAttentionPartialBytes / sizeof(float) +
           spans * params_.num_heads * StateFloats(shape_.head_size);
  }

  // Returns an upper bound of the number of items.
  std::int64_t CountSpans() const {
    std::int64_t spans = 0;
    ForEachBlock([&](const AttentionItem& block) { spans += NumSpans(block); });
    return spans;
  }

  std::int64_t CountBlocks() const {
    std::int64_t blocks = 0;
    ForEachBlock([&](const AttentionItem&) { ++blocks; });
    return blocks;
  }

  template <typename Fn>
  void ForEachBlock(Fn&& fn) const {
    for (std::uint32_t b = 0; b < params_.batch_size; ++b) {
      const std::uint32_t rows = params_.row_offsets[b + 1] - params_.row_offsets[b];
      for (std::uint32_t begin = 0; begin < rows; begin += rows_per_item_) {
        const std::uint32_t count = std::min(rows_per_item_, rows - begin);
        const std::uint32_t heads = HeadsPerItem(count);
        for (std::uint32_t h = 0; h < shape_.num_heads; h += heads) {
          AttentionItem block{b,
                              h,
                              std::min(heads, shape_.num_heads - h),
                              begin,
                              count,
                              FirstKey(b, begin) / kAttentionSpan,
                              SpansOf(cache_lengths_[b] + begin + count),
                              nullptr,
                              0};
          block.partial_stride = PackedRows(block) * StateFloats(shape_.head_size);
          fn(block);
        }
      }
    }
  }

  const AttentionParams& params_;
  const KvShape shape_;
  const std::uint32_t* const cache_lengths_;
  const std::uint32_t group_;
  std::uint32_t rows_per_item_;
  std::uint32_t heads_per_item_;
  std::size_t max_packed_rows_ = 0;
  std::size_t num_partial_floats_ = 0;
  std::int64_t total_cost_ = 0;
  std::int64_t max_item_cost_ = 0;
  std::int64_t num_items_ = 0;
  std::int64_t num_reductions_ = 0;
};

// Divides a step into items and calls attend(item, next, scratch) for each item. `next` is the item
// that the thread will probably process next, or null. scratch_bytes(packed_rows) is the size of
// `scratch`.
template <typename ScratchBytes, typename Attend>
void RunItems(const Backend& backend, const AttentionParams& params,
              const ScratchBytes& scratch_bytes, const Attend& attend) {
  const Plan plan(params, backend.num_threads());
  std::byte* const memory = backend.op_workspace().Reserve(plan.memory_bytes());
  auto* const items = reinterpret_cast<AttentionItem*>(memory);
  auto* const reductions = items + plan.num_items();
  plan.Fill(items, reductions, reinterpret_cast<float*>(memory + plan.list_bytes()));

  const std::size_t scratch = scratch_bytes(plan.packed_rows());
  backend.ReserveWorkspaces(scratch);
  backend.ParallelItems(plan.num_items(), plan.item_nanoseconds(), [&](std::int64_t i, int part) {
    // Passes the item that this thread processes next if threads take items in turn, as they do
    // when items cost about the same. Otherwise another thread processes the prefetched item.
    const std::int64_t next = i + backend.num_threads();
    attend(items[i], next < plan.num_items() ? &items[next] : nullptr,
           backend.workspace(part).Reserve(scratch));
  });
  backend.ParallelItems(plan.num_reductions(), plan.item_nanoseconds(), [&](std::int64_t i, int) {
    AttentionReductionSimd(params, reductions[i]);
  });
}

}  // namespace

void PagedAttentionBf16(const Backend& backend, const AttentionParams& params,
                        Bf16MultiplyFn multiply) {
  if (multiply == nullptr) multiply = Bf16MultiplyVectors();
  const KvShape shape = KvShapeOf(*params.keys);
  if (multiply == nullptr) {
    // Nanoseconds per row. The reference is slow, so each thread may process as little as one row.
    const double work = 1e6;
    return backend.ParallelFor(
        params.row_offsets[params.batch_size], work,
        [&](std::int64_t begin, std::int64_t end, int) { AttentionBf16Cpu(params, begin, end); });
  }
  RunItems(
      backend, params,
      [&](std::size_t packed_rows) {
        return Bf16AttentionScratchBytes(shape.head_size, shape.num_heads, packed_rows);
      },
      [&](const AttentionItem& item, const AttentionItem*, std::byte* scratch) {
        AttentionBf16Simd(params, item, multiply, scratch);
      });
}

AttentionShares ShareAttention(const AttentionParams& params, int num_threads) {
  const Plan plan(params, num_threads);
  return {plan.num_items(), plan.num_reductions(), plan.memory_bytes()};
}

std::size_t AttentionScratchBytes(std::uint32_t head_size, std::size_t packed_rows) {
  const std::size_t columns = PaddedColumns(head_size);
  // The first term is transposed keys, widened values and a staged strip. The second is weights of
  // a block and scales of a tile. The third is queries and two states per row, the state of the
  // span and the reduced state.
  return ((2 * kAttentionTile + kAttentionStrip) * columns +
          (kAttentionBlockRows + 2) * kAttentionTile +
          packed_rows * (columns + 2 * StateFloats(head_size))) *
         sizeof(float);
}

}  // namespace internal

std::int64_t AttentionThreadBytes(CpuActivations activations, std::uint32_t head_size,
                                  std::uint32_t kv_heads, std::uint32_t group) {
  // An item has at least all query heads that share one KV head, for one row.
  const std::size_t packed_rows = std::max(internal::kMaxPackedRows, group);
  std::size_t bytes = internal::AttentionScratchBytes(head_size, packed_rows);
  if (activations == CpuActivations::kBF16) {
    bytes = std::max(bytes, internal::Bf16AttentionScratchBytes(head_size, kv_heads, packed_rows));
  }
  return static_cast<std::int64_t>(bytes);
}

namespace {

// Checks the shapes. The checks are the same on every backend.
absl::Status CheckShapes(const AttentionParams& params) {
  const KvShape shape = KvShapeOf(*params.keys);
  if (!(shape == KvShapeOf(*params.values))) {
    return absl::InvalidArgumentError("key and value views have different shapes");
  }
  if (params.batch_size > shape.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("step has ", params.batch_size,
                                                   " sequences, the limit of the views is ",
                                                   shape.batch_size));
  }
  if (params.num_heads == 0 || params.num_heads % shape.num_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention has ", params.num_heads,
                                                   " query heads, they must be a multiple of ",
                                                   shape.num_heads, " kv heads"));
  }
  const std::int64_t columns = std::int64_t{params.num_heads} * shape.head_size;
  if (std::min(params.q_stride, params.out_stride) < columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention strides of q and out are ", params.q_stride, " and ", params.out_stride,
        ", they must be at least the size of all heads, ", columns));
  }
  if (params.value_columns > shape.head_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention has value_columns ", params.value_columns,
                     ", it must be at most the head size ", shape.head_size));
  }
  if (params.softcap < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention has softcap ", params.softcap, ", it must be at least 0"));
  }
  if (params.window != 0 && params.chunk != 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention has window ", params.window,
                                                   " and chunk ", params.chunk,
                                                   ", one of them must be 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PagedAttention(const Backend& backend, const AttentionParams& params) {
  QUIRE_RETURN_IF_ERROR(CheckShapes(params));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::PagedAttentionCuda(*backend.cuda(), params);
  }
  QUIRE_RETURN_IF_ERROR(
      CheckKvStep(*params.keys, *params.values, params.row_offsets, params.batch_size));
  if (backend.activations() == CpuActivations::kBF16 && KvDType(*params.keys) == DType::kBF16) {
    internal::PagedAttentionBf16(backend, params, internal::ChosenBf16Multiply());
    return absl::OkStatus();
  }
  const std::uint32_t head_size = KvShapeOf(*params.keys).head_size;
  internal::RunItems(
      backend, params,
      [&](std::size_t packed_rows) {
        return internal::AttentionScratchBytes(head_size, packed_rows);
      },
      [&](const internal::AttentionItem& item, const internal::AttentionItem* next,
          std::byte* scratch) { internal::AttentionSimd(params, item, next, scratch); });
  return absl::OkStatus();
}

}  // namespace quire::kernels
