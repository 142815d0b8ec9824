// Multiplies bf16 with AMX tiles. AMX tiles 0 to 3 are the totals of two row tiles by two panels.
// AMX tiles 4 and 5 are rows, 6 and 7 are weights. Four products therefore need four loads. Two
// panels of 512 inputs stay in L1, and rows are streamed.

#include "kernels/linear/bf16_product.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {
namespace {

#define QUIRE_OP inline __attribute__((always_inline))

constexpr std::int64_t kTile = std::int64_t{16} * 32;    // elements of a bf16 tile
constexpr std::int64_t kTotals = std::int64_t{16} * 16;  // elements of a tile of totals

// The operand of the instruction ldtilecfg: eight tiles of 16 rows and 64 bytes.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);
constexpr TileShapes kShapes;

// Uses inline assembly, because the intrinsics of g++ 12 declare too few memory inputs: 8 of the 64
// bytes of a configuration, and none of a tile. The compiler would then remove or reorder stores to
// the undeclared bytes.
QUIRE_OP void ConfigureTiles() {
  asm volatile("ldtilecfg (%0)" : : "r"(&kShapes), "m"(kShapes));
}
template <int kTo>
QUIRE_OP void LoadTile(const void* from) {
  asm volatile("tileloadd (%0,%1), %%tmm%c2"
               :
               : "r"(from), "r"(std::size_t{64}), "i"(kTo)
               : "memory");
}
// Loads with the hint that the data will not be used again soon, so that weights stay in L1.
template <int kTo>
QUIRE_OP void StreamTile(const void* from) {
  asm volatile("tileloaddt1 (%0,%1), %%tmm%c2"
               :
               : "r"(from), "r"(std::size_t{64}), "i"(kTo)
               : "memory");
}

// Computes kRows tiles of rows from `row_tile` on and kPanels panels from `panel` on.
template <int kRows, int kPanels>
QUIRE_OP void MultiplyTiles(const Bf16Product& p, std::int64_t row_tile, std::int64_t panel) {
  const auto totals = [&](std::int64_t row, std::int64_t column) {
    return p.totals + ((panel + column) * p.num_row_tiles + row_tile + row) * kTotals;
  };
  if (p.is_first) {
    _tile_zero(0);
    if constexpr (kPanels > 1) _tile_zero(1);
    if constexpr (kRows > 1) _tile_zero(2);
    if constexpr (kRows > 1 && kPanels > 1) _tile_zero(3);
  } else {
    LoadTile<0>(totals(0, 0));
    if constexpr (kPanels > 1) LoadTile<1>(totals(0, 1));
    if constexpr (kRows > 1) LoadTile<2>(totals(1, 0));
    if constexpr (kRows > 1 && kPanels > 1) LoadTile<3>(totals(1, 1));
  }
  const std::uint16_t* const x = p.x + row_tile * p.x_stride;
  const std::uint16_t* const w = p.w + panel * p.w_stride;
  for (std::int64_t block = 0; block < p.num_blocks; ++block) {
    StreamTile<4>(x + block * kTile);
    LoadTile<6>(w + block * kTile);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels > 1) {
      LoadTile<7>(w + p.w_stride + block * kTile);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows > 1) {
      StreamTile<5>(x + p.x_stride + block * kTile);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, totals(0, 0), 64);
  if constexpr (kPanels > 1) _tile_stored(1, totals(0, 1), 64);
  if constexpr (kRows > 1) _tile_stored(2, totals(1, 0), 64);
  if constexpr (kRows > 1 && kPanels > 1) _tile_stored(3, totals(1, 1), 64);
}

template <int kPanels>
QUIRE_OP void MultiplyRows(const Bf16Product& p, std::int64_t panel) {
  std::int64_t row_tile = 0;
  for (; row_tile + 2 <= p.num_row_tiles; row_tile += 2) {
    MultiplyTiles<2, kPanels>(p, row_tile, panel);
  }
  if (row_tile < p.num_row_tiles) MultiplyTiles<1, kPanels>(p, row_tile, panel);
}

void Multiply(const Bf16Product& p) {
  ConfigureTiles();
  std::int64_t panel = 0;
  for (; panel + 2 <= p.num_panels; panel += 2) MultiplyRows<2>(p, panel);
  if (panel < p.num_panels) MultiplyRows<1>(p, panel);
  _tile_release();
}

#undef QUIRE_OP

}  // namespace

const Bf16MultiplyFn kBf16MultiplyAmx = Multiply;

}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const Bf16MultiplyFn kBf16MultiplyAmx = nullptr;
}  // namespace quire::kernels::internal

#endif
