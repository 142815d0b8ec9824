// The integer linear kernel with AMX tiles.
//
// AMX tiles are used for at least 16 rows, if the weights have one scale per feature and K is above
// 128 and a multiple of 64. All other products use the AVX-512 VNNI level, whose results are equal
// bit for bit. Groups fill only a part of a tile, and VNNI was measured to be faster for them. A
// tile of weights is 16 cache lines of a panel, each with 4 inputs of 16 features. Activations are
// row-major, not in the blocks of int_linear.h. Tiles 0 to 3 are the sums of 16 rows and one panel
// each, tile 4 is activations, tiles 5 and 6 are weights.

#include "kernels/linear/int_linear.h"

#if defined(__AMX_INT8__) && defined(__AMX_TILE__) && defined(__AVX512VNNI__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {
namespace {

#define QUIRE_OP inline __attribute__((always_inline))

constexpr std::size_t kPanel = 16;
constexpr std::size_t kTileRows = 16;
constexpr std::size_t kTileInputs = 64;
constexpr std::int64_t kBlockPanels = 4;

// True if AMX tiles are used. Groups have at most 128 inputs, so a larger group means one scale per
// feature.
bool UsesTiles(std::size_t num_rows, std::size_t k, std::size_t group) {
  return num_rows >= kTileRows && group == k && k > 128 && k % kTileInputs == 0;
}

// Quantizes x to row-major activations by passing each row as a separate block to the AVX-512 VNNI
// level.
void Quantize(const float* x, std::int64_t x_stride, const RowQuantization& quantization,
              std::uint32_t num_rows, std::uint32_t row_begin, std::uint32_t row_end,
              const IntRows& rows) {
  const QuantizeRowsFn quantize = kIntLinearAvx512Vnni.quantize;
  const auto [k, group, is_int4] = quantization;
  if (!UsesTiles(num_rows, k, group)) {
    return quantize(x, x_stride, quantization, num_rows, row_begin, row_end, rows);
  }
  for (std::size_t row = row_begin; row < row_end; ++row) {
    quantize(x + static_cast<std::int64_t>(row) * x_stride, x_stride, quantization, 1, 0, 1,
             {rows.q + row * k, rows.scales + row, rows.sums + row});
  }
}

// The operand of the instruction ldtilecfg.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};

  explicit TileShapes(std::size_t num_rows) {
    for (std::size_t tile = 0; tile < 7; ++tile) {
      bytes_per_row[tile] = 64;
      rows[tile] = static_cast<std::uint8_t>(tile > 4 ? 16 : num_rows);
    }
  }
};

// Uses inline assembly, because the intrinsics of g++ 12 declare too few memory inputs: 8 of the 64
// bytes of a configuration, and none of a tile. The compiler would then remove or reorder stores to
// the undeclared bytes.
QUIRE_OP void ConfigureTiles(const TileShapes& shapes) {
  static_assert(sizeof(TileShapes) == 64);
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}
template <int kTile>
QUIRE_OP void LoadTile(const void* from, std::size_t stride) {
  asm volatile("tileloadd (%0,%1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

// A block of at most 16 rows from `row` on, and of panels [begin, end), at most kBlockPanels.
struct Block {
  const IntLinearArgs& args;
  std::size_t row, num_rows, begin, end;
  alignas(64) std::int32_t sums[kBlockPanels][kTileRows][kPanel];
};

// Sets block.sums to the products of the quantized inputs and the stored weights.
void Multiply(Block& block) {
  const IntLinearArgs& args = block.args;
  const std::size_t panels = block.end - block.begin;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::size_t k0 = 0; k0 < args.k; k0 += kTileInputs) {
    const auto weights = [&](std::size_t i) {
      return args.panels + static_cast<std::int64_t>(block.begin + i) * args.panel_bytes +
             k0 * kPanel;
    };
    LoadTile<4>(args.x.q + block.row * args.k + k0, args.k);
    LoadTile<5>(weights(0), 64);
    _tile_dpbsud(0, 4, 5);
    if (panels > 1) {
      LoadTile<6>(weights(1), 64);
      _tile_dpbsud(1, 4, 6);
    }
    if (panels > 2) {
      LoadTile<5>(weights(2), 64);
      _tile_dpbsud(2, 4, 5);
    }
    if (panels > 3) {
      LoadTile<6>(weights(3), 64);
      _tile_dpbsud(3, 4, 6);
    }
  }
  _tile_stored(0, block.sums[0], 64);
  _tile_stored(1, block.sums[1], 64);
  _tile_stored(2, block.sums[2], 64);
  _tile_stored(3, block.sums[3], 64);
}

// Writes y from the sums (int_linear.h).
void StoreBlock(const Block& block) {
  const IntLinearArgs& args = block.args;
  constexpr std::int32_t kOffset = 128;
  for (std::size_t panel = block.begin; panel < block.end; ++panel) {
    const std::size_t n = panel * kPanel;
    const std::size_t count = args.n - n < kPanel ? args.n - n : kPanel;
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    const __m512 scale = _mm512_loadu_ps(static_cast<const float*>(args.scales) + n);
    for (std::size_t r = 0; r < block.num_rows; ++r) {
      const std::size_t row = block.row + r;
      const auto m = static_cast<std::int64_t>(row);
      const __m512i products = _mm512_load_si512(block.sums[panel - block.begin][r]);
      // Uses the masked intrinsic, because g++ 12 warns about the unmasked one.
      const __m512 dot = _mm512_maskz_cvtepi32_ps(
          0xffff, _mm512_sub_epi32(products, _mm512_set1_epi32(kOffset * args.x.sums[row])));
      __m512 v = _mm512_mul_ps(dot, _mm512_mul_ps(_mm512_set1_ps(args.x.scales[row]), scale));
      if (args.bias != nullptr) {
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(lanes, args.bias + n));
      }
      if (args.residual != nullptr) {
        v = _mm512_add_ps(
            v, _mm512_maskz_loadu_ps(lanes, args.residual + m * args.residual_stride + n));
      }
      _mm512_mask_storeu_ps(args.y + m * args.y_stride + n, lanes, v);
    }
  }
}

void Linear(const IntLinearArgs& args, std::int64_t panel_begin, std::int64_t panel_end) {
  if (!UsesTiles(args.num_rows, args.k, args.group)) {
    return kIntLinearAvx512Vnni.linear(args, panel_begin, panel_end);
  }
  for (std::int64_t begin = panel_begin; begin < panel_end; begin += kBlockPanels) {
    const std::int64_t end = begin + kBlockPanels < panel_end ? begin + kBlockPanels : panel_end;
    for (std::size_t row = 0; row < args.num_rows; row += kTileRows) {
      const std::size_t left = args.num_rows - row;
      const std::size_t num_rows = left < kTileRows ? left : kTileRows;
      if (row == 0 || num_rows < kTileRows) {
        const TileShapes shapes(num_rows);
        ConfigureTiles(shapes);
      }
      Block block = {
          args, row, num_rows, static_cast<std::size_t>(begin), static_cast<std::size_t>(end), {}};
      Multiply(block);
      StoreBlock(block);
    }
  }
  _tile_release();
}

#undef QUIRE_OP

}  // namespace

const IntLinearKernels kIntLinearAmx = {"amx", Quantize, Linear};

}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearAmx = {"amx", nullptr, nullptr};
}  // namespace quire::kernels::internal

#endif
