#include "cache_manager/views/sparse_index_remap.h"

#include <cstdint>
#include <vector>

#include "cache_manager/views/kv_cache_view.h"
#include "gtest/gtest.h"

namespace quire::cache {
namespace {

struct Remap {
  std::vector<std::uint32_t> offsets;
  std::vector<std::uint32_t> table;  // rows of 4 columns
  std::uint32_t num_blocks = 10;

  std::vector<std::int32_t> Run(std::uint32_t queries, const std::vector<std::int32_t>& logical) {
    std::vector<std::int32_t> encoded(logical.size(), 12345);
    RemapSparseIndices({.logical = logical.data(),
                        .row_offsets = offsets.data(),
                        .lookup_table = table.data(),
                        .encoded = encoded.data(),
                        .num_queries = queries,
                        .num_selected = static_cast<std::uint32_t>(logical.size()) / queries,
                        .batch_size = static_cast<std::uint32_t>(offsets.size()) - 1,
                        .lookup_stride = 4,
                        .page_size = 16,
                        .num_blocks = num_blocks});
    return encoded;
  }
};

TEST(SparseIndexRemapTest, EncodesPageAndOffset) {
  Remap remap{{0, 2}, {7, 9, 0, 0}};
  EXPECT_EQ(remap.Run(2, {0, 15, 16, 31}),
            (std::vector<std::int32_t>{7 * 16, 7 * 16 + 15, 9 * 16, 9 * 16 + 15}));
}

TEST(SparseIndexRemapTest, NegativePositionsAreCopied) {
  Remap remap{{0, 1}, {7, 9, 0, 0}};
  EXPECT_EQ(remap.Run(1, {-1, -77}), (std::vector<std::int32_t>{-1, -77}));
}

TEST(SparseIndexRemapTest, NoPageIsMinusOne) {
  Remap remap{{0, 1}, {7, 0, 10, 9}};
  EXPECT_EQ(remap.Run(1, {16, 32, 48, 63, 64, 1 << 30}),
            (std::vector<std::int32_t>{-1, -1, 9 * 16, 9 * 16 + 15, -1, -1}))
      << "unassigned, an id past the last page, the last page, past the table";
}

TEST(SparseIndexRemapTest, EachQueryReadsItsOwnRow) {
  // Row 0 has queries 0 and 1, row 1 none, row 2 query 2. Query 3 belongs to no row.
  Remap remap{{0, 2, 2, 3}, {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}};
  EXPECT_EQ(remap.Run(4, {5, 5, 5, 5}), (std::vector<std::int32_t>{21, 21, 53, -1}));
  Remap later{{1, 2}, {4, 0, 0, 0}};
  EXPECT_EQ(later.Run(3, {5, 5, 5}), (std::vector<std::int32_t>{-1, 69, -1}))
      << "a query before the first row";
}

TEST(SparseIndexRemapTest, WorksInPlaceAndFeedsGetTmaRow) {
  std::vector<std::int32_t> indices{3, -1, 20};
  const std::vector<std::uint32_t> offsets{0, 1}, table{7, 9, 0, 0};
  RemapSparseIndices({.logical = indices.data(),
                      .row_offsets = offsets.data(),
                      .lookup_table = table.data(),
                      .encoded = indices.data(),
                      .num_queries = 1,
                      .num_selected = 3,
                      .batch_size = 1,
                      .lookup_stride = 4,
                      .page_size = 16,
                      .num_blocks = 10});
  PagedKVCache<const float, KVCacheStaticParams<1, 16>, 16> cache;
  cache.lookup_table = table.data();
  cache.lookup_stride = 4;
  cache.batch_size = 1;
  cache.num_blocks = 10;
  cache.rows_per_page = 96;
  EXPECT_EQ(cache.get_tma_row(indices[0]), static_cast<std::int32_t>(cache.row_idx(0, 3)));
  EXPECT_EQ(cache.get_tma_row(indices[1]), -1);
  EXPECT_EQ(cache.get_tma_row(indices[2]), cache.sparse_tma_row(0, 20));
}

}  // namespace
}  // namespace quire::cache
