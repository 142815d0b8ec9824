// One test per row of tests/testdata/kv_cache/differences.md, which lists where quire differs from
// the original or from docs/kv_cache.md. kv_cache_oracle_test compares with the original's recorded
// results. kernels_tma_plan_test has rows D33 to D36 on descriptors.

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/kv_cache_concepts.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "cache_manager/views/reference/kv_mha_operand.h"
#include "cache_manager/views/sparse_index_remap.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

using ::testing::HasSubstr;

using Params = KVCacheStaticParams<2, 32>;
using Paged = PagedKVCache<float, Params, 16>;
using Quantized = PagedKVCache<std::int8_t, Params, 16, float, 16>;
using Continuous = ContinuousBatchingKVCache<float, Params>;
using PagedCollection = PagedKVCacheCollection<float, Params, 16>;
using QuantizedCollection = PagedKVCacheCollection<std::int8_t, Params, 16, float, 16>;
using ContinuousCollection = ContinuousBatchingKVCacheCollection<float, Params>;

template <typename C>
concept HasScales = requires(const C& c) {
  c.scales_raw_ptr();
}
|| requires(const C& c) {
  c.scales_block_paged_ptr(0u, 0u, 0u, 0u);
}
|| requires(const C& c) {
  c.template load_scale<1>(0u, 0u, 0u, 0u);
}
|| requires(const C& c) {
  c.template load_quantized<1>(0u, 0u, 0u, 0u);
}
|| requires(const C& c) {
  c.scale_row_idx(0u, 0u);
};

// Two batch rows over five pages and two layers. Row 0 has pages 3 and 1, row 1 is free.
class KvDifferencesTest : public ::testing::Test {
 protected:
  KvDifferencesTest() {
    for (const StepArrays* arrays : {&steps_, &scale_steps_}) {
      arrays->page(0, 0) = 3;
      arrays->page(0, 1) = 1;
    }
    scale_steps_.page(0, 0) = 4;
    blocks_.page(0, 0) = 3;
    steps_.SetLength(0, 17);
    blocks_.SetLength(0, 5);
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = static_cast<float>(i);
    for (float& x : scales_) x = 1;
  }
  PagedCollection paged() const {
    return *PagedCollection::Create(geometry_, {.blocks = pool_.data()}, steps_.inputs);
  }
  QuantizedCollection quantized(bool own_table = false) const {
    return *QuantizedCollection::Create(
        quantized_,
        {.blocks = bytes_.data(),
         .scales = scales_.data(),
         .scales_lookup_table = own_table ? scale_steps_.lookup_table.data() : nullptr},
        steps_.inputs);
  }
  ContinuousCollection continuous() const {
    return *ContinuousCollection::Create(geometry_, pool_.data(), blocks_.inputs);
  }
  bool PoolIsUntouched() const {
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      if (pool_[i] != static_cast<float>(i)) return false;
    }
    return true;
  }

  KvGeometry geometry_ = MakeGeometry(5, 2, 2, 16, 2, 32);
  KvGeometry quantized_ = WithScales(MakeGeometry(5, 2, 2, 16, 2, 32), DType::kI8, 16);
  AlignedArray<float> pool_{PoolElements(geometry_)};
  AlignedArray<std::int8_t> bytes_{PoolElements(quantized_)};
  AlignedArray<float> scales_{PoolScales(quantized_)};
  StepArrays steps_{2, LookupStride(4)};
  StepArrays scale_steps_{2, LookupStride(4)};
  StepArrays blocks_{2, 0};
};

TEST_F(KvDifferencesTest, D1PageZeroIsNeverWritten) {
  paged().get_key_cache(0).store<1>(1, 0, 3, 0, {{-1.0f}});
  continuous().get_key_cache(0).store<1>(1, 0, 3, 0, {{-1.0f}});
  EXPECT_TRUE(PoolIsUntouched());
}

TEST_F(KvDifferencesTest, D2StoresWithoutPageWriteNothing) {
  paged().get_value_cache(1).store<8>(0, 1, 32, 0, Vec<float, 8>{});
  EXPECT_TRUE(PoolIsUntouched());
  quantized().get_value_cache(1).store_scale<1>(0, 1, 32, 0, {{-1.0f}});
  for (const float x : scales_) EXPECT_EQ(x, 1);
}

TEST_F(KvDifferencesTest, D3ColumnsWithoutPageAreTheNullPage) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_EQ(k.row_idx(0, 33), 1);
  EXPECT_EQ(k.block_paged_ptr<1>(0, 33, 0, 0), k.blocks_raw_ptr() + 64);
  EXPECT_EQ((k.populate<64, 64>(0, 0).rows[3]), 0);
}

TEST_F(KvDifferencesTest, D4NegativeIndicesGiveMinusOne) {
  for (const std::int32_t index : {-1, -16, -17, std::numeric_limits<std::int32_t>::min()}) {
    EXPECT_EQ(paged().get_key_cache(0).get_tma_row(index), -1);
    EXPECT_EQ(continuous().get_key_cache(0).get_tma_row(index), -1);
    EXPECT_EQ(ContiguousMHAOperand<float>{}.get_tma_row(index), -1);
    EXPECT_EQ(RaggedMHAOperand<float>{}.get_tma_row(index), -1);
  }
}

TEST_F(KvDifferencesTest, D5IndicesPastTheLastPageAreRowsOutOfBounds) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_EQ(k.get_tma_row(5 * 16), 5 * 64);
  EXPECT_GE(k.get_tma_row(5 * 16), k.num_kv_rows());
}

TEST_F(KvDifferencesTest, D6QueriesOfNoBatchRowGiveMinusOne) {
  const std::vector<std::int32_t> logical{3, 3};
  std::vector<std::int32_t> encoded(2);
  const std::vector<std::uint32_t> offsets{0, 1};
  RemapSparseIndices({.logical = logical.data(),
                      .row_offsets = offsets.data(),
                      .lookup_table = steps_.lookup_table.data(),
                      .encoded = encoded.data(),
                      .num_queries = 2,
                      .num_selected = 1,
                      .batch_size = 1,
                      .lookup_stride = steps_.inputs.lookup_stride,
                      .page_size = 16,
                      .num_blocks = 5});
  EXPECT_EQ(encoded, (std::vector<std::int32_t>{3 * 16 + 3, -1}));
}

TEST_F(KvDifferencesTest, D7TokensOnPageZeroHaveNoSparseRow) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_EQ(k.sparse_tma_row(1, 3), -1);
  EXPECT_EQ(k.sparse_tma_row(0, 40), -1);
  EXPECT_EQ(k.sparse_tma_row(0, 17), 64 + 1);
}

TEST_F(KvDifferencesTest, D8PageStrideMayExceedThePackedSize) {
  KvGeometry g = geometry_;
  g.num_blocks = 4;
  g.page_stride = g.block_stride() + 3 * g.row_elements();
  const auto collection = PagedCollection::Create(g, {.blocks = pool_.data()}, steps_.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const Paged v = collection->get_value_cache(1);
  EXPECT_EQ(v.row_stride(), 67);
  EXPECT_EQ(v.block_paged_ptr<1>(0, 5, 1, 2) - pool_.data(),
            3 * g.page_stride + 3 * 16 * 64 + 5 * 64 + 32 + 2);
}

TEST_F(KvDifferencesTest, D9ScalesMayHaveATableOfTheirOwn) {
  const Quantized k = quantized(/*own_table=*/true).get_key_cache(0);
  EXPECT_EQ(k.row_idx(0, 2), 3 * 64 + 2);
  EXPECT_EQ(k.scale_row_idx(0, 2), 4 * 64 + 2);
  const Quantized same = quantized().get_key_cache(0);
  EXPECT_EQ(same.scale_row_idx(0, 2), same.row_idx(0, 2));
}

TEST_F(KvDifferencesTest, D10ScaleOperandFollowsTheScalesTable) {
  const KVCacheScalesMHAOperand operand{quantized(/*own_table=*/true).get_key_cache(0)};
  EXPECT_EQ(operand.row_idx(0, 2), 4 * 64 + 2);
  EXPECT_EQ((operand.populate<16, 16>(0, 0).rows[0]), 4 * 64);
  EXPECT_EQ(operand.sparse_tma_row(0, 2), 3 * 64 + 2);
  EXPECT_EQ(operand.kv_tma_coords(0, 2), (KvTmaCoords{4 * 64 + 2, 0}));
}

TEST_F(KvDifferencesTest, D11ScaleOperandIsNotQuantizedItself) {
  using Operand = KVCacheScalesMHAOperand<Quantized>;
  static_assert(!Operand::kQuantized && !HasScales<Operand>);
  static_assert(std::is_same_v<Operand::Element, float>);
}

TEST_F(KvDifferencesTest, D12TensorOperandsHaveGranularityOne) {
  static_assert(ContiguousMHAOperand<float>::kGranularity == 1);
  static_assert(RaggedMHAOperand<float>::kGranularity == 1);
}

TEST_F(KvDifferencesTest, D13NoScaleTypeWithoutScales) {
  static_assert(Paged::kScaleDType == DType::kInvalid);
  static_assert(Continuous::kScaleDType == DType::kInvalid);
  static_assert(Quantized::kScaleDType == DType::kF32);
}

TEST_F(KvDifferencesTest, D14NoScaleGroupsWithoutScales) {
  const auto has_groups = []<typename C>(std::type_identity<C>) {
    return requires {
      C::kScaleGroups;
    };
  };
  EXPECT_FALSE(has_groups(std::type_identity<Paged>{}));
  EXPECT_TRUE(has_groups(std::type_identity<Quantized>{}));
}

TEST_F(KvDifferencesTest, D15ContinuousTilesHaveNoLimit) {
  static_assert(Continuous::max_tile_size() == std::numeric_limits<std::uint32_t>::max());
}

TEST_F(KvDifferencesTest, D16EmptyMeansNoHistory) {
  EXPECT_FALSE(paged().get_key_cache(0).empty_cache());
  steps_.SetLength(0, 0);
  steps_.inputs.max_cache_length = 9;
  EXPECT_TRUE(paged().get_key_cache(0).empty_cache());
}

TEST_F(KvDifferencesTest, D17TypeNamesContainTheParameters) {
  EXPECT_EQ(Paged::type_name(), "PagedKVCache<f32,h2,d32,p16>");
  EXPECT_EQ(Continuous::type_name(), "ContinuousBatchingKVCache<f32,h2,d32>");
}

TEST_F(KvDifferencesTest, D18QuantizedLoadsAreFloatByDefault) {
  const Quantized k = quantized().get_key_cache(0);
  static_assert(std::is_same_v<decltype(k.load<4>(0, 0, 0, 0)), Vec<float, 4>>);
  EXPECT_EQ((k.load<4>(0, 0, 0, 0)), (Vec<float, 4>{}));
}

TEST_F(KvDifferencesTest, D19VectorsStayInTheirHeadAndGroup) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_DEATH(k.load<8>(0, 0, 1, 28), "check failed");
  EXPECT_DEATH(k.store<8>(0, 0, 1, 28, Vec<float, 8>{}), "check failed");
  const Quantized q = quantized().get_key_cache(0);
  EXPECT_DEATH(q.load<8>(0, 0, 1, 12), "check failed");
  EXPECT_DEATH(q.load_scale<2>(0, 0, 1, 16), "check failed");
  using Odd = PagedKVCache<float, KVCacheStaticParams<2, 36>, 16>;
  const auto has_load = []<typename C>(const C& c) {
    return requires {
      c.template load<8>(0u, 0u, 0u, 0u);
    };
  };
  EXPECT_FALSE(has_load(Odd{})) << "36 columns are no multiple of 8";
  EXPECT_TRUE(has_load(k));
}

TEST_F(KvDifferencesTest, D20NoScaleMembersWithoutScales) {
  static_assert(!HasScales<Paged> && HasScales<Quantized>);
  static_assert(!HasScales<KVCacheMHAOperand<Paged>> && HasScales<KVCacheMHAOperand<Quantized>>);
}

TEST_F(KvDifferencesTest, D21ContinuousCachesHaveNoScaleMembers) {
  static_assert(!HasScales<Continuous>);
}

TEST_F(KvDifferencesTest, D22MissingScalesAreRejected) {
  const auto collection =
      QuantizedCollection::Create(quantized_, {.blocks = bytes_.data()}, steps_.inputs);
  EXPECT_EQ(collection.status().message(), "scales is null");
}

TEST_F(KvDifferencesTest, D23EveryMemberChecksTheBatchRow) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_DEATH(k.cache_length(2), "check failed");
  EXPECT_DEATH(k.row_idx(2, 0), "check failed");
  EXPECT_DEATH(k.store<1>(2, 0, 0, 0, {{1.0f}}), "check failed");
  EXPECT_DEATH(quantized().get_key_cache(0).store_scale<1>(2, 0, 0, 0, {{1.0f}}), "check failed");
  const Continuous c = continuous().get_key_cache(0);
  EXPECT_DEATH(c.cache_length(2), "check failed");
  EXPECT_DEATH(c.row_idx(2, 0), "check failed");
  EXPECT_DEATH(c.block_paged_ptr<1>(2, 0, 0), "check failed");
}

TEST_F(KvDifferencesTest, D24ContinuousRowsEndWithTheBlock) {
  const Continuous c = continuous().get_key_cache(0);
  EXPECT_EQ(c.row_idx(0, 15), 3 * 64 + 15);
  EXPECT_DEATH(c.row_idx(0, 16), "check failed");
}

TEST_F(KvDifferencesTest, D25ScaleMembersCheckTheColumn) {
  const Quantized q = quantized().get_key_cache(0);
  EXPECT_DEATH(q.load_scale<1>(0, 0, 1, 32), "check failed");
  EXPECT_DEATH(q.scales_block_paged_ptr(0, 1, 0, 32), "check failed");
}

TEST_F(KvDifferencesTest, D26LayersAreChecked) {
  EXPECT_DEATH(paged().get_key_cache(2), "check failed");
}

TEST_F(KvDifferencesTest, D27PointerTilesStayOnTheirPage) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_DEATH(k.block_paged_ptr<16>(0, 5, 0), "check failed");
  EXPECT_DEATH(continuous().get_key_cache(0).block_paged_ptr<16>(0, 8, 0), "check failed");
  static_assert(!Paged::kPointerTile<0> && !Paged::kPointerTile<12> && !Paged::kPointerTile<32>);
  static_assert(Paged::kPointerTile<8> && !Continuous::kPointerTile<0>);
}

TEST_F(KvDifferencesTest, D28TilesAreWholePagesAndAtMostSixteen) {
  static_assert(!Paged::kRowTile<40, 16, false> && !Paged::kRowTile<512, 512, false>);
  static_assert(Paged::kRowTile<256, 256, false>);
}

TEST_F(KvDifferencesTest, D29TilesCheckTheirBaseAndTheTable) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_DEATH((k.populate<16, 16>(0, 8)), "check failed");
  EXPECT_DEATH((k.populate<64, 64>(0, 16)), "check failed");
  EXPECT_DEATH((k.populate<256, 16>(0, (k.lookup_stride - 15) * 16)), "check failed");
}

TEST_F(KvDifferencesTest, D30PairsReadTheirHalfThroughCtaRow) {
  const Paged k = paged().get_key_cache(0);
  EXPECT_EQ((k.populate<32, 32, true, true>(0, 0).cta_row(2)), k.row_idx(0, 2));
  EXPECT_EQ((k.populate<32, 32, true, false>(0, 0).cta_row(2)), k.row_idx(0, 18));
  EXPECT_EQ((k.populate<16, 16, true, false>(0, 0).cta_row(2)), k.row_idx(0, 10));
}

TEST_F(KvDifferencesTest, D31PoolsBeyondTheRowLimitAreRejected) {
  KvGeometry g = geometry_;
  g.num_blocks = 1u << 25;
  EXPECT_THAT(std::string(g.Validate().message()), HasSubstr("at most 33554428 blocks fit"));
}

TEST_F(KvDifferencesTest, D32RaggedOperandsKnowTheirMaximum) {
  RaggedMHAOperand<float> operand;
  operand.max_length = 77;
  EXPECT_EQ(operand.max_context_length(), 77);
}

TEST_F(KvDifferencesTest, D33ScaleCoordinatesStartAtSixteenBytes) {
  const Quantized q = quantized().get_key_cache(0);
  for (std::uint32_t t = 0; t < 16; ++t) {
    EXPECT_EQ(q.scale_tma_coords(0, t), (KvTmaCoords{t / 4 * 4, 3}));
  }
}

TEST_F(KvDifferencesTest, D37ContiguousOperandTakesLengths) {
  const std::array<std::uint32_t, 2> lengths{3, 1};
  const std::vector<float> data(2 * 5 * 1 * 4);
  const auto tensor = TensorView<const float, 4>::RowMajor(data.data(), {2, 5, 1, 4});
  using Operand = ContiguousMHAOperand<float>;
  EXPECT_EQ(Operand::FromTensor(tensor, lengths.data()).cache_length(0), 3);
  EXPECT_EQ(Operand::FromTensor(tensor).cache_length(0), 5);
  EXPECT_EQ(Operand::type_name(), "ContiguousMHAOperand<f32>");
}

}  // namespace
}  // namespace quire::cache::testing
