// Compares quant.jsonl with quantized PagedKVCacheCollection and PagedKVCache with run-time
// extents.

#include <bit>
#include <cstdint>
#include <vector>

#include "cache_manager/views/kv_cache_collection.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_oracle_support.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

template <typename Element, bool IsMla>
struct QuantCase {
  using Params = KVCacheStaticParams<IsMla ? 1 : kDynamicExtent, kDynamicExtent, IsMla>;
  using Collection = PagedKVCacheCollection<Element, Params, kDynamicExtent, float, kDynamicExtent>;
  using Cache = typename Collection::Cache;

  const Json& line;
  Tally& tally;
  const Json& config = line["config"];
  const Json& input = line["case"];
  const Json& result = line["result"];
  KvGeometry geometry =
      WithScales(MakeGeometry(input["num_blocks"], IsMla ? 1 : 2, input["num_layers"], config["P"],
                              config["H"], config["D"]),
                 kDTypeOf<Element>, config["G"]);
  std::uint32_t num_scale_blocks = input["num_scale_blocks"];
  AlignedArray<Element> pool{PoolElements(geometry)};
  AlignedArray<float> scales{num_scale_blocks *
                             static_cast<std::size_t>(geometry.scale_block_stride())};
  StepArrays steps{input["batch_size"], input["lut_columns"]};
  StepArrays scale_steps{input["batch_size"], input["lut_columns"]};

  static std::uint8_t Byte(std::size_t i) {
    return static_cast<std::uint8_t>(i % 251 != 127 ? (i % 251) & 0x7F : 5);
  }
  static float Scale(std::size_t i) { return static_cast<float>(i + 1) * 0.001f; }

  void Fill() {
    for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = std::bit_cast<Element>(Byte(i));
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = Scale(i);
    for (std::uint32_t b = 0; b < steps.inputs.max_rows; ++b) {
      steps.SetLength(b, input["cache_lengths"][b]);
      for (std::uint32_t c = 0; c < steps.inputs.lookup_stride; ++c) {
        steps.page(b, c) = input["lookup_table"][b][c];
        scale_steps.page(b, c) = input["scales_lookup_table"][b][c];
      }
    }
  }

  void Statics(const Collection& collection, const Cache& cache) {
    tally.Equal("dtype", Cache::kDType, OracleDType(result["dtype"]));
    tally.Equal("scale_dtype", Cache::kScaleDType, OracleDType(result["scale_dtype"]));
    tally.Equal("quantization_enabled", Cache::kQuantized, result["quantization_enabled"]);
    tally.Equal("granularity", cache.granularity(), result["quantization_granularity"]);
    tally.Equal("head_dim_granularity", cache.scale_groups(), result["head_dim_granularity"]);
    auto shape = collection.scales_view().extents;
    shape[0] = shape[2] = kDynamic;
    tally.Equal("collection_scales_shape", ShapeText(shape), result["collection_scales_shape"]);
    tally.Equal("view_base", cache.blocks_raw_ptr() - pool.data(), result["view_base"]);
    tally.Equal("view_stride0", cache.block_stride(), result["view_stride0"]);
    tally.Equal("scales_raw_ptr", cache.scales_raw_ptr() - scales.data(), result["scales_raw_ptr"]);
    tally.Equal("scale_shape", cache.scales_view().extents, result["scale_shape"]);
    tally.Equal("scale_strides", cache.scales_view().strides, result["scale_strides"]);
    tally.Equal("scales_dynamic_shape", collection.kv_cache_scales_dynamic_shape(),
                result["scale_shape"]);
    tally.Equal("scales_dynamic_strides", collection.kv_cache_scales_dynamic_strides(),
                result["scale_strides"]);
    tally.Equal("num_kv_rows", cache.num_kv_rows(), result["num_kv_rows"]);
    tally.Equal("num_scale_rows", cache.num_scale_rows(), result["num_scale_rows"]);
  }

  template <typename Out, int Width>
  static std::vector<std::uint32_t> Bits(const Vec<Out, Width>& values) {
    std::vector<std::uint32_t> bits;
    for (const Out& x : values.lane) bits.push_back(std::bit_cast<std::uint32_t>(ToFloat(x)));
    return bits;
  }

  // [b, h, t, d, element offset, scale offset, row_idx, scale_row_idx, scale_tma_coords,
  // load_scale,
  //  load_quantized of 4 bytes, load of 1 and of 4 as f32 bits, load of 4 to bf16 as f32 bits]
  void Point(const Cache& cache, const Json& e) {
    const std::uint32_t b = e[0], h = e[1], t = e[2], d = e[3];
    tally.Equal("element", cache.template block_paged_ptr<1>(b, t, h, d) - pool.data(), e[4]);
    tally.Equal("scale", cache.scales_block_paged_ptr(b, t, h, d) - scales.data(), e[5]);
    tally.Equal("row_idx", cache.row_idx(b, t), e[6]);
    tally.Equal("scale_row_idx", cache.scale_row_idx(b, t), e[7]);
    const KvTmaCoords at = cache.scale_tma_coords(b, t);
    tally.Equal("scale_tma_coords", std::vector{at.row, at.page}, e[8]);
    tally.Equal("load_scale", Bits(cache.template load_scale<1>(b, h, t, d)), e[9]);
    std::vector<std::uint32_t> bytes;
    for (const Element& q : cache.template load_quantized<4>(b, h, t, d).lane) {
      bytes.push_back(std::bit_cast<std::uint8_t>(q));
    }
    tally.Equal("load_quantized", bytes, e[10]);
    tally.Equal("load w1", Bits(cache.template load<1>(b, h, t, d)), e[11]);
    tally.Equal("load w4", Bits(cache.template load<4>(b, h, t, d)), e[12]);
    tally.Equal("load bf16", Bits(cache.template load<4, BF16>(b, h, t, d)), e[13]);
  }

  // [b, h, t, d, scales changed by store_scale, bytes changed by a store of width 4]
  void Store(const Cache& cache, const Json& e) {
    const std::uint32_t b = e[0], h = e[1], t = e[2], d = e[3];
    cache.template store_scale<1>(b, h, t, d, {{-1.0f}});
    Vec<Element, 4> values;
    for (int i = 0; i < 4; ++i)
      values[i] = std::bit_cast<Element>(static_cast<std::uint8_t>(0xF0 + i));
    cache.template store<4>(b, h, t, d, values);
    std::vector<std::size_t> changed_scales, changed_bytes;
    for (std::size_t i = 0; i < scales.size(); ++i) {
      if (scales[i] >= 0) continue;
      changed_scales.push_back(i);
      scales[i] = Scale(i);
    }
    for (std::size_t i = 0; i < pool.size(); ++i) {
      if (std::bit_cast<std::uint8_t>(pool[i]) < 0xF0) continue;
      changed_bytes.push_back(i);
      pool[i] = std::bit_cast<Element>(Byte(i));
    }
    tally.Equal("store_scale", changed_scales, e[4]);
    tally.Equal("store", changed_bytes, e[5]);
  }

  void Run() {
    Fill();
    const bool own_table = input["own_scales_lut"] == 1;
    auto collection = Collection::Create(
        geometry,
        {.blocks = pool.data(),
         .scales = scales.data(),
         .scales_lookup_table = own_table ? scale_steps.lookup_table.data() : nullptr,
         .num_scale_blocks = num_scale_blocks},
        steps.inputs);
    ASSERT_TRUE(collection.ok()) << line["id"] << ": " << collection.status();
    Cache cache = collection->get_key_cache(input["layer_idx"]);
    if constexpr (!IsMla) {
      if (input["kv_idx"] == 1) cache = collection->get_value_cache(input["layer_idx"]);
    }
    tally.StartCase(line);
    Statics(*collection, cache);
    for (const Json& e : result["points"]) Point(cache, e);
    for (const Json& e : result["store"]) Store(cache, e);
  }
};

template <typename Element>
void RunElement(const Json& line, Tally& tally) {
  if (line["config"]["MLA"] != 0) {
    QuantCase<Element, true>{line, tally}.Run();
  } else {
    QuantCase<Element, false>{line, tally}.Run();
  }
}

TEST(KvCacheOracleTest, Quantized) {
  Tally tally("quant.jsonl");
  for (const Json& line : ReadCases("quant.jsonl")) {
    if (line["config"]["QT"] == 0) {
      RunElement<F8E4M3>(line, tally);
    } else {
      RunElement<std::int8_t>(line, tally);
    }
  }
}

}  // namespace
}  // namespace quire::cache::testing
