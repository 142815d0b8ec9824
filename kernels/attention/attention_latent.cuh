#pragma once

// Code shared by the MLA kernels: the division into items and the partial results of items. A
// packed row is one query head of one row (attention_work.h). An item is a block of packed rows and
// the keys to process. These keys are one span if the step is split (IsSplit), otherwise all keys
// that the rows see. Lengths are known only on the device, so every warp finds its items by
// counting through the sequences. Warps with different roles then need not wait for each other.

#include <cstdint>

#include "kernels/attention/attention_launch.h"
#include "kernels/cuda/thread.cuh"

namespace quire::kernels::attention {

inline constexpr std::uint32_t kLatentSpan = 1024;  // tokens

// Numbers of packed rows, row blocks and spans of keys of a sequence.
struct LatentCount {
  // Computes the numbers for live sequence `index`. They are zero for indices from
  // args.live_sequences[0] on.
  __device__ __forceinline__ LatentCount(const LatentArgs& args, std::uint32_t index) {
    if (index >= args.live_sequences[0]) return;
    sequence = args.live_sequences[1 + index];
    const std::uint32_t tokens = args.row_offsets[sequence + 1] - args.row_offsets[sequence];
    rows = tokens * args.num_heads;
    blocks = CeilDiv(rows, args.block_rows);
    spans = CeilDiv(args.rows.cache_length(sequence) + tokens, kLatentSpan);
  }

  std::uint32_t sequence = 0;
  std::uint32_t rows = 0;
  std::uint32_t blocks = 0;
  std::uint32_t spans = 0;
};

// True if every span is a separate item. This is so if a sequence has several spans, there are
// fewer row blocks than multiprocessors, and the partial results fit. All lanes of a warp must call
// the function together.
__device__ __forceinline__ bool IsSplit(const LatentArgs& args) {
  std::uint32_t blocks = 0;
  std::uint32_t partials = 0;  // rows of partial results
  bool has_many_spans = false;
  for (std::uint32_t i = cuda::Lane(); i < args.live_sequences[0]; i += cuda::kWarpSize) {
    const LatentCount count(args, i);
    blocks += count.blocks;
    partials += count.rows * count.spans;
    has_many_spans |= count.spans > 1;
  }
#pragma unroll
  for (std::uint32_t mask = 1; mask < cuda::kWarpSize; mask *= 2) {
    blocks += cuda::ShuffleXor(blocks, mask);
    partials += cuda::ShuffleXor(partials, mask);
  }
  return cuda::AnyLane(has_many_spans) && blocks < args.num_sms && partials <= args.partial_rows;
}

// A block of packed rows, and the index of an item among the items of that block.
struct LatentPlace {
  std::uint32_t sequence;
  std::uint32_t block;
  std::uint32_t index;
  std::uint32_t first_partial;  // first row of the block's partial results, if the step is split
};

// Finds items by number. A block of packed rows has `per_block` items, or one per span if
// `per_block` is 0.
class LatentFinder {
 public:
  __device__ LatentFinder(const LatentArgs& args, std::uint32_t per_block)
      : args_(args), per_block_(per_block) {}

  // Finds item number `wanted`, which must not decrease between calls. Returns false if there are
  // fewer items. All lanes of a warp must call the function together, and get the same result.
  __device__ __forceinline__ bool Find(std::uint32_t wanted, LatentPlace* place) {
    for (; first_ < args_.live_sequences[0]; first_ += cuda::kWarpSize) {
      const LatentCount count(args_, first_ + cuda::Lane());
      const std::uint32_t items = count.blocks * (per_block_ == 0 ? count.spans : per_block_);
      const std::uint32_t partials = count.rows * count.spans;
      std::uint32_t items_end = items;
      std::uint32_t partials_end = partials;
#pragma unroll
      for (std::uint32_t d = 1; d < cuda::kWarpSize; d *= 2) {
        const std::uint32_t more_items = cuda::ShuffleUp(items_end, d);
        const std::uint32_t more_partials = cuda::ShuffleUp(partials_end, d);
        if (cuda::Lane() >= d) {
          items_end += more_items;
          partials_end += more_partials;
        }
      }
      // Number of lanes whose sequence contains the item or later items.
      const std::uint32_t lanes_left =
          cuda::CountBits(cuda::Ballot(wanted - preceding_items_ < items_end));
      if (lanes_left != 0) {
        const std::uint32_t lane = cuda::kWarpSize - lanes_left;
        const std::uint32_t spans = cuda::Shuffle(count.spans, lane);
        const std::uint32_t per_block = per_block_ == 0 ? spans : per_block_;
        const std::uint32_t at = wanted - preceding_items_ - cuda::Shuffle(items_end - items, lane);
        const std::uint32_t block = at / per_block;
        *place = {cuda::Shuffle(count.sequence, lane), block, at % per_block,
                  preceding_partials_ + cuda::Shuffle(partials_end - partials, lane) +
                      block * args_.block_rows * spans};
        return true;
      }
      preceding_items_ += cuda::Shuffle(items_end, cuda::kWarpSize - 1);
      preceding_partials_ += cuda::Shuffle(partials_end, cuda::kWarpSize - 1);
    }
    return false;
  }

 private:
  const LatentArgs& args_;
  const std::uint32_t per_block_;
  std::uint32_t first_ = 0;               // index of a live sequence
  std::uint32_t preceding_items_ = 0;     // of the preceding sequences
  std::uint32_t preceding_partials_ = 0;  // rows of their partial results
};

// The packed rows of an item.
struct LatentRows {
  __device__ __forceinline__ LatentRows(const LatentArgs& a, const LatentPlace& place)
      : args(a), sequence(place.sequence), first(place.block * a.block_rows) {
    base = args.row_offsets[sequence];
    const std::uint32_t packed = (args.row_offsets[sequence + 1] - base) * args.num_heads;
    count = packed - first < args.block_rows ? packed - first : args.block_rows;
    cached = args.rows.cache_length(sequence);
  }
  // Returns the position of a row. Rows beyond the last one have the position of the last one.
  __device__ __forceinline__ std::uint32_t Position(std::uint32_t row) const {
    return cached + (first + (row < count ? row : count - 1)) / args.num_heads;
  }
  // Returns the offset of the head's first column in `q` or `out`. REQUIRES: row < count.
  __device__ __forceinline__ std::int64_t Offset(std::uint32_t row, std::int64_t stride) const {
    const std::uint32_t packed = first + row;
    return (std::int64_t{base} + packed / args.num_heads) * stride +
           std::int64_t{packed % args.num_heads} * args.rows.head_size();
  }
  // Returns the number of keys that at least one of the rows sees.
  __device__ __forceinline__ std::uint32_t KeysEnd() const { return Position(count - 1) + 1; }

  const LatentArgs& args;
  std::uint32_t sequence;
  std::uint32_t first;   // first packed row
  std::uint32_t base;    // first row of the sequence in `q` and `out`
  std::uint32_t count;   // packed rows
  std::uint32_t cached;  // tokens cached before the step
};

// The range of tiles of an item, with kTokens tokens each. The range is empty (first >= end) if the
// item is a span that only later rows of the sequence see.
template <std::uint32_t kTokens>
struct LatentTiles {
  static constexpr std::uint32_t kPerSpan = kLatentSpan / kTokens;

  __device__ __forceinline__ LatentTiles(const LatentRows& rows, const LatentPlace& place,
                                         bool is_split)
      : keys_end(rows.KeysEnd()), num_spans(CeilDiv(keys_end, kLatentSpan)) {
    first = is_split ? place.index * kPerSpan : 0;
    end = CeilDiv(keys_end, kTokens);
    if (is_split && first + kPerSpan < end) end = first + kPerSpan;
  }
  // True if this tile is the last one of its span or of the item.
  __device__ __forceinline__ bool EndsSpan(std::uint32_t tile) const {
    return tile % kPerSpan == kPerSpan - 1 || tile + 1 == end;
  }

  std::uint32_t keys_end;
  std::uint32_t num_spans;  // spans of all keys that the rows see, even if the item is one span
  std::uint32_t first;
  std::uint32_t end;
};

// Returns the partial result of a span: values [rows.count, kMaxLatentValues], maxima [rows.count],
// sums [rows.count].
__device__ __forceinline__ float* LatentPartialOf(const LatentRows& rows, const LatentPlace& place,
                                                  std::uint32_t span) {
  return rows.args.partials +
         std::int64_t{place.first_partial + span * rows.count} * kLatentPartialFloats;
}
// Returns the partial result of an item. If the step is not split, each block of the grid has one
// partial result for all its rows.
__device__ __forceinline__ float* LatentPartial(const LatentRows& rows, const LatentPlace& place,
                                                bool is_split) {
  if (is_split) return LatentPartialOf(rows, place, place.index);
  return rows.args.partials +
         std::int64_t{cuda::BlockX() * rows.args.block_rows} * kLatentPartialFloats;
}

}  // namespace quire::kernels::attention
