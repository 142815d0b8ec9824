// Multiplies bf16 with the instruction vdpbf16ps. It adds two products to a sum: first the product
// of the upper halves, then the product of the lower halves. Each addition is like a fused
// multiply-add that flushes subnormal numbers. Operands are ordered so that both products belong to
// even inputs, or both to odd inputs (bf16_linear.h). Four inputs need two instructions instead of
// four multiply-adds.
//
// Weights are stored in the order of AMX tiles. The first tile of rows orders two panels for 256
// inputs in registers and stores them in L1, where the other rows read them. A tile of 6 rows x 2
// panels has registers for 24 sums, 4 weights and 2 broadcasts. Up to 8 rows are computed as one
// tile with one panel, so that weights are read at an even rate. Each tile prefetches its share of
// the next weights, because out-of-order execution alone keeps too few loads in flight.

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
// Blocks of inputs that are multiplied at once, for at most 8 rows and for more. For more than 8
// rows, the ordered weights of two panels and 32 rows fill two thirds of an L1 of 48 KiB.
constexpr std::int64_t kFewRowsBlocks = 16;
constexpr std::int64_t kManyRowsBlocks = 8;
constexpr std::int64_t kLines = 16;  // cache lines of a bf16 tile
constexpr int kMaxRows = 6;          // rows whose sums with two panels fit in registers

// Orders `num_rows` rows of a row tile. Four inputs 0, 1, 2, 3 become the pairs (2, 0) and (3, 1),
// with the lower half first.
QUIRE_OP void Order(const std::uint16_t* from, std::int64_t num_blocks, std::int64_t num_rows,
                    std::uint16_t* to) {
  constexpr long long kLow = 0x0302070601000504, kHigh = 0x0b0a0f0e09080d0c;
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

// Stored panels of weights, and a buffer for the ordered weights of kPanels panels.
struct Panels {
  const std::uint16_t* stored;  // panels w_stride apart
  std::int64_t w_stride;
  std::uint16_t* ordered;  // [blocks][8 groups of four inputs][kPanels][2][32]
};

// Weights of the next panels, prefetched while the current panels are multiplied.
struct NextWeights {
  const std::uint16_t* from;  // null: none
  std::int64_t lines;         // cache lines of a panel to prefetch per block
};

// How a tile reads its weights.
enum class Source {
  kStored,   // orders stored weights
  kFirst,    // orders stored weights and stores the result for other tiles
  kOrdered,  // reads ordered weights
};

// The sums of one block, for kTileRows rows and kPanels panels.
template <int kTileRows, int kPanels>
struct Sums {
  __m512 even[kTileRows][kPanels], odd[kTileRows][kPanels];
};

// Adds the products of the four inputs of group `group` in block `block`.
template <int kTileRows, int kPanels, Source kSource>
QUIRE_OP void MultiplyGroup(const std::uint16_t* x, const Panels& panels, std::int64_t block,
                            int group, NextWeights next, Sums<kTileRows, kPanels>* sums) {
  for (std::int64_t line = group; line < next.lines; line += 8) {
    for (int c = 0; c < kPanels; ++c) {
      _mm_prefetch(next.from + c * panels.w_stride + (block * next.lines + line) * 32, _MM_HINT_T1);
    }
  }
  std::uint16_t* const ordered =
      kSource == Source::kStored ? nullptr : panels.ordered + (block * 8 + group) * kPanels * 64;
  Weights weights[kPanels];
  for (int c = 0; c < kPanels; ++c) {
    if constexpr (kSource == Source::kOrdered) {
      weights[c] = {_mm512_load_si512(ordered + c * 64), _mm512_load_si512(ordered + c * 64 + 32)};
    } else {
      weights[c] = OrderWeights(panels.stored + c * panels.w_stride + block * kTile + group * 64);
    }
    if constexpr (kSource == Source::kFirst) {
      _mm512_store_si512(ordered + c * 64, weights[c].even);
      _mm512_store_si512(ordered + c * 64 + 32, weights[c].odd);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    const std::uint16_t* const inputs = x + block * kTile + r * 32 + group * 4;
    const __m512i even_inputs = BroadcastPair(inputs);
    const __m512i odd_inputs = BroadcastPair(inputs + 2);
    for (int c = 0; c < kPanels; ++c) {
      sums->even[r][c] = AddProducts(sums->even[r][c], even_inputs, weights[c].even);
      sums->odd[r][c] = AddProducts(sums->odd[r][c], odd_inputs, weights[c].odd);
    }
  }
}

// Computes kTileRows rows and kPanels panels. `x` and `totals` begin at the first row, and the
// totals of consecutive panels are total_stride apart.
template <int kTileRows, int kPanels, Source kSource>
QUIRE_OP void MultiplyTile(const std::uint16_t* x, const Panels& panels, std::int64_t num_blocks,
                           float* totals, std::int64_t total_stride, NextWeights next) {
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    Sums<kTileRows, kPanels> sums;
    for (int r = 0; r < kTileRows; ++r) {
      for (int c = 0; c < kPanels; ++c) sums.even[r][c] = sums.odd[r][c] = _mm512_setzero_ps();
    }
    if constexpr (kSource == Source::kStored) {
      for (int group = 0; group < 8; ++group) {
        MultiplyGroup<kTileRows, kPanels, kSource>(x, panels, block, group, next, &sums);
      }
    } else {
      // Unrolled, because this is 2 to 7 % faster. kStored is not unrolled: with few rows memory is
      // the limit, and unrolling is slower.
#pragma GCC unroll 8
      for (int group = 0; group < 8; ++group) {
        MultiplyGroup<kTileRows, kPanels, kSource>(x, panels, block, group, next, &sums);
      }
    }
    for (int r = 0; r < kTileRows; ++r) {
      for (int c = 0; c < kPanels; ++c) {
        float* const total = totals + c * total_stride + r * 16;
        const __m512 sum = _mm512_add_ps(sums.even[r][c], sums.odd[r][c]);
        _mm512_storeu_ps(total, _mm512_add_ps(_mm512_loadu_ps(total), sum));
      }
    }
  }
}

// Multiplies up to kTileRows rows, one panel at a time. Not inlined, so that the compiler assigns
// registers to each tile alone.
template <int kTileRows>
__attribute__((noinline)) void MultiplyFewRows(const Bf16Product& p, const std::uint16_t* x,
                                               std::int64_t tile, std::int64_t block,
                                               std::int64_t num_blocks) {
  Panels panels = {p.w + block * kTile, p.w_stride, nullptr};
  float* totals = p.totals + tile * kTotals;
  for (std::int64_t panel = 0; panel < p.num_panels; ++panel) {
    MultiplyTile<kTileRows, 1, Source::kStored>(x, panels, num_blocks, totals, 0,
                                                {panels.stored + p.w_stride, kLines});
    panels.stored += p.w_stride;
    totals += p.num_row_tiles * kTotals;
  }
}

template <int kTileRows, int kPanels, Source kSource>
__attribute__((noinline)) void MultiplyRows(const std::uint16_t* x, const Panels& panels,
                                            std::int64_t num_blocks, float* totals,
                                            std::int64_t total_stride, NextWeights next) {
  MultiplyTile<kTileRows, kPanels, kSource>(x, panels, num_blocks, totals, total_stride, next);
}

// Multiplies the rows of the first tile, which are 5 or 6 because there are more than 8 rows in
// all.
template <int kPanels>
QUIRE_OP void MultiplyFirstRows(std::int64_t num_rows, const std::uint16_t* x, const Panels& panels,
                                std::int64_t num_blocks, float* totals, std::int64_t total_stride,
                                NextWeights next) {
  (num_rows == 6 ? MultiplyRows<6, kPanels, Source::kFirst>
                 : MultiplyRows<5, kPanels, Source::kFirst>)(x, panels, num_blocks, totals,
                                                             total_stride, next);
}

template <int kPanels>
QUIRE_OP void MultiplyOtherRows(std::int64_t num_rows, const std::uint16_t* x, const Panels& panels,
                                std::int64_t num_blocks, float* totals, std::int64_t total_stride,
                                NextWeights next) {
  constexpr decltype(&MultiplyRows<1, kPanels, Source::kOrdered>) kMultiply[kMaxRows] = {
      MultiplyRows<1, kPanels, Source::kOrdered>, MultiplyRows<2, kPanels, Source::kOrdered>,
      MultiplyRows<3, kPanels, Source::kOrdered>, MultiplyRows<4, kPanels, Source::kOrdered>,
      MultiplyRows<5, kPanels, Source::kOrdered>, MultiplyRows<6, kPanels, Source::kOrdered>};
  kMultiply[num_rows - 1](x, panels, num_blocks, totals, total_stride, next);
}

// Ordered rows of one part of the inputs.
struct OrderedRows {
  const std::uint16_t* x;  // tiles x_stride apart
  std::int64_t x_stride;
  std::int64_t num_rows;
};

// Computes kPanels panels for all rows. `next` are the weights that are read next, null if none.
template <int kPanels>
QUIRE_OP void MultiplyPanels(const OrderedRows& rows, const Panels& panels, std::int64_t num_blocks,
                             float* totals, std::int64_t total_stride, const std::uint16_t* next) {
  // The rows of a row tile are divided evenly.
  const auto tiles_of = [](std::int64_t num_rows) { return (num_rows + kMaxRows - 1) / kMaxRows; };
  const std::int64_t tiles =
      rows.num_rows / kRows * tiles_of(kRows) + tiles_of(rows.num_rows % kRows);
  NextWeights share = {next, (kLines + tiles - 1) / tiles};
  std::int64_t lines_left = next == nullptr ? 0 : kLines;
  const std::uint16_t* x = rows.x;
  for (std::int64_t first = 0; first < rows.num_rows; first += kRows) {
    const std::int64_t left = rows.num_rows - first < kRows ? rows.num_rows - first : kRows;
    for (std::int64_t row = 0, split = tiles_of(left); split > 0; --split) {
      const std::int64_t count = (left - row + split - 1) / split;
      if (share.lines > lines_left) share.lines = lines_left;
      const std::uint16_t* const from = x + row * 32;
      float* const to = totals + (first + row) * 16;
      if (first + row == 0) {
        MultiplyFirstRows<kPanels>(count, from, panels, num_blocks, to, total_stride, share);
      } else {
        MultiplyOtherRows<kPanels>(count, from, panels, num_blocks, to, total_stride, share);
      }
      share.from += share.lines * num_blocks * 32;
      lines_left -= share.lines;
      row += count;
    }
    x += rows.x_stride;
  }
}

// Multiplies the rows of row tiles from `tile` on.
__attribute__((noinline)) void MultiplyManyRows(const Bf16Product& p, const OrderedRows& rows,
                                                std::int64_t tile, std::int64_t block,
                                                std::int64_t num_blocks) {
  alignas(64) std::uint16_t ordered[2 * kManyRowsBlocks * kTile];
  const std::int64_t total_stride = p.num_row_tiles * kTotals;
  Panels panels = {p.w + block * kTile, p.w_stride, ordered};
  float* totals = p.totals + tile * kTotals;
  // The last panels are followed by the next part of the first panels, or by the next product.
  const std::uint16_t* const next_part =
      block + num_blocks < p.num_blocks ? p.w + (block + num_blocks) * kTile : p.next_w;
  std::int64_t panel = 0;
  for (; panel + 2 <= p.num_panels; panel += 2) {
    const bool is_last = panel + 4 > p.num_panels;
    MultiplyPanels<2>(rows, panels, num_blocks, totals, total_stride,
                      is_last ? next_part : panels.stored + 2 * p.w_stride);
    panels.stored += 2 * p.w_stride;
    totals += 2 * total_stride;
  }
  if (panel == p.num_panels) return;
  MultiplyPanels<1>(rows, panels, num_blocks, totals, total_stride, nullptr);
}

// Multiplies ordered rows of row tiles from `tile` on.
QUIRE_OP void MultiplyPart(const Bf16Product& p, const OrderedRows& rows, std::int64_t tile,
                           std::int64_t block, std::int64_t num_blocks) {
  if (rows.num_rows > 8) {
    MultiplyManyRows(p, rows, tile, block, num_blocks);
  } else if (rows.num_rows > 4) {
    MultiplyFewRows<8>(p, rows.x, tile, block, num_blocks);
  } else if (rows.num_rows > 1) {
    MultiplyFewRows<4>(p, rows.x, tile, block, num_blocks);
  } else {
    MultiplyFewRows<1>(p, rows.x, tile, block, num_blocks);
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
  const std::int64_t step = p.num_rows > 8 ? kManyRowsBlocks : kFewRowsBlocks;
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
