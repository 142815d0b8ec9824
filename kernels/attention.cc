#include "kernels/attention.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::kernels {
namespace internal {
namespace {

// Query rows of an item: enough for K and V tiles to be widened once for many, few enough that the
// states stay in L2. Any choice gives the same bits.
std::uint32_t RowsPerItem(std::uint32_t group) {
  return std::clamp(64 / group, 1u, 16u);
}

std::uint32_t SpansOf(std::uint32_t keys) {
  return (keys + kAttentionSpan - 1) / kAttentionSpan;
}

// The work list of one call. Blocks of rows are listed from each sequence's end, where causal rows
// are longest. With too few blocks for the threads, long ones are cut along their spans.
class Plan {
 public:
  Plan(const AttentionParams& params, const KvShape& shape, const std::uint32_t* cache_lengths,
       int num_threads)
      : params_(params),
        shape_(shape),
        cache_lengths_(cache_lengths),
        group_(params.num_heads / shape.num_heads),
        rows_per_item_(RowsPerItem(group_)) {
    std::int64_t blocks = 0;
    ForEachBlock([&](const AttentionItem& block) {
      ++blocks;
      spans_ += block.span_end;
    });
    blocks_ = blocks;
    split_ = num_threads > 1 && blocks < 2 * num_threads && spans_ > blocks;
  }

  std::int64_t num_blocks() const { return blocks_; }
  std::int64_t num_items() const { return split_ ? spans_ : blocks_; }
  bool split() const { return split_; }
  std::size_t states_per_block() const { return std::size_t{rows_per_item_} * group_; }
  std::size_t partial_floats() const {
    return split_ ? static_cast<std::size_t>(spans_) * states_per_block() *
                        StateFloats(shape_.head_size)
                  : 0;
  }
  std::size_t memory_bytes() const {
    return static_cast<std::size_t>(num_items() + (split_ ? blocks_ : 0)) * sizeof(AttentionItem) +
           64 + partial_floats() * sizeof(float);
  }

  // Fills items[num_items()] and, when split, folds[num_blocks()].
  void Fill(AttentionItem* items, AttentionItem* folds, float* partial) const {
    ForEachBlock([&](AttentionItem block) {
      if (!split_) {
        *items++ = block;
        return;
      }
      block.partial = partial;
      *folds++ = block;
      for (std::uint32_t span = 0; span < block.span_end; ++span) {
        AttentionItem item = block;
        item.span_begin = span;
        item.span_end = span + 1;
        item.partial = partial;
        *items++ = item;
        partial += block.partial_stride;
      }
    });
  }

  // Nanoseconds of an average item, roughly.
  double work() const {
    return static_cast<double>(spans_) /
           static_cast<double>(std::max<std::int64_t>(num_items(), 1)) *
           static_cast<double>(group_ * shape_.head_size) * 10;
  }

 private:
  template <typename Fn>
  void ForEachBlock(Fn&& fn) const {
    for (std::uint32_t b = 0; b < params_.batch_size; ++b) {
      const std::uint32_t rows = params_.row_offsets[b + 1] - params_.row_offsets[b];
      for (std::uint32_t end = rows; end > 0;) {
        const std::uint32_t begin = (end - 1) / rows_per_item_ * rows_per_item_;
        for (std::uint32_t h = 0; h < shape_.num_heads; ++h) {
          fn(AttentionItem{b, h, begin, end - begin, 0, SpansOf(cache_lengths_[b] + end), nullptr,
                           states_per_block() * StateFloats(shape_.head_size)});
        }
        end = begin;
      }
    }
  }

  const AttentionParams& params_;
  const KvShape& shape_;
  const std::uint32_t* const cache_lengths_;
  const std::uint32_t group_;
  const std::uint32_t rows_per_item_;
  std::int64_t blocks_ = 0;
  std::int64_t spans_ = 0;
  bool split_ = false;
};

}  // namespace

std::size_t AttentionScratchBytes(std::uint32_t head_size, std::size_t states) {
  const std::size_t columns = PaddedColumns(head_size);
  // K and V tile, queries, and two states for each row and head: the span's and the folded one.
  return (2 * kAttentionTile * columns + states * (columns + 2 * StateFloats(head_size))) *
         sizeof(float);
}

}  // namespace internal

namespace {

// What follows from shapes alone, on every backend.
absl::Status CheckShapes(const AttentionParams& params) {
  const KvShape shape = KvShapeOf(*params.keys);
  if (!(shape == KvShapeOf(*params.values))) {
    return absl::InvalidArgumentError("key and value views differ in shape");
  }
  if (params.batch_size > shape.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("step has ", params.batch_size,
                                                   " sequences, the views hold ",
                                                   shape.batch_size));
  }
  if (params.num_heads == 0 || params.num_heads % shape.num_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention has ", params.num_heads,
                                                   " query heads, not a multiple of ",
                                                   shape.num_heads, " kv heads"));
  }
  const std::int64_t columns = std::int64_t{params.num_heads} * shape.head_size;
  if (std::min(params.q_stride, params.out_stride) < columns) {
    return absl::InvalidArgumentError(absl::StrCat("attention rows are ", params.q_stride, " and ",
                                                   params.out_stride, " apart, heads take ",
                                                   columns));
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
  const KvShape shape = KvShapeOf(*params.keys);
  const std::uint32_t* const lengths =
      std::visit([](const auto& view) { return view.cache_lengths; }, *params.keys);
  const internal::Plan plan(params, shape, lengths, backend.num_threads());
  std::byte* const memory = backend.op_workspace().Reserve(plan.memory_bytes());
  auto* const items = reinterpret_cast<internal::AttentionItem*>(memory);
  auto* const folds = items + plan.num_items();
  const auto lists =
      static_cast<std::size_t>(plan.num_items() + (plan.split() ? plan.num_blocks() : 0)) *
      sizeof(internal::AttentionItem);
  plan.Fill(items, folds, reinterpret_cast<float*>(memory + (lists + 63) / 64 * 64));

  const std::size_t scratch =
      internal::AttentionScratchBytes(shape.head_size, plan.states_per_block());
  backend.ReserveWorkspaces(scratch);
  backend.ParallelItems(plan.num_items(), plan.work(), [&](std::int64_t i, int part) {
    internal::AttentionSimd(params, items[i], backend.workspace(part).Reserve(scratch));
  });
  if (plan.split()) {
    backend.ParallelItems(plan.num_blocks(), plan.work(), [&](std::int64_t i, int) {
      internal::AttentionFoldSimd(params, folds[i]);
    });
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
