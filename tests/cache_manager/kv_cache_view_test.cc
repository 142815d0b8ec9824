#include "cache_manager/views/kv_cache_view.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/kv_cache_concepts.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

using DynamicParams = KVCacheStaticParams<kDynamicExtent, kDynamicExtent>;
template <typename T>
using DynamicCollection = PagedKVCacheCollection<T, DynamicParams, kDynamicExtent>;
using MlaCollection =
    PagedKVCacheCollection<float, KVCacheStaticParams<1, kDynamicExtent, true>, kDynamicExtent>;

// One batch row with pages 1 .. N-1 in shuffled order.
StepArrays ShuffledRow(const KvGeometry& geometry, std::mt19937& random) {
  const std::uint32_t pages = geometry.num_blocks - 1;
  StepArrays steps(1, LookupStride(pages));
  std::vector<std::uint32_t> ids(pages);
  std::iota(ids.begin(), ids.end(), 1);
  std::shuffle(ids.begin(), ids.end(), random);
  for (std::uint32_t c = 0; c < pages; ++c) steps.page(0, c) = ids[c];
  steps.SetLength(0, pages * geometry.page_size);
  return steps;
}

// Reads every element of one view and compares it with the linear index of the 6-D pool computed by
// nested loops.
template <typename Cache>
void ExpectView(const Cache& cache, const KvGeometry& g, std::uint32_t kv, std::uint32_t layer,
                const float* pool) {
  const std::uint32_t tokens = (g.num_blocks - 1) * g.page_size;
  std::int64_t wrong = 0;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const std::int64_t page = cache.page_id(0, t);
    const std::int64_t row =
        ((std::int64_t{kv} * g.num_layers + layer) * g.page_size + t % g.page_size) *
        g.row_elements();
    for (std::uint32_t h = 0; h < g.num_heads; ++h) {
      for (std::uint32_t d = 0; d < g.head_size; ++d) {
        const std::int64_t at = page * g.block_stride() + row + std::int64_t{h} * g.head_size + d;
        const float* element = cache.template block_paged_ptr<1>(0, t, h, d);
        const float* by_row = cache.blocks_raw_ptr() +
                              std::int64_t{cache.row_idx(0, t)} * g.row_elements() +
                              cache.col_idx(h) + d;
        wrong += element != pool + at || by_row != element ||
                 cache.template load<1>(0, h, t, d)[0] != static_cast<float>(at) ||
                 &cache.blocks_view()(page, t % g.page_size, h, d) != element;
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

template <typename Collection>
void ExpectGeometry(const KvGeometry& g, std::mt19937& random) {
  const AlignedArray<float> pool(PoolElements(g));
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<float>(i);
  const StepArrays steps = ShuffledRow(g, random);
  const auto collection = Collection::Create(g, {.blocks = pool.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  for (std::uint32_t layer = 0; layer < g.num_layers; ++layer) {
    ExpectView(collection->get_key_cache(layer), g, 0, layer, pool.data());
    if constexpr (requires { collection->get_value_cache(layer); }) {
      ExpectView(collection->get_value_cache(layer), g, 1, layer, pool.data());
    }
  }
}

// Extents are pairwise different, so swapped extents are detected. f32 represents each index
// exactly.
TEST(KvCacheViewTest, ReadsTheWholePoolOfManyGeometries) {
  std::mt19937 random(20240607);
  const auto draw = [&random](std::uint32_t from, std::uint32_t to) {
    return std::uniform_int_distribution<std::uint32_t>(from, to)(random);
  };
  int geometries = 0;
  while (geometries < 220) {
    const bool mla = geometries % 5 == 4;
    KvGeometry g = MakeGeometry(draw(3, 7), mla ? 1 : 2, draw(1, 7), draw(0, 1) == 0 ? 16 : 32,
                                mla ? 1 : draw(3, 10), draw(3, 22));
    std::vector<std::uint32_t> extents{g.num_blocks, g.num_layers, g.page_size, g.head_size};
    if (!mla) extents.insert(extents.end(), {g.kv_dim, g.num_heads});
    std::sort(extents.begin(), extents.end());
    if (std::adjacent_find(extents.begin(), extents.end()) != extents.end()) continue;
    if (geometries % 3 == 1) {
      g.page_stride = g.block_stride() + draw(1, 4) * g.row_elements();
    }
    if (PoolElements(g) > 120000) continue;
    SCOPED_TRACE(::testing::Message() << "geometry " << geometries);
    if (mla) {
      ExpectGeometry<MlaCollection>(g, random);
    } else {
      ExpectGeometry<DynamicCollection<float>>(g, random);
    }
    ++geometries;
  }
}

// A constant block stride of P*H*D would read the next layer.
TEST(KvCacheViewTest, LayersAndKvDoNotAlias) {
  const KvGeometry g = MakeGeometry(4, 2, 3, 16, 2, 8);
  const AlignedArray<float> pool(PoolElements(g));
  const StepArrays steps = [&] {
    std::mt19937 random(1);
    return ShuffledRow(g, random);
  }();
  const auto collection =
      DynamicCollection<float>::Create(g, {.blocks = pool.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const auto mark = [](std::uint32_t kv, std::uint32_t layer, std::uint32_t t) {
    return static_cast<float>(1 + (kv * 3 + layer) * 100 + t);
  };
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    for (std::uint32_t t = 0; t < 48; ++t) {
      collection->get_key_cache(layer).store<1>(0, 1, t, 7, {{mark(0, layer, t)}});
      collection->get_value_cache(layer).store<1>(0, 1, t, 7, {{mark(1, layer, t)}});
    }
  }
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    for (std::uint32_t t = 0; t < 48; ++t) {
      EXPECT_EQ((collection->get_key_cache(layer).load<1>(0, 1, t, 7)[0]), mark(0, layer, t));
      EXPECT_EQ((collection->get_value_cache(layer).load<1>(0, 1, t, 7)[0]), mark(1, layer, t));
    }
  }
  EXPECT_EQ(std::count_if(pool.begin(), pool.end(), [](float x) { return x != 0; }), 6 * 48);
}

// K scales of page B and V scales of page B-1 are adjacent. D mod G != 0 gives a short last group.
TEST(KvCacheViewTest, ScalesDoNotAlias) {
  using Params = KVCacheStaticParams<3, 80>;
  using Collection = PagedKVCacheCollection<F8E4M3, Params, 16, float, 32>;
  static_assert(Collection::kScaleGroups == 3);
  const KvGeometry g = WithScales(MakeGeometry(4, 2, 2, 16, 3, 80), DType::kF8E4M3, 32);
  EXPECT_EQ(g.scale_groups(), 3);
  const AlignedArray<F8E4M3> pool(PoolElements(g));
  const AlignedArray<float> scales(PoolScales(g));
  StepArrays steps(1, LookupStride(3));
  for (std::uint32_t c = 0; c < 3; ++c) steps.page(0, c) = c + 1;
  steps.SetLength(0, 48);
  const auto collection =
      Collection::Create(g, {.blocks = pool.data(), .scales = scales.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  std::vector<Collection::Cache> views;
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    views.push_back(collection->get_key_cache(layer));
    views.push_back(collection->get_value_cache(layer));
  }
  float next = 1;
  for (const auto& view : views) {
    for (std::uint32_t t = 0; t < 48; ++t) {
      for (std::uint32_t h = 0; h < 3; ++h) {
        for (std::uint32_t d = 0; d < 80; d += 32) view.store_scale<1>(0, h, t, d, {{next++}});
      }
    }
  }
  EXPECT_EQ(std::count(scales.begin(), scales.end(), 0.0f), g.scale_block_stride())
      << "the null page's scales stay zero and all others are written once";
  next = 1;
  for (const auto& view : views) {
    for (std::uint32_t t = 0; t < 48; ++t) {
      EXPECT_EQ(view.row_idx(0, t), view.scale_row_idx(0, t));
      for (std::uint32_t h = 0; h < 3; ++h) {
        for (std::uint32_t d = 0; d < 80; ++d) {
          const float want = next + static_cast<float>(d / 32);
          ASSERT_EQ(view.load_scale<1>(0, h, t, d)[0], want);
        }
        next += 3;
      }
    }
  }
}

// Element offsets exceed 2^32, in mapped memory that is touched only where it is written.
TEST(KvCacheViewTest, ReachesElementsBeyond4Gi) {
  const KvGeometry g = MakeGeometry(640, 2, 32, 128, 8, 128, DType::kBF16);
  const std::size_t bytes = PoolElements(g) * sizeof(BF16);
  ASSERT_GT(PoolElements(g), std::size_t{1} << 32);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  BF16* const pool = static_cast<BF16*>(memory);
  StepArrays steps(1, LookupStride(2));
  steps.page(0, 0) = 1;
  steps.page(0, 1) = 639;
  steps.SetLength(0, 256);
  const auto collection = DynamicCollection<BF16>::Create(g, {.blocks = pool}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  std::int64_t largest = 0;
  float mark = 1;
  for (const std::uint32_t layer : {0u, 31u}) {
    for (const std::uint32_t kv : {0u, 1u}) {
      const auto cache =
          kv == 0 ? collection->get_key_cache(layer) : collection->get_value_cache(layer);
      for (const std::uint32_t t : {0u, 127u, 128u, 255u}) {
        const std::int64_t at = std::int64_t{steps.page(0, t / 128)} * g.block_stride() +
                                ((std::int64_t{kv} * 32 + layer) * 128 + t % 128) * 1024 + 7 * 128 +
                                127;
        largest = std::max(largest, at);
        EXPECT_EQ(cache.block_paged_ptr<1>(0, t, 7, 127) - pool, at);
        cache.store<1>(0, 7, t, 127, {{BF16::FromFloat(mark)}});
        EXPECT_EQ(pool[at].ToFloat(), mark);
        EXPECT_EQ((cache.load<1, float>(0, 7, t, 127)[0]), mark);
        mark += 1;
      }
    }
  }
  EXPECT_EQ(largest, static_cast<std::int64_t>(PoolElements(g)) - 1);
  EXPECT_EQ(munmap(memory, bytes), 0);
}

TEST(KvCacheViewTest, StoresThroughNullPageChangeNoByte) {
  const KvGeometry g = WithScales(MakeGeometry(3, 2, 2, 16, 2, 16), DType::kI8, 16);
  const AlignedArray<std::int8_t> pool(PoolElements(g));
  const AlignedArray<float> scales(PoolScales(g));
  StepArrays steps(3, LookupStride(2));
  steps.page(0, 0) = 2;  // row 0 has one page, rows 1 and 2 are free
  steps.SetLength(0, 16);
  using Collection =
      PagedKVCacheCollection<std::int8_t, DynamicParams, kDynamicExtent, float, kDynamicExtent>;
  const auto collection =
      Collection::Create(g, {.blocks = pool.data(), .scales = scales.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const auto cache = collection->get_value_cache(1);
  const Vec<std::int8_t, 16> values{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
  for (const std::uint32_t b : {1u, 2u}) {
    for (std::uint32_t t = 0; t < 40 * 16; t += 7) {
      cache.store<16>(b, 1, t % (16 * steps.inputs.lookup_stride), 0, values);
      cache.store_scale<1>(b, 1, t % (16 * steps.inputs.lookup_stride), 0, {{2.0f}});
    }
  }
  cache.store<16>(0, 1, 16, 0, values);
  cache.store_scale<1>(0, 1, 16, 0, {{2.0f}});
  EXPECT_EQ(std::count(pool.begin(), pool.end(), 0), static_cast<std::int64_t>(pool.size()));
  EXPECT_EQ(std::count(scales.begin(), scales.end(), 0.0f),
            static_cast<std::int64_t>(scales.size()));
  EXPECT_EQ((cache.load<16>(2, 1, 100, 0)), (Vec<float, 16>{})) << "reads give finite zeros";
  cache.store<16>(0, 1, 15, 0, values);
  EXPECT_EQ(std::count(pool.begin(), pool.end(), 0), static_cast<std::int64_t>(pool.size()) - 16);
}

// Every run-time extent equals the constant, through all members that use it.
TEST(KvCacheViewTest, StaticAndDynamicFormsAgree) {
  using Static = PagedKVCache<F8E4M3, KVCacheStaticParams<3, 48>, 32, float, 16>;
  using Dynamic = PagedKVCache<const F8E4M3, DynamicParams, kDynamicExtent, float, kDynamicExtent>;
  const KvGeometry g = WithScales(MakeGeometry(6, 2, 2, 32, 3, 48), DType::kF8E4M3, 16);
  const AlignedArray<F8E4M3> pool(PoolElements(g));
  const AlignedArray<float> scales(PoolScales(g));
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i].bits = static_cast<std::uint8_t>(i % 120);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i % 97);
  std::mt19937 random(3);
  const StepArrays steps = ShuffledRow(g, random);
  using Collection = PagedKVCacheCollection<F8E4M3, KVCacheStaticParams<3, 48>, 32, float, 16>;
  const auto collection =
      Collection::Create(g, {.blocks = pool.data(), .scales = scales.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const Static s = collection->get_value_cache(1);
  const Dynamic d = s;
  EXPECT_EQ(d.num_heads(), 3);
  EXPECT_EQ(d.head_size(), 48);
  EXPECT_EQ(d.page_size(), 32);
  EXPECT_EQ(d.granularity(), 16);
  EXPECT_EQ(d.scale_groups(), 3);
  EXPECT_EQ(d.max_tile_size(), Static::max_tile_size());
  EXPECT_EQ(d.num_kv_rows(), s.num_kv_rows());
  EXPECT_EQ(d.num_scale_rows(), s.num_scale_rows());
  EXPECT_EQ(d.block_stride(), s.block_stride());
  EXPECT_EQ(d.scale_block_stride(), s.scale_block_stride());
  for (std::int32_t encoded = -3; encoded < 6 * 32; ++encoded) {
    EXPECT_EQ(d.get_tma_row(encoded), s.get_tma_row(encoded));
  }
  for (std::uint32_t t = 0; t < 5 * 32; ++t) {
    EXPECT_EQ(d.row_idx(0, t), s.row_idx(0, t));
    EXPECT_EQ(d.sparse_tma_row(0, static_cast<std::int32_t>(t)),
              s.sparse_tma_row(0, static_cast<std::int32_t>(t)));
    EXPECT_EQ(d.kv_tma_coords(0, t), s.kv_tma_coords(0, t));
    EXPECT_EQ(d.scale_tma_coords(0, t), s.scale_tma_coords(0, t));
    for (std::uint32_t h = 0; h < 3; ++h) {
      for (std::uint32_t c = 0; c < 48; c += 8) {
        EXPECT_EQ(d.block_paged_ptr<1>(0, t, h, c), s.block_paged_ptr<1>(0, t, h, c));
        EXPECT_EQ(d.scales_block_paged_ptr(0, t, h, c), s.scales_block_paged_ptr(0, t, h, c));
        ASSERT_EQ((d.load<8>(0, h, t, c)), (s.load<8>(0, h, t, c)));
        ASSERT_EQ((d.load_quantized<8>(0, h, t, c)), (s.load_quantized<8>(0, h, t, c)));
      }
    }
  }
  EXPECT_EQ(s.type_name(), "PagedKVCache<fp8_e4m3,h3,d48,p32,q=f32/16>");
  EXPECT_EQ(d.type_name(), "PagedKVCache<fp8_e4m3,h?,d?,p?,q=f32/?>");
}

TEST(KvCacheViewTest, TypeNames) {
  EXPECT_EQ((PagedKVCache<BF16, KVCacheStaticParams<8, 128>, 64>::type_name()),
            "PagedKVCache<bf16,h8,d128,p64>");
  EXPECT_EQ(
      (PagedKVCache<F8E4M3, KVCacheStaticParams<1, 640, true, 64>, 64, float, 640>::type_name()),
      "PagedKVCache<fp8_e4m3,h1,d640,p64,q=f32/640,mla,rope64>");
  EXPECT_EQ((ContinuousBatchingKVCache<F16, KVCacheStaticParams<1, 576, true>>::type_name()),
            "ContinuousBatchingKVCache<f16,h1,d576,mla>");
}

// Content and rope share a row of 640 bytes, and neither may be read as the other.
TEST(KvCacheViewTest, RopeAwareRows) {
  using Params = KVCacheStaticParams<1, 640, true, 64>;
  using Collection = PagedKVCacheCollection<F8E4M3, Params, 64, float, 640>;
  static_assert(Params::kContentSize == 512);
  const KvGeometry g = WithScales(MakeGeometry(3, 1, 3, 64, 1, 640), DType::kF8E4M3, 640);
  const AlignedArray<F8E4M3> pool(PoolElements(g));
  const AlignedArray<float> scales(PoolScales(g));
  StepArrays steps(2, LookupStride(2));
  steps.page(0, 0) = 2;
  steps.page(0, 1) = 1;
  steps.SetLength(0, 128);
  const auto collection =
      Collection::Create(g, {.blocks = pool.data(), .scales = scales.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const auto cache = collection->get_key_cache(1);
  EXPECT_EQ(cache.row_stride(), 3 * 64);
  for (std::uint32_t t = 0; t < 128; ++t) {
    const float scale = t % 3 == 0 ? 0x1p-20f : (t % 3 == 1 ? 0x1p20f : 1.0f);
    cache.store_scale<1>(0, 0, t, 0, {{scale}});
    for (std::uint32_t d = 0; d < 512; ++d) {
      cache.store<1>(0, 0, t, d, {{F8E4M3::FromFloat(static_cast<float>((t + d) % 16))}});
    }
    for (std::uint32_t d = 0; d < 64; d += 8) {
      Vec<BF16, 8> rope;
      for (int i = 0; i < 8; ++i) {
        rope[i] =
            BF16::FromFloat(static_cast<float>(t) + static_cast<float>(d) + static_cast<float>(i));
      }
      cache.store_rope<8>(0, t, d, rope);
      cache.store_rope<8>(1, t, d, rope);  // a free row has no page, so nothing is written
    }
  }
  for (std::uint32_t t = 0; t < 128; ++t) {
    const float scale = t % 3 == 0 ? 0x1p-20f : (t % 3 == 1 ? 0x1p20f : 1.0f);
    for (std::uint32_t d = 0; d < 512; d += 16) {
      const auto content = cache.load_content<16>(0, t, d);
      for (int i = 0; i < 16; ++i) {
        ASSERT_EQ(content[i],
                  static_cast<float>((t + d + static_cast<std::uint32_t>(i)) % 16) * scale);
      }
    }
    for (std::uint32_t d = 0; d < 64; ++d) {
      ASSERT_EQ(cache.load_rope<1>(0, t, d)[0].bits,
                BF16::FromFloat(static_cast<float>(t + d)).bits);
    }
  }
  EXPECT_TRUE(std::all_of(pool.data(), pool.data() + g.block_stride(),
                          [](F8E4M3 x) { return x.bits == 0; }));
  EXPECT_DEATH(cache.load_content<16>(0, 0, 512), "check failed") << "content ends at 512";
  EXPECT_DEATH(cache.load_rope<8>(0, 0, 64), "check failed");
}

TEST(KvCacheViewTest, EmptyMeansNoHistory) {
  const KvGeometry g = MakeGeometry(3, 2, 1, 16, 1, 16);
  const AlignedArray<float> pool(PoolElements(g));
  StepArrays steps(2, LookupStride(2));
  steps.inputs.max_cache_length = 20;  // tokens of this step
  steps.inputs.max_seq_length = 20;
  auto collection = DynamicCollection<float>::Create(g, {.blocks = pool.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  EXPECT_TRUE(collection->get_key_cache(0).empty_cache());
  EXPECT_EQ(collection->get_key_cache(0).max_context_length(), 20);
  EXPECT_EQ(collection->get_key_cache(0).max_prompt_length(), 20);
  steps.SetLength(1, 3);
  collection = DynamicCollection<float>::Create(g, {.blocks = pool.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  EXPECT_FALSE(collection->get_key_cache(0).empty_cache());
  EXPECT_EQ(collection->cache_length(1), 3);
}

// Checks the documented sizes. A view is a kernel argument that is copied with every launch.
template <typename T, std::uint32_t P = 64, typename Scale = Unquantized, std::uint32_t G = 1>
using Static = PagedKVCache<T, KVCacheStaticParams<8, 128>, P, Scale, G>;
using AllDynamic = PagedKVCache<F8E4M3, DynamicParams, kDynamicExtent, float, kDynamicExtent>;
static_assert(sizeof(Static<BF16>) == 80);
static_assert(sizeof(Static<F8E4M3, 64, float, 128>) == 80);
static_assert(sizeof(PagedKVCache<float, DynamicParams, kDynamicExtent>) == 96);
static_assert(sizeof(AllDynamic) == 96);
static_assert(sizeof(ContinuousBatchingKVCache<float, KVCacheStaticParams<8, 128>>) == 56);
static_assert(sizeof(ContinuousBatchingKVCache<float, DynamicParams>) == 64);
static_assert(KvDevicePassable<Static<BF16>> && KvDevicePassable<AllDynamic> &&
              KvDevicePassable<ContinuousBatchingKVCache<float, DynamicParams>>);

// A static view converts to a dynamic one and to a reader, but not back.
static_assert(std::is_convertible_v<Static<BF16>, Static<const BF16>>);
static_assert(!std::is_convertible_v<Static<const BF16>, Static<BF16>>);
static_assert(std::is_convertible_v<Static<BF16>, PagedKVCache<BF16, DynamicParams, 64>>);
static_assert(!std::is_convertible_v<PagedKVCache<BF16, DynamicParams, 64>, Static<BF16>>);
static_assert(!std::is_convertible_v<Static<BF16>, Static<BF16, 32>>);

}  // namespace
}  // namespace quire::cache::testing
