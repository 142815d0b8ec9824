// Multiplies bf16 with the instruction vdpbf16ps. To each 32-bit lane, it adds the product of the
// operands' upper halves and then that of their lower halves. Each addition is like a fused
// multiply-add that flushes subnormal numbers. Operands are ordered so that both products belong to
// the even inputs or both to the odd inputs (bf16_linear.h). Four inputs need two instructions
// instead of four multiply-adds.
//
// Matrices of bf16 with K % 32 == 0 are packed in this order (packed_linear.h). Other weights are
// in the order of AMX tiles. With more than 8 rows, two panels of them are ordered for 256 inputs
// and stored in L1, where all rows read them. A tile is up to 6 rows x 2 panels: 24 sums, 4 weights
// and 2 broadcasts. Up to 8 rows are one tile with one panel, so that weights are read at an even
// rate.
//
// All inputs of an ordered panel in a product are multiplied before the next panel, so that memory
// is read in order. On machines that read 40 to 50 GB/s, this was 1.2 to 1.3 times as fast as a
// change of panels every 16 KiB. On machines that read 64 to 85 GB/s, it was 0.97 to 1.33 times as
// fast. Tiles prefetch the next weights, because out-of-order execution alone keeps too few loads
// in flight.

#include "kernels/linear/bf16_product.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__)

#include <immintrin.h>

#include <cstdint>

namespace quire::kernels::internal {
namespace {

#define QUIRE_OP inline __attribute__((always_inline))

constexpr std::int64_t kRows = 16;            // rows of a row tile
constexpr std::int64_t kTile = kRows * 32;    // elements of a bf16 tile
constexpr std::int64_t kTotals = kRows * 16;  // elements of a tile of totals
// Number of blocks of inputs that products of more than 8 rows multiply at a time. Two panels and
// 32 rows fill two thirds of an L1 of 48 KiB. The next panels replace the previous ones.
constexpr std::int64_t kManyRowsBlocks = 8;
// Number of blocks of inputs that products of up to 8 rows multiply at a time, panel by panel, if
// the weights are not ordered.
constexpr std::int64_t kFewRowsBlocks = 16;
constexpr std::int64_t kBlocksAhead = 8;  // distance of prefetches in ordered panels, up to 8 rows
constexpr int kLines = 16;                // cache lines of a bf16 tile
constexpr int kMaxRows = 6;               // rows whose sums with two panels fit in registers
// Numbers of cache lines of each next panel that a tile prefetches per block of inputs. Products of
// more than kFewLinesRows rows have at least 6 tiles, so each tile prefetches only kFewLines.
constexpr int kManyLines = 8;
constexpr int kFewLines = 3;
constexpr std::int64_t kFewLinesRows = 28;

// Orders `num_rows` rows of a row tile. Of four inputs 0, 1, 2, 3 the ordered tile has the pairs
// (2, 0) and (3, 1), the lower half first.
QUIRE_OP void Order(const std::uint16_t* from, std::int64_t num_blocks, std::int64_t num_rows,
                    std::uint16_t* to) {
  constexpr std::int64_t kLow = 0x0302070601000504, kHigh = 0x0b0a0f0e09080d0c;
  const __m512i bytes = _mm512_set4_epi64(kHigh, kLow, kHigh, kLow);
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const std::int64_t at = block * kTile + row * 32;
      _mm512_storeu_si512(to + at, _mm512_shuffle_epi8(_mm512_loadu_si512(from + at), bytes));
    }
  }
}

QUIRE_OP __m512i BroadcastPair(const std::uint16_t* x) {
  std::int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

QUIRE_OP __m512 AddProducts(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// Weights of 4 inputs and 16 features, in the order of Order().
struct Weights {
  __m512i even, odd;
};
// Orders weights that are stored in the order of AMX tiles.
QUIRE_OP Weights OrderWeights(const std::uint16_t* from) {
  const __m512i first = _mm512_loadu_si512(from);        // inputs 0 and 1
  const __m512i second = _mm512_loadu_si512(from + 32);  // inputs 2 and 3
  constexpr __mmask32 kLower = 0x55555555;
  return {_mm512_mask_blend_epi16(kLower, _mm512_slli_epi32(first, 16), second),
          _mm512_mask_blend_epi16(kLower, first, _mm512_srli_epi32(second, 16))};
}

// The order of a panel in memory.
enum class Source {
  kStored,   // that of AMX tiles
  kOrdered,  // pairs of Weights, even ones first
};

// Reads the weights of the group-th four inputs of a block.
template <Source kSource>
QUIRE_OP Weights ReadWeights(const std::uint16_t* block, int group) {
  const std::uint16_t* const from = block + group * 64;
  if constexpr (kSource == Source::kStored) return OrderWeights(from);
  return {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 32)};
}

// The sums of one block, for kTileRows rows and kPanels panels.
template <int kTileRows, int kPanels>
struct Sums {
  __m512 even[kTileRows][kPanels], odd[kTileRows][kPanels];
};

// Panels w_stride apart.
struct Panels {
  const std::uint16_t* w;
  std::int64_t w_stride;
};

// Adds the products of four inputs, the group-th of a block.
template <int kTileRows, int kPanels, Source kSource>
QUIRE_OP void MultiplyGroup(const std::uint16_t* x, const std::uint16_t* const (&w)[kPanels],
                            int group, Sums<kTileRows, kPanels>* sums) {
  Weights weights[kPanels];
  for (int c = 0; c < kPanels; ++c) weights[c] = ReadWeights<kSource>(w[c], group);
  for (int r = 0; r < kTileRows; ++r) {
    const std::uint16_t* const inputs = x + r * 32 + group * 4;
    const __m512i even_inputs = BroadcastPair(inputs);
    const __m512i odd_inputs = BroadcastPair(inputs + 2);
    for (int c = 0; c < kPanels; ++c) {
      sums->even[r][c] = AddProducts(sums->even[r][c], even_inputs, weights[c].even);
      sums->odd[r][c] = AddProducts(sums->odd[r][c], odd_inputs, weights[c].odd);
    }
  }
}

// Prefetches kCount cache lines of each panel.
template <int kCount, int kPanels>
QUIRE_OP void Prefetch(const std::uint16_t* const (&next)[kPanels], int first) {
  for (int line = first; line < first + kCount; ++line) {
    for (int c = 0; c < kPanels; ++c) _mm_prefetch(next[c] + line * 32, _MM_HINT_T0);
  }
}

// Computes kTileRows rows and kPanels panels. `x` and `totals` begin at the first row, and totals
// of panels are total_stride apart. In each block, kNextLines cache lines of each panel of `next`
// are prefetched. The number is a constant because branches slow the inner loop down.
template <int kTileRows, int kPanels, Source kSource, int kNextLines>
QUIRE_OP void MultiplyTile(const std::uint16_t* x, const Panels& panels, std::int64_t num_blocks,
                           float* totals, std::int64_t total_stride, const Panels& next) {
  const std::uint16_t* w[kPanels];
  const std::uint16_t* next_w[kPanels];
  for (int c = 0; c < kPanels; ++c) {
    w[c] = panels.w + c * panels.w_stride;
    next_w[c] = kNextLines == 0 ? nullptr : next.w + c * next.w_stride;
  }
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    Sums<kTileRows, kPanels> sums;
    for (int r = 0; r < kTileRows; ++r) {
      for (int c = 0; c < kPanels; ++c) sums.even[r][c] = sums.odd[r][c] = _mm512_setzero_ps();
    }
    if constexpr (kNextLines == kLines) {
      for (int group = 0; group < 8; ++group) {
        Prefetch<kLines / 8, kPanels>(next_w, kLines / 8 * group);
        MultiplyGroup<kTileRows, kPanels, kSource>(x, w, group, &sums);
      }
    } else {
      // Unrolling makes this loop 2 to 7 % faster. It would slow down the loop for few rows above,
      // which is limited by memory.
#pragma GCC unroll 8
      for (int group = 0; group < 8; ++group) {
        if (group < kNextLines) Prefetch<1, kPanels>(next_w, group);
        MultiplyGroup<kTileRows, kPanels, kSource>(x, w, group, &sums);
      }
    }
    for (int r = 0; r < kTileRows; ++r) {
      for (int c = 0; c < kPanels; ++c) {
        float* const total = totals + c * total_stride + r * 16;
        const __m512 sum = _mm512_add_ps(sums.even[r][c], sums.odd[r][c]);
        _mm512_storeu_ps(total, _mm512_add_ps(_mm512_loadu_ps(total), sum));
      }
    }
    x += kTile;
    for (int c = 0; c < kPanels; ++c) {
      w[c] += kTile;
      next_w[c] += kNextLines * 32;
    }
  }
}

// Multiplies up to kTileRows rows, one panel at a time. Not inlined, so that the compiler assigns
// registers to each tile alone.
template <int kTileRows, Source kSource>
__attribute__((noinline)) void MultiplyFewRows(const Bf16Product& p, const std::uint16_t* x,
                                               std::int64_t tile, std::int64_t block,
                                               std::int64_t num_blocks) {
  Panels panels = {p.w + block * kTile, p.w_stride};
  float* totals = p.totals + tile * kTotals;
  const std::int64_t ahead = kSource == Source::kOrdered ? kBlocksAhead * kTile : p.w_stride;
  for (std::int64_t panel = 0; panel < p.num_panels; ++panel) {
    MultiplyTile<kTileRows, 1, kSource, kLines>(x, panels, num_blocks, totals, 0,
                                                {panels.w + ahead, 0});
    panels.w += p.w_stride;
    totals += p.num_row_tiles * kTotals;
  }
}

template <int kTileRows, int kPanels, int kNextLines>
__attribute__((noinline)) void MultiplyRows(const std::uint16_t* x, const Panels& panels,
                                            std::int64_t num_blocks, float* totals,
                                            std::int64_t total_stride, const Panels& next) {
  MultiplyTile<kTileRows, kPanels, Source::kOrdered, kNextLines>(x, panels, num_blocks, totals,
                                                                 total_stride, next);
}
using MultiplyRowsFn = decltype(&MultiplyRows<1, 1, 0>);

template <int kPanels, int kNextLines>
constexpr MultiplyRowsFn kMultiplyRows[kMaxRows] = {
    MultiplyRows<1, kPanels, kNextLines>, MultiplyRows<2, kPanels, kNextLines>,
    MultiplyRows<3, kPanels, kNextLines>, MultiplyRows<4, kPanels, kNextLines>,
    MultiplyRows<5, kPanels, kNextLines>, MultiplyRows<6, kPanels, kNextLines>};

// Ordered rows of one part of the inputs.
struct OrderedRows {
  const std::uint16_t* x;  // tiles x_stride apart
  std::int64_t x_stride;
  std::int64_t num_rows;
};

// Returns the number of tiles that `num_rows` rows of a row tile are divided into.
constexpr int TilesOf(int num_rows) {
  return (num_rows + kMaxRows - 1) / kMaxRows;
}

// Orders `num_blocks` blocks of kPanels panels.
template <int kPanels>
QUIRE_OP void OrderPanels(const Panels& from, std::int64_t num_blocks, std::uint16_t* to) {
  for (int c = 0; c < kPanels; ++c) {
    for (std::int64_t at = 0; at < num_blocks * kTile; at += 64) {
      const Weights weights = OrderWeights(from.w + c * from.w_stride + at);
      _mm512_store_si512(to + c * kManyRowsBlocks * kTile + at, weights.even);
      _mm512_store_si512(to + c * kManyRowsBlocks * kTile + at + 32, weights.odd);
    }
  }
}

// Computes up to kManyRowsBlocks blocks of kPanels panels for all rows. The first tiles prefetch
// the panels `next`, kNextLines cache lines in each block. next.w is null if there are none.
template <int kPanels, int kNextLines>
QUIRE_OP void MultiplyPanels(const Bf16Product& p, const OrderedRows& rows, Panels panels,
                             std::int64_t num_blocks, float* totals, Panels next) {
  alignas(64) std::uint16_t ordered[kPanels * kManyRowsBlocks * kTile];
  if (!p.w_is_ordered) {
    OrderPanels<kPanels>(panels, num_blocks, ordered);
    panels = {ordered, kManyRowsBlocks * kTile};
  }
  const std::int64_t total_stride = p.num_row_tiles * kTotals;
  std::int64_t lines_left = next.w == nullptr ? 0 : kLines;
  const std::uint16_t* x = rows.x;
  for (std::int64_t first = 0; first < rows.num_rows; first += kRows) {
    const std::int64_t rows_left = rows.num_rows - first;
    const int left = rows_left < kRows ? static_cast<int>(rows_left) : static_cast<int>(kRows);
    for (int row = 0, split = TilesOf(left); split > 0; --split) {
      // 16 rows are 6, 6 and 4, which is 1 to 4 % faster than 6, 5 and 5. Other numbers are divided
      // evenly.
      const int count = left == kRows && split > 1 ? kMaxRows : (left - row + split - 1) / split;
      MultiplyRowsFn multiply = kMultiplyRows<kPanels, 0>[count - 1];
      if (lines_left > 0) multiply = kMultiplyRows<kPanels, kNextLines>[count - 1];
      multiply(x + row * 32, panels, num_blocks, totals + (first + row) * 16, total_stride, next);
      next.w += lines_left > 0 ? kNextLines * num_blocks * 32 : 0;
      lines_left -= kNextLines;
      row += count;
    }
    x += rows.x_stride;
  }
}

// Multiplies the rows of row tiles from `tile` on, two panels at a time.
template <int kNextLines>
__attribute__((noinline)) void MultiplyManyRows(const Bf16Product& p, const OrderedRows& rows,
                                                std::int64_t tile, std::int64_t block,
                                                std::int64_t num_blocks) {
  for (std::int64_t panel = 0; panel < p.num_panels; panel += 2) {
    const std::uint16_t* const w = p.w + panel * p.w_stride + block * kTile;
    const std::uint16_t* const next_w = panel + 2 < p.num_panels ? w + 2 * p.w_stride : p.next_w;
    float* const totals = p.totals + (panel * p.num_row_tiles + tile) * kTotals;
    for (std::int64_t done = 0; done < num_blocks; done += kManyRowsBlocks) {
      const std::int64_t left = num_blocks - done;
      const std::int64_t count = left < kManyRowsBlocks ? left : kManyRowsBlocks;
      const OrderedRows part = {rows.x + done * kTile, rows.x_stride, rows.num_rows};
      const Panels panels = {w + done * kTile, p.w_stride};
      const Panels next = {left > count ? panels.w + count * kTile : next_w, p.w_stride};
      panel + 1 < p.num_panels
          ? MultiplyPanels<2, kNextLines>(p, part, panels, count, totals, next)
          : MultiplyPanels<1, kNextLines>(p, part, panels, count, totals, next);
    }
  }
}

// Multiplies up to 8 rows.
template <Source kSource>
QUIRE_OP void MultiplyOneTile(const Bf16Product& p, const OrderedRows& rows, std::int64_t tile,
                              std::int64_t block, std::int64_t num_blocks) {
  (rows.num_rows > 4   ? MultiplyFewRows<8, kSource>
   : rows.num_rows > 1 ? MultiplyFewRows<4, kSource>
                       : MultiplyFewRows<1, kSource>)(p, rows.x, tile, block, num_blocks);
}

// Multiplies ordered rows of row tiles from `tile` on.
QUIRE_OP void MultiplyPart(const Bf16Product& p, const OrderedRows& rows, std::int64_t tile,
                           std::int64_t block, std::int64_t num_blocks) {
  if (rows.num_rows > kFewLinesRows) {
    MultiplyManyRows<kFewLines>(p, rows, tile, block, num_blocks);
  } else if (rows.num_rows > 8) {
    MultiplyManyRows<kManyLines>(p, rows, tile, block, num_blocks);
  } else if (p.w_is_ordered) {
    MultiplyOneTile<Source::kOrdered>(p, rows, tile, block, num_blocks);
  } else {
    MultiplyOneTile<Source::kStored>(p, rows, tile, block, num_blocks);
  }
}

QUIRE_OP void ClearTotals(const Bf16Product& p) {
  for (std::int64_t panel = 0; panel < p.num_panels; ++panel) {
    float* const to = p.totals + panel * p.num_row_tiles * kTotals;
    for (std::int64_t row = 0; row < p.num_rows; ++row) {
      _mm512_storeu_ps(to + row * 16, _mm512_setzero_ps());
    }
  }
}

// Not inlined, so that no arithmetic moves across the changes of MXCSR.
__attribute__((noinline)) void MultiplyFlushed(const Bf16Product& p) {
  alignas(64) std::uint16_t ordered[kFewRowsBlocks * kTile];
  if (p.is_first) ClearTotals(p);
  const std::int64_t step = p.w_is_ordered   ? p.num_blocks
                            : p.num_rows > 8 ? kManyRowsBlocks
                                             : kFewRowsBlocks;
  for (std::int64_t block = 0; block < p.num_blocks; block += step) {
    const std::int64_t left = p.num_blocks - block;
    const std::int64_t num_blocks = left < step ? left : step;
    if (p.x_is_ordered) {
      MultiplyPart(p, {p.x + block * kTile, p.x_stride, p.num_rows}, 0, block, num_blocks);
      continue;
    }
    for (std::int64_t tile = 0; tile < p.num_row_tiles; ++tile) {
      const std::int64_t rows_left = p.num_rows - tile * kRows;
      const std::int64_t num_rows = rows_left < kRows ? rows_left : kRows;
      Order(p.x + tile * p.x_stride + block * kTile, num_blocks, num_rows, ordered);
      MultiplyPart(p, {ordered, 0, num_rows}, tile, block, num_blocks);
    }
  }
}

void Multiply(const Bf16Product& p) {
  constexpr unsigned kFlushResults = 0x8000, kFlushOperands = 0x40;
  const unsigned mxcsr = _mm_getcsr();
  _mm_setcsr(mxcsr | kFlushResults | kFlushOperands);
  MultiplyFlushed(p);
  _mm_setcsr(mxcsr);
}

void OrderRow(std::uint16_t* x, std::int64_t num_blocks) {
  Order(x, num_blocks, 1, x);
}

#undef QUIRE_OP

}  // namespace

const Bf16MultiplyFn kBf16MultiplyAvx512Bf16 = Multiply;
const Bf16OrderFn kBf16OrderAvx512Bf16 = OrderRow;

}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const Bf16MultiplyFn kBf16MultiplyAvx512Bf16 = nullptr;
const Bf16OrderFn kBf16OrderAvx512Bf16 = nullptr;
}  // namespace quire::kernels::internal

#endif
