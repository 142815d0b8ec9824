// edges.jsonl has calls at and past the limits of the original's contract. Each edge is one of
//   the same result,
//   another result, decided by a row of differences.md,
//   a violated precondition, on which a checked build aborts,
//   a member or argument that does not exist here.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_oracle_support.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

using Params = KVCacheStaticParams<2, 16>;
using Paged = PagedKVCache<float, Params, 16>;
using Quantized = PagedKVCache<std::int8_t, Params, 16, float, 8>;
using Continuous = ContinuousBatchingKVCache<float, Params>;
using PagedCollection = PagedKVCacheCollection<float, Params, 16>;

constexpr std::uint32_t kPages = 5;
constexpr std::uint32_t kColumns = 24;
constexpr std::size_t kPageElements = 2 * 2 * 16 * 2 * 16;

// The pool of the recorded runs: N = 5 pages and a spare one after them, 2 layers, K of layer 1.
// Columns without a page contain N, as in the original, and 0 in the tables of `zero`.
struct EdgePool {
  AlignedArray<float> values{(kPages + 1) * kPageElements};
  AlignedArray<std::int8_t> bytes{(kPages + 1) * kPageElements};
  AlignedArray<float> scales{(kPages + 1) * kPageElements};
  StepArrays steps{2, kColumns};
  StepArrays zero{2, kColumns};
  StepArrays blocks{2, 0};
  Paged k = MakePaged(steps);
  Paged k0 = MakePaged(zero);
  Quantized q = MakeQuantized(zero);
  Continuous c = MakeContinuous();

  EdgePool() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = scales[i] = static_cast<float>(i);
      bytes[i] = static_cast<std::int8_t>(i % 100);
    }
    for (std::uint32_t column = 0; column < kColumns; ++column) steps.page(0, column) = kPages;
    for (const StepArrays* arrays : {&steps, &zero}) {
      arrays->page(0, 0) = 3;
      arrays->page(0, 1) = 1;
      arrays->page(1, 0) = 4;
    }
    blocks.page(0, 0) = 3;
    blocks.page(1, 0) = 1;
  }
  template <typename Cache>
  static void Describe(const StepArrays& arrays, Cache& cache) {
    cache.cache_lengths = arrays.cache_lengths.data();
    cache.lookup_table = arrays.lookup_table.data();
    cache.batch_size = 2;
    cache.num_blocks = kPages;
  }
  Paged MakePaged(const StepArrays& arrays) const {
    Paged cache;
    Describe(arrays, cache);
    cache.blocks = values.data() + 512;
    cache.lookup_stride = kColumns;
    cache.rows_per_page = 64;
    return cache;
  }
  Quantized MakeQuantized(const StepArrays& arrays) const {
    Quantized cache;
    Describe(arrays, cache);
    cache.blocks = bytes.data() + 512;
    cache.lookup_stride = kColumns;
    cache.rows_per_page = 64;
    cache.scales = scales.data() + 64;
    cache.scale_rows_per_page = 64;
    cache.num_scale_blocks = kPages;
    return cache;
  }
  Continuous MakeContinuous() const {
    Continuous cache;
    Describe(blocks, cache);
    cache.blocks = values.data() + 512;
    cache.rows_per_block = 64;
    cache.max_block_tokens = 16;
    return cache;
  }
  std::ptrdiff_t Offset(const float* p) const { return p - values.data(); }
  // Lists the elements of `array` that a store of -1 changed, in the wording of the record.
  static std::string Changed(const AlignedArray<float>& array) {
    std::string text = "changed";
    for (std::size_t i = 0; i < array.size(); ++i) {
      if (array[i] < 0) absl::StrAppend(&text, " ", i);
    }
    return text;
  }
};

// The text of a vector in the record, for example "[838.0, 839.0]".
template <typename T, int Width>
std::string Text(const Vec<T, Width>& values) {
  std::string text = "[";
  for (int i = 0; i < Width; ++i) absl::StrAppend(&text, i > 0 ? ", " : "", values[i], ".0");
  return text + "]";
}

class Edges {
 public:
  Edges() : tally_("edges.jsonl") {
    for (const Json& line : ReadCases("edges.jsonl")) lines_[line["edge"]] = line;
  }
  // Lines left unread are edges that no test covers.
  ~Edges() {
    for (const auto& [edge, line] : lines_) ADD_FAILURE() << "edge " << edge << " is not tested";
  }

  // Returns the original's result without asserts.
  std::string Take(const std::string& edge) {
    const auto it = lines_.find(edge);
    if (it == lines_.end()) {
      ADD_FAILURE() << "edge " << edge << " is not in the file";
      return "";
    }
    tally_.StartCase(it->second);
    asserted_ = it->second["with_asserts"]["ended"] == "assert";
    const Json output = it->second["default"].value("output", Json(""));
    lines_.erase(it);
    return output;
  }
  void Same(const std::string& edge, const std::string& ours) {
    tally_.Equal(edge, ours, Take(edge));
  }
  void Other(const std::string& row, const std::string& edge, const std::string& ours,
             const std::string& rule) {
    const std::string original = Take(edge);
    EXPECT_NE(original, rule) << edge << " is not a difference";
    tally_.Decided(row, edge, ours, rule);
  }
  void Refused(const std::string& row, const std::string& edge, const std::function<void()>& call) {
    Take(edge);
    EXPECT_DEATH(call(), "check failed") << edge;
    EXPECT_EQ(asserted_, row == "same" || row == "D29") << edge;
    tally_.Decided(row, edge, true, true);
  }
  void Absent(const std::string& row, const std::string& edge, bool exists) {
    Take(edge);
    tally_.Decided(row, edge, exists, false);
  }

 private:
  std::map<std::string, Json> lines_;
  bool asserted_ = false;  // the original with asserts also rejected the last edge
  Tally tally_;
};

void RowEdges(const EdgePool& p, Edges& edges) {
  const Paged& k = p.k;
  edges.Refused("D23", "cache_length_batch_out_of_range", [&] { k.cache_length(3); });
  edges.Refused("same", "row_idx_batch_out_of_range", [&] { k.row_idx(2, 0); });
  edges.Refused("same", "row_idx_column_out_of_range", [&] { k.row_idx(0, kColumns * 16); });
  edges.Same("row_idx_no_page", absl::StrCat(k.row_idx(0, 33)));
  EXPECT_EQ(p.k0.row_idx(0, 33), 1) << "D3: a column without a page is the null page's row";
  edges.Other("D4", "get_tma_row_negative",
              absl::StrCat(k.get_tma_row(-1), " ", k.get_tma_row(-16), " ", k.get_tma_row(-17)),
              "-1 -1 -1");
  edges.Same("get_tma_row_past_last_page",
             absl::StrCat(k.get_tma_row(kPages * 16), " num_kv_rows ", k.num_kv_rows()));
  edges.Other(
      "D7", "sparse_tma_row_no_page",
      absl::StrCat(k.sparse_tma_row(0, 33), " ", k.sparse_tma_row(0, -1), " ",
                   k.sparse_tma_row(0, kColumns * 16), " page 0: ", k.sparse_tma_row(1, 17)),
      "-1 -1 -1 page 0: -1");
  EdgePool wrapped;
  wrapped.steps.page(0, 0) = 1u << 31;
  edges.Same("row_idx_wraps_32_bit", absl::StrCat(wrapped.k.row_idx(0, 3)));
  EXPECT_FALSE(MakeGeometry((1u << 31) / 64 + 1, 2, 2, 16, 2, 16).Validate().ok())
      << "D31: a pool whose rows leave 31 bits is never made";
}

void ElementEdges(EdgePool& p, Edges& edges) {
  const Paged& k = p.k;
  edges.Same("block_paged_ptr_no_page", absl::StrCat(p.Offset(k.block_paged_ptr<1>(0, 33, 1, 2))));
  EXPECT_EQ(p.Offset(p.k0.block_paged_ptr<1>(0, 33, 1, 2)), 512 + 32 + 16 + 2) << "D3";
  edges.Refused("same", "block_paged_ptr_head_out_of_range",
                [&] { k.block_paged_ptr<1>(0, 1, 2, 0); });
  edges.Refused("D27", "block_paged_ptr_unaligned_start",
                [&] { k.block_paged_ptr<16>(0, 5, 1, 2); });
  edges.Refused("same", "load_column_out_of_range", [&] { k.load<1>(0, 0, 1, 16); });
  edges.Refused("D19", "load_vector_crosses_head", [&] { k.load<8>(0, 0, 1, 12); });
  edges.Same("load_no_page", absl::StrCat(k.load<1>(0, 0, 33, 0)[0], ".0"));
  EXPECT_EQ(p.k0.load<1>(0, 0, 33, 0)[0], 512 + 32) << "D3";

  const Vec<float, 1> one{{-1.0f}};
  p.k0.store<1>(0, 0, 33, 0, one);
  edges.Other("D2", "store_no_page", EdgePool::Changed(p.values), "changed");
  p.k0.store<1>(1, 0, 17, 0, one);
  edges.Other("D1", "store_page_0", EdgePool::Changed(p.values), "changed");
  EXPECT_DEATH(k.store<1>(0, 0, 33, 0, one), "check failed") << "an id that is no page";
  edges.Refused("D19", "store_vector_crosses_head",
                [&] { k.store<8>(0, 0, 1, 12, Vec<float, 8>{}); });
  edges.Refused("same", "store_head_out_of_range", [&] { k.store<1>(0, 2, 1, 0, one); });
  edges.Refused("D23", "store_batch_out_of_range", [&] { k.store<1>(2, 0, 1, 0, one); });
}

template <typename Tile>
std::string RowsText(const Tile& tile) {
  std::string text;
  for (std::uint32_t i = 0; i < tile.num_pages(); ++i) {
    absl::StrAppend(&text, i > 0 ? " " : "", tile.rows[i]);
  }
  return text;
}

void TileEdges(const EdgePool& p, Edges& edges) {
  const Paged& k = p.k;
  Paged odd = k;
  odd.lookup_stride = kColumns - 1;
  edges.Refused("D29", "populate_odd_lut_stride", [&] { odd.populate<64, 64>(0, 0); });
  edges.Refused("D29", "populate_base_not_aligned", [&] { k.populate<16, 16>(0, 8); });
  edges.Same("populate_row_path_inside_page", absl::StrCat(k.populate<8, 8>(0, 24).rows[0]));
  edges.Refused("D29", "populate_base_not_aligned_many", [&] { k.populate<64, 64>(0, 8); });
  edges.Refused("D29", "populate_base_not_chunk_aligned", [&] { k.populate<64, 64>(0, 16); });
  edges.Refused("D29", "populate_past_lut_row",
                [&] { k.populate<256, 16>(0, (kColumns - 15) * 16); });
  edges.Same("populate_unassigned_columns", absl::StrCat(RowsText(k.populate<64, 64>(0, 0)), " | ",
                                                         RowsText(k.populate<64, 64>(1, 0))));
  EXPECT_EQ(RowsText(p.k0.populate<64, 64>(0, 0)), "192 64 0 0") << "D3";
  edges.Absent("D28", "populate_bn_not_multiple_of_page", []<typename C>(const C& c) {
    return requires {
      c.template populate<40, 16>(0u, 0u);
    };
  }(k));
  edges.Absent("D28", "populate_32_pages", []<typename C>(const C& c) {
    return requires {
      c.template populate<512, 512>(0u, 0u);
    };
  }(k));
  const auto leader = k.populate<32, 32, true, true>(0, 0);
  const auto peer = k.populate<32, 32, true, false>(0, 0);
  edges.Same(
      "populate_pair_cta",
      absl::StrCat("leader ", RowsText(leader), " get_row(16) ", leader.get_row(16), " cta_group ",
                   leader.kCtaGroup, " peer ", RowsText(peer), " get_row(16) ", peer.get_row(16)));
  const auto tile = k.populate<32, 32>(0, 0);
  edges.Same("sub_rows",
             absl::StrCat("num_pages ", tile.sub_rows<8>(12).kNumPages, " row ",
                          tile.sub_rows<8>(12).rows[0], " then ", tile.sub_rows<8>(20).rows[0]));
}

void CreationEdges(const EdgePool& p, Edges& edges) {
  KvGeometry geometry = MakeGeometry(kPages, 2, 2, 16, 2, 16);
  geometry.page_stride = kPageElements + 1;
  edges.Other("D8", "page_stride_not_whole_rows", std::string(geometry.Validate().message()),
              "page_stride is 2049, it must be a multiple of the row size 32");
  geometry.page_stride = kPageElements - 32;
  edges.Other("D8", "page_stride_below_packed", std::string(geometry.Validate().message()),
              "page_stride is 2016, it must be at least 2048, or pages overlap");
  auto collection = PagedCollection::Create(MakeGeometry(kPages, 2, 2, 16, 2, 16),
                                            {.blocks = p.values.data()}, p.zero.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  edges.Refused("D26", "layer_out_of_range", [&] { collection->get_key_cache(2); });
  using Collection = PagedKVCacheCollection<std::int8_t, Params, 16, float, 16>;
  auto missing =
      Collection::Create(WithScales(MakeGeometry(kPages, 2, 2, 16, 2, 16), DType::kI8, 16),
                         {.blocks = p.bytes.data()}, p.zero.inputs);
  const std::string message(missing.status().message());
  edges.Other("D22", "scales_missing_load_scale", message, "scales is null");
  edges.Other("D22", "scales_missing_ptr", message, "scales is null");
}

void ScaleEdges(EdgePool& p, Edges& edges) {
  const Quantized& q = p.q;
  const Vec<float, 1> one{{-1.0f}};
  q.store_scale<1>(0, 0, 33, 0, one);
  edges.Other("D2", "store_scale_no_page", EdgePool::Changed(p.scales), "changed");
  q.store_scale<1>(1, 0, 17, 0, one);
  edges.Other("D1", "store_scale_page_0", EdgePool::Changed(p.scales), "changed");
  edges.Refused("D19", "load_vector_straddles_scale", [&] { q.load<8>(0, 1, 1, 4); });
  const std::string original = edges.Take("load_scale_width_2");
  EXPECT_EQ(Text(q.load_scale<2>(0, 1, 1, 0)), original.substr(0, original.find(" from")));
  EXPECT_DEATH(q.load_scale<2>(0, 0, 1, 8), "check failed") << "D19: the next head's scale";
  edges.Refused("D25", "load_scale_column_out_of_range", [&] { q.load_scale<1>(0, 0, 1, 16); });
  edges.Absent("D20", "unquantised_scales_raw_ptr", []<typename C>(const C& c) {
    return requires {
      c.scales_raw_ptr();
    };
  }(p.k));
}

void ContinuousEdges(const EdgePool& p, Edges& edges) {
  const Continuous& c = p.c;
  edges.Refused("same", "continuous_token_out_of_range", [&] { c.load<1>(0, 0, 16, 0); });
  edges.Refused("same", "continuous_ptr_token_out_of_range",
                [&] { c.block_paged_ptr<1>(0, 16, 0, 0); });
  edges.Refused("D24", "continuous_row_idx_token_out_of_range", [&] { c.row_idx(0, 16); });
  edges.Refused("same", "continuous_batch_out_of_range", [&] { c.cache_length(2); });
  edges.Refused("same", "continuous_load_batch_out_of_range", [&] { c.load<1>(2, 0, 0, 0); });
  edges.Refused("D27", "continuous_ptr_tile_past_block",
                [&] { c.block_paged_ptr<16>(0, 8, 0, 0); });
  edges.Absent("D21", "continuous_scales_ptr", []<typename C>(const C& cache) {
    return requires {
      cache.scales_raw_ptr();
    }
    || requires {
      cache.scales_block_paged_ptr(0u, 0u, 0u, 0u);
    };
  }(c));
  using Mla = ContinuousBatchingKVCacheCollection<float, KVCacheStaticParams<1, 32, true>>;
  edges.Absent("L3", "continuous_mla_value_cache", []<typename X>(std::type_identity<X>) {
    return requires(const X& x) {
      x.get_value_cache(0u);
    };
  }(std::type_identity<Mla>{}));
  edges.Other("D4", "continuous_get_tma_row_negative", absl::StrCat(c.get_tma_row(-5)), "-1");
}

TEST(KvCacheOracleTest, Edges) {
  ::testing::GTEST_FLAG(death_test_style) = "fast";
  const auto pool = std::make_unique<EdgePool>();
  Edges edges;
  RowEdges(*pool, edges);
  ElementEdges(*pool, edges);
  TileEdges(*pool, edges);
  CreationEdges(*pool, edges);
  ScaleEdges(*pool, edges);
  ContinuousEdges(*pool, edges);
}

}  // namespace
}  // namespace quire::cache::testing
