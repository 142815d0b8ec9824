// The integer linear kernel with AVX-512. int_linear_avx512.cc includes this file for CPUs without
// dot product instructions, int_linear_avx512vnni.cc for CPUs with them. Everything here has
// internal linkage, see int_linear.h. `Isa` defines how 4 bytes are multiplied:
//
//   Weights Widen(__m512i u);                              64 unsigned bytes, prepared for Dot
//   Inputs Spread(const std::int8_t* a);                   4 signed bytes, in every lane
//   void Dot(__m512i& acc, Weights w, Inputs a);           acc += sum of 4 products, per lane
//   kTilePanels                                            panels per tile, if rows > kFewRows
//   ForInt4                                                the Isa for 4-bit weights
//
// With few rows, panels are multiplied one after the other, with all rows in one tile, so that each
// thread reads one stream of memory. With more rows, the loops are, from outer to inner:
// kTilePanels panels, 64 rows, parts of K that fit in L1 (only with one scale per feature), and
// tiles.

#pragma once

#include <immintrin.h>

#include "kernels/linear/int_linear.h"
#include "kernels/linear/int_linear_avx512_base-inl.h"
#include "kernels/linear/int_linear_avx512_quantize-inl.h"
#include "kernels/linear/int_linear_avx512_tiles-inl.h"

namespace quire::kernels::internal {
namespace {

constexpr std::uint32_t kRowsAtOnce = 64;
constexpr std::uint32_t kFewRows = 8;

// The format of weights: one scale per output feature, or scales per group, without or with
// minimums.
enum class Form { kInt8PerFeature, kInt8, kInt8Min, kInt4, kInt4Min };

constexpr bool IsInt4(Form form) {
  return form == Form::kInt4 || form == Form::kInt4Min;
}
constexpr bool HasMin(Form form) {
  return form == Form::kInt8Min || form == Form::kInt4Min;
}

// Computes R rows and P panels. With one scale per feature, `memory` is [R][P][16] and passes the
// partial sums from one part of K to the next.
template <class Isa, int R, int P, Form kForm>
QUIRE_INLINE void ComputeTile(const IntLinearArgs& args, const Groups& groups, const Place& at,
                              float* memory) {
  if constexpr (kForm == Form::kInt8PerFeature) {
    PerFeatureTile<Isa, R, P>(args, at, memory);
  } else {
    PerGroupTile<Isa, R, P, IsInt4(kForm), HasMin(kForm)>(args, groups, at);
  }
}

// Functions for tiles of 1 to 8 rows and one panel.
template <class Isa, Form kForm>
constexpr decltype(&ComputeTile<Isa, 1, 1, kForm>) kPanelTiles[8] = {
    ComputeTile<Isa, 1, 1, kForm>, ComputeTile<Isa, 2, 1, kForm>, ComputeTile<Isa, 3, 1, kForm>,
    ComputeTile<Isa, 4, 1, kForm>, ComputeTile<Isa, 5, 1, kForm>, ComputeTile<Isa, 6, 1, kForm>,
    ComputeTile<Isa, 7, 1, kForm>, ComputeTile<Isa, 8, 1, kForm>};

// Computes all rows of one panel, with up to 8 rows per tile.
template <class Isa, Form kForm>
QUIRE_INLINE void ComputePanel(const IntLinearArgs& args, const Groups& groups,
                               std::int64_t panel) {
  alignas(64) float memory[8 * kPanel];
  for (std::uint32_t row = 0; row < args.num_rows; row += 8) {
    const std::uint32_t rows = Least(args.num_rows - row, 8);
    const Place at = {row, row, BlockRows(rows), 0, args.k, panel, 0, 1, 0, 0};
    kPanelTiles<Isa, kForm>[rows - 1](args, groups, at, memory);
  }
}

// Computes rows [row_begin, row_end) for the part of K and the P panels of `at`.
template <class Isa, int P, Form kForm>
QUIRE_INLINE void ComputeRows(const IntLinearArgs& args, const Groups& groups, Place at,
                              std::uint32_t row_begin, std::uint32_t row_end, float* memory) {
  constexpr std::uint32_t kMax = kForm == Form::kInt8PerFeature ? 8 : 4;
  for (at.block = row_begin; at.block < row_end; at.block += at.block_rows) {
    at.block_rows = BlockRows(row_end - at.block);
    const std::uint32_t rows = Least(at.block_rows, kMax);
    for (at.row = at.block; at.row < at.block + at.block_rows; at.row += rows, ++at.pass) {
      float* const own = memory + (at.row - row_begin) * P * kPanel;
      if (rows == 8) {
        if constexpr (kMax == 8) ComputeTile<Isa, 8, P, kForm>(args, groups, at, own);
      } else if (rows == 4) {
        ComputeTile<Isa, 4, P, kForm>(args, groups, at, own);
      } else if (rows == 2) {
        ComputeTile<Isa, 2, P, kForm>(args, groups, at, own);
      } else {
        ComputeTile<Isa, 1, P, kForm>(args, groups, at, own);
      }
    }
  }
}

// Computes all rows of P panels.
template <class Isa, int P, Form kForm>
QUIRE_INLINE void ComputeManyRows(const IntLinearArgs& args, const Groups& groups,
                                  std::int64_t panel) {
  constexpr bool kPerFeature = kForm == Form::kInt8PerFeature;
  alignas(64) float memory[kRowsAtOnce * P * kPanel];
  for (std::uint32_t row = 0; row < args.num_rows; row += kRowsAtOnce) {
    const std::uint32_t row_end = Least(row + kRowsAtOnce, args.num_rows);
    const std::uint32_t rows = row_end - row;
    Place at{};
    at.panel = panel;
    at.passes =
        (kPerFeature ? rows / 8 + (rows >> 2 & 1) : rows / 4) + (rows >> 1 & 1) + (rows & 1);
    if constexpr (!kPerFeature) {
      const std::uint32_t lines = P * groups.lines;
      at.next_lines = lines * groups.count / at.passes;
      at.next_lines_of_group = (lines + at.passes - 1) / at.passes;
    }
    for (at.k0 = 0; at.k0 < args.k; at.k0 = at.k1) {
      at.k1 = kPerFeature ? Least(at.k0 + kPart, args.k) : args.k;
      ComputeRows<Isa, P, kForm>(args, groups, at, row, row_end, memory);
    }
  }
}

template <class Isa, Form kForm>
void ComputePanels(const IntLinearArgs& args, std::int64_t panel, std::int64_t panel_end) {
  const Groups groups = Groups::Of(args);
  if (args.num_rows > kFewRows) {
    constexpr int kMax = Isa::kTilePanels;
    // The last 4 panels are computed as 2 and 2 instead of 3 and 1.
    for (; panel_end - panel >= kMax && panel_end - panel != 4; panel += kMax) {
      ComputeManyRows<Isa, kMax, kForm>(args, groups, panel);
    }
    for (; panel_end - panel >= 2; panel += 2) ComputeManyRows<Isa, 2, kForm>(args, groups, panel);
  }
  for (; panel < panel_end; ++panel) ComputePanel<Isa, kForm>(args, groups, panel);
}

template <class Isa>
void Linear(const IntLinearArgs& args, std::int64_t panel_begin, std::int64_t panel_end) {
  if (args.is_int4) {
    using Int4 = typename Isa::ForInt4;
    if (args.has_min) return ComputePanels<Int4, Form::kInt4Min>(args, panel_begin, panel_end);
    return ComputePanels<Int4, Form::kInt4>(args, panel_begin, panel_end);
  }
  if (args.scale_per_feature)
    return ComputePanels<Isa, Form::kInt8PerFeature>(args, panel_begin, panel_end);
  if (args.has_min) return ComputePanels<Isa, Form::kInt8Min>(args, panel_begin, panel_end);
  ComputePanels<Isa, Form::kInt8>(args, panel_begin, panel_end);
}

#undef QUIRE_INLINE

}  // namespace
}  // namespace quire::kernels::internal
