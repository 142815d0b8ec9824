#include "cache_manager/views/kv_row_indices.h"

#include <cstdint>

#include "cache_manager/views/kv_cache_collection.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

using DynamicParams = KVCacheStaticParams<kDynamicExtent, kDynamicExtent>;

// The rules of a tile: one entry per page, at most 16, pair halves even.
static_assert(PagedRowIndices<128, 16>::kNumPages == 8 && PagedRowIndices<128, 16>::kEffPage == 16);
static_assert(PagedRowIndices<64, 128>::kNumPages == 1 && PagedRowIndices<64, 128>::kEffPage == 64);
static_assert(PagedRowIndices<96, 0>::kNumPages == 1 && PagedRowIndices<96, 0>::kEffPage == 96);
static_assert(ValidTile(256, 16, false) && !ValidTile(272, 16, false) &&
              !ValidTile(512, 16, false));
static_assert(!ValidTile(40, 16, false) && !ValidTile(96, 64, false) && !ValidTile(96, 128, false));
static_assert(ValidTile(96, 16, true) && !ValidTile(48, 16, true) && ValidTile(48, 0, true));
static_assert(!ValidTile(15, 0, true) && !ValidTile(0, 0, false));
static_assert(ValidTileAlignment(128, 16, 16) && !ValidTileAlignment(128, 16, 8));
static_assert(ValidTileAlignment(64, 128, 64) && !ValidTileAlignment(64, 128, 32));
// 12 pages take three reads of four and 8 pages one. An alignment of one page reads entry by entry.
static_assert(internal::TableChunk(12, 16, 192) == 4 && internal::TableChunk(8, 16, 128) == 8);
static_assert(internal::TableChunk(16, 16, 256) == 8 && internal::TableChunk(8, 16, 16) == 1);

// A table of three rows with a long middle row. Entry c of row b is page 100 * b + c + 1. Columns
// past `columns` contain `filler`.
struct Table {
  static constexpr std::uint32_t kColumns = 40;
  StepArrays steps{3, LookupStride(kColumns)};
  template <std::uint32_t P>
  PagedKVCache<float, DynamicParams, P> View(std::uint32_t filler) {
    for (std::uint32_t b = 0; b < 3; ++b) {
      for (std::uint32_t c = 0; c < steps.inputs.lookup_stride; ++c) {
        steps.page(b, c) = c < kColumns ? 100 * b + c + 1 : filler;
      }
    }
    PagedKVCache<float, DynamicParams, P> view;
    view.lookup_table = steps.lookup_table.data();
    view.lookup_stride = steps.inputs.lookup_stride;
    view.batch_size = 3;
    view.num_blocks = 400;
    view.rows_per_page = 6 * P;
    view.heads.value = 1;
    view.columns.value = 16;
    return view;
  }
};

// Compares every base of every row with row_idx. Only entries past the last page show the filler.
template <std::uint32_t BN, std::uint32_t A, std::uint32_t P, typename View>
std::int64_t Sweep(const View& view, std::uint32_t filler) {
  const std::uint32_t tokens = view.lookup_stride * P;
  std::int64_t tiles = 0;
  for (std::uint32_t b = 0; b < 3; ++b) {
    for (std::uint32_t base = 0; base + BN <= tokens; base += A) {
      const auto tile = view.template populate<BN, A>(b, base);
      for (std::uint32_t i = 0; i < tile.num_pages(); ++i) {
        const std::uint32_t t = base + i * tile.eff_page();
        const bool assigned = t / P < Table::kColumns;
        const std::uint32_t page = assigned ? 100 * b + t / P + 1 : filler;
        EXPECT_EQ(tile.rows[i], page * 6 * P + t % P);
      }
      for (std::uint32_t offset = 0; offset < BN; ++offset) {
        if (tile.get_row(offset) != view.row_idx(b, base + offset)) {
          ADD_FAILURE() << "BN " << BN << " P " << P << " base " << base << " offset " << offset;
          return tiles;
        }
      }
      ++tiles;
    }
  }
  return tiles;
}

template <std::uint32_t BN, std::uint32_t P>
std::int64_t SweepAlignments() {
  std::int64_t tiles = 0;
  for (const std::uint32_t filler : {0u, 399u}) {
    Table table;
    const auto view = table.View<P>(filler);
    const PagedKVCache<const float, DynamicParams, kDynamicExtent> dynamic = view;
    if constexpr (ValidTile(BN, P, false)) {
      constexpr std::uint32_t kStep = BN < P ? BN : P;
      tiles += Sweep<BN, kStep, P>(view, filler) + Sweep<BN, kStep, P>(dynamic, filler);
      tiles += Sweep<BN, BN, P>(view, filler) + Sweep<BN, BN, P>(dynamic, filler);
      tiles += Sweep<BN, 2 * kStep, P>(view, filler);
    }
  }
  return tiles;
}

template <std::uint32_t BN>
std::int64_t SweepPages() {
  return SweepAlignments<BN, 16>() + SweepAlignments<BN, 32>() + SweepAlignments<BN, 64>() +
         SweepAlignments<BN, 128>();
}

TEST(KvRowIndicesTest, PopulateEqualsRowIdxForEveryTilePageAndBase) {
  const std::int64_t tiles = SweepPages<16>() + SweepPages<64>() + SweepPages<96>() +
                             SweepPages<128>() + SweepPages<192>() + SweepPages<256>();
  EXPECT_GT(tiles, 20000);
}

// The table's last row is at the end of memory. A read of 16 entries from its last valid column
// stays inside.
TEST(KvRowIndicesTest, LastColumnOfLastRowStaysInTheTable) {
  for (const std::uint32_t max_pages : {1u, 7u, 8u, 9u, 23u}) {
    const std::uint32_t stride = LookupStride(max_pages);
    const AlignedArray<std::uint32_t> table(std::size_t{3} * stride);
    PagedKVCache<const float, DynamicParams, 16> view;
    view.lookup_table = table.data();
    view.lookup_stride = stride;
    view.batch_size = 3;
    view.num_blocks = 50;
    view.rows_per_page = 32;
    table[2 * stride + max_pages - 1] = 49;
    const auto tile = view.populate<256, 16>(2, (max_pages - 1) * 16);
    EXPECT_EQ(tile.rows[0], 49 * 32);
    for (int i = 1; i < 16; ++i) EXPECT_EQ(tile.rows[i], 0) << "past the last page: the null page";
    const PagedKVCache<const float, DynamicParams, kDynamicExtent> dynamic = view;
    EXPECT_EQ((dynamic.populate<256, 16>(2, (max_pages - 1) * 16).rows[15]), 0);
    EXPECT_DEATH((view.populate<256, 16>(2, (stride - 15) * 16)), "check failed");
    EXPECT_DEATH((dynamic.populate<256, 16>(2, (stride - 15) * 16)), "check failed");
  }
}

TEST(KvRowIndicesTest, PairHalvesAndParts) {
  Table table;
  const auto view = table.View<16>(0);
  const auto leader = view.populate<64, 64, true, true>(1, 64);
  const auto peer = view.populate<64, 64, true, false>(1, 64);
  static_assert(decltype(leader)::kCtaGroup == 2);
  for (std::uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(leader.cta_row(i), view.row_idx(1, 64 + i));
    EXPECT_EQ(peer.cta_row(i), view.row_idx(1, 96 + i));
  }
  for (std::uint32_t i = 0; i < 64; ++i) EXPECT_EQ(peer.get_row(i), leader.get_row(i));
  EXPECT_DEATH(leader.cta_row(32), "check failed");
  const PagedKVCache<float, DynamicParams, kDynamicExtent> dynamic = view;
  const auto dynamic_peer = dynamic.populate<64, 64, true, false>(1, 64);
  for (std::uint32_t i = 0; i < 32; ++i) EXPECT_EQ(dynamic_peer.cta_row(i), peer.cta_row(i));

  const auto part = leader.sub_rows<32>(32);
  static_assert(decltype(part)::kNumPages == 2);
  const auto dynamic_part = dynamic_peer.sub_rows<32>(32);
  EXPECT_EQ(dynamic_part.num_pages(), 2);
  for (std::uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(part.get_row(i), leader.get_row(32 + i));
    EXPECT_EQ(dynamic_part.get_row(i), leader.get_row(32 + i));
  }
  EXPECT_EQ(leader.sub_rows<8>(20).rows[0], leader.get_row(20));
  EXPECT_EQ(dynamic_peer.sub_rows<8>(20).rows[0], leader.get_row(20));
  EXPECT_DEATH(leader.sub_rows<32>(8), "check failed") << "a part of two pages starts at a page";
  EXPECT_DEATH(dynamic_peer.sub_rows<32>(8), "check failed");
}

TEST(KvRowIndicesTest, DynamicPagesRejectImpossibleTiles) {
  Table table;
  const auto fixed = table.View<64>(0);
  const PagedKVCache<const float, DynamicParams, kDynamicExtent> view = fixed;
  EXPECT_DEATH((view.populate<96, 96>(0, 0)), "check failed") << "96 rows over pages of 64";
  EXPECT_DEATH((view.populate<128, 32>(0, 0)), "check failed") << "an alignment below the page";
  EXPECT_DEATH((view.populate<64, 64>(3, 0)), "check failed") << "batch row 3 of 3";
}

}  // namespace
}  // namespace quire::cache::testing
