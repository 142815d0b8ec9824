#include "cache_manager/views/kv_cache_collection.h"

#include <cstdint>
#include <string>

#include "cache_manager/views/kv_params.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

using ::testing::HasSubstr;

using Params = KVCacheStaticParams<2, 32>;
using Paged = PagedKVCacheCollection<float, Params, 16>;
using Quantized = PagedKVCacheCollection<std::int8_t, Params, 16, float, 16>;
using Continuous = ContinuousBatchingKVCacheCollection<float, Params>;

std::string Message(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(KvGeometryTest, Numbers) {
  const KvGeometry llama = MakeGeometry(10, 2, 32, 64, 8, 128, DType::kBF16);
  EXPECT_EQ(llama.page_bytes(), 8 << 20);
  EXPECT_EQ(llama.rows_per_block(), 4096);
  EXPECT_EQ(llama.num_kv_rows(), 9 * 4096 + 64);
  const KvGeometry quantized = WithScales(MakeGeometry(10, 2, 32, 64, 8, 128), DType::kI8, 128);
  EXPECT_EQ(quantized.page_bytes(), 64 * (65536 + 2048));
  const KvGeometry mla = MakeGeometry(10, 1, 61, 64, 1, 576, DType::kBF16);
  EXPECT_EQ(mla.page_bytes(), 64 * 70272);
  EXPECT_EQ(mla.rows_per_block(), 3904);
  const KvGeometry rope = WithScales(MakeGeometry(10, 1, 61, 64, 1, 640), DType::kF8E4M3, 640);
  EXPECT_EQ(rope.page_bytes(), 64 * (39040 + 244));
  EXPECT_EQ(WithScales(MakeGeometry(2, 2, 1, 16, 1, 80), DType::kI8, 32).scale_groups(), 3);
  EXPECT_EQ(llama.scale_groups(), 0);
  KvGeometry padded = llama;
  padded.page_stride = llama.block_stride() + 3 * llama.row_elements();
  EXPECT_EQ(padded.rows_per_block(), 4099);
  EXPECT_EQ(padded.page_bytes(), (8 << 20) + 3 * 2048);
  EXPECT_TRUE(padded.Validate().ok()) << padded.Validate();
}

TEST(KvGeometryTest, RowLimit) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  KvGeometry g = MakeGeometry((1u << 27) - 16, 1, 1, 16, 1, 16);
  EXPECT_EQ(g.num_kv_rows(), kLimit - 256);
  EXPECT_TRUE(g.Validate().ok()) << g.Validate();
  ++g.num_blocks;
  EXPECT_THAT(Message(g.Validate()), HasSubstr("at most 134217712 blocks fit"));
  EXPECT_EQ(g.max_num_blocks(), 134217712);

  // 2^31 - 255 = 26897 * 79841 + 16 rows, if pages are 79841 rows apart.
  KvGeometry odd = MakeGeometry(26898, 2, 1, 16, 1, 16);
  odd.page_stride = 79841 * 16;
  EXPECT_EQ(odd.num_kv_rows(), kLimit - 255);
  EXPECT_THAT(Message(odd.Validate()), HasSubstr("at most 26897 blocks fit"));
  --odd.num_blocks;
  EXPECT_TRUE(odd.Validate().ok()) << odd.Validate();

  // The same bound applies to scales that are further apart than the elements.
  KvGeometry scales = WithScales(MakeGeometry(26898, 2, 1, 16, 1, 16), DType::kI8, 16);
  EXPECT_TRUE(scales.Validate().ok()) << scales.Validate();
  scales.scale_page_stride = 79841;
  EXPECT_THAT(Message(scales.Validate()), HasSubstr("at most 26897 blocks fit"));
}

TEST(KvGeometryTest, ChecksEachExtentAndType) {
  const KvGeometry good = MakeGeometry(4, 2, 2, 16, 2, 32);
  ASSERT_TRUE(good.Validate().ok());
  const auto broken = [&good](auto change) {
    KvGeometry g = good;
    change(g);
    return Message(g.Validate());
  };
  EXPECT_THAT(broken([](KvGeometry& g) { g.num_blocks = 1; }), HasSubstr("num_blocks is 1"));
  EXPECT_THAT(broken([](KvGeometry& g) { g.kv_dim = 3; }), HasSubstr("kv_dim is 3"));
  EXPECT_THAT(broken([](KvGeometry& g) { g.kv_dim = 1; }), HasSubstr("it must be 1 for MLA"));
  EXPECT_THAT(broken([](KvGeometry& g) { g.num_layers = 0; }), HasSubstr("num_layers is 0"));
  EXPECT_THAT(broken([](KvGeometry& g) { g.num_heads = 0; }), HasSubstr("num_heads is 0"));
  EXPECT_THAT(broken([](KvGeometry& g) { g.head_size = 65537; }),
              HasSubstr("head_size is 65537, it must be 1 to 65536"));
  for (const std::uint32_t size : {0u, 1u, 8u, 24u, 256u}) {
    EXPECT_THAT(broken([size](KvGeometry& g) { g.page_size = size; }),
                HasSubstr("it must be 16, 32, 64 or 128"));
  }
  EXPECT_THAT(broken([](KvGeometry& g) { g.dtype = DType::kI32; }),
              HasSubstr("kv cache dtype is int32"));
  EXPECT_THAT(broken([](KvGeometry& g) { g.granularity = 16; }),
              HasSubstr("it must be 1 without scales"));
  EXPECT_THAT(broken([](KvGeometry& g) { g = WithScales(g, DType::kF32, 16); }),
              HasSubstr("with scales it must be fp8_e4m3 or int8"));
  EXPECT_THAT(broken([](KvGeometry& g) {
                g = WithScales(g, DType::kI8, 16);
                g.scale_dtype = DType::kBF16;
              }),
              HasSubstr("scale dtype is bf16"));
  for (const std::uint32_t granularity : {0u, 1u, 8u, 24u}) {
    EXPECT_THAT(
        broken([granularity](KvGeometry& g) { g = WithScales(g, DType::kI8, granularity); }),
        HasSubstr("granularity is"));
  }
  EXPECT_THAT(broken([](KvGeometry& g) { g.scale_page_stride = 64; }), HasSubstr("has no scales"));
  EXPECT_TRUE(WithScales(MakeGeometry(4, 2, 2, 16, 2, 72), DType::kI8, 72).Validate().ok())
      << "one scale per head, whatever its size";
}

// One pool and step inputs that every factory accepts. Each test breaks one thing.
class CollectionTest : public ::testing::Test {
 protected:
  KvGeometry geometry_ = MakeGeometry(4, 2, 2, 16, 2, 32);
  KvGeometry quantized_ = WithScales(MakeGeometry(4, 2, 2, 16, 2, 32), DType::kI8, 16);
  AlignedArray<float> pool_{PoolElements(geometry_) + 8};
  AlignedArray<std::int8_t> bytes_{PoolElements(quantized_)};
  AlignedArray<float> scales_{PoolScales(quantized_)};
  StepArrays steps_{3, LookupStride(8)};
  StepArrays blocks_{3, 0};
};

TEST_F(CollectionTest, AcceptsItsOwnGeometry) {
  const auto paged = Paged::Create(geometry_, {.blocks = pool_.data()}, steps_.inputs);
  ASSERT_TRUE(paged.ok()) << paged.status();
  EXPECT_EQ(paged->blocks_view().extents, (std::array<std::int64_t, 6>{4, 2, 2, 16, 2, 32}));
  EXPECT_EQ(paged->blocks_view().strides,
            (std::array<std::int64_t, 6>{4096, 2048, 1024, 64, 32, 1}));
  EXPECT_EQ(paged->num_layers(), 2);
  EXPECT_EQ(paged->blocks(), pool_.data());
  const auto quantized = Quantized::Create(
      quantized_, {.blocks = bytes_.data(), .scales = scales_.data()}, steps_.inputs);
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  EXPECT_EQ(quantized->scales_view().extents, (std::array<std::int64_t, 6>{4, 2, 2, 16, 2, 2}));
  EXPECT_EQ(quantized->scales_view().strides, (std::array<std::int64_t, 6>{256, 128, 64, 4, 2, 1}));
  const auto continuous = Continuous::Create(geometry_, pool_.data(), blocks_.inputs);
  ASSERT_TRUE(continuous.ok()) << continuous.status();
  EXPECT_EQ(continuous->blocks_view().strides, paged->blocks_view().strides);
}

TEST_F(CollectionTest, RejectsAnotherGeometry) {
  const auto message = [this](auto change) {
    KvGeometry g = geometry_;
    change(g);
    return Message(Paged::Create(g, {.blocks = pool_.data()}, steps_.inputs).status());
  };
  EXPECT_THAT(message([](KvGeometry& g) { g.dtype = DType::kBF16; }),
              HasSubstr("kv cache dtype is bf16, this cache type has f32"));
  EXPECT_THAT(message([](KvGeometry& g) { g = WithScales(g, DType::kI8, 16); }),
              HasSubstr("this cache type has f32"));
  EXPECT_THAT(message([](KvGeometry& g) { g.num_heads = 3; }),
              HasSubstr("num_heads is 3, this cache type has 2"));
  EXPECT_THAT(message([](KvGeometry& g) { g.head_size = 16; }),
              HasSubstr("head_size is 16, this cache type has 32"));
  EXPECT_THAT(message([](KvGeometry& g) { g.page_size = 32; }),
              HasSubstr("page_size is 32, this cache type has 16"));
  EXPECT_THAT(message([](KvGeometry& g) {
                g.kv_dim = 1;
                g.num_heads = 1;
              }),
              HasSubstr("kv_dim is 1, this cache type has 2"));
  EXPECT_THAT(message([](KvGeometry& g) { g.num_blocks = 1; }), HasSubstr("num_blocks is 1"));
  KvGeometry coarse = quantized_;
  coarse.granularity = 32;
  EXPECT_THAT(Message(Quantized::Create(coarse, {.blocks = bytes_.data(), .scales = scales_.data()},
                                        steps_.inputs)
                          .status()),
              HasSubstr("granularity is 32, this cache type has 16"));
  KvGeometry bare = quantized_;
  bare.scale_dtype = DType::kInvalid;
  bare.granularity = 1;
  EXPECT_THAT(Message(Quantized::Create(bare, {.blocks = bytes_.data()}, steps_.inputs).status()),
              HasSubstr("scale dtype is invalid, this cache type has f32"));
}

TEST_F(CollectionTest, RejectsPoolsWithAPartMissingOrTooMany) {
  EXPECT_EQ(Message(Paged::Create(geometry_, {}, steps_.inputs).status()), "blocks is null");
  EXPECT_THAT(
      Message(Paged::Create(geometry_, {.blocks = pool_.data() + 4}, steps_.inputs).status()),
      HasSubstr("must be a multiple of 256"));
  EXPECT_EQ(
      Message(Quantized::Create(quantized_, {.blocks = bytes_.data()}, steps_.inputs).status()),
      "scales is null");
  EXPECT_THAT(
      Message(Quantized::Create(quantized_, {.blocks = bytes_.data(), .scales = scales_.data() + 1},
                                steps_.inputs)
                  .status()),
      HasSubstr("scales is at 0x"));
  Unquantized none;
  EXPECT_THAT(
      Message(Paged::Create(geometry_, {.blocks = pool_.data(), .scales = &none}, steps_.inputs)
                  .status()),
      HasSubstr("not quantized"));
  EXPECT_THAT(
      Message(Quantized::Create(
                  quantized_,
                  {.blocks = bytes_.data(), .scales = scales_.data(), .num_scale_blocks = 9},
                  steps_.inputs)
                  .status()),
      HasSubstr("num_scale_blocks is 9"));
  EXPECT_EQ(Message(Continuous::Create(geometry_, nullptr, blocks_.inputs).status()),
            "blocks is null");
}

TEST_F(CollectionTest, RejectsStepInputsThatCannotHoldTheStep) {
  const auto message = [this](auto change) {
    KvStepInputs inputs = steps_.inputs;
    change(inputs);
    return Message(Paged::Create(geometry_, {.blocks = pool_.data()}, inputs).status());
  };
  EXPECT_THAT(message([](KvStepInputs& i) { i.lookup_stride = 23; }),
              HasSubstr("lookup_stride is 23, it must be a multiple of 8"));
  EXPECT_THAT(message([](KvStepInputs& i) { i.lookup_stride = 8; }), HasSubstr("at least 16"));
  EXPECT_THAT(message([](KvStepInputs& i) { i.max_cache_length = 8 * 16 + 1; }),
              HasSubstr("lookup_stride is 24, it must be a multiple of 8 and at least 25"));
  EXPECT_EQ(message([](KvStepInputs& i) { i.lookup_table = nullptr; }), "lookup_table is null");
  EXPECT_THAT(message([](KvStepInputs& i) { ++i.lookup_table; }),
              HasSubstr("must be a multiple of 32"));
  EXPECT_EQ(message([](KvStepInputs& i) { i.cache_lengths = nullptr; }), "cache_lengths is null");
  EXPECT_EQ(message([](KvStepInputs& i) { i.max_rows = 0; }), "max_rows is 0");
  EXPECT_THAT(Message(Continuous::Create(geometry_, pool_.data(), steps_.inputs).status()),
              HasSubstr("one block per sequence needs 1"));
  KvStepInputs longer = blocks_.inputs;
  longer.max_cache_length = 17;
  EXPECT_THAT(Message(Continuous::Create(geometry_, pool_.data(), longer).status()),
              HasSubstr("max_cache_length is 17, a block holds 16 tokens"));
}

TEST_F(CollectionTest, ScalesMayHaveTheirOwnTableAndPool) {
  const StepArrays own(3, LookupStride(8));
  own.page(0, 0) = 6;
  steps_.page(0, 0) = 2;
  const AlignedArray<float> scales(2 * PoolScales(quantized_));
  const auto collection = Quantized::Create(quantized_,
                                            {.blocks = bytes_.data(),
                                             .scales = scales.data(),
                                             .scales_lookup_table = own.lookup_table.data(),
                                             .num_scale_blocks = 8},
                                            steps_.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const auto cache = collection->get_key_cache(1);
  EXPECT_EQ(cache.row_idx(0, 3), 2 * 64 + 3);
  EXPECT_EQ(cache.scale_row_idx(0, 3), 6 * 64 + 3);
  EXPECT_EQ(cache.num_scale_rows(), 7 * 64 + 16);
  EXPECT_EQ(cache.scales_block_paged_ptr(0, 3, 1, 17) - scales.data(),
            6 * 256 + 64 + 3 * 4 + 1 * 2 + 1);
}

TEST_F(CollectionTest, ChecksLayersInACheckedBuild) {
  const auto paged = Paged::Create(geometry_, {.blocks = pool_.data()}, steps_.inputs);
  const auto continuous = Continuous::Create(geometry_, pool_.data(), blocks_.inputs);
  ASSERT_TRUE(paged.ok() && continuous.ok());
  EXPECT_DEATH(paged->get_key_cache(2), "check failed");
  EXPECT_DEATH(paged->get_value_cache(2), "check failed");
  EXPECT_DEATH(continuous->get_key_cache(2), "check failed");
}

}  // namespace
}  // namespace quire::cache::testing
