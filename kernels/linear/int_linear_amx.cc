// The integer linear with AMX tiles.
//
// Tiles are used for at least 16 rows if K is a multiple of 64. All other products use the AVX-512
// VNNI level, which has the same bits. 16 lines of a panel, 4 inputs of 16 features each, can be
// loaded as a tile; 4-bit weights are unpacked into one. Activations are row-major, not in the
// blocks of int_linear.h. Tiles 0 to 3 are sums of 16 rows and one panel each, tile 4 is
// activations, tiles 5 and 6 are weights. A step is a group, or the 64 inputs that fit in a tile.

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
constexpr std::int64_t kGroupPanels = 4;

bool UsesTiles(std::size_t num_rows, std::size_t k) {
  return num_rows >= kTileRows && k % kTileInputs == 0;
}

std::size_t ActivationGroups(std::size_t k, std::size_t group) {
  const std::size_t wide = group < 32 ? 32 : group;
  return (k + wide - 1) / wide;
}

// Quantizes to row-major activations: the AVX-512 VNNI level gets each row as a separate block.
void Quantize(const float* x, std::int64_t x_stride, const RowQuantization& how,
              std::uint32_t num_rows, std::uint32_t row_begin, std::uint32_t row_end,
              const IntRows& rows) {
  const QuantizeRowsFn quantize = kIntLinearAvx512Vnni.quantize;
  const auto [k, group, is_int4] = how;
  if (!UsesTiles(num_rows, k)) {
    return quantize(x, x_stride, how, num_rows, row_begin, row_end, rows);
  }
  for (std::size_t row = row_begin; row < row_end; ++row) {
    quantize(x + static_cast<std::int64_t>(row) * x_stride, x_stride, how, 1, 0, 1,
             {rows.q + row * k, rows.scales + row * ActivationGroups(k, group),
              rows.sums + row * (k / group)});
  }
}

// The operand of the instruction ldtilecfg.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};

  TileShapes(std::size_t num_rows, std::size_t step) {
    for (std::size_t tile = 0; tile < 7; ++tile) {
      bytes_per_row[tile] = tile == 4 ? static_cast<std::uint16_t>(step) : std::uint16_t{64};
      rows[tile] = static_cast<std::uint8_t>(tile > 4 ? step / 4 : num_rows);
    }
  }
};

// Inline assembly, since the intrinsics of g++ 12 declare too few memory inputs: 8 of the 64 bytes
// of a configuration, and none of a tile. The compiler then removes or reorders stores to the rest.
QUIRE_OP void ConfigureTiles(const TileShapes& shapes) {
  static_assert(sizeof(TileShapes) == 64);
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}
template <int kTile>
QUIRE_OP void LoadTile(const void* from, std::size_t stride) {
  asm volatile("tileloadd (%0,%1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

// Returns one step of one panel as [step / 4][16][4] bytes, in place or unpacked into `buffer`.
QUIRE_OP const std::uint8_t* StepWeights(const IntLinearArgs& args, std::size_t panel,
                                         std::size_t k0, std::size_t step, std::uint8_t* buffer) {
  const std::uint8_t* const w = args.panels + static_cast<std::int64_t>(panel) * args.panel_bytes;
  if (!args.is_int4) return w + k0 * kPanel;
  const __m512i low_half = _mm512_set1_epi8(15);
  for (std::size_t j = 0; j < step / 8; ++j) {
    const __m512i both = _mm512_loadu_si512(w + (k0 / 8 + j) * 64);
    _mm512_store_si512(buffer + j * 128, _mm512_and_si512(both, low_half));
    _mm512_store_si512(buffer + j * 128 + 64,
                       _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half));
  }
  return buffer;
}

// Up to 16 rows from `row` on, and panels [begin, end), at most kGroupPanels.
struct Block {
  const IntLinearArgs& args;
  std::size_t row, num_rows, begin, end;
  alignas(64) std::int32_t sums[kGroupPanels][kTileRows][kPanel];
  alignas(64) float totals[kGroupPanels][kTileRows][kPanel];
};

// Sets block.sums to the products of the inputs [k0, k1) and the stored weights.
void Multiply(Block& block, std::size_t k0, std::size_t k1, std::size_t step) {
  const IntLinearArgs& args = block.args;
  const std::size_t panels = block.end - block.begin;
  alignas(64) std::uint8_t buffer[2][kTileInputs * kPanel];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (; k0 < k1; k0 += step) {
    const auto weights = [&](std::size_t i) {
      return StepWeights(args, block.begin + i, k0, step, buffer[i % 2]);
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

// Uses masked intrinsics with all lanes, since g++ 12 warns about the unmasked ones.
QUIRE_OP __m512 LoadF16(const std::uint16_t* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// Adds the sums of group `g` to the totals (int_linear.h).
void AddGroup(Block& block, std::size_t g) {
  const IntLinearArgs& args = block.args;
  const std::size_t groups = args.k / args.group;
  const std::size_t parts = args.has_min ? 2 : 1;
  const std::size_t wide_groups = ActivationGroups(args.k, args.group);
  const std::int32_t offset = args.has_min ? 0 : args.is_int4 ? 8 : 128;
  for (std::size_t panel = block.begin; panel < block.end; ++panel) {
    const auto* const scales =
        static_cast<const std::uint16_t*>(args.scales) + (panel * groups + g) * parts * kPanel;
    const __m512 scale =
        args.scale_per_feature
            ? _mm512_loadu_ps(static_cast<const float*>(args.scales) + panel * kPanel)
            : LoadF16(scales);
    __m512 min = args.has_min ? LoadF16(scales + kPanel) : _mm512_setzero_ps();
    if (args.has_zero_points) min = _mm512_mul_ps(min, scale);
    for (std::size_t r = 0; r < block.num_rows; ++r) {
      float* const total = block.totals[panel - block.begin][r];
      const std::size_t row = block.row + r;
      const std::int32_t sum = args.x.sums[row * groups + g];
      const __m512 a =
          _mm512_set1_ps(args.x.scales[row * wide_groups + (args.group < 32 ? g / 2 : g)]);
      const __m512 dot = _mm512_maskz_cvtepi32_ps(
          0xffff, _mm512_sub_epi32(_mm512_load_si512(block.sums[panel - block.begin][r]),
                                   _mm512_set1_epi32(offset * sum)));
      __m512 t = args.scale_per_feature
                     ? _mm512_mul_ps(dot, _mm512_mul_ps(a, scale))
                     : _mm512_fmadd_ps(dot, _mm512_mul_ps(a, scale), _mm512_load_ps(total));
      if (args.has_min) {
        t = _mm512_fmadd_ps(_mm512_set1_ps(static_cast<float>(sum)), _mm512_mul_ps(a, min), t);
      }
      _mm512_store_ps(total, t);
    }
  }
}

void StoreBlock(const Block& block) {
  const IntLinearArgs& args = block.args;
  for (std::size_t panel = block.begin; panel < block.end; ++panel) {
    const std::size_t n = panel * kPanel;
    const std::size_t count = args.n - n < kPanel ? args.n - n : kPanel;
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    for (std::size_t r = 0; r < block.num_rows; ++r) {
      const auto m = static_cast<std::int64_t>(block.row + r);
      __m512 v = _mm512_load_ps(block.totals[panel - block.begin][r]);
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
  if (!UsesTiles(args.num_rows, args.k)) {
    return kIntLinearAvx512Vnni.linear(args, panel_begin, panel_end);
  }
  const std::size_t step = args.group < kTileInputs ? args.group : kTileInputs;
  for (std::int64_t begin = panel_begin; begin < panel_end; begin += kGroupPanels) {
    const std::int64_t end = begin + kGroupPanels < panel_end ? begin + kGroupPanels : panel_end;
    for (std::size_t row = 0; row < args.num_rows; row += kTileRows) {
      const std::size_t left = args.num_rows - row;
      const std::size_t num_rows = left < kTileRows ? left : kTileRows;
      if (row == 0 || num_rows < kTileRows) {
        const TileShapes shapes(num_rows, step);
        ConfigureTiles(shapes);
      }
      Block block = {
          args, row, num_rows, static_cast<std::size_t>(begin), static_cast<std::size_t>(end),
          {},   {}};
      for (std::size_t g = 0; g < args.k / args.group; ++g) {
        Multiply(block, g * args.group, (g + 1) * args.group, step);
        AddGroup(block, g);
      }
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
