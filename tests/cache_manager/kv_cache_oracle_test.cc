// Covers continuous.jsonl, operands.jsonl and remap.jsonl. Other source files of this program cover
// the other data files.

#include <cstdint>
#include <string>
#include <vector>

#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "cache_manager/views/reference/kv_mha_operand.h"
#include "cache_manager/views/sparse_index_remap.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_oracle_support.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

using ::testing::StartsWith;
using DynamicParams = KVCacheStaticParams<kDynamicExtent, kDynamicExtent>;

struct ContinuousCase {
  using Collection = ContinuousBatchingKVCacheCollection<float, DynamicParams>;
  using Cache = Collection::Cache;

  const Json& line;
  Tally& tally;
  const Json& config = line["config"];
  const Json& input = line["case"];
  const Json& result = line["result"];
  KvGeometry geometry = MakeGeometry(input["num_blocks"], 2, input["num_layers"],
                                     input["max_block_tokens"], config["H"], config["D"]);
  AlignedArray<float> pool{PoolElements(geometry)};
  StepArrays steps{input["batch_size"], 0};

  void Fill() {
    for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<float>(i);
    steps.inputs.max_seq_length = input["max_seq_length"];
    for (std::uint32_t b = 0; b < steps.inputs.max_rows; ++b) {
      steps.SetLength(b, input["cache_lengths"][b]);
      steps.page(b, 0) = input["lookup_table"][b];
    }
    steps.inputs.max_cache_length = input["max_cache_length"];
  }

  void Statics(const Collection& collection, const Cache& cache) {
    EXPECT_THAT(Cache::type_name(), StartsWith(result["type_name"].get<std::string>() + "<"));
    tally.Decided("D17", "type_name", Cache::type_name() != result["type_name"], true);
    tally.Equal("collection_name", std::string(Collection::kName), result["collection_name"]);
    tally.Equal("dtype", Cache::kDType, OracleDType(result["dtype"]));
    tally.Decided("D13", "scale_dtype", Cache::kScaleDType, DType::kInvalid);
    tally.Equal("page_size", Cache::kPageSize, result["page_size"]);
    EXPECT_EQ(result["max_tile_size"], -1);
    tally.Decided("D15", "max_tile_size", Cache::max_tile_size(), kNoTileLimit);
    tally.Equal("quantization_enabled", Cache::kQuantized, result["quantization_enabled"]);
    tally.Equal("granularity", Cache::kGranularity, result["quantization_granularity"]);
    tally.Equal("view_base", cache.blocks_raw_ptr() - pool.data(), result["view_base"]);
    tally.Equal("view_shape", collection.kv_cache_dynamic_shape(), result["view_shape"]);
    tally.Equal("view_strides", collection.kv_cache_dynamic_strides(), result["view_strides"]);
    tally.Equal("num_kv_rows", cache.num_kv_rows(), result["num_kv_rows"]);
    tally.Equal("max_prompt_length", cache.max_prompt_length(), result["max_prompt_length"]);
    tally.Equal("max_context_length", cache.max_context_length(), result["max_context_length"]);
    tally.Decided("D16", "empty_cache", cache.empty_cache(), steps.inputs.max_history_length == 0);
    for (std::uint32_t b = 0; b < steps.inputs.max_rows; ++b) {
      tally.Equal("cache_length", cache.cache_length(b), result["cache_length"][b]);
    }
    tally.Equal("sparse_tma_row of -1", cache.sparse_tma_row(0, -1),
                result["sparse_tma_row_of_minus_1"]);
    // The original returns zeros and does nothing. Here the member does not exist.
    EXPECT_EQ(result["load_scale"], 0.0);
    EXPECT_EQ(result["load_quantized"], 0.0);
    const auto has_load_scale = [](const auto& c) {
      return requires {
        c.template load_scale<1>(0u, 0u, 0u, 0u);
      };
    };
    const auto has_load_quantized = [](const auto& c) {
      return requires {
        c.template load_quantized<1>(0u, 0u, 0u, 0u);
      };
    };
    const auto has_store_scale = [](const auto& c) {
      return requires {
        c.template store_scale<1>(0u, 0u, 0u, 0u, Vec<float, 1>{});
      };
    };
    tally.Decided("D21", "load_scale", has_load_scale(cache), false);
    tally.Decided("D21", "load_quantized", has_load_quantized(cache), false);
    tally.Decided("D21", "store_scale", has_store_scale(cache), false);
  }

  // [b, h, t, d, element offset, row_idx, kv_tma_coords, sparse_tma_row, load w1, load w4 or null,
  //  elements changed by a store of width 1]
  void Point(const Cache& cache, const Json& e) {
    const std::uint32_t b = e[0], h = e[1], t = e[2], d = e[3];
    const bool null_block = steps.page(b, 0) == kNullPage;
    tally.Equal("element", cache.block_paged_ptr<1>(b, t, h, d) - pool.data(), e[4]);
    tally.Equal("row_idx", cache.row_idx(b, t), e[5]);
    const KvTmaCoords at = cache.kv_tma_coords(b, t);
    tally.Equal("kv_tma_coords", std::vector{at.row, at.page}, e[6]);
    const std::int32_t sparse = cache.sparse_tma_row(b, static_cast<std::int32_t>(t));
    if (null_block) {
      tally.Decided("D1", "sparse_tma_row", sparse, -1);
    } else {
      tally.Equal("sparse_tma_row", sparse, e[7]);
    }
    tally.Equal("load w1", cache.load<1>(b, h, t, d)[0], e[8].get<float>());
    if (!e[9].is_null()) {
      const auto got = cache.load<4>(b, h, t, d);
      tally.Equal("load w4", std::vector<float>(got.lane, got.lane + 4),
                  e[9].get<std::vector<float>>());
    }
    cache.store<1>(b, h, t, d, {{-1.0f}});
    std::vector<std::size_t> changed;
    for (std::size_t i = 0; i < pool.size(); ++i) {
      if (pool[i] >= 0) continue;
      changed.push_back(i);
      pool[i] = static_cast<float>(i);
    }
    if (null_block) {
      tally.Decided("D1", "store", changed, std::vector<std::size_t>{});
    } else {
      tally.Equal("store", changed, e[10]);
    }
  }

  void Run() {
    Fill();
    auto collection = Collection::Create(geometry, pool.data(), steps.inputs);
    ASSERT_TRUE(collection.ok()) << line["id"] << ": " << collection.status();
    const std::uint32_t layer = input["layer_idx"];
    const Cache cache = input["kv_idx"] == 1 ? collection->get_value_cache(layer)
                                             : collection->get_key_cache(layer);
    tally.StartCase(line);
    Statics(*collection, cache);
    for (const Json& e : result["points"]) Point(cache, e);
    for (const Json& e : result["populate"]) {
      const auto tile = cache.populate<64, 1>(e[0], e[1]);
      tally.Equal("populate", std::vector{tile.num_pages(), tile.rows[0], tile.get_row(63)},
                  std::vector<Json>{e[2], e[3], e[4]});
    }
    for (const Json& e : result["get_tma_row"]) {
      if (e[0] < 0) {
        EXPECT_LT(e[1], 0);
        tally.Decided("D4", "get_tma_row", cache.get_tma_row(e[0]), -1);
      } else {
        tally.Equal("get_tma_row", cache.get_tma_row(e[0]), e[1]);
      }
    }
  }
};

TEST(KvCacheOracleTest, Continuous) {
  Tally tally("continuous.jsonl");
  for (const Json& line : ReadCases("continuous.jsonl")) ContinuousCase{line, tally}.Run();
}

struct OperandCase {
  using Collection =
      PagedKVCacheCollection<std::int8_t, DynamicParams, kDynamicExtent, float, kDynamicExtent>;
  using Cache = Collection::Cache;
  using Values = KVCacheMHAOperand<Cache>;
  using Scales = KVCacheScalesMHAOperand<Cache>;

  const Json& line;
  Tally& tally;
  const Json& config = line["config"];
  const Json& input = line["case"];
  const Json& result = line["result"];
  KvGeometry geometry = WithScales(MakeGeometry(input["num_blocks"], 2, input["num_layers"],
                                                config["P"], config["H"], config["D"]),
                                   DType::kI8, config["G"]);
  AlignedArray<std::int8_t> pool{PoolElements(geometry)};
  AlignedArray<float> scales{PoolScales(geometry)};
  StepArrays steps{input["batch_size"], input["lut_columns"]};
  StepArrays scale_steps{input["batch_size"], input["lut_columns"]};
  std::vector<std::uint32_t> offsets = input["row_offsets"].get<std::vector<std::uint32_t>>();

  void Fill() {
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i);
    for (std::uint32_t b = 0; b < steps.inputs.max_rows; ++b) {
      steps.SetLength(b, input["cache_lengths"][b]);
      for (std::uint32_t c = 0; c < steps.inputs.lookup_stride; ++c) {
        steps.page(b, c) = input["lookup_table"][b][c];
        scale_steps.page(b, c) = (steps.page(b, c) + 1) % geometry.num_blocks;
      }
    }
    steps.inputs.max_cache_length = input["max_cache_length"];
  }

  // [name, element, scale type, page size, quantised, granularity]
  template <typename Operand>
  void Static(const char* name, const Operand& operand, std::uint32_t page_size,
              std::uint32_t granularity) {
    const Json& want = result["static"][name];
    const std::string ours =
        std::string(name) == "TileTensorMHAOperand" ? "ContiguousMHAOperand" : name;
    tally.Decided(ours == name ? "D17" : "D37", "type_name",
                  Operand::type_name().substr(0, ours.size()), ours);
    tally.Equal("element", Operand::kDType, OracleDType(want[1]));
    if (Operand::kScaleDType != DType::kInvalid) {
      tally.Equal("scale type", Operand::kScaleDType, OracleDType(want[2]));
    } else {
      tally.Decided("D13", "scale type", Operand::kScaleDType, DType::kInvalid);
    }
    tally.Equal("page size", page_size, want[3]);
    if constexpr (std::is_same_v<Operand, Scales>) {
      tally.Decided("D11", "quantised", Operand::kQuantized, false);
    } else {
      tally.Equal("quantised", Operand::kQuantized, want[4]);
    }
    if (Operand::kPageSize == 0) {
      tally.Decided("D12", "granularity", Operand::kGranularity, 1);
    } else {
      tally.Equal("granularity", granularity, want[5]);
    }
    static_cast<void>(operand);
  }

  // The positions are those of the fixture's `paged` entry. The last eight come from operands whose
  // scales have their own table.
  void Paged(const Collection& same, const Collection& own, const Json& e) {
    const std::uint32_t b = e[0], h = e[1], t = e[2], d = e[3], layer = input["layer_idx"];
    const auto signed_t = static_cast<std::int32_t>(t);
    const Values o{same.get_key_cache(layer)}, o2{own.get_key_cache(layer)};
    const Scales so{same.get_key_cache(layer)}, so2{own.get_key_cache(layer)};
    const auto pair = [](KvTmaCoords at) { return std::vector{at.row, at.page}; };
    tally.Equal("element", o.block_paged_ptr<1>(b, t, h, d) - pool.data(), e[4]);
    tally.Equal("scale", o.scales_block_paged_ptr(b, t, h, d) - scales.data(), e[5]);
    tally.Equal("row_idx", o.row_idx(b, t), e[6]);
    tally.Equal("kv_tma_coords", pair(o.kv_tma_coords(b, t)), e[7]);
    tally.Equal("sparse_tma_row", o.sparse_tma_row(b, signed_t), e[8]);
    tally.Equal("load_scale", o.load_scale<1>(b, t, h, d)[0], e[9].get<float>());
    tally.Equal("scales: element", so.block_paged_ptr<1>(b, t, h, d) - scales.data(), e[10]);
    tally.Equal("scales: row_idx", so.row_idx(b, t), e[11]);
    tally.Equal("scales: sparse_tma_row", so.sparse_tma_row(b, signed_t), e[12]);
    tally.Equal("scales: scale_tma_coords", pair(so.scale_tma_coords(b, t)), e[13]);
    EXPECT_EQ(e[14], 0);
    const auto has_load_scale = [](const auto& operand) {
      return requires {
        operand.template load_scale<1>(0u, 0u, 0u, 0u);
      };
    };
    tally.Decided("D11", "scales: load_scale", has_load_scale(so), false);
    tally.Equal("own: row_idx", o2.row_idx(b, t), e[15]);
    tally.Equal("own: scale", o2.scales_block_paged_ptr(b, t, h, d) - scales.data(), e[16]);
    tally.Equal("own scales: row_idx", so2.row_idx(b, t), e[17]);
    tally.Equal("own scales: element", so2.block_paged_ptr<1>(b, t, h, d) - scales.data(), e[18]);
    tally.Equal("own scales: sparse_tma_row", so2.sparse_tma_row(b, signed_t), e[19]);
    tally.Equal("own scales: scale_tma_coords", pair(so2.scale_tma_coords(b, t)), e[20]);
    tally.Equal("own scales: kv_tma_coords", pair(so2.kv_tma_coords(b, t)), e[21]);
    const bool known = DispatchTile(
        geometry.page_size, geometry.page_size, [&]<std::uint32_t BN, std::uint32_t A>() {
          tally.Equal("own scales: populate",
                      so2.populate<BN, A>(b, t - t % geometry.page_size).rows[0], e[22]);
        });
    EXPECT_TRUE(known);
  }

  // [b, base, rows of the paged tile of 128, of the contiguous tile, of the ragged tile]
  template <typename Contiguous, typename Ragged>
  void Tiles(const Values& o, const Contiguous& to, const Ragged& ro) {
    for (const Json& e : result["populate"]) {
      const std::uint32_t b = e[0], base = e[1];
      const bool known =
          DispatchTile(128, geometry.page_size, [&]<std::uint32_t BN, std::uint32_t A>() {
            const auto tile = o.populate<BN, A>(b, base);
            tally.Equal("populate",
                        std::vector<std::uint32_t>(tile.rows, tile.rows + tile.num_pages()), e[2]);
          });
      EXPECT_TRUE(known);
      // A tile of a plain tensor is one row. A base past the tensor violates the contract here.
      if (base < to.max_tokens) {
        tally.Equal("contiguous populate", to.template populate<128, 16>(b, base).rows[0], e[3][0]);
      }
      tally.Equal("ragged populate", ro.template populate<128, 16>(b, base).rows[0], e[4][0]);
    }
    for (const Json& e : result["get_tma_row"]) {
      const std::int32_t encoded = e[0];
      const std::vector<std::int32_t> got{o.get_tma_row(encoded),
                                          Scales{o.cache}.get_tma_row(encoded),
                                          to.get_tma_row(encoded), ro.get_tma_row(encoded)};
      if (encoded < 0) {
        tally.Decided("D4", "get_tma_row", got, std::vector<std::int32_t>(4, -1));
      } else {
        tally.Equal("get_tma_row", got, std::vector<Json>{e[1], e[2], e[3], e[4]});
      }
    }
  }

  void Tensors(const Values& o) {
    const auto batch = static_cast<std::int64_t>(steps.inputs.max_rows);
    const std::int64_t heads = config["H"], columns = config["D"], seq_max = input["seq_max"];
    const std::vector<float> dense(static_cast<std::size_t>(batch * seq_max * heads * columns));
    const std::vector<float> packed(offsets.back() * static_cast<std::size_t>(heads * columns) + 1);
    const auto to = ContiguousMHAOperand<float>::FromTensor(
        TensorView<const float, 4>::RowMajor(dense.data(), {batch, seq_max, heads, columns}));
    const auto ro = RaggedMHAOperand<float>::FromTensor(
        TensorView<const float, 3>::RowMajor(packed.data(), {offsets.back(), heads, columns}),
        TensorView<const std::uint32_t, 1>::RowMajor(offsets.data(), {batch + 1}), 7);
    Static("TileTensorMHAOperand", to, to.kPageSize, 1);
    Static("RaggedMHAOperand", ro, ro.kPageSize, 1);
    tally.Equal("num_kv_rows", std::vector{to.num_kv_rows(), ro.num_kv_rows()},
                std::vector<Json>{result["num_kv_rows"][2], result["num_kv_rows"][3]});
    tally.Equal("max_context_length", to.max_context_length(), result["max_context_length"][2]);
    for (std::uint32_t b = 0; b < steps.inputs.max_rows; ++b) {
      tally.Equal("cache_length", std::vector{to.cache_length(b), ro.cache_length(b)},
                  std::vector<Json>{result["cache_length"][b][2], result["cache_length"][b][3]});
    }
    for (const Json& e : result["contiguous"]) {
      tally.Equal("contiguous element",
                  to.block_paged_ptr<1>(e[0], e[2], e[1], e[3]) - dense.data(), e[4]);
      tally.Equal("contiguous row_idx", to.row_idx(e[0], e[2]), e[5]);
    }
    for (const Json& e : result["ragged"]) {
      tally.Equal("ragged element", ro.block_paged_ptr<1>(e[0], e[2], e[1], e[3]) - packed.data(),
                  e[4]);
      tally.Equal("ragged row_idx", ro.row_idx(e[0], e[2]), e[5]);
    }
    Tiles(o, to, ro);
  }

  void Run() {
    Fill();
    auto same = Collection::Create(geometry, {.blocks = pool.data(), .scales = scales.data()},
                                   steps.inputs);
    auto own = Collection::Create(geometry,
                                  {.blocks = pool.data(),
                                   .scales = scales.data(),
                                   .scales_lookup_table = scale_steps.lookup_table.data()},
                                  steps.inputs);
    ASSERT_TRUE(same.ok()) << line["id"] << ": " << same.status();
    ASSERT_TRUE(own.ok()) << line["id"] << ": " << own.status();
    tally.StartCase(line);
    const Values o{same->get_key_cache(input["layer_idx"])};
    const Scales so{o.cache};
    Static("KVCacheMHAOperand", o, o.cache.page_size(), o.cache.granularity());
    Static("KVCacheScalesMHAOperand", so, so.cache.page_size(), so.cache.granularity());
    tally.Equal("num_kv_rows", std::vector{o.num_kv_rows(), so.num_kv_rows()},
                std::vector<Json>{result["num_kv_rows"][0], result["num_kv_rows"][1]});
    tally.Equal(
        "max_context_length", std::vector{o.max_context_length(), so.max_context_length()},
        std::vector<Json>{result["max_context_length"][0], result["max_context_length"][1]});
    tally.Equal("scales_raw_ptr", o.scales_raw_ptr() - scales.data(), result["scales_raw_ptr"]);
    for (std::uint32_t b = 0; b < steps.inputs.max_rows; ++b) {
      tally.Equal("cache_length", std::vector{o.cache_length(b), so.cache_length(b)},
                  std::vector<Json>{result["cache_length"][b][0], result["cache_length"][b][1]});
    }
    for (const Json& e : result["paged"]) Paged(*same, *own, e);
    Tensors(o);
  }
};

TEST(KvCacheOracleTest, Operands) {
  Tally tally("operands.jsonl");
  for (const Json& line : ReadCases("operands.jsonl")) OperandCase{line, tally}.Run();
}

TEST(KvCacheOracleTest, SparseIndexRemap) {
  Tally tally("remap.jsonl");
  for (const Json& line : ReadCases("remap.jsonl")) {
    const Json& c = line["case"];
    std::vector<std::int32_t> logical, encoded;
    for (const Json& row : c["logical"]) {
      for (const Json& t : row) logical.push_back(t);
    }
    encoded.resize(logical.size());
    std::vector<std::uint32_t> table;
    for (const Json& row : c["lookup_table"]) {
      for (const Json& page : row) table.push_back(page);
    }
    const auto offsets = c["row_offsets"].get<std::vector<std::uint32_t>>();
    const std::uint32_t page_size = line["config"]["P"], columns = c["lut_columns"];
    RemapSparseIndices({.logical = logical.data(),
                        .row_offsets = offsets.data(),
                        .lookup_table = table.data(),
                        .encoded = encoded.data(),
                        .num_queries = c["query_rows"],
                        .num_selected = c["selected"],
                        .batch_size = c["batch_size"],
                        .lookup_stride = columns,
                        .page_size = page_size,
                        .num_blocks = c["num_blocks"]});
    tally.StartCase(line);
    for (std::size_t i = 0; i < logical.size(); ++i) {
      const std::size_t query = i / c["selected"].get<std::size_t>();
      std::size_t b = 0;
      while (b + 1 < offsets.size() && !(offsets[b] <= query && query < offsets[b + 1])) ++b;
      const std::int32_t t = logical[i];
      const std::uint32_t column = static_cast<std::uint32_t>(t) / page_size;
      if (t >= 0 && b + 1 == offsets.size()) {
        tally.Decided("D6", "no batch row", encoded[i], -1);
      } else if (t >= 0 && column < columns && table[b * columns + column] == kNullPage) {
        tally.Decided("D7", "page 0", encoded[i], -1);
      } else {
        tally.Equal("encoded", encoded[i], line["result"]["physical"][i]);
      }
    }
  }
}

}  // namespace
}  // namespace quire::cache::testing
