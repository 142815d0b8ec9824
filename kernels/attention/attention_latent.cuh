#pragma once

// What the kernels of latent rows share: the division into items and their partial results. An item
// is a block of packed rows (row and query head; attention_work.h) over all keys that they see or,
// when a step is cut, over one span of them. Items are found by counting through the sequences,
// since only the device knows their lengths: every warp counts for itself, so that warps of other
// roles need not wait for one another.

#include <cstdint>

#include "kernels/attention/attention_launch.h"
#include "kernels/cuda/thread.cuh"

namespace quire::kernels::attention {

inline constexpr std::uint32_t kLatentSpan = 1024;  // tokens

__device__ __forceinline__ std::uint32_t CeilDiv(std::uint32_t a, std::uint32_t b) {
  return (a + b - 1) / b;
}

// Packed rows of a sequence, their blocks, and the spans of its keys.
struct LatentCount {
  __device__ __forceinline__ LatentCount(const LatentArgs& args, std::uint32_t sequence) {
    if (sequence >= args.batch_size) return;
    const std::uint32_t tokens = args.row_offsets[sequence + 1] - args.row_offsets[sequence];
    if (tokens == 0) return;
    rows = tokens * args.num_heads;
    blocks = CeilDiv(rows, args.block_rows);
    spans = CeilDiv(args.rows.cache_length(sequence) + tokens, kLatentSpan);
  }

  std::uint32_t rows = 0;
  std::uint32_t blocks = 0;
  std::uint32_t spans = 0;
};

// Whether every span is an item: there are fewer row blocks than multiprocessors, and room. All
// lanes of a warp call it together.
__device__ __forceinline__ bool IsCut(const LatentArgs& args) {
  std::uint32_t blocks = 0;
  std::uint32_t partials = 0;  // rows of them, likewise below
  bool has_spans = false;
  for (std::uint32_t s = cuda::Lane(); s < args.batch_size; s += cuda::kWarpSize) {
    const LatentCount count(args, s);
    blocks += count.blocks;
    partials += count.rows * count.spans;
    has_spans |= count.spans > 1;
  }
#pragma unroll
  for (std::uint32_t mask = 1; mask < cuda::kWarpSize; mask *= 2) {
    blocks += cuda::ShuffleXor(blocks, mask);
    partials += cuda::ShuffleXor(partials, mask);
  }
  return cuda::AnyLane(has_spans) && blocks < args.num_sms && partials <= args.partial_rows;
}

// A block of packed rows, and which of the things counted of it.
struct LatentPlace {
  std::uint32_t sequence;
  std::uint32_t block;
  std::uint32_t index;
  std::uint32_t first_partial;  // row of the block's partial results, if the step is cut
};

// Counts `each` things to a block of rows, 0: its spans, and finds thing after thing in growing
// order.
class LatentFinder {
 public:
  __device__ LatentFinder(const LatentArgs& args, std::uint32_t each) : args_(args), each_(each) {}

  // False: there are not as many. All lanes of a warp call it together, and find the same.
  __device__ __forceinline__ bool Find(std::uint32_t wanted, LatentPlace* place) {
    for (; first_ < args_.batch_size; first_ += cuda::kWarpSize) {
      const LatentCount count(args_, first_ + cuda::Lane());
      const std::uint32_t things = count.blocks * (each_ == 0 ? count.spans : each_);
      const std::uint32_t partials = count.rows * count.spans;
      std::uint32_t things_end = things;
      std::uint32_t partials_end = partials;
#pragma unroll
      for (std::uint32_t d = 1; d < cuda::kWarpSize; d *= 2) {
        const std::uint32_t more_things = cuda::ShuffleUp(things_end, d);
        const std::uint32_t more_partials = cuda::ShuffleUp(partials_end, d);
        if (cuda::Lane() >= d) {
          things_end += more_things;
          partials_end += more_partials;
        }
      }
      // The lanes from the one on whose sequence has it.
      const std::uint32_t behind = cuda::CountBits(cuda::Ballot(wanted - before_ < things_end));
      if (behind != 0) {
        const std::uint32_t lane = cuda::kWarpSize - behind;
        const std::uint32_t spans = cuda::Shuffle(count.spans, lane);
        const std::uint32_t each = each_ == 0 ? spans : each_;
        const std::uint32_t at = wanted - before_ - cuda::Shuffle(things_end - things, lane);
        const std::uint32_t block = at / each;
        *place = {first_ + lane, block, at % each,
                  partials_ + cuda::Shuffle(partials_end - partials, lane) +
                      block * args_.block_rows * spans};
        return true;
      }
      before_ += cuda::Shuffle(things_end, cuda::kWarpSize - 1);
      partials_ += cuda::Shuffle(partials_end, cuda::kWarpSize - 1);
    }
    return false;
  }

 private:
  const LatentArgs& args_;
  const std::uint32_t each_;
  std::uint32_t first_ = 0;     // sequence
  std::uint32_t before_ = 0;    // things of the sequences before it
  std::uint32_t partials_ = 0;  // likewise
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
  // Rows beyond the last count as the last.
  __device__ __forceinline__ std::uint32_t Position(std::uint32_t row) const {
    return cached + (first + (row < count ? row : count - 1)) / args.num_heads;
  }
  // Elements from q or out to the head's first column. REQUIRES: row < count.
  __device__ __forceinline__ std::int64_t Offset(std::uint32_t row, std::int64_t stride) const {
    const std::uint32_t packed = first + row;
    return (std::int64_t{base} + packed / args.num_heads) * stride +
           std::int64_t{packed % args.num_heads} * args.rows.head_size();
  }
  // Keys that one of the rows sees.
  __device__ __forceinline__ std::uint32_t KeysEnd() const { return Position(count - 1) + 1; }

  const LatentArgs& args;
  std::uint32_t sequence;
  std::uint32_t first;
  std::uint32_t base;
  std::uint32_t count;
  std::uint32_t cached;
};

// The tiles of kTokens tokens of an item. None, first >= end, where a span is an item and only
// later rows of the sequence see it.
template <std::uint32_t kTokens>
struct LatentTiles {
  static constexpr std::uint32_t kPerSpan = kLatentSpan / kTokens;

  __device__ __forceinline__ LatentTiles(const LatentRows& rows, const LatentPlace& place,
                                         bool is_cut)
      : keys_end(rows.KeysEnd()), num_spans(CeilDiv(keys_end, kLatentSpan)) {
    first = is_cut ? place.index * kPerSpan : 0;
    end = CeilDiv(keys_end, kTokens);
    if (is_cut && first + kPerSpan < end) end = first + kPerSpan;
  }
  // Whether the span of this tile ends with it, or the item does.
  __device__ __forceinline__ bool EndsSpan(std::uint32_t tile) const {
    return tile % kPerSpan == kPerSpan - 1 || tile + 1 == end;
  }

  std::uint32_t keys_end;
  std::uint32_t num_spans;  // of all keys, not of the item
  std::uint32_t first;
  std::uint32_t end;
};

// A partial result: values [rows.count, kMaxLatentValues], maxima [rows.count], sums [rows.count].
__device__ __forceinline__ float* LatentPartialOf(const LatentRows& rows, const LatentPlace& place,
                                                  std::uint32_t span) {
  return rows.args.partials +
         std::int64_t{place.first_partial + span * rows.count} * kLatentPartialFloats;
}
// That of an item. Each block that is not cut has one of all rows for itself.
__device__ __forceinline__ float* LatentPartial(const LatentRows& rows, const LatentPlace& place,
                                                bool is_cut) {
  if (is_cut) return LatentPartialOf(rows, place, place.index);
  return rows.args.partials +
         std::int64_t{cuda::BlockX() * rows.args.block_rows} * kLatentPartialFloats;
}

}  // namespace quire::kernels::attention
