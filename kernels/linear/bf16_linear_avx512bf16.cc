// Multiplies bf16 with the instruction vdpbf16ps. It adds two products to a sum: first the product
// of the upper halves, then the product of the lower halves. Each addition is like a fused
// multiply-add that flushes subnormal numbers. Operands are ordered so that both products belong to
// the even inputs or both to the odd inputs (bf16_linear.h). Four inputs need two instructions
// instead of four multiply-adds.
//
// Rows are ordered once for 512 inputs. Weights are stored in the order of AMX tiles and are
// ordered in registers. A tile is 6 rows x 2 panels: 24 sums, 4 weights and 2 broadcasts. If there
// are at most 8 rows, a tile has all of them and one panel, so that weights are read at an even
// rate. The weights of the next panels are prefetched, because out-of-order execution alone keeps
// too few loads in flight.

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
constexpr std::int64_t kBlocks = 16;          // blocks of inputs that are ordered together

// A row tile. Four inputs 0, 1, 2, 3 are stored as the pairs (2, 0) and (3, 1), the lower half
// first.
struct alignas(64) OrderedRows {
  std::uint32_t pairs[kBlocks * kRows * 16];  // [blocks][16 rows][8 groups of four inputs][2]
};

QUIRE_OP void Order(const std::uint16_t* x, std::int64_t num_blocks, std::int64_t num_rows,
                    OrderedRows* to) {
  const __m512i bytes =
      _mm512_broadcast_i32x4(_mm_set_epi64x(0x0b0a0f0e09080d0c, 0x0302070601000504));
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const __m512i inputs = _mm512_loadu_si512(x + block * kTile + row * 32);
      _mm512_store_si512(to->pairs + (block * kRows + row) * 16,
                         _mm512_shuffle_epi8(inputs, bytes));
    }
  }
}

QUIRE_OP __m512 AddProducts(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// Weights of the next panels, prefetched while the current panels are multiplied.
struct NextWeights {
  const std::uint16_t* from;  // null: none
  int lines;                  // cache lines of a panel to prefetch per block
};

// Computes kTileRows rows and kPanels panels. `x` and `totals` start at the first row, `w` and
// `totals` at the first panel. Panels are w_stride and total_stride apart.
template <int kTileRows, int kPanels>
QUIRE_OP void MultiplyTile(const std::uint32_t* x, const std::uint16_t* w, std::int64_t w_stride,
                           std::int64_t num_blocks, bool is_first, float* totals,
                           std::int64_t total_stride, NextWeights next) {
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    __m512 even[kTileRows][kPanels], odd[kTileRows][kPanels];
    for (int r = 0; r < kTileRows; ++r) {
      for (int c = 0; c < kPanels; ++c) even[r][c] = odd[r][c] = _mm512_setzero_ps();
    }
    for (int group = 0; group < 8; ++group) {
      for (int line = group; line < next.lines; line += 8) {
        for (int c = 0; c < kPanels; ++c) {
          _mm_prefetch(next.from + c * w_stride + (block * next.lines + line) * 32, _MM_HINT_T1);
        }
      }
      __m512i even_weights[kPanels], odd_weights[kPanels];
      for (int c = 0; c < kPanels; ++c) {
        const std::uint16_t* const from = w + c * w_stride + block * kTile + group * 64;
        const __m512i first = _mm512_loadu_si512(from);        // inputs 0 and 1
        const __m512i second = _mm512_loadu_si512(from + 32);  // inputs 2 and 3
        constexpr __mmask32 kLower = 0x55555555;
        even_weights[c] = _mm512_mask_blend_epi16(kLower, _mm512_slli_epi32(first, 16), second);
        odd_weights[c] = _mm512_mask_blend_epi16(kLower, first, _mm512_srli_epi32(second, 16));
      }
      for (int r = 0; r < kTileRows; ++r) {
        const std::uint32_t* const pair = x + (block * kRows + r) * 16 + group * 2;
        const __m512i even_inputs = _mm512_set1_epi32(static_cast<int>(pair[0]));
        const __m512i odd_inputs = _mm512_set1_epi32(static_cast<int>(pair[1]));
        for (int c = 0; c < kPanels; ++c) {
          even[r][c] = AddProducts(even[r][c], even_inputs, even_weights[c]);
          odd[r][c] = AddProducts(odd[r][c], odd_inputs, odd_weights[c]);
        }
      }
    }
    for (int r = 0; r < kTileRows; ++r) {
      for (int c = 0; c < kPanels; ++c) {
        float* const total = totals + c * total_stride + r * 16;
        const __m512 before = is_first && block == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(total);
        _mm512_storeu_ps(total, _mm512_add_ps(before, _mm512_add_ps(even[r][c], odd[r][c])));
      }
    }
  }
}

// Computes kPanels panels for `num_rows` rows of a row tile. `next` points to the weights that are
// read next. It is null if there are none or if they are in a cache.
template <int kPanels>
QUIRE_OP void MultiplyPanels(const OrderedRows& rows, std::int64_t num_rows, const std::uint16_t* w,
                             std::int64_t w_stride, std::int64_t num_blocks, bool is_first,
                             float* totals, std::int64_t total_stride, const std::uint16_t* next) {
  // Each tile of rows prefetches an equal share of the next weights.
  const int tiles = static_cast<int>(num_rows + 5) / 6;
  NextWeights share = {next, next == nullptr ? 0 : (16 + tiles - 1) / tiles};
  std::int64_t row = 0;
  for (; row + 6 <= num_rows; row += 6) {
    MultiplyTile<6, kPanels>(rows.pairs + row * 16, w, w_stride, num_blocks, is_first,
                             totals + row * 16, total_stride, share);
    share.from += share.lines * num_blocks * 32;
  }
  const std::uint32_t* const x = rows.pairs + row * 16;
  float* const to = totals + row * 16;
  switch (num_rows - row) {
    case 5:
      return MultiplyTile<5, kPanels>(x, w, w_stride, num_blocks, is_first, to, total_stride,
                                      share);
    case 4:
      return MultiplyTile<4, kPanels>(x, w, w_stride, num_blocks, is_first, to, total_stride,
                                      share);
    case 3:
      return MultiplyTile<3, kPanels>(x, w, w_stride, num_blocks, is_first, to, total_stride,
                                      share);
    case 2:
      return MultiplyTile<2, kPanels>(x, w, w_stride, num_blocks, is_first, to, total_stride,
                                      share);
    case 1:
      return MultiplyTile<1, kPanels>(x, w, w_stride, num_blocks, is_first, to, total_stride,
                                      share);
    default:
      return;
  }
}

// A row tile, and the range of inputs that is multiplied.
struct Part {
  OrderedRows rows;
  std::int64_t tile, block, num_blocks, num_rows;
};

// Multiplies up to kTileRows rows, one panel at a time. Not inlined, so that the compiler allocates
// registers for each tile separately.
template <int kTileRows>
__attribute__((noinline)) void MultiplyFewRows(const Bf16Product& p, const Part& part) {
  const std::uint16_t* w = p.w + part.block * kTile;
  for (std::int64_t panel = 0; panel < p.num_panels; ++panel, w += p.w_stride) {
    MultiplyTile<kTileRows, 1>(part.rows.pairs, w, 0, part.num_blocks,
                               p.is_first && part.block == 0, p.totals + panel * kTotals, 0,
                               {w + p.w_stride, 16});
  }
}

__attribute__((noinline)) void MultiplyManyRows(const Bf16Product& p, const Part& part) {
  const std::int64_t total_stride = p.num_row_tiles * kTotals;
  const bool is_first = p.is_first && part.block == 0;
  const std::uint16_t* w = p.w + part.block * kTile;
  float* totals = p.totals + part.tile * kTotals;
  std::int64_t panel = 0;
  for (; panel + 2 <= p.num_panels; panel += 2) {
    // After the last panels, the first panels are read for the next range of inputs. Weights for
    // other row tiles are in L2.
    const std::uint16_t* const next = panel + 4 <= p.num_panels
                                          ? w + 2 * p.w_stride
                                          : p.w + (part.block + part.num_blocks) * kTile;
    MultiplyPanels<2>(part.rows, part.num_rows, w, p.w_stride, part.num_blocks, is_first, totals,
                      total_stride, part.tile == 0 ? next : nullptr);
    w += 2 * p.w_stride;
    totals += 2 * total_stride;
  }
  if (panel == p.num_panels) return;
  MultiplyPanels<1>(part.rows, part.num_rows, w, p.w_stride, part.num_blocks, is_first, totals,
                    total_stride, nullptr);
}

// Not inlined, so that no arithmetic moves across the changes of MXCSR.
__attribute__((noinline)) void MultiplyFlushed(const Bf16Product& p) {
  Part part;
  for (part.tile = 0; part.tile < p.num_row_tiles; ++part.tile) {
    const std::int64_t left = p.num_rows - part.tile * kRows;
    part.num_rows = left < kRows ? left : kRows;
    for (part.block = 0; part.block < p.num_blocks; part.block += kBlocks) {
      const std::int64_t blocks_left = p.num_blocks - part.block;
      part.num_blocks = blocks_left < kBlocks ? blocks_left : kBlocks;
      Order(p.x + part.tile * p.x_stride + part.block * kTile, part.num_blocks, part.num_rows,
            &part.rows);
      if (p.num_row_tiles > 1 || p.num_rows > 8) {
        MultiplyManyRows(p, part);
      } else if (p.num_rows > 4) {
        MultiplyFewRows<8>(p, part);
      } else if (p.num_rows > 1) {
        MultiplyFewRows<4>(p, part);
      } else {
        MultiplyFewRows<1>(p, part);
      }
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

#undef QUIRE_OP

}  // namespace

const Bf16MultiplyFn kBf16MultiplyAvx512Bf16 = Multiply;

}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const Bf16MultiplyFn kBf16MultiplyAvx512Bf16 = nullptr;
}  // namespace quire::kernels::internal

#endif
